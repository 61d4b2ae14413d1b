/* The edit functions append to the edits of the running call; outside of a call they raise. Values that a dialect gives as raw JSON are
 * validated before they are taken, so that a slip in a dialect is a refused leg and never a malformed body at an engine. */
#include "script/dialect/dialect_impl.h"

static int checked(lua_State *L, int rc)
{
    return rc == 0 ? 0 : luaL_error(L, "too many edits in one leg (at most %d)", BT_EDITS_MAX);
}

/* Raw JSON text, or a Lua number or boolean as a convenience. */
static bt_str_t check_value(lua_State *L, int idx)
{
    bt_str_t value;
    size_t at;

    if (lua_type(L, idx) == LUA_TBOOLEAN)
        return lua_toboolean(L, idx) ? BT_STR("true") : BT_STR("false");
    if (lua_type(L, idx) != LUA_TSTRING && lua_type(L, idx) != LUA_TNUMBER)
        luaL_error(L, "a value must be JSON text, a number or a boolean, not a %s",
                   luaL_typename(L, idx));
    value = bt_vm_str(L, idx);
    if (bt_json_validate(value, &at) != 0)
        luaL_error(L, "not JSON: %s", value.p);
    return value;
}

static bt_str_t check_str(lua_State *L, int idx)
{
    bt_str_t s = BT_STR_NULL;

    s.p = luaL_checklstring(L, idx, &s.n);
    return s;
}

static int edit_set(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);

    return checked(L,
                   bt_edits_set(d->edits, BT_STR(""), check_str(L, 1), check_value(L, 2), false));
}

static int edit_set_in(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);

    return checked(
        L, bt_edits_set(d->edits, check_str(L, 1), check_str(L, 2), check_value(L, 3), false));
}

static int edit_remove(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);

    return checked(L, bt_edits_remove(d->edits, BT_STR(""), check_str(L, 1)));
}

static int edit_remove_in(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);

    return checked(L, bt_edits_remove(d->edits, check_str(L, 1), check_str(L, 2)));
}

static bool is_header_text(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char) s.p[i] < 0x20 || s.p[i] == 0x7f)
            return false;
    return true;
}

static int edit_header(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t name = check_str(L, 1), value = BT_STR_NULL;

    if (!lua_isnoneornil(L, 2))
        value = check_str(L, 2);
    if (name.n == 0 || !is_header_text(name) || !is_header_text(value))
        return luaL_error(L, "control character in header '%s'", name.p);
    return checked(L, bt_edits_header(d->edits, name, value));
}

/* edit.str(s) -> s as a JSON string */
static int edit_str(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t s = check_str(L, 1);
    char *out = bt_arena_alloc(d->edits->arena, bt_json_quoted_max(s));

    lua_pushlstring(L, out, bt_json_quote(s, out));
    return 1;
}

/* A template cannot say what a function makes of the reply itself. */
static bt_str_t look_at_reply(struct bt_dialects *d)
{
    if (d->noting != NULL)
        d->noting->reads_reply = true;
    return d->leg->reply;
}

/* Follows names and 1-based positions from stack index `from` on. */
static bt_str_t follow(lua_State *L, struct bt_dialects *d, int from)
{
    bt_str_t at = bt_str_trim(look_at_reply(d));
    const bt_json_item_t *item;

    for (int i = from; i <= lua_gettop(L) && at.p != NULL; i++) {
        if (lua_type(L, i) == LUA_TNUMBER) {
            lua_Integer n = lua_tointeger(L, i);
            at = n >= 1 ? bt_json_index_element(&d->index, at, (unsigned) n - 1) : BT_STR_NULL;
            continue;
        }
        item = bt_json_index_member(&d->index, at, check_str(L, i));
        at = item != NULL ? item->value : BT_STR_NULL;
    }
    return at;
}

static void push_json_string(lua_State *L, struct bt_dialects *d, bt_str_t value)
{
    char *out = bt_arena_alloc(d->edits->arena, value.n);
    long n = bt_json_unescape(value, out, value.n);

    lua_pushlstring(L, out, n > 0 ? (size_t) n : 0);
}

static void push_json_value(lua_State *L, struct bt_dialects *d, bt_str_t value,
                            enum bt_json_type type)
{
    double number = 0;
    long count;

    switch (type) {
    case BT_JSON_FALSE:
    case BT_JSON_TRUE:
        lua_pushboolean(L, type == BT_JSON_TRUE);
        return;
    case BT_JSON_NUMBER:
        bt_json_double(value, &number);
        lua_pushnumber(L, number);
        return;
    case BT_JSON_STRING:
        push_json_string(L, d, value);
        return;
    case BT_JSON_OBJECT: /* whose members will be asked for next */
        lua_pushnumber(L, bt_json_index_object(&d->index, value)->count);
        return;
    case BT_JSON_ARRAY:
        count = bt_json_index_count(&d->index, value);
        lua_pushnumber(L, count > 0 ? (lua_Number) count : 0);
        return;
    default:
        lua_pushnil(L);
        return;
    }
}

/* edit.reply(path...) -> type, value or count; nil when absent */
static int edit_reply(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t value = look_at_reply(d).n > 0 ? follow(L, d, 1) : BT_STR_NULL;
    enum bt_json_type type = value.n > 0 ? bt_json_type_of(value) : BT_JSON_NONE;

    if (type == BT_JSON_NONE)
        return 0;
    lua_pushstring(L, bt_dialect_type_name(type));
    push_json_value(L, d, value, type);
    return 2;
}

/* edit.raw(path...) -> the JSON text there; nil when absent. Numbers keep all their digits. */
static int edit_raw(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    const bt_str_t value = look_at_reply(d).n > 0 ? follow(L, d, 1) : BT_STR_NULL;

    if (value.n == 0)
        return 0;
    lua_pushlstring(L, value.p, value.n);
    return 1;
}

/* The reply's value that stack index idx names: a top-level name, a list of names and 1-based positions, or
 * nil for the reply itself, where it is an object. */
static bt_str_t source_of(lua_State *L, struct bt_dialects *d, int idx)
{
    const bt_str_t reply = bt_str_trim(look_at_reply(d));
    const int top = lua_gettop(L);
    bt_str_t value;

    if (lua_isnil(L, idx))
        return bt_json_index_object(&d->index, reply)->is_right ? reply : BT_STR_NULL;
    if (lua_type(L, idx) != LUA_TTABLE)
        lua_pushvalue(L, idx);
    luaL_checkstack(L, (int) lua_objlen(L, idx) + 4, "a path into the reply is too long");
    for (size_t i = 1; lua_istable(L, idx) && i <= lua_objlen(L, idx); i++)
        lua_rawgeti(L, idx, (int) i);
    value = lua_gettop(L) > top ? follow(L, d, top + 1) : BT_STR_NULL;
    lua_settop(L, top);
    return value;
}

static void push_scalar(lua_State *L, struct bt_dialects *d, const bt_json_item_t *item)
{
    if (item == NULL || item->type == BT_JSON_ARRAY || item->type == BT_JSON_OBJECT)
        lua_pushnil(L);
    else
        push_json_value(L, d, item->value, item->type);
}

/* edit.scalars(name, {path} or nil, member...) -> the values of these members of that object; nil for what is no string,
 * number or boolean */
static int edit_scalars(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    const int top = lua_gettop(L);
    const bt_str_t object = look_at_reply(d).n > 0 && top > 0 ? source_of(L, d, 1) : BT_STR_NULL;

    luaL_checkstack(L, top, "too many members");
    for (int i = 2; i <= top; i++)
        push_scalar(L, d,
                    object.n > 0 ? bt_json_index_member(&d->index, object, check_str(L, i)) : NULL);
    return top > 1 ? top - 1 : 0;
}

/* ---- splice, copy, forward: the reply's bytes ---- */

/* A table of members at idx, in the arena. */
static bt_member_t *check_members(lua_State *L, struct bt_dialects *d, int idx, unsigned *count_p)
{
    bt_arena_t *arena = d->edits->arena;
    bt_member_t *members;
    unsigned count = 0;

    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1))
        count++;
    members = bt_arena_alloc(arena, (count + 1) * sizeof(*members));
    *count_p = count;
    count = 0;
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "replaced members are named by strings");
        members[count++] = (bt_member_t){
            bt_arena_str(arena, bt_vm_str(L, -2)),
            bt_arena_str(arena, check_value(L, lua_gettop(L))),
        };
    }
    return members;
}

/* edit.splice(key, name or {path}, {member = raw}) -> true, or nil when the reply has no object there */
static int edit_splice(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t key = check_str(L, 1);
    const bt_str_t value = look_at_reply(d).n > 0 ? source_of(L, d, 2) : BT_STR_NULL;
    bt_member_t *members = NULL;
    unsigned count = 0;

    if (value.n == 0 || bt_json_type_of(value) != BT_JSON_OBJECT)
        return 0;
    if (lua_istable(L, 3))
        members = check_members(L, d, 3, &count);
    /* Unchanged bytes are borrowed: block ids of a long prompt are tens of kilobytes. */
    checked(L, bt_edits_set(d->edits, BT_STR(""), key,
                            count > 0 ? bt_forward_splice(d->edits->arena,
                                                          bt_json_index_object(&d->index, value),
                                                          members, count)
                                      : value,
                            true));
    lua_pushboolean(L, 1);
    return 1;
}

/* edit.copy(key, name or {path}) -> true, or nil when the reply has nothing, or null, there */
static int edit_copy(lua_State *L)
{
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t key = check_str(L, 1);
    const bt_str_t value = look_at_reply(d).n > 0 ? source_of(L, d, 2) : BT_STR_NULL;
    const enum bt_json_type type = value.n > 0 ? bt_json_type_of(value) : BT_JSON_NONE;

    if (type == BT_JSON_NONE || type == BT_JSON_NULL)
        return 0;
    checked(L, bt_edits_set(d->edits, BT_STR(""), key, value, true));
    lua_pushboolean(L, 1);
    return 1;
}

static unsigned member_of(lua_State *L, bt_forward_t *f, bt_str_t name)
{
    unsigned i = 0;

    while (i < f->member_count && !bt_str_eq(f->members[i], name))
        i++;
    if (i == BT_FORWARD_MEMBERS_MAX)
        luaL_error(L, "too many members in edit.forward (at most %d)", BT_FORWARD_MEMBERS_MAX);
    if (i == f->member_count)
        f->members[f->member_count++] = name;
    return i;
}

static void add_rule(lua_State *L, bt_forward_t *f, bt_forward_rule_t rule)
{
    if (f->count == BT_FORWARD_RULES_MAX)
        luaL_error(L, "too many rules in edit.forward (at most %d)", BT_FORWARD_RULES_MAX);
    f->rules[f->count++] = rule;
}

static bt_str_t opt_text(lua_State *L, struct bt_dialects *d, int idx)
{
    return lua_isnoneornil(L, idx) ? BT_STR("") : bt_arena_str(d->edits->arena, check_str(L, idx));
}

static enum bt_forward_test check_test(lua_State *L, int idx)
{
    const bt_str_t name = check_str(L, idx);

    for (unsigned i = 0; i < BT_FORWARD_TESTS; i++)
        if (bt_str_eq(name, bt_str(bt_forward_tests[i])))
            return (enum bt_forward_test) i;
    return (enum bt_forward_test) bt_vm_unknown(L, "test of edit.forward", bt_forward_tests, idx);
}

static bool has_table(lua_State *L, int idx, const char *field)
{
    lua_getfield(L, idx, field);
    if (!lua_isnil(L, -1) && !lua_istable(L, -1))
        luaL_error(L, "edit.forward: '%s' is a table", field);
    return !lua_isnil(L, -1);
}

/* The table at idx has no other named members. */
static void check_fields(lua_State *L, int idx, const char *what, const char *const *fields)
{
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1))
        if (lua_type(L, -2) != LUA_TNUMBER && !bt_vm_is_named(L, fields, lua_gettop(L) - 1))
            bt_vm_unknown(L, what, fields, lua_gettop(L) - 1);
}

/* { member, test, text, instead = { text = JSON } } at idx */
static void add_rules(lua_State *L, struct bt_dialects *d, bt_forward_t *f, int idx)
{
    static const char *const fields[] = {"instead", NULL};
    const bt_member_t *items;
    unsigned member, count = 0;

    luaL_checktype(L, idx, LUA_TTABLE);
    check_fields(L, idx, "field of a rule of edit.forward", fields);
    lua_rawgeti(L, idx, 1);
    lua_rawgeti(L, idx, 2);
    lua_rawgeti(L, idx, 3);
    member = member_of(L, f, bt_arena_str(d->edits->arena, check_str(L, idx + 1)));
    add_rule(
        L, f,
        (bt_forward_rule_t){check_test(L, idx + 2), member, opt_text(L, d, idx + 3), BT_STR("")});
    if (has_table(L, idx, "instead")) {
        items = check_members(L, d, lua_gettop(L), &count);
        for (unsigned i = 0; i < count; i++)
            add_rule(L, f,
                     (bt_forward_rule_t){BT_FORWARD_INSTEAD, member, items[i].key, items[i].value});
    }
    lua_settop(L, idx - 1);
}

static void add_set(lua_State *L, struct bt_dialects *d, bt_forward_t *f)
{
    const bt_member_t *items;
    unsigned count = 0;

    if (has_table(L, 3, "set")) {
        items = check_members(L, d, lua_gettop(L), &count);
        for (unsigned i = 0; i < count; i++)
            add_rule(L, f,
                     (bt_forward_rule_t){BT_FORWARD_SET, member_of(L, f, items[i].key), BT_STR(""),
                                         items[i].value});
    }
    lua_settop(L, 3);
}

static bool is_recompute(lua_State *L, int idx)
{
    if (!lua_isnil(L, idx) &&
        (lua_type(L, idx) != LUA_TSTRING || !bt_str_eq(bt_vm_str(L, idx), BT_STR("recompute"))))
        luaL_error(L, "edit.forward: 'missing' is \"recompute\" or nothing");
    return !lua_isnil(L, idx);
}

/* edit.forward(key, name or nil, {rules}): what is done with the reply once the function has returned. */
static int edit_forward(lua_State *L)
{
    static const char *const fields[] = {"missing", "what", "set", NULL};
    struct bt_dialects *d = bt_dialect_running(L);
    bt_forward_t *f = bt_arena_zalloc(d->edits->arena, sizeof(*f));

    if (d->forward != NULL)
        return luaL_error(L, "edit.forward can be said once in a leg");
    luaL_checktype(L, 3, LUA_TTABLE);
    lua_settop(L, 3);
    check_fields(L, 3, "field of edit.forward's rules", fields);
    f->key = bt_arena_str(d->edits->arena, check_str(L, 1));
    f->from = opt_text(L, d, 2);
    lua_getfield(L, 3, "what");
    lua_getfield(L, 3, "missing");
    f->what = lua_isnil(L, 4) ? f->from : opt_text(L, d, 4);
    f->recomputes = is_recompute(L, 5);
    lua_settop(L, 3);
    add_set(L, d, f);
    for (size_t i = 1; i <= lua_objlen(L, 3); i++) {
        lua_rawgeti(L, 3, (int) i);
        add_rules(L, d, f, 4);
    }
    d->forward = f;
    return 0;
}

/* ---- opening ---- */

void bt_edit_api_open(lua_State *L, struct bt_dialects *d)
{
    static const luaL_Reg functions[] = {{"set", edit_set},
                                         {"set_in", edit_set_in},
                                         {"remove", edit_remove},
                                         {"remove_in", edit_remove_in},
                                         {"header", edit_header},
                                         {"str", edit_str},
                                         {"reply", edit_reply},
                                         {"raw", edit_raw},
                                         {"scalars", edit_scalars},
                                         {"copy", edit_copy},
                                         {"splice", edit_splice},
                                         {"forward", edit_forward},
                                         {NULL, NULL}};

    lua_newtable(L);
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    d->edit_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}
