/* model_stats.h - counting an ended request by pool, model and operation. Private to dispatch, but read by the admin side.
 *
 * Owner: the dispatcher's rows (model_rows.h).
 * Life:  a call, at a request's end.
 * Flow:  request -> its row.
 * Cost:  a comparison of names, some relaxed stores.
 */
#ifndef BT_DISPATCH_TELEMETRY_MODEL_STATS_H
#define BT_DISPATCH_TELEMETRY_MODEL_STATS_H

#include "dispatch/state/request_state.h"

const char *bt_model_outcome_name(enum bt_model_outcome outcome);
/* Its attempts are still there. us: from its arrival. */
void bt_model_stats_note(bt_request_t *r, uint64_t us);
void bt_model_stats_fini(bt_model_stats_t *stats);

#endif
