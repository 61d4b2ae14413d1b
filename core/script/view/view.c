/* How it works: the lists of a view are ordinary arrays of rows, made when the view's key is new and kept for the last few keys
 * (worker_list.c says what else a list carries). */
#include "script/view/view.h"

#include "script/view/worker_list.h"

static const char *const view_names[] = {"prefill", "decode", "hybrid", "single",
                                         "pool",    "advice", NULL};
enum { VIEW_POOL = BT_LIST_COUNT, VIEW_ADVICE };

/* ---- lists ---- */

const char *bt_policy_list_name(enum bt_policy_list list)
{
    return view_names[list];
}

static unsigned count_of(const bt_policy_view_t *view, int list)
{
    return view->sets[list] != NULL ? view->sets[list]->count : 0;
}

static int make_list(lua_State *L, bt_policy_t *policy, const bt_policy_view_t *view, int list)
{
    const bt_worker_set_t *set = view->sets[list];
    unsigned count = count_of(view, list);
    int rows;

    bt_vm_push(L, policy->rows_ref);
    rows = lua_gettop(L);
    lua_createtable(L, (int) count, 0);
    for (unsigned i = 0; i < count; i++) {
        bt_row_push(L, policy, rows, set->items[i])->at[list] = i;
        lua_rawseti(L, rows + 1, (int) i + 1);
    }
    bt_worker_list_seal(L, policy);
    lua_remove(L, rows);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void drop_slot(lua_State *L, struct bt_view_slot *slot)
{
    if (!slot->used)
        return;
    for (int i = 0; i < BT_LIST_COUNT; i++)
        luaL_unref(L, LUA_REGISTRYINDEX, slot->refs[i]);
    luaL_unref(L, LUA_REGISTRYINDEX, slot->pool_ref);
    slot->used = false;
}

/* A policy that took members out of a list must not see the damage again. */
static bool is_intact(lua_State *L, struct bt_view_slot *slot)
{
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        size_t n;

        if (!(slot->asked & 1u << i))
            continue;
        bt_vm_push(L, slot->refs[i]);
        n = lua_objlen(L, -1);
        lua_pop(L, 1);
        if (n != slot->counts[i])
            return false;
    }
    return true;
}

bool bt_view_find(bt_policy_t *policy, const bt_policy_view_t *view)
{
    for (unsigned i = 0; view->key != 0 && i < BT_POLICY_VIEWS; i++) {
        struct bt_view_slot *slot = &policy->views[i];

        if (!slot->used || slot->key != view->key)
            continue;
        for (int list = 0; list < BT_LIST_COUNT; list++)
            if (slot->counts[list] != count_of(view, list))
                return false;
        policy->slot = slot;
        return is_intact(policy->vm.L, slot);
    }
    return false;
}

void bt_view_refresh(lua_State *L, bt_policy_t *policy)
{
    const bt_policy_view_t *view = policy->call.view;
    struct bt_view_slot *slot = NULL;

    for (unsigned i = 0; slot == NULL && i < BT_POLICY_VIEWS; i++)
        if (policy->views[i].used && policy->views[i].key == view->key)
            slot = &policy->views[i];
    if (slot == NULL)
        slot = &policy->views[policy->next_view++ % BT_POLICY_VIEWS];
    drop_slot(L, slot);
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        slot->refs[i] = make_list(L, policy, view, i);
        slot->counts[i] = count_of(view, i);
    }
    bt_vm_push_str(L, view->pool);
    slot->pool_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    slot->key = view->key;
    slot->asked = 0;
    slot->used = true;
    policy->slot = slot;
}

static void set_number(lua_State *L, const char *name, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

/* For tick alone: records do not have it, and plan must be the same when it is replayed. */
static int push_advice(lua_State *L, const bt_policy_t *policy)
{
    const bt_pool_advice_t *a = policy->call.view->advice;
    const int bottleneck = a != NULL ? atomic_load(&a->bottleneck) : BT_BOTTLENECK_UNKNOWN;

    if (policy->call.hook != BT_HOOK_TICK)
        return luaL_error(L, "view.advice is for tick: what plan needs of it goes into ctx.state");
    if (bottleneck == BT_BOTTLENECK_UNKNOWN) {
        lua_pushnil(L);
        return 1;
    }
    lua_createtable(L, 0, 8);
    lua_pushstring(L, bt_bottleneck_name((enum bt_bottleneck) bottleneck));
    lua_setfield(L, -2, "bottleneck");
    set_number(L, "prefill", atomic_load(&a->prefill));
    set_number(L, "decode", atomic_load(&a->decode));
    set_number(L, "advised_prefill", atomic_load(&a->advised_prefill));
    set_number(L, "advised_decode", atomic_load(&a->advised_decode));
    set_number(L, "prefill_used", atomic_load(&a->prefill_used_milli) / 1000.0);
    set_number(L, "decode_used", atomic_load(&a->decode_used_milli) / 1000.0);
    set_number(L, "predicted_ttft_ms", atomic_load(&a->ttft_ms));
    return 1;
}

static int view_index(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    int field = bt_vm_fields_find(L, &policy->view_fields, 2);

    if (field < 0)
        return bt_vm_unknown(L, "field of view", view_names, 2);
    if (!policy->call.running || policy->call.view == NULL)
        return luaL_error(L, "view can only be used while a hook that gets it runs");
    if (field == VIEW_ADVICE)
        return push_advice(L, policy);
    policy->slot->asked |= 1u << field;
    bt_vm_push(L, field == VIEW_POOL ? policy->slot->pool_ref : policy->slot->refs[field]);
    return 1;
}

/* ---- opening ---- */

static void push_marked(lua_State *L)
{
    enum bt_policy_magic *magic = lua_newuserdata(L, sizeof(*magic));

    *magic = BT_MAGIC_OTHER;
}

void bt_view_open(lua_State *L, bt_policy_t *policy)
{
    bt_rows_open(L, policy);
    bt_vm_fields_init(L, &policy->view_fields, view_names);
    push_marked(L);
    bt_vm_push_closed_meta(L, view_index, bt_row_read_only);
    lua_setmetatable(L, -2);
    policy->view_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}
