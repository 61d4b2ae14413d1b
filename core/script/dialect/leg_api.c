/* `leg`, `leg.prefill` and `leg.decode` are three userdata that live as long as the VM and look into the view of the running call; outside
 * of a call they raise. */
#include "script/dialect/dialect_impl.h"

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

struct bt_dialects *bt_dialect_running(lua_State *L)
{
    struct bt_dialects *d = bt_vm_of(L)->owner;

    if (d->leg == NULL)
        luaL_error(L, "leg and edit can only be used while a leg function runs");
    return d;
}

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
    struct bt_dialects *d = bt_dialect_running(L);
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
        if (d->noting != NULL)
            d->noting->reads_reply = true;
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
    struct bt_dialects *d = bt_dialect_running(L);
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

const char *bt_dialect_type_name(enum bt_json_type type)
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
    struct bt_dialects *d = bt_dialect_running(L);
    bt_str_t key = {luaL_checkstring(L, 1), 0};

    key = bt_vm_str(L, 1);
    if (d->noting != NULL)
        bt_leg_note_member(d->noting, key);
    lua_pushstring(L, bt_dialect_type_name(bt_leg_member(d->leg, key))); /* NULL pushes nil */
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

void bt_leg_api_open(lua_State *L, struct bt_dialects *d)
{
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
}
