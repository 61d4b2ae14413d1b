/* client_rig.h - a worker played by hand, and a call that writes down what happens to it.
 *
 * Owner: the specs of client.c and upstream.c.
 * Life:  rig_setup -> (steps) -> rig_teardown, which checks that nothing is left.
 * Flow:  one thread: the client runs on a loop that is turned by pump_until(); the worker's sockets are plain
 *        non-blocking descriptors the spec reads and writes between turns, so every order of events can be staged.
 * Cost:  irrelevant.
 */
#ifndef BT_CLIENT_RIG_H
#define BT_CLIENT_RIG_H

#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"
#include "http/client.h"
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define RIG_PATIENCE_US ((uint64_t) 9000000) /* a spec fails when what it waits for takes longer */

enum rig_event { RIG_NEVER, RIG_ON_HEAD, RIG_ON_BODY, RIG_ON_END, RIG_ON_FAIL };

/* A call on the heap and its diary; the call may be freed from inside, the diary stays. */
typedef struct rig_call {
    bt_call_t *call;
    unsigned heads, bodies, ends, fails;
    int rc;
    unsigned status;
    char body[4096];   /* the first bytes */
    size_t body_len;   /* all of them */
    bt_call_t last;    /* as it was at the end */
    enum rig_event at; /* when to do what is next */
    void (*act)(struct rig_call *rc, void *arg);
    void *arg;
} rig_call_t;

typedef struct rig {
    bt_loop_t loop;
    bt_upstream_t *up;
    int listener;
    struct sockaddr_in addr;
} rig_t;

static rig_t rig;

static int rig_listen(struct sockaddr_in *addr, int backlog)
{
    socklen_t size = sizeof(*addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

    *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *) addr, sizeof(*addr)), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *) addr, &size), 0);
    return fd;
}

static void rig_use(const bt_upstream_config_t *config)
{
    if (rig.up != NULL)
        bt_upstream_free(rig.up);
    assert_int_equal(bt_upstream_new(&rig.up, &rig.loop, (struct sockaddr *) &rig.addr, config), 0);
}

static int rig_setup(void **state)
{
    memset(&rig, 0, sizeof(rig));
    assert_int_equal(bt_loop_init(&rig.loop, 0), 0);
    rig.listener = rig_listen(&rig.addr, 64);
    rig_use(NULL);
    return 0;
}

static int rig_teardown(void **state)
{
    if (rig.up != NULL)
        bt_upstream_free(rig.up);
    bt_loop_fini(&rig.loop);
    close(rig.listener);
    assert_int_equal(bt_soft_count(), 0);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    bt_pages_thread_fini();
    return 0;
}

static void pump(void)
{
    uv_run(&rig.loop.uv, UV_RUN_NOWAIT);
}

#define pump_until(cond)                                                                           \
    do {                                                                                           \
        uint64_t give_up_us = bt_clock_us() + RIG_PATIENCE_US;                                     \
        while (!(cond)) {                                                                          \
            pump();                                                                                \
            if (bt_clock_us() > give_up_us)                                                        \
                fail_msg("waited in vain for: %s", #cond);                                         \
            usleep(100);                                                                           \
        }                                                                                          \
    } while (0)

/* ---- the worker's side ---- */

static int try_accept(void)
{
    int fd = accept4(rig.listener, NULL, NULL, SOCK_NONBLOCK);

    if (fd < 0)
        assert_int_equal(errno, EAGAIN);
    return fd;
}

static int worker_accept(void)
{
    int fd = -1;

    pump_until((fd = try_accept()) >= 0);
    return fd;
}

static __attribute__((unused)) bool nobody_waits(void)
{
    int fd = try_accept();

    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static bool ends_with(const char *text, size_t n, const char *end)
{
    return n >= strlen(end) && memcmp(text + n - strlen(end), end, strlen(end)) == 0;
}

/* Reads until the bytes end in `end`. */
static void worker_read(int fd, const char *end)
{
    char text[65536];
    size_t n = 0;
    ssize_t got = 0;

    pump_until((got = read(fd, text + n, sizeof(text) - n)) > 0
                   ? (n += (size_t) got, ends_with(text, n, end))
                   : (assert_true(got < 0 && errno == EAGAIN), false));
}

static void worker_write(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t) strlen(text));
}

/* FIN or RST has come. */
static __attribute__((unused)) bool client_has_left(int fd)
{
    char drop[65536];
    ssize_t got = read(fd, drop, sizeof(drop));

    return got == 0 || (got < 0 && errno != EAGAIN);
}

static __attribute__((unused)) void worker_reset(int fd)
{
    struct linger now = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* ---- the client's side ---- */

static void rig_note(rig_call_t *c, enum rig_event event)
{
    if (event == RIG_ON_END || event == RIG_ON_FAIL) {
        assert_false(bt_call_running(c->call));
        assert_int_equal(c->ends + c->fails, 1);
        c->last = *c->call;
    }
    if (c->at == event)
        c->act(c, c->arg);
}

static void rig_on_head(bt_call_t *call)
{
    rig_call_t *c = call->user;

    assert_int_equal(c->heads + c->bodies + c->ends + c->fails, 0);
    c->heads++;
    c->status = call->status;
    rig_note(c, RIG_ON_HEAD);
}

static void rig_on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    rig_call_t *c = call->user;

    assert_int_equal(c->heads, 1);
    assert_int_equal(c->ends + c->fails, 0);
    assert_true(p >= buf->data &&
                p + n <= buf->data + buf->len); /* a slice of what was read, not a copy */
    if (c->body_len < sizeof(c->body))
        memcpy(c->body + c->body_len, p,
               n < sizeof(c->body) - c->body_len ? n : sizeof(c->body) - c->body_len);
    c->bodies++;
    c->body_len += n;
    rig_note(c, RIG_ON_BODY);
}

static void rig_on_end(bt_call_t *call)
{
    rig_call_t *c = call->user;

    c->ends++;
    rig_note(c, RIG_ON_END);
}

static void rig_on_fail(bt_call_t *call, int rc)
{
    rig_call_t *c = call->user;

    c->fails++;
    c->rc = rc;
    rig_note(c, RIG_ON_FAIL);
}

static const bt_call_ops_t rig_ops = {rig_on_head, rig_on_body, rig_on_end, rig_on_fail};
static const struct bt_slice rig_get[] = {{"GET / HTTP/1.1\r\n", 16, NULL},
                                          {"Host: w\r\n\r\n", 11, NULL}};

static void rig_start_with(rig_call_t *c, const struct bt_slice *request, unsigned count,
                           const bt_call_timeouts_t *timeouts)
{
    free(c->call);
    *c = (rig_call_t){.at = c->at, .act = c->act, .arg = c->arg, .call = malloc(sizeof(bt_call_t))};
    memset(c->call, 0xa5, sizeof(*c->call));
    assert_int_equal(bt_call_start(c->call, rig.up, &rig_ops, c, request, count, timeouts), 0);
    assert_true(bt_call_running(c->call));
    assert_int_equal(c->heads + c->bodies + c->ends + c->fails, 0);
}

static void rig_start(rig_call_t *c)
{
    rig_start_with(c, rig_get, 2, NULL);
}

static __attribute__((unused)) void rig_start_timed(rig_call_t *c, bt_call_timeouts_t timeouts)
{
    rig_start_with(c, rig_get, 2, &timeouts);
}

static void rig_drop(rig_call_t *c)
{
    free(c->call);
    c->call = NULL;
}

/* A whole exchange; the connection is idle afterwards, the worker's end of it is returned (fd < 0: a new one). */
static __attribute__((unused)) int rig_exchange(int fd)
{
    rig_call_t c = {0};

    rig_start(&c);
    if (fd < 0)
        fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    pump_until(c.ends == 1);
    assert_int_equal(c.status, 200);
    rig_drop(&c);
    return fd;
}

static __attribute__((unused)) int start_and_read(rig_call_t *c)
{
    rig_start(c);
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    return fd;
}

#endif
