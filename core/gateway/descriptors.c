/*   limit = open + operator + refusals + files and workers' health + clients + connections to workers
 *
 * A client's connection may need two to workers, so clients get a third of what is left when nothing is said. Who asks for more
 * (--max-connections) knows that not all of them are busy, or that a request has one worker: half is the most. Neither side
 * takes what is the other's: a request that is split for many workers shuts no client out, idle clients no request.
 */
#include "gateway/descriptors.h"

#include "base/err.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>

#define LIMIT_MAX (UINT64_C(1) << 30) /* where there is none */
#define ADMIN_MIN 8U
#define ADMIN_MAX 128U
#define REFUSALS_MIN 2U
#define REFUSALS_MAX 64U
#define FILES 8U       /* records, reloads, policies, look-ups of names */
#define POLLED_MAX 64U /* BT_MONITOR_PROBES_MAX at once, beside one that is kept for each worker */
#define AGENTS 8U      /* transfer agents of a worker: one for each rank */
#define CALLERS 32U    /* connections of a worker to the metaserver: the threads that call */
#define KV_EVENTS                                                                                  \
    6U /* of a rank whose KV events are followed: three sockets of libzmq, two connections, one to come */
#define TRAFFIC_MIN 6U    /* two clients */
#define BEGIN 24U         /* open before the first loop is */
#define LOOP 6U           /* of each event thread: epoll, wake-up, listener, its spare one */
#define STORE_CLIENT 2U   /* of a loop: one that dies, and its successor */
#define CLIENTS_FEW 1000U /* fewer are told of */
#define MESSAGE " (ulimit -n, LimitNOFILE=)"

static unsigned share_of(uint64_t limit, unsigned part, unsigned least, unsigned most)
{
    const uint64_t fleet = limit / part;

    return fleet < least ? least : fleet > most ? most : (unsigned) fleet;
}

static int refuse_few(uint64_t limit, uint64_t needed, char *err, size_t err_size)
{
    snprintf(err, err_size,
             "the limit of open files is %llu: too few to serve clients, raise it to %llu" MESSAGE,
             (unsigned long long) limit, (unsigned long long) needed);
    return BT_E_CONFIG;
}

int bt_descriptors_divide(const bt_descriptors_need_t *ask, bt_descriptors_t *d_p, char *err,
                          size_t err_size)
{
    const unsigned polled = ask->workers < POLLED_MAX ? ask->workers : POLLED_MAX;
    const uint64_t fixed = ask->open + ask->others + FILES + ask->workers + polled;
    bt_descriptors_t d = {.admin = share_of(ask->limit, 16, ADMIN_MIN, ADMIN_MAX),
                          .refusals = share_of(ask->limit, 64, REFUSALS_MIN, REFUSALS_MAX)};
    const uint64_t taken = fixed + d.admin + 2 * d.refusals;
    const uint64_t traffic = ask->limit > taken ? ask->limit - taken : 0;
    const uint64_t reserves = fixed + ADMIN_MAX + 2 * REFUSALS_MAX; /* of any limit */

    if (traffic < TRAFFIC_MIN)
        return refuse_few(ask->limit, reserves + TRAFFIC_MIN, err, err_size);
    if (ask->max_connections > traffic / 2) {
        snprintf(err, err_size,
                 "--max-connections %u: the limit of open files is %llu, which holds %llu: lower "
                 "the flag, or raise the limit to %llu" MESSAGE,
                 ask->max_connections, (unsigned long long) ask->limit,
                 (unsigned long long) traffic / 2,
                 (unsigned long long) reserves + 2 * (unsigned long long) ask->max_connections);
        return BT_E_CONFIG;
    }
    d.clients = ask->max_connections != 0 ? ask->max_connections : (unsigned) (traffic / 3);
    d.workers = (unsigned) traffic - d.clients;
    *d_p = d;
    return 0;
}

/* ---- the process ---- */

static uint64_t limit_now(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > LIMIT_MAX)
        return LIMIT_MAX;
    return limit.rlim_cur;
}

/* Where /proc is not mounted, about what there must be. */
static uint64_t count_open(unsigned loops)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t count = 0;

    if (dir == NULL)
        return BEGIN + LOOP * (uint64_t) loops;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 3; /* ".", "..", its own */
}

int bt_gateway_descriptors_begin(const bt_config_t *config, char *err, size_t err_size)
{
    const uint64_t needed = BEGIN + LOOP * (uint64_t) config->loops;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            bt_log_warn("gateway", "the limit of open files cannot be raised: %s", strerror(errno));
    }
    if (limit_now() >= needed)
        return 0;
    return refuse_few(limit_now(), needed + FILES + ADMIN_MAX + 2 * REFUSALS_MAX + TRAFFIC_MIN, err,
                      err_size);
}

static unsigned count_workers(const bt_gateway_t *g)
{
    const bt_workers_t *workers = bt_registry_current(g->registry);
    unsigned count = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        count += workers->pools[i].all.count;
    return count;
}

static uint64_t count_kv_ranks(const bt_gateway_t *g)
{
    const bt_workers_t *workers = bt_registry_current(g->registry);
    uint64_t count = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++)
            if (workers->pools[i].all.items[k]->spec.kv_events != NULL)
                count += workers->pools[i].all.items[k]->dp_size;
    return count;
}

/* What is asked to run and wait at once, where that is said, else what a small service has. */
static uint64_t clients_wanted(const bt_config_t *c)
{
    const bt_dispatch_config_t *d = &c->dispatch;
    const uint64_t waiting = d->queue_size != UINT_MAX ? d->queue_size : 0;

    return d->max_concurrent > 0 ? d->max_concurrent + waiting : CLIENTS_FEW;
}

static void tell_division(const bt_config_t *c, uint64_t limit, const bt_descriptors_t *d)
{
    const uint64_t wanted = clients_wanted(c);

    if (c->max_connections != 0 || d->clients >= wanted)
        bt_log_info("gateway", "%llu open files: %u for clients, %u for connections to workers",
                    (unsigned long long) limit, d->clients, d->workers);
    else
        bt_log_warn("gateway",
                    "the limit of open files is %llu: at most %u clients at once, and %u "
                    "connections to workers; for %llu clients raise it to %llu" MESSAGE,
                    (unsigned long long) limit, d->clients, d->workers, (unsigned long long) wanted,
                    (unsigned long long) (4 * wanted + 1024));
}

int bt_gateway_descriptors_divide(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    bt_descriptors_need_t ask = {.limit = limit_now(),
                                 .open = count_open(c->loops) + c->loops + 3, /* spare ones */
                                 .workers = count_workers(g),
                                 .max_connections = c->max_connections};
    bt_descriptors_t d;

    if (c->redis_url != NULL)
        ask.others += STORE_CLIENT * (c->loops + 1);
    if (bt_config_has_transfer(c))
        ask.others += AGENTS * (uint64_t) ask.workers;
    if (bt_config_has_metaserver(c))
        ask.others += CALLERS * (uint64_t) ask.workers;
    if (bt_config_has_registration(c))
        ask.others += ask.workers; /* rank 0 of each registers */
    ask.others += KV_EVENTS * count_kv_ranks(g);
    int rc = bt_descriptors_divide(&ask, &d, err, err_size);
    if (rc < 0)
        return rc;
    tell_division(c, ask.limit, &d);
    rc = bt_budget_set(g->budget, &(bt_budget_limits_t){.clients = d.clients,
                                                        .per_peer = c->max_connections_per_peer,
                                                        .refusals = d.refusals,
                                                        .workers = d.workers});
    if (rc == 0)
        rc = bt_budget_set(g->admin_budget,
                           &(bt_budget_limits_t){.clients = d.admin, .refusals = d.refusals});
    return rc;
}
