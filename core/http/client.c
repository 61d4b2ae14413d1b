/* client.c - one request and its answer over a connection of upstream.c.
 *
 *   start --idle connection--> SEND -> FIRST BYTE -> (head) -> STALL ... -> end: parked or closed
 *     \----- none: CONNECT ----^
 *
 * The deadlines follow one another, so a connection has one timer and a word for what it stands for. First byte means
 * the first *body* byte: engines send status and headers long before they have anything to say.
 *
 * A callback may cancel its call, free it, or start others. Whatever ends a call takes it off its connection first, and
 * a cancelled connection never gets another call: `conn->call == call` after a callback says that nothing has happened.
 */
#include "base/err.h"
#include "http/client_impl.h"
#include "tls/server.h"

/* After a failed write: how long an answer sent before it (413 and close) may still take to be read. */
#define WRITE_LOST_MS 1000
#define JOIN_BELOW ((size_t) 1024)
#define DIAL_AGAIN_MS 10  /* for the loop that closes an idle connection for this one */
#define DIAL_WAIT_MS 3000 /* in all, where there is no connect deadline */

static bt_conn_t *conn_of(bt_stream_t *s)
{
    return bt_container_of(s, bt_conn_t, stream);
}

static bool has_sent_any(const bt_conn_t *conn)
{
    return bt_stream_written(&conn->stream) > conn->written_before;
}

/* ---- deadlines ---- */

static void start_deadline(bt_conn_t *conn, enum bt_call_deadline deadline, uint64_t ms)
{
    conn->deadline = deadline;
    if (ms > 0)
        bt_timer_start(&conn->timer, ms);
    else
        bt_timer_stop(&conn->timer);
}

static void wait_for_send(bt_conn_t *conn)
{
    const bt_call_timeouts_t *t = &conn->call->timeouts;

    conn->written_mark = bt_stream_written(&conn->stream);
    start_deadline(conn, BT_DEADLINE_SEND, t->stall_ms > 0 ? t->stall_ms : t->first_byte_ms);
}

static void wait_for_first_byte(bt_conn_t *conn)
{
    conn->first_due_us = bt_clock_event_us() + conn->first_left_ms * 1000;
    start_deadline(conn, BT_DEADLINE_FIRST_BYTE, conn->first_left_ms);
}

/* A timer that runs stays as it is, and is set for what is left when it fires: a token moves none. */
static void wait_for_more(bt_conn_t *conn)
{
    conn->heard_ms = bt_clock_event_ms();
    if (conn->deadline != BT_DEADLINE_STALL || !bt_timer_active(&conn->timer))
        start_deadline(conn, BT_DEADLINE_STALL, conn->call->timeouts.stall_ms);
}

static bool awaits_first_byte(const bt_call_t *call)
{
    return call->body_bytes == 0 && call->timeouts.first_byte_ms > 0;
}

/* The request has left, or answer bytes have come. */
static void wait_for_answer(bt_conn_t *conn)
{
    const bt_call_t *call = conn->call;

    if (call->paused)
        bt_timer_stop(&conn->timer);
    else if (conn->write_lost && call->first_byte_us == 0)
        start_deadline(conn, BT_DEADLINE_WRITE_LOST, WRITE_LOST_MS);
    else if (!awaits_first_byte(call) && call->first_byte_us > 0)
        wait_for_more(conn);
    else if (!awaits_first_byte(call))
        bt_timer_stop(&conn->timer);
    else if (conn->deadline != BT_DEADLINE_FIRST_BYTE || !bt_timer_active(&conn->timer))
        wait_for_first_byte(conn);
}

/* ---- a call and its connection ---- */

static void attach(bt_call_t *call, bt_conn_t *conn)
{
    call->conn = conn;
    conn->call = call;
    conn->written_before = bt_stream_written(&conn->stream);
    conn->first_left_ms = call->timeouts.first_byte_ms;
    bt_answer_start(&conn->answer, call->head_request);
}

static bt_conn_t *detach(bt_call_t *call)
{
    bt_conn_t *conn = call->conn;

    call->any_byte_sent = has_sent_any(conn);
    call->conn = NULL;
    conn->call = NULL;
    bt_timer_stop(&conn->timer);
    return conn;
}

/* The call is over; its callback, if any, is the caller's next step. */
static bt_conn_t *finish(bt_call_t *call)
{
    bt_conn_t *conn = detach(call);

    bt_timer_stop(&call->total_timer);
    call->done = true;
    call->up->active_count--;
    return conn;
}

static void fail(bt_call_t *call, int rc)
{
    bt_upstream_close_conn(finish(call));
    call->ops->on_fail(call, rc);
}

static void stall_or_go_on(bt_conn_t *conn)
{
    const uint64_t stall_ms = conn->call->timeouts.stall_ms;
    const uint64_t silent_ms = bt_clock_event_ms() - conn->heard_ms;

    if (silent_ms < stall_ms)
        start_deadline(conn, BT_DEADLINE_STALL, stall_ms - silent_ms);
    else
        fail(conn->call, BT_E_STALL);
}

static void succeed(bt_conn_t *conn, bool has_extra)
{
    bt_call_t *call = conn->call;
    bool is_clean = !has_extra && !conn->write_lost && bt_stream_pending(&conn->stream) == 0;

    finish(call);
    if (is_clean && bt_answer_keeps_alive(&conn->answer))
        bt_upstream_park(conn);
    else
        bt_upstream_close_conn(conn);
    call->ops->on_end(call);
    if (conn->call == NULL)
        bt_answer_drop_head(&conn->answer);
}

/* For what fails inside bt_call_start: the callback comes from the loop. */
static void fail_later(bt_conn_t *conn, int rc)
{
    conn->failed_rc = rc;
    conn->deadline = BT_DEADLINE_FAILED;
    bt_timer_start(&conn->timer, 0);
}

/* Our own shortage (descriptors, ports, memory) has a code of its own; the rest is the worker's. */
static int connect_error(int rc)
{
    switch (rc) {
    case UV_ETIMEDOUT:
        return BT_E_CONNECT_TIMEOUT;
    case BT_E_TLS:
        return rc;
    case UV_EMFILE:
    case UV_ENFILE:
    case BT_E_AGAIN:
    case BT_E_DESCRIPTORS:
        return BT_E_DESCRIPTORS;
    case UV_ENOBUFS:
    case UV_ENOMEM:
    case BT_E_NOMEM:
    case UV_EADDRNOTAVAIL:
        return rc;
    default:
        return BT_E_CONNECT;
    }
}

static int send_request(bt_conn_t *conn)
{
    const bt_call_t *call = conn->call;
    const int rc = bt_stream_write_slices(&conn->stream, call->request, call->request_count);

    if (rc == 0)
        wait_for_send(conn);
    return rc;
}

static bool is_out_of_descriptors(int rc)
{
    return rc == UV_EMFILE || rc == UV_ENFILE;
}

/* Its socket, on the way to the worker. BT_E_AGAIN: a descriptor is being freed for it. */
static int dial(bt_conn_t *conn)
{
    const struct sockaddr *addr = (const struct sockaddr *) &conn->up->addr;
    bt_budget_t *budget = conn->up->config.budget;
    int rc = conn->is_counted ? 0 : bt_budget_take(budget, conn->up->loop);

    if (rc < 0)
        return rc;
    conn->is_counted = true;
    rc = bt_stream_connect(&conn->stream, addr);
    if (!is_out_of_descriptors(rc))
        return rc;
    rc = bt_budget_free_one(budget, conn->up->loop); /* somebody who is not counted has it */
    return rc == 0 ? bt_stream_connect(&conn->stream, addr) : rc;
}

static void dial_or_wait(bt_conn_t *conn)
{
    const int rc = dial(conn);

    if (rc == 0) {
        start_deadline(conn, BT_DEADLINE_CONNECT, conn->call->timeouts.connect_ms);
    } else if (rc == BT_E_AGAIN && bt_clock_event_ms() < conn->dial_until_ms) {
        start_deadline(conn, BT_DEADLINE_DIAL, DIAL_AGAIN_MS);
    } else {
        fail_later(conn, connect_error(rc));
        if (connect_error(rc) == BT_E_DESCRIPTORS)
            bt_budget_note_refused(conn->up->config.budget);
    }
}

/* On a fresh connection. */
static int open_fresh(bt_call_t *call)
{
    const uint64_t wait_ms = call->timeouts.connect_ms;
    bt_conn_t *conn;
    int rc = bt_upstream_new_conn(&conn, call->up);

    if (rc < 0)
        return rc;
    attach(call, conn);
    call->reused = false;
    conn->dial_until_ms = bt_clock_event_ms() + (wait_ms > 0 ? wait_ms : DIAL_WAIT_MS);
    dial_or_wait(conn);
    return 0;
}

static int open_any(bt_call_t *call)
{
    bt_conn_t *conn = bt_upstream_take_idle(call->up);

    if (conn == NULL)
        return open_fresh(call);
    attach(call, conn);
    call->reused = true;
    int rc = send_request(conn);
    if (rc < 0)
        fail_later(conn, rc);
    return 0;
}

/* The connection is dead. A pooled one that never answered was probably closed by the worker while idle. */
static void lose(bt_conn_t *conn)
{
    bt_call_t *call = conn->call;

    if (!call->reused || call->first_byte_us > 0) { /* a fresh one is never tried again */
        fail(call, BT_E_RESET);
        return;
    }
    if (call->once && has_sent_any(conn)) {
        bt_upstream_close_idle(
            call->up); /* what lay beside it is as old: the caller's next try gets a fresh one */
        fail(call, BT_E_RESET);
        return;
    }
    bt_upstream_close_conn(detach(call));
    call->retried = true;
    call->sent_us = 0;
    int rc = open_fresh(call);
    if (rc == 0)
        return;
    bt_timer_stop(&call->total_timer);
    call->done = true;
    call->up->active_count--;
    call->ops->on_fail(call, rc);
}

/* ---- stream and timer callbacks ---- */

static void on_connect(bt_stream_t *s, int rc)
{
    bt_conn_t *conn = conn_of(s);

    if (rc < 0) {
        conn->call->why = bt_tls_why(s);
        fail(conn->call, connect_error(rc));
        return;
    }
    conn->connected = true;
    if (!conn->call->paused)
        rc = bt_stream_read_start(s);
    if (rc == 0)
        rc = send_request(conn);
    if (rc < 0)
        fail(conn->call, rc);
}

static void on_sent(bt_stream_t *s)
{
    bt_conn_t *conn = conn_of(s);
    bt_call_t *call = conn->call;

    if (call == NULL || call->sent_us > 0)
        return;
    call->sent_us = bt_clock_event_us();
    if (call->first_byte_us == 0)
        wait_for_answer(conn);
}

/* What of the body has been found in a read, and not been given to the call. */
static void give_body(bt_call_t *call, bt_buf_t *buf, bt_str_t *run)
{
    const bt_str_t body = *run;

    *run = BT_STR("");
    call->body_bytes += body.n;
    call->ops->on_body(call, buf, body.p, body.n);
}

/* One more piece of body. Short ones are moved over the framing between them: tokens that came at once go on as one. */
static void add_body(bt_call_t *call, bt_buf_t *buf, bt_str_t *run, bt_str_t body)
{
    if (run->n != 0 && body.n < JOIN_BELOW) {
        memmove((char *) (uintptr_t) run->p + run->n, body.p, body.n); /* the read's own bytes */
        run->n += body.n;
        return;
    }
    if (run->n != 0)
        give_body(call, buf, run);
    *run = body;
}

/* Gives the call what the piece holds; stops when the call is over, by its end or by its owner. */
static void feed(bt_conn_t *conn, bt_buf_t *buf, bt_str_t piece)
{
    bt_call_t *call = conn->call;
    bt_str_t body, run = BT_STR("");
    size_t at = 0;

    do {
        int rc = bt_answer_next(&conn->answer, piece, &at, &body);
        if (rc == BT_ANSWER_BODY) {
            add_body(call, buf, &run, body);
            continue;
        }
        if (run.n != 0) {
            give_body(call, buf, &run);
            if (conn->call != call)
                return;
        }
        if (rc == BT_ANSWER_HEAD) {
            call->head = conn->answer.head;
            call->status = call->head->status;
            call->ops->on_head(call);
        } else if (rc == BT_ANSWER_END) {
            succeed(conn, at < piece.n);
        } else if (rc == BT_ANSWER_MORE) {
            wait_for_answer(conn);
            return;
        } else {
            fail(call, rc);
        }
    } while (conn->call == call);
}

static void on_read(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n)
{
    bt_conn_t *conn = conn_of(s);
    bt_call_t *call = conn->call;

    if (call == NULL) { /* idle: an answer to nothing */
        bt_upstream_close_conn(conn);
        return;
    }
    if (call->first_byte_us == 0) {
        /* Sent by the worker before it could have seen the request: its farewell to an idle connection. */
        if (call->reused && !has_sent_any(conn)) {
            lose(conn);
            return;
        }
        call->first_byte_us = bt_clock_event_us();
    }
    feed(conn, buf, (bt_str_t){p, n});
}

static void on_eof(bt_stream_t *s, int rc)
{
    bt_conn_t *conn = conn_of(s);

    if (conn->call == NULL)
        bt_upstream_close_conn(conn);
    else if (rc == 0 && bt_answer_eof(&conn->answer) == BT_ANSWER_END)
        succeed(conn, false);
    else if (rc == BT_E_NOMEM)
        fail(conn->call, rc);
    else
        lose(conn);
}

/* The answer to a refused upload may lie in the socket already: the reading side decides, or the deadline. */
static void on_write_error(bt_stream_t *s, int rc)
{
    bt_conn_t *conn = conn_of(s);

    (void) rc;
    if (conn->call == NULL) {
        bt_upstream_close_conn(conn);
        return;
    }
    conn->write_lost = true;
    if (conn->call->first_byte_us == 0)
        wait_for_answer(conn);
}

static void on_closed(bt_stream_t *s)
{
    bt_upstream_forget(conn_of(s));
}

static void on_drain(bt_stream_t *s)
{
    (void) s; /* the whole request is queued at once */
}

const bt_stream_ops_t bt_call_stream_ops = {
    .on_connect = on_connect,
    .on_read = on_read,
    .on_eof = on_eof,
    .on_drain = on_drain,
    .on_write_error = on_write_error,
    .on_closed = on_closed,
    .on_sent = on_sent,
};

void bt_call_on_deadline(bt_timer_t *timer)
{
    bt_conn_t *conn = bt_container_of(timer, bt_conn_t, timer);

    switch (conn->deadline) {
    case BT_DEADLINE_IDLE:
        bt_upstream_close_conn(conn);
        break;
    case BT_DEADLINE_DIAL:
        dial_or_wait(conn);
        break;
    case BT_DEADLINE_CONNECT:
        fail(conn->call, BT_E_CONNECT_TIMEOUT);
        break;
    case BT_DEADLINE_SEND:
        if (bt_stream_written(&conn->stream) > conn->written_mark)
            wait_for_send(conn);
        else
            fail(conn->call, BT_E_STALL);
        break;
    case BT_DEADLINE_FIRST_BYTE:
        fail(conn->call, BT_E_FIRST_BYTE_TIMEOUT);
        break;
    case BT_DEADLINE_STALL:
        stall_or_go_on(conn);
        break;
    case BT_DEADLINE_WRITE_LOST:
        lose(conn);
        break;
    case BT_DEADLINE_FAILED:
        fail(conn->call, conn->failed_rc);
        break;
    }
}

static void on_total(bt_timer_t *timer)
{
    fail(bt_container_of(timer, bt_call_t, total_timer), BT_E_TOTAL_TIMEOUT);
}

/* ---- the caller's side ---- */

/* "HEAD " may be cut by slices. */
static bool is_head_request(const struct bt_slice *request, unsigned count)
{
    static const char method[] = "HEAD ";
    size_t matched = 0;

    for (unsigned i = 0; i < count; i++) {
        for (size_t j = 0; j < request[i].n; j++) {
            if (request[i].p[j] != method[matched])
                return false;
            if (++matched == sizeof(method) - 1)
                return true;
        }
    }
    return false;
}

int bt_call_start(bt_call_t *call, bt_upstream_t *up, const bt_call_ops_t *ops, void *user,
                  const struct bt_slice *request, unsigned request_count,
                  const bt_call_timeouts_t *timeouts)
{
    *call = (bt_call_t){.ops = ops, .user = user, .up = up, .start_us = bt_clock_event_us()};
    call->request = request;
    call->request_count = request_count;
    call->head_request = is_head_request(request, request_count);
    if (timeouts != NULL)
        call->timeouts = *timeouts;
    bt_timer_init(up->loop, &call->total_timer, on_total);
    if (up->freed)
        return BT_E_INVAL;
    int rc = open_any(call);
    if (rc < 0)
        return rc;
    up->active_count++;
    if (call->timeouts.total_ms > 0)
        bt_timer_start(&call->total_timer, call->timeouts.total_ms);
    return 0;
}

void bt_call_cancel(bt_call_t *call)
{
    if (call->conn != NULL)
        bt_upstream_close_conn(finish(call));
}

void bt_call_pause(bt_call_t *call)
{
    bt_conn_t *conn = call->conn;

    if (conn == NULL || call->paused)
        return;
    call->paused = true;
    if (!conn->connected)
        return;
    bt_stream_read_stop(&conn->stream);
    if (!bt_timer_active(&conn->timer))
        return;
    if (conn->deadline == BT_DEADLINE_FIRST_BYTE) {
        uint64_t now_us = bt_clock_event_us();
        conn->first_left_ms =
            conn->first_due_us > now_us ? (conn->first_due_us - now_us) / 1000 : 0;
        conn->first_left_ms += conn->first_left_ms == 0; /* 0 would mean none */
    }
    if (conn->deadline == BT_DEADLINE_FIRST_BYTE || conn->deadline == BT_DEADLINE_STALL)
        bt_timer_stop(&conn->timer);
}

void bt_call_resume(bt_call_t *call)
{
    bt_conn_t *conn = call->conn;

    if (conn == NULL || !call->paused)
        return;
    call->paused = false;
    if (!conn->connected || conn->deadline == BT_DEADLINE_FAILED)
        return;
    int rc = bt_stream_read_start(&conn->stream);
    if (rc < 0)
        fail_later(conn, rc);
    else if (call->sent_us > 0 || call->first_byte_us > 0 || conn->write_lost)
        wait_for_answer(conn);
}

void bt_call_drop_head(bt_call_t *call)
{
    call->head = NULL;
    if (call->conn != NULL)
        bt_answer_drop_head(&call->conn->answer);
}

bool bt_call_running(const bt_call_t *call)
{
    return call->conn != NULL;
}

bool bt_call_needs_request(const bt_call_t *call)
{
    const bool may_come_again = call->reused && call->first_byte_us == 0 && !call->once;

    return bt_call_running(call) && (call->sent_us == 0 || may_come_again);
}
