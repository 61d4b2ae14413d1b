/* breaker.h - circuit breaker of one worker; counts only what the worker is guilty of.
 *
 * Owner: the worker; used from every loop.
 * Life:  as the worker.
 * Flow:  CLOSED -(5 guilty failures in 10 s)-> OPEN for 10 s (doubling to 120 s) -> HALF_OPEN with exactly one probe ->
 *        CLOSED on success / OPEN again on guilty failure / probe slot returned on an innocent end.
 * Cost:  allow and success while closed: one relaxed atomic load; failures take a lock (rare).
 */
#ifndef BT_CLUSTER_BREAKER_H
#define BT_CLUSTER_BREAKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum bt_breaker_state { BT_BREAKER_CLOSED, BT_BREAKER_OPEN, BT_BREAKER_HALF_OPEN };

typedef struct bt_breaker_config {
    unsigned failures;    /* 5 */
    uint64_t window_ms;   /* 10 000 */
    uint64_t open_ms;     /* 10 000, doubles */
    uint64_t open_max_ms; /* 120 000 */
    bool disabled;
} bt_breaker_config_t;
void bt_breaker_config_defaults(bt_breaker_config_t *config);

#define BT_BREAKER_RING 16
typedef struct bt_breaker {
    _Atomic int state;
    _Atomic uint64_t open_until_ms;
    _Atomic bool probing;
    _Atomic uint64_t hinted_until_ms; /* so long another gateway's is open; 0 = none */
    pthread_mutex_t lock;
    bt_breaker_config_t config;
    uint64_t failed_at_ms[BT_BREAKER_RING]; /* under lock */
    unsigned failed_next, failed_count;
    uint64_t open_for_ms;
    _Atomic uint64_t opened_total;
} bt_breaker_t;

void bt_breaker_init(bt_breaker_t *b, const bt_breaker_config_t *config);
void bt_breaker_fini(bt_breaker_t *b);
/* May this worker be chosen now? (Closed; or open time over and no probe running.) Does not take the probe slot. */
bool bt_breaker_allows(const bt_breaker_t *b, uint64_t now_ms);
/* Takes the right to send; false = somebody else has the probe. *probe_p says whether this leg is the probe and must end in
 * exactly one of success / failure / innocent with the same flag. */
bool bt_breaker_enter(bt_breaker_t *b, uint64_t now_ms, bool *probe_p);
void bt_breaker_success(bt_breaker_t *b, bool probe);
/* Guilty. True when this one opened the breaker (the caller knows the worker, and logs it). */
bool bt_breaker_failure(bt_breaker_t *b, bool probe, uint64_t now_ms);
void bt_breaker_innocent(bt_breaker_t *b,
                         bool probe); /* cancelled, 4xx, 429, 503: proves nothing */
/* Another gateway's breaker is open, as far as is known until then: ours opens at the first guilty failure. */
void bt_breaker_hint(bt_breaker_t *b, uint64_t until_ms);
/* The worker is back after having been down: whatever it did before, it may prove itself now instead of when the time is up. */
void bt_breaker_recovered(bt_breaker_t *b);
enum bt_breaker_state bt_breaker_state(const bt_breaker_t *b, uint64_t now_ms);

#endif
