/* Agents find their worker by what they call it, and a worker has its agents when ranks 0 .. ranks-1 are all there and agree on how many they are. That fact is the
 * worker's has_agents, which request loops read.
 *
 * A place that is taken. A trusted newcomer (it has shown the token; where none is asked, it comes from the address of the agent that is there) of the same
 * incarnation is the same process, which has dialled again before we knew that its old connection was gone: its rooms stay. Another incarnation is another process, and
 * an agent that lives never makes way for one: else one HELLO would take a worker out of service. The newcomer is refused, and told when to ask again: a trusted one gets
 * the place once the old agent has missed two heartbeats (a restarted process whose old connection is half-open is back at once), anybody else once it has been silent
 * for dead_ms, which is when it is lost anyway. Only then are the old one's rooms lost.
 */
#include "transfer_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* It was silent. If it was only stopped, it is refused as long as its successor lives, and has the place back soon after that. */
#define REPLACED_RETRY_MS 5000
#define MISSED_HEARTBEATS 2 /* of the agent that is there, before a trusted one takes its place */
#define RETRY_MIN_MS 100    /* what the other one has said is read by then */

bt_transfer_rank_group_t *bt_transfer_rank_group_of(const bt_transfer_t *t,
                                                    const bt_worker_t *worker)
{
    bt_transfer_rank_group_t *group = worker->slot < t->group_cap ? t->groups[worker->slot] : NULL;

    return group != NULL && group->worker == worker ? group : NULL;
}

static bt_transfer_rank_group_t *make_group(bt_transfer_t *t, bt_worker_t *worker)
{
    if (worker->slot >= t->group_cap) {
        unsigned cap = worker->slot < 32 ? 64 : 2 * worker->slot;
        bt_transfer_rank_group_t **groups = realloc(t->groups, cap * sizeof(*groups));
        if (groups == NULL)
            return NULL;
        memset(groups + t->group_cap, 0, (cap - t->group_cap) * sizeof(*groups));
        t->groups = groups;
        t->group_cap = cap;
    }
    if (BT_SOFT(t->groups[worker->slot] != NULL))
        return NULL;
    bt_transfer_rank_group_t *group = calloc(1, sizeof(*group));
    if (group == NULL)
        return NULL;
    group->worker = bt_worker_ref(worker);
    t->groups[worker->slot] = group;
    return group;
}

static void free_if_empty(bt_transfer_t *t, bt_transfer_rank_group_t *group)
{
    if (group->count > 0)
        return;
    t->groups[group->worker->slot] = NULL;
    bt_worker_unref(group->worker);
    free(group);
}

/* ---- is it whole? ---- */

bool bt_transfer_rank_group_is_whole(const bt_transfer_rank_group_t *group,
                                     const bt_worker_t *worker, char *out, size_t size)
{
    uint32_t ranks = 0;

    if (group == NULL || group->count == 0) {
        snprintf(out, size, "worker %s: none of its agents is registered", worker->name);
        return false;
    }
    for (uint32_t i = 0; i < BT_TRANSFER_RANKS; i++)
        if (group->agents[i] != NULL && group->agents[i]->ranks > ranks)
            ranks = group->agents[i]->ranks;
    for (uint32_t i = 0; i < ranks; i++) {
        if (group->agents[i] == NULL)
            snprintf(out, size, "worker %s: the agent of rank %u of %u is not registered",
                     worker->name, i, ranks);
        else if (group->agents[i]->ranks != ranks)
            snprintf(out, size, "worker %s: the agent of rank %u says that there are %u, not %u",
                     worker->name, i, group->agents[i]->ranks, ranks);
        else
            continue;
        return false;
    }
    return true;
}

static void update(const bt_transfer_t *t, const bt_transfer_rank_group_t *group)
{
    char why[160];
    bool is_whole = bt_transfer_rank_group_is_whole(group, group->worker, why, sizeof(why));

    if (atomic_exchange(&group->worker->has_agents, is_whole) == is_whole)
        return;
    bt_worker_note_service(group->worker);
    bt_workers_changed();
    if (is_whole)
        bt_log_info("transfer", "worker %s: all %u agents are registered", group->worker->name,
                    group->count);
    else if (!t->is_closing && !t->is_remapping)
        bt_log_warn("transfer", "%s", why);
}

/* ---- coming and going ---- */

/* The same process by a new connection: its rooms go on there. */
static void take_over(bt_transfer_agent_t *old, bt_transfer_agent_t *agent)
{
    while (!bt_list_empty(&old->participants)) {
        bt_transfer_participant_t *participant =
            bt_container_of(old->participants.next, bt_transfer_participant_t, link);
        bt_list_remove(&participant->link);
        bt_list_push(&agent->participants, &participant->link);
        participant->agent = agent;
    }
    agent->participant_count += old->participant_count;
    old->participant_count = 0;
}

static void put(bt_transfer_rank_group_t *group, bt_transfer_agent_t *agent)
{
    group->agents[agent->rank] = agent;
    group->count++;
    agent->group = group;
}

static void take(bt_transfer_agent_t *agent)
{
    agent->group->agents[agent->rank] = NULL;
    agent->group->count--;
    agent->group = NULL;
}

/* ---- a place that is taken ---- */

static bool is_trusted(const bt_transfer_agent_t *old, const bt_transfer_agent_t *agent)
{
    return agent->t->config.token != NULL || strcmp(old->peer, agent->peer) == 0;
}

/* How long the old one must have been silent. */
static uint32_t patience_ms(const bt_transfer_agent_t *old, const bt_transfer_agent_t *agent)
{
    const bt_transfer_config_t *config = &agent->t->config;
    uint32_t heartbeats_ms = MISSED_HEARTBEATS * config->heartbeat_ms;

    return is_trusted(old, agent) && heartbeats_ms < config->dead_ms ? heartbeats_ms
                                                                     : config->dead_ms;
}

static bool is_in_the_way(bt_transfer_agent_t *old, const bt_transfer_agent_t *agent)
{
    return !bt_transfer_agent_is_silent(old, patience_ms(old, agent));
}

static uint32_t retry_ms(const bt_transfer_agent_t *old, const bt_transfer_agent_t *agent)
{
    uint64_t now_ms = bt_clock_ms(), due_ms = old->heard_ms + patience_ms(old, agent);

    return RETRY_MIN_MS + (due_ms > now_ms ? (uint32_t) (due_ms - now_ms) : 0);
}

static const char *taken_by(const bt_transfer_agent_t *old, const bt_transfer_agent_t *agent)
{
    if (is_trusted(old, agent))
        return "another agent of its worker and rank is alive: end it, or give this one another "
               "worker or rank; if it is dead, this one is taken at the next try";
    return "an agent of its worker and rank is connected from another address: end it, or give "
           "gateway and agents a --transfer-token; if it is dead, this one is taken once that is "
           "known";
}

/* NULL, or why the newcomer cannot have a place in this group now. */
static const char *refusal(const bt_transfer_rank_group_t *group, const bt_transfer_agent_t *agent,
                           uint32_t *retry_ms_p)
{
    bt_transfer_agent_t *old = group->agents[agent->rank];

    if (old != NULL && is_trusted(old, agent) && old->incarnation == agent->incarnation)
        return NULL;
    if (old != NULL && is_in_the_way(old, agent)) {
        *retry_ms_p = retry_ms(old, agent);
        return taken_by(old, agent);
    }
    for (uint32_t i = 0; i < BT_TRANSFER_RANKS; i++) {
        old = group->agents[i];
        if (i == agent->rank || old == NULL || old->ranks == agent->ranks ||
            !is_in_the_way(old, agent))
            continue;
        *retry_ms_p = retry_ms(old, agent);
        return "its worker has agents that are alive and say another number of ranks: give all of "
               "them the same one";
    }
    return NULL;
}

void bt_transfer_rank_group_gone(const bt_transfer_agent_t *agent, const char *why)
{
    const bt_transfer_config_t *config = &agent->t->config;

    if (agent->group == NULL || agent->t->is_closing)
        return;
    bt_worker_restarted(agent->group->worker);
    if (config->on_gone != NULL)
        config->on_gone(config->user, agent->group->worker, why);
}

/* The new one has the place before the old one goes: nobody sees the worker without it. */
static void replace(bt_transfer_agent_t *old, bt_transfer_agent_t *agent)
{
    bt_transfer_rank_group_t *group = old->group;

    if (old->incarnation != agent->incarnation)
        bt_transfer_rank_group_gone(old, "another process has its agent's place");
    take(old);
    put(group, agent);
    old->t->stats.agents_waiting++; /* as one without a group, which it is for a moment */
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
    const bt_workers_t *workers = agent->t->workers;

    return workers != NULL ? bt_workers_find(workers, bt_str(agent->worker)) : NULL;
}

const char *bt_transfer_rank_group_refuses(const bt_transfer_agent_t *agent, uint32_t *retry_ms_p)
{
    const bt_worker_t *worker = find_worker(agent);
    const bt_transfer_rank_group_t *group =
        worker != NULL ? bt_transfer_rank_group_of(agent->t, worker) : NULL;

    return group != NULL ? refusal(group, agent, retry_ms_p) : NULL;
}

/* Without memory for its group it waits, and is tried again when the fleet changes. It may be refused: two can have waited for one worker. */
static void join_worker(bt_transfer_agent_t *agent, bt_worker_t *worker)
{
    bt_transfer_t *t = agent->t;
    bt_transfer_rank_group_t *group = bt_transfer_rank_group_of(t, worker);
    uint32_t later_ms = 0;

    if (group == NULL && (group = make_group(t, worker)) == NULL)
        return;
    const char *why = refusal(group, agent, &later_ms);
    if (why != NULL) {
        bt_transfer_agent_refuse(agent, later_ms, why);
        return;
    }
    t->stats.agents_waiting--;
    if (group->agents[agent->rank] != NULL)
        replace(group->agents[agent->rank], agent);
    else
        put(group, agent);
    update(t, group);
}

static const char *what_for(const bt_worker_t *worker)
{
    if (worker == NULL)
        return "; it waits, because no such worker is in the fleet";
    return worker->is_gateway_managed ? "" : "; but this worker's connector needs no rooms of ours";
}

void bt_transfer_rank_group_join(bt_transfer_agent_t *agent)
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

void bt_transfer_rank_group_leave(bt_transfer_agent_t *agent)
{
    bt_transfer_rank_group_t *group = agent->group;

    if (group == NULL) {
        agent->t->stats.agents_waiting--;
        return;
    }
    take(agent);
    update(agent->t, group);
    free_if_empty(agent->t, group);
}

/* A changed worker is a new one, a removed one loses its agents (rooms hold on to both). */
static void remap(bt_transfer_agent_t *agent)
{
    bt_worker_t *worker = find_worker(agent);

    if (agent->group != NULL && agent->group->worker == worker)
        return;
    if (agent->group != NULL) {
        bt_transfer_rank_group_leave(agent);
        agent->t->stats.agents_waiting++;
    }
    if (worker != NULL)
        join_worker(agent, worker);
}

/* An agent may be lost by it, or another one in whose place it comes: the list is gone through by its head. */
void bt_transfer_rank_groups_remap(bt_transfer_t *t)
{
    bt_list_t todo = t->agents;

    if (bt_list_empty(&t->agents))
        return;
    todo.next->prev = todo.prev->next = &todo;
    bt_list_init(&t->agents);
    t->is_remapping = true;
    while (!bt_list_empty(&todo)) {
        bt_transfer_agent_t *agent = bt_container_of(todo.next, bt_transfer_agent_t, link);
        bt_list_remove(&agent->link);
        bt_list_push(&t->agents, &agent->link);
        if (agent->is_registered)
            remap(agent);
    }
    t->is_remapping = false;
}
