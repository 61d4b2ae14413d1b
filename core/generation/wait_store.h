/* wait_store.h - serves what hooks want of the fleet's state (baton.shared): through the loop's client of the store, and through the process's quotas.
 *
 * Owner: one loop; the caller holds the pointer and frees it, as of a bt_wait_t (wait.h), which is made of this where the operation is BT_HOOK_OP_STORE.
 * Life:  start -> cb once, never from inside start -> free. Freed before: no callback; the operation may still happen.
 * Flow:  what a lease ahead can answer is answered by bt_wait_store_now, without a wait.
 * Cost:  an allocation for each operation that waits or is sent; none for bt_wait_store_now.
 */
#ifndef BT_GENERATION_WAIT_STORE_H
#define BT_GENERATION_WAIT_STORE_H

#include "fleet/quota.h"
#include "http/budget.h"
#include "script/policy/policy_run.h"

/* Where waits of a loop happen; store NULL: nothing is shared, and who asks hears BT_E_STORE_UNAVAILABLE. */
typedef struct bt_wait_ctx {
    bt_loop_t *loop;
    bt_budget_t *budget; /* of descriptors for calls; NULL = nobody counts */
    bt_store_client_t *store;
    bt_quota_client_t *quotas;
    const char *space, *replica;
} bt_wait_ctx_t;

typedef struct bt_wait_store bt_wait_store_t;
typedef void (*bt_wait_store_cb)(void *user, const bt_hook_answer_t *answer);

/* True: *answer_p is the answer, which points to *reply_p. False: it takes a wait. */
bool bt_wait_store_now(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op,
                       bt_hook_answer_t *answer_p, bt_store_reply_t *reply_p);
int bt_wait_store_start(bt_wait_store_t **wait_p, const bt_wait_ctx_t *room,
                        const bt_hook_op_t *hook_op, bt_wait_store_cb cb, void *user);
void bt_wait_store_free(bt_wait_store_t **wait_p); /* cancels; sets NULL; NULL already: nothing */

/* For hooks that cannot wait: nobody hears what came of it. */
void bt_wait_store_send(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op);

#endif
