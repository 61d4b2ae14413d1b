/* server_util.h - a server and a raw client on one thread: the loop turns only while the client waits for something. */
#ifndef SPEC_UNIT_HTTP_SERVER_UTIL_H
#define SPEC_UNIT_HTTP_SERVER_UTIL_H

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pages.h"
#include "http/server.h"
#include "loop/util.h"

#include <stdio.h>

#define OK_HEAD "POST /a HTTP/1.1\r\nHost: h\r\n"

enum mode { REPLY, KEEP }; /* answer at once, or keep the exchange in world.held */

typedef struct world {
    bt_loop_t loop;
    bt_server_t *server;
    bt_server_config_t config;
    enum mode mode;
    bt_exchange_t *held;
    unsigned heads, requests, gones, drains;
    unsigned refuse_with;
    const char *refuse_reason;
    void (*on_drain)(bt_exchange_t *x);
    void (*on_gone)(bt_exchange_t *x); /* instead of expecting `held` */
    char seen[512];                    /* what the last request looked like */
    bool closed;

    int fd; /* the client */
    char *got;
    size_t len, cap;
    bool eof;
    int error;
} world_t;

static world_t w;

static void echo(bt_exchange_t *x)
{
    bt_str_t text =
        bt_arena_printf(&x->arena, "%.*s %.*s|%.*s|%zu:", BT_STR_ARG(x->head.method_text),
                        BT_STR_ARG(x->head.path), BT_STR_ARG(x->head.query), x->body.n);
    char *body = bt_arena_alloc(&x->arena, text.n + x->body.n + 1);

    memcpy(body, text.p, text.n);
    if (x->body.n > 0)
        memcpy(body + text.n, x->body.p, x->body.n);
    bt_exchange_respond(x, 200, "text/plain", (bt_str_t){body, text.n + x->body.n}, NULL, 0);
}

static unsigned on_head(bt_exchange_t *x, const char **reason_p)
{
    (void) x;
    w.heads++;
    if (w.refuse_reason != NULL)
        *reason_p = w.refuse_reason;
    return w.refuse_with;
}

static void on_request(bt_exchange_t *x)
{
    w.requests++;
    snprintf(w.seen, sizeof(w.seen), "%.*s %.*s", BT_STR_ARG(x->head.method_text),
             BT_STR_ARG(x->head.target));
    if (w.mode == REPLY)
        echo(x);
    else
        w.held = x;
}

static void on_gone(bt_exchange_t *x)
{
    w.gones++;
    if (w.on_gone != NULL) {
        w.on_gone(x);
        return;
    }
    assert_ptr_equal(x, w.held);
    w.held = NULL;
}

static void on_drain(bt_exchange_t *x)
{
    w.drains++;
    if (w.on_drain != NULL)
        w.on_drain(x);
}

static const bt_server_ops_t handler = {
    .on_head = on_head, .on_request = on_request, .on_gone = on_gone, .on_drain = on_drain};

static inline void world_start(void)
{
    bt_server_config_t config = w.config;

    if (config.max_body_bytes == 0)
        bt_server_config_defaults(&config);
    w = (world_t){.config = config, .fd = -1};
    assert_int_equal(bt_loop_init(&w.loop, 0), 0);
    assert_int_equal(bt_server_new(&w.server, &w.loop, &handler, &w.config, &w), 0);
    assert_ptr_equal(bt_server_user(w.server), &w);
}

static inline void hang_up(void)
{
    if (w.fd >= 0)
        close(w.fd);
    w.fd = -1;
    w.len = 0;
    w.eof = false;
    w.error = 0;
}

static inline void dial(void)
{
    int ours;

    hang_up();
    tcp_pair(&ours, &w.fd);
    fcntl(w.fd, F_SETFL, O_NONBLOCK);
    fcntl(ours, F_SETFL, O_NONBLOCK);
    atomic_fetch_add(&w.loop.connections, 1);
    bt_server_accept(w.server, ours, NULL);
}

static inline int setup(void **state)
{
    bt_log_set(BT_LOG_ERROR, false, 2);
    w.config.max_body_bytes = 0;
    world_start();
    dial();
    return 0;
}

static void on_closed(void *arg)
{
    *(bool *) arg = true;
}

static inline int teardown(void **state)
{
    hang_up();
    bt_server_close(w.server, on_closed, &w.closed);
    TURN_UNTIL(&w.loop, w.closed);
    assert_int_equal(atomic_load(&w.loop.connections), 0);
    bt_loop_fini(&w.loop);
    free(w.got);
    bt_pages_thread_fini();
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    return 0;
}

/* The same server with other settings. */
static inline void restart_with(bt_server_config_t config)
{
    teardown(NULL);
    w.config = config;
    world_start();
    dial();
}

/* Takes what has come, without waiting. */
static inline void take(void)
{
    while (w.fd >= 0 && !w.eof && w.error == 0) {
        if (w.cap - w.len < 65536)
            w.got = realloc(w.got, w.cap = w.cap * 2 + 65536);
        ssize_t n = recv(w.fd, w.got + w.len, w.cap - w.len - 1, 0);
        if (n > 0)
            w.len += (size_t) n;
        else if (n == 0)
            w.eof = true;
        else if (errno == EAGAIN)
            break;
        else
            w.error = errno;
    }
    if (w.got != NULL)
        w.got[w.len] = '\0';
}

static inline void pump(void)
{
    struct pollfd probe = {.fd = w.fd, .events = POLLIN};

    turn(&w.loop, 2);
    if (w.fd >= 0 && !w.eof && w.error == 0)
        poll(&probe, 1, 1);
    take();
}

#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        take();                                                                                    \
        STEP_UNTIL(condition, pump());                                                             \
    } while (0)

#define UNTIL_CLOSED() UNTIL(w.eof || w.error != 0)

/* Sends all; stops early only when the server does not want more. */
static inline void say_n(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(w.fd, p, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return;
        if (sent < 0) {
            turn(&w.loop, 1);
            take(); /* or two that only send would wait for each other */
            continue;
        }
        p += sent;
        n -= (size_t) sent;
        turn(&w.loop, 1);
    }
}

static inline void say(const char *text)
{
    say_n(text, strlen(text));
}

static inline bool has(const char *text)
{
    return w.len > 0 && memmem(w.got, w.len, text, strlen(text)) != NULL;
}

static inline unsigned status_at(size_t at)
{
    return w.len >= at + 12 && memcmp(w.got + at, "HTTP/1.1 ", 9) == 0
               ? (unsigned) atoi(w.got + at + 9)
               : 0;
}

static inline unsigned count_text(const char *text)
{
    unsigned count = 0;
    char *at = w.got, *end = w.got + w.len;

    while (w.len > 0 && (at = memmem(at, (size_t) (end - at), text, strlen(text))) != NULL) {
        at += strlen(text);
        count++;
    }
    return count;
}

static inline const char *answer_body(void)
{
    char *blank = memmem(w.got, w.len, "\r\n\r\n", 4);
    return blank != NULL ? blank + 4 : "";
}

#endif
