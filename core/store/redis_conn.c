/* redis_conn.c - hiredis' reader on our own descriptor and uv_poll.
 *
 *      RESOLVING -> CONNECTING -> SHAKING -> GREETING -> UP      any of them -> CLOSING -> freed
 *
 * Not hiredis' asynchronous layer: it asserts (and so ends the process) when a server sends a reply that nobody asked for, it allocates per command, and 0.14
 * resolves names blocking and has no deadlines. Nor its context, which has TLS in some versions only. What is left of both here is a queue of calls, which is
 * intrusive this way, and redis_wire.c.
 *
 * Commands gather in the wire and leave with one write at the end of the turn; only what the kernel did not take waits for room. A reply belongs to
 * the call at the queue's head, whether its op still waits or not: late replies are dropped in order. What the server has to answer for begins when a call's turn
 * ends and it goes to the socket, full or not: before that nobody but this loop has kept it waiting. The wire is closed in the poll handle's close callback,
 * so a callback that closes the connection it is called from finds everything still there.
 */
#include "store/redis_conn.h"

#include "store/redis_greeting.h"
#include "store/redis_wire.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/sha1.h"
#include "loop/network.h"
#include "loop/resolve.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#define HOST_MAX 256
#define READS_PER_TURN 8
#define REPLY_BYTES_MAX ((size_t) 64 << 20)
#define REPLY_ROWS_MAX 1000000

#if HIREDIS_MAJOR >= 1
typedef size_t array_size_t;
#else
typedef int array_size_t;
#endif

enum state { RESOLVING, CONNECTING, SHAKING, GREETING, UP, CLOSING };

struct bt_redis_conn {
    bt_loop_t *loop;
    bt_redis_target_t target;
    const bt_redis_conn_ops_t *ops;
    void *user;
    enum state state;
    enum bt_redis_greeting greeting; /* what is asked before it is up */
    char host[HOST_MAX];
    bt_resolve_t resolve;
    bool is_resolving, has_poll, is_broken;
    bool has_more; /* the last reading stopped at its own bound */
    uv_poll_t poll;
    int events; /* what poll waits for */
    bt_redis_wire_t wire;
    redisReplyObjectFunctions functions; /* hiredis' own, but for arrays, which get a bound */
    void *(*make_array)(const redisReadTask *task, array_size_t n); /* hiredis' own */
    bt_list_t calls;
    bt_redis_call_t greet;
    unsigned unsent; /* commands that no write has carried yet */
    uint64_t last_us, up_us;
    bt_timer_t deadline; /* of the dial; then of the silence */
    bt_later_t flush;
    char why[BT_STORE_WHY_MAX];
};

/* ---- ends ---- */
static void free_conn(bt_redis_conn_t *conn)
{
    void (*on_freed)(void *) = conn->ops->on_freed;
    void *user = conn->user;

    if (conn->is_resolving || conn->has_poll)
        return; /* the other one comes back here */
    bt_redis_wire_close(&conn->wire);
    free(conn);
    on_freed(user);
}

static void on_poll_closed(uv_handle_t *handle)
{
    bt_redis_conn_t *conn = handle->data;

    conn->has_poll = false;
    free_conn(conn);
}

/* Mail would do, but a connection that never had a handle is rare: the timer's callback frees it. */
static void on_unborn(bt_timer_t *timer)
{
    free_conn(bt_container_of(timer, bt_redis_conn_t, deadline));
}

void bt_redis_conn_close(bt_redis_conn_t *conn)
{
    if (conn->state == CLOSING)
        return;
    conn->state = CLOSING;
    bt_timer_stop(&conn->deadline);
    bt_list_remove(&conn->flush.link);
    if (conn->is_resolving)
        bt_resolve_cancel(&conn->resolve);
    if (conn->has_poll)
        uv_close((uv_handle_t *) &conn->poll, on_poll_closed);
    while (!bt_list_empty(&conn->calls)) {
        bt_redis_call_t *call = bt_container_of(conn->calls.next, bt_redis_call_t, link);
        bt_list_remove(&call->link);
        call->cb(call, NULL);
    }
    if (!conn->is_resolving && !conn->has_poll) {
        bt_timer_init(conn->loop, &conn->deadline, on_unborn);
        bt_timer_start(&conn->deadline, 0);
    }
}

static void go(bt_redis_conn_t *conn, bool is_answer)
{
    if (conn->state == CLOSING)
        return;
    bt_redis_conn_close(conn);
    conn->ops->on_gone(conn->user, is_answer, conn->why);
}

static void fail(bt_redis_conn_t *conn, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(bt_redis_conn_t *conn, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(conn->why, sizeof(conn->why), fmt, args);
    va_end(args);
    go(conn, false);
}

/* rc: of the wire. */
static void fail_of_wire(bt_redis_conn_t *conn, const char *when, int rc)
{
    const char *tls_why = bt_redis_wire_why(&conn->wire);

    if (tls_why != NULL)
        fail(conn, "TLS: %s", tls_why);
    else if (rc == UV_EOF && conn->state == SHAKING)
        fail(conn, "TLS: it closed the connection during the handshake");
    else if (rc == UV_EOF)
        fail(conn, "%s: it closed the connection", when);
    else if (rc == BT_E_TLS)
        fail(conn, "TLS: the session is broken");
    else
        fail(conn, "%s: %s", when, rc == BT_E_NOMEM ? bt_err_text(rc) : strerror(-rc));
}

static int error_of(int fd)
{
    int error = 0;
    socklen_t n = sizeof(error);

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0 ? errno : error;
}

static void read_in(bt_redis_conn_t *conn);

/* Its last words, if any lie in the socket, are the better reason. */
static void lost(bt_redis_conn_t *conn, int rc)
{
    read_in(conn);
    if (conn->state == CLOSING)
        return;
    const int error = error_of(conn->wire.fd);
    fail_of_wire(conn, "the connection is lost", error != 0 ? -error : rc);
}

/* ---- writing ---- */
static void on_poll(uv_poll_t *poll, int status, int events);

static void wait_for(bt_redis_conn_t *conn, int events)
{
    if (conn->events == events)
        return;
    conn->events = events;
    uv_poll_start(&conn->poll, events, on_poll);
}

static void write_out(bt_redis_conn_t *conn)
{
    if (conn->unsent > 0 && conn->target.round_trips != NULL)
        bt_store_count(conn->target.round_trips);
    conn->unsent = 0;
    int rc = bt_redis_wire_write(&conn->wire);
    if (rc == 0 || rc == BT_E_AGAIN)
        wait_for(conn, rc == 0 ? UV_READABLE : UV_READABLE | UV_WRITABLE);
    else
        lost(conn, rc);
}

/* A socket without room is the server's doing: it does not read. */
static void stamp(bt_redis_conn_t *conn)
{
    uint64_t now_us = bt_clock_us();

    for (bt_list_t *it = conn->calls.prev; it != &conn->calls; it = it->prev) {
        bt_redis_call_t *call = bt_container_of(it, bt_redis_call_t, link);
        if (call->sent_us != 0)
            break;
        call->sent_us = now_us;
    }
}

static void on_flush(bt_later_t *later)
{
    bt_redis_conn_t *conn = bt_container_of(later, bt_redis_conn_t, flush);

    stamp(conn);
    if (conn->is_broken) /* a call without its command: the next reply would be another's */
        fail(conn, "out of memory");
    else if (!(conn->events & UV_WRITABLE))
        write_out(conn);
}

static void send_call(bt_redis_conn_t *conn, bt_redis_call_t *call, bt_str_t bytes)
{
    bool was_idle = bt_list_empty(&conn->calls);

    call->sent_us = 0;
    bt_list_init(&call->link);
    bt_list_push(&conn->calls, &call->link);
    if (bt_redis_wire_put(&conn->wire, bytes) < 0)
        conn->is_broken = true;
    conn->unsent++;
    bt_loop_later(conn->loop, &conn->flush);
    if (was_idle && conn->state == UP && !bt_timer_active(&conn->deadline))
        bt_timer_start(&conn->deadline, conn->target.silent_ms);
}

void bt_redis_conn_send(bt_redis_conn_t *conn, bt_redis_call_t *call, bt_str_t bytes)
{
    BT_ASSERT(conn->state == UP);
    send_call(conn, call, bytes);
}

/* ---- greeting ---- */
static void greet_next(bt_redis_conn_t *conn);

static void on_greeted(bt_redis_call_t *call, const redisReply *reply)
{
    bt_redis_conn_t *conn = bt_container_of(call, bt_redis_conn_t, greet);
    bool is_answer;

    if (reply == NULL || conn->state == CLOSING)
        return;
    if (!bt_redis_greeting_take(&conn->greeting, reply, &is_answer, conn->why, sizeof(conn->why))) {
        go(conn, is_answer);
        return;
    }
    greet_next(conn);
}

static void become_up(bt_redis_conn_t *conn)
{
    conn->state = UP;
    conn->up_us = conn->last_us = bt_clock_us();
    bt_timer_stop(&conn->deadline);
    conn->ops->on_up(conn->user);
}

/* One question at a time: it is the one that an error belongs to. */
static void greet_next(bt_redis_conn_t *conn)
{
    bt_text_t text;

    bt_text_init(&text);
    if (bt_redis_greeting_next(&conn->greeting, &conn->target, &text)) {
        conn->greet.cb = on_greeted;
        send_call(conn, &conn->greet, bt_text_str(&text));
        conn->is_broken |= text.failed;
    } else {
        become_up(conn);
    }
    bt_text_fini(&text);
}

static void begin_greeting(bt_redis_conn_t *conn)
{
    conn->state = GREETING;
    greet_next(conn);
}

/* ---- reading ---- */
/* Redis 7 ends an error from inside a script with " script: <its name>, on @user_script:<line>.", which says nothing to people. */
static void cut_script(redisReply *reply)
{
    const ptrdiff_t name_n = sizeof(" script: ") - 1 + BT_SHA1_HEX;
    ptrdiff_t at = bt_str_find((bt_str_t){reply->str, reply->len}, BT_STR(", on @user_script"));

    if (at < name_n || memcmp(reply->str + at - name_n, " script: ", 9) != 0)
        return;
    reply->len = (size_t) (at - name_n);
    reply->str[reply->len] = '\0';
}

static bool is_asked(const bt_redis_conn_t *conn)
{
    return !bt_list_empty(&conn->calls) &&
           bt_container_of(conn->calls.next, bt_redis_call_t, link)->sent_us != 0;
}

static void take_reply(bt_redis_conn_t *conn, redisReply *reply)
{
    bool is_error = reply->type == REDIS_REPLY_ERROR;
    /* Said before it has read anything, and the last that it says. */
    bool is_full = is_error && strncmp(reply->str, "ERR max number of clients", 25) == 0;

    conn->last_us = bt_clock_us();
    if (is_error)
        cut_script(reply);
    if (!is_asked(conn) || is_full) {
        snprintf(conn->why, sizeof(conn->why), "%s%s", is_error ? "it says: " : "it speaks unasked",
                 is_error ? reply->str : "");
        go(conn, is_error);
        return;
    }
    bt_redis_call_t *call = bt_container_of(conn->calls.next, bt_redis_call_t, link);
    bt_list_remove(&call->link);
    call->cb(call, reply);
}

static void take_replies(bt_redis_conn_t *conn)
{
    void *reply = NULL;

    while (conn->state != CLOSING) {
        if (redisReaderGetReply(conn->wire.reader, &reply) != REDIS_OK) {
            fail(conn, "it speaks no Redis: %s", conn->wire.reader->errstr);
            return;
        }
        if (reply == NULL)
            break;
        take_reply(conn, reply);
        freeReplyObject(reply);
    }
    if (conn->state != CLOSING && conn->wire.reader->len > REPLY_BYTES_MAX)
        fail(conn, "an answer is larger than %zu bytes", REPLY_BYTES_MAX);
}

static void read_in(bt_redis_conn_t *conn)
{
    conn->has_more = true;
    for (int i = 0; i < READS_PER_TURN && conn->state != CLOSING; i++) {
        ssize_t got = bt_redis_wire_read(&conn->wire);
        if (got < 0) {
            fail_of_wire(conn, conn->state == UP ? "the connection is lost" : "connecting",
                         (int) got);
            return;
        }
        if (conn->state == SHAKING && bt_redis_wire_is_up(&conn->wire))
            begin_greeting(conn);
        take_replies(conn);
        if ((size_t) got < BT_REDIS_READ_BYTES && conn->wire.ended == 0) {
            conn->has_more = false;
            break;
        }
    }
    /* A session answers for itself: the handshake, new keys. */
    if (conn->state != CLOSING && bt_redis_wire_waits(&conn->wire))
        bt_loop_later(conn->loop, &conn->flush);
}

void bt_redis_conn_check(bt_redis_conn_t *conn)
{
    if (conn->state >= SHAKING && conn->state <= UP)
        read_in(conn);
}

uint64_t bt_redis_conn_waited_us(const bt_redis_conn_t *conn)
{
    if (conn->has_more || !is_asked(conn))
        return 0;
    return bt_clock_us() - bt_container_of(conn->calls.next, bt_redis_call_t, link)->sent_us;
}

/* Refuses arrays that no command of ours has for an answer, before memory is asked for. */
static void *make_bounded_array(const redisReadTask *task, array_size_t n)
{
    const bt_redis_conn_t *conn = task->privdata;

    return n <= REPLY_ROWS_MAX ? conn->make_array(task, n) : NULL;
}

static void bound_arrays(bt_redis_conn_t *conn)
{
    redisReader *reader = conn->wire.reader;

    conn->functions = *reader->fn;
    conn->make_array = conn->functions.createArray;
    conn->functions.createArray = make_bounded_array;
    reader->fn = &conn->functions;
    reader->privdata = conn;
}

/* ---- dialling ---- */
static void connected(bt_redis_conn_t *conn)
{
    const bt_redis_target_t *target = &conn->target;
    const char *name = target->tls_name != NULL ? target->tls_name : conn->host;
    const int error = error_of(conn->wire.fd);

    if (error != 0) {
        fail(conn, "connecting: %s", strerror(error));
        return;
    }
    conn->state = SHAKING;
    int rc = bt_redis_wire_open(&conn->wire, conn->wire.fd, target->tls, name);
    if (rc == BT_E_INVAL)
        fail(conn, "TLS: \"%s\" can be in no certificate", name);
    else if (rc < 0)
        fail_of_wire(conn, "connecting", rc);
    if (rc < 0)
        return;
    bound_arrays(conn);
    if (bt_redis_wire_is_up(&conn->wire)) {
        wait_for(conn, UV_READABLE);
        begin_greeting(conn);
    } else {
        write_out(conn);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    bt_redis_conn_t *conn = poll->data;

    if (conn->state == CONNECTING) {
        connected(conn);
        return;
    }
    if (status < 0) { /* libuv has stopped the handle */
        lost(conn, status);
        return;
    }
    if (events & UV_WRITABLE)
        write_out(conn);
    if (conn->state != CLOSING && (events & UV_READABLE))
        read_in(conn);
}

static void dial(bt_redis_conn_t *conn, const struct sockaddr *addr, socklen_t n)
{
    int one = 1;

    conn->wire.fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (conn->wire.fd < 0) {
        fail(conn, "no socket: %s", strerror(errno));
        return;
    }
    if (addr->sa_family != AF_UNIX) {
        setsockopt(conn->wire.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        setsockopt(conn->wire.fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    }
    if (connect(conn->wire.fd, addr, n) != 0 && errno != EINPROGRESS) {
        fail(conn, "connecting: %s", strerror(errno));
        return;
    }
    int rc = uv_poll_init(&conn->loop->uv, &conn->poll, conn->wire.fd);
    if (rc != 0) {
        fail(conn, "connecting: %s", uv_strerror(rc));
        return;
    }
    conn->poll.data = conn;
    conn->has_poll = true;
    conn->state = CONNECTING;
    wait_for(conn, UV_WRITABLE);
}

static void dial_unix(bt_redis_conn_t *conn)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    bt_str_copy(addr.sun_path, sizeof(addr.sun_path), conn->target.path);
    dial(conn, (struct sockaddr *) &addr, sizeof(addr));
}

static void on_resolved(bt_resolve_t *resolve, int rc, const struct sockaddr_storage *addr)
{
    bt_redis_conn_t *conn = bt_container_of(resolve, bt_redis_conn_t, resolve);

    conn->is_resolving = false;
    if (conn->state == CLOSING)
        free_conn(conn);
    else if (rc != 0)
        fail(conn, "the name \"%s\" is not resolved", conn->host);
    else
        dial(conn, (const struct sockaddr *) addr,
             bt_network_length((const struct sockaddr *) addr));
}

/* ---- deadlines ---- */
static void on_deadline(bt_timer_t *timer)
{
    bt_redis_conn_t *conn = bt_container_of(timer, bt_redis_conn_t, deadline);
    uint64_t silent_us = (uint64_t) conn->target.silent_ms * 1000;

    if (conn->state != UP) {
        bt_redis_conn_check(conn); /* this loop may be the late one */
        if (conn->state == SHAKING)
            fail(conn, "TLS: the handshake was not done in %u ms; is it a port with TLS?",
                 conn->target.connect_ms);
        else if (conn->state != UP)
            fail(conn, "no answer in %u ms while connecting", conn->target.connect_ms);
        return;
    }
    for (int i = 0; i < 2 && conn->state == UP && !bt_list_empty(&conn->calls); i++) {
        uint64_t now_us = bt_clock_us();
        uint64_t since_us = bt_container_of(conn->calls.next, bt_redis_call_t, link)->sent_us;
        if (since_us == 0) /* this loop has not got round to sending it */
            since_us = now_us;
        else if (since_us < conn->last_us)
            since_us = conn->last_us;
        if (now_us - since_us < silent_us) {
            bt_timer_start(timer, (silent_us - (now_us - since_us)) / 1000 + 1);
            return;
        }
        if (i == 1)
            fail(conn, "no answer in %u ms", conn->target.silent_ms);
        else
            bt_redis_conn_check(conn);
    }
}

static void on_dial_begins(bt_timer_t *timer)
{
    bt_redis_conn_t *conn = bt_container_of(timer, bt_redis_conn_t, deadline);

    bt_timer_init(conn->loop, timer, on_deadline);
    bt_timer_start(timer, conn->target.connect_ms);
    if (conn->target.host == NULL) {
        dial_unix(conn);
        return;
    }
    conn->is_resolving = true;
    if (bt_resolve_turn(&conn->resolve, conn->loop, conn->host, conn->target.port,
                        conn->target.turn, on_resolved) != 0) {
        conn->is_resolving = false;
        fail(conn, "the name \"%s\" cannot be looked up", conn->host);
    }
}

int bt_redis_conn_open(bt_redis_conn_t **conn_p, bt_loop_t *loop, const bt_redis_target_t *target,
                       const bt_redis_conn_ops_t *ops, void *user)
{
    bt_redis_conn_t *conn = calloc(1, sizeof(*conn));

    if (conn == NULL)
        return BT_E_NOMEM;
    conn->loop = loop;
    conn->target = *target;
    conn->ops = ops;
    conn->user = user;
    conn->wire.fd = -1;
    if (target->host != NULL)
        bt_str_copy(conn->host, sizeof(conn->host), target->host);
    bt_list_init(&conn->calls);
    bt_later_init(&conn->flush, on_flush);
    bt_timer_init(loop, &conn->deadline, on_dial_begins);
    bt_timer_start(&conn->deadline, 0); /* from the loop, so that no callback comes from in here */
    *conn_p = conn;
    return 0;
}

uint64_t bt_redis_conn_up_ms(const bt_redis_conn_t *conn)
{
    return conn->up_us != 0 ? (bt_clock_us() - conn->up_us) / 1000 + 1 : 0;
}
