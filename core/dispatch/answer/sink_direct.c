/* sink_direct.c - an unsplit request: the worker's bytes go to the client as they are.
 *
 * A stream that breaks after its first byte ends in an error event when the client stands between two events; in the middle of
 * one the connection is broken off instead (no last chunk), since half an event followed by ours would parse as neither.
 */
#include "dispatch/answer/answer.h"
#include "dispatch/answer/headers.h"
#include "dispatch/answer/sink.h"

#define HEADERS_MAX (BT_HTTP_HEADERS_MAX + 28)

static void note_first_byte(bt_request_t *r)
{
    if (r->first_byte_us != 0)
        return;
    r->first_byte_us = bt_clock_event_us();
    if (r->warmup == NULL)
        bt_histogram_note(&r->d->stats.ttft, r->first_byte_us - r->start_us, 1);
    r->ops->begin_answer(r);
}

void bt_sink_send(bt_request_t *r, bt_buf_t *buf, const char *p, size_t n)
{
    note_first_byte(r);
    r->sent_bytes += n;
    bt_exchange_write(r->x, buf, p, n);
}

void bt_sink_end(bt_request_t *r)
{
    bt_exchange_t *x = r->x;

    r->x = NULL;
    bt_exchange_end(x);
    r->ops->finish(r);
}

void bt_sink_begin_stream(bt_request_t *r)
{
    bt_header_t headers[36];
    unsigned n;

    if (r->head_sent)
        return;
    n = bt_headers_answer(r, NULL, headers, 35);
    headers[n++] =
        (bt_header_t){BT_STR("Content-Type"), BT_STR("text/event-stream; charset=utf-8")};
    r->head_sent = r->stream_started = r->at_boundary = true;
    r->status = 200;
    bt_exchange_start(r->x, 200, headers, n, BT_LENGTH_CHUNKED);
}

static void head(bt_task_t *task, const bt_head_t *from, bool is_sse)
{
    static const bt_failure_t no_stream = {.rc = BT_E_UPSTREAM_BODY,
                                           .leg = BT_LEG_DECODE,
                                           .reason = "the worker's answer is no event stream"};
    bt_request_t *r = task->request;
    bt_header_t headers[HEADERS_MAX];
    unsigned n;

    bt_timer_stop(&r->keepalive);
    if (r->head_sent) { /* by a keep-alive comment or a first token: status and headers are out already, and they promise a stream */
        if (!is_sse) {
            r->fail_name = bt_err_name(no_stream.rc);
            bt_sink_fail(task, &no_stream);
        }
        return;
    }
    r->stream_started = is_sse;
    r->at_boundary = is_sse; /* nothing of an event has gone out */
    n = bt_headers_answer(r, from, headers, HEADERS_MAX);
    r->head_sent = true;
    r->status = from->status;
    bt_exchange_start(r->x, from->status, headers, n,
                      from->has_length && !from->chunked ? from->length : BT_LENGTH_CHUNKED);
}

/* Does this piece end with a blank line? A piece that ends in the middle of one counts as inside an event. */
static bool ends_event(const char *p, size_t n)
{
    return (n >= 2 && memcmp(p + n - 2, "\n\n", 2) == 0) ||
           (n >= 4 && memcmp(p + n - 4, "\r\n\r\n", 4) == 0);
}

static void data(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n)
{
    bt_request_t *r = task->request;

    if (r->stream_started && n != 0)
        r->at_boundary = ends_event(p, n);
    bt_sink_send(r, buf, p, n);
}

static void end(bt_task_t *task)
{
    bt_sink_end(task->request);
}

static void fail_in_band(bt_request_t *r, const bt_failure_t *f)
{
    bt_exchange_t *x = r->x;

    bt_stats_inc(&r->d->stats, stream_errors);
    r->x = NULL;
    if (r->stream_started && r->at_boundary) {
        bt_str_t event = bt_arena_str(&x->arena, bt_answer_event(r, f));
        bt_exchange_write(x, NULL, event.p, event.n);
        bt_exchange_end(x);
    } else {
        bt_exchange_abort(x);
    }
    r->ops->finish(r);
}

void bt_sink_fail(bt_task_t *task, const bt_failure_t *f)
{
    bt_request_t *r = task->request;

    if (r->head_sent)
        fail_in_band(r, f);
    else
        bt_answer_failure(r, f);
}

void bt_sink_break_off(bt_task_t *task, int rc, const char *reason)
{
    const bt_failure_t f = {.rc = rc == BT_E_NOMEM ? rc : BT_E_UPSTREAM_BODY,
                            .leg = BT_LEG_DECODE,
                            .reason = rc == BT_E_NOMEM ? "memory is short, try again" : reason};

    task->request->fail_name = bt_err_name(f.rc);
    bt_sink_fail(task, &f);
}

bool bt_sink_blocked(bt_task_t *task)
{
    const bt_request_t *r = task->request;

    return r->x != NULL && bt_exchange_blocked(r->x);
}

const bt_sink_ops_t bt_sink_direct = {
    .head = head, .data = data, .end = end, .fail = bt_sink_fail, .blocked = bt_sink_blocked};
