/* worker.c - see worker.h.
 *
 *   open --die--> dead (answers 500 / 503) --a moment--> closed (connection refused) --reset--> open
 */
#include "worker.h"

#include "base/err.h"
#include "callback.h"
#include "events.h"
#include "held.h"
#include "job.h"
#include "kv.h"
#include "media.h"
#include "registrant.h"
#include "reply.h"
#include "rooms.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- listening ---- */

static void server_closed(void *arg)
{
    sim_world_let_go(arg);
}

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    (void) loop;
    bt_server_accept(user, fd, NULL);
}

static int listen_at(sim_worker_t *worker, unsigned *port, bt_server_t *server,
                     bt_listener_t **listener_p)
{
    int fd = bt_listener_bind(worker->options.host, *port, false, port);

    return fd < 0 ? fd
                  : bt_listener_start(listener_p, worker->world->loop, fd, NULL, on_accept, server);
}

static int make_server(sim_worker_t *worker, bt_server_t **server_p, const bt_server_ops_t *ops)
{
    static bt_server_config_t config;
    int rc;

    bt_server_config_defaults(&config);
    config.server_name = "uvicorn";
    config.idle_timeout_ms = 5000; /* as uvicorn */
    rc = bt_server_new(server_p, worker->world->loop, ops, &config, worker);
    worker->world->open_servers += rc == 0;
    return rc;
}

static bool has_bootstrap(const sim_worker_t *worker)
{
    return (worker->options.engine == SIM_SGLANG || worker->options.connector == SIM_MOONCAKE) &&
           worker->options.role == SIM_PREFILL;
}

static int open_ports(sim_worker_t *worker)
{
    int rc = make_server(worker, &worker->server, worker->world->servers->api);

    if (rc == 0)
        rc = listen_at(worker, &worker->port, worker->server, &worker->listener);
    if (rc == 0 && has_bootstrap(worker)) {
        rc = make_server(worker, &worker->bootstrap_server, worker->world->servers->bootstrap);
        if (rc == 0)
            rc = listen_at(worker, &worker->bootstrap_port, worker->bootstrap_server,
                           &worker->bootstrap_listener);
    }
    if (rc == 0 && worker->options.engine == SIM_VLLM && worker->options.connector != SIM_BATON) {
        worker->side_fd =
            bt_listener_bind("127.0.0.1", worker->side_port, false, &worker->side_port);
        rc = worker->side_fd < 0 ? worker->side_fd : 0;
    }
    return rc;
}

static void close_listener(bt_listener_t **listener)
{
    if (*listener != NULL)
        bt_listener_close(*listener);
    *listener = NULL;
}

static void close_server(sim_worker_t *worker, bt_server_t **server)
{
    bt_server_t *closing = *server;

    *server = NULL;
    if (closing != NULL)
        bt_server_close(closing, server_closed, worker->world);
}

static void cut_jobs(sim_worker_t *worker)
{
    while (!bt_list_empty(&worker->jobs))
        sim_job_cut(bt_container_of(worker->jobs.next, sim_job_t, link), false);
}

static void close_ports(sim_worker_t *worker)
{
    cut_jobs(worker);
    close_listener(&worker->listener);
    close_listener(&worker->bootstrap_listener);
    close_server(worker, &worker->server);
    close_server(worker, &worker->bootstrap_server);
    if (worker->side_fd >= 0)
        close(worker->side_fd);
    worker->side_fd = -1;
    worker->is_closed = true;
}

static void close_kv(sim_worker_t *worker)
{
    struct sim_kv *kv = worker->kv;

    worker->kv = NULL;
    sim_kv_close(kv);
    sim_registrant_close(worker);
    sim_events_close(worker);
}

static int open_kv(sim_worker_t *worker, char *error, size_t error_size)
{
    char why[200] = "";
    int rc = worker->options.connector == SIM_BATON
                 ? sim_kv_open(&worker->kv, worker, why, sizeof(why))
                 : 0;

    if (rc == 0)
        rc = sim_registrant_open(worker);
    if (rc == 0)
        rc = sim_events_open(worker);
    if (rc != 0)
        snprintf(error, error_size, "worker %s: %s", worker->options.name,
                 why[0] != '\0' ? why : bt_err_text(rc));
    return rc;
}

/* ---- death ---- */

/* The timer has two uses: an engine that will die in a moment, and a dead one whose API server goes. */
static void on_death_timer(bt_timer_t *timer)
{
    sim_worker_t *worker = bt_container_of(timer, sim_worker_t, death_timer);

    if (worker->is_dead)
        close_ports(worker);
    else
        sim_worker_die(worker);
}

void sim_worker_die(sim_worker_t *worker)
{
    const sim_engine_ops_t *engine = sim_engine_of(worker);

    if (worker->is_dead)
        return;
    worker->is_dead = true;
    sim_held_clear(worker);
    engine->died(worker);
    close_kv(worker);
    bt_timer_start(&worker->death_timer, sim_scaled_ms(worker->world, engine->exit_ms));
}

static void on_refuse_end(bt_timer_t *timer)
{
    sim_worker_t *worker = bt_container_of(timer, sim_worker_t, refuse_timer);

    if (worker->server != NULL && worker->listener == NULL &&
        listen_at(worker, &worker->port, worker->server, &worker->listener) != 0)
        bt_timer_start(timer, 10);
}

void sim_worker_refuse(sim_worker_t *worker, unsigned ms)
{
    close_listener(&worker->listener);
    bt_timer_start(&worker->refuse_timer, ms > 0 ? ms : 1);
}

/* ---- life ---- */

static int open_worker(sim_world_t *world, const sim_worker_options_t *options,
                       sim_worker_t **worker_p)
{
    sim_worker_t *worker = calloc(1, sizeof(*worker));
    int rc;

    if (worker == NULL)
        return BT_E_NOMEM;
    *worker_p = worker;
    worker->options = *options;
    worker->world = world;
    worker->side_fd = -1;
    worker->port = options->port;
    worker->bootstrap_port = options->bootstrap_port;
    worker->side_port = options->side_port;
    bt_list_init(&worker->jobs);
    bt_list_init(&worker->held);
    bt_timer_init(world->loop, &worker->death_timer, on_death_timer);
    bt_timer_init(world->loop, &worker->refuse_timer, on_refuse_end);
    rc = sim_blocks_init(&worker->blocks, options->blocks, options->block_size);
    worker->blocks.by_priority = options->evicts_by_priority;
    if (rc == 0)
        rc = sim_record_init(&worker->record, world->options->record, world->options->record_body);
    return rc != 0 ? rc : open_ports(worker);
}

int sim_world_open(sim_world_t *world, bt_loop_t *loop, const sim_options_t *options,
                   const sim_servers_t *servers, char *error, size_t error_size)
{
    *world = (sim_world_t){
        .loop = loop, .options = options, .servers = servers, .random = options->seed};
    bt_list_init(&world->push_waiters);
    bt_list_init(&world->callbacks);
    world->workers = calloc(options->worker_count + 1, sizeof(*world->workers));
    if (world->workers == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < options->worker_count; i++) {
        const sim_worker_options_t *o = &options->workers[i];
        int rc = open_worker(world, o, &world->workers[i]);
        world->worker_count += world->workers[i] != NULL;
        if (rc == 0) {
            rc = open_kv(world->workers[i], error, error_size);
            if (rc != 0)
                return rc;
            continue;
        }
        snprintf(error, error_size, "worker %s: port %u: %s", o->name, o->port, bt_err_text(rc));
        return rc;
    }
    return 0;
}

/* As a process that has just started. */
static void begin_anew(sim_worker_t *worker)
{
    sim_blocks_t fresh;
    char error[256];

    bt_timer_stop(&worker->death_timer);
    cut_jobs(worker);
    sim_held_clear(worker);
    close_kv(worker);
    sim_rooms_clear(worker->world, worker);
    sim_stories_clear(worker);
    sim_media_forget(worker);
    worker->faults.count = 0;
    worker->busy_until_us = 0;
    worker->life++;
    if (sim_blocks_init(&fresh, worker->options.blocks, worker->options.block_size) == 0) {
        sim_blocks_fini(&worker->blocks);
        fresh.by_priority = worker->options.evicts_by_priority;
        worker->blocks = fresh;
        bt_list_init(&worker->blocks.free);
    }
    worker->is_dead = false;
    if (worker->is_closed && open_ports(worker) == 0)
        worker->is_closed = false;
    if (open_kv(worker, error, sizeof(error)) != 0)
        fprintf(stderr, "baton-sim: %s\n", error);
}

void sim_worker_reset(sim_worker_t *worker)
{
    sim_record_clear(&worker->record);
    worker->counters = (sim_counters_t){0};
    begin_anew(worker);
}

void sim_worker_terminate(sim_worker_t *worker)
{
    close_listener(&worker->listener);
    close_listener(&worker->bootstrap_listener);
    if (worker->server != NULL)
        bt_server_drain(worker->server, false);
}

void sim_worker_restart(sim_worker_t *worker, bool is_elsewhere)
{
    char *id = worker->options.engine_id;

    if (!worker->is_closed)
        close_ports(worker);
    if (is_elsewhere)
        worker->port = worker->bootstrap_port = worker->side_port = 0;
    id[strcspn(id, "~")] = '\0';
    id[SIM_ENGINE_ID_MAX - 12] = '\0';
    snprintf(id + strlen(id), 12, "~%u", worker->life + 1);
    begin_anew(worker);
}

void sim_world_close(sim_world_t *world, void (*done)(void *arg), void *arg)
{
    world->closed = done;
    world->closed_arg = arg;
    sim_world_hold(world); /* holds the door until all are told */
    sim_callbacks_clear(world);
    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *worker = world->workers[i];
        bt_timer_stop(&worker->death_timer);
        bt_timer_stop(&worker->refuse_timer);
        close_ports(worker);
        sim_held_clear(worker);
        close_kv(worker);
    }
    server_closed(world);
}

void sim_world_fini(sim_world_t *world)
{
    sim_rooms_clear(world, NULL);
    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *worker = world->workers[i];
        sim_stories_clear(worker);
        sim_media_forget(worker);
        sim_record_fini(&worker->record);
        sim_blocks_fini(&worker->blocks);
        free(worker);
    }
    free(world->workers);
    free(world->shared);
}
