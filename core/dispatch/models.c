/* models.c - answers to /v1/models that are kept for a second.
 *
 * A client could make the gateway ask 64 workers with each of its requests. So an answer serves everybody who comes within a
 * second, and everybody who comes while it is being made. A failure is kept as what it is, a 503, for as long: workers that
 * refuse must not be asked more often than those that answer.
 *
 * Who comes after the workers have changed does not get an answer that was begun before: it waits for the next one.
 *
 * Only a few keys are asked for at a time, because keys cost a client nothing where workers are the ones to check them.
 */
#include "dispatch/models.h"
#include "dispatch/request.h"

#include "dispatch/models_fetch.h"

#include <stdlib.h>

#define FRESH_MS 1000
#define KEPT_BYTES ((size_t) 1 << 20) /* a larger answer is made for those who wait only */

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
    struct bt_models *m;
    char *key; /* the client's Authorization, "" where it goes nowhere; NULL = free */
    size_t key_n;
    bool is_asking, is_built;
    bt_text_t list; /* made; empty: nobody could say */
    struct stamp of;
    uint64_t built_ms;
    bt_list_t waiters;
};

struct bt_models {
    bt_dispatcher_t *d;
    struct answer answers[BT_MODELS_KEYS];
};

/* ---- answering ---- */

static void respond(bt_exchange_t *x, bt_str_t list)
{
    static const bt_header_t retry[] = {{BT_STR("Retry-After"), BT_STR("1")}};

    if (list.n > 0)
        bt_exchange_respond(x, 200, "application/json", list, NULL, 0);
    else
        bt_exchange_respond(
            x, 503, "application/json",
            BT_STR("{\"error\":{\"message\":\"no worker could say which models it serves\","
                   "\"type\":\"overloaded_error\",\"param\":null,\"code\":503}}"),
            retry, 1);
}

static void respond_busy(bt_exchange_t *x)
{
    static const bt_header_t retry[] = {{BT_STR("Retry-After"), BT_STR("1")}};

    bt_exchange_respond(
        x, 503, "application/json",
        BT_STR("{\"error\":{\"message\":\"too many keys ask which models there are, try again\","
               "\"type\":\"overloaded_error\",\"param\":null,\"code\":503}}"),
        retry, 1);
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

static void on_list(void *user, bt_str_t list)
{
    struct answer *a = user;
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

static void begin(struct answer *a)
{
    bt_dispatcher_t *d = a->m->d;

    a->of = stamp_now(d); /* before anybody is asked */
    a->is_asking = true;
    a->is_built = false;
    if (bt_models_fetch(d, (bt_str_t){a->key, a->key_n}, on_list, a) < 0)
        on_list(a, BT_STR_NULL);
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
    w->since = stamp_now(a->m->d);
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

    if (config->client_keys != NULL || config->worker_api_key != NULL)
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
    a->key_n = key.n;
    a->is_built = false;
    return true;
}

/* Its own, or the one that was made the longest ago. NULL: all are being made for others. */
static struct answer *answer_for(struct bt_models *m, bt_str_t key)
{
    struct answer *oldest = NULL;

    for (unsigned i = 0; i < BT_MODELS_KEYS; i++) {
        struct answer *a = &m->answers[i];
        if (a->key != NULL && bt_str_is_secret((bt_str_t){a->key, a->key_n}, key))
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
    m->d = d;
    for (unsigned i = 0; i < BT_MODELS_KEYS; i++) {
        m->answers[i].m = m;
        bt_text_init(&m->answers[i].list);
        bt_list_init(&m->answers[i].waiters);
    }
    d->models = m;
    return m;
}

static bool is_fresh(const struct answer *a)
{
    return a->is_built && !a->list.failed && bt_clock_ms() - a->built_ms < FRESH_MS &&
           covers(a->of, stamp_now(a->m->d));
}

void bt_models_answer(bt_dispatcher_t *d, bt_exchange_t *x)
{
    struct bt_models *m = models_of(d);
    struct answer *a = m != NULL ? answer_for(m, key_of(d, x)) : NULL;

    if (a == NULL)
        respond_busy(x);
    else if (is_fresh(a))
        respond(x, bt_text_str(&a->list));
    else
        wait_for(a, x);
}

void bt_models_free(struct bt_models *m)
{
    for (unsigned i = 0; m != NULL && i < BT_MODELS_KEYS; i++) {
        free(m->answers[i].key);
        bt_text_fini(&m->answers[i].list);
    }
    free(m);
}
