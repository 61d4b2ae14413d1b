/* media.c - see media.h.
 *
 * ec=cpu    ECCPUConnector: an encoder answers {"<hash>": {peer_host, peer_port, size_bytes, nixl_agent_metadata_b64}}; a consumer
 *           looks for the hash of each part in what its own request says. No word of it, another size, a key that is missing, a peer
 *           that has it not: it encodes the part itself. Something that is no object ends the engine (AttributeError).
 * ec=store  ECExampleConnector: by hash, in a store that both sides read; nothing is said.
 *
 * A hash is of the part's value (or its uuid) and of both kwargs. The encoder's own port stands for its side channel. It is
 * stricter than the engine in one thing: one part a request, and no text.
 */
#include "media.h"

#include <stdio.h>
#include <stdlib.h>

#define METADATA "U2ltRW5jb2Rlcg=="

/* ---- the encoder ---- */

int sim_media_check(const sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_ask_t *ask = &job->ask;

    if (ask->ec_params.type != BT_JSON_NONE && ask->ec_params.type != BT_JSON_NULL &&
        ask->ec_params.type != BT_JSON_OBJECT)
        return sim_problem_set(problem_p, 400,
                               "ec_transfer_params: Input should be a valid dictionary");
    if (job->worker->options.role != SIM_ENCODE)
        return 0;
    if (ask->route != SIM_CHAT || ask->media.count != 1 || ask->media.others != 0)
        return sim_problem_set(problem_p, 400, "an encoder takes one part, and no text");
    if (ask->stream || ask->max_tokens >= 0)
        return sim_problem_set(problem_p, 400, "an encoder neither streams nor counts tokens");
    return 0;
}

static bool has(const sim_worker_t *encoder, uint64_t hash)
{
    for (unsigned i = 0; i < encoder->media_count; i++)
        if (encoder->media[i] == hash)
            return true;
    return false;
}

static void take(sim_worker_t *encoder, uint64_t hash)
{
    uint64_t *more;

    encoder->counters.media_encoded++;
    if (has(encoder, hash))
        return;
    more = realloc(encoder->media, (encoder->media_count + 1) * sizeof(*more));
    if (more == NULL)
        return;
    encoder->media = more;
    more[encoder->media_count++] = hash;
}

static unsigned size_of(uint64_t hash)
{
    return 4096 * (unsigned) (1 + hash % 16);
}

void sim_media_encoded(sim_job_t *job)
{
    sim_worker_t *w = job->worker;
    const uint64_t hash = job->ask.media.hashes[0];

    take(w, hash);
    if (w->options.ec == SIM_EC_CPU && job->fault.kind != SIM_NO_PARAMS)
        job->ec_reply = bt_arena_printf(
            &job->arena,
            "{\"%016llx\":{\"peer_host\":\"127.0.0.1\",\"peer_port\":%u,\"size_bytes\":%u,"
            "\"nixl_agent_metadata_b64\":\"" METADATA "\"}}",
            (unsigned long long) hash, w->port, size_of(hash));
}

void sim_media_forget(sim_worker_t *worker)
{
    free(worker->media);
    worker->media = NULL;
    worker->media_count = 0;
}

/* ---- the consumer ---- */

static bool is_in_store(const sim_world_t *world, uint64_t hash)
{
    for (unsigned i = 0; i < world->worker_count; i++)
        if (world->workers[i]->options.role == SIM_ENCODE &&
            world->workers[i]->options.ec == SIM_EC_STORE && has(world->workers[i], hash))
            return true;
    return false;
}

static bool is_number(bt_str_t object, const char *name, uint64_t value)
{
    const sim_raw_t raw = sim_raw_get(object, name);
    int64_t number = -1;

    return raw.type == BT_JSON_NUMBER && bt_json_i64(raw.value, &number) == 0 &&
           (uint64_t) number == value;
}

static bool is_at(const sim_worker_t *w, bt_str_t handle, uint64_t hash)
{
    const sim_raw_t host = sim_raw_get(handle, "peer_host"),
                    metadata = sim_raw_get(handle, "nixl_agent_metadata_b64");

    return w->options.role == SIM_ENCODE && !w->is_dead && has(w, hash) &&
           bt_str_eq(host.value, BT_STR("\"127.0.0.1\"")) &&
           bt_str_eq(metadata.value, BT_STR("\"" METADATA "\"")) &&
           is_number(handle, "peer_port", w->port) &&
           is_number(handle, "size_bytes", size_of(hash));
}

static bool is_told(const sim_job_t *job, uint64_t hash, bool *kills_p)
{
    const sim_world_t *world = job->worker->world;
    char name[17];
    sim_raw_t handle = {.type = BT_JSON_NONE};

    snprintf(name, sizeof(name), "%016llx", (unsigned long long) hash);
    if (job->ask.ec_params.type == BT_JSON_OBJECT)
        handle = sim_raw_get(job->ask.ec_params.value, name);
    *kills_p =
        handle.type != BT_JSON_NONE && handle.type != BT_JSON_NULL && handle.type != BT_JSON_OBJECT;
    for (unsigned i = 0; i < world->worker_count && handle.type == BT_JSON_OBJECT; i++)
        if (is_at(world->workers[i], handle.value, hash))
            return true;
    return false;
}

bool sim_media_fetch(sim_job_t *job)
{
    sim_worker_t *w = job->worker;
    bool kills;

    for (unsigned i = 0; i < job->ask.media.count; i++) {
        const uint64_t hash = job->ask.media.hashes[i];
        const bool is_there = is_told(job, hash, &kills) || is_in_store(w->world, hash);
        if (kills)
            return false;
        if (is_there)
            w->counters.media_fetched++;
        else
            w->counters.media_local++;
    }
    return true;
}
