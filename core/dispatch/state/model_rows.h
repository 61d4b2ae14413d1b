/* model_rows.h - what each pool did for each model and operation, on one loop. Private to dispatch, but read by the admin side.
 *
 * Owner: the dispatcher; its loop writes, the admin side reads rows that are published, with relaxed loads.
 * Life:  a row comes with the first answered request of its pool, model and operation, and stays.
 * Flow:  names of models are the clients' words: only one that a worker has answered gets a row, up to BT_MODEL_STATS_MAX of them; all others
 *        count as "other".
 * Cost:  at a request's end: a comparison of names, some relaxed stores.
 */
#ifndef BT_DISPATCH_STATE_MODEL_ROWS_H
#define BT_DISPATCH_STATE_MODEL_ROWS_H

#include "dispatch/state/stats.h"

#define BT_MODEL_STATS_MAX 128
#define BT_MODEL_STATS_NAME_MAX 128 /* bytes; a longer one is "other" */

/* A failed one got 5xx, or a broken answer. Gone: its client left before it had a status. */
enum bt_model_outcome {
    BT_MODEL_OK,
    BT_MODEL_FAILED,
    BT_MODEL_REFUSED,
    BT_MODEL_GONE,
    BT_MODEL_OUTCOMES
};

typedef struct bt_model_row {
    char *pool, *model;
    const char *operation; /* bt_route_operation() */
    _Atomic uint64_t requests[BT_MODEL_OUTCOMES];
    _Atomic uint64_t input_tokens, output_tokens, cached_tokens;
    /* Streams that ended well or failed, where the pool has targets; of these, those within them. */
    _Atomic uint64_t judged, good;
    bt_histogram_t ttft, tpot, duration; /* of what ended well; ttft and tpot of streams */
} bt_model_row_t;

typedef struct bt_model_stats {
    _Atomic(bt_model_row_t *) rows[BT_MODEL_STATS_MAX]; /* the first NULL ends them */
    bt_model_row_t *last;                               /* that was found */
} bt_model_stats_t;

/* From any thread. NULL: there are no more. */
static inline bt_model_row_t *bt_model_stats_row(bt_model_stats_t *stats, unsigned i)
{
    return i < BT_MODEL_STATS_MAX ? atomic_load_explicit(&stats->rows[i], memory_order_acquire)
                                  : NULL;
}

#endif
