/* pair_breaker.h - which (prefill, decode) pairs rest, because transfers between the two keep failing while both are well.
 *
 * Owner: the process; one table of BT_PAIR_BREAKER_PLACES, used from every loop.
 * Life:  from a pair's first failure until a transfer of it goes well, or one of its engines begins anew, or it has not failed for long.
 * Flow:  3 failures in a row -> rests for --breaker-open-secs (doubling to --breaker-open-max-secs) -> one request or warm-up tries it, the
 *        others rest on until it has said -> works again / rests longer. Who is chosen avoids pairs that rest where another can serve.
 * Cost:  two relaxed loads a pair that is looked at, one an answer, while nothing rests; a lock a failure.
 */
#ifndef BT_CLUSTER_PAIR_BREAKER_H
#define BT_CLUSTER_PAIR_BREAKER_H

#include "cluster/worker.h"

#define BT_PAIR_BREAKER_FAILURES 3
#define BT_PAIR_BREAKER_PLACES                                                                     \
    256 /* a pair that finds none takes the one that failed longest ago */

/* Pairs that are remembered at all. */
extern _Atomic unsigned bt_pair_breaker_count;

bool bt_pair_breaker_rests_slow(const bt_worker_t *p, const bt_worker_t *d, uint64_t now_ms);

/* Some pair of it may rest. */
static inline bool bt_pair_breaker_may_rest(const bt_worker_t *w, uint64_t now_ms)
{
    return now_ms < atomic_load_explicit(&w->pairs_rest_until_ms, memory_order_relaxed);
}

static inline bool bt_pair_breaker_rests(const bt_worker_t *p, const bt_worker_t *d,
                                         uint64_t now_ms)
{
    return bt_pair_breaker_may_rest(p, now_ms) && bt_pair_breaker_may_rest(d, now_ms) &&
           bt_pair_breaker_rests_slow(p, d, now_ms);
}

/* How long it still rests; 0 = it does not. */
uint64_t bt_pair_breaker_left_ms(const bt_worker_t *p, const bt_worker_t *d, uint64_t now_ms);
/* A leg of both begins. True: it is the one that tries a pair whose rest is over. It need not be given back. */
bool bt_pair_breaker_enter(bt_worker_t *p, bt_worker_t *d, uint64_t now_ms);
/* A transfer went well; true: the pair had rested. */
bool bt_pair_breaker_success_slow(const bt_worker_t *p, const bt_worker_t *d);
static inline bool bt_pair_breaker_success(const bt_worker_t *p, const bt_worker_t *d)
{
    return atomic_load_explicit(&bt_pair_breaker_count, memory_order_relaxed) != 0 &&
           bt_pair_breaker_success_slow(p, d);
}
/* One failed, and neither of the two is to blame. Milliseconds that it rests from now on; 0 = it goes on. */
uint64_t bt_pair_breaker_failure(bt_worker_t *p, bt_worker_t *d, bool probe, uint64_t now_ms);

typedef struct bt_pair_breaker_stats {
    uint64_t opened_total;
    unsigned resting;
} bt_pair_breaker_stats_t;
void bt_pair_breaker_stats(bt_pair_breaker_stats_t *stats, uint64_t now_ms);

#endif
