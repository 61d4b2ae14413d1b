/* How it works: as Lua's own: the search tries one place of the text after the other (script/vm/pattern.h); what was captured is pushed,
 * or put into what gsub makes. Texts and patterns stay on the stack, or in upvalues, while pointers go into them. */
#include "script/vm/pattern.h"

#include <ctype.h>

/* ---- captures ---- */

/* from, to: of the whole match, which stands for the first capture where there is none. */
static void push_capture(const bt_match_t *m, unsigned i, const char *from, const char *to)
{
    if (i >= m->count) {
        if (i > 0)
            luaL_error(m->L, "invalid capture index");
        lua_pushlstring(m->L, from, (size_t) (to - from));
    } else if (m->captures[i].n == BT_CAPTURE_OPEN) {
        luaL_error(m->L, "unfinished capture");
    } else if (m->captures[i].n == BT_CAPTURE_POSITION) {
        lua_pushinteger(m->L, m->captures[i].at - m->text + 1);
    } else {
        lua_pushlstring(m->L, m->captures[i].at, (size_t) m->captures[i].n);
    }
}

/* All of them; from NULL: the whole match is none. */
static int push_captures(const bt_match_t *m, const char *from, const char *to)
{
    const unsigned count = m->count == 0 && from != NULL ? 1 : m->count;

    luaL_checkstack(m->L, (int) count, "too many captures");
    for (unsigned i = 0; i < count; i++)
        push_capture(m, i, from, to);
    return (int) count;
}

/* ---- find, match, gmatch ---- */

static bt_str_t check_text(lua_State *L, int idx)
{
    bt_str_t s;

    s.p = luaL_checklstring(L, idx, &s.n);
    return s;
}

/* Where the search begins: argument 3, from the end when it is negative. */
static size_t check_init(lua_State *L, size_t n)
{
    const lua_Integer init = luaL_optinteger(L, 3, 1),
                      at = init < 0 ? (lua_Integer) n + init : init - 1;

    return at < 0 ? 0 : (size_t) at < n ? (size_t) at : n;
}

static bool is_plain(bt_str_t pattern)
{
    for (size_t i = 0; i < pattern.n; i++)
        if (pattern.p[i] == '\0' || strchr("^$*+?.([%-", pattern.p[i]) != NULL)
            return false;
    return true;
}

/* glibc's memmem is linear. */
static int find_plain(lua_State *L, bt_str_t text, bt_str_t word, size_t init)
{
    const char *hit = memmem(text.p + init, text.n - init, word.p, word.n);

    if (hit == NULL)
        return 0;
    lua_pushinteger(L, hit - text.p + 1);
    lua_pushinteger(L, hit - text.p + (lua_Integer) word.n);
    return 2;
}

static int search(lua_State *L, bool is_find)
{
    const bt_str_t text = check_text(L, 1), pattern = check_text(L, 2);
    const size_t init = check_init(L, text.n);
    const bool is_anchored = pattern.n > 0 && pattern.p[0] == '^';
    const char *s = text.p + init, *p = pattern.p + is_anchored, *hit;
    bt_match_t m;

    if (is_find && (lua_toboolean(L, 4) || is_plain(pattern))) {
        if (find_plain(L, text, pattern, init) == 2)
            return 2;
        lua_pushnil(L);
        return 1;
    }
    bt_match_begin(&m, L, is_find ? "find" : "match", text, pattern);
    do {
        hit = bt_match_from(&m, s, p);
    } while (hit == NULL && !is_anchored && s++ < m.text_end);
    if (hit == NULL) {
        lua_pushnil(L);
        return 1;
    }
    if (!is_find)
        return push_captures(&m, s, hit);
    lua_pushinteger(L, s - text.p + 1);
    lua_pushinteger(L, hit - text.p);
    return 2 + push_captures(&m, NULL, NULL);
}

/* string.find(s, pattern[, init[, plain]]) */
static int pattern_find(lua_State *L)
{
    return search(L, true);
}

/* string.match(s, pattern[, init]) */
static int pattern_match(lua_State *L)
{
    return search(L, false);
}

/* Upvalues: text, pattern, where the next search begins. */
static int next_match(lua_State *L)
{
    const bt_str_t text = bt_vm_str(L, lua_upvalueindex(1)),
                   pattern = bt_vm_str(L, lua_upvalueindex(2));
    bt_match_t m;

    bt_match_begin(&m, L, "gmatch", text, pattern);
    for (const char *s = text.p + lua_tointeger(L, lua_upvalueindex(3)); s <= m.text_end; s++) {
        const char *hit = bt_match_from(&m, s, pattern.p);
        if (hit == NULL)
            continue;
        lua_pushinteger(L, hit - text.p + (hit == s));
        lua_replace(L, lua_upvalueindex(3));
        return push_captures(&m, s, hit);
    }
    return 0;
}

/* string.gmatch(s, pattern) */
static int pattern_gmatch(lua_State *L)
{
    (void) check_text(L, 1);
    (void) check_text(L, 2);
    lua_settop(L, 2);
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, next_match, 3);
    return 1;
}

/* ---- gsub ---- */

/* The replacement is a text: "%1" in it is a capture, "%0" the whole match. */
static void add_text(bt_match_t *m, luaL_Buffer *b, bt_str_t with, const char *from, const char *to)
{
    bt_match_spend(m, with.n);
    for (size_t i = 0; i < with.n; i++) {
        if (with.p[i] != '%') {
            luaL_addchar(b, with.p[i]);
            continue;
        }
        if (++i == with.n)
            luaL_error(m->L, "the replacement ends with '%%'");
        if (!isdigit((unsigned char) with.p[i])) {
            luaL_addchar(b, with.p[i]);
        } else if (with.p[i] == '0') {
            bt_match_spend(m, (size_t) (to - from));
            luaL_addlstring(b, from, (size_t) (to - from));
        } else {
            push_capture(m, (unsigned) (with.p[i] - '1'), from, to);
            bt_match_spend(m, lua_objlen(m->L, -1));
            luaL_addvalue(b);
        }
    }
}

/* It is a function or a table: what it gives for the captures, or the match itself where that is nil or false. */
static void add_answer(bt_match_t *m, luaL_Buffer *b, const char *from, const char *to)
{
    lua_State *L = m->L;

    if (lua_isfunction(L, 3)) {
        bt_vm_check_depth(L);
        lua_pushvalue(L, 3);
        lua_call(L, push_captures(m, from, to), 1);
    } else {
        push_capture(m, 0, from, to);
        lua_gettable(L, 3);
    }
    if (!lua_toboolean(L, -1)) {
        lua_pop(L, 1);
        lua_pushlstring(L, from, (size_t) (to - from));
    } else if (!lua_isstring(L, -1)) {
        luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
    }
    bt_match_spend(m, lua_objlen(L, -1));
    luaL_addvalue(b);
}

static void add_match(bt_match_t *m, luaL_Buffer *b, const char *from, const char *to)
{
    if (lua_isstring(m->L, 3))
        add_text(m, b, bt_vm_str(m->L, 3), from, to);
    else
        add_answer(m, b, from, to);
}

/* string.gsub(s, pattern, replacement[, times]) */
static int pattern_gsub(lua_State *L)
{
    const bt_str_t text = check_text(L, 1), pattern = check_text(L, 2);
    const bool is_anchored = pattern.n > 0 && pattern.p[0] == '^';
    const lua_Number times = luaL_optnumber(L, 4, (lua_Number) text.n + 1);
    const char *s = text.p;
    lua_Number done = 0;
    luaL_Buffer b;
    bt_match_t m;

    luaL_argcheck(L, lua_isstring(L, 3) || lua_istable(L, 3) || lua_isfunction(L, 3), 3,
                  "string/function/table expected");
    lua_settop(L, 3);
    bt_match_begin(&m, L, "gsub", text, pattern);
    luaL_buffinit(L, &b);
    while (done < times) {
        const char *hit = bt_match_from(&m, s, pattern.p + is_anchored);
        if (hit != NULL) {
            done++;
            add_match(&m, &b, s, hit);
        }
        if (hit != NULL && hit > s)
            s = hit;
        else if (s < m.text_end)
            luaL_addchar(&b, *s++);
        else
            break;
        if (is_anchored)
            break;
    }
    luaL_addlstring(&b, s, (size_t) (m.text_end - s));
    luaL_pushresult(&b);
    lua_pushnumber(L, done);
    return 2;
}

void bt_pattern_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"find", pattern_find},
                                         {"match", pattern_match},
                                         {"gmatch", pattern_gmatch},
                                         {"gsub", pattern_gsub},
                                         {NULL, NULL}};

    lua_getglobal(L, "string");
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    lua_pop(L, 1);
}
