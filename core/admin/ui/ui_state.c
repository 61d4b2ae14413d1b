/* Everything has an upper end, and says how much is behind it: a page of 10,000 rows helps nobody, and the control loop has other
 * things to do. `total` beside fewer rows is what the page tells its reader.
 */
#include "admin/ui/ui_state.h"

#include "dispatch/queue/queue.h"

#include <stdio.h>

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

const char *bt_ui_section_name(enum bt_ui_section section)
{
    static const char *const names[] = {"now", "workers", "requests"};

    return names[section];
}

/* ---- sums ---- */

static void put_counters(const bt_dispatch_shared_t *shared, bt_text_t *out)
{
    uint64_t by_class[6] = {0}; /* 0: gone before an answer */

    for (unsigned i = 0; i < shared->dispatcher_count; i++)
        for (unsigned route = 0; route < BT_ROUTE_COUNT; route++)
            for (unsigned status = 0; status < BT_STATS_STATUSES; status++)
                by_class[status / 100] +=
                    load(&shared->dispatchers[i]->stats.requests[route][status]);
    bt_text_puts(out, ",\"answers\":[");
    for (unsigned i = 0; i < 6; i++)
        bt_text_printf(out, "%s%llu", i > 0 ? "," : "", (unsigned long long) by_class[i]);
    bt_text_puts(out, "],\"counters\":{");
    const char *comma = "";
#define PUT_COUNTER(name, help)                                                                    \
    bt_text_printf(out, "%s\"" #name "\":%llu", comma,                                             \
                   (unsigned long long) bt_dispatch_sum(shared, offsetof(bt_stats_t, name)));      \
    comma = ",";
    BT_COUNTER_MAP(PUT_COUNTER)
#undef PUT_COUNTER
    bt_text_puts(out, "}");
}

static void put_role(bt_text_t *out, const char *role, const bt_worker_set_t *set, uint64_t now_ms)
{
    unsigned usable = 0, draining = 0, broken = 0;

    for (unsigned i = 0; i < set->count; i++) {
        const bt_worker_t *w = set->items[i];
        usable += bt_worker_usable(w, now_ms);
        draining += atomic_load_explicit(&w->draining, memory_order_relaxed);
        broken += bt_breaker_state(&w->breaker, now_ms) == BT_BREAKER_OPEN;
    }
    bt_text_printf(out, ",\"%s\":{\"total\":%u,\"usable\":%u,\"draining\":%u,\"breakers_open\":%u}",
                   role, set->count, usable, draining, broken);
}

static void put_pools(const bt_workers_t *workers, uint64_t now_ms, bt_text_t *out)
{
    bt_text_puts(out, ",\"pools\":[");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_worker_pool_t *pool = &workers->pools[i];
        bt_text_puts(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        bt_text_json_str(out, bt_str(pool->spec.name));
        put_role(out, "prefill", &pool->prefill, now_ms);
        put_role(out, "decode", &pool->decode, now_ms);
        put_role(out, "hybrid", &pool->hybrid, now_ms);
        put_role(out, "encode", &pool->encode, now_ms);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

static void put_queue(void *user, const bt_queue_facts_t *facts)
{
    bt_text_t *out = user;

    bt_text_puts(out, out->data[out->len - 1] == '[' ? "{\"pool\":" : ",{\"pool\":");
    bt_text_json_str(out, bt_str(facts->pool));
    bt_text_printf(out, ",\"running\":%u,\"waiting\":%u}", facts->running, facts->waiting.count);
}

static void put_late(const bt_loop_facts_t *facts, unsigned count, bt_text_t *out)
{
    unsigned late = 0;

    for (unsigned i = 0; i < count; i++)
        late += !facts[i].answered;
    bt_text_printf(out, ",\"loops\":%u,\"late_loops\":%u", count, late);
}

static void put_now(const bt_admin_config_t *config, const bt_loop_facts_t *facts, unsigned count,
                    bt_text_t *out)
{
    bt_dispatch_shared_t *shared = config->shared;

    bt_text_puts(out, "{\"version\":");
    bt_text_json_str(out, bt_str(config->version));
    bt_text_json_member(out, "replica", config->fleet != NULL ? shared->replica : NULL);
    bt_text_printf(out, ",\"at_ms\":%llu,\"draining\":%s,\"live\":%u",
                   (unsigned long long) bt_clock_wall_ms(),
                   atomic_load(&shared->draining) ? "true" : "false",
                   (unsigned) atomic_load(&shared->concurrent));
    put_late(facts, count, out);
    put_counters(shared, out);
    put_pools(bt_registry_current(config->registry), bt_clock_ms(), out);
    bt_text_puts(out, ",\"queues\":[");
    if (shared->queues != NULL)
        bt_queues_each(shared->queues, put_queue, out);
    bt_text_printf(out, "],\"has\":{\"fleet\":%s,\"rooms\":%s}}",
                   config->rollout != NULL ? "true" : "false",
                   config->transfer != NULL ? "true" : "false");
}

/* ---- workers ---- */

static void put_worker(bt_text_t *out, const bt_worker_pool_t *pool, const bt_worker_t *w,
                       uint64_t now_ms)
{
    static const char *const breakers[] = {"closed", "open", "half_open"};
    static const char *const kinds[] = {"prefill", "decode", "single", "encode"};
    const bt_load_sample_t *s = &w->load;

    bt_text_printf(out, "{\"id\":%llu", (unsigned long long) w->id);
    bt_text_json_member(out, "name", w->name);
    bt_text_json_member(out, "pool", pool->spec.name);
    bt_text_json_member(out, "role", bt_role_name(w->spec.role));
    bt_text_json_member(out, "zone", w->spec.zone);
    bt_text_json_member(out, "engine", bt_engine_name(w->engine));
    bt_text_json_member(
        out, "health",
        bt_health_name((enum bt_health) atomic_load_explicit(&w->health, memory_order_relaxed)));
    bt_text_json_member(out, "why_not", bt_worker_why_not(w, now_ms));
    bt_text_json_member(out, "refusal", w->refusal);
    bt_text_json_member(out, "breaker", breakers[bt_breaker_state(&w->breaker, now_ms)]);
    bt_text_printf(out, ",\"draining\":%s,\"requests\":{",
                   atomic_load_explicit(&w->draining, memory_order_relaxed) ? "true" : "false");
    for (unsigned i = 0; i < BT_PHASE_COUNT; i++)
        bt_text_printf(out, "%s\"%s\":[%lld,%lld]", i > 0 ? "," : "", kinds[i],
                       (long long) bt_worker_requests(w, (enum bt_phase) i),
                       (long long) bt_worker_tokens(w, (enum bt_phase) i));
    bt_text_puts(out, "}");
    if (load(&s->at_ms) != 0)
        bt_text_printf(out, ",\"running\":%lld,\"waiting\":%lld,\"kv\":%.3f",
                       (long long) atomic_load_explicit(&s->running, memory_order_relaxed),
                       (long long) atomic_load_explicit(&s->waiting, memory_order_relaxed),
                       (double) atomic_load_explicit(&s->kv_used_ppm, memory_order_relaxed) /
                           1000000);
    bt_text_printf(out, ",\"ttft_ms\":%.1f,\"tpot_ms\":%.1f}",
                   (double) atomic_load_explicit(&w->ttft_ema_us, memory_order_relaxed) / 1000,
                   (double) atomic_load_explicit(&w->tpot_ema_us, memory_order_relaxed) / 1000);
}

/* Which of them are shown when there are too many: all in trouble, as far as there is room, and each n-th of the others, so that every pool
 * and role has some. */
struct selection {
    unsigned total, troubled, step, seen[2], shown;
};

static bool is_troubled(const bt_worker_t *w, uint64_t now_ms)
{
    return bt_worker_why_not(w, now_ms) != NULL;
}

static struct selection begin_selection(const bt_workers_t *workers, uint64_t now_ms)
{
    struct selection s = {.step = 1};

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            s.total++;
            s.troubled += is_troubled(workers->pools[i].all.items[j], now_ms);
        }
    if (s.total > BT_UI_WORKERS) {
        const unsigned shown = s.troubled < BT_UI_WORKERS / 2 ? s.troubled : BT_UI_WORKERS / 2;
        s.step = (s.total - s.troubled) / (BT_UI_WORKERS - shown) + 1;
    }
    return s;
}

static bool select_worker(struct selection *s, const bt_worker_t *w, uint64_t now_ms)
{
    const bool troubled = is_troubled(w, now_ms);
    const unsigned n = s->seen[troubled]++;

    if (s->total > BT_UI_WORKERS && (troubled ? n >= BT_UI_WORKERS / 2 : n % s->step != 0))
        return false;
    s->shown++;
    return true;
}

static void put_workers(const bt_admin_config_t *config, bt_text_t *out)
{
    const bt_workers_t *workers = bt_registry_current(config->registry);
    const uint64_t now_ms = bt_clock_ms();
    struct selection s = begin_selection(workers, now_ms);

    bt_text_printf(out, "{\"total\":%u,\"troubled\":%u,\"rows\":[", s.total, s.troubled);
    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            const bt_worker_t *w = workers->pools[i].all.items[j];
            if (!select_worker(&s, w, now_ms))
                continue;
            bt_text_puts(out, s.shown > 1 ? "," : "");
            put_worker(out, &workers->pools[i], w, now_ms);
        }
    bt_text_puts(out, "]}");
}

/* ---- requests ---- */

static void put_requests(const bt_admin_config_t *config, const bt_loop_facts_t *facts,
                         unsigned count, bt_text_t *out)
{
    const char *comma = "";

    bt_text_printf(out, "{\"total\":%u,\"rows\":[",
                   (unsigned) atomic_load(&config->shared->concurrent));
    for (unsigned i = 0; i < count; i++) {
        if (!facts[i].answered || facts[i].rows.len == 0)
            continue;
        bt_text_puts(out, comma);
        bt_text_put(out, bt_text_str(&facts[i].rows));
        comma = ",";
    }
    bt_text_puts(out, "]}");
}

void bt_ui_write(enum bt_ui_section section, const bt_admin_config_t *config,
                 const bt_loop_facts_t *facts, unsigned count, bt_text_t *out)
{
    if (section == BT_UI_NOW)
        put_now(config, facts, count, out);
    else if (section == BT_UI_WORKER_ROWS)
        put_workers(config, out);
    else
        put_requests(config, facts, count, out);
}

bt_gather_ask_t bt_ui_ask(const bt_dispatch_shared_t *shared)
{
    return (bt_gather_ask_t){.what = BT_GATHER_REQUESTS,
                             .limit = bt_gather_share(shared, BT_UI_REQUESTS)};
}

void bt_ui_write_all(const bt_admin_config_t *config, const bt_loop_facts_t *facts, unsigned count,
                     bt_text_t *out)
{
    for (unsigned i = 0; i < BT_UI_SECTIONS; i++) {
        bt_text_printf(out, "%s\"%s\":", i > 0 ? "," : "{",
                       bt_ui_section_name((enum bt_ui_section) i));
        bt_ui_write((enum bt_ui_section) i, config, facts, count, out);
    }
    bt_text_puts(out, "}\n");
}
