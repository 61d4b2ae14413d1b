/* wait.h - serves what a policy's hook waits for (script/policy/policy_run.h): time, calls to allowed hosts, the fleet's state.
 *
 * Owner: one loop; the caller holds the pointer and frees it, whether it is over or not.
 * Life:  start -> done exactly once, never from inside start -> free (also from inside done). Freed before: no callback comes.
 * Flow:  SLEEP is a timer; HTTP resolves the name off the loop, connects by address, reads the answer whole (1 MiB at most); STORE is wait_store.h.
 *        The hook's total deadline runs over all of its waits and ends the one it meets with BT_E_TOTAL_TIMEOUT.
 * Cost:  a timer, or a connection of its own for every call (no pool: hooks that call out are rare next to requests).
 */
#ifndef BT_GENERATION_WAIT_H
#define BT_GENERATION_WAIT_H

#include "generation/wait_store.h"

#define BT_WAIT_BODY_MAX ((size_t) 1 << 20)

typedef struct bt_wait bt_wait_t;
/* answer is borrowed for the call, and gone once the wait is freed. The wait is over: it may be freed, and another started,
 * from inside. */
typedef void (*bt_wait_cb)(bt_wait_t *wait, const bt_hook_answer_t *answer);

/* until_ms: bt_clock_ms of the hook's deadline. *wait_p must be NULL; an error means that nothing was started. want is copied.
 * answer->rc: 0, BT_E_TOTAL_TIMEOUT (until_ms), UV_ETIMEDOUT (the call's own timeout_ms), BT_E_RESOLVE, _CONNECT, _RESET,
 * _UPSTREAM_HTTP, _HTTP_BODY_SIZE; of STORE what the store says. */
int bt_wait_start(bt_wait_t **wait_p, const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op,
                  uint64_t until_ms, bt_wait_cb cb, void *user);
void *bt_wait_user(const bt_wait_t *wait);
void bt_wait_free(bt_wait_t **wait_p); /* cancels; sets NULL; NULL already: nothing */

/* ---- on a thread without a loop: start, which a builder's thread runs ---- */

/* The process's store is asked there through a client of the moment. Set before policies are made, NULL when they are gone; borrowed. While there is none
 * (`baton check`), a store of the moment is asked, which is empty and forgets. */
typedef struct bt_wait_process {
    bt_store_t *store;
    bt_quotas_t *quotas;
    const char *space, *replica;
} bt_wait_process_t;
void bt_wait_store_of_process(const bt_wait_process_t *process);

/* A wait with a loop of its own, until it is over. body_p is malloc'ed memory behind answer_p->body and answer_p->store, to be freed; head is NULL.
 * BT_E_*, uv: it did not come to a wait. */
int bt_wait_blocking(const bt_hook_op_t *hook_op, uint64_t until_ms, bt_hook_answer_t *answer_p,
                     char **body_p);

#endif
