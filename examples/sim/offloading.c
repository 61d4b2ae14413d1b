/* offloading.c - see offloading.h.
 *
 * Blocks are found by their contents within a request's store, so what is wrong or gone is a miss and never a wrong text.
 */
#include "offloading.h"

#include "held.h"

#include <stdio.h>

static sim_raw_t object_of(const sim_job_t *job, const char *name)
{
    const sim_raw_t params = job->ask.kv_params;
    const sim_raw_t none = {0};
    sim_raw_t object = params.type == BT_JSON_OBJECT ? sim_raw_get(params.value, name) : none;

    return object.type == BT_JSON_OBJECT ? object : none;
}

static bt_str_t text_of(sim_job_t *job, sim_raw_t object, const char *name)
{
    const sim_raw_t raw = object.type == BT_JSON_OBJECT ? sim_raw_get(object.value, name) : object;

    return raw.type == BT_JSON_STRING ? sim_raw_text(raw, &job->arena) : BT_STR_NULL;
}

static sim_worker_t *find_peer(sim_job_t *job, sim_raw_t from, bt_str_t id, unsigned *rank_p)
{
    sim_world_t *world = job->worker->world;
    const bt_str_t host = text_of(job, from, "remote_host");
    const sim_raw_t raw = sim_raw_get(from.value, "remote_port");
    int64_t port = 0;

    if (raw.type != BT_JSON_NUMBER || bt_json_i64(raw.value, &port) != 0 ||
        !(bt_str_eq(host, BT_STR("127.0.0.1")) || bt_str_eq(host, BT_STR("localhost"))))
        return NULL;
    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        if (w->options.connector != SIM_OFFLOADING || port < w->side_port ||
            port >= (int64_t) w->side_port + w->options.dp || w->is_dead ||
            sim_held_find(w, id) == NULL)
            continue;
        *rank_p = (unsigned) (port - w->side_port);
        return w;
    }
    return NULL;
}

sim_held_t *sim_offloading_find(sim_job_t *job)
{
    const sim_raw_t from = object_of(job, "remote_prefiller");
    const bt_str_t id = text_of(job, from, "kv_request_id");
    sim_held_t *held = NULL;
    unsigned rank = 0;

    if (from.type != BT_JSON_OBJECT)
        return NULL;
    job->peer = find_peer(job, from, id, &rank);
    if (job->peer != NULL)
        held = sim_held_find(job->peer, id);
    if (held == NULL || held->rank != rank ||
        sim_blocks_kv(&job->peer->blocks, held->ids, held->blocks) != job->ask.prompts[0].kv)
        return NULL;
    return held;
}

static unsigned own_rank(sim_job_t *job)
{
    const bt_str_t header = bt_head_get(&job->x->head, BT_STR("x-data-parallel-rank"));
    uint64_t rank = 0;

    if (header.n == 0 || bt_str_u64(header, &rank) != 0 || rank >= job->worker->options.dp)
        rank = job->worker->rank_turn++ % job->worker->options.dp;
    return (unsigned) rank;
}

void sim_offloading_finished(sim_job_t *job)
{
    const bt_str_t id = text_of(job, object_of(job, "remote_decoder"), "kv_request_id");
    sim_held_t *held = id.n > 0 && job->x != NULL ? sim_held_keep(job, 0) : NULL;

    if (held == NULL)
        return;
    snprintf(held->id, sizeof(held->id), "%.*s", BT_STR_ARG(id));
    held->rank = own_rank(job);
}
