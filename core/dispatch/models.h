/* models.h - GET /v1/models: what all usable workers serve, merged.
 *
 * Owner: one struct per question, on the asking loop.
 * Life:  from the request until the last worker has answered or its deadline (2 s) passed.
 * Flow:  one GET per usable worker (at most 64), entries with the same id once, bytes as the first worker wrote them.
 * Cost:  workers calls a question; not a hot path.
 */
#ifndef BT_DISPATCH_MODELS_H
#define BT_DISPATCH_MODELS_H

#include "dispatch/dispatcher.h"

void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x);

#endif
