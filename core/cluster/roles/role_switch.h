/* role_switch.h - a worker gets another role while requests run: drained, switched at its engine, taken in as a new worker.
 *
 * Owner: the control loop; one switch per worker at a time.
 * Life:  begin -> its legs end -> the engine is asked, where it has a role -> the registry has a new worker of the same name.
 * Flow:  who fails before the engine has changed serves on in its old role; whose role is not known stays out until it is asked again.
 * Cost:  one timer, 50 ms, while it lasts.
 */
#ifndef BT_CLUSTER_ROLES_ROLE_SWITCH_H
#define BT_CLUSTER_ROLES_ROLE_SWITCH_H

#include "cluster/workers.h"
#include "loop/loop.h"

#define BT_ROLE_SWITCH_TIMEOUT_MS 120000

typedef struct bt_role_switches bt_role_switches_t;
/* What a worker's pool says of workers that say nothing (connector, bootstrap port, lease). < 0: err holds one line. */
typedef int (*bt_role_complete_cb)(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                                   size_t err_size);
/* api_key: sent to workers that have none of their own; NULL = none; borrowed. complete: of the new role; NULL = nothing is said. */
int bt_role_switches_new(bt_role_switches_t **switches_p, bt_loop_t *loop, bt_registry_t *registry,
                         const char *api_key, bt_role_complete_cb complete, void *user);
void bt_role_switches_free(bt_role_switches_t *s); /* NULL is fine; workers stay as they are */

/* Told right before a switch ends, and right after it: done (why NULL), or given up. */
typedef void (*bt_role_note_cb)(void *user, const bt_worker_t *w, enum bt_role to, bool is_end,
                                const char *why);
void bt_role_switches_on_note(bt_role_switches_t *s, bt_role_note_cb note, void *user);

typedef struct bt_role_switch_ask {
    enum bt_role to;
    uint64_t timeout_ms; /* for the drain, and again for the engine */
    uint64_t
        settle_ms; /* its engine is not asked before: so long other gateways may not have heard that it switches */
    bool is_forced;   /* even the last usable worker of its role */
    bool is_reported; /* its engine has it already, and is not asked */
} bt_role_switch_ask_t;
/* A switch that has begun comes to nothing. is_unclear: its engine may have changed all the same. w may have been replaced meanwhile. */
typedef void (*bt_role_failed_cb)(void *user, bt_worker_t *w, enum bt_role to, bool is_unclear);
void bt_role_switches_on_failed(bt_role_switches_t *s, bt_role_failed_cb on_failed, void *user);
/* BT_E_CONFIG: it cannot have this role. BT_E_AGAIN: not now. err says why. */
int bt_role_switches_begin(bt_role_switches_t *s, bt_worker_t *w, const bt_role_switch_ask_t *ask,
                           char *err, size_t err_size);

#endif
