/* response_affinity.h - which worker made which response, so that what follows it goes back there. Private to dispatch.
 *
 * Owner: response_owners.c: the process; what others know: the store.
 * Life:  a table of this process, and a cell in the store for an hour.
 * Flow:  answer -> note; follow-up -> find -> pinned.
 * Cost:  only /v1/responses comes here.
 */
#ifndef BT_DISPATCH_PLAN_RESPONSE_AFFINITY_H
#define BT_DISPATCH_PLAN_RESPONSE_AFFINITY_H

#include "dispatch/state/request_state.h"

enum bt_progress bt_response_affinity_find(bt_request_t *r);
void bt_response_affinity_end(bt_request_t *r); /* gives up asking */
void bt_response_affinity_note(bt_request_t *r, bt_str_t id, const bt_worker_t *worker);

#endif
