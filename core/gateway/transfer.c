#include "gateway/transfer.h"

#include "base/err.h"
#include "base/log.h"
#include "config/check.h"
#include "transfer/metaserver.h"
#include "transfer/registry_server.h"
#include "transfer/transfer.h"

#include <unistd.h>

static void on_gone(void *user, bt_worker_t *worker, const char *why)
{
    const bt_gateway_t *g = user;
    bt_monitor_gone(g->monitor, worker, why);
}

/* Ports that are taken are found before a thread runs. */
static int open_hub(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    const bt_transfer_config_t config = {
        .token = c->transfer_tokens, .on_gone = on_gone, .user = g};
    g->transfer_fd = bt_config_bind("transfer-port", c->transfer_host, c->transfer_port, false,
                                    &g->transfer_port, err, err_size);
    if (g->transfer_fd < 0)
        return g->transfer_fd;
    int rc = bt_transfer_new(&g->transfer, &g->control, &config);
    g->shared.transfer = g->transfer;
    return rc;
}

static int bind_registry(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    g->registry_fd = bt_config_bind("registry-port", c->registry_host, c->registry_port, false,
                                    &g->registry_port, err, err_size);
    return g->registry_fd < 0 ? g->registry_fd : 0;
}

/* The legs of decodes hold its URL. */
static int bind_metaserver(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    g->metaserver_fd = bt_config_bind("metaserver-port", c->metaserver_host, c->metaserver_port,
                                      false, &g->metaserver_port, err, err_size);
    if (g->metaserver_fd < 0)
        return g->metaserver_fd;
    bt_config_metaserver_url(c, g->metaserver_port, g->metaserver_url, sizeof g->metaserver_url);
    g->shared.metaserver_url = g->metaserver_url;
    atomic_store(&bt_worker_has_metaserver, true);
    return 0;
}

/* As one that comes by the admin API. */
static int complete_worker(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                           size_t err_size)
{
    const bt_gateway_t *g = user;
    return bt_config_complete_worker(g->fleet_config, pool, spec, err, err_size);
}

static int open_registration(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    const bt_registration_config_t config = {.host = c->registration_host,
                                             .ports = {c->p2p_nccl_port, c->moriio_port},
                                             .allowed = (const char *const *) c->registration_allow,
                                             .allowed_count = c->registration_allow_count,
                                             .takes_new = c->registration_new_workers,
                                             .new_has_tls = c->registration_scheme != 0,
                                             .complete = complete_worker,
                                             .complete_user = g};
    return bt_registration_open(&g->registration, &g->control, &config, g->registration_ports, err,
                                err_size);
}

int bt_gateway_transfer_open(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    int rc = bt_config_has_transfer(c) ? open_hub(g, err, err_size) : 0;
    if (rc == 0 && bt_config_has_registration(c))
        rc = open_registration(g, err, err_size);
    if (rc == 0 && bt_config_has_registry(c))
        rc = bind_registry(g, err, err_size);
    if (rc == 0 && bt_config_has_metaserver(c))
        rc = bind_metaserver(g, err, err_size);
    return rc;
}

/* Whoever is given the socket closes it. */
static int hand_on(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

static int start_metaserver(bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    const bt_metaserver_config_t config = {.allowed = (const char *const *) c->metaserver_allow,
                                           .allowed_count = c->metaserver_allow_count,
                                           .on_call = bt_dispatch_shared_metaserver_call,
                                           .user = &g->shared};
    return bt_metaserver_new(&g->metaserver, &g->control, hand_on(&g->metaserver_fd), &config);
}

int bt_gateway_transfer_start(bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    const bt_registry_server_config_t config = {.registry = {.token = c->registry_token},
                                                .allowed = (const char *const *) c->registry_allow,
                                                .allowed_count = c->registry_allow_count};
    int rc = 0;
    if (g->transfer != NULL)
        rc = bt_transfer_listen(g->transfer, hand_on(&g->transfer_fd));
    if (rc == 0 && g->registry_fd >= 0)
        rc = bt_registry_server_new(&g->registry_server, &g->control, hand_on(&g->registry_fd),
                                    &config);
    if (rc == 0 && g->metaserver_fd >= 0)
        rc = start_metaserver(g);
    if (rc == 0 && g->registration != NULL)
        rc = bt_registration_start(g->registration, g->registry);
    if (rc == 0)
        bt_gateway_transfer_publish(g, bt_registry_current(g->registry));
    return rc;
}

void bt_gateway_transfer_publish(bt_gateway_t *g, bt_workers_t *workers)
{
    if (g->transfer != NULL)
        bt_transfer_set_workers(g->transfer, workers);
    if (g->registry_server != NULL)
        bt_registry_server_set_workers(g->registry_server, workers);
    if (g->metaserver != NULL)
        bt_metaserver_set_workers(g->metaserver, workers);
    if (g->registration != NULL)
        bt_registration_set_workers(g->registration, workers);
}

void bt_gateway_transfer_set_token(bt_gateway_t *g, const char *tokens)
{
    const bool is_open = tokens == NULL && !bt_host_is_loopback(g->config->transfer_host);

    if (g->transfer == NULL || is_open) /* its listener is what it was at the start */
        return;
    int rc = bt_transfer_set_token(g->transfer, tokens);
    if (rc < 0)
        bt_log_error("gateway", "transfer agents' tokens stay as they were: %s", bt_err_text(rc));
}

static void log_registry(const bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    const char *who = c->registry_token != NULL     ? "to whoever shows the token"
                      : c->registry_allow_count > 0 ? "to this host, the workers' hosts and those "
                                                      "of --registry-allow (no --registry-token)"
                                                    : "to this host and the workers' hosts (no "
                                                      "--registry-token, no --registry-allow)";
    bt_log_info("gateway", "SGLang's registry on %s:%u, open %s", c->registry_host,
                g->registry_port, who);
}

/* Whoever starts it reads who may come in. */
void bt_gateway_transfer_log(const bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    if (g->transfer != NULL)
        bt_log_info(
            "gateway", "transfer agents on %s:%u, open to %s", c->transfer_host, g->transfer_port,
            c->transfer_tokens != NULL ? "agents that have the token"
                                       : "every process of this host (no --transfer-token)");
    if (bt_config_has_registry(c))
        log_registry(g);
    if (bt_config_has_metaserver(c))
        bt_log_info("gateway", "metaserver on %s:%u, decodes call %s", c->metaserver_host,
                    g->metaserver_port, g->metaserver_url);
    for (unsigned i = 0; i < BT_REGISTRATION_KINDS; i++)
        if (g->registration_ports[i] != 0)
            bt_log_info("gateway", "engines with %s register at %s:%u%s",
                        i == BT_REGISTRATION_P2P_NCCL ? "P2pNcclConnector" : "MoRIIOConnector",
                        c->registration_host, g->registration_ports[i],
                        c->registration_new_workers ? ", and become workers" : "");
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void on_closed(void *user)
{
    bt_gateway_t *g = user;
    void (*done)(void *user) = g->transfer_done;
    if (--g->transfer_closing > 0 || done == NULL)
        return;
    g->transfer_done = NULL;
    done(g);
}

void bt_gateway_transfer_close(bt_gateway_t *g, void (*done)(void *user))
{
    bt_transfer_t *hub = g->transfer;
    bt_registry_server_t *server = g->registry_server;
    bt_metaserver_t *metaserver = g->metaserver;
    bt_registration_t *registration = g->registration;
    close_fd(&g->transfer_fd);
    close_fd(&g->registry_fd);
    close_fd(&g->metaserver_fd);
    g->transfer = NULL;
    g->registry_server = NULL;
    g->metaserver = NULL;
    g->registration = NULL;
    g->shared.transfer = NULL;
    g->transfer_done = done;
    g->transfer_closing =
        1U + (hub != NULL) + (server != NULL) + (metaserver != NULL) + (registration != NULL);
    if (registration != NULL)
        bt_registration_close(registration, on_closed, g);
    if (server != NULL)
        bt_registry_server_close(server, on_closed, g);
    if (metaserver != NULL)
        bt_metaserver_close(metaserver, on_closed, g);
    if (hub != NULL)
        bt_transfer_free(hub, on_closed, g);
    on_closed(g); /* our own */
}
