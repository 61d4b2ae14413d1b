/* estimate.h - how many tokens a prompt has, before any engine has said it: its bytes over what engines have said of earlier ones.
 *
 * Owner: a pool's, for ever; atomics, from all loops.
 * Life:  init -> (tokens, learn)*.
 * Flow:  a pool has a mean, and each of its models one of its own once it has more than one. Every lesson is first compared with what would have been estimated.
 * Cost:  a load where there is one model; else a hash of the name and a few compares. A new model is copied, the first 32 of a pool.
 */
#ifndef BT_LIMITS_ESTIMATE_H
#define BT_LIMITS_ESTIMATE_H

#include "base/str.h"

#include <stdatomic.h>

#define BT_ESTIMATE_MODELS 32U
#define BT_ESTIMATE_NAME_MAX 95
#define BT_ESTIMATE_START_MILLI 4000U /* bytes x 1000 of a token, as long as nobody knows better */

typedef struct bt_estimate_model {
    _Atomic uint64_t hash; /* of the name; written when the rest is there */
    _Atomic uint64_t milli;
    _Atomic uint64_t said,
        off; /* tokens: as engines said; by how many the estimates were off, both ways */
    char name[BT_ESTIMATE_NAME_MAX + 1];
} bt_estimate_model_t;

typedef struct bt_estimate {
    _Atomic uint64_t milli; /* of all of it */
    _Atomic unsigned count;
    atomic_flag is_adding;
    bt_estimate_model_t models[BT_ESTIMATE_MODELS];
} bt_estimate_t;

void bt_estimate_init(bt_estimate_t *e);
uint64_t bt_estimate_model_milli(const bt_estimate_t *e, bt_str_t model);
/* Bytes x 1000 of a token of this model. */
static inline uint64_t bt_estimate_milli(const bt_estimate_t *e, bt_str_t model)
{
    return atomic_load_explicit(&e->count, memory_order_relaxed) <= 1
               ? atomic_load_explicit(&e->milli, memory_order_relaxed)
               : bt_estimate_model_milli(e, model);
}
/* An engine says: a prompt of so many bytes has so many tokens. */
void bt_estimate_learn(bt_estimate_t *e, bt_str_t model, uint64_t bytes, uint64_t tokens);

#endif
