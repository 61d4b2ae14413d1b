/* breaker.h - circuit breaker of one worker; counts only what the worker is guilty of.
 *
 * Owner: the worker; used from every loop.
 * Life:  as the worker.
 * Flow:  CLOSED -(5 guilty failures in 10 s)-> OPEN for 10 s (doubling to 120 s) -> HALF_OPEN with exactly one probe ->
 *        CLOSED on success / OPEN again on guilty failure / probe slot returned on an innocent end.
 *        No more than max_open_percent of its group's usable workers are held out at once (but one may be): the next is spared.
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
    unsigned failures;         /* 5 */
    uint64_t window_ms;        /* 10 000 */
    uint64_t open_ms;          /* 10 000, doubles */
    uint64_t open_max_ms;      /* 120 000 */
    unsigned max_open_percent; /* 50; of the group */
    bool disabled;
} bt_breaker_config_t;
void bt_breaker_config_defaults(bt_breaker_config_t *config);

/* The workers of one role in one pool, where their breakers are not the only word on them: usable but for their breakers, and out by
 * their breakers, which counts only among the usable ones. */
typedef struct bt_breaker_group {
    _Atomic unsigned refs, usable, out;
} bt_breaker_group_t;
bt_breaker_group_t *bt_breaker_group_new(void);     /* NULL = no memory */
void bt_breaker_group_unref(bt_breaker_group_t *g); /* NULL is fine */

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
    _Atomic uint64_t opened_total, spared_total;
    bt_breaker_group_t *group; /* NULL = opens whatever others do */
    bool is_usable, is_out;    /* as the group counts it; under lock */
    _Atomic uint64_t spared_until_ms;
} bt_breaker_t;

void bt_breaker_init(bt_breaker_t *b, const bt_breaker_config_t *config);
void bt_breaker_fini(bt_breaker_t *b);
/* Before any other thread knows it; once. Not usable, until that is said. */
void bt_breaker_join(bt_breaker_t *b, bt_breaker_group_t *g);
/* What it holds against its worker and for how long, from one that stands for the same process. Before b has joined. A probe that is under way
 * stays the old one's. */
void bt_breaker_carry(bt_breaker_t *b, bt_breaker_t *from);
/* May this worker be chosen now? (Closed; or open time over and no probe running.) Does not take the probe slot. */
bool bt_breaker_allows(const bt_breaker_t *b, uint64_t now_ms);
/* Is the probe under way? */
bool bt_breaker_is_probing(const bt_breaker_t *b);
/* Takes the right to send; false = somebody else has the probe. *probe_p says whether this leg is the probe and must end in
 * exactly one of success / failure / innocent with the same flag. */
bool bt_breaker_enter(bt_breaker_t *b, uint64_t now_ms, bool *probe_p);
void bt_breaker_success(bt_breaker_t *b, bool probe);
/* What a guilty failure did; the caller knows the worker, and logs it. SPARED: too many of its group are out, so it stays in
 * (told once, until a window passes without it). */
enum bt_breaker_effect { BT_BREAKER_COUNTED, BT_BREAKER_OPENED, BT_BREAKER_SPARED };
enum bt_breaker_effect bt_breaker_failure(bt_breaker_t *b, bool probe, uint64_t now_ms);
/* Is the worker usable but for its breaker? One that is not is out anyway, and not by its breaker. */
void bt_breaker_set_usable(bt_breaker_t *b, bool is_usable);
bool bt_breaker_is_spared(const bt_breaker_t *b, uint64_t now_ms);
void bt_breaker_innocent(bt_breaker_t *b,
                         bool probe); /* cancelled, 4xx, 429, 503: proves nothing */
/* Another gateway's breaker is open, as far as is known until then: ours opens at the first guilty failure. */
void bt_breaker_hint(bt_breaker_t *b, uint64_t until_ms);
/* The worker is back after having been down: whatever it did before, it may prove itself now instead of when the time is up. */
void bt_breaker_recovered(bt_breaker_t *b);
enum bt_breaker_state bt_breaker_state(const bt_breaker_t *b, uint64_t now_ms);

#endif
