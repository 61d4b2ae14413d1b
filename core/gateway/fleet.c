#include "gateway/fleet.h"

#include "base/err.h"
#include "base/log.h"
#include "fleet/quota.h"
#include "gateway/rollout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OWNER_DIGITS 16

/* "<host name>:<admin port>": unique where host names are, and the same after a restart. */
static int name_replica(bt_gateway_t *g)
{
    char host[64] = "", name[96];

    if (g->config->replica_name != NULL) {
        g->replica = bt_str_dup(bt_str(g->config->replica_name));
    } else {
        if (gethostname(host, sizeof(host) - 1) < 0 || host[0] == '\0')
            snprintf(host, sizeof(host), "gateway");
        snprintf(name, sizeof(name), "%s:%u", host, g->admin_port);
        g->replica = bt_str_dup(bt_str(name));
    }
    return g->replica != NULL ? 0 : BT_E_NOMEM;
}

static const char *space_of(const bt_gateway_t *g)
{
    return g->config->fleet_name != NULL ? g->config->fleet_name : "fleet";
}

/* Without --redis-url the store is this process's own: what policies keep in it is there, and nothing is shared. */
int bt_gateway_fleet_open(bt_gateway_t *g, char *err, size_t err_size)
{
    int rc = name_replica(g);

    if (rc == 0)
        rc = bt_store_open(&g->store, &g->config->store, err, err_size);
    if (rc == 0)
        rc = bt_quotas_new(&g->quotas, space_of(g));
    if (rc < 0)
        return rc;
    g->shared.store = g->store;
    g->shared.space = space_of(g);
    g->shared.replica = g->replica;
    g->shared.quotas = g->quotas;
    if ((rc = bt_limits_new(&g->limits)) < 0)
        return rc;
    g->shared.limits = g->limits;
    bt_gateway_limits_set(g, g->config);
    bt_wait_store_of_process(&(bt_wait_process_t){
        .store = g->store, .quotas = g->quotas, .space = space_of(g), .replica = g->replica});
    return 0;
}

void bt_gateway_limits_set(bt_gateway_t *g, const bt_config_t *config)
{
    bt_limits_set(g->limits, config->limits != NULL ? bt_limit_table_ref(config->limits) : NULL);
}

/* ---- loops ---- */

int bt_gateway_fleet_loop_open(bt_gateway_loop_t *el)
{
    bt_gateway_t *g = el->gateway;
    int rc = bt_store_client_new(&el->store, g->store, &el->loop, NULL, NULL);

    if (rc == 0 && bt_store_is_shared(g->store)) {
        el->ring = bt_prefix_ring_new();
        rc = el->ring != NULL ? 0 : BT_E_NOMEM;
    }
    return rc == 0 ? bt_dispatcher_set_store(el->dispatcher, el->store) : rc;
}

static void on_client_gone(void *user)
{
    bt_gateway_loop_t *el = user;

    el->store = NULL;
    bt_loop_stop(&el->loop);
}

void bt_gateway_fleet_loop_close(bt_gateway_loop_t *el)
{
    if (el->store != NULL)
        bt_store_client_free(el->store, on_client_gone, el);
    while (el->store != NULL)
        bt_loop_run(&el->loop);
    bt_prefix_ring_free(el->ring);
    el->ring = NULL;
}

/* ---- the share ---- */

static void on_hint(void *user, bt_worker_t *w)
{
    bt_gateway_t *g = user;

    if (g->monitor != NULL)
        bt_monitor_check(g->monitor, w);
}

/* "<owner in hexadecimal> <id>": who is checked where the request lives. */
static void cancel_here(bt_gateway_t *g, bt_str_t argument)
{
    char owner[OWNER_DIGITS + 1];

    if (argument.n <= OWNER_DIGITS + 1 || argument.p[OWNER_DIGITS] != ' ')
        return;
    memcpy(owner, argument.p, OWNER_DIGITS);
    owner[OWNER_DIGITS] = '\0';
    bt_dispatch_shared_cancel_here(
        &g->shared, (bt_str_t){argument.p + OWNER_DIGITS + 1, argument.n - OWNER_DIGITS - 1},
        strtoull(owner, NULL, 16));
}

static void on_call(void *user, bt_str_t name, bt_str_t argument)
{
    bt_gateway_t *g = user;

    if (bt_str_eq(name, BT_STR("cancel")))
        cancel_here(g, argument);
}

static int begin_role(void *user, bt_worker_t *w, const bt_role_switch_ask_t *ask, char *err,
                      size_t err_size)
{
    bt_gateway_t *g = user;

    if (g->role_switches != NULL)
        return bt_role_switches_begin(g->role_switches, w, ask, err, err_size);
    snprintf(err, err_size, "the gateway ends");
    return BT_E_AGAIN;
}

static void on_role_failed(void *user, bt_worker_t *w, enum bt_role to, bool is_unclear)
{
    bt_gateway_t *g = user;

    if (g->fleet != NULL)
        bt_fleet_role_failed(g->fleet, w, to, is_unclear);
}

/* A request that is not here may be on another replica. From the request loops, hence the mail. */
typedef struct mail {
    bt_mail_t envelope;
    bt_gateway_t *gateway;
    size_t n;
    char argument[];
} mail_t;

static void on_not_here(bt_loop_t *control, bt_mail_t *envelope)
{
    mail_t *mail = bt_container_of(envelope, mail_t, envelope);

    (void) control;
    if (mail->gateway->fleet != NULL)
        (void) bt_fleet_call(mail->gateway->fleet, "cancel", (bt_str_t){mail->argument, mail->n});
    free(mail);
}

static void cancel_elsewhere(void *user, bt_str_t id, uint64_t owner)
{
    bt_gateway_t *g = user;
    mail_t *mail = malloc(sizeof(*mail) + OWNER_DIGITS + 1 + id.n + 1);

    if (mail == NULL)
        return;
    mail->gateway = g;
    mail->n = OWNER_DIGITS + 1 + id.n;
    snprintf(mail->argument, mail->n + 1, "%0*" PRIx64 " %.*s", OWNER_DIGITS, owner,
             BT_STR_ARG(id));
    bt_loop_post(&g->control, &mail->envelope, on_not_here);
}

/* How people reach this one's admin side, if it does not listen everywhere. */
static const char *admin_url(const bt_gateway_t *g, char *url, size_t size)
{
    const char *host = g->config->admin_host;

    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        return NULL;
    const bool is_v6 = strchr(host, ':') != NULL;
    snprintf(url, size, "http%s://%s%s%s:%u", g->admin_tls != NULL ? "s" : "", is_v6 ? "[" : "",
             host, is_v6 ? "]" : "", g->admin_port);
    return url;
}

/* ---- the first read ---- */

struct first_read {
    bt_timer_t deadline;
    bt_gateway_t *g;
    bool is_late;
};

static void on_first_read(void *user)
{
    bt_gateway_t *g = user;

    if (g->state == BT_GATEWAY_STARTING)
        bt_loop_stop(&g->control);
}

static void on_late(bt_timer_t *timer)
{
    struct first_read *wait = bt_container_of(timer, struct first_read, deadline);

    wait->is_late = true;
    bt_loop_stop(&wait->g->control);
}

/* Or the first requests would meet workers that an operator has drained. Signals end it, too. */
static void wait_for_first_read(bt_gateway_t *g)
{
    struct first_read wait = {.g = g};

    bt_timer_init(&g->control, &wait.deadline, on_late);
    bt_timer_start(&wait.deadline, BT_FLEET_JOIN_MS);
    bt_loop_run(&g->control);
    bt_timer_stop(&wait.deadline);
    if (wait.is_late)
        bt_log_warn(
            "fleet",
            "the store has not said within %llu ms which workers are drained, or have another "
            "role: until it "
            "does, this replica may use them",
            (unsigned long long) BT_FLEET_JOIN_MS);
}

int bt_gateway_fleet_start(bt_gateway_t *g)
{
    char url[300], err[256] = "";
    const bt_fleet_config_t config = {.store = g->store,
                                      .space = space_of(g),
                                      .replica = g->replica,
                                      .admin_url = admin_url(g, url, sizeof(url)),
                                      .version = BT_VERSION,
                                      .loops = g->loop_count,
                                      .interval_ms = g->config->fleet_heartbeat_ms,
                                      .expiry_ms = g->config->fleet_expiry_ms,
                                      .registry = g->registry,
                                      .quotas = g->quotas,
                                      .on_hint = on_hint,
                                      .on_call = on_call,
                                      .on_first_read = on_first_read,
                                      .begin_role = begin_role,
                                      .user = g};
    int rc;

    if (!bt_store_is_shared(g->store))
        return 0;
    rc = bt_fleet_new(&g->fleet, &g->control, &config, err, sizeof(err));
    for (unsigned i = 0; rc == 0 && i < g->loop_count; i++)
        rc = bt_fleet_add_ring(g->fleet, g->loops[i].ring);
    if (rc < 0) {
        bt_log_error("fleet", "%s", err[0] != '\0' ? err : bt_err_text(rc));
        return rc;
    }
    bt_role_switches_on_failed(g->role_switches, on_role_failed, g);
    bt_fleet_set_workers(g->fleet, bt_registry_current(g->registry));
    g->shared.cancel_elsewhere = cancel_elsewhere;
    g->shared.cancel_elsewhere_user = g;
    bt_log_info("fleet", "replica %s of fleet %s", g->replica, space_of(g));
    wait_for_first_read(g);
    return 0;
}

void bt_gateway_fleet_publish(bt_gateway_t *g, bt_workers_t *workers)
{
    if (g->fleet != NULL)
        bt_fleet_set_workers(g->fleet, workers);
}

/* ---- the end ---- */

static void on_share_closed(void *user)
{
    bt_gateway_t *g = user;
    void (*done)(void *) = g->share_done;

    g->share_done = NULL;
    if (done != NULL)
        done(g);
}

void bt_gateway_fleet_close(bt_gateway_t *g, void (*done)(void *gateway))
{
    bt_fleet_t *fleet = g->fleet;

    g->fleet = NULL;
    g->share_done = done;
    if (fleet != NULL)
        bt_fleet_close(fleet, on_share_closed, g);
    else
        on_share_closed(g);
}

void bt_gateway_fleet_free(bt_gateway_t *g)
{
    bt_wait_store_of_process(NULL);
    bt_limits_free(g->limits);
    bt_quotas_free(g->quotas);
    if (g->store != NULL)
        bt_store_close(g->store);
    free(g->replica);
}
