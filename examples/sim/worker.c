/* worker.c - see worker.h.
 *
 *   open --die--> dead (answers 500 / 503) --a moment--> closed (connection refused) --reset--> open
 *
 * A vLLM API server answers for a while after its engine has died; an SGLang process tree is killed as a whole, and its
 * clients see their connections close without an answer.
 */
#include "worker.h"

#include "base/err.h"
#include "held.h"
#include "job.h"
#include "kv.h"
#include "reply.h"
#include "rooms.h"
#include "routes.h"
#include "sglang.h"
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define VLLM_EXIT_MS 1000
#define SGLANG_EXIT_MS 5100

/* ---- time and chance ---- */

uint64_t sim_scaled_ms(const sim_world_t *world, double ms)
{
    double scaled = ms * world->options->time_scale;

    return scaled < 1 ? 1 : (uint64_t) scaled;
}

uint64_t sim_random(sim_world_t *world)
{
    return sim_mix(world->random += SIM_STATE_FIRST);
}

double sim_jitter(sim_world_t *world, const sim_worker_t *worker, double ms)
{
    double unit;

    if (worker->options.jitter <= 0 || ms <= 0)
        return ms;
    unit = (double) (sim_random(world) >> 11) / 9007199254740992.0;
    ms *= 1 + worker->options.jitter * (2 * unit - 1);
    return ms > 0 ? ms : 0;
}

/* ---- shared store ---- */

void sim_shared_put(sim_world_t *world, uint64_t kv)
{
    if (world->shared == NULL)
        world->shared = calloc(SIM_SHARED_SLOTS, sizeof(*world->shared));
    if (world->shared != NULL)
        world->shared[kv % SIM_SHARED_SLOTS] = kv;
}

bool sim_shared_has(const sim_world_t *world, uint64_t kv)
{
    return world->shared != NULL && world->shared[kv % SIM_SHARED_SLOTS] == kv;
}

/* ---- listening ---- */

void sim_world_hold(sim_world_t *world)
{
    world->open_servers++;
}

void sim_world_let_go(sim_world_t *world)
{
    if (--world->open_servers == 0 && world->closed != NULL)
        world->closed(world->closed_arg);
}

static void server_closed(void *arg)
{
    sim_world_let_go(arg);
}

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    (void) loop;
    bt_server_accept(user, fd);
}

static int listen_at(sim_worker_t *worker, unsigned *port, bt_server_t *server,
                     bt_listener_t **listener_p)
{
    int fd = bt_listener_bind("127.0.0.1", *port, false, port);

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
    return worker->options.engine == SIM_SGLANG && worker->options.role == SIM_PREFILL;
}

static int open_ports(sim_worker_t *worker)
{
    int rc = make_server(worker, &worker->server, &sim_worker_server_ops);

    if (rc == 0)
        rc = listen_at(worker, &worker->port, worker->server, &worker->listener);
    if (rc == 0 && has_bootstrap(worker)) {
        rc = make_server(worker, &worker->bootstrap_server, &sim_bootstrap_server_ops);
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
}

static int open_kv(sim_worker_t *worker, char *error, size_t error_size)
{
    char why[200] = "";
    int rc = worker->options.connector == SIM_BATON
                 ? sim_kv_open(&worker->kv, worker, why, sizeof(why))
                 : 0;

    if (rc != 0)
        snprintf(error, error_size, "worker %s: %s", worker->options.name,
                 why[0] != '\0' ? why : bt_err_text(rc));
    return rc;
}

/* ---- death ---- */

static void fail_jobs(sim_worker_t *worker)
{
    while (!bt_list_empty(&worker->jobs))
        sim_job_fail(
            bt_container_of(worker->jobs.next, sim_job_t, link), 500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.");
}

static void park_jobs(sim_worker_t *worker)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->jobs, it, tmp)
        sim_job_park(bt_container_of(it, sim_job_t, link));
}

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
    bool is_sglang = worker->options.engine == SIM_SGLANG;

    if (worker->is_dead)
        return;
    worker->is_dead = true;
    sim_held_clear(worker);
    if (is_sglang) {
        park_jobs(worker);
        if (worker->options.role == SIM_PREFILL)
            sim_sglang_lost_prefill(worker);
    } else {
        fail_jobs(worker);
    }
    close_kv(worker);
    bt_timer_start(&worker->death_timer,
                   sim_scaled_ms(worker->world, is_sglang ? SGLANG_EXIT_MS : VLLM_EXIT_MS));
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

unsigned sim_worker_running(const sim_worker_t *worker, unsigned *waiting_p)
{
    unsigned running = 0, waiting = 0;

    for (const bt_list_t *it = worker->jobs.next; it != &worker->jobs; it = it->next) {
        const sim_job_t *job = bt_container_of((bt_list_t *) (uintptr_t) it, sim_job_t, link);
        if (job->phase == SIM_WAITING || job->phase == SIM_PARKED)
            waiting++;
        else
            running++;
    }
    if (waiting_p != NULL)
        *waiting_p = waiting;
    return running;
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
    if (rc == 0)
        rc = sim_record_init(&worker->record, world->options->record, world->options->record_body);
    return rc != 0 ? rc : open_ports(worker);
}

int sim_world_open(sim_world_t *world, bt_loop_t *loop, const sim_options_t *options, char *error,
                   size_t error_size)
{
    *world = (sim_world_t){.loop = loop, .options = options, .random = options->seed};
    bt_list_init(&world->push_waiters);
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

void sim_worker_reset(sim_worker_t *worker)
{
    sim_blocks_t fresh;
    char error[256];

    bt_timer_stop(&worker->death_timer);
    cut_jobs(worker);
    sim_held_clear(worker);
    close_kv(worker);
    sim_rooms_clear(worker->world, worker);
    sim_stories_clear(worker);
    sim_record_clear(&worker->record);
    worker->faults.count = 0;
    worker->counters = (sim_counters_t){0};
    worker->busy_until_us = 0;
    if (sim_blocks_init(&fresh, worker->options.blocks, worker->options.block_size) == 0) {
        sim_blocks_fini(&worker->blocks);
        worker->blocks = fresh;
        bt_list_init(&worker->blocks.free);
    }
    worker->is_dead = false;
    if (worker->is_closed && open_ports(worker) == 0)
        worker->is_closed = false;
    if (open_kv(worker, error, sizeof(error)) != 0)
        fprintf(stderr, "baton-sim: %s\n", error);
}

void sim_world_close(sim_world_t *world, void (*done)(void *arg), void *arg)
{
    world->closed = done;
    world->closed_arg = arg;
    sim_world_hold(world); /* holds the door until all are told */
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
        sim_record_fini(&worker->record);
        sim_blocks_fini(&worker->blocks);
        free(worker);
    }
    free(world->workers);
    free(world->shared);
}
