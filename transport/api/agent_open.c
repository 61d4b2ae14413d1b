/* Opening and closing an agent. Closing: no more calls, the thread is joined, every room fails, and turns go on for at most CLOSE_MS until the peers have
 * acknowledged; then the links are cut, whatever is still under way with them.
 */
#include "transport/agent/agent.h"

#include "transport/control/link.h"
#include "transport/data/end.h"
#include "transport/data/lane.h"
#include "transport/gateway/gateway_conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BUCKETS_MAX 16384u
#define CLOSE_MS 1000u

/* ---- open ---- */
static void set_default(uint32_t *value, uint32_t by_default)
{
    if (*value == 0)
        *value = by_default;
}

static int copy_config(bt_kv_agent_t *agent, const bt_kv_config_t *config)
{
    const char **texts[] = {&agent->config.name, &agent->config.host, &agent->config.token,
                            &agent->config.rdma_devices, &agent->config.kv_format};
    bt_kv_config_t *c = &agent->config;

    *c = *config;
    if (c->host == NULL)
        c->host = "127.0.0.1";
    if (c->token != NULL && c->token[0] == '\0')
        c->token = NULL;
    for (unsigned i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        if (*texts[i] == NULL)
            continue;
        agent->strings[i] = strdup(*texts[i]);
        if (agent->strings[i] == NULL)
            return BT_E_NOMEM;
        *texts[i] = agent->strings[i];
    }
    set_default(&c->backends, BT_KV_MEM | BT_KV_SHM | BT_KV_TCP | BT_KV_VERBS);
    set_default(&c->heartbeat_ms, 1000);
    set_default(&c->dead_ms, 5000);
    set_default(&c->bootstrap_ms, 300000);
    set_default(&c->stall_ms, 60000);
    set_default(&c->release_ms, 30000);
    set_default(&c->max_rooms, 65536);
    set_default(&c->lane_depth, 1024);
    set_default(&c->tcp_streams, 1);
    set_default(&c->spin_us, 10);
    agent->is_fake = c->backends == BT_KV_FAKE;
    return 0;
}

static void read_host_id(bt_kv_agent_t *agent)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (f == NULL)
        return;
    if (fgets(agent->host_id, sizeof(agent->host_id), f) == NULL)
        agent->host_id[0] = '\0';
    agent->host_id[strcspn(agent->host_id, "\n")] = '\0';
    fclose(f);
}

static int open_listener(bt_kv_agent_t *agent, char *err, size_t err_size)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(agent->config.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &agent->listen_fd};
    socklen_t size = sizeof(at);
    int on = 1;

    if (inet_pton(AF_INET, agent->config.host, &at.sin_addr) != 1) {
        snprintf(err, err_size, "host \"%s\" is not a numeric IPv4 address", agent->config.host);
        return BT_E_INVAL;
    }
    agent->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (agent->listen_fd >= 0)
        setsockopt(agent->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (agent->listen_fd < 0 || bind(agent->listen_fd, (struct sockaddr *) &at, sizeof(at)) != 0 ||
        listen(agent->listen_fd, 512) != 0 ||
        getsockname(agent->listen_fd, (struct sockaddr *) &at, &size) != 0 ||
        epoll_ctl(agent->epoll_fd, EPOLL_CTL_ADD, agent->listen_fd, &event) != 0) {
        snprintf(err, err_size, "cannot listen on %s:%u: %s; take another port, or 0 for any",
                 agent->config.host, agent->config.port, strerror(errno));
        return BT_E_CONNECT;
    }
    agent->port = ntohs(at.sin_port);
    return 0;
}

static int open_fds(bt_kv_agent_t *agent, char *err, size_t err_size)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = agent};

    agent->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    agent->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    agent->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (agent->epoll_fd < 0 || agent->wake_fd < 0 || agent->event_fd < 0 ||
        epoll_ctl(agent->epoll_fd, EPOLL_CTL_ADD, agent->wake_fd, &event) != 0) {
        snprintf(err, err_size, "no file descriptor left: %s; raise the limit (ulimit -n)",
                 strerror(errno));
        return BT_E_LIMIT;
    }
    return agent->is_fake ? 0 : open_listener(agent, err, err_size);
}

static int open_backends(bt_kv_agent_t *agent, char *err, size_t err_size)
{
    bool has_one = agent->is_fake;

    for (unsigned i = 0; i < BT_KV_BACKENDS; i++) {
        const bt_kv_backend_ops_t *ops = bt_kv_backend_ops_at(i);
        char *why = agent->why_not[i];
        if ((agent->config.backends >> i & 1) == 0)
            snprintf(why, BT_KV_WHY_BYTES, "switched off");
        else if (ops == NULL)
            snprintf(why, BT_KV_WHY_BYTES, "not in this build, or no device");
        else if (ops->open(&agent->backends[i], agent, &agent->config, why, BT_KV_WHY_BYTES) != 0)
            agent->backends[i] = NULL;
        has_one |= agent->backends[i] != NULL;
    }
    if (has_one)
        return 0;
    snprintf(err, err_size, "no back end can be used: mem: %s; shm: %s; tcp: %s; verbs: %s",
             agent->why_not[1], agent->why_not[2], agent->why_not[3], agent->why_not[4]);
    return BT_E_CONFIG;
}

static int init(bt_kv_agent_t *agent, const bt_kv_config_t *config)
{
    bt_list_t *lists[] = {&agent->early_order, &agent->starting,   &agent->moving,
                          &agent->ending,      &agent->draining,   &agent->links,
                          &agent->dirty,       &agent->attention,  &agent->free_jobs,
                          &agent->free_parts,  &agent->free_items, &agent->free_ends};
    uint32_t buckets = 64;

    for (unsigned i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        bt_list_init(lists[i]);
    agent->epoll_fd = agent->wake_fd = agent->event_fd = agent->listen_fd = -1;
    pthread_mutex_init(&agent->lock, NULL);
    int rc = copy_config(agent, config);
    while (buckets < agent->config.max_rooms && buckets < BUCKETS_MAX)
        buckets *= 2;
    agent->is_event_wanted = calloc(1, sizeof(*agent->is_event_wanted));
    agent->tombs = calloc(BT_KV_TOMBS, sizeof(*agent->tombs));
    if (rc == 0 && (agent->is_event_wanted == NULL || agent->tombs == NULL))
        rc = BT_E_NOMEM;
    if (rc == 0)
        rc = bt_kv_rooms_init(&agent->rooms, agent->config.max_rooms);
    if (rc == 0)
        rc = bt_map_init(&agent->senders, buckets);
    if (rc == 0)
        rc = bt_map_init(&agent->early, buckets);
    if (rc == 0)
        rc = bt_map_init(&agent->ends, buckets);
    bt_rand_secure(&agent->incarnation, sizeof(agent->incarnation));
    read_host_id(agent);
    return rc;
}

/* Whoever starts it reads who can reach it. */
static void log_open(const bt_kv_agent_t *agent)
{
    const bt_kv_config_t *c = &agent->config;

    if (agent->is_fake)
        return;
    if (c->token == NULL && c->allow_remote)
        bt_log_warn("kv",
                    "%s: %s:%u is open to whoever reaches it, to read and write pages: no token, "
                    "and allow_remote",
                    c->name, c->host, agent->port);
    else
        bt_log_info("kv", "%s: %s:%u is open to %s", c->name, c->host, agent->port,
                    c->token != NULL ? "agents that have the token"
                                     : "processes of this host only: no token");
}

static void free_agent(bt_kv_agent_t *agent);

int bt_kv_agent_open(bt_kv_agent_t **agent_p, const bt_kv_config_t *config, char *err,
                     size_t err_size)
{
    char none[1];

    if (err == NULL || err_size == 0) {
        err = none;
        err_size = sizeof(none);
    }
    err[0] = '\0';
    if (agent_p == NULL || config == NULL || config->name == NULL || config->name[0] == '\0') {
        snprintf(err, err_size, "the agent has no name: set config.name");
        return BT_E_INVAL;
    }
    if (config->kv_format != NULL && strlen(config->kv_format) > BT_KV_FORMAT_MAX) {
        snprintf(err, err_size, "kv_format has %zu bytes, at most %u may be: shorten it",
                 strlen(config->kv_format), BT_KV_FORMAT_MAX);
        return BT_E_INVAL;
    }
    if (config->token != NULL && strlen(config->token) > BT_KV_SECRET_MAX) {
        snprintf(err, err_size, "token has %zu bytes, at most %u may be: shorten it",
                 strlen(config->token), BT_KV_SECRET_MAX);
        return BT_E_INVAL;
    }
    bt_kv_agent_t *agent = calloc(1, sizeof(*agent));
    int rc = agent != NULL ? init(agent, config) : BT_E_NOMEM;
    if (rc != 0)
        snprintf(err, err_size, "out of memory");
    if (rc == 0)
        rc = open_fds(agent, err, err_size);
    if (rc == 0)
        rc = open_backends(agent, err, err_size);
    if (rc == 0 && agent->config.progress == BT_KV_PROGRESS_THREAD) {
        agent->has_thread = pthread_create(&agent->thread, NULL, bt_kv_agent_run, agent) == 0;
        if (!agent->has_thread) {
            snprintf(err, err_size, "cannot make the agent's thread: %s", strerror(errno));
            rc = BT_E_LIMIT;
        }
    }
    if (rc != 0 && agent != NULL)
        free_agent(agent);
    if (rc == 0) {
        log_open(agent);
        *agent_p = agent;
    }
    return rc;
}

/* ---- close ---- */
static void free_lists(bt_kv_agent_t *agent)
{
    bt_kv_lane_fini(agent);
    while (!bt_list_empty(&agent->free_ends)) {
        bt_kv_end_t *end = bt_container_of(agent->free_ends.next, bt_kv_end_t, order);
        bt_list_remove(&end->order);
        bt_kv_end_body_free(end);
    }
    while (!bt_list_empty(&agent->free_jobs)) {
        bt_kv_job_t *job = bt_container_of(agent->free_jobs.next, bt_kv_job_t, link);
        bt_list_remove(&job->link);
        free(job->pages);
        free(job);
    }
}

static void free_agent(bt_kv_agent_t *agent)
{
    int fds[] = {agent->epoll_fd, agent->wake_fd, agent->event_fd, agent->listen_fd};

    bt_kv_gateways_close(agent);
    bt_kv_memory_fini(agent);
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        if (agent->backends[i] != NULL)
            agent->backends[i]->ops->close(agent->backends[i]);
    free_lists(agent);
    for (uint32_t i = 0; i < agent->rooms.fresh; i++)
        bt_kv_room_body_free(agent->rooms.bodies[i]);
    bt_kv_rooms_fini(&agent->rooms);
    free(agent->senders.buckets);
    free(agent->early.buckets);
    free(agent->ends.buckets);
    free(agent->tombs);
    free((void *) agent->is_event_wanted);
    for (unsigned i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (unsigned i = 0; i < sizeof(agent->strings) / sizeof(*agent->strings); i++)
        free(agent->strings[i]);
    pthread_mutex_destroy(&agent->lock);
    free(agent);
}

static bool is_noisy(const bt_kv_agent_t *agent)
{
    for (uint32_t i = 0; i < agent->rooms.fresh; i++) {
        const struct bt_kv_room *room = agent->rooms.bodies[i];
        if (room != NULL && room->handle != 0 && room->noisy_ends > 0)
            return true;
    }
    return false;
}

static void fail_all(bt_kv_agent_t *agent)
{
    for (uint32_t i = 0; i < agent->rooms.fresh; i++) {
        struct bt_kv_room *room = agent->rooms.bodies[i];
        if (room != NULL && room->handle != 0)
            bt_kv_room_fail(agent, room, BT_E_CANCELLED, "agent %s closes", agent->config.name);
    }
    while (!bt_list_empty(&agent->early_order))
        bt_kv_end_refuse(agent, bt_container_of(agent->early_order.next, bt_kv_end_t, order),
                         BT_E_CANCELLED, "the agent closes");
}

/* Links say goodbye; whatever is still under way is cut off by closing its path. */
static void close_links(bt_kv_agent_t *agent)
{
    bt_list_t *it, *tmp;

    bt_list_each (&agent->links, it, tmp)
        bt_kv_link_break(bt_container_of(it, bt_kv_link_t, link), BT_E_CANCELLED, "agent %s closes",
                         agent->config.name);
    bt_kv_links_attend(agent);
    bt_list_each (&agent->links, it, tmp) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        bt_kv_link_close_path(link);
        while (!bt_list_empty(&link->ends)) {
            bt_kv_end_t *end = bt_container_of(link->ends.next, bt_kv_end_t, on_link);
            bt_list_remove(&end->on_link);
            end->link = NULL;
        }
        bt_kv_link_free(link);
    }
}

void bt_kv_agent_close(bt_kv_agent_t *agent)
{
    if (agent == NULL)
        return;
    bt_kv_enter(agent);
    agent->is_closing = agent->is_stopped = true;
    agent->has_work = true;
    bt_kv_leave(agent);
    if (agent->has_thread) {
        bt_kv_agent_wake(agent);
        pthread_join(agent->thread, NULL);
    }
    bt_kv_enter(agent);
    fail_all(agent);
    bt_kv_agent_flush(agent);
    uint64_t end_us = agent->now_us + (uint64_t) CLOSE_MS * 1000;
    while (is_noisy(agent) && bt_clock_us() < end_us)
        if (bt_kv_agent_turn(agent) == 0)
            bt_kv_agent_doze(agent, 10);
    close_links(agent);
    for (uint32_t i = 0; i < agent->rooms.fresh; i++)
        if (agent->rooms.bodies[i] != NULL && agent->rooms.bodies[i]->handle != 0)
            bt_kv_room_free(agent, agent->rooms.bodies[i]);
    pthread_mutex_unlock(&agent->lock);
    free_agent(agent);
}

uint16_t bt_kv_agent_port(const bt_kv_agent_t *agent)
{
    return agent != NULL ? agent->port : 0;
}

int bt_kv_agent_fd(const bt_kv_agent_t *agent)
{
    if (agent == NULL)
        return -1;
    atomic_store(agent->is_event_wanted, true);
    return agent->event_fd;
}
