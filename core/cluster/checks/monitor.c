#include "cluster/checks/monitor.h"

#include "base/err.h"
#include "base/log.h"
#include "cluster/checks/worker_watch.h"

#include <stdlib.h>

/* One watch per worker (worker_watch.h). A sweep once a second catches what comes from other threads without mail: passive signals (worker
 * atomics) and a breaker whose time is over, which makes a worker usable without any event. */

#define SWEEP_MS BT_LOSS_HEARTBEAT_MS

struct bt_monitor {
    bt_worker_watches_t all;
    bt_workers_t *workers;
    bt_list_t watches;
    bt_worker_watch_t **by_slot; /* of the workers that are watched */
    unsigned slot_count;
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

/* ---- watches ---- */

static int begin_watch(bt_monitor_t *m, bt_worker_t *w)
{
    bt_worker_watch_t *watch = bt_worker_watch_new(&m->all, w);

    if (watch == NULL)
        return BT_E_NOMEM;
    watch->life = atomic_load(&w->warm.life);
    bt_list_push(&m->watches, &watch->link);
    m->by_slot[w->slot] = watch;
    return 0;
}

static void end_watch(bt_monitor_t *m, bt_worker_watch_t *watch)
{
    m->by_slot[watch->worker->slot] = NULL;
    bt_list_remove(&watch->link);
    bt_worker_watch_stop(watch);
}

/* It is not in the set any more: where its process has ended another may answer. Where it goes on as another object a loop that has not
 * heard of that may still begin a leg with this one, so it is the next sweep that ends its watch. */
static void leave(bt_monitor_t *m, bt_worker_watch_t *watch)
{
    const bt_worker_t *w = watch->worker;
    const bool has_ended = atomic_load(&w->has_ended);

    watch->has_left = true;
    if (has_ended)
        bt_loss_ended(&m->all.losses, watch->worker, bt_clock_ms());
    if (has_ended || (!bt_worker_has_legs(w) && !atomic_load(&w->is_succeeded)))
        end_watch(m, watch);
}

/* ---- sweep ---- */

static void follow_life(const bt_monitor_t *m, bt_worker_watch_t *watch)
{
    const unsigned life = atomic_load(&watch->worker->warm.life);

    if (life != watch->life && m->on_restarted != NULL)
        m->on_restarted(m->restarted_user, watch->worker);
    watch->life = life;
}

static void sweep_one(bt_monitor_t *m, bt_worker_watch_t *watch, uint64_t now_ms)
{
    if (watch->has_left && !bt_worker_has_legs(watch->worker)) {
        end_watch(m, watch);
        return;
    }
    bt_worker_watch_look(watch, now_ms);
    follow_life(m, watch);
    const bool usable = bt_worker_usable(watch->worker, now_ms);
    if (usable != watch->was_usable)
        bt_workers_changed();
    watch->was_usable = usable;
}

static void sweep(bt_timer_t *timer)
{
    bt_monitor_t *m = bt_container_of(timer, bt_monitor_t, sweep_timer);
    uint64_t now_ms = bt_clock_ms();
    bt_list_t *it, *tmp;
    bt_loss_heartbeat(&m->all.losses, now_ms);
    bt_list_each (&m->watches, it, tmp)
        sweep_one(m, bt_container_of(it, bt_worker_watch_t, link), now_ms);
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
    m->all.loop = loop;
    m->all.config = *config;
    m->all.path = copy_or_null(config->path != NULL ? config->path : "/health");
    m->all.api_key = copy_or_null(config->api_key);
    if (m->all.path == NULL || (config->api_key != NULL && m->all.api_key == NULL)) {
        free(m->all.path);
        free(m);
        return BT_E_NOMEM;
    }
    bt_list_init(&m->watches);
    bt_loss_init(&m->all.losses, &m->all.config.health);
    bt_probe_limit_init(&m->all.limit, BT_MONITOR_PROBES_MAX);
    bt_timer_init(loop, &m->sweep_timer, sweep);
    bt_timer_start(&m->sweep_timer, SWEEP_MS);
    *monitor_p = m;
    return 0;
}

static int make_room(bt_monitor_t *m, unsigned slot_count)
{
    if (slot_count <= m->slot_count)
        return 0;
    bt_worker_watch_t **by_slot = realloc(m->by_slot, slot_count * sizeof(bt_worker_watch_t *));
    if (by_slot == NULL)
        return BT_E_NOMEM;
    memset(by_slot + m->slot_count, 0, (slot_count - m->slot_count) * sizeof(bt_worker_watch_t *));
    m->by_slot = by_slot;
    m->slot_count = slot_count;
    return 0;
}

/* Begins the watches of new ones. stays: by slot, whose watch goes on. */
static int take_workers(bt_monitor_t *m, const bt_workers_t *workers, bool *stays)
{
    int rc = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            bt_worker_t *w = workers->pools[i].all.items[j];
            stays[w->slot] = true;
            if (m->by_slot[w->slot] == NULL && begin_watch(m, w) < 0)
                rc = BT_E_NOMEM;
        }
    return rc;
}

static void leave_others(bt_monitor_t *m, const bool *stays)
{
    const bt_workers_t *before = m->workers;

    for (unsigned i = 0; before != NULL && i < before->pool_count; i++)
        for (unsigned j = 0; j < before->pools[i].all.count; j++) {
            const unsigned slot = before->pools[i].all.items[j]->slot;
            bt_worker_watch_t *watch = m->by_slot[slot];
            if (watch != NULL && !stays[slot])
                leave(m, watch);
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
    m->all.losses.on_lost = on_lost;
    m->all.losses.user = user;
}

void bt_monitor_on_restarted(bt_monitor_t *m, void (*on_restarted)(void *user, bt_worker_t *w),
                             void *user)
{
    m->on_restarted = on_restarted;
    m->restarted_user = user;
}

void bt_monitor_gone(bt_monitor_t *m, bt_worker_t *w, const char *why)
{
    bt_loss_gone(&m->all.losses, w, why, bt_clock_ms());
}

void bt_monitor_place_ended(bt_monitor_t *m, const char *host, unsigned port)
{
    bt_list_t *it, *tmp;

    bt_list_each (&m->watches, it, tmp) {
        bt_worker_watch_t *watch = bt_container_of(it, bt_worker_watch_t, link);
        const bt_worker_t *w = watch->worker;
        if (!watch->has_left || w->port != port || strcasecmp(w->host, host) != 0)
            continue;
        atomic_store(&watch->worker->has_ended, true);
        leave(m, watch);
    }
}

void bt_monitor_check(bt_monitor_t *m, const bt_worker_t *w)
{
    bt_worker_watch_t *watch = w->slot < m->slot_count ? m->by_slot[w->slot] : NULL;

    if (!m->all.config.disabled && watch != NULL && watch->worker == w)
        bt_worker_watch_check(watch);
}

void bt_monitor_stop(bt_monitor_t *m)
{
    bt_list_t *it, *tmp;
    bt_timer_stop(&m->sweep_timer);
    m->all.limit.max = 0; /* nothing more goes through while the watches go */
    bt_list_each (&m->watches, it, tmp)
        end_watch(m, bt_container_of(it, bt_worker_watch_t, link));
    bt_workers_unref(m->workers);
    free(m->by_slot);
    free(m->all.path);
    free(m->all.api_key);
    free(m);
}
