/* How it works: baton.json_decode walks the text with base/json's cursors, which check each member whole before they yield it;
 * so a text is read once for every level it is nested, and levels are few. Malformed text comes from others and is nil and a
 * reason; a value that cannot be encoded is the policy's own mistake and raises.
 *
 * null has no counterpart: members that are null are left out, elements are holes. An empty table is encoded as {}. */
#include "script/native/native.h"

#include "base/err.h"
#include "base/json.h"
#include "script/value/plain.h"

#include <math.h>
#include <stdio.h>

#define DECODE_DEPTH 32
#define DECODE_VALUES 65536u
#define ENCODE_VALUES 16384u
#define WAITING_BYTES ((size_t) 1 << 20)
#define PURE_BYTES ((size_t) 64 << 10) /* pure hooks stand between a request and its worker */
#define SMALL_TEXT 512

static size_t bytes_max(const bt_policy_t *policy)
{
    return bt_hook_may_wait(policy->call.hook) || policy->call.hook == BT_HOOK_LOAD ? WAITING_BYTES
                                                                                    : PURE_BYTES;
}

/* ---- decode ---- */

struct decoder {
    unsigned values;
    const char *reason;
};

static bool decode(lua_State *L, struct decoder *d, bt_str_t value, unsigned depth);

static bool fail(struct decoder *d, const char *reason)
{
    if (d->reason == NULL)
        d->reason = reason;
    return false;
}

/* raw: without its quotes. A buffer for long texts is the collector's. */
static bool push_text(lua_State *L, struct decoder *d, bt_str_t raw)
{
    char small[SMALL_TEXT], *out = small;
    long n;

    if (memchr(raw.p, '\\', raw.n) == NULL) {
        lua_pushlstring(L, raw.p, raw.n);
        return true;
    }
    if (raw.n > sizeof(small))
        out = lua_newuserdata(L, raw.n);
    n = bt_json_unescape_raw(raw, out, raw.n);
    if (n < 0)
        return fail(d, bt_err_text((int) n));
    lua_pushlstring(L, out, (size_t) n);
    if (out != small)
        lua_remove(L, -2);
    return true;
}

static bool push_object(lua_State *L, struct decoder *d, bt_str_t text, unsigned depth)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, text);

    lua_newtable(L);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        if (!push_text(L, d, item.key) || !decode(L, d, item.value, depth + 1))
            return false;
        lua_rawset(L, -3);
        rc = 0;
    }
    return rc == 0 ? true : fail(d, bt_err_text(rc));
}

static bool push_array(lua_State *L, struct decoder *d, bt_str_t text, unsigned depth)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_array(&c, text), at = 0;

    lua_newtable(L);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        if (!decode(L, d, item.value, depth + 1))
            return false;
        lua_rawseti(L, -2, ++at);
        rc = 0;
    }
    return rc == 0 ? true : fail(d, bt_err_text(rc));
}

static bool push_number(lua_State *L, struct decoder *d, bt_str_t text)
{
    double number;

    if (bt_json_double(text, &number) != 0)
        return fail(d, "a number is out of range");
    lua_pushnumber(L, number);
    return true;
}

/* Pushes one value, or says why not. */
static bool decode(lua_State *L, struct decoder *d, bt_str_t value, unsigned depth)
{
    const bt_vm_t *vm = bt_vm_of(L);

    if (bt_watch_is_over(&vm->watch))
        (void) bt_watch_raise(L, &vm->watch, 1);
    if (++d->values > DECODE_VALUES)
        return fail(d, "more than 65536 values");
    if (depth > DECODE_DEPTH)
        return fail(d, "nested more than 32 deep");
    luaL_checkstack(L, 8, "JSON");
    switch (bt_json_type_of(value)) {
    case BT_JSON_OBJECT:
        return push_object(L, d, value, depth);
    case BT_JSON_ARRAY:
        return push_array(L, d, value, depth);
    case BT_JSON_STRING:
        return push_text(L, d, (bt_str_t){value.p + 1, value.n - 2});
    case BT_JSON_NUMBER:
        return push_number(L, d, value);
    case BT_JSON_TRUE:
    case BT_JSON_FALSE:
        lua_pushboolean(L, bt_json_type_of(value) == BT_JSON_TRUE);
        return true;
    default:
        lua_pushnil(L);
        return true;
    }
}

static int refuse_text(lua_State *L, const char *reason)
{
    lua_settop(L, 0);
    lua_pushnil(L);
    lua_pushstring(L, reason);
    return 2;
}

/* baton.json_decode(text) -> value; or nil, reason */
static int api_decode(lua_State *L)
{
    const size_t max = bytes_max(bt_policy_of(L));
    struct decoder d = {0};
    bt_str_t text;
    size_t at = 0;
    char where[96];
    int rc;

    luaL_checktype(L, 1, LUA_TSTRING);
    text = bt_vm_str(L, 1);
    if (text.n > max)
        return refuse_text(L, max == PURE_BYTES ? "longer than 64 KiB (1 MiB in admit and route)"
                                                : "longer than 1 MiB");
    rc = bt_json_validate(text, &at);
    if (rc != 0) {
        snprintf(where, sizeof(where), "%s at byte %zu", bt_err_text(rc), at + 1);
        return refuse_text(L, where);
    }
    text = bt_str_trim(text);
    return decode(L, &d, text, 1) ? 1 : refuse_text(L, d.reason);
}

/* ---- encode ---- */

struct tally {
    unsigned values;
    size_t bytes, max; /* of texts, as they will be written */
};

static int refuse_long(lua_State *L, size_t max)
{
    return luaL_error(L, "json_encode: the text is longer than %s",
                      max == PURE_BYTES ? "64 KiB (1 MiB in admit and route)" : "1 MiB");
}

static void check_text(lua_State *L, int idx, struct tally *tally)
{
    bt_str_t left = lua_type(L, idx) == LUA_TSTRING ? bt_vm_str(L, idx) : BT_STR_NULL;

    while (left.n > 0) {
        const size_t n = bt_value_part(left);

        if (left.n > tally->max)
            refuse_long(L, tally->max);
        bt_vm_check_time(L);
        tally->bytes += bt_json_quoted_size((bt_str_t){left.p, n});
        left = (bt_str_t){left.p + n, left.n - n};
        if (tally->bytes > tally->max)
            refuse_long(L, tally->max);
    }
}

/* Before anything is copied or sorted: is the value at the top small enough, and are its numbers JSON's? */
static void check_value(lua_State *L, unsigned depth, struct tally *tally)
{
    const int value = lua_gettop(L);

    bt_vm_check_time(L);
    if (tally->values++ == ENCODE_VALUES)
        luaL_error(L, "json_encode: more than %d values", (int) ENCODE_VALUES);
    if (lua_type(L, value) == LUA_TNUMBER && !isfinite(lua_tonumber(L, value)))
        luaL_error(L, "json_encode: a number is not finite");
    check_text(L, value, tally);
    if (!lua_istable(L, value) || depth > BT_PLAIN_DEPTH)
        return; /* too deep: bt_plain_read says where */
    luaL_checkstack(L, 4, "JSON");
    for (lua_pushnil(L); lua_next(L, value) != 0; lua_pop(L, 1)) {
        check_text(L, -2, tally);
        check_value(L, depth + 1, tally);
    }
}

/* Both may be left behind by an error. */
void bt_json_drop(bt_policy_t *policy)
{
    bt_value_free(policy->json.tree);
    policy->json.tree = NULL;
    bt_text_fini(&policy->json.text);
    bt_text_init(&policy->json.text);
}

/* baton.json_encode(value) -> text; keys in the order of their bytes */
static int api_encode(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const size_t max = bytes_max(policy);
    struct tally tally = {.max = max};

    luaL_checkany(L, 1);
    lua_settop(L, 1);
    if (lua_isnil(L, 1)) {
        lua_pushliteral(L, "null");
        return 1;
    }
    check_value(L, 1, &tally);
    bt_json_drop(policy);
    bt_plain_read(L, 1, "json_encode", &policy->json.tree);
    bt_plain_json(L, policy->json.tree, &policy->json.text);
    if (policy->json.text.failed)
        return luaL_error(L, "json_encode: out of memory");
    if (policy->json.text.len > max)
        return refuse_long(L, max);
    bt_vm_push_str(L, bt_text_str(&policy->json.text));
    bt_json_drop(policy);
    return 1;
}

void bt_json_api_add(lua_State *L)
{
    static const luaL_Reg api[] = {
        {"json_decode", api_decode}, {"json_encode", api_encode}, {NULL, NULL}};

    bt_native_set(L, api);
}
