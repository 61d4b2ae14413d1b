/* explain.h - GET /explain/<request-id>: why a request went where it did; GET /explain: the last ones. Private to core/admin.
 *
 * Owner: nobody; the caller owns the reply.
 * Life:  one answer.
 * Flow:  every loop looks into its ring of records (BT_GATHER_RECORD, live.h) -> the newest line -> as it is, or as a story for people.
 * Cost:  control loop only; a hash look-up on each loop.
 */
#ifndef BT_ADMIN_STATUS_EXPLAIN_H
#define BT_ADMIN_STATUS_EXPLAIN_H

#include "admin/call/call.h"
#include "admin/call/live.h"

/* Handler: ?format=json (or nothing) or text, and the id that the caller asks the loops for. */
void bt_explain_check(const bt_admin_call_t *c);
/* facts: of BT_GATHER_RECORD with this id. */
void bt_explain_answer(bt_admin_reply_t *reply, bt_str_t id, bool as_text,
                       const bt_loop_facts_t *facts, unsigned count);
/* Handler: ?limit=N and ?format. */
void bt_explain_check_list(const bt_admin_call_t *c);
/* facts: of BT_GATHER_RECENT with this limit. {"requests":[{"id":"r","at":..,"status":200,..,"plan":{..}}],"late_loops":n} */
void bt_explain_list(bt_admin_reply_t *reply, unsigned limit, bool as_text,
                     const bt_loop_facts_t *facts, unsigned count);

#endif
