/* One datagram is the whole protocol, so libsystemd would be more to carry than this is to read.
 *
 * The watchdog's sign of life is the threads' own: each is sent mail, and only when all have opened it is the manager told
 * that all is well. The control loop itself answers by running the timer. */
#include "gateway/notify.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES 512
#define SIGNS 4 /* of life, in the time after which we count as dead */

static void open_socket(bt_notify_t *n, const char *path)
{
    const struct timeval timeout = {.tv_sec = 1}; /* a manager that does not read holds nobody up */
    const size_t size = strlen(path);

    if ((path[0] != '/' && path[0] != '@') || size >= sizeof n->addr.sun_path) {
        bt_log_warn("gateway", "NOTIFY_SOCKET=%.100s is no path of a socket: nobody is notified",
                    path);
        return;
    }
    n->addr.sun_family = AF_UNIX;
    memcpy(n->addr.sun_path, path, size);
    if (path[0] == '@')
        n->addr.sun_path[0] = '\0';
    n->addr_size = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + size);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd >= 0)
        (void) setsockopt(n->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    else
        bt_log_warn("gateway", "NOTIFY_SOCKET: no socket to notify by: %s", strerror(errno));
}

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static void on_sign(bt_timer_t *timer);

void bt_gateway_notify_open(bt_gateway_t *g)
{
    const char *path = getenv("NOTIFY_SOCKET");
    const uint64_t pid = number_of("WATCHDOG_PID");

    g->notify.fd = -1;
    bt_timer_init(&g->control, &g->notify.watchdog, on_sign);
    if (path != NULL)
        open_socket(&g->notify, path);
    if (g->notify.fd >= 0 && (pid == 0 || pid == (uint64_t) getpid()))
        g->notify.watchdog_ms = number_of("WATCHDOG_USEC") / 1000;
}

void bt_gateway_notify(const bt_gateway_t *g, const char *fmt, ...)
{
    const bt_notify_t *n = &g->notify;
    char text[TEXT_BYTES];
    va_list args;

    if (n->fd < 0)
        return;
    va_start(args, fmt);
    int size = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (size < 0)
        return;
    if (size >= TEXT_BYTES)
        size = TEXT_BYTES - 1;
    if (sendto(n->fd, text, (size_t) size, MSG_NOSIGNAL, (const struct sockaddr *) &n->addr,
               n->addr_size) < 0)
        bt_log_warn("gateway", "the service manager is not told \"%.*s\": %s",
                    (int) strcspn(text, "\n"), text, strerror(errno));
}

void bt_gateway_notify_reloading(const bt_gateway_t *g)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    bt_gateway_notify(g, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=reloading",
                      (unsigned long long) now.tv_sec * 1000000U +
                          (unsigned long long) now.tv_nsec / 1000U);
}

/* ---- watchdog ---- */

static void on_ping(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_gateway_loop_t *el = bt_container_of(envelope, bt_gateway_loop_t, ping);

    (void) loop;
    atomic_store_explicit(&el->has_answered, true, memory_order_release);
}

/* Whoever has not opened the last mail is sent no other. NULL: all have. */
static const bt_gateway_loop_t *silent_loop(const bt_gateway_t *g)
{
    for (unsigned i = 0; i < g->running_loops; i++)
        if (!atomic_load_explicit(&g->loops[i].has_answered, memory_order_acquire))
            return &g->loops[i];
    return NULL;
}

static void on_sign(bt_timer_t *timer)
{
    bt_gateway_t *g = bt_container_of(timer, bt_gateway_t, notify.watchdog);
    const bt_gateway_loop_t *silent = silent_loop(g);

    if (silent == NULL) {
        bt_gateway_notify(g, "WATCHDOG=1");
        for (unsigned i = 0; i < g->running_loops; i++) {
            atomic_store_explicit(&g->loops[i].has_answered, false, memory_order_relaxed);
            bt_loop_post(&g->loops[i].loop, &g->loops[i].ping, on_ping);
        }
    } else if (!g->notify.is_silent) {
        bt_log_error("gateway",
                     "event thread %u does not answer: the service manager's watchdog (%llu ms) is "
                     "not told that all is well",
                     silent->loop.index, (unsigned long long) g->notify.watchdog_ms);
    }
    g->notify.is_silent = silent != NULL;
    bt_timer_start(timer, g->notify.watchdog_ms / SIGNS);
}

void bt_gateway_watchdog_start(bt_gateway_t *g)
{
    if (g->notify.watchdog_ms == 0)
        return;
    for (unsigned i = 0; i < g->running_loops; i++)
        atomic_store_explicit(&g->loops[i].has_answered, true, memory_order_relaxed);
    on_sign(&g->notify.watchdog);
}

void bt_gateway_watchdog_stop(bt_gateway_t *g)
{
    bt_timer_stop(&g->notify.watchdog);
}

void bt_gateway_notify_close(bt_gateway_t *g)
{
    if (g->notify.fd >= 0)
        close(g->notify.fd);
    g->notify.fd = -1;
}
