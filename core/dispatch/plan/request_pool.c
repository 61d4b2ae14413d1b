/* request_pool.c - which pool a request belongs to: its owner's, a rule's or route's, its model's. */
#include "dispatch/plan/request_pool.h"

#include "dispatch/answer/answer.h"

#include <stdio.h>

bool bt_request_pin(bt_request_t *r, uint64_t worker_id, bt_str_t url)
{
    for (unsigned p = 0; p < r->workers->pool_count; p++)
        for (unsigned i = 0; i < r->workers->pools[p].all.count; i++) {
            bt_worker_t *w = r->workers->pools[p].all.items[i];
            if (url.n > 0 ? !bt_str_eq(bt_str(w->spec.url), url) : w->id != worker_id)
                continue;
            r->pinned = bt_worker_ref(w);
            r->pool = &r->workers->pools[p];
            return true;
        }
    return false;
}

static const bt_worker_pool_t *pool_of(const bt_workers_t *workers, const bt_worker_t *w)
{
    for (unsigned p = 0; p < workers->pool_count; p++)
        for (unsigned i = 0; i < workers->pools[p].all.count; i++)
            if (workers->pools[p].all.items[i]->id == w->id)
                return &workers->pools[p];
    return NULL;
}

/* The pool that a rule or route has named, else the one of the model; NULL: there is none (any more). A follow-up stays with its
 * owner, while that is there. */
const bt_worker_pool_t *bt_request_pool(const bt_request_t *r)
{
    const bt_workers_t *workers = r->d->workers;
    const bt_worker_pool_t *makers = r->pinned != NULL ? pool_of(workers, r->pinned) : NULL;

    if (makers != NULL)
        return makers;
    if (r->pool_name == NULL)
        return bt_workers_route(workers, r->intent.model);
    for (unsigned i = 0; i < workers->pool_count; i++)
        if (strcmp(workers->pools[i].spec.name, r->pool_name) == 0)
            return &workers->pools[i];
    return NULL;
}

static void take_pool(bt_request_t *r, const bt_worker_pool_t *pool)
{
    if (r->workers != r->d->workers) {
        bt_workers_unref(r->workers);
        r->workers = bt_workers_ref(r->d->workers);
    }
    r->pool = pool;
}

/* What a rule or route has named may be gone: then rather its model's. */
static const bt_worker_pool_t *find_pool(bt_request_t *r)
{
    const bt_worker_pool_t *pool = bt_request_pool(r);

    if (pool != NULL || r->pool_name == NULL)
        return pool;
    r->pool_name = NULL;
    return bt_request_pool(r);
}

/* The configuration may have changed since the request came: look at today's pool. After a first attempt it stays with the pool
 * it was for. */
bool bt_request_refresh_pool(bt_request_t *r)
{
    const bt_worker_pool_t *pool;

    if (r->workers == r->d->workers)
        return true;
    pool = r->attempts == 0 ? find_pool(r) : bt_request_pool(r);
    if (pool != NULL)
        take_pool(r, pool);
    return pool != NULL;
}

bool bt_request_set_pool(bt_request_t *r, const char *name)
{
    const char *before = r->pool_name;
    const bt_worker_pool_t *pool;

    r->pool_name = bt_arena_str(&r->arena, bt_str(name)).p;
    pool = bt_request_pool(r);
    if (pool != NULL)
        take_pool(r, pool);
    else
        r->pool_name = before;
    return pool != NULL;
}

/* False: it has been answered. */
bool bt_request_find_pool(bt_request_t *r)
{
    char why[320];
    const bt_worker_pool_t *pool;

    if (r->pinned != NULL)
        return true;
    pool = find_pool(r);
    if (pool != NULL) {
        take_pool(r, pool);
        return true;
    }
    snprintf(why, sizeof(why), "no pool serves the model \"%.*s\"",
             (int) (r->intent.model.n < 200 ? r->intent.model.n : 200),
             r->intent.model.n != 0 ? r->intent.model.p : "");
    bt_answer_error(r, 404, why, 0);
    return false;
}
