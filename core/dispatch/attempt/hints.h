/* hints.h - what a plan says of its KV, in the members that each leg's engine takes. Private to dispatch.
 *
 * Owner: nobody; the hints are the task's.
 * Life:  a leg's build.
 * Flow:  plan's hints (bt_hints_t), or kv_hints of a client whose key has the scope "kv-hints" -> edits of prefill, decode and single
 *        alike. An engine that takes none is not told, and the log says so once.
 * Cost:  two comparisons where nobody gave any.
 */
#ifndef BT_DISPATCH_ATTEMPT_HINTS_H
#define BT_DISPATCH_ATTEMPT_HINTS_H

#include "dispatch/state/attempt_state.h"

/* Last of all edits: they stand in for what the client wrote. */
int bt_hints_edit(bt_leg_t *leg, bt_edits_t *edits);

#endif
