/* Every sum fades by e^(-time / window) between two looks, and so does the time itself: in the long run it is the window, at the
 * start it is less, and what is divided by it is a mean from the first look on. How many workers are in use is looked at, not
 * measured by legs: that would cost each of them two more writes to lines that all loops write.
 *
 * Counters are this gateway's own, what lies on workers is all gateways': the former are raised by our share of the latter. */
#include "cluster/roles/advisor.h"

#include "base/clock.h"
#include "base/err.h"

#include <math.h>
#include <stdlib.h>

#define LOOK_MS 200
#define PUBLISH_LOOKS 5
#define LOAD_FRESH_MS 5000
#define USED_MAX 4 /* a decode at four times its TPOT is no more in need than at twice */

/* Of one role; all fading but the last line, which is of the last look. */
typedef struct sums {
    double worker_ms, used_ms, by_ms[BT_ADVICE_BY_COUNT], requests, tokens, cached, own_ms, all_ms;
    double inflight, inflight_tokens, waiting, latency_us;
    unsigned workers, timed;
} sums_t;

typedef struct watched {
    struct watched *next;
    bt_pool_stat_t *stat; /* which pool: shared by its snapshots */
    bool is_there;
    double seen_ms;
    sums_t prefill, decode;
} watched_t;

struct bt_advisor {
    bt_loop_t *loop;
    bt_registry_t *registry;
    bt_advisor_config_t config;
    bt_timer_t timer;
    uint64_t last_ms; /* 0 = never */
    unsigned looks;
    watched_t *pools;
};

void bt_advisor_config_defaults(bt_advisor_config_t *config)
{
    *config = (bt_advisor_config_t){.window_ms = 60000, .tpot_ms = 0};
}

const bt_advisor_config_t *bt_advisor_config(const bt_advisor_t *a)
{
    return &a->config;
}

/* ---- one worker ---- */

static uint64_t count(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void raise_to(double *used, enum bt_advice_by *by, double value, enum bt_advice_by kind)
{
    if (value < *used && *by != BT_ADVICE_BY_TIME)
        return;
    *used = value;
    *by = kind;
}

static double decode_used(const bt_advisor_t *a, const bt_worker_t *w, unsigned limit,
                          uint64_t now_ms, enum bt_advice_by *by)
{
    const bt_load_sample_t *load = &w->load;
    const uint64_t at_ms = count(&load->at_ms);
    const int64_t tpot_us = atomic_load_explicit(&w->tpot_ema_us, memory_order_relaxed);
    const bool is_busy = bt_worker_requests(w, BT_PHASE_DECODE) > 0;
    double used = is_busy ? 1 : 0;

    *by = BT_ADVICE_BY_TIME;
    if (at_ms != 0 && now_ms < at_ms + LOAD_FRESH_MS) {
        raise_to(&used, by, atomic_load(&load->kv_used_ppm) / 1e6, BT_ADVICE_BY_KV);
        if (atomic_load(&load->blocked) > 0) /* others wait for KV, which is prefill's to send */
            raise_to(&used, by, 1, BT_ADVICE_BY_WAITING);
    }
    if (limit != 0)
        raise_to(&used, by, (double) bt_worker_requests(w, BT_PHASE_DECODE) / limit,
                 BT_ADVICE_BY_LIMIT);
    if (a->config.tpot_ms != 0)
        raise_to(&used, by, is_busy ? (double) tpot_us / 1000 / (double) a->config.tpot_ms : 0,
                 BT_ADVICE_BY_TPOT);
    return used < USED_MAX ? used : USED_MAX;
}

static void add_counters(sums_t *s, bt_worker_t *w, enum bt_phase phase)
{
    const bool is_prefill = phase == BT_PHASE_PREFILL;
    const struct bt_worker_seen now = {
        .legs = count(&w->legs_total[phase][0]),
        .tokens = count(is_prefill ? &w->prompt_tokens_total : &w->output_tokens_total),
        .cached = count(&w->cached_tokens_total)};

    s->requests += (double) (now.legs - w->seen.legs);
    s->tokens += (double) (now.tokens - w->seen.tokens);
    s->cached += (double) (now.cached - w->seen.cached);
    w->seen = now;
}

static void add_now(sums_t *s, const bt_worker_t *w, enum bt_phase phase, double ms)
{
    const int64_t latency_us = atomic_load_explicit(
        phase == BT_PHASE_PREFILL ? &w->ttft_ema_us : &w->tpot_ema_us, memory_order_relaxed);
    const double requests = (double) bt_worker_requests(w, phase);
    const int64_t waiting = atomic_load_explicit(&w->load.waiting, memory_order_relaxed);

    s->inflight += requests;
    s->inflight_tokens += (double) bt_worker_tokens(w, phase);
    s->waiting += count(&w->load.at_ms) != 0 ? (double) waiting : 0;
    s->own_ms += (double) bt_worker_own_requests(w, phase) * ms;
    s->all_ms += requests * ms;
    s->latency_us += (double) latency_us;
    s->timed += latency_us > 0;
}

/* ---- one role ---- */

static void fade(sums_t *s, double by)
{
    double *const fading[] = {&s->worker_ms, &s->used_ms, &s->requests, &s->tokens,
                              &s->cached,    &s->own_ms,  &s->all_ms};

    for (unsigned i = 0; i < sizeof fading / sizeof fading[0]; i++)
        *fading[i] *= by;
    for (unsigned i = 0; i < BT_ADVICE_BY_COUNT; i++)
        s->by_ms[i] *= by;
    s->inflight = s->inflight_tokens = s->waiting = s->latency_us = 0;
    s->workers = s->timed = 0;
}

static void add_role(const bt_advisor_t *a, const bt_worker_pool_t *pool, enum bt_phase phase,
                     sums_t *s, uint64_t now_ms, double ms)
{
    const bt_worker_set_t *set = phase == BT_PHASE_PREFILL ? &pool->prefill : &pool->decode;

    for (unsigned i = 0; i < set->count; i++) {
        bt_worker_t *w = set->items[i];
        enum bt_advice_by by = BT_ADVICE_BY_TIME;
        double used;

        add_counters(s, w, phase);
        add_now(s, w, phase, ms);
        if (!bt_worker_usable(w, now_ms))
            continue;
        used = phase == BT_PHASE_DECODE
                   ? decode_used(a, w, pool->spec.engine_request_limit, now_ms, &by)
                   : bt_worker_requests(w, phase) > 0;
        s->workers++;
        s->worker_ms += ms;
        s->used_ms += used * ms;
        s->by_ms[by] += ms;
    }
}

/* ---- pools ---- */

static watched_t *find(const bt_advisor_t *a, const bt_worker_pool_t *pool)
{
    watched_t *w = a->pools;

    while (w != NULL && w->stat != pool->stat)
        w = w->next;
    return w;
}

static watched_t *find_or_add(bt_advisor_t *a, const bt_worker_pool_t *pool)
{
    watched_t *w = find(a, pool);

    if (w != NULL || pool->prefill.count == 0 || pool->decode.count == 0 ||
        (w = calloc(1, sizeof *w)) == NULL)
        return w;
    w->stat = pool->stat;
    atomic_fetch_add_explicit(&w->stat->refs, 1, memory_order_relaxed);
    w->next = a->pools;
    a->pools = w;
    return w;
}

static uint32_t whole(double value)
{
    return value > 0 && value < UINT32_MAX ? (uint32_t) lround(value) : 0;
}

static void publish(const bt_advisor_t *a, const bt_worker_pool_t *pool)
{
    bt_pool_advice_t *to = &pool->stat->advice;
    bt_advice_input_t in;
    bt_advice_t advice;

    if (!bt_advisor_input(a, pool, &in))
        return;
    bt_advice_make(&in, &advice);
    atomic_store(&to->prefill, in.prefill.workers);
    atomic_store(&to->decode, in.decode.workers);
    atomic_store(&to->advised_prefill, advice.prefill);
    atomic_store(&to->advised_decode, advice.decode);
    atomic_store(&to->prefill_used_milli, whole(advice.prefill_used * 1000));
    atomic_store(&to->decode_used_milli, whole(advice.decode_used * 1000));
    atomic_store(&to->ttft_ms, whole(advice.ttft_ms));
    atomic_store(&to->bottleneck, (int) advice.bottleneck);
}

static void look_at(bt_advisor_t *a, const bt_worker_pool_t *pool, uint64_t now_ms, double ms)
{
    const double by = exp(-ms / (double) a->config.window_ms);
    watched_t *w = find_or_add(a, pool);

    if (w == NULL)
        return;
    w->is_there = true;
    w->seen_ms = w->seen_ms * by + ms;
    fade(&w->prefill, by);
    fade(&w->decode, by);
    add_role(a, pool, BT_PHASE_PREFILL, &w->prefill, now_ms, ms);
    add_role(a, pool, BT_PHASE_DECODE, &w->decode, now_ms, ms);
    if (a->looks % PUBLISH_LOOKS == 0)
        publish(a, pool);
}

static void drop(watched_t **at)
{
    watched_t *w = *at;

    *at = w->next;
    bt_pool_stat_unref(w->stat);
    free(w);
}

static void drop_gone(bt_advisor_t *a)
{
    for (watched_t **at = &a->pools; *at != NULL;) {
        if ((*at)->is_there) {
            (*at)->is_there = false;
            at = &(*at)->next;
        } else {
            drop(at);
        }
    }
}

void bt_advisor_look(bt_advisor_t *a, uint64_t now_ms)
{
    const bt_workers_t *workers = bt_registry_current(a->registry);
    const double ms = a->last_ms != 0 && now_ms > a->last_ms ? (double) (now_ms - a->last_ms) : 0;

    a->last_ms = now_ms;
    a->looks++;
    for (unsigned i = 0; i < workers->pool_count; i++)
        look_at(a, &workers->pools[i], now_ms, ms);
    drop_gone(a);
}

static void on_timer(bt_timer_t *timer)
{
    bt_advisor_t *a = bt_container_of(timer, bt_advisor_t, timer);

    bt_advisor_look(a, bt_clock_ms());
    bt_timer_start(timer, LOOK_MS);
}

/* ---- asked ---- */

static void put_role(const sums_t *s, bt_advice_role_t *role)
{
    const double share = s->own_ms > 0 ? s->all_ms / s->own_ms : 1;

    *role = (bt_advice_role_t){.workers = s->workers,
                               .worker_s = s->worker_ms / 1000,
                               .used_s = s->used_ms / 1000,
                               .requests = s->requests * share,
                               .tokens = s->tokens * share,
                               .cached = s->cached * share,
                               .inflight = s->inflight,
                               .inflight_tokens = s->inflight_tokens,
                               .waiting = s->waiting,
                               .latency_ms = s->timed > 0 ? s->latency_us / s->timed / 1000 : 0};
    for (unsigned i = 1; i < BT_ADVICE_BY_COUNT; i++)
        if (s->by_ms[i] > s->by_ms[role->by])
            role->by = (enum bt_advice_by) i;
}

bool bt_advisor_input(const bt_advisor_t *a, const bt_worker_pool_t *pool, bt_advice_input_t *in)
{
    const watched_t *w = find(a, pool);

    if (w == NULL)
        return false;
    *in = (bt_advice_input_t){.window_s = (double) a->config.window_ms / 1000,
                              .seen_s = w->seen_ms / 1000};
    put_role(&w->prefill, &in->prefill);
    put_role(&w->decode, &in->decode);
    return true;
}

/* ---- life ---- */

int bt_advisor_new(bt_advisor_t **advisor_p, bt_loop_t *loop, bt_registry_t *registry,
                   const bt_advisor_config_t *config)
{
    bt_advisor_t *a = calloc(1, sizeof *a);

    if (a == NULL)
        return BT_E_NOMEM;
    a->loop = loop;
    a->registry = registry;
    a->config = *config;
    if (loop != NULL) {
        bt_timer_init(loop, &a->timer, on_timer);
        bt_timer_start(&a->timer, LOOK_MS);
    }
    *advisor_p = a;
    return 0;
}

void bt_advisor_free(bt_advisor_t *a)
{
    if (a == NULL)
        return;
    if (a->loop != NULL)
        bt_timer_stop(&a->timer);
    while (a->pools != NULL)
        drop(&a->pools);
    free(a);
}
