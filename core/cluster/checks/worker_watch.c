#include "cluster/checks/worker_watch.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "cluster/engine_ids.h"
#include "loop/network.h"

#include <stdio.h>
#include <stdlib.h>

/* Three clocks:
 *
 *   health timer -> probe worker -> (SGLang prefill: probe bootstrap port) -> bt_health_count -> health timer
 *   health is up, now and then -> probe vLLM's optional routes -> worker->routes_off
 *   load timer   -> probe the engine's report -> sample -> load timer
 *   resolve timer -> getaddrinfo -> address -> resolve timer */

#define PROBE_IDLE_MAX 8 /* connections of its own to one worker */
#define HEALTH_BODY_MAX ((size_t) 4096)
#define QUERY_BODY_MAX ((size_t) 1 << 20)
#define LOAD_BODY_MAX ((size_t) 8 << 20)
#define ROUTES_EVERY 12 /* health checks that pass */
#define LOAD_SLOW_MS 30000
#define RESOLVE_RETRY_MS 2000

static enum bt_health health_of(const bt_worker_watch_t *watch)
{
    return (enum bt_health) atomic_load_explicit(&watch->worker->health, memory_order_relaxed);
}

/* ---- connections ---- */

/* w: whose session it is; NULL = plain. */
static int point_upstream(bt_upstream_t **up, bt_loop_t *loop, const struct sockaddr_storage *addr,
                          const bt_worker_t *w)
{
    bt_upstream_config_t config = {.idle_max = PROBE_IDLE_MAX};

    if (w != NULL) {
        config.tls = w->tls;
        config.tls_name = bt_worker_tls_name(w);
    }
    if (*up == NULL)
        return bt_upstream_new(up, loop, (const struct sockaddr *) addr, &config);
    bt_upstream_set_addr(*up, (const struct sockaddr *) addr);
    return 0;
}

static bool has_bootstrap(const bt_worker_t *w)
{
    return ((w->engine == BT_ENGINE_SGLANG && w->spec.role == BT_ROLE_PREFILL) ||
            w->asks_bootstrap) &&
           w->spec.bootstrap_port > 0;
}

/* Where checks are off, one that tells its engine ids is checked all the same: it cannot serve without. */
static bool is_checked(const bt_worker_watch_t *watch)
{
    return !watch->all->config.disabled || watch->worker->asks_bootstrap;
}

/* Upstreams exist and point to the worker's present address. BT_E_RESOLVE while there is none. */
static int ensure_upstreams(bt_worker_watch_t *watch)
{
    bt_worker_t *w = watch->worker;
    struct sockaddr_storage addr;
    unsigned version = atomic_load(&w->addr_version);
    if (watch->up != NULL && watch->addr_version == version)
        return 0;
    if (!bt_worker_get_addr(w, &addr))
        return BT_E_RESOLVE;
    int rc = point_upstream(&watch->up, watch->all->loop, &addr, watch->worker);
    if (rc == 0 && has_bootstrap(w)) {
        bt_network_set_port(&addr, (unsigned) w->spec.bootstrap_port);
        rc = point_upstream(&watch->boot_up, watch->all->loop, &addr, NULL);
    }
    if (rc == 0)
        watch->addr_version = version;
    return rc;
}

static const char *key_for(const bt_worker_watch_t *watch)
{
    return watch->worker->spec.api_key != NULL ? watch->worker->spec.api_key : watch->all->api_key;
}

/* ---- vLLM's optional routes ---- */

static const struct {
    unsigned bit;
    const char *path;
} optional_routes[] = {{BT_OPTIONAL_TOKENS, "/inference/v1/generate"},
                       {BT_OPTIONAL_RENDER, "/v1/completions/render"}};
#define ROUTE_COUNT (sizeof optional_routes / sizeof optional_routes[0])

static void ask_route(bt_worker_watch_t *watch);

static void note_route(bt_worker_watch_t *watch, bool is_off)
{
    bt_worker_t *w = watch->worker;
    const unsigned bit = optional_routes[watch->route].bit;
    const unsigned old =
        is_off ? atomic_fetch_or(&w->routes_off, bit) : atomic_fetch_and(&w->routes_off, ~bit);

    if (is_off != ((old & bit) != 0))
        bt_log_info("cluster", "worker %s %s %s%s", w->name, is_off ? "does not serve" : "serves",
                    optional_routes[watch->route].path,
                    is_off ? ": start it with --enable-scale-out if it shall" : "");
}

/* They take POST only: a GET is a 405 where they are, a 404 where they are not, and nothing is computed. One that is not answered
 * says nothing. */
static void on_route_probe(bt_probe_t *p, int rc)
{
    bt_worker_watch_t *watch = bt_container_of(p, bt_worker_watch_t, routes);

    if (rc == 0)
        note_route(watch, p->status == 404);
    if (++watch->route < ROUTE_COUNT)
        ask_route(watch);
}

static void ask_route(bt_worker_watch_t *watch)
{
    bt_probe_target_t target = {.up = watch->up,
                                .authority = watch->worker->authority,
                                .base_path = watch->worker->base_path,
                                .path = optional_routes[watch->route].path,
                                .api_key = key_for(watch)};

    (void) bt_probe_start(&watch->routes, &target, watch->all->config.timeout_ms, HEALTH_BODY_MAX,
                          on_route_probe);
}

static void ask_routes(bt_worker_watch_t *watch)
{
    const bool is_vllm =
        watch->worker->engine == BT_ENGINE_VLLM || watch->worker->engine == BT_ENGINE_VLLM_ASCEND;

    if (!is_vllm || watch->routes.state != BT_PROBE_IDLE)
        return;
    if (watch->routes_in > 0) {
        watch->routes_in--;
        return;
    }
    watch->routes_in = ROUTES_EVERY - 1;
    watch->route = 0;
    ask_route(watch);
}

/* ---- health ---- */

static void arm_health(bt_worker_watch_t *watch, uint64_t ms)
{
    watch->health_due_ms = bt_clock_ms() + ms;
    bt_timer_start(&watch->health_timer, ms);
}

/* Somewhat less than the interval, so that workers added together drift apart. */
static uint64_t jitter(uint64_t ms)
{
    return ms - bt_rand_below(ms / 16 + 1);
}

/* The interval runs from check to check, however long one takes: a hung worker is found in time. */
static void arm_next_health(bt_worker_watch_t *watch)
{
    const bt_monitor_config_t *config = &watch->all->config;
    uint64_t spent_ms = bt_clock_ms() - watch->health_began_ms;
    uint64_t ms = jitter(config->health.interval_ms);
    if (health_of(watch) != BT_HEALTH_UP)
        ms = config->startup_interval_ms;
    else
        ms = ms > spent_ms ? ms - spent_ms : 0;
    arm_health(watch, ms);
}

static void end_health(bt_worker_watch_t *watch, const char *where, int rc)
{
    bt_worker_t *w = watch->worker;
    const bt_probe_t *p = &watch->health;
    char why[256];
    enum bt_verdict verdict = bt_health_judge(w, rc, p->status, bt_text_str(&p->body));
    if (rc < 0)
        snprintf(why, sizeof why, "%s: %s%s%s", where, bt_err_text(rc),
                 rc == BT_E_TLS && p->call.why != NULL ? ": " : "",
                 rc == BT_E_TLS && p->call.why != NULL ? p->call.why : "");
    else
        snprintf(why, sizeof why, "%s answered %u%s", where, p->status,
                 verdict == BT_VERDICT_SCALING ? ", it is being scaled" : "");
    if (rc == BT_E_CONNECT || rc == BT_E_CONNECT_TIMEOUT || rc == BT_E_TLS)
        atomic_store(&w->resolve_soon, true);
    uint64_t now_ms = bt_clock_ms();
    bt_health_count(&watch->track, w, verdict, why, watch->health_began_ms, now_ms,
                    &watch->all->config.health);
    if (verdict == BT_VERDICT_OK)
        ask_routes(watch);
    else
        watch->routes_in = 0; /* it may be another process the next time */
    bt_loss_note(&watch->all->losses, &watch->loss, verdict, watch->health_began_ms, now_ms);
    arm_next_health(watch);
}

static void on_boot_probe(bt_probe_t *p, int rc)
{
    bt_worker_watch_t *watch = bt_container_of(p, bt_worker_watch_t, health);
    const bool asks = watch->worker->asks_bootstrap;

    if (asks && rc == 0 && p->status == 200)
        rc = p->body.len < QUERY_BODY_MAX ? bt_engine_ids_read(watch->worker, bt_text_str(&p->body))
                                          : BT_E_LIMIT;
    end_health(watch, asks ? "engine ids of the bootstrap port's /query" : "bootstrap port", rc);
}

static void start_boot_probe(bt_worker_watch_t *watch)
{
    const bt_worker_t *w = watch->worker;
    char authority[300];
    const char *format = strchr(w->host, ':') != NULL ? "[%s]:%d" : "%s:%d";
    snprintf(authority, sizeof authority, format, w->host, w->spec.bootstrap_port);
    bt_probe_target_t target = {.up = watch->boot_up,
                                .authority = authority,
                                .base_path = "",
                                .path = w->asks_bootstrap ? "/query" : "/health",
                                .api_key = NULL};
    int rc = bt_probe_start(&watch->health, &target, watch->all->config.timeout_ms,
                            w->asks_bootstrap ? QUERY_BODY_MAX : HEALTH_BODY_MAX, on_boot_probe);
    if (rc < 0)
        end_health(watch, "bootstrap port", rc);
}

static void on_health_probe(bt_probe_t *p, int rc)
{
    bt_worker_watch_t *watch = bt_container_of(p, bt_worker_watch_t, health);
    if (p->began_ms > watch->health_began_ms)
        watch->health_began_ms = p->began_ms; /* it may have waited for a free slot */
    if (rc == 0 && p->status >= 200 && p->status < 300 && has_bootstrap(watch->worker))
        start_boot_probe(watch);
    else
        end_health(watch, "health check", rc);
}

static void start_health(bt_timer_t *timer)
{
    bt_worker_watch_t *watch = bt_container_of(timer, bt_worker_watch_t, health_timer);
    bt_worker_watches_t *all = watch->all;
    int rc = ensure_upstreams(watch);
    if (rc == BT_E_RESOLVE)
        return; /* on_resolved goes on */
    bt_probe_target_t target = {.up = watch->up,
                                .authority = watch->worker->authority,
                                .base_path = watch->worker->base_path,
                                .path = all->path,
                                .api_key = key_for(watch)};
    watch->health_began_ms = bt_clock_ms();
    if (rc == 0)
        rc = bt_probe_start(&watch->health, &target, all->config.timeout_ms, HEALTH_BODY_MAX,
                            on_health_probe);
    if (rc < 0)
        end_health(watch, "health check", rc);
}

/* ---- load ---- */

static void arm_load(bt_worker_watch_t *watch, uint64_t ms)
{
    if (watch->all->config.load_interval_ms > 0)
        bt_timer_start(&watch->load_timer, ms);
}

/* The engine is not named: the first answers tell. True = ask again, elsewhere. */
static bool learn_source(bt_worker_watch_t *watch, int rc)
{
    const bt_probe_t *p = &watch->load;
    if (watch->source != BT_LOAD_UNKNOWN || rc < 0)
        return false;
    watch->source = p->status == 200 ? bt_load_detect(bt_text_str(&p->body)) : BT_LOAD_UNKNOWN;
    if (watch->source == BT_LOAD_SGLANG_LOADS)
        return true;
    /* SGLang without --enable-metrics has no /metrics but reports its loads all the same. */
    if (watch->source != BT_LOAD_UNKNOWN || p->status != 404 || watch->has_tried_loads)
        return false;
    watch->has_tried_loads = true;
    watch->source = BT_LOAD_SGLANG_LOADS;
    return true;
}

static int read_sample(bt_worker_watch_t *watch)
{
    bt_worker_t *w = watch->worker;
    bt_str_t body = bt_text_str(&watch->load.body);
    if (body.n >= LOAD_BODY_MAX)
        return BT_E_LIMIT; /* cut: sums would be wrong */
    int rc = watch->source == BT_LOAD_SGLANG_LOADS
                 ? bt_load_read_loads(body, w->spec.dp_rank, &w->load)
                 : bt_load_read_metrics(body, w->spec.dp_rank, &w->load);
    if (rc < 0)
        return rc;
    atomic_store_explicit(&w->load.started_since, 0, memory_order_relaxed);
    atomic_store_explicit(&w->load.at_ms, bt_clock_ms(), memory_order_release);
    return 0;
}

/* When to ask next, counted from the last question. */
static uint64_t judge_load(bt_worker_watch_t *watch, int rc)
{
    uint64_t normal_ms = watch->all->config.load_interval_ms;
    uint64_t slow_ms = LOAD_SLOW_MS > normal_ms ? LOAD_SLOW_MS : normal_ms;
    if (learn_source(watch, rc))
        return 0;
    if (rc < 0)
        return normal_ms;
    bool is_absent = watch->load.status >= 400 && watch->load.status < 500;
    if (!is_absent && watch->load.status != 200)
        return normal_ms;
    if (!is_absent && read_sample(watch) == 0)
        return normal_ms;
    watch->source = bt_load_source_of(watch->worker->engine); /* a guess that failed is not kept */
    return slow_ms;
}

static void on_load_probe(bt_probe_t *p, int rc)
{
    bt_worker_watch_t *watch = bt_container_of(p, bt_worker_watch_t, load);
    uint64_t ms = judge_load(watch, rc), spent_ms = bt_clock_ms() - watch->load_began_ms;
    ms = jitter(ms);
    arm_load(watch, ms > spent_ms ? ms - spent_ms : 0);
}

static void start_load(bt_timer_t *timer)
{
    bt_worker_watch_t *watch = bt_container_of(timer, bt_worker_watch_t, load_timer);
    bt_worker_watches_t *all = watch->all;
    enum bt_health health = health_of(watch);
    watch->load_began_ms = bt_clock_ms();
    bool is_sglang = watch->source == BT_LOAD_SGLANG_LOADS;
    bt_probe_target_t target = {.authority = watch->worker->authority,
                                .base_path = watch->worker->base_path,
                                .path = is_sglang ? "/v1/loads?include=core" : "/metrics",
                                .api_key = key_for(watch)};
    int rc =
        health == BT_HEALTH_UP || health == BT_HEALTH_DRAIN ? ensure_upstreams(watch) : BT_E_AGAIN;
    target.up = watch->up;
    if (rc == 0)
        rc = bt_probe_start(&watch->load, &target, all->config.load_timeout_ms, LOAD_BODY_MAX,
                            on_load_probe);
    if (rc < 0)
        arm_load(watch, all->config.load_interval_ms);
}

/* ---- names ---- */

static void free_watch(bt_worker_watch_t *watch)
{
    bt_worker_unref(watch->worker);
    free(watch);
}

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    bt_worker_watch_t *watch = bt_container_of(r, bt_worker_watch_t, resolve);
    watch->is_resolving = false;
    if (watch->all == NULL) {
        free_watch(watch);
        return;
    }
    const bt_monitor_config_t *config = &watch->all->config;
    bt_worker_t *w = watch->worker;
    bool had_addr = atomic_load(&w->has_addr);
    if (rc == 0)
        bt_worker_set_addr(w, addr);
    else if (!had_addr)
        bt_health_count(&watch->track, w, BT_VERDICT_FAIL, bt_err_text(rc), bt_clock_ms(),
                        bt_clock_ms(), &config->health);
    if (rc == 0 && !had_addr && !is_checked(watch))
        bt_worker_set_health(w, BT_HEALTH_UP, "health checks are off");
    if (rc == 0 && !had_addr && is_checked(watch))
        arm_health(watch, 0);
    bool has_addr = rc == 0 || had_addr;
    bt_timer_start(&watch->resolve_timer,
                   has_addr ? config->resolve_interval_ms : RESOLVE_RETRY_MS);
}

static void start_resolve(bt_timer_t *timer)
{
    bt_worker_watch_t *watch = bt_container_of(timer, bt_worker_watch_t, resolve_timer);
    atomic_store(&watch->worker->resolve_soon, false);
    if (watch->is_resolving)
        return;
    const bt_worker_t *w = watch->worker;
    if (bt_resolve_start(&watch->resolve, watch->all->loop, w->host, w->port, on_resolved) == 0)
        watch->is_resolving = true;
    else
        bt_timer_start(&watch->resolve_timer, RESOLVE_RETRY_MS);
}

static bool is_name(const bt_worker_t *w)
{
    struct sockaddr_storage addr;
    return strcasecmp(w->host, "localhost") != 0 && bt_resolve_numeric(w->host, w->port, &addr) < 0;
}

/* ---- life ---- */

/* Many that come together are asked apart: 30 us of this loop each. */
static void begin_watch(bt_worker_watch_t *watch)
{
    const bt_monitor_config_t *config = &watch->all->config;
    bool has_addr = atomic_load(&watch->worker->has_addr);
    if (!is_checked(watch) && has_addr)
        bt_worker_set_health(watch->worker, BT_HEALTH_UP, "health checks are off");
    if (is_checked(watch) && has_addr)
        arm_health(watch, 0);
    if (is_name(watch->worker))
        bt_timer_start(&watch->resolve_timer, has_addr ? config->resolve_interval_ms : 0);
    arm_load(watch, config->load_interval_ms - bt_rand_below(config->load_interval_ms / 2 + 1));
}

bt_worker_watch_t *bt_worker_watch_new(bt_worker_watches_t *all, bt_worker_t *w)
{
    bt_worker_watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return NULL;
    watch->all = all;
    watch->worker = bt_worker_ref(w);
    watch->source = bt_load_source_of(w->engine);
    bt_timer_init(all->loop, &watch->health_timer, start_health);
    bt_timer_init(all->loop, &watch->load_timer, start_load);
    bt_timer_init(all->loop, &watch->resolve_timer, start_resolve);
    bt_probe_init(&watch->health, &all->limit);
    bt_probe_init(&watch->load, &all->limit);
    bt_probe_init(&watch->routes, &all->limit);
    bt_loss_watch(&all->losses, &watch->loss, w);
    begin_watch(watch);
    return watch;
}

void bt_worker_watch_stop(bt_worker_watch_t *watch)
{
    bt_loss_unwatch(&watch->loss);
    bt_timer_stop(&watch->health_timer);
    bt_timer_stop(&watch->load_timer);
    bt_timer_stop(&watch->resolve_timer);
    bt_probe_fini(&watch->health);
    bt_probe_fini(&watch->load);
    bt_probe_fini(&watch->routes);
    if (watch->up != NULL)
        bt_upstream_free(watch->up);
    if (watch->boot_up != NULL)
        bt_upstream_free(watch->boot_up);
    watch->all = NULL;
    if (watch->is_resolving)
        bt_resolve_cancel(&watch->resolve);
    else
        free_watch(watch);
}

/* ---- what others have changed ---- */

/* Health that others than our own probes have changed. */
static void follow_passive(bt_worker_watch_t *watch, uint64_t now_ms)
{
    const bt_monitor_config_t *config = &watch->all->config;
    enum bt_health health = health_of(watch);
    if (health == BT_HEALTH_UP || health == BT_HEALTH_UNKNOWN) {
        watch->taken_down_ms = 0;
        return;
    }
    if (watch->taken_down_ms == 0)
        watch->taken_down_ms = now_ms;
    if (!is_checked(watch)) {
        if (now_ms - watch->taken_down_ms >= config->health.interval_ms)
            bt_worker_set_health(watch->worker, BT_HEALTH_UP, "health checks are off: tried again");
        return;
    }
    bool is_far = watch->health_due_ms > now_ms + config->startup_interval_ms;
    if (is_far && bt_timer_active(&watch->health_timer))
        arm_health(watch, config->startup_interval_ms);
}

void bt_worker_watch_look(bt_worker_watch_t *watch, uint64_t now_ms)
{
    bt_worker_t *w = watch->worker;

    follow_passive(watch, now_ms);
    if (atomic_load(&w->resolve_soon) && !watch->is_resolving && is_name(w))
        bt_timer_start(&watch->resolve_timer, 0);
    if (atomic_load(&w->query_soon) && bt_timer_active(&watch->health_timer)) {
        atomic_store(&w->query_soon, false);
        arm_health(watch, 0);
    }
}

void bt_worker_watch_check(bt_worker_watch_t *watch)
{
    const uint64_t soon_ms = bt_clock_ms() + watch->all->config.startup_interval_ms;

    if (bt_timer_active(&watch->health_timer) && watch->health_due_ms > soon_ms)
        arm_health(watch, 0);
}
