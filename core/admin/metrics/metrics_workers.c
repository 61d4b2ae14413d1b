/* One family after the other over all workers, as the format asks: a row of a table says how one value of a worker is read.
 *
 * A worker is labelled by name and role; what else is known about it stands in baton_worker_info, to be joined by name.
 * Series of an engine's load report are absent until it has sent one.
 */
#include "admin/metrics/metrics.h"

#include "cluster/checks/loss.h"
#include "cluster/pair_breaker.h"
#include "cluster/warm.h"

#define LOOKS 4096 /* at workers, for a family: many have no value */
#define N(array) ((unsigned) (sizeof(array) / sizeof((array)[0])))

typedef struct subject {
    const bt_worker_pool_t *pool;
    const bt_worker_t *w;
    uint64_t now_ms;
    bt_label_t labels[BT_LABELS_MAX]; /* the first two are filled: worker, role */
} subject_t;

static int64_t load(const _Atomic int64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

/* ---- one value a worker; false: it has none ---- */

static bool usable(const subject_t *s, int64_t *value_p)
{
    *value_p = bt_worker_usable(s->w, s->now_ms);
    return true;
}

static bool draining(const subject_t *s, int64_t *value_p)
{
    *value_p = atomic_load_explicit(&s->w->draining, memory_order_relaxed);
    return true;
}

static bool breaker_state(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) bt_breaker_state(&s->w->breaker, s->now_ms);
    return true;
}

static bool breaker_opened(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->breaker.opened_total, memory_order_relaxed);
    return true;
}

static bool breaker_spared(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->breaker.spared_total, memory_order_relaxed);
    return true;
}

static bool losses(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->losses_total, memory_order_relaxed);
    return true;
}

static bool prompt_tokens(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->prompt_tokens_total, memory_order_relaxed);
    return s->w->spec.role == BT_ROLE_PREFILL;
}

static bool cached_tokens(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->cached_tokens_total, memory_order_relaxed);
    return s->w->spec.role == BT_ROLE_PREFILL;
}

static bool output_tokens(const subject_t *s, int64_t *value_p)
{
    *value_p = (int64_t) atomic_load_explicit(&s->w->output_tokens_total, memory_order_relaxed);
    return s->w->spec.role == BT_ROLE_DECODE;
}

static bool report_age(const subject_t *s, int64_t *value_p)
{
    uint64_t at_ms = atomic_load_explicit(&s->w->load.at_ms, memory_order_relaxed);

    *value_p = s->now_ms > at_ms ? (int64_t) (s->now_ms - at_ms) * 1000 : 0;
    return at_ms != 0;
}

static bool engine_running(const subject_t *s, int64_t *value_p)
{
    *value_p = load(&s->w->load.running);
    return report_age(s, &(int64_t){0});
}

static bool engine_waiting(const subject_t *s, int64_t *value_p)
{
    *value_p = load(&s->w->load.waiting);
    return report_age(s, &(int64_t){0});
}

static bool engine_kv(const subject_t *s, int64_t *value_p)
{
    *value_p = atomic_load_explicit(&s->w->load.kv_used_ppm, memory_order_relaxed);
    return report_age(s, &(int64_t){0});
}

static bool transfer_bytes(const subject_t *s, int64_t *value_p)
{
    *value_p = load(&s->w->transfer_bytes);
    return s->w->is_gateway_managed;
}

static bool ttft_ema(const subject_t *s, int64_t *value_p)
{
    *value_p = load(&s->w->ttft_ema_us);
    return *value_p > 0;
}

static bool tpot_ema(const subject_t *s, int64_t *value_p)
{
    *value_p = load(&s->w->tpot_ema_us);
    return *value_p > 0;
}

/* ---- several series a worker ---- */

static void info(bt_prom_t *p, subject_t *s)
{
    const bt_worker_t *w = s->w;

    s->labels[2] = (bt_label_t){"pool", bt_str(s->pool->spec.name)};
    s->labels[3] = (bt_label_t){"engine", bt_str(bt_engine_name(w->engine))};
    s->labels[4] = (bt_label_t){"connector", bt_str(w->spec.connector)};
    s->labels[5] = (bt_label_t){"capability", bt_str(bt_capability_name(w->capability))};
    s->labels[6] = (bt_label_t){"dialect", bt_str(w->dialect)};
    s->labels[7] = (bt_label_t){"version", bt_str(w->spec.version)};
    s->labels[8] = (bt_label_t){"zone", bt_str(w->spec.zone)};
    bt_prom_count(p, s->labels, 9, 1);
}

static void health(bt_prom_t *p, subject_t *s)
{
    int now = atomic_load_explicit(&s->w->health, memory_order_relaxed);

    for (int h = BT_HEALTH_UNKNOWN; h <= BT_HEALTH_DRAIN; h++) {
        s->labels[2] = (bt_label_t){"state", bt_str(bt_health_name((enum bt_health) h))};
        bt_prom_count(p, s->labels, 3, h == now);
    }
}

static void legs(bt_prom_t *p, subject_t *s)
{
    static const char *const outcomes[] = {"ok", "guilty", "innocent", "cancelled"};
    static const char *const kinds[] = {"prefill", "decode", "single", "encode"};

    for (unsigned k = 0; k < N(kinds); k++)
        for (unsigned o = 0; o < N(outcomes); o++) {
            s->labels[2] = (bt_label_t){"leg", bt_str(kinds[k])};
            s->labels[3] = (bt_label_t){"outcome", bt_str(outcomes[o])};
            bt_prom_count(p, s->labels, 4,
                          atomic_load_explicit(&s->w->legs_total[k][o], memory_order_relaxed));
        }
}

static void write_phases(bt_prom_t *p, subject_t *s, const int64_t *values)
{
    static const char *const phases[] = {"prefill", "decode"};

    for (unsigned i = 0; i < BT_PHASE_COUNT; i++) {
        s->labels[2] = (bt_label_t){"phase", bt_str(phases[i])};
        bt_prom_int(p, s->labels, 3, values[i]);
    }
}

static void ledger_tokens(bt_prom_t *p, subject_t *s)
{
    const int64_t values[] = {bt_worker_own_tokens(s->w, BT_PHASE_PREFILL),
                              bt_worker_own_tokens(s->w, BT_PHASE_DECODE)};

    write_phases(p, s, values);
}

static void ledger_requests(bt_prom_t *p, subject_t *s)
{
    const int64_t values[] = {bt_worker_own_requests(s->w, BT_PHASE_PREFILL),
                              bt_worker_own_requests(s->w, BT_PHASE_DECODE)};

    write_phases(p, s, values);
}

static void others_tokens(bt_prom_t *p, subject_t *s)
{
    const int64_t values[] = {load(&s->w->others_tokens[BT_PHASE_PREFILL]),
                              load(&s->w->others_tokens[BT_PHASE_DECODE])};

    write_phases(p, s, values);
}

static void others_requests(bt_prom_t *p, subject_t *s)
{
    const int64_t values[] = {load(&s->w->others_requests[BT_PHASE_PREFILL]),
                              load(&s->w->others_requests[BT_PHASE_DECODE])};

    write_phases(p, s, values);
}

/* ---- the table ---- */

enum unit { WHOLE, MICRO };

static const struct {
    const char *name, *type, *help;
    void (*write)(bt_prom_t *p, subject_t *s);          /* either this */
    bool (*read)(const subject_t *s, int64_t *value_p); /* or one value */
    enum unit unit;
} families[] = {
    {"baton_worker_info", "gauge", "What each worker is, in its labels", info, NULL, WHOLE},
    {"baton_worker_usable", "gauge", "1 when requests may go to the worker now", NULL, usable,
     WHOLE},
    {"baton_worker_health", "gauge", "1 at the state that health checks and traffic show", health,
     NULL, WHOLE},
    {"baton_worker_draining", "gauge", "1 while an operator has taken the worker out", NULL,
     draining, WHOLE},
    {"baton_worker_breaker_state", "gauge", "0 closed, 1 open, 2 half open", NULL, breaker_state,
     WHOLE},
    {"baton_worker_breaker_opened_total", "counter", "Times the breaker opened", NULL,
     breaker_opened, WHOLE},
    {"baton_worker_breaker_spared_total", "counter",
     "Times the breaker was to open and did not, as too many of its role were out", NULL,
     breaker_spared, WHOLE},
    {"baton_worker_losses_total", "counter",
     "Times the worker was found lost, and what waited on it was ended", NULL, losses, WHOLE},
    {"baton_worker_prefill_prompt_tokens_total", "counter",
     "Tokens of prompts that the worker has prefilled, as its replies say", NULL, prompt_tokens,
     WHOLE},
    {"baton_worker_prefill_cached_tokens_total", "counter",
     "Of these, those that its own prefix cache had (vLLM: in its hand-off, or with "
     "--enable-prompt-tokens-details; SGLang: --enable-cache-report)",
     NULL, cached_tokens, WHOLE},
    {"baton_worker_decode_output_tokens_total", "counter",
     "Tokens of answers that the worker has made as a pair's decode", NULL, output_tokens, WHOLE},
    {"baton_worker_legs_total", "counter",
     "Legs that ended on the worker, by kind and by what they say about it", legs, NULL, WHOLE},
    {"baton_worker_ledger_tokens", "gauge",
     "Tokens of the legs that we have on the worker, by phase", ledger_tokens, NULL, WHOLE},
    {"baton_worker_ledger_requests", "gauge", "Legs that we have on the worker, by phase",
     ledger_requests, NULL, WHOLE},
    {"baton_worker_others_tokens", "gauge",
     "Tokens that the fleet's other gateways have on the worker, as told last, by phase",
     others_tokens, NULL, WHOLE},
    {"baton_worker_others_requests", "gauge",
     "Legs that the fleet's other gateways have on the worker, as told last, by phase",
     others_requests, NULL, WHOLE},
    {"baton_worker_engine_running", "gauge", "Running requests, as the engine reports", NULL,
     engine_running, WHOLE},
    {"baton_worker_engine_waiting", "gauge", "Waiting requests, as the engine reports", NULL,
     engine_waiting, WHOLE},
    {"baton_worker_engine_kv_usage", "gauge",
     "Share of the KV cache in use (0 to 1), as the engine reports", NULL, engine_kv, MICRO},
    {"baton_worker_engine_report_age_seconds", "gauge", "Age of the engine's last load report",
     NULL, report_age, MICRO},
    {"baton_worker_transfer_bytes", "gauge",
     "KV on its way from or to the worker, as its agents tell; where the gateway opens the rooms",
     NULL, transfer_bytes, WHOLE},
    {"baton_worker_ttft_ema_seconds", "gauge", "Moving average of the time to the first byte", NULL,
     ttft_ema, MICRO},
    {"baton_worker_tpot_ema_seconds", "gauge", "Moving average of the time per output token", NULL,
     tpot_ema, MICRO},
};

static void write_family(bt_prom_t *p, unsigned i, subject_t *s)
{
    int64_t value;

    s->labels[0] = (bt_label_t){"worker", bt_str(s->w->name)};
    s->labels[1] = (bt_label_t){"role", bt_str(bt_role_name(s->w->spec.role))};
    if (families[i].write != NULL)
        families[i].write(p, s);
    else if (!families[i].read(s, &value))
        return;
    else if (families[i].unit == MICRO)
        bt_prom_micro(p, s->labels, 2, (uint64_t) value);
    else
        bt_prom_int(p, s->labels, 2, value);
}

/* The next worker's place; false: the family has had all. */
static bool find_worker(const bt_workers_t *workers, bt_metrics_place_t *at)
{
    while (at->pool < workers->pool_count && at->worker == workers->pools[at->pool].all.count) {
        at->pool++;
        at->worker = 0;
    }
    return at->pool < workers->pool_count;
}

bool bt_metrics_workers(bt_prom_t *p, const bt_workers_t *workers, uint64_t now_ms,
                        bt_metrics_place_t *at, size_t enough)
{
    subject_t s = {.now_ms = now_ms};
    unsigned looks = 0;

    for (; at->family < N(families); *at = (bt_metrics_place_t){.family = at->family + 1}) {
        if (!at->is_declared)
            bt_prom_family(p, families[at->family].name, families[at->family].type,
                           families[at->family].help);
        at->is_declared = true;
        while (find_worker(workers, at)) {
            if (p->out->len >= enough || ++looks > LOOKS)
                return false;
            s.pool = &workers->pools[at->pool];
            s.w = s.pool->all.items[at->worker++];
            write_family(p, at->family, &s);
        }
    }
    return true;
}

typedef uint64_t (*of_model_fn)(const bt_estimate_model_t *model);

static uint64_t micro_of(const bt_estimate_model_t *model)
{
    return atomic_load_explicit(&model->milli, memory_order_relaxed) * 1000;
}

static uint64_t said_of(const bt_estimate_model_t *model)
{
    return atomic_load_explicit(&model->said, memory_order_relaxed);
}

static uint64_t off_of(const bt_estimate_model_t *model)
{
    return atomic_load_explicit(&model->off, memory_order_relaxed);
}

static void write_models(bt_prom_t *p, const bt_workers_t *workers, of_model_fn of)
{
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_estimate_t *e = &workers->pools[i].stat->estimate;
        const unsigned count = atomic_load_explicit(&e->count, memory_order_acquire);
        for (unsigned k = 0; k < count; k++) {
            const bt_label_t labels[] = {{"pool", bt_str(workers->pools[i].spec.name)},
                                         {"model", bt_str(e->models[k].name)}};
            if (of == micro_of)
                bt_prom_micro(p, labels, 2, of(&e->models[k]));
            else
                bt_prom_count(p, labels, 2, of(&e->models[k]));
        }
    }
}

/* Their quotient's rate is the mean error. */
static void write_estimates(bt_prom_t *p, const bt_workers_t *workers)
{
    bt_prom_family(p, "baton_model_bytes_per_token", "gauge",
                   "Learned prompt bytes per token of a model; the first 32 of a pool");
    write_models(p, workers, micro_of);
    bt_prom_family(p, "baton_model_prompt_tokens_total", "counter",
                   "Tokens of text prompts, as engines have said them");
    write_models(p, workers, said_of);
    bt_prom_family(p, "baton_model_prompt_tokens_off_total", "counter",
                   "Tokens by which the estimates of these prompts were too high or too low");
    write_models(p, workers, off_of);
}

static void write_pools(bt_prom_t *p, const bt_workers_t *workers, uint64_t now_ms)
{
    static const char *const words[] = {"none", "pair", "single", "degraded"};
    char why[512];

    bt_prom_family(p, "baton_pool_topology", "gauge",
                   "1 at what the roles present in the pool allow now");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        enum bt_topology now = bt_workers_topology(&workers->pools[i], now_ms, why, sizeof why);
        for (unsigned t = 0; t < N(words); t++) {
            const bt_label_t labels[] = {{"pool", bt_str(workers->pools[i].spec.name)},
                                         {"topology", bt_str(words[t])}};
            bt_prom_count(p, labels, 2, t == (unsigned) now);
        }
    }
    bt_prom_family(p, "baton_pool_bytes_per_token", "gauge",
                   "Learned prompt bytes per token, for the ledger");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_label_t label = {"pool", bt_str(workers->pools[i].spec.name)};
        bt_prom_micro(p, &label, 1, atomic_load(&workers->pools[i].stat->estimate.milli) * 1000);
    }
    write_estimates(p, workers);
}

/* Absent without --warm-pairs. */
static void write_warm(bt_prom_t *p, const bt_workers_t *workers)
{
    if (!atomic_load_explicit(&bt_warm_is_on, memory_order_relaxed))
        return;
    bt_prom_family(p, "baton_pool_pairs", "gauge",
                   "Pairs of a pool, by whether they are warm (--warm-pairs)");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_worker_pool_t *pool = &workers->pools[i];
        const bt_label_t cold[] = {{"pool", bt_str(pool->spec.name)}, {"warm", BT_STR("false")}},
                         warm[] = {cold[0], {"warm", BT_STR("true")}};
        const unsigned pairs = atomic_load(&pool->stat->pairs),
                       done = atomic_load(&pool->stat->warm_pairs);
        bt_prom_count(p, warm, 2, done);
        bt_prom_count(p, cold, 2, pairs > done ? pairs - done : 0);
    }
}

static void write_resting(bt_prom_t *p, uint64_t now_ms)
{
    bt_pair_breaker_stats_t stats;

    bt_pair_breaker_stats(&stats, now_ms);
    bt_prom_one(p, "baton_pairs_resting", "gauge",
                "Pairs that rest: transfers between the two keep failing, and neither is to "
                "blame",
                stats.resting);
    bt_prom_one(p, "baton_pair_rests_total", "counter", "Times that a pair was sent to rest",
                stats.opened_total);
}

static void write_withheld(bt_prom_t *p)
{
    static const char *const words[] = {"role", "stall"}; /* by enum bt_loss_withheld */

    bt_prom_family(p, "baton_losses_withheld_total", "counter",
                   "Times that silent workers were not given up: most of a role fell silent at "
                   "once, or our own control loop stalled");
    for (unsigned i = 0; i < BT_LOSS_WITHHELD_COUNT; i++) {
        const bt_label_t label = {"reason", bt_str(words[i])};
        bt_prom_count(p, &label, 1, bt_loss_withheld((enum bt_loss_withheld) i));
    }
}

void bt_metrics_pools(bt_prom_t *p, const bt_workers_t *workers, uint64_t now_ms)
{
    write_pools(p, workers, now_ms);
    write_warm(p, workers);
    write_withheld(p);
    write_resting(p, now_ms);
}
