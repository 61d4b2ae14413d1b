/* models.c - asks all, keeps each id once. The client may leave first: then the calls are cancelled. */
#include "dispatch/models.h"

#include "base/json.h"
#include "dispatch/request.h"

#include <stdio.h>
#include <stdlib.h>

#define ASK_MAX 64
#define ASK_MS 2000
#define REPLY_MAX ((size_t) 1 << 20)

struct question;

struct ask {
    bt_call_t call;
    struct question *q;
    bt_worker_t *worker;
    struct bt_slice slice;
    char request[1024];
    bt_text_t reply;
    bool open, good;
};

struct question {
    struct bt_handler handler;
    bt_exchange_t *x;
    bt_dispatcher_t *d;
    unsigned count, open;
    bt_timer_t deferred;
    struct ask asks[];
};

static void destroy(bt_timer_t *timer)
{
    struct question *q = bt_container_of(timer, struct question, deferred);

    for (unsigned i = 0; i < q->count; i++) {
        bt_text_fini(&q->asks[i].reply);
        bt_worker_unref(q->asks[i].worker);
    }
    q->d->errand_count--;
    free(q);
}

static bool is_known(bt_str_t *seen, unsigned count, bt_str_t id)
{
    for (unsigned i = 0; i < count; i++)
        if (bt_str_eq(seen[i], id))
            return true;
    return false;
}

/* Appends the entries of one reply whose id is new. */
static void merge(bt_text_t *out, bt_str_t reply, bt_str_t *seen, unsigned *count, unsigned max)
{
    bt_json_item_t data, entry, id;
    bt_json_cursor_t c;
    int rc;

    if (bt_json_get(reply, BT_STR("data"), &data) < 0 || data.type != BT_JSON_ARRAY)
        return;
    rc = bt_json_array(&c, data.value);
    while (rc >= 0 && (rc = bt_json_next(&c, &entry)) == 1) {
        if (entry.type != BT_JSON_OBJECT || bt_json_get(entry.value, BT_STR("id"), &id) < 0 ||
            id.type != BT_JSON_STRING || *count == max || is_known(seen, *count, id.value))
            continue;
        bt_text_puts(out, *count != 0 ? "," : "");
        bt_text_put(out, entry.value);
        seen[(*count)++] = id.value;
    }
}

static void answer(struct question *q)
{
    bt_str_t seen[256];
    unsigned models = 0, good = 0;
    bt_exchange_t *x = q->x;
    bt_text_t t;

    q->x = NULL;
    bt_timer_start(&q->deferred, 0);
    if (x == NULL)
        return;
    bt_text_init(&t);
    bt_text_puts(&t, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < q->count; i++) {
        good += q->asks[i].good;
        if (q->asks[i].good)
            merge(&t, bt_text_str(&q->asks[i].reply), seen, &models, 256);
    }
    bt_text_puts(&t, "]}");
    if (good != 0)
        bt_exchange_respond(x, 200, "application/json", bt_text_str(&t), NULL, 0);
    else
        bt_exchange_respond(
            x, 503, "application/json",
            BT_STR("{\"error\":{\"message\":\"no worker could say which models it serves\","
                   "\"type\":\"overloaded_error\",\"param\":null,\"code\":503}}"),
            NULL, 0);
    bt_text_fini(&t);
}

static void closed(struct ask *a, bool good)
{
    a->open = false;
    a->good = good;
    if (--a->q->open == 0)
        answer(a->q);
}

static void on_head(bt_call_t *call)
{
    (void) call;
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    struct ask *a = call->user;

    (void) buf;
    if (a->reply.len + n <= REPLY_MAX)
        bt_text_put(&a->reply, (bt_str_t){p, n});
}

static void on_end(bt_call_t *call)
{
    closed(call->user, call->head.status == 200);
}

static void on_fail(bt_call_t *call, int rc)
{
    (void) rc;
    closed(call->user, false);
}

static const bt_call_ops_t ask_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

static void gone(struct bt_handler *h)
{
    struct question *q = bt_container_of(h, struct question, handler);

    q->x = NULL;
    for (unsigned i = 0; i < q->count; i++)
        if (q->asks[i].open)
            bt_call_cancel(&q->asks[i].call);
    bt_timer_start(&q->deferred, 0);
}

static void start_ask(struct question *q, bt_worker_t *w)
{
    static const bt_call_timeouts_t timeouts = {.connect_ms = ASK_MS, .total_ms = ASK_MS};
    struct ask *a = &q->asks[q->count];
    const char *key = w->spec.api_key != NULL ? w->spec.api_key : q->d->gate->config.worker_api_key;
    bt_str_t auth = bt_head_get(&q->x->head, BT_STR("authorization"));
    bt_upstream_t *up = bt_dispatcher_upstream(q->d, w);
    int n;

    if (up == NULL)
        return;
    if (key == NULL && q->d->gate->config.client_keys == NULL && auth.n > 7)
        n = snprintf(a->request, sizeof(a->request),
                     "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\nAuthorization: %.*s\r\n\r\n",
                     w->base_path, w->authority, BT_STR_ARG(auth));
    else
        n = snprintf(a->request, sizeof(a->request),
                     "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", w->base_path,
                     w->authority, key != NULL ? "Authorization: Bearer " : "",
                     key != NULL ? key : "", key != NULL ? "\r\n" : "");
    if (n < 0 || (size_t) n >= sizeof(a->request))
        return;
    a->q = q;
    a->slice = (struct bt_slice){.p = a->request, .n = (size_t) n};
    bt_text_init(&a->reply);
    if (bt_call_start(&a->call, up, &ask_ops, a, &a->slice, 1, &timeouts) < 0) {
        bt_text_fini(&a->reply);
        return;
    }
    a->worker = bt_worker_ref(w);
    a->open = true;
    q->count++;
    q->open++;
}

void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x)
{
    struct question *q = calloc(1, sizeof(*q) + ASK_MAX * sizeof(q->asks[0]));

    if (q == NULL) {
        bt_exchange_respond(x, 503, "text/plain", BT_STR("out of memory\n"), NULL, 0);
        return;
    }
    q->handler.gone = gone;
    q->d = d;
    q->x = x;
    x->user = &q->handler;
    bt_timer_init(d->loop, &q->deferred, destroy);
    d->errand_count++;
    for (unsigned p = 0; d->fleet != NULL && p < d->fleet->pool_count; p++)
        for (unsigned i = 0; i < d->fleet->pools[p].all.count && q->count < ASK_MAX; i++)
            if (bt_worker_usable(d->fleet->pools[p].all.items[i], bt_clock_ms()))
                start_ask(q, d->fleet->pools[p].all.items[i]);
    if (q->open == 0)
        answer(q);
}
