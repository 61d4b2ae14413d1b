#include "cluster/checks/probe.h"

#include "base/clock.h"
#include "base/err.h"

/* The slot is given back before the callback runs, so a callback may start the same probe again at once (the
 * bootstrap port after the worker's own port) without ever holding two places. */

static void on_head(bt_call_t *call)
{
    bt_probe_t *p = call->user;
    p->status = call->status;
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *data, size_t n)
{
    bt_probe_t *p = call->user;
    size_t room = p->body_max - p->body.len;
    (void) buf;
    bt_text_put(&p->body, (bt_str_t){data, n < room ? n : room});
}

static void let_next_through(bt_probe_limit_t *limit);

/* Last: the callback may free the probe, but not the limit. */
static void end(bt_probe_t *p, int rc)
{
    bt_probe_limit_t *limit = p->limit;
    p->state = BT_PROBE_IDLE;
    limit->running--;
    if (rc == 0 && p->body.failed)
        rc = BT_E_NOMEM;
    let_next_through(limit);
    p->cb(p, rc);
}

static void on_end(bt_call_t *call)
{
    end(call->user, 0);
}

static void on_fail(bt_call_t *call, int rc)
{
    end(call->user, rc);
}

static const bt_call_ops_t call_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

static int launch(bt_probe_t *p)
{
    bt_call_timeouts_t timeouts = {.connect_ms = p->timeout_ms, .total_ms = p->timeout_ms};
    p->began_ms = bt_clock_ms();
    p->slice = (struct bt_slice){.p = p->request.data, .n = p->request.len};
    int rc = bt_call_start(&p->call, p->up, &call_ops, p, &p->slice, 1, &timeouts);
    if (rc < 0)
        return rc;
    p->state = BT_PROBE_RUNNING;
    p->limit->running++;
    return 0;
}

static void let_next_through(bt_probe_limit_t *limit)
{
    while (limit->running < limit->max && !bt_list_empty(&limit->waiting)) {
        bt_probe_t *p = bt_container_of(limit->waiting.next, bt_probe_t, link);
        bt_list_remove(&p->link);
        p->state = BT_PROBE_IDLE;
        int rc = launch(p);
        if (rc < 0)
            p->cb(p, rc);
    }
}

static int write_request(bt_probe_t *p, const bt_probe_target_t *target)
{
    bt_text_fini(&p->request);
    bt_text_init(&p->request);
    bt_text_printf(&p->request,
                   "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: baton/%s\r\nAccept: */*\r\n",
                   target->body != NULL ? "POST" : "GET", target->base_path, target->path,
                   target->authority, BT_VERSION);
    if (target->api_key != NULL)
        bt_text_printf(&p->request, "Authorization: Bearer %s\r\n", target->api_key);
    if (target->body != NULL)
        bt_text_printf(&p->request, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                       strlen(target->body));
    bt_text_printf(&p->request, "\r\n%s", target->body != NULL ? target->body : "");
    return p->request.failed ? BT_E_NOMEM : 0;
}

void bt_probe_limit_init(bt_probe_limit_t *limit, unsigned max)
{
    *limit = (bt_probe_limit_t){.max = max};
    bt_list_init(&limit->waiting);
}

void bt_probe_init(bt_probe_t *p, bt_probe_limit_t *limit)
{
    memset(p, 0, sizeof *p);
    p->limit = limit;
    bt_list_init(&p->link);
    bt_text_init(&p->request);
    bt_text_init(&p->body);
}

void bt_probe_fini(bt_probe_t *p)
{
    bt_probe_cancel(p);
    bt_text_fini(&p->request);
    bt_text_fini(&p->body);
}

int bt_probe_start(bt_probe_t *p, const bt_probe_target_t *target, uint64_t timeout_ms,
                   size_t body_max, bt_probe_cb cb)
{
    if (p->state != BT_PROBE_IDLE)
        return BT_E_AGAIN;
    int rc = write_request(p, target);
    if (rc < 0)
        return rc;
    bt_text_fini(&p->body);
    bt_text_init(&p->body);
    p->up = target->up;
    p->cb = cb;
    p->timeout_ms = timeout_ms;
    p->body_max = body_max;
    p->status = 0;
    if (p->limit->running < p->limit->max)
        return launch(p);
    p->state = BT_PROBE_WAITING;
    bt_list_push(&p->limit->waiting, &p->link);
    return 0;
}

void bt_probe_cancel(bt_probe_t *p)
{
    bool was_running = p->state == BT_PROBE_RUNNING;
    bt_list_remove(&p->link);
    p->state = BT_PROBE_IDLE;
    if (!was_running)
        return;
    bt_call_cancel(&p->call);
    p->limit->running--;
    let_next_through(p->limit);
}
