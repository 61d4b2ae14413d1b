/* stats.h - counters and histograms of one loop's requests.
 *
 * Owner: one block per loop; the admin side reads all blocks with relaxed loads and adds them up.
 * Life:  as the dispatcher.
 * Flow:  monotone counters; gauges are computed by the reader from live lists and the ledger.
 * Cost:  one relaxed add (the loop is the only writer, so no contention).
 */
#ifndef BT_DISPATCH_STATE_STATS_H
#define BT_DISPATCH_STATE_STATS_H

#include "api/route.h"
#include "identity/refusal.h"

#include <stdatomic.h>
#include <stdint.h>

#define BT_STATS_STATUSES 600
#define BT_HISTOGRAM_BUCKETS 20 /* upper bounds in bt_histogram_bounds_us, then +Inf */

extern const uint64_t bt_histogram_bounds_us[BT_HISTOGRAM_BUCKETS];

#define BT_DECISION_UNIT 100

typedef struct bt_histogram {
    _Atomic uint64_t buckets[BT_HISTOGRAM_BUCKETS + 1];
    _Atomic uint64_t sum_us, count;
} bt_histogram_t;

/* name, help: the Prometheus family is baton_<name>_total. */
#define BT_COUNTER_MAP(X)                                                                          \
    X(attempts, "attempts started")                                                                \
    X(retries, "attempts after the first of a request")                                            \
    X(retries_over_budget, "failures that were not tried again: --retry-budget-percent")           \
    X(limited, "requests that found no worker below --engine-request-limit")                       \
    X(queue_full, "requests refused because the line was full, or put out of it by others")        \
    X(queue_too_long,                                                                              \
      "requests refused because their predicted wait was above what they may wait")                \
    X(queue_timeouts, "requests refused because no place came free in --queue-timeout-secs")       \
    X(decode_replacements, "finished prefills re-used for another decode")                         \
    X(prefill_replacements, "waiting decodes that got another prefill")                            \
    X(first_tokens, "first tokens sent with prefill's reply (--relay-first-token)")                \
    X(first_tokens_differ, "such answers broken off: decode's began with another text")            \
    X(recomputes, "hand-off replies without parameters: decode computed the prompt itself")        \
    X(lease_expired, "prefills repeated because their lease ran out")                              \
    X(callbacks, "calls of decode engines to the metaserver that started a prefill")               \
    X(callbacks_repeated, "calls to the metaserver for a prefill that was started already")        \
    X(callbacks_late, "calls to the metaserver for an attempt that is over, or not known")         \
    X(releases, "release legs sent to free a prefill that will not be used")                       \
    X(lost_legs, "legs ended because their worker was lost")                                       \
    X(warmups, "pairs warmed by a request of the gateway's own (--warm-pairs)")                    \
    X(warmups_failed, "such requests that failed, and are tried again")                            \
    X(aborts, "abort_request calls sent to engines")                                               \
    X(background_dropped,                                                                          \
      "background calls dropped: too many for their worker, or not sent within 2 s")               \
    X(client_gone, "clients that left before their answer ended")                                  \
    X(policy_errors, "policy calls that failed; the default choice was used")                      \
    X(policy_invalid, "policy answers that named an unusable worker")                              \
    X(policy_rejected, "requests that a policy's admit refused")                                   \
    X(shadow_same, "shadow plans that chose what was chosen")                                      \
    X(shadow_different, "shadow plans that chose other workers")                                   \
    X(shadow_errors, "shadow plans that failed")                                                   \
    X(tokenized, "prompts whose token ids an engine has told (--tokenize-timeout-ms)")             \
    X(tokenized_cached, "such prompts whose ids were known from one before")                       \
    X(tokenize_failed, "prompts planned without, because no engine told them in time")             \
    X(observed_events, "events given to policies' observe")                                        \
    X(observed_dropped, "events that observe did not get: too many, or it failed")                 \
    X(ticks, "calls of policies' tick")                                                            \
    X(degraded, "requests served by a lone prefill worker")                                        \
    X(unavailable, "requests refused because no usable worker was there")                          \
    X(stream_errors, "answers that broke after their first byte")                                  \
    X(fanouts, "requests split into children")                                                     \
    X(redacted, "hand-off parameters removed from decode answers")                                 \
    X(events, "SSE events relayed")                                                                \
    X(access_log_lines, "access log lines written")

typedef struct bt_stats {
#define BT_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    BT_COUNTER_MAP(BT_COUNTER_FIELD)
#undef BT_COUNTER_FIELD
    _Atomic uint64_t
        requests[BT_ROUTE_COUNT][BT_STATS_STATUSES];   /* by route and status; 0 = client gone */
    _Atomic uint64_t refused[BT_AUTH_COUNT];           /* baton_auth_refused_total, by reason */
    _Atomic uint64_t replays_recomputed, replays_lost; /* baton_replays_total, by reason */
    bt_histogram_t ttft, tpot, itl, duration, prefill, encode, handoff_wait, callback_wait,
        queue_wait, queue_error, admission, route, tokenize, decode;
    bt_histogram_t
        decision; /* in units of BT_DECISION_UNIT of a microsecond: it takes few of them */
} bt_stats_t;

#define bt_stats_inc(stats, field) bt_stats_add_(&(stats)->field, 1)

static inline void bt_stats_add_(_Atomic uint64_t *counter, uint64_t n)
{
    /* Single writer: load + store is enough and cheaper than a locked add. */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

unsigned bt_histogram_bucket(uint64_t us);
/* n observations of the same value. */
void bt_histogram_note(bt_histogram_t *h, uint64_t us, uint64_t n);

#endif
