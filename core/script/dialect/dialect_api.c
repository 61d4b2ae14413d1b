/* How it works: `leg`, `leg.prefill` and `leg.decode` are three userdata that live as long as the VM and look into the
 * view of the running call; outside of a call they raise. The edit functions append to the call's bt_edits_t. Values that
 * a dialect gives as raw JSON are validated before they are taken, so that a slip in a dialect is a refused leg and never
 * a malformed body at an engine. */
#include "script/dialect/dialect_impl.h"

#include "base/err.h"

enum {
    LEG_PATH,
    LEG_REQUEST_ID,
    LEG_RID,
    LEG_METASERVER,
    LEG_ROOM,
    LEG_ROOMS,
    LEG_PROMPT_COUNT,
    LEG_STREAM,
    LEG_HAS,
    LEG_HAS_REPLY,
    LEG_REPLY_PROMPT_TOKENS,
    LEG_PREFILL,
    LEG_DECODE
};
static const char *const leg_names[] = {
    "path",   "request_id", "rid",       "metaserver",          "room",    "rooms",  "prompt_count",
    "stream", "has",        "has_reply", "reply_prompt_tokens", "prefill", "decode", NULL};
static const char *const peer_names[] = {
    "name",           "host",    "port",    "engine_id", "kv_host", "kv_address", "version",
    "bootstrap_port", "dp_size", "tp_size", "pp_size",   "dp_rank", "learned",    NULL};

static struct bt_dialects *running(lua_State *L)
{
    struct bt_dialects *d = bt_vm_of(L)->owner;

    if (d->leg == NULL)
        luaL_error(L, "leg and edit can only be used while a leg function runs");
    return d;
}

/* ---- leg ---- */

static void push_count(lua_State *L, uint64_t n)
{
    lua_pushnumber(L, (lua_Number) n);
}

static void push_room(lua_State *L, uint64_t room)
{
    char text[BT_STR_U64_MAX], *end = text + sizeof(text), *at = bt_str_digits(end, room, 1);

    lua_pushlstring(L, at, (size_t) (end - at));
}

static void push_rooms(lua_State *L, const bt_leg_view_t *leg)
{
    lua_createtable(L, (int) leg->room_count, 0);
    for (unsigned i = 0; i < leg->room_count; i++) {
        push_room(L, leg->rooms[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
}

static int leg_index(lua_State *L)
{
    struct bt_dialects *d = running(L);
    const bt_leg_view_t *leg = d->leg;

    switch (bt_vm_fields_find(L, &d->leg_fields, 2)) {
    case LEG_PATH:
        bt_vm_push_str(L, leg->path);
        break;
    case LEG_REQUEST_ID:
        bt_vm_push_str(L, leg->request_id);
        break;
    case LEG_RID:
        bt_vm_push_opt(L, leg->rid);
        break;
    case LEG_METASERVER:
        bt_vm_push_opt(L, leg->metaserver);
        break;
    case LEG_ROOM:
        leg->room_count > 0 ? push_room(L, leg->rooms[0]) : lua_pushnil(L);
        break;
    case LEG_ROOMS:
        push_rooms(L, leg);
        break;
    case LEG_PROMPT_COUNT:
        push_count(L, leg->prompt_count);
        break;
    case LEG_STREAM:
        lua_pushboolean(L, leg->stream);
        break;
    case LEG_HAS:
        bt_vm_push(L, d->has_ref);
        break;
    case LEG_HAS_REPLY:
        lua_pushboolean(L, leg->reply.n > 0);
        break;
    case LEG_REPLY_PROMPT_TOKENS:
        push_count(L, leg->reply_prompt_tokens);
        break;
    case LEG_PREFILL:
        bt_vm_push(L, d->peer_refs[0]);
        break;
    case LEG_DECODE:
        bt_vm_push(L, d->peer_refs[1]);
        break;
    default:
        return bt_vm_unknown(L, "field of leg", leg_names, 2);
    }
    return 1;
}

static void push_positive(lua_State *L, int n)
{
    if (n > 0)
        lua_pushinteger(L, n);
    else
        lua_pushnil(L);
}

static int peer_index(lua_State *L)
{
    struct bt_dialects *d = running(L);
    const bool *is_decode = lua_touserdata(L, 1);
    const bt_dialect_peer_t *peer = *is_decode ? &d->leg->decode_peer : &d->leg->prefill;
    int field;

    if (peer->name.n == 0 && d->noting != NULL) /* pcall makes an answer of the error */
        bt_leg_note_peer(d->noting, *is_decode, BT_PEER_IS_THERE);
    if (peer->name.n == 0)
        return luaL_error(L, *is_decode ? "decode is chosen after prefill here; a dialect that "
                                          "must know it before says decode_first = true"
                                        : "a single leg has no prefill; leg.decode is its worker");
    field = bt_vm_fields_find(L, &d->peer_fields, 2);
    if (d->noting != NULL && field >= 0)
        bt_leg_note_peer(d->noting, *is_decode, (enum bt_peer_field) field);
    switch (field) {
    case BT_PEER_NAME:
        bt_vm_push_str(L, peer->name);
        break;
    case BT_PEER_HOST:
        bt_vm_push_str(L, peer->host);
        break;
    case BT_PEER_PORT:
        push_count(L, peer->port);
        break;
    case BT_PEER_ENGINE_ID:
        bt_vm_push_opt(L, peer->engine_id);
        break;
    case BT_PEER_KV_HOST:
        bt_vm_push_opt(L, peer->kv_host);
        break;
    case BT_PEER_KV_ADDRESS:
        bt_vm_push_opt(L, peer->kv_address);
        break;
    case BT_PEER_VERSION:
        bt_vm_push_opt(L, peer->version);
        break;
    case BT_PEER_BOOTSTRAP_PORT:
        push_positive(L, peer->bootstrap_port);
        break;
    case BT_PEER_DP_SIZE:
        push_count(L, peer->dp_size);
        break;
    case BT_PEER_TP_SIZE:
        push_count(L, peer->tp_size);
        break;
    case BT_PEER_PP_SIZE:
        push_count(L, peer->pp_size);
        break;
    case BT_PEER_DP_RANK:
        peer->dp_rank >= 0 ? lua_pushinteger(L, peer->dp_rank) : lua_pushnil(L);
        break;
    case BT_PEER_LEARNED:
        lua_pushboolean(L, peer->learned);
        break;
    default:
        return bt_vm_unknown(L, "field of a worker", peer_names, 2);
    }
    return 1;
}

static int read_only(lua_State *L)
{
    return luaL_error(L, "leg cannot be written; use edit");
}

static const char *type_name(enum bt_json_type type)
{
    switch (type) {
    case BT_JSON_NULL:
        return "null";
    case BT_JSON_FALSE:
    case BT_JSON_TRUE:
        return "boolean";
    case BT_JSON_NUMBER:
        return "number";
    case BT_JSON_STRING:
        return "string";
    case BT_JSON_ARRAY:
        return "array";
    case BT_JSON_OBJECT:
        return "object";
    case BT_JSON_NONE:
        break;
    }
    return NULL;
}

/* leg.has(key) -> JSON type of a top-level member of the client's body, or nil */
static int leg_has(lua_State *L)
{
    struct bt_dialects *d = running(L);
    bt_str_t key = {luaL_checkstring(L, 1), 0};

    key = bt_vm_str(L, 1);
    if (d->noting != NULL)
        bt_leg_note_member(d->noting, key);
    lua_pushstring(L, type_name(bt_leg_member(d->leg, key))); /* NULL pushes nil */
    return 1;
}

/* ---- edit ---- */

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
    struct bt_dialects *d = running(L);

    return checked(L,
                   bt_edits_set(d->edits, BT_STR(""), check_str(L, 1), check_value(L, 2), false));
}

static int edit_set_in(lua_State *L)
{
    struct bt_dialects *d = running(L);

    return checked(
        L, bt_edits_set(d->edits, check_str(L, 1), check_str(L, 2), check_value(L, 3), false));
}

static int edit_remove(lua_State *L)
{
    struct bt_dialects *d = running(L);

    return checked(L, bt_edits_remove(d->edits, BT_STR(""), check_str(L, 1)));
}

static int edit_remove_in(lua_State *L)
{
    struct bt_dialects *d = running(L);

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
    struct bt_dialects *d = running(L);
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
    struct bt_dialects *d = running(L);
    bt_str_t s = check_str(L, 1);
    char *out = bt_arena_alloc(d->edits->arena, bt_json_quoted_max(s));

    lua_pushlstring(L, out, bt_json_quote(s, out));
    return 1;
}

/* Follows names and 1-based positions from stack index `from` on. */
static bt_str_t follow(lua_State *L, struct bt_dialects *d, int from)
{
    bt_str_t at = bt_str_trim(d->leg->reply);
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
    struct bt_dialects *d = running(L);
    bt_str_t value = d->leg->reply.n > 0 ? follow(L, d, 1) : BT_STR_NULL;
    enum bt_json_type type = value.n > 0 ? bt_json_type_of(value) : BT_JSON_NONE;

    if (type == BT_JSON_NONE)
        return 0;
    lua_pushstring(L, type_name(type));
    push_json_value(L, d, value, type);
    return 2;
}

/* edit.raw(path...) -> the JSON text there; nil when absent. Numbers keep all their digits. */
static int edit_raw(lua_State *L)
{
    struct bt_dialects *d = running(L);
    const bt_str_t value = d->leg->reply.n > 0 ? follow(L, d, 1) : BT_STR_NULL;

    if (value.n == 0)
        return 0;
    lua_pushlstring(L, value.p, value.n);
    return 1;
}

/* The reply's value that stack index idx names: a top-level name, a list of names and 1-based positions, or
 * nil for the reply itself, where it is an object. */
static bt_str_t source_of(lua_State *L, struct bt_dialects *d, int idx)
{
    const bt_str_t reply = bt_str_trim(d->leg->reply);
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
    struct bt_dialects *d = running(L);
    const int top = lua_gettop(L);
    const bt_str_t object = d->leg->reply.n > 0 && top > 0 ? source_of(L, d, 1) : BT_STR_NULL;

    luaL_checkstack(L, top, "too many members");
    for (int i = 2; i <= top; i++)
        push_scalar(L, d,
                    object.n > 0 ? bt_json_index_member(&d->index, object, check_str(L, i)) : NULL);
    return top > 1 ? top - 1 : 0;
}

/* ---- splice: the reply's bytes, with some members replaced ---- */

static char *append(char *at, bt_str_t s)
{
    if (s.n > 0)
        memcpy(at, s.p, s.n);
    return at + s.n;
}

/* Value that the replacement table (stack index 3) has for this member, or BT_STR_NULL. */
static bt_str_t replacement_of(lua_State *L, const bt_json_item_t *item)
{
    bt_str_t value = BT_STR_NULL;

    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || !bt_json_key_eq(item, bt_vm_str(L, -2)))
            continue;
        value = check_value(L, lua_gettop(L)); /* the table keeps the string alive */
        lua_pop(L, 2);
        break;
    }
    return value;
}

static bool has_key(const bt_json_object_index_t *object, bt_str_t key)
{
    for (unsigned i = 0; i < object->count; i++)
        if (bt_json_key_eq(&object->items[i], key))
            return true;
    return false;
}

static size_t replacement_bytes(lua_State *L)
{
    size_t size = 0;

    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "replaced members are named by strings");
        size += bt_json_quoted_size(bt_vm_str(L, -2)) + check_value(L, lua_gettop(L)).n + 2;
    }
    return size;
}

/* Members that the object does not have go before its closing bracket. */
static char *append_missing(lua_State *L, const bt_json_object_index_t *object, char *at)
{
    bool comma = object->count > 0;

    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
        if (has_key(object, bt_vm_str(L, -2)))
            continue;
        if (comma)
            *at++ = ',';
        comma = true;
        at += bt_json_quote(bt_vm_str(L, -2), at);
        *at++ = ':';
        at = append(at, check_value(L, lua_gettop(L)));
    }
    return at;
}

static bt_str_t with_replacements(lua_State *L, struct bt_dialects *d, bt_str_t value)
{
    const bt_json_object_index_t *object = bt_json_index_object(&d->index, value);
    size_t from = 0, end = value.n - 1; /* spans of values end at their closing bracket */
    char *out, *at;

    /* A key that stands twice is replaced twice: room for that is the value itself plus one more set for each member. */
    out = at =
        bt_arena_alloc(d->edits->arena, value.n + replacement_bytes(L) * (object->count + 1));
    for (unsigned i = 0; i < object->count; i++) {
        bt_str_t fresh = replacement_of(L, &object->items[i]);
        if (fresh.p == NULL)
            continue;
        at = append(at, (bt_str_t){value.p + from, object->items[i].value_off - from});
        at = append(at, fresh);
        from = object->items[i].value_off + object->items[i].value.n;
    }
    at = append(at, (bt_str_t){value.p + from, end - from});
    at = append_missing(L, object, at);
    at = append(at, (bt_str_t){value.p + end, 1});
    return (bt_str_t){out, (size_t) (at - out)};
}

/* edit.splice(key, name or {path}, {member = raw}) -> true, or nil when the reply has no object there */
static int edit_splice(lua_State *L)
{
    struct bt_dialects *d = running(L);
    bt_str_t key = check_str(L, 1);
    const bt_str_t value = d->leg->reply.n > 0 ? source_of(L, d, 2) : BT_STR_NULL;
    bool replaces = lua_type(L, 3) == LUA_TTABLE;

    if (value.n == 0 || bt_json_type_of(value) != BT_JSON_OBJECT)
        return 0;
    if (replaces) {
        lua_pushnil(L);
        replaces = lua_next(L, 3) != 0;
        lua_settop(L, 3);
    }
    /* Unchanged bytes are borrowed: block ids of a long prompt are tens of kilobytes. */
    checked(L, bt_edits_set(d->edits, BT_STR(""), key,
                            replaces ? with_replacements(L, d, value) : value, true));
    lua_pushboolean(L, 1);
    return 1;
}

/* edit.copy(key, name or {path}) -> true, or nil when the reply has nothing, or null, there */
static int edit_copy(lua_State *L)
{
    struct bt_dialects *d = running(L);
    bt_str_t key = check_str(L, 1);
    const bt_str_t value = d->leg->reply.n > 0 ? source_of(L, d, 2) : BT_STR_NULL;
    const enum bt_json_type type = value.n > 0 ? bt_json_type_of(value) : BT_JSON_NONE;

    if (type == BT_JSON_NONE || type == BT_JSON_NULL)
        return 0;
    checked(L, bt_edits_set(d->edits, BT_STR(""), key, value, true));
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- opening ---- */

static void push_view(lua_State *L, bool is_decode, lua_CFunction index)
{
    bool *tag = lua_newuserdata(L, sizeof(*tag));

    *tag = is_decode;
    bt_vm_push_closed_meta(L, index, read_only);
    lua_setmetatable(L, -2);
}

void bt_dialect_api_open(lua_State *L, struct bt_dialects *d)
{
    static const luaL_Reg functions[] = {{"set", edit_set},         {"set_in", edit_set_in},
                                         {"remove", edit_remove},   {"remove_in", edit_remove_in},
                                         {"header", edit_header},   {"str", edit_str},
                                         {"reply", edit_reply},     {"raw", edit_raw},
                                         {"scalars", edit_scalars}, {"copy", edit_copy},
                                         {"splice", edit_splice},   {NULL, NULL}};

    bt_vm_fields_init(L, &d->leg_fields, leg_names);
    bt_vm_fields_init(L, &d->peer_fields, peer_names);
    push_view(L, false, leg_index);
    d->leg_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    for (int i = 0; i < 2; i++) {
        push_view(L, i == 1, peer_index);
        d->peer_refs[i] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    lua_pushcfunction(L, leg_has);
    d->has_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_newtable(L);
    for (const luaL_Reg *f = functions; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    d->edit_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}
