/* Everything known about one worker. What is NULL or unknown is null, never left out: scripts that read this need no cases.
 * Each value is one atomic; together they are no snapshot.
 */
#include "admin/workers/workers.h"

#include "base/clock.h"
#include "cluster/pair_breaker.h"
#include "cluster/warm.h"

#include <netinet/in.h>
#include <stdio.h>

static void put_list(bt_text_t *out, const char *name, char *const *items, unsigned count)
{
    bt_text_printf(out, ",\"%s\":[", name);
    for (unsigned i = 0; i < count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(items[i]));
    }
    bt_text_puts(out, "]");
}

/* Unsaid numbers are null; their "said" values are never below `first`. */
static void put_number(bt_text_t *out, const char *name, long long value, long long first)
{
    if (value >= first)
        bt_text_printf(out, ",\"%s\":%lld", name, value);
    else
        bt_text_printf(out, ",\"%s\":null", name);
}

static void put_bool(bt_text_t *out, const char *name, bool value)
{
    bt_text_printf(out, ",\"%s\":%s", name, value ? "true" : "false");
}

static long long load(const _Atomic int64_t *value)
{
    return (long long) atomic_load_explicit(value, memory_order_relaxed);
}

static void put_address(bt_text_t *out, bt_worker_t *w)
{
    char host[INET6_ADDRSTRLEN] = "", text[INET6_ADDRSTRLEN + 10];
    struct sockaddr_storage addr;

    if (!bt_worker_get_addr(w, &addr)) {
        bt_text_json_member(out, "address", NULL);
        return;
    }
    (void) uv_ip_name((struct sockaddr *) &addr, host, sizeof host);
    snprintf(text, sizeof text, addr.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, w->port);
    bt_text_json_member(out, "address", text);
}

/* Who names it, and since when. */
static void put_sources(bt_text_t *out, const bt_worker_t *w)
{
    const char *comma = "";
    char since[32];

    bt_text_puts(out, ",\"sources\":[");
    for (unsigned i = 0; i < BT_NAMED_COUNT; i++) {
        const uint64_t ms = atomic_load_explicit(&w->named_ms[i], memory_order_relaxed);
        if (ms == 0)
            continue;
        bt_clock_iso8601(ms, since, sizeof since);
        bt_text_printf(out, "%s{\"source\":\"%s\",\"since\":\"%s\"}", comma,
                       bt_source_name((enum bt_source) i), since);
        comma = ",";
    }
    bt_text_puts(out, "]");
}

static void put_spec(bt_text_t *out, const bt_worker_t *w)
{
    const bt_worker_spec_t *s = &w->spec;

    put_list(out, "models", s->models, s->model_count);
    bt_text_json_member(out, "engine", bt_engine_name(w->engine));
    bt_text_json_member(out, "connector", s->connector);
    put_list(out, "connectors", s->children, s->child_count);
    bt_text_json_member(out, "dispatch_profile", s->dispatch_profile);
    if (s->bootstrap_port == -1)
        bt_text_json_member(out, "bootstrap_port", "none");
    else
        put_number(out, "bootstrap_port", s->bootstrap_port, 1);
    put_number(out, "dp_size", w->dp_size, 1);
    put_number(out, "tp_size", w->tp_size, 1);
    put_number(out, "pp_size", w->pp_size, 1);
    put_number(out, "dp_rank", s->dp_rank, 0);
    bt_text_json_member(out, "engine_id", s->engine_id);
    bt_text_json_member(out, "kv_host", s->kv_host);
    bt_text_json_member(out, "kv_address", w->kv_address);
    bt_text_json_member(out, "kv_events", s->kv_events);
    bt_text_json_member(out, "kv_events_replay", s->kv_events_replay);
    bt_text_json_member(out, "version", s->version);
    bt_text_json_member(out, "transfer_group", s->transfer_group);
    put_number(out, "lease_ms", (long long) w->lease_ms, 0);
    bt_text_json_member(out, "zone", s->zone);
    bt_text_json_member(out, "labels", s->labels);
    put_bool(out, "has_api_key", s->api_key != NULL);
}

/* The last change of its role in this incarnation, where there was one: one that succeeds makes another worker. */
static void put_switch(bt_text_t *out, const bt_worker_t *w)
{
    static const char *const states[] = {"failed", "draining", "asking_engine", "unknown"};
    const int state = atomic_load_explicit(&w->switching, memory_order_relaxed);

    if (state == BT_SWITCH_NONE && w->switch_why[0] == '\0')
        return;
    bt_text_printf(out, ",\"role_switch\":{\"state\":\"%s\",\"to\":\"%s\"", states[state],
                   bt_role_name(w->switch_to));
    bt_text_json_member(out, "why", w->switch_why[0] != '\0' ? w->switch_why : NULL);
    bt_text_puts(out, "}");
}

static void put_state(bt_text_t *out, const bt_worker_t *w, uint64_t now_ms)
{
    static const char *const states[] = {"closed", "open", "half_open"};
    uint64_t until_ms = atomic_load_explicit(&w->breaker.open_until_ms, memory_order_relaxed);
    enum bt_breaker_state state = bt_breaker_state(&w->breaker, now_ms);

    bt_text_json_member(out, "capability", bt_capability_name(w->capability));
    bt_text_json_member(out, "dialect", w->dialect);
    bt_text_json_member(out, "refusal", w->refusal);
    bt_text_json_member(
        out, "health",
        bt_health_name((enum bt_health) atomic_load_explicit(&w->health, memory_order_relaxed)));
    put_bool(out, "draining", atomic_load_explicit(&w->draining, memory_order_relaxed));
    put_switch(out, w);
    put_number(out, "since_secs", (long long) ((now_ms - w->since_ms) / 1000), 0);
    put_bool(out, "usable", bt_worker_usable(w, now_ms));
    bt_text_json_member(out, "why_not", bt_worker_why_not(w, now_ms));
    bt_text_printf(
        out, ",\"breaker\":{\"state\":\"%s\",\"opened_total\":%llu,\"spared_total\":%llu",
        states[state],
        (unsigned long long) atomic_load_explicit(&w->breaker.opened_total, memory_order_relaxed),
        (unsigned long long) atomic_load_explicit(&w->breaker.spared_total, memory_order_relaxed));
    put_bool(out, "spared", bt_breaker_is_spared(&w->breaker, now_ms));
    put_number(out, "open_for_ms",
               state == BT_BREAKER_OPEN && until_ms > now_ms ? (long long) (until_ms - now_ms) : -1,
               0);
    bt_text_puts(out, "}");
}

static void put_load(bt_text_t *out, const bt_worker_t *w, uint64_t now_ms)
{
    const bt_load_sample_t *s = &w->load;
    uint64_t at_ms = atomic_load_explicit(&s->at_ms, memory_order_acquire);
    unsigned ppm = atomic_load_explicit(&s->kv_used_ppm, memory_order_relaxed);

    if (at_ms == 0) {
        bt_text_puts(out, ",\"load\":null");
        return;
    }
    bt_text_printf(out,
                   ",\"load\":{\"age_ms\":%llu,\"running\":%lld,\"waiting\":%lld,\"kv_usage\":%u.%"
                   "06u,\"started_since\":%lld",
                   (unsigned long long) (now_ms > at_ms ? now_ms - at_ms : 0), load(&s->running),
                   load(&s->waiting), ppm / 1000000, ppm % 1000000, load(&s->started_since));
    put_number(out, "total_tokens", load(&s->total_tokens), 0);
    bt_text_puts(out, "}");
}

static void put_ms(bt_text_t *out, const char *name, long long us)
{
    if (us > 0)
        bt_text_printf(out, ",\"%s\":%lld.%03lld", name, us / 1000, us % 1000);
    else
        bt_text_printf(out, ",\"%s\":null", name);
}

static void put_work(bt_text_t *out, const bt_worker_t *w)
{
    static const char *const kinds[] = {"prefill", "decode", "single", "encode"};

    bt_text_puts(out, ",\"ledger\":{");
    for (unsigned i = 0; i < BT_PHASE_COUNT; i++)
        bt_text_printf(out, "%s\"%s\":{\"tokens\":%lld,\"requests\":%lld}", i > 0 ? "," : "",
                       kinds[i], (long long) bt_worker_own_tokens(w, (enum bt_phase) i),
                       (long long) bt_worker_own_requests(w, (enum bt_phase) i));
    bt_text_puts(out, "},\"others\":{");
    for (unsigned i = 0; i < BT_PHASE_COUNT; i++)
        bt_text_printf(out, "%s\"%s\":{\"tokens\":%lld,\"requests\":%lld}", i > 0 ? "," : "",
                       kinds[i], load(&w->others_tokens[i]), load(&w->others_requests[i]));
    bt_text_puts(out, "},\"legs\":{");
    for (unsigned k = 0; k < 4; k++) {
        unsigned long long n[4];
        for (unsigned o = 0; o < 4; o++)
            n[o] = atomic_load_explicit(&w->legs_total[k][o], memory_order_relaxed);
        bt_text_printf(
            out, "%s\"%s\":{\"ok\":%llu,\"guilty\":%llu,\"innocent\":%llu,\"cancelled\":%llu}",
            k > 0 ? "," : "", kinds[k], n[0], n[1], n[2], n[3]);
    }
    bt_text_puts(out, "}");
    put_number(out, "transfer_bytes", w->is_gateway_managed ? load(&w->transfer_bytes) : -1, 0);
    put_ms(out, "ttft_ema_ms", load(&w->ttft_ema_us));
    put_ms(out, "tpot_ema_ms", load(&w->tpot_ema_us));
}

/* With every worker of the other role in the pool. */
static void put_pairs(bt_text_t *out, const bt_worker_pool_t *pool, const bt_worker_t *w,
                      uint64_t now_ms)
{
    const bool is_prefill = w->spec.role == BT_ROLE_PREFILL;
    const bt_worker_set_t *others = is_prefill ? &pool->decode : &pool->prefill;
    unsigned count = bt_role_is_of_pair(w->spec.role) ? others->count : 0;

    bt_text_puts(out, ",\"pairs\":[");
    for (unsigned i = 0; i < count; i++) {
        const bt_worker_t *other = others->items[i];
        bt_text_puts(out, i > 0 ? ",{\"with\":" : "{\"with\":");
        bt_text_json_str(out, bt_str(other->name));
        bt_text_json_member(out, "refusal",
                            is_prefill ? bt_workers_pair_refusal(w, other)
                                       : bt_workers_pair_refusal(other, w));
        bt_text_printf(out, ",\"rests_ms\":%llu",
                       (unsigned long long) (is_prefill
                                                 ? bt_pair_breaker_left_ms(w, other, now_ms)
                                                 : bt_pair_breaker_left_ms(other, w, now_ms)));
        if (atomic_load_explicit(&bt_warm_is_on, memory_order_relaxed))
            bt_text_printf(out, ",\"warm\":%s",
                           (is_prefill ? bt_warm_has(w, other) : bt_warm_has(other, w)) ? "true"
                                                                                        : "false");
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

void bt_worker_describe(bt_text_t *out, const bt_worker_pool_t *pool, bt_worker_t *w, bool pairs)
{
    uint64_t now_ms = bt_clock_ms();

    bt_text_printf(out, "{\"id\":%llu", (unsigned long long) w->id);
    bt_text_json_member(out, "name", w->name);
    bt_text_json_member(out, "url", w->spec.url);
    bt_text_json_member(out, "pool", pool->spec.name);
    bt_text_json_member(out, "role", bt_role_name(w->spec.role));
    if (w->said != NULL)
        bt_text_json_member(out, "role_switched_from", bt_role_name(w->said->role));
    put_sources(out, w);
    put_address(out, w);
    put_spec(out, w);
    put_state(out, w, now_ms);
    put_work(out, w);
    put_load(out, w, now_ms);
    if (pairs)
        put_pairs(out, pool, w, now_ms);
    bt_text_puts(out, "}");
}
