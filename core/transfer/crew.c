/* Agents find their worker by what they call it, and a worker has its agents when ranks 0 .. ranks-1 are all there and agree on how many they are. That fact is the
 * worker's has_agents, which request loops read.
 *
 * A rank that registers again: the same incarnation is the same process, which has dialled again before we knew that its old connection was gone: its rooms stay. Another
 * incarnation is another process: the old one's rooms are lost.
 */
#include "transfer_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* A replaced one that is alive after all must not fight for the place. */
#define REPLACED_RETRY_MS 30000

bt_transfer_crew_t *bt_transfer_crew_of(const bt_transfer_t *t, const bt_worker_t *worker)
{
    bt_transfer_crew_t *crew = worker->slot < t->crew_cap ? t->crews[worker->slot] : NULL;

    return crew != NULL && crew->worker == worker ? crew : NULL;
}

static bt_transfer_crew_t *make_crew(bt_transfer_t *t, bt_worker_t *worker)
{
    if (worker->slot >= t->crew_cap) {
        unsigned cap = worker->slot < 32 ? 64 : 2 * worker->slot;
        bt_transfer_crew_t **crews = realloc(t->crews, cap * sizeof(*crews));
        if (crews == NULL)
            return NULL;
        memset(crews + t->crew_cap, 0, (cap - t->crew_cap) * sizeof(*crews));
        t->crews = crews;
        t->crew_cap = cap;
    }
    if (BT_SOFT(t->crews[worker->slot] != NULL))
        return NULL;
    bt_transfer_crew_t *crew = calloc(1, sizeof(*crew));
    if (crew == NULL)
        return NULL;
    crew->worker = bt_worker_ref(worker);
    t->crews[worker->slot] = crew;
    return crew;
}

static void free_if_empty(bt_transfer_t *t, bt_transfer_crew_t *crew)
{
    if (crew->count > 0)
        return;
    t->crews[crew->worker->slot] = NULL;
    bt_worker_unref(crew->worker);
    free(crew);
}

/* ---- is it whole? ---- */

bool bt_transfer_crew_is_whole(const bt_transfer_crew_t *crew, const bt_worker_t *worker, char *out,
                               size_t size)
{
    uint32_t ranks = 0;

    if (crew == NULL || crew->count == 0) {
        snprintf(out, size, "worker %s: none of its agents is registered", worker->name);
        return false;
    }
    for (uint32_t i = 0; i < BT_TRANSFER_RANKS; i++)
        if (crew->agents[i] != NULL && crew->agents[i]->ranks > ranks)
            ranks = crew->agents[i]->ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        if (crew->agents[i] == NULL)
            snprintf(out, size, "worker %s: the agent of rank %u of %u is not registered",
                     worker->name, i, ranks);
        else if (crew->agents[i]->ranks != ranks)
            snprintf(out, size, "worker %s: the agent of rank %u says that there are %u, not %u",
                     worker->name, i, crew->agents[i]->ranks, ranks);
        else
            continue;
        return false;
    }
    return true;
}

static void update(const bt_transfer_t *t, const bt_transfer_crew_t *crew)
{
    char why[160];
    bool is_whole = bt_transfer_crew_is_whole(crew, crew->worker, why, sizeof(why));

    if (atomic_exchange(&crew->worker->has_agents, is_whole) == is_whole)
        return;
    bt_fleet_epoch_bump();
    if (is_whole)
        bt_log_info("transfer", "worker %s: all %u agents are registered", crew->worker->name,
                    crew->count);
    else if (!t->is_closing && !t->is_remapping)
        bt_log_warn("transfer", "%s", why);
}

/* ---- coming and going ---- */

/* The same process by a new connection: its rooms go on there. */
static void take_over(bt_transfer_agent_t *old, bt_transfer_agent_t *agent)
{
    while (!bt_list_empty(&old->seats)) {
        bt_transfer_seat_t *seat = bt_container_of(old->seats.next, bt_transfer_seat_t, link);
        bt_list_remove(&seat->link);
        bt_list_push(&agent->seats, &seat->link);
        seat->agent = agent;
    }
    agent->seat_count += old->seat_count;
    old->seat_count = 0;
}

static void put(bt_transfer_crew_t *crew, bt_transfer_agent_t *agent)
{
    crew->agents[agent->rank] = agent;
    crew->count++;
    agent->crew = crew;
}

static void take(bt_transfer_agent_t *agent)
{
    agent->crew->agents[agent->rank] = NULL;
    agent->crew->count--;
    agent->crew = NULL;
}

/* The new one has the place before the old one goes: nobody sees the worker without it. */
static void replace(bt_transfer_agent_t *old, bt_transfer_agent_t *agent)
{
    bt_transfer_crew_t *crew = old->crew;

    take(old);
    put(crew, agent);
    old->t->stats.agents_waiting++; /* as one without a crew, which it is for a moment */
    if (old->incarnation == agent->incarnation) {
        take_over(old, agent);
        bt_transfer_agent_lose(old, "it has dialled again");
    } else {
        bt_transfer_agent_refuse(old, REPLACED_RETRY_MS,
                                 "another process has registered for its worker and rank");
    }
}

static bt_worker_t *find_worker(const bt_transfer_agent_t *agent)
{
    const bt_fleet_t *fleet = agent->t->fleet;

    return fleet != NULL ? bt_fleet_find(fleet, bt_str(agent->worker)) : NULL;
}

/* False: there is no memory, or its place is another's. It waits, and is tried again when the fleet changes. */
static void join_worker(bt_transfer_agent_t *agent, bt_worker_t *worker)
{
    bt_transfer_t *t = agent->t;
    bt_transfer_crew_t *crew = bt_transfer_crew_of(t, worker);

    if (crew == NULL && (crew = make_crew(t, worker)) == NULL)
        return;
    t->stats.agents_waiting--;
    if (crew->agents[agent->rank] != NULL)
        replace(crew->agents[agent->rank], agent);
    else
        put(crew, agent);
    update(t, crew);
}

static const char *what_for(const bt_worker_t *worker)
{
    if (worker == NULL)
        return "; it waits, because no such worker is in the fleet";
    return worker->is_steered ? "" : "; but this worker's connector needs no rooms of ours";
}

void bt_transfer_crew_join(bt_transfer_agent_t *agent)
{
    bt_worker_t *worker = find_worker(agent);

    agent->t->stats.agents_waiting++;
    bt_log_info("transfer",
                "agent %s of worker %s is registered: rank %u of %u, at %s:%u, pid %u%s",
                agent->name, agent->worker, agent->rank, agent->ranks, agent->host, agent->port,
                agent->pid, what_for(worker));
    if (worker != NULL)
        join_worker(agent, worker);
}

void bt_transfer_crew_leave(bt_transfer_agent_t *agent)
{
    bt_transfer_crew_t *crew = agent->crew;

    if (crew == NULL) {
        agent->t->stats.agents_waiting--;
        return;
    }
    take(agent);
    update(agent->t, crew);
    free_if_empty(agent->t, crew);
}

/* A changed worker is a new one, a removed one loses its agents (rooms hold on to both). */
static void remap(bt_transfer_agent_t *agent)
{
    bt_worker_t *worker = find_worker(agent);

    if (agent->crew != NULL && agent->crew->worker == worker)
        return;
    if (agent->crew != NULL) {
        bt_transfer_crew_leave(agent);
        agent->t->stats.agents_waiting++;
    }
    if (worker != NULL)
        join_worker(agent, worker);
}

void bt_transfer_crews_remap(bt_transfer_t *t)
{
    bt_list_t *it = t->agents.next;

    t->is_remapping = true;
    while (it != &t->agents) {
        bt_transfer_agent_t *agent = bt_container_of(it, bt_transfer_agent_t, link);
        if (agent->is_registered)
            remap(agent);
        /* It may have replaced the next one, never itself. */
        it = it->next;
    }
    t->is_remapping = false;
}
