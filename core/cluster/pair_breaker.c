/* A breaker of a worker counts what it is guilty of; a link between two that is broken makes neither guilty, and with one breaker for
 * each of n x m pairs most memory would be of pairs that never fail. So only those that have failed are remembered: in sets of WAYS
 * places, by both ids, which are never used twice, and both lives, as warm.c counts them. Readers take no lock: they read atomics,
 * and a place that becomes another pair's while they look costs one choice. Writers hold the lock.
 *
 * What takes the half-open turn moves the end of the rest, by as much again: nobody must give the turn back, whatever becomes of the
 * request that has it. Workers keep the end of their pairs' longest rest, so that nobody looks for pairs of the well. */
#include "cluster/pair_breaker.h"

#include <pthread.h>

#define WAYS 4
#define SETS (BT_PAIR_BREAKER_PLACES / WAYS)
#define FORGET_MS 600000 /* at least: so long after its last failure a pair is as new */

typedef struct place {
    _Atomic uint64_t pair, lives;   /* ids and lives, prefill's above; pair 0 = free */
    _Atomic uint64_t rest_until_ms; /* 0 = it has not rested */
    /* under the lock */
    unsigned failures;
    uint64_t rest_ms, failed_at_ms;
} place_t;

_Atomic unsigned bt_pair_breaker_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place_t places[SETS][WAYS];
static uint64_t opened_total;

static uint64_t both(uint64_t p, uint64_t d)
{
    return p << 32 | (d & UINT32_MAX);
}

static uint64_t ids_of(const bt_worker_t *p, const bt_worker_t *d)
{
    return both(p->id, d->id);
}

static uint64_t lives_of(const bt_worker_t *p, const bt_worker_t *d)
{
    return both(atomic_load_explicit(&p->warm.life, memory_order_acquire),
                atomic_load_explicit(&d->warm.life, memory_order_acquire));
}

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static place_t *set_of(uint64_t pair)
{
    return places[(pair * UINT64_C(0x9e3779b97f4a7c15) >> 32) % SETS];
}

/* NULL: not remembered, or of an earlier life of either. */
static place_t *find(const bt_worker_t *p, const bt_worker_t *d)
{
    const uint64_t pair = ids_of(p, d);
    place_t *set = set_of(pair);

    for (unsigned i = 0; i < WAYS; i++)
        if (load(&set[i].pair) == pair && load(&set[i].lives) == lives_of(p, d))
            return &set[i];
    return NULL;
}

/* ---- reading ---- */

uint64_t bt_pair_breaker_left_ms(const bt_worker_t *p, const bt_worker_t *d, uint64_t now_ms)
{
    const place_t *at = find(p, d);
    const uint64_t until_ms = at != NULL ? load(&at->rest_until_ms) : 0;

    return until_ms > now_ms ? until_ms - now_ms : 0;
}

bool bt_pair_breaker_rests_slow(const bt_worker_t *p, const bt_worker_t *d, uint64_t now_ms)
{
    return bt_pair_breaker_left_ms(p, d, now_ms) != 0;
}

/* ---- writing, under the lock ---- */

static void forget(place_t *at)
{
    atomic_store(&at->pair, 0);
    atomic_store(&at->rest_until_ms, 0);
    atomic_fetch_sub(&bt_pair_breaker_count, 1);
}

static bool is_old(const place_t *at, const bt_breaker_config_t *config, uint64_t now_ms)
{
    const uint64_t keep_ms =
        config->open_max_ms > FORGET_MS / 2 ? 2 * config->open_max_ms : FORGET_MS;

    return now_ms > at->failed_at_ms + keep_ms;
}

/* Its own of an earlier life, a free one, else the one whose last failure is oldest. */
static place_t *place_for(uint64_t pair)
{
    place_t *set = set_of(pair), *best = set;

    for (unsigned i = 0; i < WAYS; i++) {
        if (load(&set[i].pair) == pair)
            return &set[i];
        if (load(&set[i].pair) == 0
                ? load(&best->pair) != 0
                : load(&best->pair) != 0 && set[i].failed_at_ms < best->failed_at_ms)
            best = &set[i];
    }
    return best;
}

static place_t *take(const bt_worker_t *p, const bt_worker_t *d)
{
    const uint64_t pair = ids_of(p, d);
    place_t *at = place_for(pair);

    if (load(&at->pair) == 0)
        atomic_fetch_add(&bt_pair_breaker_count, 1);
    atomic_store(&at->rest_until_ms, 0);
    atomic_store(&at->lives, lives_of(p, d));
    atomic_store(&at->pair, pair);
    at->failures = 0;
    at->rest_ms = d->breaker.config.open_ms;
    return at;
}

static void raise_to(_Atomic uint64_t *value, uint64_t to)
{
    uint64_t now = load(value);

    while (now < to && !atomic_compare_exchange_weak(value, &now, to))
        continue;
}

static void rest(place_t *at, bt_worker_t *p, bt_worker_t *d, uint64_t until_ms)
{
    atomic_store(&at->rest_until_ms, until_ms);
    raise_to(&p->pairs_rest_until_ms, until_ms);
    raise_to(&d->pairs_rest_until_ms, until_ms);
}

/* ---- the verbs ---- */

static bool is_half_open(const place_t *at, uint64_t now_ms)
{
    return at != NULL && load(&at->rest_until_ms) != 0 && now_ms >= load(&at->rest_until_ms);
}

bool bt_pair_breaker_enter(bt_worker_t *p, bt_worker_t *d, uint64_t now_ms)
{
    place_t *at;
    bool is_probe = false;

    if (atomic_load_explicit(&bt_pair_breaker_count, memory_order_relaxed) == 0 ||
        !is_half_open(find(p, d), now_ms))
        return false;
    pthread_mutex_lock(&lock);
    at = find(p, d);
    if (is_half_open(at, now_ms)) {
        rest(at, p, d, now_ms + at->rest_ms);
        is_probe = true;
    }
    pthread_mutex_unlock(&lock);
    return is_probe;
}

bool bt_pair_breaker_success_slow(const bt_worker_t *p, const bt_worker_t *d)
{
    bool had_rested = false;
    place_t *at;

    if (find(p, d) == NULL)
        return false;
    pthread_mutex_lock(&lock);
    at = find(p, d);
    if (at != NULL) {
        had_rested = load(&at->rest_until_ms) != 0;
        forget(at);
    }
    pthread_mutex_unlock(&lock);
    return had_rested;
}

/* While it rests, failures of requests that began before are no news. */
static uint64_t note(place_t *at, bt_worker_t *p, bt_worker_t *d, bool probe, uint64_t now_ms)
{
    const bool has_rested = load(&at->rest_until_ms) != 0;
    const uint64_t rest_ms = at->rest_ms, max_ms = d->breaker.config.open_max_ms;

    at->failed_at_ms = now_ms;
    at->failures++;
    if (has_rested ? !probe : at->failures < BT_PAIR_BREAKER_FAILURES)
        return 0;
    rest(at, p, d, now_ms + rest_ms);
    at->rest_ms = rest_ms < max_ms / 2 ? 2 * rest_ms : max_ms;
    opened_total++;
    return rest_ms;
}

uint64_t bt_pair_breaker_failure(bt_worker_t *p, bt_worker_t *d, bool probe, uint64_t now_ms)
{
    uint64_t rest_ms;
    place_t *at;

    if (d->breaker.config.disabled)
        return 0;
    pthread_mutex_lock(&lock);
    at = find(p, d);
    if (at == NULL || is_old(at, &d->breaker.config, now_ms))
        at = take(p, d);
    rest_ms = note(at, p, d, probe, now_ms);
    pthread_mutex_unlock(&lock);
    return rest_ms;
}

void bt_pair_breaker_stats(bt_pair_breaker_stats_t *stats, uint64_t now_ms)
{
    *stats = (bt_pair_breaker_stats_t){.resting = 0};
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < SETS; i++)
        for (unsigned k = 0; k < WAYS; k++)
            stats->resting += load(&places[i][k].rest_until_ms) > now_ms;
    stats->opened_total = opened_total;
    pthread_mutex_unlock(&lock);
}
