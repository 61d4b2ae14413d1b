/* One event thread: listener, server, dispatcher. Everything here is opened by the main thread before the thread runs, and
 * closed by it after the thread has ended; in between the control loop only writes mail.
 *
 *   drain: accept what waits, close the listener, no new requests -> idle_check until nothing lives -> mail "idle"
 *   stop:  close the server (clients that still wait are cut), cancel what runs, let the engines be told (background calls, at most
 *          2 s) -> mail "quiet"; the loop goes on turning, because other threads may still write to it
 *   close: all loops are quiet: the thread ends, and the main thread opens the last mail and frees the dispatcher
 */
#include "gateway/process.h"

#include "base/err.h"
#include "base/flight.h"
#include "base/log.h"
#include "base/pages.h"
#include "config/check.h"
#include "config/passed.h"
#include "gateway/crash.h"
#include "gateway/fleet.h"
#include "script/shared/kv_hits.h"
#include "script/shared/prompt_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_CHECK_MS 20
#define TIDY_MS 1000
#define TIDY_MORE_MS 50
/* Connections that hang in their last FIN do not hold the process longer than this after the last request. */
#define LAST_BYTES_MS 2000
/* Nor do those that may bring one more. */
#define LAST_REQUEST_MS 5000

/* Mail to an event thread, or from it to the control loop. */
typedef struct mail {
    bt_mail_t envelope;
    bt_gateway_loop_t *el;
    bt_workers_t *workers; /* reference, or NULL */
    int rc;                /* of tell_listening */
} mail_t;

/* Mail is rare and must arrive: without memory for one the process cannot keep its promises. */
static mail_t *new_mail(bt_gateway_loop_t *el, bt_workers_t *workers)
{
    mail_t *mail = calloc(1, sizeof *mail);
    BT_BUG_ON(mail == NULL);
    mail->el = el;
    mail->workers = workers;
    return mail;
}

static void post(bt_loop_t *to, bt_gateway_loop_t *el, bt_workers_t *workers, bt_mail_cb cb)
{
    bt_loop_post(to, &new_mail(el, workers)->envelope, cb);
}

static mail_t open_mail(bt_mail_t *envelope)
{
    mail_t *mail = bt_container_of(envelope, mail_t, envelope), copy = *mail;
    free(mail);
    return copy;
}

/* ---- accepting ---- */

static bool is_of_proxy(const bt_gateway_loop_t *el, int fd)
{
    struct sockaddr_storage addr;
    socklen_t length = sizeof addr;

    return el->proxy != NULL && getpeername(fd, (struct sockaddr *) &addr, &length) == 0 &&
           bt_edge_is_proxy(&el->gateway->config->edge, &addr);
}

static void on_client(void *user, int fd, const struct sockaddr_storage *client)
{
    const bt_gateway_loop_t *el = user;
    bt_server_accept(el->server, fd, client);
}

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    bt_gateway_t *g = user;
    bt_gateway_loop_t *el = &g->loops[loop->index];
    if (el->server != NULL && is_of_proxy(el, fd)) {
        bt_proxy_take(el->proxy, fd);
        return;
    }
    if (el->server != NULL) {
        bt_server_accept(el->server, fd, NULL);
        return;
    }
    close(fd); /* handed over by another loop after this one has stopped */
    atomic_fetch_sub_explicit(&loop->connections, 1, memory_order_relaxed);
}

static void close_listeners(bt_gateway_loop_t *el)
{
    for (unsigned i = 0; i < el->socket_count; i++) {
        bt_gateway_socket_t *s = &el->sockets[i];
        if (s->listener != NULL)
            bt_listener_close(s->listener);
        else if (s->fd >= 0)
            close(s->fd);
        *s = (bt_gateway_socket_t){.fd = -1};
    }
}

/* ---- draining ---- */

static void tell_idle(bt_loop_t *control, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    (void) control;
    bt_gateway_on_idle(mail.el->gateway);
}

static void tell_quiet(bt_loop_t *control, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    (void) control;
    bt_gateway_on_quiet(mail.el->gateway);
}

/* Another process serves its port on: who is idle may ask once more, and is told by the answer to go. */
static bool is_port_kept(const bt_gateway_t *g)
{
    return g->is_replaced || bt_passed_is_held();
}

static bool has_drained(const bt_gateway_loop_t *el)
{
    return bt_dispatcher_idle(el->dispatcher) && bt_server_active_count(el->server) == 0;
}

static void on_idle_check(bt_timer_t *timer)
{
    bt_gateway_loop_t *el = bt_container_of(timer, bt_gateway_loop_t, idle_check);
    const uint64_t last_ms = is_port_kept(el->gateway) ? LAST_REQUEST_MS : LAST_BYTES_MS;
    uint64_t now_ms = bt_clock_ms();
    if (!has_drained(el))
        el->idle_since_ms = 0;
    else if (el->idle_since_ms == 0)
        el->idle_since_ms = now_ms;
    bool is_done = el->idle_since_ms != 0 && (bt_server_connection_count(el->server) == 0 ||
                                              now_ms - el->idle_since_ms >= last_ms);
    if (!is_done) {
        bt_timer_start(timer, IDLE_CHECK_MS);
        return;
    }
    post(&el->gateway->control, el, NULL, tell_idle);
}

static void on_drain(bt_loop_t *loop, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    bt_gateway_loop_t *el = mail.el;
    (void) loop;
    if (el->server == NULL)
        return;
    close_listeners(el);
    bt_server_drain(el->server, is_port_kept(el->gateway));
    bt_timer_start(&el->idle_check, IDLE_CHECK_MS);
}

void bt_gateway_loop_drain(bt_gateway_loop_t *el)
{
    post(&el->loop, el, NULL, on_drain);
}

/* ---- stopping ---- */

/* Idle twice in a row: what ended in the first look has had its turn to let go of its memory. */
static void on_last_background(bt_timer_t *timer)
{
    bt_gateway_loop_t *el = bt_container_of(timer, bt_gateway_loop_t, idle_check);
    bool was_idle = el->idle_since_ms != 0;
    el->idle_since_ms = bt_dispatcher_idle(el->dispatcher) ? bt_clock_ms() : 0;
    if (!was_idle || el->idle_since_ms == 0) {
        bt_timer_start(timer, IDLE_CHECK_MS);
        return;
    }
    post(&el->gateway->control, el, NULL, tell_quiet);
}

/* All clients are gone; their legs are cancelled, and the engines hear of it. */
static void on_server_closed(void *arg)
{
    bt_gateway_loop_t *el = arg;
    el->server = NULL;
    bt_dispatcher_cancel_all(el->dispatcher);
    bt_timer_init(&el->loop, &el->idle_check, on_last_background);
    el->idle_since_ms = 0;
    bt_timer_start(&el->idle_check, IDLE_CHECK_MS);
}

static void on_stop(bt_loop_t *loop, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    bt_gateway_loop_t *el = mail.el;
    (void) loop;
    bt_timer_stop(&el->idle_check);
    bt_timer_stop(&el->tidy);
    close_listeners(el);
    bt_proxy_close(el->proxy);
    el->proxy = NULL;
    bt_server_close(el->server, on_server_closed, el);
}

void bt_gateway_loop_stop(bt_gateway_loop_t *el)
{
    post(&el->loop, el, NULL, on_stop);
}

/* ---- fleet ---- */

static void on_workers(bt_loop_t *loop, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    char err[BT_CONFIG_ERR_BYTES] = "";
    if (mail.el->dispatcher != NULL &&
        bt_dispatcher_set_workers(mail.el->dispatcher, mail.workers, err, sizeof err) < 0)
        bt_log_error("gateway", "loop %u keeps the old workers and policies: %s", loop->index, err);
    bt_workers_unref(mail.workers);
}

void bt_gateway_loop_publish(bt_gateway_loop_t *el, bt_workers_t *workers)
{
    post(&el->loop, el, bt_workers_ref(workers), on_workers);
}

/* ---- life ---- */

static void on_tidy(bt_timer_t *timer)
{
    bt_timer_start(timer, bt_pages_tidy() ? TIDY_MORE_MS : TIDY_MS);
}

static void run_thread(void *arg)
{
    bt_gateway_loop_t *el = arg;
    char name[16]; /* what top -H and gdb show */
    snprintf(name, sizeof name, "baton-loop-%u", el->loop.index & 0xfff);
    (void) pthread_setname_np(pthread_self(), name);
    bt_flight_bind(el->loop.index);
    bt_crash_thread_begin();
    bt_prefix_ring_bind(el->ring);
    bt_loop_run(&el->loop);
    bt_crash_thread_end();
    bt_kv_hits_thread_fini();
    bt_prompt_ids_thread_fini();
    bt_pages_thread_fini();
}

static int bind_client_port(bt_gateway_loop_t *el, char *err, size_t err_size)
{
    bt_gateway_t *g = el->gateway;
    const bt_config_t *c = g->config;
    el->sockets[0].fd = bt_config_bind("port", c->host, g->port != 0 ? g->port : c->port, true,
                                       &g->port, err, err_size);
    return el->sockets[0].fd < 0 ? el->sockets[0].fd : 0;
}

/* Every socket that was passed has a loop, and every loop a socket: where they are few, several loops have the same one. */
static int take_passed_sockets(bt_gateway_loop_t *el, const bt_passed_t *passed, char *err,
                               size_t err_size)
{
    unsigned index = el->loop.index;

    el->gateway->port = passed->port;
    for (unsigned i = 0; i < el->socket_count; i++, index += el->gateway->config->loops) {
        int fd = passed->fds[index % passed->count];
        if (index >= passed->count)
            fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return bt_err_refuse(err, err_size, "LISTEN_FDS: a socket cannot be shared: %s",
                                 strerror(errno));
        el->sockets[i].fd = fd;
    }
    return 0;
}

static int open_sockets(bt_gateway_loop_t *el, char *err, size_t err_size)
{
    const bt_passed_t *passed = bt_passed(BT_PASSED_CLIENT);
    const unsigned loops = el->gateway->config->loops, index = el->loop.index;
    const unsigned count = index < passed->count ? (passed->count - index - 1) / loops + 1 : 1;

    el->sockets = calloc(count, sizeof *el->sockets);
    if (el->sockets == NULL)
        return bt_err_refuse(err, err_size, "%s", bt_err_text(BT_E_NOMEM));
    el->socket_count = count;
    for (unsigned i = 0; i < count; i++)
        el->sockets[i].fd = -1;
    return passed->count > 0 ? take_passed_sockets(el, passed, err, err_size)
                             : bind_client_port(el, err, err_size);
}

int bt_gateway_loop_open(bt_gateway_loop_t *el, bt_gateway_t *g, unsigned index, char *err,
                         size_t err_size)
{
    bt_unfinished_loop_t *unfinished;

    *el = (bt_gateway_loop_t){.gateway = g};
    int rc = bt_loop_init(&el->loop, index);
    if (rc < 0)
        goto err_text;
    el->has_loop = true;
    bt_timer_init(&el->loop, &el->idle_check, on_idle_check);
    bt_timer_init(&el->loop, &el->tidy, on_tidy);
    if ((rc = open_sockets(el, err, err_size)) < 0)
        return rc;
    if ((rc = bt_dispatcher_new(&el->dispatcher, &el->loop, &g->shared, err, err_size)) < 0)
        return rc;
    g->dispatchers[index] = el->dispatcher;
    if ((rc = bt_gateway_fleet_loop_open(el)) < 0)
        goto err_text;
    rc = bt_server_new(&el->server, &el->loop, &bt_dispatcher_server_ops, &g->config->server,
                       el->dispatcher);
    if (rc == 0 && g->config->edge.proxy_protocol)
        rc = bt_proxy_new(&el->proxy, &el->loop, g->config->server.head_timeout_ms, on_client, el);
    if (rc == 0 && (rc = bt_unfinished_join(g->unfinished, &el->loop, &unfinished)) == 0) {
        bt_server_share_memory(el->server, unfinished);
        return 0;
    }
err_text:
    snprintf(err, err_size, "%s", bt_err_text(rc));
    return rc;
}

static int listen_to_all(bt_gateway_loop_t *el)
{
    for (unsigned i = 0; i < el->socket_count; i++) {
        bt_gateway_socket_t *s = &el->sockets[i];
        int rc = bt_listener_start(&s->listener, &el->loop, s->fd, &el->gateway->group, on_accept,
                                   el->gateway);
        if (rc < 0) {
            s->fd = -1;
            return rc;
        }
        bt_listener_on_full(s->listener, bt_budget_on_full, el->gateway->budget);
    }
    return 0;
}

/* From the event thread to the control loop. */
static void tell_listening(bt_loop_t *control, bt_mail_t *envelope)
{
    mail_t mail = open_mail(envelope);
    (void) control;
    bt_gateway_on_listening(mail.el->gateway, mail.rc);
}

static void on_listen(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_gateway_loop_t *el = open_mail(envelope).el;
    (void) loop;
    if (el->server == NULL)
        return; /* stopped meanwhile */
    mail_t *mail = new_mail(el, NULL);
    mail->rc = listen_to_all(el);
    bt_loop_post(&el->gateway->control, &mail->envelope, tell_listening);
}

void bt_gateway_loop_listen(bt_gateway_loop_t *el)
{
    post(&el->loop, el, NULL, on_listen);
}

int bt_gateway_loop_start(bt_gateway_loop_t *el, bool is_listening)
{
    int rc = is_listening ? listen_to_all(el) : 0;
    if (rc < 0)
        return rc;
    bt_timer_start(&el->tidy, TIDY_MS);
    rc = uv_thread_create(&el->thread, run_thread, el);
    if (rc < 0)
        return rc;
    el->has_thread = true;
    return 0;
}

static void on_last_turn(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) open_mail(envelope);
    bt_loop_stop(loop);
}

/* On the main thread: mail that came last is opened, handles that were closed get their callbacks. */
static void settle(bt_gateway_loop_t *el)
{
    post(&el->loop, el, NULL, on_last_turn);
    bt_loop_run(&el->loop);
}

void bt_gateway_loop_close(bt_gateway_loop_t *el)
{
    if (el->has_thread) {
        bt_loop_stop(&el->loop);
        uv_thread_join(&el->thread);
    }
    if (el->has_loop)
        settle(el);
    close_listeners(el);
    bt_proxy_close(el->proxy);
    if (el->server != NULL)
        bt_server_close(el->server, NULL, NULL);
    if (el->dispatcher != NULL)
        bt_dispatcher_free(el->dispatcher);
    el->dispatcher = NULL; /* the last mail finds nobody */
    free(el->sockets);
    el->sockets = NULL;
    el->socket_count = 0;
    if (!el->has_loop)
        return;
    bt_gateway_fleet_loop_close(el);
    settle(el);
    bt_loop_fini(&el->loop);
}
