/* The turn, and who takes it.
 *
 * THREAD mode: the agent's thread takes turns while there is something to do, looks on for spin_us, then arms every back end and sleeps in epoll until
 * an event, the next deadline, or a call that has work for it (wake_fd, written only while it sleeps). CALLER mode: bt_kv_progress does the same.
 *
 * What a turn has to say to peers is sent when the next one begins, before a sleep, or while a copy has the lock let go: a send wakes a peer, which takes longer than
 * moving a page, and whoever waits for the page that has just come is nearer. API calls leave it to the turn as well, unless the thread sleeps.
 *
 * Sockets are looked at (one epoll_wait of no time) every POLL_US, or POLL_MOVING_US while data moves, so that copying is not taxed with a system call a slice.
 */
#include "transport/agent/agent.h"

#include "transport/control/link.h"
#include "transport/data/end.h"
#include "transport/gateway/gateway_conn.h"

#include "base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define POLL_US 20u
#define POLL_MOVING_US 100u
#define EVENTS_MAX 64
#define SLEEP_MAX_MS 1000u

/* ---- the lock, and waking ---- */
void bt_kv_agent_wake(bt_kv_agent_t *agent)
{
    uint64_t one = 1;

    if (write(agent->wake_fd, &one, sizeof(one)) < 0)
        return; /* it is readable already */
}

void bt_kv_enter(bt_kv_agent_t *agent)
{
    pthread_mutex_lock(&agent->lock);
    agent->now_us = bt_clock_us();
}

void bt_kv_agent_flush(bt_kv_agent_t *agent)
{
    while (!bt_list_empty(&agent->dirty))
        bt_kv_link_flush(bt_container_of(agent->dirty.next, bt_kv_link_t, dirty));
}

void bt_kv_leave(bt_kv_agent_t *agent)
{
    bool is_asleep = atomic_load(&agent->is_asleep), is_needed = agent->has_work && is_asleep;

    if (is_asleep) /* else the next turn says it, for many calls at once */
        bt_kv_agent_flush(agent);
    if (is_needed)
        atomic_store(&agent->is_asleep, false);
    pthread_mutex_unlock(&agent->lock);
    if (is_needed)
        bt_kv_agent_wake(agent);
}

void bt_kv_unlock(bt_kv_agent_t *agent)
{
    bt_kv_agent_flush(agent);
    pthread_mutex_unlock(&agent->lock);
}

void bt_kv_relock(bt_kv_agent_t *agent)
{
    pthread_mutex_lock(&agent->lock);
}

void bt_kv_agent_notify(bt_kv_agent_t *agent)
{
    uint64_t one = 1;

    if (atomic_load_explicit(agent->is_event_wanted, memory_order_relaxed) &&
        write(agent->event_fd, &one, sizeof(one)) < 0)
        return; /* full: readable anyway */
}

int bt_kv_watch(bt_kv_agent_t *agent, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events};

    if (epoll_ctl(agent->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return errno == EEXIST && epoll_ctl(agent->epoll_fd, EPOLL_CTL_MOD, fd, &event) == 0
               ? 0
               : BT_E_LIMIT;
}

void bt_kv_unwatch(bt_kv_agent_t *agent, int fd)
{
    epoll_ctl(agent->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

/* ---- the turn ---- */
static int poll_sockets(bt_kv_agent_t *agent, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(agent->epoll_fd, events, EVENTS_MAX, timeout_ms), done = 0;
    uint64_t count;

    if (timeout_ms != 0) { /* slept without the lock */
        pthread_mutex_lock(&agent->lock);
        atomic_store(&agent->is_asleep, false);
    }
    agent->now_us = agent->polled_us = bt_clock_us();
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (what == agent) {
            if (read(agent->wake_fd, &count, sizeof(count)) > 0)
                done++;
        } else if (what == &agent->listen_fd) {
            bt_kv_link_accept(agent);
            done++;
        } else if (bt_kv_gateways_owns(agent, what)) {
            bt_kv_gateway_conn_event(what, events[i].events);
            done++;
        } else if (what != NULL) {
            bt_kv_link_event(what, events[i].events);
            done++;
        }
    }
    return done;
}

int bt_kv_links_attend(bt_kv_agent_t *agent)
{
    bt_list_t list;
    int done = 0;

    if (bt_list_empty(&agent->attention))
        return 0;
    list = agent->attention; /* those that ask again meanwhile come in the next turn */
    list.next->prev = list.prev->next = &list;
    bt_list_init(&agent->attention);
    while (!bt_list_empty(&list)) {
        bt_list_t *first = list.next;
        bt_list_remove(first);
        done += bt_kv_link_step(bt_container_of(first, bt_kv_link_t, attention));
    }
    return done;
}

static uint32_t heartbeat_check_ms(const bt_kv_agent_t *agent)
{
    uint32_t ms = agent->config.heartbeat_ms < agent->config.dead_ms ? agent->config.heartbeat_ms
                                                                     : agent->config.dead_ms;
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next)
        if (bt_container_of(it, bt_kv_link_t, link)->state == BT_KV_LINK_LOST)
            return 5;
    return ms / 4 + 1;
}

static int keep_time(bt_kv_agent_t *agent)
{
    if (agent->now_us >= agent->heartbeat_us) {
        bt_kv_links_heartbeat(agent);
        bt_kv_sender_expire(agent);
        agent->heartbeat_us = agent->now_us + (uint64_t) heartbeat_check_ms(agent) * 1000;
    }
    if (agent->now_us >= bt_kv_rooms_due_us(agent))
        bt_kv_rooms_expire(agent);
    return agent->gateways != NULL ? bt_kv_gateways_turn(agent) : 0;
}

/* Under the lock; back ends may let it go inside. */
int bt_kv_agent_turn(bt_kv_agent_t *agent)
{
    int done = 0;

    agent->has_work = false;
    agent->now_us = bt_clock_us();
    bt_kv_agent_flush(agent);
    if (agent->now_us - agent->polled_us >= (agent->is_moving ? POLL_MOVING_US : POLL_US))
        done += poll_sockets(agent, 0);
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        if (agent->backends[i] != NULL)
            done += agent->backends[i]->ops->progress(agent->backends[i]);
    if (done > 0)
        agent->now_us = bt_clock_us();
    done += bt_kv_links_attend(agent);
    done += bt_kv_ends_drain(agent);
    done += keep_time(agent);
    agent->is_moving = done > 0;
    return done + (agent->has_work ? 1 : 0);
}

static bool arm(bt_kv_agent_t *agent)
{
    bool is_busy = false;

    for (unsigned i = 0; i < BT_KV_BACKENDS && !is_busy; i++)
        if (agent->backends[i] != NULL)
            is_busy = agent->backends[i]->ops->arm(agent->backends[i]);
    return is_busy;
}

static int sleep_ms(const bt_kv_agent_t *agent, uint32_t limit_ms)
{
    uint64_t due_us = bt_kv_rooms_due_us(agent);

    if (due_us > agent->heartbeat_us)
        due_us = agent->heartbeat_us;
    if (agent->gateways != NULL && due_us > agent->gateways->due_us)
        due_us = agent->gateways->due_us;
    uint64_t ms = due_us > agent->now_us ? (due_us - agent->now_us + 999) / 1000 : 1;
    if (!bt_list_empty(&agent->draining))
        ms = 1; /* a back end may drain without an event */
    return (int) (ms < limit_ms ? ms : limit_ms);
}

/* Under the lock, which is let go while it sleeps. */
int bt_kv_agent_doze(bt_kv_agent_t *agent, uint32_t limit_ms)
{
    agent->now_us = bt_clock_us();
    int ms = sleep_ms(agent, limit_ms);

    if (ms <= 0 || agent->has_work || arm(agent))
        return 0;
    atomic_store(&agent->is_asleep, true);
    bt_kv_agent_flush(agent);
    pthread_mutex_unlock(&agent->lock);
    return poll_sockets(agent, ms);
}

void *bt_kv_agent_run(void *user)
{
    bt_kv_agent_t *agent = user;
    uint64_t idle_since_us = 0;

    pthread_mutex_lock(&agent->lock);
    while (!agent->is_stopped) {
        if (bt_kv_agent_turn(agent) > 0) {
            idle_since_us = 0;
        } else if (idle_since_us == 0) {
            idle_since_us = agent->now_us;
        } else if (agent->now_us - idle_since_us >= agent->config.spin_us) {
            bt_kv_agent_doze(agent, SLEEP_MAX_MS);
            idle_since_us = 0;
        }
        pthread_mutex_unlock(&agent->lock);
        pthread_mutex_lock(&agent->lock);
    }
    pthread_mutex_unlock(&agent->lock);
    return NULL;
}

int bt_kv_progress(bt_kv_agent_t *agent, uint32_t timeout_ms)
{
    if (agent == NULL || agent->has_thread)
        return 0;
    pthread_mutex_lock(&agent->lock);
    int done = bt_kv_agent_turn(agent);
    if (done == 0 && timeout_ms > 0) {
        bt_kv_agent_doze(agent, timeout_ms);
        done = bt_kv_agent_turn(agent);
    }
    pthread_mutex_unlock(&agent->lock);
    return done;
}
