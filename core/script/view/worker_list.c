/* How it works: a list that C made is an ordinary array of rows with a hidden metatable, in whose place 0 a userdata holds the
 * workers' pointers. Policies cannot reach it (__metatable), and tables that a policy made itself have none, so nothing
 * stale is ever remembered for those.
 *
 * A policy that adds or removes members is noticed by the length; one that swaps members is not, and native functions then see the
 * list as it was. The environment keeps all rows, so the pointers stay good whatever the policy does to the table. */
#include "script/view/worker_list.h"
#include "script/view/row.h"

#define CHUNK_HEAD 16 /* the magic word, and what aligns the rest */

/* Stack: table -> table, userdata. */
static void push_members(lua_State *L, bt_policy_t *policy, unsigned count)
{
    int table = lua_gettop(L);
    const size_t size = sizeof(bt_worker_list_t) + count * sizeof(bt_worker_t *);
    bt_worker_list_t *list = lua_newuserdata(L, size + count * sizeof(uint32_t));
    uint32_t *places = (uint32_t *) (void *) ((char *) list + size);

    *list = (bt_worker_list_t){.magic = BT_MAGIC_LIST,
                               .count = count,
                               .serial = ++policy->native->list_serial,
                               .places = places};
    lua_createtable(L, (int) count, 4);
    for (unsigned i = 0; i < count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, table, (int) i + 1);
        list->workers[i] = bt_row_check(L, -1)->worker;
        places[i] = list->workers[i]->ledger_place;
        lua_rawseti(L, -2, (int) i + 1);
    }
    lua_setfenv(L, -2);
}

void bt_worker_list_seal(lua_State *L, bt_policy_t *policy)
{
    push_members(L, policy, (unsigned) lua_objlen(L, -1));
    lua_createtable(L, 1, 1);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 0);
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
}

/* Pushes the metatable and the userdata, and returns it; or pushes nothing. */
static bt_worker_list_t *push_list(lua_State *L, int idx)
{
    bt_worker_list_t *list;

    if (!lua_getmetatable(L, idx))
        return NULL;
    lua_rawgeti(L, -1, 0);
    list = lua_touserdata(L, -1);
    if (list != NULL && list->magic == BT_MAGIC_LIST)
        return list;
    lua_pop(L, 2);
    return NULL;
}

bt_worker_list_t *bt_worker_list_at(lua_State *L, int idx)
{
    bt_worker_list_t *list = push_list(L, idx);

    if (list == NULL)
        return NULL;
    lua_pop(L, 2);
    return lua_objlen(L, idx) == list->count ? list : NULL;
}

void bt_worker_list_push_memory(lua_State *L, int idx)
{
    push_list(L, idx);
    lua_getfenv(L, -1);
    lua_replace(L, -3);
    lua_pop(L, 1);
}

/* The reference keeps the chunk; the old one is left to the collector. */
static void *grow(lua_State *L, int *ref, size_t size)
{
    void *p = bt_native_chunk(L, size);

    if (*ref == LUA_NOREF)
        *ref = luaL_ref(L, LUA_REGISTRYINDEX);
    else
        lua_rawseti(L, LUA_REGISTRYINDEX, *ref);
    return p;
}

static void gather(lua_State *L, bt_policy_t *policy, bt_rows_t *rows)
{
    struct bt_native *k = policy->native;

    rows->count = (unsigned) lua_objlen(L, rows->idx);
    if (rows->count > k->worker_cap) {
        unsigned cap = 2 * rows->count;
        k->workers = grow(L, &k->worker_ref, cap * sizeof(k->workers[0]));
        k->worker_cap = cap;
    }
    for (unsigned i = 0; i < rows->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, rows->idx, (int) i + 1);
        k->workers[i] = bt_row_check(L, -1)->worker;
        lua_pop(L, 1);
    }
    rows->workers = k->workers;
}

void bt_rows_get(lua_State *L, bt_policy_t *policy, int idx, bt_rows_t *rows)
{
    *rows = (bt_rows_t){.idx = idx, .list = bt_worker_list_at(L, idx)};
    if (rows->list == NULL) {
        luaL_checktype(L, idx, LUA_TTABLE);
        gather(L, policy, rows);
        return;
    }
    rows->workers = rows->list->workers;
    rows->places = rows->list->places;
    rows->count = rows->list->count;
}

/* A member that a policy has put in another's place is passed over: the list is as it was. */
void bt_rows_push(lua_State *L, const bt_rows_t *rows, unsigned at)
{
    const bt_row_t *row;

    lua_rawgeti(L, rows->idx, (int) at + 1);
    row = rows->list != NULL ? lua_touserdata(L, -1) : NULL;
    if (rows->list == NULL ||
        (row != NULL && row->magic == BT_MAGIC_ROW && row->worker == rows->workers[at]))
        return;
    lua_pop(L, 1);
    bt_worker_list_push_memory(L, rows->idx);
    lua_rawgeti(L, -1, (int) at + 1);
    lua_remove(L, -2);
}

void *bt_worker_list_memo(lua_State *L, const bt_rows_t *rows, enum bt_worker_list_key what)
{
    char *p;

    if (rows->list == NULL)
        return NULL;
    bt_worker_list_push_memory(L, rows->idx);
    lua_rawgeti(L, -1, (int) what);
    p = lua_touserdata(L, -1);
    lua_pop(L, 2);
    return p != NULL ? p + CHUNK_HEAD : NULL;
}

void *bt_native_chunk(lua_State *L, size_t size)
{
    char *p = lua_newuserdata(L, size + CHUNK_HEAD);

    *(enum bt_policy_magic *) (void *) p = BT_MAGIC_OTHER;
    return p + CHUNK_HEAD;
}

void bt_worker_list_keep(lua_State *L, const bt_rows_t *rows, enum bt_worker_list_key what)
{
    bt_worker_list_push_memory(L, rows->idx);
    lua_insert(L, -2);
    lua_rawseti(L, -2, (int) what);
    lua_pop(L, 1);
}

double *bt_native_values(lua_State *L, bt_policy_t *policy, unsigned count)
{
    struct bt_native *k = policy->native;

    if (count > k->value_cap) {
        k->values = grow(L, &k->value_ref, 2 * count * sizeof(k->values[0]));
        k->value_cap = 2 * count;
    }
    return k->values;
}
