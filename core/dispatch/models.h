/* models.h - GET /v1/models: what the workers of all pools say, merged.
 *
 * Owner: one loop (its dispatcher); a waiting request is the client's exchange.
 * Life:  the first request makes it -> free with the dispatcher, when no round runs.
 * Flow:  request -> an answer younger than a second and of today's workers, else every usable
 *        worker is asked, and whoever comes meanwhile waits for the same. Where clients' keys go to
 *        workers, each key has an answer of its own: what one may see is not another's to see.
 * Cost:  each worker is asked once a second and loop at most (and key, of which 8 are kept and
 *        asked for at a time); otherwise a copy of the answer.
 */
#ifndef BT_DISPATCH_MODELS_H
#define BT_DISPATCH_MODELS_H

#include "dispatch/state/dispatch_state.h"

/* Answers x now or later. */
void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x);
void bt_models_free(struct bt_models *m); /* NULL is fine */

#endif
