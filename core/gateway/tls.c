/* tls.c - a look a second. Files that have changed are read once they have stayed the same from one look to the next: a certificate
 * and its key are two files, and whoever renews them writes one after the other. */
#include "gateway/tls.h"

#include "base/err.h"
#include "base/log.h"
#include "config/config.h"
#include "loop/offload.h"
#include "tls/client.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_MS 1000
#define WARN_EVERY_MS (12 * 3600 * 1000ULL)
#define WARN_BEFORE_S (14 * 86400)

struct listener {
    bt_tls_server_t *server; /* NULL: plain */
    const char *name;
    uint64_t taken, seen; /* stamps: of what serves, of the last look */
    /* the pool thread's while is_looking */
    int rc;
    bool has_read;
    char err[BT_CONFIG_ERR_BYTES / 2];
};

typedef struct bt_gateway_tls {
    struct listener clients, admin;
    bt_timer_t timer;
    bt_offload_t work;
    uint64_t warned_ms;
    bool is_looking, is_forced, is_again, is_stopped;
} tls_t;

/* ---- looking ---- */

static void read_listener(struct listener *l, bool is_forced)
{
    l->has_read = false;
    if (l->server == NULL)
        return;
    const uint64_t stamp = bt_tls_server_stamp(l->server);
    const bool is_stable = stamp == l->seen;
    l->seen = stamp;
    if (!is_forced && (stamp == l->taken || !is_stable))
        return;
    l->has_read = true;
    l->err[0] = '\0';
    l->rc = bt_tls_server_reload(l->server, l->err, sizeof l->err);
    l->taken = stamp; /* also of files that are no good: told once, until they change again */
}

/* On the pool thread. */
static void tell_client(void *user, int rc, const char *err)
{
    (void) user;
    if (rc < 0)
        bt_log_error("gateway", "TLS to workers or Redis: the certificates stay as they were: %s",
                     err);
    else
        bt_log_info("gateway", "TLS to workers or Redis: certificates are read again");
}

static void look(bt_offload_t *work)
{
    tls_t *t = bt_container_of(work, tls_t, work);

    read_listener(&t->clients, t->is_forced);
    read_listener(&t->admin, t->is_forced);
    bt_tls_clients_look(t->is_forced, tell_client, NULL);
    bt_tls_leave_thread();
}

static void tell(const struct listener *l)
{
    if (l->has_read && l->rc < 0)
        bt_log_error("gateway", "TLS for %s: the certificates stay as they were: %s", l->name,
                     l->err[0] != '\0' ? l->err : bt_err_text(l->rc));
    else if (l->has_read)
        bt_log_info("gateway", "TLS for %s: certificates are read again", l->name);
}

static void warn_of_expiry(const struct listener *l)
{
    char file[256];
    int64_t expiry_s;

    for (unsigned i = 0;
         l->server != NULL && bt_tls_server_expiry(l->server, i, &expiry_s, file, sizeof file);
         i++) {
        const int64_t left_s = expiry_s - (int64_t) time(NULL);
        if (left_s <= 0)
            bt_log_error("gateway", "TLS for %s: %s has expired", l->name, file);
        else if (left_s < WARN_BEFORE_S)
            bt_log_warn("gateway", "TLS for %s: %s expires in %lld hours", l->name, file,
                        (long long) left_s / 3600);
    }
}

static void start_look(tls_t *t, bt_loop_t *loop, bool is_forced);

static void on_looked(bt_offload_t *work)
{
    tls_t *t = bt_container_of(work, tls_t, work);

    t->is_looking = false;
    if (t->is_stopped)
        return;
    tell(&t->clients);
    tell(&t->admin);
    if (t->is_again)
        start_look(t, t->timer.loop, true);
    else
        bt_timer_start(&t->timer, LOOK_MS);
}

static void start_look(tls_t *t, bt_loop_t *loop, bool is_forced)
{
    t->is_looking = true;
    t->is_forced = is_forced;
    t->is_again = false;
    bt_offload_start(&t->work, loop, look, on_looked);
}

static void on_timer(bt_timer_t *timer)
{
    tls_t *t = bt_container_of(timer, tls_t, timer);
    const uint64_t now_ms = bt_clock_ms();

    if (now_ms - t->warned_ms >= WARN_EVERY_MS) {
        t->warned_ms = now_ms;
        warn_of_expiry(&t->clients);
        warn_of_expiry(&t->admin);
    }
    if (t->clients.server != NULL || t->admin.server != NULL || bt_tls_clients_are_there())
        start_look(t, timer->loop, false);
    else
        bt_timer_start(timer, LOOK_MS);
}

void bt_gateway_tls_again(bt_gateway_t *g)
{
    tls_t *t = g->tls;

    if (t == NULL || t->is_stopped)
        return;
    bt_timer_stop(&t->timer);
    if (t->is_looking)
        t->is_again = true;
    else
        start_look(t, &g->control, true);
}

/* ---- life ---- */

static int open_listener(const bt_config_t *c, const bt_config_tls_t *tls, const char *flag,
                         struct listener *l, char *err, size_t err_size)
{
    const bt_tls_server_config_t config = bt_config_tls_of(c, tls);
    char why[BT_CONFIG_ERR_BYTES / 2] = "";

    if (tls->cert_count == 0)
        return 0;
    int rc = bt_tls_server_new(&l->server, &config, why, sizeof why);
    if (rc == BT_E_CONFIG)
        return bt_err_refuse(err, err_size, "--%s: %s", flag, why);
    if (rc == 0)
        l->taken = l->seen = bt_tls_server_stamp(l->server);
    return rc;
}

int bt_gateway_tls_open(bt_gateway_t *g, char *err, size_t err_size)
{
    bt_config_t *c = g->config;
    tls_t *t;

    bt_tls_client_set_default(&c->worker_tls);
    if ((t = calloc(1, sizeof *t)) == NULL)
        return BT_E_NOMEM;
    g->tls = t;
    t->clients.name = "clients";
    t->admin.name = "the admin port";
    t->warned_ms = bt_clock_ms(); /* reading them has told */
    bt_timer_init(&g->control, &t->timer, on_timer);
    int rc = open_listener(c, &c->tls, "tls-cert", &t->clients, err, err_size);
    if (rc == 0)
        rc = open_listener(c, &c->admin_tls, "admin-tls-cert", &t->admin, err, err_size);
    c->server.tls = g->client_tls = t->clients.server;
    g->admin_tls = t->admin.server;
    return rc;
}

void bt_gateway_tls_start(bt_gateway_t *g)
{
    if (g->tls != NULL)
        bt_timer_start(&g->tls->timer, LOOK_MS);
}

void bt_gateway_tls_stop(bt_gateway_t *g)
{
    if (g->tls == NULL)
        return;
    g->tls->is_stopped = true;
    bt_timer_stop(&g->tls->timer);
}

void bt_gateway_tls_free(bt_gateway_t *g)
{
    tls_t *t = g->tls;

    bt_tls_client_set_default(NULL);
    if (t == NULL)
        return;
    bt_tls_server_free(t->clients.server);
    bt_tls_server_free(t->admin.server);
    g->tls = NULL;
    free(t);
}
