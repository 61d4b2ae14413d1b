/* An ordinary start listens first and serves 503 until workers are usable, so that an orchestrator sees it at once. Where clients wait
 * elsewhere meanwhile it is the other way round: a successor's are answered by the process before, those of a socket of systemd's stay in it. */
#include "gateway/startup.h"

#include "admin/admin.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/notify.h"
#include "gateway/transfer.h"
#include "gateway/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAKE_OVER_MS 30000U /* a successor that has no usable workers */

int bt_gateway_listen_admin(bt_gateway_t *g)
{
    int fd = g->admin_fd;
    g->admin_fd = -1;
    return bt_admin_listen(g->admin, fd);
}

static bool any_usable(const bt_gateway_t *g)
{
    const bt_workers_t *workers = bt_registry_current(g->registry);
    char why[512];
    for (unsigned i = 0; i < workers->pool_count; i++)
        if (bt_workers_topology(&workers->pools[i], bt_clock_ms(), why, sizeof why) !=
            BT_TOPOLOGY_NONE)
            return true;
    return false;
}

static void log_not_usable(const bt_gateway_t *g)
{
    const bt_workers_t *workers = bt_registry_current(g->registry);
    for (unsigned i = 0; i < workers->pool_count; i++) {
        char why[512] = "";
        (void) bt_workers_topology(&workers->pools[i], bt_clock_ms(), why, sizeof why);
        bt_log_error("gateway", "pool %s is not usable %llu ms after the start: %s",
                     workers->pools[i].spec.name,
                     (unsigned long long) g->config->startup_timeout_ms, why);
    }
}

static void put_host(bt_text_t *out, bool has_tls, const char *host, unsigned port)
{
    const bool is_bare_v6 = strchr(host, ':') != NULL && host[0] != '[';

    bt_text_puts(out, has_tls ? "https://" : "http://");
    bt_text_printf(out, is_bare_v6 ? "[%s]:%u" : "%s:%u", host, port);
}

/* --dev: where to ask, and what for. */
static void log_dev(const bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    bt_text_t text;

    if (!c->dev)
        return;
    bt_text_init(&text);
    bt_text_puts(&text, "dev: clients  ");
    put_host(&text, g->client_tls != NULL, c->host, g->port);
    bt_text_puts(&text, "/v1/completions\ndev: admin    ");
    put_host(&text, g->admin_tls != NULL, c->admin_host, g->admin_port);
    bt_text_puts(&text, "/policies\ndev: explain  ");
    put_host(&text, g->admin_tls != NULL, c->admin_host, g->admin_port);
    bt_text_printf(&text,
                   "/explain/ID?format=text  why a request went where it did; ID is the answer's "
                   "x-request-id\ndev: policies of %s are followed as they change\n",
                   c->policy_dir);
    bt_log_line((bt_str_t){text.data, text.len - 1}); /* without the last newline */
    bt_text_fini(&text);
}

void bt_gateway_log_start(const bt_gateway_t *g)
{
    const bt_config_t *c = g->config;
    const bt_workers_t *workers = bt_registry_current(g->registry);
    bt_log_info("gateway", "baton %s: clients on %s:%u%s, admin on %s:%u%s, %u loops", BT_VERSION,
                c->host, g->port, g->client_tls != NULL ? " (TLS)" : "", c->admin_host,
                g->admin_port, g->admin_tls != NULL ? " (TLS)" : "", g->loop_count);
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_worker_pool_t *pool = &workers->pools[i];
        bt_log_info("gateway", "pool %s: %u prefill, %u decode, %u hybrid, %u encode, policy %s",
                    pool->spec.name, pool->prefill.count, pool->decode.count, pool->hybrid.count,
                    pool->encode.count,
                    pool->spec.policy != NULL ? pool->spec.policy : "least_load");
    }
    if (!bt_host_is_loopback(c->host) && !c->dispatch.asks_identity &&
        (c->tls.client_ca == NULL || c->tls_client_auth != 0))
        bt_log_warn("gateway",
                    "everybody who reaches %s:%u may use it: no --client-api-keys-file and no "
                    "--jwt-issuer",
                    c->host, g->port);
    if (c->admin_metrics_only)
        bt_log_warn("gateway",
                    "admin on %s:%u serves only /metrics and /health: beyond loopback the rest "
                    "needs --admin-api-key",
                    c->admin_host, g->admin_port);
    bt_gateway_transfer_log(g);
    log_dev(g);
}

/* Whoever waits for the file must never read half of it. */
static int write_ready_file(const bt_gateway_t *g)
{
    const char *path = g->config->ready_file;
    char temporary[4096], more[160] = "", text[288];
    if (path == NULL)
        return 0;
    int n = snprintf(temporary, sizeof temporary, "%s.%ld", path, (long) getpid());
    const struct {
        const char *name;
        unsigned port;
    } ports[] = {{"transfer_port", g->transfer_port},
                 {"registry_port", g->registry_port},
                 {"metaserver_port", g->metaserver_port},
                 {"p2p_nccl_port", g->registration_ports[BT_REGISTRATION_P2P_NCCL]},
                 {"moriio_port", g->registration_ports[BT_REGISTRATION_MORIIO]}};
    size_t used = 0;
    for (unsigned i = 0; i < sizeof ports / sizeof ports[0]; i++)
        if (ports[i].port != 0)
            used += (size_t) snprintf(more + used, sizeof more - used, "\"%s\":%u,", ports[i].name,
                                      ports[i].port);
    int size = snprintf(text, sizeof text, "{\"port\":%u,\"admin_port\":%u,%s\"pid\":%ld}\n",
                        g->port, g->admin_port, more, (long) getpid());
    int fd = n < (int) sizeof temporary
                 ? open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)
                 : -1;
    bool ok = fd >= 0 && write(fd, text, (size_t) size) == size;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (ok && rename(temporary, path) == 0)
        return 0;
    bt_log_error("gateway", "cannot write the ready file %s: %s", path, strerror(errno));
    return BT_E_CONFIG;
}

/* A gateway without usable workers is up all the same: they may come. */
void bt_gateway_notify_ready(const bt_gateway_t *g)
{
    if (g->state != BT_GATEWAY_SERVING)
        return;
    bt_gateway_notify(g, "READY=1\nSTATUS=clients on %s:%u, admin on %s:%u%s", g->config->host,
                      g->port, g->config->admin_host, g->admin_port,
                      g->seen_usable ? "" : "; no usable workers yet");
}

/* The part of the start that a successor puts off. */
int bt_gateway_begin_to_serve(bt_gateway_t *g)
{
    int rc = write_ready_file(g);

    if (rc < 0)
        return rc;
    bt_gateway_notify_ready(g);
    bt_gateway_watchdog_start(g);
    return 0;
}

static void end_failed(bt_gateway_t *g)
{
    g->exit_code = 1;
    bt_gateway_stop(g);
}

void bt_gateway_on_listening(bt_gateway_t *g, int rc)
{
    if (rc < 0)
        bt_log_error("gateway", "cannot listen: %s", bt_err_text(rc));
    if (rc < 0 || g->state != BT_GATEWAY_SERVING) {
        end_failed(g);
        return;
    }
    if (++g->listening_loops < g->loop_count)
        return;
    if ((rc = bt_gateway_listen_admin(g)) < 0 || bt_gateway_begin_to_serve(g) < 0) {
        end_failed(g);
        return;
    }
    if (!bt_gateway_is_successor())
        return;
    bt_gateway_tell_predecessor(g);
    bt_log_info("gateway", "taken over from process %ld", (long) getppid());
}

/* True: it is not time yet. */
static bool waits_to_listen(bt_gateway_t *g)
{
    if (g->is_listening)
        return false;
    if (bt_gateway_may_listen(g)) {
        g->is_listening = true;
        for (unsigned i = 0; i < g->loop_count; i++)
            bt_gateway_loop_listen(&g->loops[i]);
        return false;
    }
    if (bt_gateway_is_successor() && bt_clock_ms() - g->start_ms >= TAKE_OVER_MS) {
        bt_log_error("gateway", "no usable workers %u ms after the start: the process before stays",
                     TAKE_OVER_MS);
        end_failed(g);
    } else {
        bt_timer_start(&g->startup, BT_GATEWAY_STARTUP_MS / 4);
    }
    return true;
}

/* Says once that requests can be served; gives up when told to (--worker-startup-timeout-secs). */
void bt_gateway_on_startup(bt_timer_t *timer)
{
    bt_gateway_t *g = bt_container_of(timer, bt_gateway_t, startup);
    uint64_t age_ms = bt_clock_ms() - g->start_ms, limit_ms = g->config->startup_timeout_ms;
    if (waits_to_listen(g))
        return;
    if (any_usable(g)) {
        g->seen_usable = true;
        bt_log_info("gateway", "ready: usable workers %llu ms after the start",
                    (unsigned long long) age_ms);
        bt_gateway_notify_ready(g);
        return;
    }
    if (limit_ms == 0 || age_ms < limit_ms) {
        bt_timer_start(timer, BT_GATEWAY_STARTUP_MS);
        return;
    }
    log_not_usable(g);
    end_failed(g);
}
