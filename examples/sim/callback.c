/* callback.c - see callback.h. */
#include "callback.h"

#include "http/client.h"
#include "loop/resolve.h"

#include <stdio.h>
#include <stdlib.h>

#define TRIES_MAX 3

typedef struct callback {
    bt_list_t link; /* in world->callbacks */
    sim_worker_t *worker;
    bt_upstream_t *up;
    bt_call_t call;
    bt_timer_t timer; /* until it begins, or begins again */
    unsigned tries;
    struct bt_slice slice;
    char bytes[];
} callback_t;

static void drop(callback_t *c)
{
    bt_timer_stop(&c->timer);
    bt_list_remove(&c->link);
    if (c->tries > 0)
        bt_call_cancel(&c->call);
    bt_upstream_free(c->up);
    free(c);
}

static void ignore_head(bt_call_t *call)
{
    (void) call;
}

static void ignore_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    (void) call;
    (void) buf;
    (void) p;
    (void) n;
}

static void on_end(bt_call_t *call)
{
    callback_t *c = call->user;

    c->worker->counters.callbacks_answered++;
    c->worker->counters.callback_status = call->status;
    drop(c);
}

static void on_fail(bt_call_t *call, int rc)
{
    callback_t *c = call->user;

    (void) rc;
    if (c->tries == TRIES_MAX)
        drop(c);
    else
        bt_timer_start(&c->timer, 1);
}

static const bt_call_ops_t ops = {
    .on_head = ignore_head, .on_body = ignore_body, .on_end = on_end, .on_fail = on_fail};

static void on_timer(bt_timer_t *timer)
{
    static const bt_call_timeouts_t no_limits; /* the engine waits for ever */
    callback_t *c = bt_container_of(timer, callback_t, timer);

    c->tries++;
    c->worker->counters.callbacks_sent++;
    if (bt_call_start(&c->call, c->up, &ops, c, &c->slice, 1, &no_limits) < 0) {
        c->tries = 0; /* nothing to cancel */
        drop(c);
    }
}

/* "http://ADDRESS:PORT/TARGET". False: no address that can be called. */
static bool split(bt_str_t url, struct sockaddr_storage *addr_p, bt_str_t *authority_p,
                  bt_str_t *target_p)
{
    const bt_str_t scheme = BT_STR("http://");
    const char *slash, *colon;
    uint64_t port;
    char host[128];

    if (!bt_str_starts(url, scheme))
        return false;
    url = (bt_str_t){url.p + scheme.n, url.n - scheme.n};
    slash = memchr(url.p, '/', url.n);
    if (slash == NULL)
        return false;
    *authority_p = (bt_str_t){url.p, (size_t) (slash - url.p)};
    *target_p = (bt_str_t){slash, url.n - authority_p->n};
    colon = memrchr(url.p, ':', authority_p->n);
    if (colon == NULL ||
        bt_str_u64((bt_str_t){colon + 1, (size_t) (slash - colon) - 1}, &port) != 0)
        return false;
    snprintf(host, sizeof(host), "%.*s", (int) (colon - url.p), url.p);
    return bt_resolve_numeric(host, (unsigned) port, addr_p) == 0;
}

void sim_callback_send(sim_worker_t *worker, bt_str_t url, bt_str_t body, unsigned delay_ms)
{
    struct sockaddr_storage addr;
    bt_str_t authority, target;
    const size_t most = url.n + 256 + body.n;
    callback_t *c;
    int n;

    if (!split(url, &addr, &authority, &target))
        return;
    c = calloc(1, sizeof(*c) + most);
    if (c == NULL)
        return;
    if (bt_upstream_new(&c->up, worker->world->loop, (struct sockaddr *) &addr, NULL) < 0) {
        free(c);
        return;
    }
    n = snprintf(c->bytes, most,
                 "POST %.*s HTTP/1.1\r\nHost: %.*s\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%.*s",
                 BT_STR_ARG(target), BT_STR_ARG(authority), body.n, BT_STR_ARG(body));
    c->slice = (struct bt_slice){.p = c->bytes, .n = (size_t) n};
    c->worker = worker;
    bt_list_init(&c->link);
    bt_list_push(&worker->world->callbacks, &c->link);
    bt_timer_init(worker->world->loop, &c->timer, on_timer);
    bt_timer_start(&c->timer, delay_ms);
}

void sim_callbacks_clear(sim_world_t *world)
{
    while (!bt_list_empty(&world->callbacks))
        drop(bt_container_of(world->callbacks.next, callback_t, link));
}
