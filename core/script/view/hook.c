/* Budgets are what a loop may lose to one call; see the watchdog for what is added to them. */
#include "script/view/hook.h"

/* What a loop may lose to one call. With the watchdog's millisecond and BT_COLLECT_US (renew.c) a runaway stays under 10 ms. */
#define PLAN_BUDGET_US 2000
#define WAITING_BUDGET_US 2000 /* each step of admit, route, tick: waiting is not counted */
#define ENQUEUE_BUDGET_US 2000
#define FALLBACK_BUDGET_US 2000
#define RECOMPUTE_BUDGET_US 2000
#define OBSERVE_BUDGET_US 2000
#define HANDOVER_BUDGET_US 5000
#define START_BUDGET_US 200000 /* load, and each step of start: on no loop that serves */
#define LOAD_BUDGET_US 200000

unsigned bt_hook_budget_factor = 1;

static const struct {
    const char *name;
    unsigned budget_us;
} hooks[BT_HOOK_COUNT] = {
    [BT_HOOK_LOAD] = {"load", LOAD_BUDGET_US},
    [BT_HOOK_START] = {"start", START_BUDGET_US},
    [BT_HOOK_ADMIT] = {"admit", WAITING_BUDGET_US},
    [BT_HOOK_ROUTE] = {"route", WAITING_BUDGET_US},
    [BT_HOOK_ENQUEUE] = {"enqueue", ENQUEUE_BUDGET_US},
    [BT_HOOK_PLAN] = {"plan", PLAN_BUDGET_US},
    [BT_HOOK_PLAN_DECODE] = {"plan_decode", PLAN_BUDGET_US},
    [BT_HOOK_PLAN_PREFILL] = {"plan_prefill", PLAN_BUDGET_US},
    [BT_HOOK_FALLBACK] = {"fallback", FALLBACK_BUDGET_US},
    [BT_HOOK_RECOMPUTE] = {"recompute", RECOMPUTE_BUDGET_US},
    [BT_HOOK_OBSERVE] = {"observe", OBSERVE_BUDGET_US},
    [BT_HOOK_TICK] = {"tick", WAITING_BUDGET_US},
    [BT_HOOK_HANDOVER] = {"handover", HANDOVER_BUDGET_US},
};

const char *bt_hook_name(enum bt_policy_hook hook)
{
    return hooks[hook].name;
}

unsigned bt_hook_budget_us(enum bt_policy_hook hook)
{
    return hooks[hook].budget_us * bt_hook_budget_factor;
}

bool bt_hook_may_wait(enum bt_policy_hook hook)
{
    return hook == BT_HOOK_START || hook == BT_HOOK_ADMIT || hook == BT_HOOK_ROUTE ||
           hook == BT_HOOK_TICK;
}
