/* path.c - decode once, refuse what is ambiguous, print again.
 *
 * Engines decode a path before they match it, so what is matched here as it came would be another path there: /v1/completion%73 is
 * the completions route. Beyond that servers differ: some decode twice, some take %2f, backslashes or dot segments for separators,
 * some cut off ";x". None of it has a use on these routes, so all of it is refused instead of guessed at.
 */
#include "api/path.h"

#define MODELS BT_STR("/v1/models/")

#define BIT(c) (UINT64_C(1) << ((c) % 64))
#define RUN(from, to) ((BIT(to) << 1) - BIT(from))

/* pchar without '%' and ';' (RFC 3986 3.3), and the slash. */
static bool is_plain(unsigned char c)
{
    static const uint64_t plain[4] = {
        RUN('0', '9') | BIT('/') | BIT('-') | BIT('.') | BIT('!') | BIT('$') | BIT('&') |
            BIT('\'') | BIT('(') | BIT(')') | BIT('*') | BIT('+') | BIT(',') | BIT('=') | BIT(':'),
        RUN('A', 'Z') | RUN('a', 'z') | BIT('@') | BIT('_') | BIT('~'),
    };
    return ((plain[c / 64] >> (c % 64)) & 1) != 0;
}

/* Nothing to decode, and no segment that needs a second look: what all usual clients send. */
static bool is_usual(bt_str_t path)
{
    unsigned char before = 0;

    for (size_t i = 0; i < path.n; i++) {
        const unsigned char c = (unsigned char) path.p[i];
        if (!is_plain(c) || (before == '/' && (c == '/' || c == '.')))
            return false;
        before = c;
    }
    return before != '/' || path.n == 1;
}

static const char *byte_refusal(int c, bool is_escaped, bool is_model_name)
{
    if (c < 0)
        return "the path holds a '%' that begins no escape";
    if (c == '/' && is_escaped && !is_model_name)
        return "the path holds an encoded slash (%2F)";
    if (c == '%')
        return "the path holds an encoded percent sign (%25)";
    if (c == '\\')
        return "the path holds a backslash";
    if (c == ';')
        return "the path holds a ';'";
    if (c < ' ' || c == 0x7f)
        return "the path holds a control character";
    return NULL;
}

struct writer {
    char *at;
};

static void put(struct writer *w, int c, bool is_escaped)
{
    static const char digits[] = "0123456789ABCDEF";

    if (is_plain((unsigned char) c) && !(c == '/' && is_escaped)) {
        *w->at++ = (char) c;
        return;
    }
    *w->at++ = '%';
    *w->at++ = digits[c / 16];
    *w->at++ = digits[c % 16];
}

static const char *rewrite(bt_str_t raw, bt_arena_t *arena, bt_str_t *path_p)
{
    char *const out = bt_arena_alloc(arena, 3 * raw.n);
    struct writer w = {out};

    for (size_t i = 0; i < raw.n;) {
        const bool is_escaped = raw.p[i] == '%';
        const int c = is_escaped ? bt_str_escaped_byte(raw, i) : (unsigned char) raw.p[i];
        const bool is_model_name = bt_str_starts((bt_str_t){out, (size_t) (w.at - out)}, MODELS);
        const char *why = byte_refusal(c, is_escaped, is_model_name);
        if (why != NULL)
            return why;
        put(&w, c, is_escaped);
        i += is_escaped ? 3 : 1;
    }
    *path_p = (bt_str_t){out, (size_t) (w.at - out)};
    return NULL;
}

/* Bytes of a separator at p: a slash, or one that the next reader may take for it; 0 = none. */
static size_t separator(bt_str_t path, size_t at)
{
    if (path.p[at] == '/')
        return 1;
    return bt_str_escaped_byte(path, at) == '/' ? 3 : 0;
}

/* "/" is a path of no segments; every other one has at least a byte in each. */
static const char *segment_refusal(bt_str_t path)
{
    size_t at = 1, from = 1;

    if (path.n <= 1)
        return NULL;
    for (;;) {
        const size_t skip = at < path.n ? separator(path, at) : 0;
        const bt_str_t segment = {path.p + from, at - from};
        if (at < path.n && skip == 0) {
            at++;
            continue;
        }
        if (segment.n == 0)
            return "the path holds an empty segment";
        if (bt_str_eq(segment, BT_STR(".")) || bt_str_eq(segment, BT_STR("..")))
            return "the path holds a dot segment";
        if (at == path.n)
            return NULL;
        from = at += skip;
    }
}

const char *bt_path_canonical(bt_str_t raw, bt_arena_t *arena, bt_str_t *path_p)
{
    bt_str_t path = raw;
    const char *why = NULL;

    if (!is_usual(raw)) {
        why = rewrite(raw, arena, &path);
        if (why == NULL)
            why = segment_refusal(path);
    }
    if (why == NULL)
        *path_p = path;
    return why;
}

const char *bt_path_settle(bt_head_t *head, bt_arena_t *arena)
{
    bt_str_t path;
    const char *why = bt_path_canonical(head->path, arena, &path);

    if (why != NULL || path.p == head->path.p)
        return why;
    head->path = path;
    head->target = head->query.p == NULL ? path
                                         : bt_arena_printf(arena, "%.*s?%.*s", BT_STR_ARG(path),
                                                           BT_STR_ARG(head->query));
    return NULL;
}

size_t bt_path_decode(bt_str_t text, char *out, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < text.n && n < size;) {
        const int c = bt_str_escaped_byte(text, i);
        out[n++] = (char) (c >= 0 ? c : text.p[i]);
        i += c >= 0 ? 3 : 1;
    }
    return n;
}
