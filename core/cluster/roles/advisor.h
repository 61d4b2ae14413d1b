/* advisor.h - watches the pools that split prefill from decode, and says which role is short (advice.h).
 *
 * Owner: the control loop.
 * Life:  new -> a look every 200 ms -> free.
 * Flow:  what legs count anyway -> sums that fade with the window -> advice, made where it is asked for; once a second for loops.
 * Cost:  a look reads a dozen words of each worker; requests pay nothing.
 */
#ifndef BT_CLUSTER_ROLES_ADVISOR_H
#define BT_CLUSTER_ROLES_ADVISOR_H

#include "cluster/advice.h"
#include "cluster/workers.h"
#include "loop/loop.h"

typedef struct bt_advisor_config {
    uint64_t window_ms; /* 60 000: what is older counts by less than a third */
    uint64_t tpot_ms;   /* 0 = none: decode is judged by its KV cache and queue */
} bt_advisor_config_t;
void bt_advisor_config_defaults(bt_advisor_config_t *config);

typedef struct bt_advisor bt_advisor_t;
/* The registry is borrowed, and outlives it. loop NULL: whoever calls bt_advisor_look is the clock. */
int bt_advisor_new(bt_advisor_t **advisor_p, bt_loop_t *loop, bt_registry_t *registry,
                   const bt_advisor_config_t *config);
void bt_advisor_free(bt_advisor_t *a); /* NULL is fine */
void bt_advisor_look(bt_advisor_t *a, uint64_t now_ms);
/* False: not watched yet, or no pool that has both roles. */
bool bt_advisor_input(const bt_advisor_t *a, const bt_worker_pool_t *pool, bt_advice_input_t *in);
const bt_advisor_config_t *bt_advisor_config(const bt_advisor_t *a);

#endif
