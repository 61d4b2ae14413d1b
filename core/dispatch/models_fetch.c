/* models_fetch.c - all are asked at once, and the last answer tells. */
#include "dispatch/models_fetch.h"
#include "dispatch/request.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

#define ASK_MAX 64
#define ASK_MS 2000
#define REPLY_MAX ((size_t) 1 << 20)
#define MODELS_MAX 256

struct question;

struct ask {
    bt_call_t call;
    struct question *q;
    bt_worker_t *worker;
    struct bt_slice slices[3];
    bt_text_t head; /* of the request, but for the client's own key and the end */
    bt_text_t reply;
    bool good;
};

struct question {
    bt_dispatcher_t *d;
    bt_str_t authorization;
    bt_models_cb cb;
    void *user;
    unsigned count, open;
    bool is_told;
    bt_timer_t deferred; /* calls cannot be freed from their own callbacks */
    struct ask asks[];
};

static bool is_seen(const bt_str_t *seen, unsigned count, bt_str_t id)
{
    for (unsigned i = 0; i < count; i++)
        if (bt_str_eq(seen[i], id))
            return true;
    return false;
}

/* Appends the entries of one reply whose id is new. */
static void merge(bt_text_t *out, bt_str_t reply, bt_str_t *seen, unsigned *count)
{
    bt_json_item_t data, entry, id;
    bt_json_cursor_t c;
    int rc;

    if (bt_json_get(reply, BT_STR("data"), &data) < 0 || data.type != BT_JSON_ARRAY)
        return;
    rc = bt_json_array(&c, data.value);
    while (rc >= 0 && (rc = bt_json_next(&c, &entry)) == 1) {
        if (entry.type != BT_JSON_OBJECT || bt_json_get(entry.value, BT_STR("id"), &id) < 0 ||
            id.type != BT_JSON_STRING || *count == MODELS_MAX || is_seen(seen, *count, id.value))
            continue;
        bt_text_puts(out, *count != 0 ? "," : "");
        bt_text_put(out, entry.value);
        seen[(*count)++] = id.value;
    }
}

static void tell(struct question *q)
{
    bt_str_t seen[MODELS_MAX];
    unsigned models = 0, good = 0;
    bt_text_t t;

    q->is_told = true;
    bt_text_init(&t);
    bt_text_puts(&t, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < q->count; i++) {
        good += q->asks[i].good;
        if (q->asks[i].good)
            merge(&t, bt_text_str(&q->asks[i].reply), seen, &models);
    }
    bt_text_puts(&t, "]}");
    q->cb(q->user, good != 0 && !t.failed ? bt_text_str(&t) : BT_STR_NULL);
    bt_text_fini(&t);
}

static void on_deferred(bt_timer_t *timer)
{
    struct question *q = bt_container_of(timer, struct question, deferred);

    if (!q->is_told) /* there was nobody to ask */
        tell(q);
    for (unsigned i = 0; i < q->count; i++) {
        bt_text_fini(&q->asks[i].head);
        bt_text_fini(&q->asks[i].reply);
        bt_worker_unref(q->asks[i].worker);
    }
    q->d->background_count--;
    free(q);
}

static void closed(struct ask *a, bool good)
{
    struct question *q = a->q;

    a->good = good;
    if (--q->open > 0)
        return;
    bt_timer_start(&q->deferred, 0);
    tell(q);
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

static const bt_call_ops_t fetch_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

static void print_head(struct ask *a, const bt_worker_t *w)
{
    const bt_dispatch_config_t *config = &a->q->d->shared->config;
    const char *key = w->spec.api_key != NULL ? w->spec.api_key : config->worker_api_key;
    const bool is_clients = key == NULL && a->q->authorization.n > 0;

    bt_text_printf(&a->head, "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\n", w->base_path,
                   w->authority);
    if (key != NULL)
        bt_text_printf(&a->head, "Authorization: Bearer %s\r\n", key);
    if (is_clients)
        bt_text_puts(&a->head, "Authorization: ");
    a->slices[0] = (struct bt_slice){.p = a->head.data, .n = a->head.len};
    a->slices[1] =
        (struct bt_slice){.p = a->q->authorization.p, .n = is_clients ? a->q->authorization.n : 0};
    a->slices[2] = (struct bt_slice){.p = "\r\n\r\n", .n = is_clients ? 4 : 2};
}

static void start_fetch(struct question *q, bt_worker_t *w)
{
    static const bt_call_timeouts_t timeouts = {.connect_ms = ASK_MS, .total_ms = ASK_MS};
    struct ask *a = &q->asks[q->count];
    bt_upstream_t *up = bt_dispatcher_upstream(q->d, w);

    if (up == NULL)
        return;
    a->q = q;
    bt_text_init(&a->head);
    bt_text_init(&a->reply);
    print_head(a, w);
    if (a->head.failed || bt_call_start(&a->call, up, &fetch_ops, a, a->slices, 3, &timeouts) < 0) {
        bt_text_fini(&a->head);
        return;
    }
    a->worker = bt_worker_ref(w);
    q->count++;
    q->open++;
}

int bt_models_fetch(bt_dispatcher_t *d, bt_str_t authorization, bt_models_cb cb, void *user)
{
    struct question *q = calloc(1, sizeof(*q) + ASK_MAX * sizeof(q->asks[0]));

    if (q == NULL)
        return BT_E_NOMEM;
    q->d = d;
    q->authorization = authorization;
    q->cb = cb;
    q->user = user;
    bt_timer_init(d->loop, &q->deferred, on_deferred);
    d->background_count++;
    for (unsigned p = 0; d->workers != NULL && p < d->workers->pool_count; p++)
        for (unsigned i = 0; i < d->workers->pools[p].all.count && q->count < ASK_MAX; i++)
            if (bt_worker_usable(d->workers->pools[p].all.items[i], bt_clock_ms()))
                start_fetch(q, d->workers->pools[p].all.items[i]);
    if (q->open == 0)
        bt_timer_start(&q->deferred, 0);
    return 0;
}
