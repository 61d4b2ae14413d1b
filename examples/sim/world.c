/* world.c - see world.h. */
#include "world.h"

#include "words.h"

#include <stdlib.h>

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

/* ---- the end ---- */

void sim_world_hold(sim_world_t *world)
{
    world->open_servers++;
}

void sim_world_let_go(sim_world_t *world)
{
    if (--world->open_servers == 0 && world->closed != NULL)
        world->closed(world->closed_arg);
}
