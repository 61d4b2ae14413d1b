/* explain.h - GET /explain/<request-id>: why a request went where it did. Private to core/admin.
 *
 * Owner: nobody; the caller owns the reply.
 * Life:  one answer.
 * Flow:  every loop looks into its ring of records (BT_GATHER_RECORD, live.h) -> the newest line -> as it is, or as a story for people.
 * Cost:  control loop only; a hash look-up on each loop.
 */
#ifndef BT_ADMIN_EXPLAIN_H
#define BT_ADMIN_EXPLAIN_H

#include "admin/live.h"
#include "admin/routes.h"

/* format=json (or nothing), format=text. False: anything else. */
bool bt_explain_format(bt_str_t query, bool *as_text_p);
/* facts: of BT_GATHER_RECORD with this id. */
void bt_explain_answer(bt_admin_reply_t *reply, bt_str_t id, bool as_text,
                       const bt_loop_facts_t *facts, unsigned count);

#endif
