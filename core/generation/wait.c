/* How it works:
 *
 *     SLEEP  ------------------------------------------------> timer -> done
 *     STORE  wait_store.c ------------------------------------------> done
 *     HTTP   resolve -> connect, send -> head -> body -> end --------> done
 *               \---------- timer: timeout_ms, or the hook's deadline -> done
 *
 * The operation's strings belong to a VM that may be renewed meanwhile, so the request is printed into memory of our own at once, and
 * the answer's head is copied when it comes: the connection's buffer is gone at the end.
 *
 * A lookup cannot always be cancelled. A wait that is freed while one runs forgets its owner and goes when it has ended. */
#include "generation/wait.h"

#include "base/err.h"
#include "base/text.h"
#include "http/client.h"
#include "loop/resolve.h"

#include <stdlib.h>

struct bt_wait {
    bt_loop_t *loop;
    bt_budget_t *budget;
    bt_wait_cb cb; /* NULL = freed, and only the lookup is waited for */
    void *user;
    bt_timer_t timer;
    int timer_rc; /* what it means when it rings */
    bool is_over; /* cb was called */
    bool is_resolving, is_calling;
    bt_resolve_t resolve;
    bt_upstream_t *up;
    bt_call_t call;
    struct bt_slice slice;
    bt_text_t request; /* head and body */
    char *head_text;   /* behind head */
    bt_head_t head;
    bt_text_t body;
    bt_wait_store_t *store;
};

static void destroy(bt_wait_t *w)
{
    bt_text_fini(&w->request);
    bt_text_fini(&w->body);
    free(w->head.headers);
    free(w->head_text);
    free(w);
}

/* Nothing moves any more, but for a lookup. */
static void stop(bt_wait_t *w)
{
    bt_timer_stop(&w->timer);
    bt_wait_store_free(&w->store);
    if (w->is_resolving)
        bt_resolve_cancel(&w->resolve);
    if (w->is_calling)
        bt_call_cancel(&w->call);
    w->is_calling = false;
    if (w->up != NULL)
        bt_upstream_free(w->up);
    w->up = NULL;
}

static void finish(bt_wait_t *w, int rc)
{
    bt_hook_answer_t answer = {.rc = rc};

    stop(w);
    w->is_over = true;
    if (rc == 0 && w->head.status != 0) {
        answer.status = w->head.status;
        answer.head = &w->head;
        answer.body = bt_text_str(&w->body);
    }
    w->cb(w, &answer);
}

static void on_timer(bt_timer_t *timer)
{
    bt_wait_t *w = bt_container_of(timer, bt_wait_t, timer);

    finish(w, w->timer_rc);
}

/* The answer points to what the store lent for this call: told first, put away then. */
static void on_store(void *user, const bt_hook_answer_t *answer)
{
    bt_wait_t *w = user;

    bt_timer_stop(&w->timer);
    w->is_over = true;
    w->cb(w, answer);
}

/* ---- the answer ---- */

static int copy_head(bt_wait_t *w, const bt_head_t *from)
{
    size_t bytes = 1;
    char *at;

    for (unsigned i = 0; i < from->header_count; i++)
        bytes += from->headers[i].name.n + from->headers[i].value.n;
    w->head_text = at = malloc(bytes);
    w->head.headers = calloc(from->header_count + 1, sizeof(w->head.headers[0]));
    if (at == NULL || w->head.headers == NULL)
        return BT_E_NOMEM;
    w->head.status = from->status;
    w->head.header_count = from->header_count;
    for (unsigned i = 0; i < from->header_count; i++) {
        w->head.headers[i].name = bt_str_put(&at, from->headers[i].name);
        w->head.headers[i].value = bt_str_put(&at, from->headers[i].value);
    }
    return 0;
}

static void on_head(bt_call_t *call)
{
    bt_wait_t *w = call->user;
    int rc = copy_head(w, call->head);

    if (rc == 0 && call->head->has_length && call->head->length > BT_WAIT_BODY_MAX &&
        !call->head_request)
        rc = BT_E_HTTP_BODY_SIZE;
    if (rc < 0)
        finish(w, rc);
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    bt_wait_t *w = call->user;

    (void) buf;
    if (w->body.len + n > BT_WAIT_BODY_MAX) {
        finish(w, BT_E_HTTP_BODY_SIZE);
        return;
    }
    bt_text_put(&w->body, (bt_str_t){p, n});
    if (w->body.failed)
        finish(w, BT_E_NOMEM);
}

static void on_end(bt_call_t *call)
{
    bt_wait_t *w = call->user;

    w->is_calling = false;
    finish(w, 0);
}

static void on_fail(bt_call_t *call, int rc)
{
    bt_wait_t *w = call->user;

    w->is_calling = false;
    finish(w, rc);
}

static const bt_call_ops_t ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

/* ---- the request ---- */

static bool has_body(const bt_hook_op_t *hook_op)
{
    return hook_op->body.n > 0 || bt_str_eq(hook_op->method, BT_STR("POST")) ||
           bt_str_eq(hook_op->method, BT_STR("PUT")) || bt_str_eq(hook_op->method, BT_STR("PATCH"));
}

/* The script's side has checked every piece: no byte of it ends a line. */
static int print_request(bt_wait_t *w, const bt_hook_op_t *hook_op)
{
    bt_text_t *out = &w->request;

    bt_text_printf(out, "%.*s %.*s HTTP/1.1\r\nHost: %.*s", BT_STR_ARG(hook_op->method),
                   BT_STR_ARG(hook_op->target), BT_STR_ARG(hook_op->host));
    if (hook_op->port != 80)
        bt_text_printf(out, ":%u", hook_op->port);
    bt_text_puts(out, "\r\nConnection: close\r\n");
    for (unsigned i = 0; i < hook_op->header_count; i++)
        bt_text_printf(out, "%.*s: %.*s\r\n", BT_STR_ARG(hook_op->headers[i].name),
                       BT_STR_ARG(hook_op->headers[i].value));
    if (has_body(hook_op))
        bt_text_printf(out, "Content-Length: %zu\r\n", hook_op->body.n);
    bt_text_puts(out, "\r\n");
    bt_text_put(out, hook_op->body);
    return out->failed ? BT_E_NOMEM : 0;
}

static int start_call(bt_wait_t *w, const struct sockaddr_storage *addr)
{
    const bt_upstream_config_t config = {.idle_max = 0, .budget = w->budget};
    static const bt_call_timeouts_t timeouts = {0}; /* our timer runs over all of it */
    int rc = bt_upstream_new(&w->up, w->loop, (const struct sockaddr *) addr, &config);

    if (rc < 0)
        return rc;
    w->slice = (struct bt_slice){.p = w->request.data, .n = w->request.len};
    rc = bt_call_start(&w->call, w->up, &ops, w, &w->slice, 1, &timeouts);
    w->is_calling = rc == 0;
    return rc;
}

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    bt_wait_t *w = bt_container_of(r, bt_wait_t, resolve);

    w->is_resolving = false;
    if (w->cb == NULL) {
        destroy(w);
        return;
    }
    if (w->is_over)
        return; /* its callback has not freed it yet, or never will until it is done with */
    if (rc == 0)
        rc = start_call(w, addr);
    if (rc < 0)
        finish(w, rc);
}

static int start_http(bt_wait_t *w, const bt_hook_op_t *hook_op)
{
    char host[256];
    int rc = print_request(w, hook_op);

    if (hook_op->host.n >= sizeof(host))
        return BT_E_INVAL;
    memcpy(host, hook_op->host.p, hook_op->host.n);
    host[hook_op->host.n] = '\0';
    if (rc == 0)
        rc = bt_resolve_start(&w->resolve, w->loop, host, hook_op->port, on_resolved);
    w->is_resolving = rc == 0;
    return rc;
}

/* ---- life ---- */

static void start_timer(bt_wait_t *w, const bt_hook_op_t *hook_op, uint64_t until_ms)
{
    const uint64_t now_ms = bt_clock_ms(), left_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    const bool is_last = left_ms < hook_op->ms || left_ms == 0;

    w->timer_rc = is_last                            ? BT_E_TOTAL_TIMEOUT
                  : hook_op->kind == BT_HOOK_OP_HTTP ? UV_ETIMEDOUT
                                                     : 0;
    bt_timer_start(&w->timer, is_last ? left_ms : hook_op->ms);
}

static int start_kind(bt_wait_t *w, const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op)
{
    switch (hook_op->kind) {
    case BT_HOOK_OP_SLEEP:
        return 0;
    case BT_HOOK_OP_HTTP:
        return start_http(w, hook_op);
    case BT_HOOK_OP_STORE:
        return bt_wait_store_start(&w->store, room, hook_op, on_store, w);
    default:
        return BT_E_INVAL;
    }
}

int bt_wait_start(bt_wait_t **wait_p, const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op,
                  uint64_t until_ms, bt_wait_cb cb, void *user)
{
    bt_wait_t *w = calloc(1, sizeof(*w));
    int rc = 0;

    if (w == NULL)
        return BT_E_NOMEM;
    w->loop = room->loop;
    w->budget = room->budget;
    w->cb = cb;
    w->user = user;
    bt_text_init(&w->request);
    bt_text_init(&w->body);
    bt_timer_init(w->loop, &w->timer, on_timer);
    if (bt_clock_ms() < until_ms || hook_op->kind == BT_HOOK_OP_NONE)
        rc = start_kind(w, room, hook_op);
    if (rc < 0) {
        destroy(w);
        return rc;
    }
    start_timer(w, hook_op, until_ms);
    *wait_p = w;
    return 0;
}

void *bt_wait_user(const bt_wait_t *wait)
{
    return wait->user;
}

void bt_wait_free(bt_wait_t **wait_p)
{
    bt_wait_t *w = *wait_p;

    *wait_p = NULL;
    if (w == NULL)
        return;
    stop(w);
    w->cb = NULL;
    if (!w->is_resolving)
        destroy(w);
}
