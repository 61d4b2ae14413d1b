/* shared_api.c - how it works: baton.shared, the fleet's state, as Lua calls it. In a hook that waits a function writes what it operations on the store into run->hook_op
 * and yields, like baton.http; who runs the hook serves it (generation/wait_store.c) and bt_shared_push_answer makes values of the reply. In a pure hook what
 * only writes is handed to policy->send and forgotten; nothing of its outcome comes back.
 *
 * Keys: "p:<policy>:<name>", and for windows "q:<policy>:<name>:<ms>", because windows of two lengths are two quotas. A shadow's policy name has its mark before
 * it. The strings of an operation are on the stack that is yielded, so the collector leaves them alone. */
#include "script/native/native.h"

#include "script/shared/now.h"
#include "script/shared/shared_cache.h"

#include <math.h>

#define NAME_MAX_BYTES 255
#define VALUE_MAX_BYTES ((size_t) 64 << 10)
#define KEY_MAX_BYTES 512
#define WHOLE_MAX 9007199254740992.0 /* 2^53 */
#define TTL_MAX_MS 31536000000.0     /* a year */
#define WINDOW_MIN_MS 100.0
#define WINDOW_MAX_MS 86400000.0

/* Operations that one run of a hook may ask for. */
static unsigned budget_of(enum bt_policy_hook hook)
{
    switch (hook) {
    case BT_HOOK_START:
    case BT_HOOK_TICK:
        return 64;
    case BT_HOOK_OBSERVE:
        return 1024; /* four for each event of a full batch */
    case BT_HOOK_LOAD:
        return 0;
    default:
        return 16;
    }
}

static void spend(lua_State *L, const char *what)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_policy_run_t *run = policy->call.run;
    unsigned *spent = run != NULL ? &run->store_ops : &policy->call.store_ops;

    if (policy->call.hook == BT_HOOK_LOAD)
        luaL_error(L, "%s: not while the file is loaded; use start", what);
    if (*spent >= budget_of(policy->call.hook))
        luaL_error(L, "%s: a run of %s may ask the shared state at most %d times", what,
                   bt_hook_name(policy->call.hook), (int) budget_of(policy->call.hook));
    (*spent)++;
}

/* ---- arguments ---- */

/* Pushes the key of the name at 1. */
static bt_str_t push_key(lua_State *L, char type, uint64_t window_ms)
{
    const bt_policy_t *policy = bt_policy_of(L);
    char tail[24];

    (void) luaL_checkstring(L, 1);
    luaL_argcheck(L, lua_objlen(L, 1) >= 1 && lua_objlen(L, 1) <= NAME_MAX_BYTES, 1,
                  "a name has 1 to 255 bytes");
    lua_pushfstring(L, "%c:%s%s:", type, policy->shadow, policy->name);
    lua_pushvalue(L, 1);
    (void) snprintf(tail, sizeof(tail), ":%llu", (unsigned long long) window_ms);
    lua_pushstring(L, window_ms > 0 ? tail : "");
    lua_concat(L, 3);
    luaL_argcheck(L, lua_objlen(L, -1) <= KEY_MAX_BYTES, 1,
                  "with the policy's name before it a name has at most 480 bytes");
    return bt_vm_str(L, -1);
}

static lua_Number check_number(lua_State *L, int idx, lua_Number low, lua_Number high,
                               const char *what)
{
    lua_Number n = luaL_checknumber(L, idx);

    luaL_argcheck(L, n >= low && n <= high, idx, what);
    return n;
}

static int64_t check_whole(lua_State *L, int idx, lua_Number low, const char *what)
{
    lua_Number n = check_number(L, idx, low, WHOLE_MAX, what);

    luaL_argcheck(L, n == floor(n), idx, what);
    return (int64_t) n;
}

static uint64_t opt_ttl(lua_State *L, int idx)
{
    if (lua_isnoneornil(L, idx))
        return 0;
    return (uint64_t) check_number(L, idx, 1, TTL_MAX_MS, "1 ms to a year");
}

static bt_str_t check_field(lua_State *L, int idx)
{
    (void) luaL_checkstring(L, idx);
    luaL_argcheck(L, lua_objlen(L, idx) >= 1 && lua_objlen(L, idx) <= NAME_MAX_BYTES, idx,
                  "a field has 1 to 255 bytes");
    return bt_vm_str(L, idx);
}

/* Numbers become their text. */
static bt_str_t check_value(lua_State *L, int idx)
{
    (void) luaL_checkstring(L, idx);
    luaL_argcheck(L, lua_objlen(L, idx) <= VALUE_MAX_BYTES, idx, "a value has at most 64 KiB");
    return bt_vm_str(L, idx);
}

static uint64_t check_window(lua_State *L, int idx)
{
    return (uint64_t) check_number(L, idx, WINDOW_MIN_MS, WINDOW_MAX_MS,
                                   "a window is 100 ms to a day long");
}

/* ---- asking ---- */

static const bt_hook_op_t blank = {.kind = BT_HOOK_OP_STORE, .ms = UINT64_MAX / 4};

static int wait_for(lua_State *L, const char *what, const bt_hook_op_t *hook_op)
{
    if (!bt_hook_op_check_waiting(L, what))
        return 2;
    spend(L, what);
    bt_policy_of(L)->call.run->hook_op = *hook_op;
    return lua_yield(L, lua_gettop(L));
}

/* Where nothing can wait it is sent and forgotten. */
static int write_or_send(lua_State *L, const char *what, const bt_hook_op_t *hook_op)
{
    bt_policy_t *policy = bt_policy_of(L);

    if (bt_hook_may_wait(policy->call.hook))
        return wait_for(L, what, hook_op);
    spend(L, what);
    if (policy->send == NULL || policy->call.testing)
        return 0;
    policy->send(policy->send_user, hook_op);
    if (hook_op->store.what == BT_STORE_CELL_SET && !hook_op->store.if_absent)
        bt_shared_cache_put(hook_op->store.key, BT_SHARED_STRING, 0, hook_op->store.value,
                            bt_now_us());
    else
        bt_shared_cache_drop(hook_op->store.key); /* what it comes to is not known */
    return 0;
}

/* shared.add(name, delta[, ttl_ms]) -> number */
static int shared_add(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 3);
    hook_op.store.what = BT_STORE_COUNTER_ADD;
    hook_op.store.amount = check_whole(L, 2, -WHOLE_MAX, "a whole number between -2^53 and 2^53");
    hook_op.store.ttl_ms = opt_ttl(L, 3);
    hook_op.store.key = push_key(L, 'p', 0);
    return write_or_send(L, "baton.shared.add", &hook_op);
}

/* What needs nothing but the name. */
static int wait_by_name(lua_State *L, const char *what, enum bt_store_what op)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 1);
    hook_op.store.what = op;
    hook_op.store.key = push_key(L, 'p', 0);
    return wait_for(L, what, &hook_op);
}

/* shared.get(name) -> string or nil */
static int shared_get(lua_State *L)
{
    return wait_by_name(L, "baton.shared.get", BT_STORE_CELL_GET);
}

/* shared.set(name, value[, ttl_ms[, only_if_absent]]) -> boolean */
static int shared_set(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 4);
    hook_op.store.what = BT_STORE_CELL_SET;
    hook_op.store.value = check_value(L, 2);
    hook_op.store.ttl_ms = opt_ttl(L, 3);
    hook_op.store.if_absent = lua_toboolean(L, 4) != 0;
    hook_op.store.key = push_key(L, 'p', 0);
    return write_or_send(L, "baton.shared.set", &hook_op);
}

/* shared.drop(name[, field]) -> true */
static int shared_drop(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 2);
    hook_op.store.what = lua_isnil(L, 2) ? BT_STORE_CELL_DROP : BT_STORE_TABLE_DROP;
    if (!lua_isnil(L, 2))
        hook_op.store.field = check_field(L, 2);
    hook_op.store.key = push_key(L, 'p', 0);
    return write_or_send(L, "baton.shared.drop", &hook_op);
}

/* shared.lease(name, ttl_ms) -> fence; or false, who holds it */
static int shared_lease(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 2);
    hook_op.store.what = BT_STORE_LEASE_TAKE;
    hook_op.store.ttl_ms = (uint64_t) check_number(L, 2, 1, TTL_MAX_MS, "1 ms to a year");
    hook_op.store.key = push_key(L, 'p', 0);
    return wait_for(L, "baton.shared.lease", &hook_op);
}

/* shared.release(name) -> boolean: it was ours */
static int shared_release(lua_State *L)
{
    return wait_by_name(L, "baton.shared.release", BT_STORE_LEASE_DROP);
}

/* shared.take(name, limit, window_ms[, amount]) -> true, 0, window; or false, seconds until the next window */
static int shared_take(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 4);
    hook_op.store.what = BT_STORE_WINDOW_TAKE;
    hook_op.store.limit = check_whole(L, 2, 0, "a limit is a whole number, 0 or more");
    hook_op.store.window_ms = check_window(L, 3);
    hook_op.store.amount =
        lua_isnil(L, 4) ? 1 : check_whole(L, 4, 1, "an amount is a whole number, 1 or more");
    hook_op.store.key = push_key(L, 'q', hook_op.store.window_ms);
    return wait_for(L, "baton.shared.take", &hook_op);
}

/* shared.give(name, window_ms, amount[, window]): nothing is waited for, in no hook */
static int shared_give(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 4);
    hook_op.store.what = BT_STORE_WINDOW_GIVE;
    hook_op.store.window_ms = check_window(L, 2);
    hook_op.store.amount = check_whole(L, 3, -WHOLE_MAX, "a whole number between -2^53 and 2^53");
    if (!lua_isnil(L, 4))
        hook_op.store.window = (uint64_t) check_whole(L, 4, 0, "a window's number, as take said");
    hook_op.store.key = push_key(L, 'q', hook_op.store.window_ms);
    spend(L, "baton.shared.give");
    if (policy->send != NULL && !policy->call.testing)
        policy->send(policy->send_user, &hook_op);
    return 0;
}

/* shared.put(name, field, value[, ttl_ms]) -> true */
static int shared_put(lua_State *L)
{
    bt_hook_op_t hook_op = blank;

    lua_settop(L, 4);
    hook_op.store.what = BT_STORE_TABLE_PUT;
    hook_op.store.field = check_field(L, 2);
    hook_op.store.value = check_value(L, 3);
    hook_op.store.ttl_ms = opt_ttl(L, 4);
    hook_op.store.key = push_key(L, 'p', 0);
    return write_or_send(L, "baton.shared.put", &hook_op);
}

/* shared.fields(name) -> {field = value} */
static int shared_fields(lua_State *L)
{
    return wait_by_name(L, "baton.shared.fields", BT_STORE_TABLE_ALL);
}

/* ---- the cache ---- */

static bt_str_t cut(const bt_text_t *from, size_t *at, uint32_t n)
{
    const bt_str_t s = {from->data + *at, n};

    *at += n;
    return s;
}

static void push_table(lua_State *L, const bt_text_t *rows)
{
    lua_newtable(L);
    for (size_t at = 0; at < rows->len;) {
        uint32_t sizes[2];
        memcpy(sizes, rows->data + at, sizeof(sizes));
        at += sizeof(sizes);
        bt_vm_push_str(L, cut(rows, &at, sizes[0]));
        bt_vm_push_str(L, cut(rows, &at, sizes[1]));
        lua_rawset(L, -3);
    }
}

/* shared.cached(name[, max_age_ms]) -> value or nil, its age in ms; nothing: not known, or older */
static int shared_cached(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const uint64_t now_us = bt_policy_now_us(policy);
    lua_Number max_ms = HUGE_VAL, age_ms, number = 0;
    enum bt_shared_kind kind = BT_SHARED_NONE;
    uint64_t put_us = 0;

    lua_settop(L, 2);
    if (!lua_isnil(L, 2))
        max_ms = check_number(L, 2, 0, TTL_MAX_MS, "0 ms to a year");
    if (!bt_shared_cache_get(push_key(L, 'p', 0), &kind, &number, &policy->cached, &put_us))
        return 0;
    age_ms = now_us > put_us ? (lua_Number) (now_us - put_us) / 1000 : 0;
    if (age_ms > max_ms)
        return 0;
    if (kind == BT_SHARED_NONE)
        lua_pushnil(L);
    else if (kind == BT_SHARED_NUMBER)
        lua_pushnumber(L, number);
    else if (kind == BT_SHARED_STRING)
        bt_vm_push_str(L, bt_text_str(&policy->cached));
    else
        push_table(L, &policy->cached);
    lua_pushnumber(L, age_ms);
    return 2;
}

static void cache_rows(bt_policy_t *policy, bt_str_t key, const bt_store_reply_t *reply)
{
    bt_text_t *bytes = &policy->cached;

    bytes->len = 0;
    bytes->failed = false;
    for (unsigned i = 0; i < reply->row_count && bytes->len <= BT_SHARED_CACHE_VALUE_MAX; i++) {
        const bt_store_row_t *row = &reply->rows[i];
        const uint32_t sizes[2] = {(uint32_t) row->name.n, (uint32_t) row->value.n};
        bt_text_put(bytes, (bt_str_t){(const char *) sizes, sizeof(sizes)});
        bt_text_put(bytes, row->name);
        bt_text_put(bytes, row->value);
    }
    if (bytes->failed || bytes->len > BT_SHARED_CACHE_VALUE_MAX)
        bt_shared_cache_drop(key);
    else
        bt_shared_cache_put(key, BT_SHARED_TABLE, 0, bt_text_str(bytes), bt_now_us());
}

/* What the process has just learned of the key. */
static void remember(bt_policy_t *policy, const bt_hook_op_t *hook_op,
                     const bt_store_reply_t *reply)
{
    const bt_str_t key = hook_op->store.key;

    switch (hook_op->store.what) {
    case BT_STORE_COUNTER_ADD:
        bt_shared_cache_put(key, BT_SHARED_NUMBER, (double) reply->number, BT_STR_NULL,
                            bt_now_us());
        break;
    case BT_STORE_CELL_GET:
        bt_shared_cache_put(key, reply->is_none ? BT_SHARED_NONE : BT_SHARED_STRING, 0, reply->text,
                            bt_now_us());
        break;
    case BT_STORE_CELL_SET:
        if (reply->number == 1)
            bt_shared_cache_put(key, BT_SHARED_STRING, 0, hook_op->store.value, bt_now_us());
        break;
    case BT_STORE_CELL_DROP:
    case BT_STORE_TABLE_PUT: /* the other fields are not known */
    case BT_STORE_TABLE_DROP:
        bt_shared_cache_drop(key);
        break;
    case BT_STORE_TABLE_ALL:
        cache_rows(policy, key, reply);
        break;
    default:
        break;
    }
}

/* ---- answers ---- */

static int push_taken(lua_State *L, const bt_store_reply_t *reply)
{
    lua_pushboolean(L, reply->number > 0);
    lua_pushnumber(L, reply->number > 0 ? 0 : (lua_Number) reply->left_ms / 1000);
    if (reply->number <= 0)
        return 2;
    lua_pushnumber(L, (lua_Number) reply->window);
    return 3;
}

static void push_rows(lua_State *L, const bt_store_reply_t *reply)
{
    lua_createtable(L, 0, (int) reply->row_count);
    for (unsigned i = 0; i < reply->row_count; i++) {
        bt_vm_check_time(L); /* a value may have 64 KiB */
        bt_vm_push_str(L, reply->rows[i].name);
        bt_vm_push_str(L, reply->rows[i].value);
        lua_rawset(L, -3);
    }
}

int bt_shared_push_answer(lua_State *L, const bt_hook_op_t *hook_op, const bt_hook_answer_t *answer)
{
    const bt_store_reply_t *reply = answer->store;

    remember(bt_policy_of(L), hook_op, reply);
    switch (hook_op->store.what) {
    case BT_STORE_COUNTER_ADD:
        lua_pushnumber(L, (lua_Number) reply->number);
        return 1;
    case BT_STORE_CELL_GET:
        if (reply->is_none)
            lua_pushnil(L);
        else
            bt_vm_push_str(L, reply->text);
        return 1;
    case BT_STORE_LEASE_TAKE:
        if (reply->number > 0) {
            lua_pushnumber(L, (lua_Number) reply->number);
            return 1;
        }
        lua_pushboolean(L, 0);
        bt_vm_push_str(L, reply->text);
        return 2;
    case BT_STORE_CELL_SET:
    case BT_STORE_LEASE_DROP:
        lua_pushboolean(L, reply->number == 1);
        return 1;
    case BT_STORE_WINDOW_TAKE:
        return push_taken(L, reply);
    case BT_STORE_TABLE_ALL:
        push_rows(L, reply);
        return 1;
    default:
        lua_pushboolean(L, 1);
        return 1;
    }
}

void bt_shared_api_add(lua_State *L)
{
    static const luaL_Reg shared[] = {
        {"add", shared_add},       {"get", shared_get},       {"set", shared_set},
        {"drop", shared_drop},     {"lease", shared_lease},   {"release", shared_release},
        {"take", shared_take},     {"give", shared_give},     {"put", shared_put},
        {"fields", shared_fields}, {"cached", shared_cached}, {NULL, NULL}};

    lua_newtable(L);
    bt_native_set_reads(L, "shared.", shared);
    lua_setfield(L, -2, "shared");
}
