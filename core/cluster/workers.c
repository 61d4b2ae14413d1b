#include "cluster/workers.h"

#include "base/err.h"
#include "cluster/url.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A snapshot is built once and never changed, so every loop reads it without a lock; only its count is atomic. The four sets
 * of a pool share one array: the roles' sets are runs of it, `all` is the whole. */

/* ---- pool specs ---- */

void bt_pool_spec_init(bt_pool_spec_t *spec)
{
    *spec = (bt_pool_spec_t){
        .deadlines = {.connect_ms = 3000,
                      .prefill_reply_ms = 300000,
                      .first_event_ms = 300000,
                      .stall_ms = 60000,
                      .total_ms = 1800000,
                      .callback_ms = 60000,
                      .room_start_ms = 300000,
                      .room_stall_ms = 60000,
                      .room_repair_ms = 5000},
        .max_fanout = 64,
        .max_attempts = 3,
        .max_replays = 3,
        .replay_recomputed = true,
    };
}

void bt_pool_spec_fini(bt_pool_spec_t *spec)
{
    free(spec->name);
    free(spec->policy);
    free(spec->prefill_policy);
    free(spec->decode_policy);
    for (unsigned i = 0; i < spec->model_count; i++)
        free(spec->models[i]);
    bt_pool_spec_init(spec);
}

static int copy_text(char **to, const char *from)
{
    *to = from != NULL ? bt_str_dup(bt_str(from)) : NULL;
    return from == NULL || *to != NULL ? 0 : BT_E_NOMEM;
}

int bt_pool_spec_copy(bt_pool_spec_t *to, const bt_pool_spec_t *from)
{
    *to = *from;
    int rc = copy_text(&to->name, from->name);
    rc |= copy_text(&to->policy, from->policy);
    rc |= copy_text(&to->prefill_policy, from->prefill_policy);
    rc |= copy_text(&to->decode_policy, from->decode_policy);
    for (unsigned i = 0; i < from->model_count; i++)
        rc |= copy_text(&to->models[i], from->models[i]);
    if (rc == 0)
        return 0;
    bt_pool_spec_fini(to);
    return BT_E_NOMEM;
}

bt_pool_stat_t *bt_pool_stat_new(void)
{
    bt_pool_stat_t *stat = aligned_alloc(_Alignof(bt_pool_stat_t), sizeof *stat);
    if (stat == NULL)
        return NULL;
    memset(stat, 0, sizeof *stat);
    stat->refs = 1;
    bt_estimate_init(&stat->estimate);
    for (unsigned i = 0; i < BT_ROLE_COUNT; i++) {
        stat->breakers[i] = bt_breaker_group_new();
        if (stat->breakers[i] == NULL) {
            bt_pool_stat_unref(stat);
            return NULL;
        }
    }
    return stat;
}

void bt_pool_stat_unref(bt_pool_stat_t *stat)
{
    if (stat == NULL || atomic_fetch_sub_explicit(&stat->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned i = 0; i < BT_ROLE_COUNT; i++)
        bt_breaker_group_unref(stat->breakers[i]);
    free(stat);
}

/* ---- snapshots ---- */

static void free_workers(bt_workers_t *f)
{
    for (unsigned i = 0; i < f->pool_count; i++) {
        bt_worker_pool_t *pool = &f->pools[i];
        for (unsigned j = 0; j < pool->all.count; j++)
            bt_worker_unref(pool->all.items[j]);
        free(pool->all.items);
        bt_pool_spec_fini(&pool->spec);
        bt_pool_stat_unref(pool->stat);
    }
    free(f->pools);
    free(f);
}

bt_workers_t *bt_workers_ref(bt_workers_t *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void bt_workers_unref(bt_workers_t *f)
{
    if (f != NULL && atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) == 1)
        free_workers(f);
}

static bt_worker_set_t take_role(bt_worker_pool_t *pool, enum bt_role role,
                                 bt_worker_t *const *workers, unsigned count)
{
    bt_worker_set_t set = {.items = pool->all.items + pool->all.count};
    for (unsigned i = 0; i < count; i++)
        if (workers[i]->spec.role == role)
            set.items[set.count++] = bt_worker_ref(workers[i]);
    pool->all.count += set.count;
    return set;
}

/* Borrowed: `all` holds them. */
static void add_alone(bt_worker_pool_t *pool, const bt_worker_set_t *from)
{
    for (unsigned i = 0; i < from->count; i++)
        if (from->items[i]->serves_alone)
            pool->alone.items[pool->alone.count++] = from->items[i];
}

static int fill_pool(bt_worker_pool_t *pool, const bt_pool_spec_t *spec, bt_pool_stat_t *stat,
                     bt_worker_t *const *workers, unsigned count)
{
    /* Never of size 0: the sets' pointers stay comparable. */
    pool->all.items = calloc(2 * count + 1, sizeof(bt_worker_t *));
    if (pool->all.items == NULL)
        return BT_E_NOMEM;
    int rc = bt_pool_spec_copy(&pool->spec, spec);
    if (rc < 0)
        return rc;
    atomic_fetch_add(&stat->refs, 1);
    pool->stat = stat;
    pool->prefill = take_role(pool, BT_ROLE_PREFILL, workers, count);
    pool->decode = take_role(pool, BT_ROLE_DECODE, workers, count);
    pool->hybrid = take_role(pool, BT_ROLE_HYBRID, workers, count);
    pool->encode = take_role(pool, BT_ROLE_ENCODE, workers, count);
    pool->alone.items = pool->all.items + count;
    add_alone(pool, &pool->hybrid);
    add_alone(pool, &pool->decode);
    add_alone(pool, &pool->prefill);
    for (unsigned i = 0; i < count; i++)
        pool->has_models |= workers[i]->spec.model_count != 0;
    return 0;
}

int bt_workers_new(bt_workers_t **workers_p, const bt_pool_spec_t *pools,
                   bt_pool_stat_t *const *stats, unsigned pool_count,
                   bt_worker_t *const *const *workers, const unsigned *counts)
{
    bt_workers_t *f = aligned_alloc(_Alignof(bt_workers_t), sizeof *f);
    if (f == NULL)
        return BT_E_NOMEM;
    memset(f, 0, sizeof *f);
    f->refs = 1;
    f->pools = calloc(pool_count + 1, sizeof *f->pools);
    if (f->pools == NULL) {
        free(f);
        return BT_E_NOMEM;
    }
    for (unsigned i = 0; i < pool_count; i++) {
        f->pool_count = i + 1;
        f->pools[i].index = i;
        int rc = fill_pool(&f->pools[i], &pools[i], stats[i], workers[i], counts[i]);
        if (rc < 0) {
            free_workers(f);
            return rc;
        }
    }
    *workers_p = f;
    return 0;
}

static bool lists_model(const bt_pool_spec_t *spec, bt_str_t model)
{
    for (unsigned i = 0; i < spec->model_count; i++)
        if (bt_str_eq(model, bt_str(spec->models[i])))
            return true;
    return false;
}

const bt_worker_pool_t *bt_workers_route(const bt_workers_t *f, bt_str_t model)
{
    const bt_worker_pool_t *open_pool = NULL;
    for (unsigned i = 0; i < f->pool_count; i++) {
        const bt_worker_pool_t *pool = &f->pools[i];
        if (model.n > 0 && lists_model(&pool->spec, model))
            return pool;
        if (open_pool == NULL && pool->spec.model_count == 0)
            open_pool = pool;
    }
    if (open_pool == NULL && model.n == 0 && f->pool_count > 0)
        return &f->pools[0];
    return open_pool;
}

static bool has_url(const bt_worker_t *w, const bt_url_t *url)
{
    bt_url_t own = {
        .host = w->host, .port = w->port, .base_path = w->base_path, .rank = w->spec.dp_rank};
    return bt_url_eq(&own, url);
}

static bt_worker_t *find_where(const bt_workers_t *f, bt_str_t name, const bt_url_t *url)
{
    for (unsigned i = 0; i < f->pool_count; i++) {
        const bt_worker_set_t *all = &f->pools[i].all;
        for (unsigned j = 0; j < all->count; j++)
            if (url != NULL ? has_url(all->items[j], url)
                            : bt_str_eq(name, bt_str(all->items[j]->name)))
                return all->items[j];
    }
    return NULL;
}

bt_worker_t *bt_workers_find(const bt_workers_t *f, bt_str_t name_or_url)
{
    char ignored[160];
    bt_url_t url;
    bt_worker_t *w = find_where(f, name_or_url, NULL);
    if (w != NULL || bt_url_parse(&url, name_or_url, ignored, sizeof ignored) < 0)
        return w;
    w = find_where(f, name_or_url, &url);
    bt_url_fini(&url);
    return w;
}

const bt_worker_pool_t *bt_workers_pool_of(const bt_workers_t *f, const bt_worker_t *w)
{
    for (unsigned i = 0; i < f->pool_count; i++)
        for (unsigned j = 0; j < f->pools[i].all.count; j++)
            if (f->pools[i].all.items[j] == w)
                return &f->pools[i];
    return NULL;
}

/* ---- pairs ---- */

static bool share_model(const bt_worker_t *p, const bt_worker_t *d)
{
    if (p->spec.model_count == 0 || d->spec.model_count == 0)
        return true;
    for (unsigned i = 0; i < p->spec.model_count; i++)
        if (bt_worker_serves_model(d, bt_str(p->spec.models[i])))
            return true;
    return false;
}

static const char *tp_refusal(const bt_worker_t *p, const bt_worker_t *d)
{
    unsigned pt = p->tp_size, dt = d->tp_size;
    enum bt_tp_rule rule =
        p->pair_rules.tp > d->pair_rules.tp ? p->pair_rules.tp : d->pair_rules.tp;
    if (p->spec.tp_size <= 0 || d->spec.tp_size <= 0 || rule == BT_TP_ANY)
        return NULL;
    if (rule == BT_TP_EQUAL)
        return pt == dt ? NULL : "tp_size must be the same on both sides";
    if (rule == BT_TP_PREFILL_MULTIPLE)
        return pt >= dt && pt % dt == 0 ? NULL : "prefill's tp_size must be a multiple of decode's";
    return pt % dt == 0 || dt % pt == 0 ? NULL : "one tp_size must divide the other";
}

static bool has_equal_versions(const bt_worker_t *p, const bt_worker_t *d)
{
    if (!p->pair_rules.equal_version && !d->pair_rules.equal_version)
        return true;
    return p->spec.version == NULL || d->spec.version == NULL ||
           strcmp(p->spec.version, d->spec.version) == 0;
}

static bool is_same_group(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

static bool is_same_family(const char *a, const char *b)
{
    return a == NULL || b == NULL || strcmp(a, b) == 0;
}

/* One connector, which either side has as another dialect. */
static bool differs_in_mode(const bt_worker_t *p, const bt_worker_t *d)
{
    return p->dialect != d->dialect && bt_capability_needs_kv_address(p->dialect) &&
           bt_capability_needs_kv_address(d->dialect) &&
           strcmp(p->pair_rules.family, d->pair_rules.family) == 0;
}

const char *bt_workers_pair_refusal(const bt_worker_t *p, const bt_worker_t *d)
{
    if (p->refusal != NULL || d->refusal != NULL)
        return p->refusal != NULL ? p->refusal : d->refusal;
    if (differs_in_mode(p, d))
        return "transfer modes differ: set read_mode of MoRIIOConnector alike on both sides";
    if (p->capability == BT_CAP_NONE || p->capability != d->capability || p->dialect == NULL ||
        d->dialect == NULL || strcmp(p->dialect, d->dialect) != 0)
        return "no common dialect";
    if (!is_same_family(p->pair_rules.family, d->pair_rules.family))
        return "the connectors cannot read each other's KV";
    if (!share_model(p, d))
        return "no common model";
    if (!is_same_group(p->spec.transfer_group, d->spec.transfer_group))
        return "transfer groups differ";
    if (!has_equal_versions(p, d))
        return "engine versions differ, and the connector demands equal ones";
    if (p->pair_rules.equal_dp && p->dp_size != d->dp_size)
        return "dp_size must be the same on both sides: both legs go to one rank";
    return tp_refusal(p, d);
}

/* ---- topology ---- */

struct reasons {
    char *text;
    size_t size, len;
};

__attribute__((format(printf, 2, 3))) static void add_reason(struct reasons *r, const char *fmt,
                                                             ...)
{
    va_list args;
    if (r->len + 1 >= r->size)
        return;
    if (r->len > 0)
        r->len += (size_t) snprintf(r->text + r->len, r->size - r->len, "; ");
    if (r->len + 1 >= r->size)
        return;
    va_start(args, fmt);
    int n = vsnprintf(r->text + r->len, r->size - r->len, fmt, args);
    va_end(args);
    r->len += n > 0 ? (size_t) n : 0;
}

static void explain_set(struct reasons *r, const bt_worker_set_t *set, uint64_t now_ms)
{
    for (unsigned i = 0; i < set->count; i++) {
        const bt_worker_t *w = set->items[i];
        const char *why = w->refusal != NULL ? w->refusal : bt_worker_why_not(w, now_ms);
        if (why != NULL)
            add_reason(r, "%s: %s", w->name, why);
    }
}

static void explain_pairs(struct reasons *r, const bt_worker_pool_t *pool, uint64_t now_ms)
{
    for (unsigned i = 0; i < pool->prefill.count; i++) {
        const bt_worker_t *p = pool->prefill.items[i];
        for (unsigned j = 0; j < pool->decode.count && bt_worker_usable(p, now_ms); j++) {
            const bt_worker_t *d = pool->decode.items[j];
            const char *why = bt_worker_usable(d, now_ms) ? bt_workers_pair_refusal(p, d) : NULL;
            if (why != NULL)
                add_reason(r, "%s with %s: %s", p->name, d->name, why);
        }
    }
}

static void explain_alone(struct reasons *r, const bt_worker_pool_t *pool, uint64_t now_ms)
{
    for (unsigned i = 0; i < pool->prefill.count; i++) {
        const bt_worker_t *p = pool->prefill.items[i];
        if (bt_worker_usable(p, now_ms) &&
            !bt_capability_prefill_serves_alone(p->engine, p->dialect))
            add_reason(r, "%s: a prefill worker of %s %s cannot serve alone", p->name,
                       bt_capability_needs_kv_address(p->dialect) ? "dialect" : "engine",
                       bt_capability_needs_kv_address(p->dialect) ? p->dialect
                                                                  : bt_engine_name(p->engine));
    }
}

static void explain(const bt_worker_pool_t *pool, uint64_t now_ms, char *why, size_t why_size)
{
    struct reasons r = {.text = why, .size = why_size};
    if (why_size == 0)
        return;
    why[0] = '\0';
    if (pool->all.count == 0)
        add_reason(&r, "pool %s has no worker",
                   pool->spec.name != NULL ? pool->spec.name : "default");
    else if (pool->hybrid.count == 0 && pool->prefill.count == 0)
        add_reason(&r, "no prefill worker");
    else if (pool->hybrid.count == 0 && pool->decode.count == 0)
        add_reason(&r, "no decode worker");
    explain_set(&r, &pool->prefill, now_ms);
    explain_set(&r, &pool->decode, now_ms);
    explain_set(&r, &pool->hybrid, now_ms);
    explain_pairs(&r, pool, now_ms);
    if (pool->decode.count == 0)
        explain_alone(&r, pool, now_ms);
}

static bool has_pair(const bt_worker_pool_t *pool, uint64_t now_ms)
{
    for (unsigned i = 0; i < pool->prefill.count; i++) {
        const bt_worker_t *p = pool->prefill.items[i];
        for (unsigned j = 0; j < pool->decode.count && bt_worker_usable(p, now_ms); j++) {
            const bt_worker_t *d = pool->decode.items[j];
            if (bt_worker_usable(d, now_ms) && bt_workers_pair_refusal(p, d) == NULL)
                return true;
        }
    }
    return false;
}

static bool has_usable(const bt_worker_set_t *set, uint64_t now_ms)
{
    for (unsigned i = 0; i < set->count; i++)
        if (bt_worker_usable(set->items[i], now_ms))
            return true;
    return false;
}

static bool has_healthy(const bt_worker_set_t *set, uint64_t now_ms)
{
    for (unsigned i = 0; i < set->count; i++)
        if (bt_worker_is_healthy(set->items[i], now_ms))
            return true;
    return false;
}

static bool can_degrade(const bt_worker_pool_t *pool, uint64_t now_ms)
{
    if (has_healthy(&pool->decode, now_ms))
        return false;
    for (unsigned i = 0; i < pool->prefill.count; i++) {
        const bt_worker_t *p = pool->prefill.items[i];
        if (bt_worker_usable(p, now_ms) &&
            bt_capability_prefill_serves_alone(p->engine, p->dialect))
            return true;
    }
    return false;
}

enum bt_topology bt_workers_topology(const bt_worker_pool_t *pool, uint64_t now_ms, char *why,
                                     size_t why_size)
{
    if (has_pair(pool, now_ms))
        return BT_TOPOLOGY_PAIR;
    if (has_usable(&pool->hybrid, now_ms))
        return BT_TOPOLOGY_SINGLE;
    if (can_degrade(pool, now_ms))
        return BT_TOPOLOGY_DEGRADED;
    explain(pool, now_ms, why, why_size);
    return BT_TOPOLOGY_NONE;
}
