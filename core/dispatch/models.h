/* models.h - GET /v1/models: what the workers of all pools say, merged.
 *
 * Owner: one loop (its dispatcher); a waiting request is the client's exchange.
 * Life:  the first request makes it -> free with the dispatcher, when no refresh runs (background_count).
 * Flow:  request -> an answer that is younger than a second and of today's workers, else a refresh: every usable worker is
 *        asked, and whoever comes meanwhile waits for the same. Where clients' own keys go through to workers, each key has
 *        an answer of its own: what one key may see is not another's to see.
 * Cost:  each worker is asked once a second and loop at most (and key, of which BT_MODELS_KEYS are kept and asked for at a
 *        time); otherwise a copy of the answer.
 */
#ifndef BT_DISPATCH_MODELS_H
#define BT_DISPATCH_MODELS_H

#include "dispatch/dispatcher.h"

#define BT_MODELS_KEYS 8

/* Answers x now or later. */
void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x);
void bt_models_free(struct bt_models *m); /* NULL is fine */

#endif
