/* How it works: lists cut down: who can be a pair with whom, and who has some label. What is cut from a list of the view is
 * remembered in that list: by class of the other worker for pairs (keys 1 .. BT_POLICY_CLASSES of a table of its own), by
 * "label\0value" for labels. Lists of a policy's own are looked at anew each time. */
#include "cluster/warm.h"
#include "script/native/native.h"

#define MEMO_PAIRS (-5)
#define MEMO_OTHERS (-6) /* the last `others` of pairable */
#define MEMO_PAIRABLE (-7)
#define WHERE_MAX 64          /* remembered cuts by label a list */
#define PAIRS_CHECK_EVERY 128 /* pairs that may have to be found out, labels that have to be read */

/* Pushes the list of the environment's sub-table `key`, made when it is not there. Needs the environment at the top. */
static void push_table(lua_State *L, int key)
{
    lua_rawgeti(L, -1, key);
    if (!lua_isnil(L, -1))
        return;
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, key);
}

/* The new list at the top, or the one at index 1 when all of it was kept. */
static void finish(lua_State *L, bt_policy_t *policy, unsigned kept)
{
    if (kept < lua_objlen(L, 1)) {
        bt_worker_list_seal(L, policy);
        return;
    }
    lua_pop(L, 1);
    lua_pushvalue(L, 1);
}

/* ---- pairs ---- */

static void filter(lua_State *L, bt_policy_t *policy, const bt_row_t *row)
{
    unsigned count = (unsigned) lua_objlen(L, 1), kept = 0;

    lua_newtable(L);
    for (unsigned i = 1; i <= count; i++) {
        if (i % PAIRS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, 1, (int) i);
        if (bt_rows_fit(policy, row, bt_row_check(L, -1)))
            lua_rawseti(L, -2, (int) ++kept);
        else
            lua_pop(L, 1);
    }
    finish(L, policy, kept);
}

/* Pushes what the table at the top has under `key`; true stands for the list at index 1. Pops the table when found. */
static bool recall(lua_State *L, int key)
{
    lua_rawgeti(L, -1, key);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return false;
    }
    if (lua_isboolean(L, -1)) {
        lua_pop(L, 1);
        lua_pushvalue(L, 1);
    }
    lua_remove(L, -2);
    return true;
}

/* Stack: table, result -> result, remembered under `key`. */
static void remember(lua_State *L, int key)
{
    if (lua_rawequal(L, -1, 1))
        lua_pushboolean(L, 1); /* "all of them" */
    else
        lua_pushvalue(L, -1);
    lua_rawseti(L, -3, key);
    lua_remove(L, -2);
}

/* baton.compatible(list, worker) -> members that can be a pair with the worker */
static int native_compatible(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const bt_row_t *row = bt_row_check(L, 2);
    int key = (int) row->klass + 1;
    bt_worker_list_t *list = bt_worker_list_at(L, 1);

    if (list != NULL && row->klass < BT_POLICY_CLASSES && list->fits_kinds >> row->klass & 1) {
        lua_settop(L, 1);
        return 1;
    }
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    if (row->klass == BT_POLICY_CLASSES || list == NULL) {
        filter(L, policy, row);
        return 1;
    }
    bt_worker_list_push_memory(L, 1);
    push_table(L, MEMO_PAIRS);
    if (recall(L, key))
        return 1;
    filter(L, policy, row);
    if (lua_rawequal(L, -1, 1))
        list->fits_kinds |= UINT64_C(1) << row->klass;
    remember(L, key);
    return 1;
}

/* A list by kinds of its members: whether two can be a pair is a matter of their kinds, so a kind is asked about once. */
struct kinds {
    const bt_row_t *known[BT_POLICY_CLASSES]; /* a member of each; NULL = none is there */
    /* Can a worker of this kind be a pair with any member? 0 not known yet, 1 yes, -1 no */
    signed char fits[BT_POLICY_CLASSES];
    unsigned count, unknown; /* members; those whose kind is not remembered */
};

static void count_kinds(lua_State *L, int list, struct kinds *kinds)
{
    memset(kinds, 0, sizeof(*kinds));
    for (;; kinds->count++) {
        const bt_row_t *row;

        if (kinds->count % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, list, (int) kinds->count + 1);
        if (lua_isnil(L, -1))
            break;
        row = bt_row_check(L, -1);
        if (row->klass < BT_POLICY_CLASSES)
            kinds->known[row->klass] = row;
        else
            kinds->unknown++;
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static bool find_fit(lua_State *L, bt_policy_t *policy, const bt_row_t *row, int list,
                     const struct kinds *kinds)
{
    bool found = false;

    for (unsigned k = 0; k < BT_POLICY_CLASSES && !found; k++)
        found = kinds->known[k] != NULL && bt_rows_fit(policy, row, kinds->known[k]);
    for (unsigned i = 1; kinds->unknown > 0 && i <= kinds->count && !found; i++) {
        const bt_row_t *other;

        if (i % PAIRS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, list, (int) i);
        other = bt_row_check(L, -1);
        found = other->klass == BT_POLICY_CLASSES && bt_rows_fit(policy, row, other);
        lua_pop(L, 1);
    }
    return found;
}

static bool fits_any(lua_State *L, bt_policy_t *policy, const bt_row_t *row, int list,
                     struct kinds *kinds)
{
    if (row->klass == BT_POLICY_CLASSES)
        return find_fit(L, policy, row, list, kinds);
    if (kinds->fits[row->klass] == 0)
        kinds->fits[row->klass] = find_fit(L, policy, row, list, kinds) ? 1 : -1;
    return kinds->fits[row->klass] > 0;
}

static void filter_pairable(lua_State *L, bt_policy_t *policy)
{
    unsigned count = (unsigned) lua_objlen(L, 1), kept = 0;
    struct kinds kinds;

    count_kinds(L, 2, &kinds);
    lua_newtable(L);
    for (unsigned i = 1; i <= count; i++) {
        if (i % PAIRS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, 1, (int) i);
        if (fits_any(L, policy, bt_row_check(L, -1), 2, &kinds))
            lua_rawseti(L, -2, (int) ++kept);
        else
            lua_pop(L, 1);
    }
    finish(L, policy, kept);
}

/* baton.pairable(list, others) -> members that can be a pair with at least one of the others. Only the last `others` is
 * remembered. */
static int native_pairable(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_worker_list_t *list, *others;
    bool same;

    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    if (lua_objlen(L, 1) == 0) { /* a fleet that does not split, for one */
        lua_settop(L, 1);
        return 1;
    }
    list = bt_worker_list_at(L, 1);
    others = bt_worker_list_at(L, 2);
    if (list != NULL && others != NULL && list->fits_list == others->serial) {
        lua_settop(L, 1);
        return 1;
    }
    lua_settop(L, 2);
    if (list == NULL || others == NULL) {
        filter_pairable(L, policy);
        return 1;
    }
    bt_worker_list_push_memory(L, 1);
    lua_rawgeti(L, -1, MEMO_OTHERS);
    same = lua_rawequal(L, -1, 2);
    lua_pop(L, 1);
    if (same && recall(L, MEMO_PAIRABLE))
        return 1;
    filter_pairable(L, policy);
    if (lua_rawequal(L, -1, 1))
        list->fits_list = others->serial;
    lua_pushvalue(L, 2);
    lua_rawseti(L, -3, MEMO_OTHERS);
    remember(L, MEMO_PAIRABLE);
    return 1;
}

/* ---- warm pairs ---- */

static bool is_warm(const bt_worker_t *a, const bt_worker_t *b)
{
    if (b == NULL)
        return bt_warm_has_any(a);
    return a->spec.role == BT_ROLE_PREFILL ? bt_warm_has(a, b) : bt_warm_has(b, a);
}

/* baton.warm(list[, worker]) -> members warmed with this worker, or with any; all where none is */
static int native_warm(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    const bt_worker_t *partner = lua_isnoneornil(L, 2) ? NULL : bt_row_check(L, 2)->worker;
    unsigned kept = 0;

    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    if (!atomic_load_explicit(&bt_warm_is_on, memory_order_relaxed))
        return 1;
    lua_newtable(L);
    for (unsigned i = 1, count = (unsigned) lua_objlen(L, 1); i <= count; i++) {
        if (i % PAIRS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, 1, (int) i);
        if (is_warm(bt_row_check(L, -1)->worker, partner))
            lua_rawseti(L, -2, (int) ++kept);
        else
            lua_pop(L, 1);
    }
    finish(L, policy, kept);
    if (kept == 0)
        lua_settop(L, 1);
    return 1;
}

/* ---- labels ---- */

/* The value of a label in "k=v,k=v"; a word without '=' is "true". "zone" and "name" are the worker's own. */
static bt_str_t label_of(const bt_worker_t *w, bt_str_t key)
{
    const char *text = w->spec.labels;

    if (bt_str_eq(key, BT_STR("zone")))
        return bt_str(w->spec.zone);
    if (bt_str_eq(key, BT_STR("name")))
        return bt_str(w->name);
    while (text != NULL && *text != '\0') {
        const char *end = strchrnul(text, ','), *eq = memchr(text, '=', (size_t) (end - text));
        bt_str_t word = bt_str_trim((bt_str_t){text, (size_t) ((eq != NULL ? eq : end) - text)});

        if (bt_str_eq(word, key))
            return eq != NULL ? bt_str_trim((bt_str_t){eq + 1, (size_t) (end - eq - 1)})
                              : BT_STR("true");
        text = *end == ',' ? end + 1 : end;
    }
    return BT_STR_NULL;
}

static void filter_label(lua_State *L, bt_policy_t *policy, bool wanted)
{
    unsigned count = (unsigned) lua_objlen(L, 1), kept = 0;
    bt_str_t key = bt_vm_str(L, 2), value = lua_isnil(L, 3) ? BT_STR_NULL : bt_vm_str(L, 3);

    policy->asked_labels = true;
    lua_newtable(L);
    for (unsigned i = 1; i <= count; i++) {
        bt_str_t has;

        if (i % PAIRS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        lua_rawgeti(L, 1, (int) i);
        has = label_of(bt_row_check(L, -1)->worker, key);
        if ((value.p == NULL ? has.p != NULL : has.p != NULL && bt_str_eq(has, value)) == wanted)
            lua_rawseti(L, -2, (int) ++kept);
        else
            lua_pop(L, 1);
    }
    finish(L, policy, kept);
}

/* Pushes the key under which a cut is remembered: "+label\0value". */
static void push_cut(lua_State *L, bool wanted)
{
    lua_pushstring(L, wanted ? "+" : "-");
    lua_pushvalue(L, 2);
    lua_pushlstring(L, "", 1);
    if (lua_isnil(L, 3))
        lua_pushliteral(L, "");
    else
        lua_pushvalue(L, 3);
    lua_concat(L, 4);
}

/* Values may come from requests, so a list remembers so many cuts and forgets them all when there are more. */
static void remember_cut(lua_State *L)
{
    int cuts = lua_gettop(L) - 2, count; /* cuts, key, result */

    lua_rawgeti(L, cuts, 0);
    count = (int) lua_tointeger(L, -1) + 1;
    lua_pop(L, 1);
    if (count > WHERE_MAX) {
        bt_worker_list_push_memory(L, 1);
        lua_newtable(L);
        lua_pushvalue(L, -1);
        lua_replace(L, cuts);
        lua_rawseti(L, -2, BT_MEMO_WHERE);
        lua_pop(L, 1);
        count = 1;
    }
    lua_pushinteger(L, count);
    lua_rawseti(L, cuts, 0);
    lua_pushvalue(L, cuts + 1);
    if (lua_rawequal(L, cuts + 2, 1))
        lua_pushboolean(L, 1);
    else
        lua_pushvalue(L, cuts + 2);
    lua_rawset(L, cuts);
}

static int cut(lua_State *L, bool wanted)
{
    bt_policy_t *policy = bt_policy_of(L);

    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TSTRING);
    lua_settop(L, 3);
    if (!lua_isnil(L, 3))
        luaL_checkstring(L, 3);
    if (bt_worker_list_at(L, 1) == NULL) {
        filter_label(L, policy, wanted);
        return 1;
    }
    bt_worker_list_push_memory(L, 1);
    push_table(L, BT_MEMO_WHERE);
    push_cut(L, wanted);
    lua_pushvalue(L, -1);
    lua_rawget(L, -3);
    if (!lua_isnil(L, -1)) {
        if (lua_isboolean(L, -1))
            lua_pushvalue(L, 1);
        return 1;
    }
    lua_pop(L, 1);
    filter_label(L, policy, wanted);
    remember_cut(L);
    return 1;
}

/* baton.where(list, label[, value]) -> members with the label (and this value) */
static int native_where(lua_State *L)
{
    return cut(L, true);
}

/* baton.without(list, label[, value]) -> the others */
static int native_without(lua_State *L)
{
    return cut(L, false);
}

void bt_native_add_pair(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"compatible", native_compatible}, {"pairable", native_pairable}, {"warm", native_warm},
        {"where", native_where},           {"without", native_without},   {NULL, NULL}};

    bt_native_set(L, functions);
}
