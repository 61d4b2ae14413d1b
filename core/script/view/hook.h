/* hook.h - the hooks of a policy: names and budgets.
 *
 * Owner: the program: a constant table.
 * Life:  the process.
 * Flow:  the hooks stand in the order in which a policy meets them.
 * Cost:  none.
 */
#ifndef BT_SCRIPT_HOOK_H
#define BT_SCRIPT_HOOK_H

#include <stdbool.h>

/* Code of a policy, by when it runs. */
enum bt_policy_hook {
    BT_HOOK_LOAD,
    BT_HOOK_START,
    BT_HOOK_ADMIT,
    BT_HOOK_ROUTE,
    BT_HOOK_ENQUEUE,
    BT_HOOK_PLAN,
    BT_HOOK_PLAN_DECODE,
    BT_HOOK_PLAN_PREFILL,
    BT_HOOK_FALLBACK,
    BT_HOOK_RECOMPUTE,
    BT_HOOK_OBSERVE,
    BT_HOOK_TICK,
    BT_HOOK_HANDOVER,
    BT_HOOK_COUNT
};

const char *bt_hook_name(enum bt_policy_hook hook);
unsigned bt_hook_budget_us(enum bt_policy_hook hook);
/* For a process that has no loop to keep free, where a result must not depend on what else the machine does (core/simulator). */
extern unsigned bt_hook_budget_factor;
bool bt_hook_may_wait(enum bt_policy_hook hook);

#endif
