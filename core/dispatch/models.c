/* models.c - answers to /v1/models that are kept for a second.
 *
 * A client could make the gateway ask 64 workers with each of its requests. So an answer serves
 * everybody who comes within a second, and everybody who comes while it is being made. A failure is
 * kept as what it is, a 503, for as long: workers that refuse must not be asked more often than
 * those that answer.
 *
 * Making one is a round: every usable worker is asked at once, and the last that has answered, or
 * whose deadline has passed, ends it. Entries with the same id stand in it once, bytes as the first
 * worker wrote them. Who comes after the workers have changed waits for the next round.
 *
 * Only a few keys are asked for at a time, because keys cost a client nothing where workers are the
 * ones to check them.
 */
#include "dispatch/models.h"

#include "base/json.h"
#include "dispatch/answer/answer.h"

#include <stdlib.h>

#define FRESH_MS 1000
#define KEPT_BYTES ((size_t) 1 << 20) /* a larger answer is made for those who wait only */
#define KEYS_MAX 8
#define ASK_MAX 64
#define ASK_MS 2000
#define REPLY_MAX ((size_t) 1 << 20)
#define MODELS_MAX 256

/* Which workers there were. */
struct stamp {
    uint64_t epoch, changes;
};

struct waiter { /* in its exchange's arena */
    struct bt_handler handler;
    bt_list_t link;
    bt_exchange_t *x;
    struct stamp since;
};

struct answer {
    bt_dispatcher_t *d;
    char *key; /* the client's Authorization, "" where it goes nowhere; NULL = free */
    bool is_asking, is_built;
    bt_text_t list; /* made; empty: nobody could say */
    struct stamp of;
    uint64_t built_ms;
    bt_list_t waiters;
};

struct bt_models {
    struct answer answers[KEYS_MAX];
};

struct ask {
    bt_call_t call;
    struct round *round;
    bt_worker_t *worker;
    struct bt_slice slices[3];
    bt_text_t head; /* of the request, but for the client's own key and the end */
    bt_text_t reply;
    bool good;
};

struct round {
    struct answer *answer;
    unsigned count, open;
    bt_timer_t deferred; /* calls cannot be freed from their own callbacks */
    struct ask asks[ASK_MAX];
};

/* ---- answering ---- */

static void respond(bt_exchange_t *x, bt_str_t list)
{
    if (list.n > 0)
        bt_exchange_respond(x, 200, "application/json", list, NULL, 0);
    else
        bt_answer_exchange(x, 503, "no worker could say which models it serves");
}

/* ---- making an answer ---- */

static struct stamp stamp_now(const bt_dispatcher_t *d)
{
    return (struct stamp){.epoch = d->workers != NULL ? d->workers->epoch : 0,
                          .changes = bt_workers_changes()};
}

static bool covers(struct stamp built_of, struct stamp since)
{
    return built_of.epoch >= since.epoch && built_of.changes >= since.changes;
}

static void begin(struct answer *a);

/* list: the whole body; without bytes: no worker could say. */
static void on_list(struct answer *a, bt_str_t list)
{
    bt_list_t *it, *tmp;

    a->is_asking = false;
    a->is_built = list.n <= KEPT_BYTES;
    a->built_ms = bt_clock_ms();
    a->list.len = 0;
    if (a->is_built)
        bt_text_put(&a->list, list);
    bt_list_each (&a->waiters, it, tmp) {
        struct waiter *w = bt_container_of(it, struct waiter, link);
        if (!covers(a->of, w->since))
            continue;
        bt_list_remove(&w->link);
        respond(w->x, list);
    }
    if (!bt_list_empty(&a->waiters))
        begin(a);
}

/* ---- a round ---- */

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

static void end_round(struct round *q)
{
    bt_str_t seen[MODELS_MAX];
    unsigned models = 0, good = 0;
    bt_text_t t;

    bt_timer_start(&q->deferred, 0);
    bt_text_init(&t);
    bt_text_puts(&t, "{\"object\":\"list\",\"data\":[");
    for (unsigned i = 0; i < q->count; i++) {
        good += q->asks[i].good;
        if (q->asks[i].good)
            merge(&t, bt_text_str(&q->asks[i].reply), seen, &models);
    }
    bt_text_puts(&t, "]}");
    on_list(q->answer, good != 0 && !t.failed ? bt_text_str(&t) : BT_STR_NULL);
    bt_text_fini(&t);
}

static void on_deferred(bt_timer_t *timer)
{
    struct round *q = bt_container_of(timer, struct round, deferred);

    for (unsigned i = 0; i < q->count; i++) {
        bt_text_fini(&q->asks[i].head);
        bt_text_fini(&q->asks[i].reply);
        bt_worker_unref(q->asks[i].worker);
    }
    q->answer->d->background_count--;
    free(q);
}

static void closed(struct ask *a, bool good)
{
    struct round *q = a->round;

    a->good = good;
    if (--q->open == 0)
        end_round(q);
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
    closed(call->user, call->status == 200);
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
    const bt_dispatch_config_t *config = &a->round->answer->d->shared->config;
    const char *key = w->spec.api_key != NULL ? w->spec.api_key : config->worker_api_key;
    const bt_str_t clients = bt_str(key == NULL ? a->round->answer->key : NULL);

    bt_text_printf(&a->head, "GET %s/v1/models HTTP/1.1\r\nHost: %s\r\n", w->base_path,
                   w->authority);
    if (key != NULL)
        bt_text_printf(&a->head, "Authorization: Bearer %s\r\n", key);
    if (clients.n > 0)
        bt_text_puts(&a->head, "Authorization: ");
    a->slices[0] = (struct bt_slice){.p = a->head.data, .n = a->head.len};
    a->slices[1] = (struct bt_slice){.p = clients.p, .n = clients.n};
    a->slices[2] = (struct bt_slice){.p = "\r\n\r\n", .n = clients.n > 0 ? 4 : 2};
}

static void ask(struct round *q, bt_worker_t *w)
{
    static const bt_call_timeouts_t timeouts = {.connect_ms = ASK_MS, .total_ms = ASK_MS};
    struct ask *a = &q->asks[q->count];
    bt_upstream_t *up = bt_dispatcher_upstream(q->answer->d, w);

    if (up == NULL)
        return;
    a->round = q;
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

static void begin(struct answer *a)
{
    bt_dispatcher_t *d = a->d;
    struct round *q = calloc(1, sizeof(*q));

    a->of = stamp_now(d); /* before anybody is asked */
    a->is_asking = true;
    a->is_built = false;
    if (q == NULL) {
        on_list(a, BT_STR_NULL);
        return;
    }
    q->answer = a;
    bt_timer_init(d->loop, &q->deferred, on_deferred);
    d->background_count++;
    for (unsigned p = 0; d->workers != NULL && p < d->workers->pool_count; p++)
        for (unsigned i = 0; i < d->workers->pools[p].all.count && q->count < ASK_MAX; i++)
            if (bt_worker_usable(d->workers->pools[p].all.items[i], bt_clock_ms()))
                ask(q, d->workers->pools[p].all.items[i]);
    if (q->open == 0)
        end_round(q);
}

/* ---- waiting ---- */

static void on_gone(struct bt_handler *h)
{
    bt_list_remove(&bt_container_of(h, struct waiter, handler)->link);
}

static void wait_for(struct answer *a, bt_exchange_t *x)
{
    struct waiter *w = bt_arena_zalloc(&x->arena, sizeof(*w));

    w->handler.gone = on_gone;
    w->x = x;
    w->since = stamp_now(a->d);
    x->user = &w->handler;
    bt_list_push(&a->waiters, &w->link);
    if (!a->is_asking)
        begin(a);
}

/* ---- answers by key ---- */

/* The part of the request that the answer depends on. Only where no key of ours is set does the client's reach a worker. */
static bt_str_t key_of(const bt_dispatcher_t *d, const bt_exchange_t *x)
{
    const bt_dispatch_config_t *config = &d->shared->config;

    if (config->asks_identity || config->worker_api_key != NULL)
        return BT_STR("");
    return bt_head_get(&x->head, BT_STR("authorization"));
}

static bool take_key(struct answer *a, bt_str_t key)
{
    char *copy = bt_str_dup(key);

    if (copy == NULL)
        return false;
    free(a->key);
    a->key = copy;
    a->is_built = false;
    return true;
}

/* Its own, or the one that was made the longest ago. NULL: all are being made for others. */
static struct answer *answer_for(struct bt_models *m, bt_str_t key)
{
    struct answer *oldest = NULL;

    for (unsigned i = 0; i < KEYS_MAX; i++) {
        struct answer *a = &m->answers[i];
        if (a->key != NULL && bt_str_is_secret(bt_str(a->key), key))
            return a;
        if (!a->is_asking && (oldest == NULL || a->built_ms < oldest->built_ms))
            oldest = a;
    }
    return oldest != NULL && take_key(oldest, key) ? oldest : NULL;
}

static struct bt_models *models_of(bt_dispatcher_t *d)
{
    struct bt_models *m = d->models != NULL ? d->models : calloc(1, sizeof(*m));

    if (m == NULL || m == d->models)
        return m;
    for (unsigned i = 0; i < KEYS_MAX; i++) {
        m->answers[i].d = d;
        bt_text_init(&m->answers[i].list);
        bt_list_init(&m->answers[i].waiters);
    }
    d->models = m;
    return m;
}

static bool is_fresh(const struct answer *a)
{
    return a->is_built && !a->list.failed && bt_clock_ms() - a->built_ms < FRESH_MS &&
           covers(a->of, stamp_now(a->d));
}

void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x)
{
    struct bt_models *m = models_of(d);
    struct answer *a = m != NULL ? answer_for(m, key_of(d, x)) : NULL;

    if (a == NULL)
        bt_answer_exchange(x, 503, "too many keys ask which models there are, try again");
    else if (is_fresh(a))
        respond(x, bt_text_str(&a->list));
    else
        wait_for(a, x);
}

void bt_models_free(struct bt_models *m)
{
    for (unsigned i = 0; m != NULL && i < KEYS_MAX; i++) {
        free(m->answers[i].key);
        bt_text_fini(&m->answers[i].list);
    }
    free(m);
}
