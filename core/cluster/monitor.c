#include "cluster/monitor.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "cluster/engine_ids.h"
#include "cluster/health.h"
#include "cluster/load.h"
#include "cluster/loss.h"
#include "cluster/probe.h"
#include "loop/network.h"
#include "loop/resolve.h"

#include <stdio.h>
#include <stdlib.h>

/* One watch per worker, each with three clocks of its own (health, load, name) and a reference to the worker:
 *
 *   health timer -> probe worker -> (SGLang prefill: probe bootstrap port) -> bt_health_count -> health timer
 *   health is up, now and then -> probe vLLM's optional routes -> worker->routes_off
 *   load timer   -> probe the engine's report -> sample -> load timer
 *   resolve timer -> getaddrinfo -> address -> resolve timer
 *
 * A sweep once a second catches what comes from other threads without mail: passive signals (worker atomics) and a
 * breaker whose time is over, which makes a worker usable without any event. */

#define PROBE_IDLE_MAX 8 /* connections of its own to one worker */
#define HEALTH_BODY_MAX ((size_t) 4096)
#define QUERY_BODY_MAX ((size_t) 1 << 20)
#define LOAD_BODY_MAX ((size_t) 8 << 20)
#define ROUTES_EVERY 12 /* health checks that pass */
#define LOAD_SLOW_MS 30000
#define SWEEP_MS BT_LOSS_HEARTBEAT_MS
#define RESOLVE_RETRY_MS 2000

typedef struct watch {
    bt_list_t link;        /* in monitor->watches */
    bt_monitor_t *monitor; /* NULL: stopped, waits only for its lookup to end */
    bt_worker_t *worker;
    bt_upstream_t *up, *boot_up;
    unsigned addr_version; /* of the upstreams */
    unsigned life;         /* of its engine, at the last sweep */
    bt_timer_t health_timer, load_timer, resolve_timer;
    uint64_t health_due_ms, health_began_ms, load_began_ms, taken_down_ms;
    bt_probe_t health, load, routes;
    unsigned routes_in, route; /* health checks until routes are asked for; the one in question */
    bt_health_track_t track;
    bt_loss_track_t loss;
    enum bt_load_source source;
    bool has_tried_loads;
    bool was_usable;
    bool has_left; /* the set; it waits for the worker's last leg */
    bool is_resolving;
    bt_resolve_t resolve;
} watch_t;

struct bt_monitor {
    bt_loop_t *loop;
    bt_monitor_config_t config;
    char *path, *api_key;
    bt_workers_t *workers;
    bt_list_t watches;
    watch_t **by_slot; /* of the workers that are watched */
    unsigned slot_count;
    bt_probe_limit_t limit;
    bt_loss_book_t losses;
    void (*on_restarted)(void *user, bt_worker_t *w);
    void *restarted_user;
    bt_timer_t sweep_timer;
};

void bt_monitor_config_defaults(bt_monitor_config_t *config)
{
    *config = (bt_monitor_config_t){
        .health = {.interval_ms = 5000, .failures = 3, .successes = 2},
        .startup_interval_ms = 1000,
        .timeout_ms = 2000,
        .load_interval_ms = 1000,
        .load_timeout_ms = 1000,
        .resolve_interval_ms = 30000,
    };
}

static enum bt_health health_of(const watch_t *watch)
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
static bool is_checked(const watch_t *watch)
{
    return !watch->monitor->config.disabled || watch->worker->asks_bootstrap;
}

/* Upstreams exist and point to the worker's present address. BT_E_RESOLVE while there is none. */
static int ensure_upstreams(watch_t *watch)
{
    bt_worker_t *w = watch->worker;
    struct sockaddr_storage addr;
    unsigned version = atomic_load(&w->addr_version);
    if (watch->up != NULL && watch->addr_version == version)
        return 0;
    if (!bt_worker_get_addr(w, &addr))
        return BT_E_RESOLVE;
    int rc = point_upstream(&watch->up, watch->monitor->loop, &addr, watch->worker);
    if (rc == 0 && has_bootstrap(w)) {
        bt_network_set_port(&addr, (unsigned) w->spec.bootstrap_port);
        rc = point_upstream(&watch->boot_up, watch->monitor->loop, &addr, NULL);
    }
    if (rc == 0)
        watch->addr_version = version;
    return rc;
}

static const char *key_for(const watch_t *watch)
{
    return watch->worker->spec.api_key != NULL ? watch->worker->spec.api_key
                                               : watch->monitor->api_key;
}

/* ---- vLLM's optional routes ---- */

static const struct {
    unsigned bit;
    const char *path;
} optional_routes[] = {{BT_OPTIONAL_TOKENS, "/inference/v1/generate"},
                       {BT_OPTIONAL_RENDER, "/v1/completions/render"}};
#define ROUTE_COUNT (sizeof optional_routes / sizeof optional_routes[0])

static void ask_route(watch_t *watch);

static void note_route(watch_t *watch, bool is_off)
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
    watch_t *watch = bt_container_of(p, watch_t, routes);

    if (rc == 0)
        note_route(watch, p->status == 404);
    if (++watch->route < ROUTE_COUNT)
        ask_route(watch);
}

static void ask_route(watch_t *watch)
{
    bt_probe_target_t target = {.up = watch->up,
                                .authority = watch->worker->authority,
                                .base_path = watch->worker->base_path,
                                .path = optional_routes[watch->route].path,
                                .api_key = key_for(watch)};

    (void) bt_probe_start(&watch->routes, &target, watch->monitor->config.timeout_ms,
                          HEALTH_BODY_MAX, on_route_probe);
}

static void ask_routes(watch_t *watch)
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

static void arm_health(watch_t *watch, uint64_t ms)
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
static void arm_next_health(watch_t *watch)
{
    const bt_monitor_config_t *config = &watch->monitor->config;
    uint64_t spent_ms = bt_clock_ms() - watch->health_began_ms;
    uint64_t ms = jitter(config->health.interval_ms);
    if (health_of(watch) != BT_HEALTH_UP)
        ms = config->startup_interval_ms;
    else
        ms = ms > spent_ms ? ms - spent_ms : 0;
    arm_health(watch, ms);
}

static void end_health(watch_t *watch, const char *where, int rc)
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
                    &watch->monitor->config.health);
    if (verdict == BT_VERDICT_OK)
        ask_routes(watch);
    else
        watch->routes_in = 0; /* it may be another process the next time */
    bt_loss_note(&watch->monitor->losses, &watch->loss, verdict, watch->health_began_ms, now_ms);
    arm_next_health(watch);
}

static void on_boot_probe(bt_probe_t *p, int rc)
{
    watch_t *watch = bt_container_of(p, watch_t, health);
    const bool asks = watch->worker->asks_bootstrap;

    if (asks && rc == 0 && p->status == 200)
        rc = p->body.len < QUERY_BODY_MAX ? bt_engine_ids_read(watch->worker, bt_text_str(&p->body))
                                          : BT_E_LIMIT;
    end_health(watch, asks ? "engine ids of the bootstrap port's /query" : "bootstrap port", rc);
}

static void start_boot_probe(watch_t *watch)
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
    int rc = bt_probe_start(&watch->health, &target, watch->monitor->config.timeout_ms,
                            w->asks_bootstrap ? QUERY_BODY_MAX : HEALTH_BODY_MAX, on_boot_probe);
    if (rc < 0)
        end_health(watch, "bootstrap port", rc);
}

static void on_health_probe(bt_probe_t *p, int rc)
{
    watch_t *watch = bt_container_of(p, watch_t, health);
    if (p->began_ms > watch->health_began_ms)
        watch->health_began_ms = p->began_ms; /* it may have waited for a free slot */
    if (rc == 0 && p->status >= 200 && p->status < 300 && has_bootstrap(watch->worker))
        start_boot_probe(watch);
    else
        end_health(watch, "health check", rc);
}

static void start_health(bt_timer_t *timer)
{
    watch_t *watch = bt_container_of(timer, watch_t, health_timer);
    bt_monitor_t *m = watch->monitor;
    int rc = ensure_upstreams(watch);
    if (rc == BT_E_RESOLVE)
        return; /* on_resolved goes on */
    bt_probe_target_t target = {.up = watch->up,
                                .authority = watch->worker->authority,
                                .base_path = watch->worker->base_path,
                                .path = m->path,
                                .api_key = key_for(watch)};
    watch->health_began_ms = bt_clock_ms();
    if (rc == 0)
        rc = bt_probe_start(&watch->health, &target, m->config.timeout_ms, HEALTH_BODY_MAX,
                            on_health_probe);
    if (rc < 0)
        end_health(watch, "health check", rc);
}

/* ---- load ---- */

static void arm_load(watch_t *watch, uint64_t ms)
{
    if (watch->monitor->config.load_interval_ms > 0)
        bt_timer_start(&watch->load_timer, ms);
}

/* The engine is not named: the first answers tell. True = ask again, elsewhere. */
static bool learn_source(watch_t *watch, int rc)
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

static int read_sample(watch_t *watch)
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
static uint64_t judge_load(watch_t *watch, int rc)
{
    uint64_t normal_ms = watch->monitor->config.load_interval_ms;
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
    watch_t *watch = bt_container_of(p, watch_t, load);
    uint64_t ms = judge_load(watch, rc), spent_ms = bt_clock_ms() - watch->load_began_ms;
    ms = jitter(ms);
    arm_load(watch, ms > spent_ms ? ms - spent_ms : 0);
}

static void start_load(bt_timer_t *timer)
{
    watch_t *watch = bt_container_of(timer, watch_t, load_timer);
    bt_monitor_t *m = watch->monitor;
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
        rc = bt_probe_start(&watch->load, &target, m->config.load_timeout_ms, LOAD_BODY_MAX,
                            on_load_probe);
    if (rc < 0)
        arm_load(watch, m->config.load_interval_ms);
}

/* ---- names ---- */

static void free_watch(watch_t *watch);

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    watch_t *watch = bt_container_of(r, watch_t, resolve);
    watch->is_resolving = false;
    if (watch->monitor == NULL) {
        free_watch(watch);
        return;
    }
    const bt_monitor_config_t *config = &watch->monitor->config;
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
    watch_t *watch = bt_container_of(timer, watch_t, resolve_timer);
    atomic_store(&watch->worker->resolve_soon, false);
    if (watch->is_resolving)
        return;
    const bt_worker_t *w = watch->worker;
    if (bt_resolve_start(&watch->resolve, watch->monitor->loop, w->host, w->port, on_resolved) == 0)
        watch->is_resolving = true;
    else
        bt_timer_start(&watch->resolve_timer, RESOLVE_RETRY_MS);
}

static bool is_name(const bt_worker_t *w)
{
    struct sockaddr_storage addr;
    return strcasecmp(w->host, "localhost") != 0 && bt_resolve_numeric(w->host, w->port, &addr) < 0;
}

/* ---- watches ---- */

static void free_watch(watch_t *watch)
{
    bt_worker_unref(watch->worker);
    free(watch);
}

/* Synchronous, but for a lookup in flight: its callback then frees. */
static void stop_watch(watch_t *watch)
{
    watch->monitor->by_slot[watch->worker->slot] = NULL;
    bt_list_remove(&watch->link);
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
    watch->monitor = NULL;
    if (watch->is_resolving)
        bt_resolve_cancel(&watch->resolve);
    else
        free_watch(watch);
}

static void begin_watch(watch_t *watch)
{
    const bt_monitor_config_t *config = &watch->monitor->config;
    bool has_addr = atomic_load(&watch->worker->has_addr);
    if (!is_checked(watch) && has_addr)
        bt_worker_set_health(watch->worker, BT_HEALTH_UP, "health checks are off");
    if (is_checked(watch) && has_addr)
        arm_health(watch, 0);
    if (is_name(watch->worker))
        bt_timer_start(&watch->resolve_timer, has_addr ? config->resolve_interval_ms : 0);
    /* Many that come together are asked apart: 30 us of this loop each. */
    arm_load(watch, config->load_interval_ms - bt_rand_below(config->load_interval_ms / 2 + 1));
}

static watch_t *new_watch(bt_monitor_t *m, bt_worker_t *w)
{
    watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return NULL;
    watch->monitor = m;
    watch->worker = bt_worker_ref(w);
    watch->life = atomic_load(&w->warm.life);
    watch->source = bt_load_source_of(w->engine);
    bt_timer_init(m->loop, &watch->health_timer, start_health);
    bt_timer_init(m->loop, &watch->load_timer, start_load);
    bt_timer_init(m->loop, &watch->resolve_timer, start_resolve);
    bt_probe_init(&watch->health, &m->limit);
    bt_probe_init(&watch->load, &m->limit);
    bt_probe_init(&watch->routes, &m->limit);
    bt_list_push(&m->watches, &watch->link);
    m->by_slot[w->slot] = watch;
    bt_loss_watch(&m->losses, &watch->loss, w);
    begin_watch(watch);
    return watch;
}

/* ---- sweep ---- */

/* Health that others than our own probes have changed. */
static void follow_passive(watch_t *watch, uint64_t now_ms)
{
    const bt_monitor_config_t *config = &watch->monitor->config;
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

static void follow_life(watch_t *watch)
{
    const bt_monitor_t *m = watch->monitor;
    const unsigned life = atomic_load(&watch->worker->warm.life);

    if (life != watch->life && m->on_restarted != NULL)
        m->on_restarted(m->restarted_user, watch->worker);
    watch->life = life;
}

static void sweep_one(watch_t *watch, uint64_t now_ms)
{
    if (watch->has_left && !bt_worker_has_legs(watch->worker)) {
        stop_watch(watch);
        return;
    }
    follow_passive(watch, now_ms);
    follow_life(watch);
    if (atomic_load(&watch->worker->resolve_soon) && !watch->is_resolving && is_name(watch->worker))
        bt_timer_start(&watch->resolve_timer, 0);
    if (atomic_load(&watch->worker->query_soon) && bt_timer_active(&watch->health_timer)) {
        atomic_store(&watch->worker->query_soon, false);
        arm_health(watch, 0);
    }
    bool usable = bt_worker_usable(watch->worker, now_ms);
    if (usable != watch->was_usable)
        bt_workers_changed();
    watch->was_usable = usable;
}

static void sweep(bt_timer_t *timer)
{
    bt_monitor_t *m = bt_container_of(timer, bt_monitor_t, sweep_timer);
    uint64_t now_ms = bt_clock_ms();
    bt_list_t *it, *tmp;
    bt_loss_heartbeat(&m->losses, now_ms);
    bt_list_each (&m->watches, it, tmp)
        sweep_one(bt_container_of(it, watch_t, link), now_ms);
    bt_timer_start(timer, SWEEP_MS);
}

/* ---- the public verbs ---- */

static char *copy_or_null(const char *s)
{
    return s != NULL ? bt_str_dup(bt_str(s)) : NULL;
}

int bt_monitor_start(bt_monitor_t **monitor_p, bt_loop_t *loop, const bt_monitor_config_t *config)
{
    bt_monitor_t *m = calloc(1, sizeof *m);
    if (m == NULL)
        return BT_E_NOMEM;
    m->loop = loop;
    m->config = *config;
    m->path = copy_or_null(config->path != NULL ? config->path : "/health");
    m->api_key = copy_or_null(config->api_key);
    if (m->path == NULL || (config->api_key != NULL && m->api_key == NULL)) {
        free(m->path);
        free(m);
        return BT_E_NOMEM;
    }
    bt_list_init(&m->watches);
    bt_loss_init(&m->losses, &m->config.health);
    bt_probe_limit_init(&m->limit, BT_MONITOR_PROBES_MAX);
    bt_timer_init(loop, &m->sweep_timer, sweep);
    bt_timer_start(&m->sweep_timer, SWEEP_MS);
    *monitor_p = m;
    return 0;
}

static int make_room(bt_monitor_t *m, unsigned slot_count)
{
    if (slot_count <= m->slot_count)
        return 0;
    watch_t **by_slot = realloc(m->by_slot, slot_count * sizeof(watch_t *));
    if (by_slot == NULL)
        return BT_E_NOMEM;
    memset(by_slot + m->slot_count, 0, (slot_count - m->slot_count) * sizeof(watch_t *));
    m->by_slot = by_slot;
    m->slot_count = slot_count;
    return 0;
}

/* It is not in the set any more: where its process has ended another may answer. */
static void leave(watch_t *watch)
{
    const bool has_ended = atomic_load(&watch->worker->has_ended);

    watch->has_left = true;
    if (has_ended)
        bt_loss_ended(&watch->monitor->losses, watch->worker, bt_clock_ms());
    if (has_ended || !bt_worker_has_legs(watch->worker))
        stop_watch(watch);
}

/* Begins the watches of new ones. stays: by slot, whose watch goes on. */
static int take_workers(bt_monitor_t *m, const bt_workers_t *workers, bool *stays)
{
    int rc = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            bt_worker_t *w = workers->pools[i].all.items[j];
            stays[w->slot] = true;
            if (m->by_slot[w->slot] == NULL && new_watch(m, w) == NULL)
                rc = BT_E_NOMEM;
        }
    return rc;
}

static void leave_others(const bt_monitor_t *m, const bool *stays)
{
    const bt_workers_t *before = m->workers;

    for (unsigned i = 0; before != NULL && i < before->pool_count; i++)
        for (unsigned j = 0; j < before->pools[i].all.count; j++) {
            const unsigned slot = before->pools[i].all.items[j]->slot;
            watch_t *watch = m->by_slot[slot];
            if (watch != NULL && !stays[slot])
                leave(watch);
        }
}

/* A worker's slot is its own while it is watched. Only those that come or go are touched: thousands of watches lie far apart in memory. */
void bt_monitor_set_workers(bt_monitor_t *m, bt_workers_t *workers)
{
    bool *stays = NULL;

    if (make_room(m, workers->slot_count) == 0)
        stays = calloc(m->slot_count + 1, sizeof *stays);
    if (stays == NULL) {
        bt_log_error("cluster", "out of memory: the new workers are not checked");
        return;
    }
    if (take_workers(m, workers, stays) < 0)
        bt_log_error("cluster", "out of memory: some workers are not checked");
    leave_others(m, stays);
    free(stays);
    bt_workers_ref(workers);
    bt_workers_unref(m->workers);
    m->workers = workers;
}

void bt_monitor_on_lost(bt_monitor_t *m, bt_loss_cb on_lost, void *user)
{
    m->losses.on_lost = on_lost;
    m->losses.user = user;
}

void bt_monitor_on_restarted(bt_monitor_t *m, void (*on_restarted)(void *user, bt_worker_t *w),
                             void *user)
{
    m->on_restarted = on_restarted;
    m->restarted_user = user;
}

void bt_monitor_gone(bt_monitor_t *m, bt_worker_t *w, const char *why)
{
    bt_loss_gone(&m->losses, w, why, bt_clock_ms());
}

void bt_monitor_place_ended(bt_monitor_t *m, const char *host, unsigned port)
{
    bt_list_t *it, *tmp;

    bt_list_each (&m->watches, it, tmp) {
        watch_t *watch = bt_container_of(it, watch_t, link);
        const bt_worker_t *w = watch->worker;
        if (!watch->has_left || w->port != port || strcasecmp(w->host, host) != 0)
            continue;
        atomic_store(&watch->worker->has_ended, true);
        leave(watch);
    }
}

void bt_monitor_check(bt_monitor_t *m, const bt_worker_t *w)
{
    uint64_t soon_ms = bt_clock_ms() + m->config.startup_interval_ms;
    bt_list_t *it, *tmp;
    if (m->config.disabled)
        return;
    bt_list_each (&m->watches, it, tmp) {
        watch_t *watch = bt_container_of(it, watch_t, link);
        if (watch->worker == w && bt_timer_active(&watch->health_timer) &&
            watch->health_due_ms > soon_ms)
            arm_health(watch, 0);
    }
}

void bt_monitor_stop(bt_monitor_t *m)
{
    bt_list_t *it, *tmp;
    bt_timer_stop(&m->sweep_timer);
    m->limit.max = 0; /* nothing more goes through while the watches go */
    bt_list_each (&m->watches, it, tmp)
        stop_watch(bt_container_of(it, watch_t, link));
    bt_workers_unref(m->workers);
    free(m->by_slot);
    free(m->path);
    free(m->api_key);
    free(m);
}
