/* mooncake.c - see mooncake.h.
 *
 *   prefill   do_remote_decode, transfer_id: keeps the KV under the id when its token has reached the length limit; an end of
 *             the text (stop) frees it at once
 *   decode    do_remote_prefill, transfer_id, remote_bootstrap_addr, remote_engine_id: waits; nothing that is wrong or fails is
 *             ever told, it waits for ever
 *
 * Roles are asserted: a producer that is to fetch and a consumer that is to give end their engines.
 */
#include "mooncake.h"

#include "held.h"
#include "job.h"
#include "routes.h"
#include "worker.h"

#include <stdio.h>

static void print_engine_id(const sim_worker_t *worker, unsigned rank, char *out, size_t size)
{
    int n = snprintf(out, size, "%.40s", worker->options.engine_id);

    if (worker->life > 0)
        n += snprintf(out + n, size - (size_t) n, ".%u", worker->life);
    if (worker->options.dp > 1)
        snprintf(out + n, size - (size_t) n, "_dp%u", rank);
}

void sim_mooncake_query(sim_worker_t *worker, bt_exchange_t *x)
{
    char id[64];
    bt_text_t t;

    if (!bt_str_eq(x->head.path, BT_STR("/query")) || x->head.method != BT_GET) {
        sim_respond_text(x, 404, "{\"detail\":\"Not Found\"}");
        return;
    }
    bt_text_init(&t);
    for (unsigned rank = 0; rank < worker->options.dp; rank++) {
        print_engine_id(worker, rank, id, sizeof(id));
        bt_text_printf(&t,
                       "%s\"%u\":{\"engine_id\":\"%s\",\"worker_addr\":{\"0\":{\"0\":"
                       "\"tcp://127.0.0.1:%u\"}}}",
                       rank > 0 ? "," : "{", rank, id, worker->side_port);
    }
    bt_text_puts(&t, "}");
    sim_respond_json(x, 200, &t);
}

/* ---- decode ---- */

static bool is_engine(sim_job_t *job, const sim_worker_t *worker)
{
    char text[64];

    for (job->rank = 0; job->rank < worker->options.dp; job->rank++) {
        print_engine_id(worker, job->rank, text, sizeof(text));
        if (bt_str_eq(job->params.engine_id, bt_str(text)))
            return true;
    }
    return false;
}

/* Whose bootstrap server that is, if it has such an engine. Fills job->rank. */
static sim_worker_t *find_peer(sim_job_t *job)
{
    sim_world_t *world = job->worker->world;
    char text[64];

    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        snprintf(text, sizeof(text), "http://127.0.0.1:%u", w->bootstrap_port);
        if (w->options.connector == SIM_MOONCAKE && w->bootstrap_server != NULL &&
            bt_str_eq(job->params.bootstrap, bt_str(text)))
            return is_engine(job, w) ? w : NULL;
    }
    return NULL;
}

static sim_held_t *find_held(const sim_job_t *job)
{
    sim_held_t *held =
        job->peer->is_dead ? NULL : sim_held_find(job->peer, job->params.transfer_id);

    return held != NULL && held->rank == job->rank ? held : NULL;
}

static void receive(sim_job_t *job)
{
    sim_held_t *held = find_held(job);

    if (held == NULL)
        sim_job_park(job);
    else
        sim_vllm_receive(job, held);
}

static void wait(sim_job_t *job)
{
    const sim_params_t *p = &job->params;

    if (p->transfer_id.n == 0 || p->bootstrap.n == 0 || !p->has_engine_id) {
        sim_job_park(job); /* "Got invalid KVTransferParams" */
        return;
    }
    job->peer = find_peer(job);
    if (job->peer == NULL)
        sim_job_park(job);
    else if (find_held(job) != NULL)
        sim_job_later(job, sim_vllm_transfer_ms(job), receive);
    else
        bt_list_push(&job->worker->world->push_waiters, &job->push_link);
}

/* ---- prefill ---- */

static unsigned own_rank(sim_job_t *job)
{
    const bt_str_t header = bt_head_get(&job->x->head, BT_STR("x-data-parallel-rank"));
    uint64_t rank = 0;

    if (header.n == 0 || bt_str_u64(header, &rank) != 0 || rank >= job->worker->options.dp)
        rank = job->worker->rank_turn++ % job->worker->options.dp;
    job->worker->counters.rank_requests[rank & 15]++;
    return (unsigned) rank;
}

bool sim_mooncake_admit(sim_job_t *job)
{
    const sim_params_t *p = &job->params;
    const enum sim_role role = job->worker->options.role;

    if ((p->do_remote_prefill && role == SIM_PREFILL) ||
        (p->do_remote_decode && role == SIM_DECODE)) {
        sim_worker_die(job->worker);
        return true;
    }
    if (!p->do_remote_prefill) {
        job->rank = job->x != NULL ? own_rank(job) : 0;
        return false;
    }
    wait(job);
    return true;
}

static void serve_waiters(const sim_worker_t *worker)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->world->push_waiters, it, tmp) {
        sim_job_t *job = bt_container_of(it, sim_job_t, push_link);
        const uint64_t ms = sim_vllm_transfer_ms(job);
        if (job->peer != worker || find_held(job) == NULL)
            continue;
        bt_list_remove(&job->push_link);
        sim_job_later(job, ms > 0 ? ms : 1, receive); /* never from inside the prefill's own end */
    }
}

void sim_mooncake_finished(sim_job_t *job)
{
    const sim_params_t *p = &job->params;
    sim_held_t *held;

    if (!p->do_remote_decode || p->transfer_id.n == 0 || job->finish[0] != 'l')
        return;
    held = sim_held_keep(job, 0);
    if (held == NULL)
        return;
    snprintf(held->id, sizeof(held->id), "%.*s", BT_STR_ARG(p->transfer_id));
    held->rank = job->rank;
    serve_waiters(job->worker);
}
