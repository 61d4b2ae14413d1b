/* held.c - see held.h. */
#include "held.h"

#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>

void sim_external_id(const sim_job_t *job, unsigned prompt, char *out, size_t size)
{
    if (job->ask.route == SIM_COMPLETIONS)
        snprintf(out, size, "%.170s-%u", job->id, prompt);
    else if (job->ask.route == SIM_RESPONSES)
        snprintf(out, size, "%.170s_0", job->id); /* one engine request per tool round */
    else
        snprintf(out, size, "%.170s", job->id);
}

static void drop(sim_held_t *held, bool scramble)
{
    sim_blocks_t *blocks = &held->worker->blocks;

    bt_timer_stop(&held->lease);
    bt_list_remove(&held->link);
    sim_blocks_release(blocks, held->ids, held->blocks);
    if (scramble)
        sim_blocks_scramble(blocks, held->ids, held->blocks);
    free(held->ids);
    free(held);
}

void sim_held_free(sim_held_t *held)
{
    drop(held, false);
}

/* What was given back is soon somebody else's: a decode that comes late reads other KV, and nobody tells it. */
static void on_lease(bt_timer_t *timer)
{
    sim_held_t *held = bt_container_of(timer, sim_held_t, lease);

    held->worker->counters.kv_expired++;
    drop(held, !held->worker->options.expired_keep);
}

sim_held_t *sim_held_keep(sim_job_t *job, unsigned prompt)
{
    sim_worker_t *worker = job->worker;
    sim_held_t *held = calloc(1, sizeof(*held));
    unsigned blocks = job->ask.prompts[prompt].blocks;

    if (held == NULL)
        return NULL;
    held->ids = malloc((blocks + 1) * sizeof(*held->ids));
    if (held->ids == NULL) {
        free(held);
        return NULL;
    }
    memcpy(held->ids, job->ids[prompt], blocks * sizeof(*held->ids));
    job->ids[prompt] = NULL; /* the references are the entry's now */
    held->worker = worker;
    held->blocks = blocks;
    held->prompt_tokens = job->ask.prompts[prompt].tokens;
    sim_external_id(job, prompt, held->external, sizeof(held->external));
    snprintf(held->id, sizeof(held->id), "%.180s-%08x", held->external, (unsigned) bt_rand_u64());
    bt_list_init(&held->link);
    bt_list_push(&worker->held, &held->link);
    bt_timer_init(worker->world->loop, &held->lease, on_lease);
    bt_timer_start(&held->lease, sim_scaled_ms(worker->world, worker->options.lease_ms));
    worker->counters.kv_held++;
    return held;
}

sim_held_t *sim_held_find(sim_worker_t *worker, bt_str_t id)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->held, it, tmp) {
        sim_held_t *held = bt_container_of(it, sim_held_t, link);
        if (bt_str_eq(id, bt_str(held->id)))
            return held;
    }
    return NULL;
}

sim_held_t *sim_held_find_external(sim_worker_t *worker, const char *external)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->held, it, tmp) {
        sim_held_t *held = bt_container_of(it, sim_held_t, link);
        if (strcmp(held->external, external) == 0)
            return held;
    }
    return NULL;
}

void sim_held_clear(sim_worker_t *worker)
{
    while (!bt_list_empty(&worker->held))
        sim_held_free(bt_container_of(worker->held.next, sim_held_t, link));
}
