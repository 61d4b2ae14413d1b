/* policy_set.h - what all gateways of a fleet serve: policies and rules, committed as one.
 *
 * Owner: the control loop, by reference count.
 * Life:  new -> add* -> handed to a reload; immutable from then on.
 * Flow:  core/rollout's texts -> a set -> a job of reload.h.
 * Cost:  control loop only.
 */
#ifndef BT_RELOAD_POLICY_SET_H
#define BT_RELOAD_POLICY_SET_H

#include "generation/rules.h"
#include "script/policy/policy_source.h"

#define BT_POLICY_SET_RULES "fleet/rules.lua" /* what messages about its rules begin with */

typedef struct bt_policy_set {
    unsigned refs;
    uint64_t number; /* 0 = none */
    bt_policy_source_t **sources;
    unsigned count;
    char *rules; /* own copy, NULL = none */
    size_t rules_size;
    bt_rules_t *parsed; /* from it; NULL = not parsed yet */
} bt_policy_set_t;

int bt_policy_set_new(bt_policy_set_t **set_p, uint64_t number);
int bt_policy_set_add(bt_policy_set_t *set, const char *name, bt_str_t code);
bt_policy_set_t *bt_policy_set_ref(bt_policy_set_t *set); /* NULL is fine */
void bt_policy_set_unref(bt_policy_set_t *set);           /* likewise */
/* Does a policy called name serve where a configuration asks for asked (a name or a path)? */
bool bt_policy_is_named(const char *asked, const char *name);
/* set may be NULL in all of these. By the name that a configuration asks for: */
bt_policy_source_t *bt_policy_set_find(const bt_policy_set_t *set, const char *asked);
bool bt_policy_set_has(const bt_policy_set_t *set, const bt_policy_source_t *source);
bool bt_policy_set_same(const bt_policy_set_t *set,
                        const bt_policy_source_t *source); /* path and bytes */

#endif
