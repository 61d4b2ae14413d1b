/* How it works: a backtracking matcher like Lua's own, with the same results, that counts its steps. The stock matcher cannot be
 * stopped: "a?" forty times over forty mail takes hours, and no hook is called meanwhile. Refusing patterns by their worst case
 * instead would refuse "(%w+)%s*=%s*(%w+)" on a line of two hundred bytes.
 *
 * match_here() is called with a place in the text and one in the pattern, and returns where the match ends, or NULL. It recurs for
 * what can be taken back: repeats and captures. That is as deep as the pattern has such items, and limited. */
#include "script/vm/pattern.h"

#include <ctype.h>

#define ESCAPE '%'
#define DEPTH_MAX 200

static const char *match_here(bt_match_t *m, const char *s, const char *p);

void bt_match_spend(bt_match_t *m, size_t steps)
{
    const size_t bytes = (size_t) (m->text_end - m->text);

    if (steps <= m->vm->steps_left) {
        m->vm->steps_left -= steps;
        return;
    }
    m->vm->steps_left = 0;
    luaL_error(m->L,
               "string.%s: the pattern takes too many steps on a text of %d bytes; use fewer of "
               "*, + and -, or begin it with ^",
               m->function, (int) bytes);
}

/* ---- one character ---- */

/* The mail stands for its class, in upper case for all others; any other character for itself. */
static bool is_in_class(int c, int name)
{
    static const struct {
        int name;
        int (*has)(int c);
    } classes[] = {{'a', isalpha}, {'c', iscntrl}, {'d', isdigit}, {'g', isgraph}, {'l', islower},
                   {'p', ispunct}, {'s', isspace}, {'u', isupper}, {'w', isalnum}, {'x', isxdigit}};
    const int lower = tolower(name);

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (classes[i].name == lower)
            return (classes[i].has(c) != 0) == (name == lower);
    return lower == 'z' ? (c == 0) == (name == lower) : name == c;
}

/* set: "[...]" from its '[' to its ']'. */
static bool is_in_set(int c, const char *set, const char *close)
{
    const unsigned char *p = (const unsigned char *) set + 1, *end = (const unsigned char *) close;
    const bool is_negated = *p == '^';

    for (p += is_negated; p < end; p++) {
        if (*p == ESCAPE) {
            if (is_in_class(c, *++p))
                return !is_negated;
        } else if (p[1] == '-' && p + 2 < end) {
            if (p[0] <= c && c <= p[2])
                return !is_negated;
            p += 2;
        } else if (*p == c) {
            return !is_negated;
        }
    }
    return is_negated;
}

/* Behind the single-character item that begins at p. */
static const char *item_end(const bt_match_t *m, const char *p)
{
    const char *const end = m->pattern_end;
    const char c = *p++;

    if (c == ESCAPE && p == end)
        luaL_error(m->L, "malformed pattern (ends with '%%')");
    if (c != '[')
        return c == ESCAPE ? p + 1 : p;
    if (p < end && *p == '^')
        p++;
    do { /* a ']' that comes first is an ordinary character */
        if (p < end && *p++ == ESCAPE && p < end)
            p++;
        if (p >= end)
            luaL_error(m->L, "malformed pattern (missing ']')");
    } while (*p != ']');
    return p + 1;
}

static bool is_match(const bt_match_t *m, const char *s, const char *p, const char *item_end_p)
{
    if (s >= m->text_end)
        return false;
    switch (*p) {
    case '.':
        return true;
    case ESCAPE:
        return is_in_class((unsigned char) *s, (unsigned char) p[1]);
    case '[':
        return is_in_set((unsigned char) *s, p, item_end_p - 1);
    default:
        return *p == *s;
    }
}

/* ---- repeats ---- */

static const char *most(bt_match_t *m, const char *s, const char *p, const char *end)
{
    ptrdiff_t n = 0;

    for (; is_match(m, s + n, p, end); n++)
        bt_match_spend(m, (size_t) (end - p));
    for (; n >= 0; n--) {
        const char *hit = match_here(m, s + n, end + 1);
        if (hit != NULL)
            return hit;
    }
    return NULL;
}

static const char *fewest(bt_match_t *m, const char *s, const char *p, const char *end)
{
    for (;; s++) {
        const char *hit = match_here(m, s, end + 1);
        if (hit != NULL || !is_match(m, s, p, end))
            return hit;
        bt_match_spend(m, (size_t) (end - p));
    }
}

/* ---- captures ---- */

static const char *open_capture(bt_match_t *m, const char *s, const char *p, ptrdiff_t n)
{
    const char *hit;

    if (m->count == LUA_MAXCAPTURES)
        luaL_error(m->L, "too many captures");
    m->captures[m->count++] = (struct bt_capture){s, n};
    hit = match_here(m, s, p);
    if (hit == NULL)
        m->count--;
    return hit;
}

static const char *close_capture(bt_match_t *m, const char *s, const char *p)
{
    unsigned i = m->count;
    const char *hit;

    while (i > 0 && m->captures[i - 1].n != BT_CAPTURE_OPEN)
        i--;
    if (i == 0)
        luaL_error(m->L, "invalid pattern capture");
    m->captures[i - 1].n = s - m->captures[i - 1].at;
    hit = match_here(m, s, p);
    if (hit == NULL)
        m->captures[i - 1].n = BT_CAPTURE_OPEN;
    return hit;
}

/* "%1" */
static const char *repeated_capture(bt_match_t *m, const char *s, char digit)
{
    const unsigned i = (unsigned) (digit - '1');
    ptrdiff_t n;

    if (digit == '0' || i >= m->count || m->captures[i].n == BT_CAPTURE_OPEN)
        luaL_error(m->L, "invalid capture index");
    n = m->captures[i].n;
    if (n == BT_CAPTURE_POSITION || m->text_end - s < n)
        return NULL;
    bt_match_spend(m, (size_t) n);
    return memcmp(m->captures[i].at, s, (size_t) n) == 0 ? s + n : NULL;
}

/* ---- %b and %f ---- */

/* p: the two characters. */
static const char *balanced(bt_match_t *m, const char *s, const char *p)
{
    const char *const from = s;
    unsigned depth = 1;

    if (m->pattern_end - p < 2)
        luaL_error(m->L, "unbalanced pattern");
    if (s >= m->text_end || *s != *p)
        return NULL;
    while (++s < m->text_end && depth > 0) {
        if (*s == p[1])
            depth--;
        else if (*s == *p)
            depth++;
    }
    bt_match_spend(m, (size_t) (s - from));
    return depth == 0 ? s : NULL;
}

/* p: the set. Does it begin here? */
static bool is_frontier(const bt_match_t *m, const char *s, const char *p, const char *end)
{
    const int before = s == m->text ? 0 : (unsigned char) s[-1],
              here = s == m->text_end ? 0 : (unsigned char) *s;

    return !is_in_set(before, p, end - 1) && is_in_set(here, p, end - 1);
}

/* ---- the pattern ---- */

/* What a '%' at p can be but a class. NULL: it is a class. False in *ok_p: no match. */
static const char *special(bt_match_t *m, const char **s, const char *p, bool *ok_p)
{
    const char c = p + 1 < m->pattern_end ? p[1] : '\0', *end;

    if (c == 'f') {
        if (p + 2 >= m->pattern_end || p[2] != '[')
            luaL_error(m->L, "missing '[' after '%%f' in pattern");
        end = item_end(m, p + 2);
        bt_match_spend(m, (size_t) (end - p));
        *ok_p = is_frontier(m, *s, p + 2, end);
        return end;
    }
    if (c != 'b' && !isdigit((unsigned char) c))
        return NULL;
    *s = c == 'b' ? balanced(m, *s, p + 2) : repeated_capture(m, *s, c);
    *ok_p = *s != NULL;
    return c == 'b' ? p + 4 : p + 2;
}

static const char *match_items(bt_match_t *m, const char *s, const char *p)
{
    while (p < m->pattern_end) {
        const char *end, *next;
        bool ok = true;

        bt_match_spend(m, 1);
        if (*p == '(')
            return p + 1 < m->pattern_end && p[1] == ')'
                       ? open_capture(m, s, p + 2, BT_CAPTURE_POSITION)
                       : open_capture(m, s, p + 1, BT_CAPTURE_OPEN);
        if (*p == ')')
            return close_capture(m, s, p + 1);
        if (*p == '$' && p + 1 == m->pattern_end)
            return s == m->text_end ? s : NULL;
        next = *p == ESCAPE ? special(m, &s, p, &ok) : NULL;
        if (!ok)
            return NULL;
        if (next != NULL) {
            p = next;
            continue;
        }
        end = item_end(m, p);
        bt_match_spend(m, (size_t) (end - p));
        switch (end < m->pattern_end ? *end : '\0') {
        case '*':
            return most(m, s, p, end);
        case '+':
            return is_match(m, s, p, end) ? most(m, s + 1, p, end) : NULL;
        case '-':
            return fewest(m, s, p, end);
        case '?':
            next = is_match(m, s, p, end) ? match_here(m, s + 1, end + 1) : NULL;
            if (next != NULL)
                return next;
            p = end + 1;
            break;
        default:
            if (!is_match(m, s, p, end))
                return NULL;
            s++;
            p = end;
        }
    }
    return s;
}

static const char *match_here(bt_match_t *m, const char *s, const char *p)
{
    const char *hit;

    if (++m->depth > DEPTH_MAX)
        luaL_error(m->L, "pattern too complex");
    hit = match_items(m, s, p);
    m->depth--;
    return hit;
}

void bt_match_begin(bt_match_t *m, lua_State *L, const char *function, bt_str_t text,
                    bt_str_t pattern)
{
    m->L = L;
    m->vm = bt_vm_of(L);
    m->function = function;
    m->text = text.p;
    m->text_end = text.p + text.n;
    m->pattern_end = pattern.p + pattern.n;
    m->depth = m->count = 0;
}

const char *bt_match_from(bt_match_t *m, const char *s, const char *p)
{
    m->depth = m->count = 0;
    return match_here(m, s, p);
}
