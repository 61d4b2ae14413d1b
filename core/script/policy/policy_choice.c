/* How it works: the answer is a closed table, walked once; each worker in it (an id, or a row) is looked for in the list of
 * the view that its place in the answer names, so a worker of the wrong role, or one that has gone, cannot be chosen. */
#include "script/native/native.h"
#include "script/policy/policy_impl.h"
#include "script/value/plain.h"
#include "script/view/view.h"

#include <math.h>

#define HINT_ACTIONS_MAX 8
#define HINT_BYTES_MAX 4096 /* of kv_hints, as they are sent */

enum {
    PLAN_KIND,
    PLAN_PREFILL,
    PLAN_DECODE,
    PLAN_WORKER,
    PLAN_PREFILL_RANK,
    PLAN_DECODE_RANK,
    PLAN_ALTERNATES,
    PLAN_HINTS
};
static const char *const plan_names[] = {"kind",       "prefill",      "decode",
                                         "worker",     "prefill_rank", "decode_rank",
                                         "alternates", "hints",        NULL};

static void add_where(lua_State *L, const bt_policy_t *policy)
{
    lua_Debug at;

    bt_vm_push(L, policy->hook_refs[policy->call.hook]);
    lua_getinfo(L, ">S", &at);
    lua_pushfstring(L, "%s:%d: %s returned ", at.short_src, at.linedefined,
                    bt_hook_name(policy->call.hook));
}

/* Raises "file:line: plan returned <text>". */
__attribute__((format(printf, 3, 4))) static void refuse(lua_State *L, const bt_policy_t *policy,
                                                         const char *fmt, ...)
{
    va_list args;

    add_where(L, policy);
    va_start(args, fmt);
    lua_pushvfstring(L, fmt, args);
    va_end(args);
    lua_concat(L, 2);
    lua_error(L);
}

static const bt_worker_set_t *set_of(const bt_policy_t *policy, enum bt_policy_list list)
{
    static const bt_worker_set_t none = {NULL, 0};
    const bt_worker_set_t *set = policy->call.view->sets[list];

    return set != NULL ? set : &none;
}

static bool is_tried(const bt_policy_t *policy, const bt_worker_t *w)
{
    const bt_policy_failure_t *failure = policy->call.failure;

    for (unsigned i = 0; failure != NULL && i < failure->tried_count; i++)
        if (failure->tried[i] == w)
            return true;
    return false;
}

/* The hint of the row first; a list that was rebuilt for another view may have moved it. */
static bool is_member(const bt_worker_set_t *set, bt_row_t *row, enum bt_policy_list list)
{
    if (row->at[list] < set->count && set->items[row->at[list]] == row->worker)
        return true;
    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] == row->worker) {
            row->at[list] = i;
            return true;
        }
    return false;
}

static bt_worker_t *read_worker(lua_State *L, bt_policy_t *policy, int idx,
                                enum bt_policy_list list)
{
    const char *place = list == BT_LIST_SINGLE ? "worker" : bt_policy_list_name(list);
    bt_row_t *row = bt_row_at(L, idx);

    if (row == NULL && lua_type(L, idx) != LUA_TNUMBER)
        refuse(L, policy, "%s = a %s value; it must be a worker or its id", place,
               luaL_typename(L, idx));
    if (row == NULL)
        row = bt_row_by_id(L, policy, lua_tonumber(L, idx));
    if (row == NULL)
        refuse(L, policy, "%s = %s, which is no worker's id", place, lua_tostring(L, idx));
    if (!is_member(set_of(policy, list), row, list))
        refuse(L, policy, "%s = worker %s, which is no candidate for that", place,
               row->worker->name);
    if (is_tried(policy, row->worker))
        refuse(L, policy, "%s = worker %s, which was tried already", place, row->worker->name);
    return row->worker;
}

static int read_rank(lua_State *L, bt_policy_t *policy, int idx, const char *name)
{
    lua_Number n = lua_tonumber(L, idx);

    if (lua_type(L, idx) != LUA_TNUMBER || n < 0 || n > 65535 || n != (lua_Number) (int) n)
        refuse(L, policy, "%s which is no rank", name);
    return (int) n;
}

static enum bt_plan_kind read_kind(lua_State *L, bt_policy_t *policy, int idx)
{
    static const enum bt_plan_kind kinds[] = {BT_PLAN_SINGLE, BT_PLAN_HANDOFF, BT_PLAN_BOOTSTRAP,
                                              BT_PLAN_TRIGGER};
    bt_str_t name = lua_type(L, idx) == LUA_TSTRING ? bt_vm_str(L, idx) : BT_STR("?");

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (bt_str_eq(name, bt_str(bt_plan_kind_name(kinds[i]))))
            return kinds[i];
    refuse(L, policy, "kind '%s'; it must be \"single\", \"handoff\", \"bootstrap\" or \"trigger\"",
           name.p);
    return BT_PLAN_NONE;
}

/* Bits of the kinds that both can be part of now. */
static unsigned shared_kinds(const bt_pair_t *pair)
{
    return bt_worker_kinds(pair->prefill) & bt_worker_kinds(pair->decode);
}

bool bt_pair_has_kind(const bt_pair_t *pair)
{
    const unsigned bit = pair->kind == BT_PLAN_TRIGGER     ? BT_KIND_TRIGGER
                         : pair->kind == BT_PLAN_BOOTSTRAP ? BT_KIND_BOOTSTRAP
                                                           : BT_KIND_HANDOFF;

    return pair->kind == BT_PLAN_NONE || pair->kind == BT_PLAN_SINGLE ||
           (shared_kinds(pair) & bit) != 0;
}

struct answer {
    enum bt_plan_kind kind;
    bt_worker_t *prefill, *decode, *worker;
    int prefill_rank, decode_rank;
    bool has_alternates, has_hints;
};

static void read_member(lua_State *L, bt_policy_t *policy, struct answer *a, int key, int value)
{
    switch (bt_vm_fields_find(L, &policy->plan_fields, key)) {
    case PLAN_KIND:
        a->kind = read_kind(L, policy, value);
        break;
    case PLAN_PREFILL:
        a->prefill = read_worker(L, policy, value, BT_LIST_PREFILL);
        break;
    case PLAN_DECODE:
        a->decode = read_worker(L, policy, value, BT_LIST_DECODE);
        break;
    case PLAN_WORKER:
        a->worker = read_worker(L, policy, value, BT_LIST_SINGLE);
        break;
    case PLAN_PREFILL_RANK:
        a->prefill_rank = read_rank(L, policy, value, "a prefill_rank");
        break;
    case PLAN_DECODE_RANK:
        a->decode_rank = read_rank(L, policy, value, "a decode_rank");
        break;
    case PLAN_ALTERNATES:
        a->has_alternates = true;
        break;
    case PLAN_HINTS:
        a->has_hints = true;
        break;
    default:
        bt_vm_unknown(L, "member of a plan", plan_names, key);
    }
}

static void check_rank(lua_State *L, bt_policy_t *policy, int rank, const bt_worker_t *w,
                       const char *name)
{
    if (rank >= 0 && w != NULL && (unsigned) rank >= (w->dp_size > 0 ? w->dp_size : 1))
        refuse(L, policy, "%s = %d, but worker %s has %d ranks", name, rank, w->name,
               (int) w->dp_size);
    if (rank >= 0 && w != NULL && w->spec.dp_rank >= 0 && rank != w->spec.dp_rank)
        refuse(L, policy, "%s = %d, but worker %s is rank %d by its URL", name, rank, w->name,
               w->spec.dp_rank);
}

/* hook will be asked for it. */
static bool may_leave_open(const bt_policy_t *policy, enum bt_policy_hook hook)
{
    return policy->call.part == BT_POLICY_BOTH && policy->hook_refs[hook] != LUA_NOREF;
}

/* Which kind such a plan has is not said twice. */
static void leave_prefill_open(lua_State *L, bt_policy_t *policy, struct answer *a)
{
    if (a->kind == BT_PLAN_NONE)
        a->kind = BT_PLAN_TRIGGER;
    if (a->kind != BT_PLAN_TRIGGER)
        refuse(L, policy,
               "kind \"%s\" without a prefill worker, which only a trigger's decode calls for",
               bt_plan_kind_name(a->kind));
}

static void check_pair(lua_State *L, bt_policy_t *policy, struct answer *a)
{
    enum bt_policy_part part = policy->call.part;
    const char *why;

    if (a->prefill == NULL && a->decode != NULL && may_leave_open(policy, BT_HOOK_PLAN_PREFILL))
        leave_prefill_open(L, policy, a);
    else if (a->prefill == NULL && part != BT_POLICY_DECODE)
        refuse(L, policy, "no prefill worker");
    if (a->decode == NULL && part != BT_POLICY_PREFILL &&
        !may_leave_open(policy, BT_HOOK_PLAN_DECODE))
        refuse(L, policy, "no decode worker");
    if (a->prefill == NULL || a->decode == NULL)
        return;
    why = bt_workers_pair_refusal(a->prefill, a->decode);
    if (why != NULL)
        refuse(L, policy, "workers %s and %s, which cannot be a pair: %s", a->prefill->name,
               a->decode->name, why);
}

/* The self-test's made-up fleet has one connector; a policy may be for another. */
static void check_kind(lua_State *L, bt_policy_t *policy, const bt_pair_t *pair)
{
    unsigned shared;

    if (policy->call.testing || pair->prefill == NULL || pair->decode == NULL ||
        bt_pair_has_kind(pair))
        return;
    shared = shared_kinds(pair);
    refuse(L, policy, "kind \"%s\" for workers %s and %s, which can only be \"%s\"",
           bt_plan_kind_name(pair->kind), pair->prefill->name, pair->decode->name,
           bt_plan_kind_name(shared & BT_KIND_TRIGGER     ? BT_PLAN_TRIGGER
                             : shared & BT_KIND_BOOTSTRAP ? BT_PLAN_BOOTSTRAP
                                                          : BT_PLAN_HANDOFF));
}

static bool is_late(const bt_policy_t *policy)
{
    return policy->call.hook == BT_HOOK_PLAN_DECODE || policy->call.hook == BT_HOOK_PLAN_PREFILL;
}

/* Of plan_decode and plan_prefill: the pair has one of its two, and no other. */
static void take_partner(lua_State *L, bt_policy_t *policy, struct answer *a)
{
    const bool is_prefill = policy->call.hook == BT_HOOK_PLAN_DECODE;
    const char *does = is_prefill ? "has the prompt" : "calls for its prefill";
    bt_worker_t *partner = policy->call.partner, **mine_p = is_prefill ? &a->prefill : &a->decode;

    if (a->worker != NULL)
        refuse(L, policy, "a worker alone, but worker %s %s", partner->name, does);
    if (*mine_p != NULL && *mine_p != partner)
        refuse(L, policy, "%s = worker %s, but worker %s %s", is_prefill ? "prefill" : "decode",
               (*mine_p)->name, partner->name, does);
    *mine_p = partner;
}

/* view.single may have others, on whom nothing is computed without a policy's word: one that looks only here finds nobody, and that is no mistake. */
static bool is_usual_view_empty(const bt_policy_t *policy)
{
    return set_of(policy, BT_LIST_HYBRID)->count == 0 &&
           set_of(policy, BT_LIST_PREFILL)->count == 0;
}

static bool is_nobody_alone(const bt_policy_t *policy, const struct answer *a)
{
    return a->kind == BT_PLAN_SINGLE && a->worker == NULL && a->prefill == NULL &&
           a->decode == NULL && is_usual_view_empty(policy);
}

static struct answer read_pair(lua_State *L, bt_policy_t *policy, int idx, bt_pair_t *pair)
{
    struct answer a = {.prefill_rank = -1, .decode_rank = -1};

    if (!lua_istable(L, idx))
        refuse(L, policy, "a %s value; it must be a table", luaL_typename(L, idx));
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) {
        int top = lua_gettop(L);

        read_member(L, policy, &a, top - 1, top);
    }
    if (a.worker != NULL && (a.prefill != NULL || a.decode != NULL))
        refuse(L, policy, "both a worker and a pair");
    if (is_nobody_alone(policy, &a))
        return (struct answer){.kind = BT_PLAN_NONE};
    if ((a.kind == BT_PLAN_SINGLE) != (a.worker != NULL) && a.kind != BT_PLAN_NONE)
        refuse(L, policy, "kind \"%s\" with %s", bt_plan_kind_name(a.kind),
               a.worker != NULL ? "a worker" : "no worker");
    if (is_late(policy))
        take_partner(L, policy, &a);
    if (a.worker == NULL)
        check_pair(L, policy, &a);
    check_rank(L, policy, a.prefill_rank, a.prefill, "prefill_rank");
    check_rank(L, policy, a.decode_rank, a.worker != NULL ? a.worker : a.decode, "decode_rank");
    *pair = (bt_pair_t){.prefill = a.prefill,
                        .decode = a.worker != NULL ? a.worker : a.decode,
                        .prefill_rank = a.prefill_rank,
                        .decode_rank = a.decode_rank,
                        .kind = a.worker != NULL ? BT_PLAN_SINGLE : a.kind};
    check_kind(L, policy, pair);
    return a;
}

static void read_alternates(lua_State *L, bt_policy_t *policy, int idx, bt_choice_t *choice)
{
    struct answer a;
    size_t count;

    lua_getfield(L, idx, "alternates");
    if (!lua_istable(L, -1))
        refuse(L, policy, "alternates = a %s value; it must be a list", luaL_typename(L, -1));
    count = lua_objlen(L, -1);
    if (count > BT_CHOICE_ALTERNATES_MAX)
        refuse(L, policy, "more than %d alternates", BT_CHOICE_ALTERNATES_MAX);
    for (size_t i = 1; i <= count; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, -1, (int) i);
        bt_pair_t *pair = &choice->alternates[choice->alternate_count];
        a = read_pair(L, policy, lua_gettop(L), pair);
        if (a.has_alternates)
            refuse(L, policy, "alternates inside alternates");
        if (a.has_hints)
            refuse(L, policy, "hints inside alternates; those of the plan hold for all");
        choice->alternate_count += pair->prefill != NULL || pair->decode != NULL;
    }
    lua_pop(L, 1);
}

/* ---- hints ---- */

static const char *const hint_names[] = {"priority", "kv_hints", NULL};
static const char *const action_names[] = {"action_id", "action_type", "action_version", "payload",
                                           NULL};

static void read_priority(lua_State *L, bt_policy_t *policy, bt_hints_t *hints)
{
    const lua_Number n = lua_tonumber(L, -1);

    if (lua_isnil(L, -1))
        return;
    if (lua_type(L, -1) != LUA_TNUMBER || n != floor(n) || n < INT32_MIN || n > INT32_MAX)
        refuse(L, policy, "hints.priority which is no whole number from -2147483648 to 2147483647");
    hints->has_priority = true;
    hints->priority = (int32_t) n;
}

/* As engines check it (an action that is none makes the whole request an error there). */
static void check_action(lua_State *L, bt_policy_t *policy)
{
    const int action = lua_gettop(L);

    if (!lua_istable(L, action))
        refuse(L, policy, "hints.kv_hints with a %s value; an action is a table",
               luaL_typename(L, action));
    bt_vm_check_keys(L, "member of an action of kv_hints", action_names, action);
    for (int i = 0; action_names[i] != NULL; i++) {
        const bool is_payload = action_names[i + 1] == NULL;

        lua_getfield(L, action, action_names[i]);
        if (is_payload ? !lua_istable(L, -1) || lua_objlen(L, -1) != 0
                       : lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) == 0)
            refuse(L, policy, "hints.kv_hints: an action's %s must be a %s", action_names[i],
                   is_payload ? "table of named members" : "string that is not empty");
        lua_pop(L, 1);
    }
}

static void read_actions(lua_State *L, bt_policy_t *policy, bt_hints_t *hints)
{
    const bt_plain_rules_t rules = {.what = "hints.kv_hints",
                                    .depth = BT_PLAIN_DEPTH,
                                    .values = HINT_BYTES_MAX / 2,
                                    .bytes = HINT_BYTES_MAX,
                                    .is_finite = true,
                                    .is_watched = true};
    const size_t count = lua_istable(L, -1) ? lua_objlen(L, -1) : 0;

    if (lua_isnil(L, -1))
        return;
    if (count == 0 || count > HINT_ACTIONS_MAX)
        refuse(L, policy, "hints.kv_hints which is no list of 1 to %d actions", HINT_ACTIONS_MAX);
    for (size_t i = 1; i <= count; i++, lua_pop(L, 1)) {
        lua_rawgeti(L, -1, (int) i);
        check_action(L, policy);
    }
    bt_json_drop(policy);
    bt_plain_read_by(L, lua_gettop(L), &rules, &policy->json.tree);
    bt_plain_json(L, policy->json.tree, &policy->json.text);
    if (policy->json.text.failed || policy->json.text.len > HINT_BYTES_MAX)
        refuse(L, policy, "hints.kv_hints of more than %d bytes", HINT_BYTES_MAX);
    hints->kv_actions = bt_text_str(&policy->json.text);
}

static void read_hints(lua_State *L, bt_policy_t *policy, int idx, bt_hints_t *hints)
{
    lua_getfield(L, idx, "hints");
    if (!lua_istable(L, -1))
        refuse(L, policy, "hints = a %s value; it must be a table", luaL_typename(L, -1));
    bt_vm_check_keys(L, "member of hints", hint_names, lua_gettop(L));
    lua_getfield(L, -1, "priority");
    read_priority(L, policy, hints);
    lua_pop(L, 1);
    lua_getfield(L, -1, "kv_hints");
    read_actions(L, policy, hints);
    lua_pop(L, 2);
}

void bt_choice_read(lua_State *L, bt_policy_t *policy, int idx)
{
    bt_choice_t *choice = &policy->call.choice;
    struct answer a;

    if (lua_isnil(L, idx))
        return; /* nobody */
    a = read_pair(L, policy, idx, &choice->first);
    if (a.has_alternates)
        read_alternates(L, policy, idx, choice);
    if (a.has_hints && is_late(policy))
        refuse(L, policy, "hints; those that plan gave hold for both legs");
    if (a.has_hints)
        read_hints(L, policy, idx, &choice->hints);
}

void bt_choice_open(lua_State *L, bt_policy_t *policy)
{
    bt_vm_fields_init(L, &policy->plan_fields, plan_names);
}
