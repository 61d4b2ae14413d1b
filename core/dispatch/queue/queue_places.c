/* queue_places.c - how many requests the workers of a pool can take now. Read on the request's loop, without the queues' lock. */
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/request_pool.h"
#include "dispatch/queue/queue_impl.h"

/* Might one of these, or two together, serve it? The plan says whether they can. */
static bool may_serve(const bt_request_t *r, const bt_worker_set_t *sets)
{
    return sets[BT_LIST_HYBRID].count != 0 || sets[BT_LIST_SINGLE].count != 0 ||
           (sets[BT_LIST_DECODE].count != 0 &&
            (sets[BT_LIST_PREFILL].count != 0 || !bt_route_info(r->route)->generates));
}

/* Each request of a pool that has a limit for each worker takes a leg of one that generates: so many may run. */
static unsigned places_with(const struct bt_queues *q, const bt_request_t *r,
                            const bt_worker_set_t *sets)
{
    const uint64_t limit = r->pool->spec.engine_request_limit;
    uint64_t legs;

    if (!may_serve(r, sets))
        return BT_QUEUE_NO_WORKER;
    if (limit == 0)
        return q->limit;
    legs = limit * (sets[BT_LIST_DECODE].count + sets[BT_LIST_HYBRID].count);
    if (legs == 0)
        legs = limit * sets[BT_LIST_SINGLE].count;
    return q->limit != 0 && q->limit < legs ? q->limit : (unsigned) legs;
}

unsigned bt_queue_places(const struct bt_queues *q, bt_request_t *r)
{
    if (!bt_request_refresh_pool(r))
        return BT_QUEUE_NO_WORKER;
    return places_with(q, r, bt_candidates_get(r->d, r->pool, BT_STR_NULL)->sets);
}

/* Nobody is usable, but somebody will be if the one request goes well that a half-open breaker has let through: it may be worth a wait, for no
 * more requests than would have a place then. */
unsigned bt_queue_places_after_probe(const struct bt_queues *q, bt_request_t *r)
{
    bt_worker_set_t then[BT_LIST_COUNT];

    if (q->size == 0 || !bt_request_refresh_pool(r))
        return BT_QUEUE_NO_WORKER;
    const struct bt_candidates *c = bt_candidates_get(r->d, r->pool, BT_STR_NULL);
    if (!c->has_probe)
        return BT_QUEUE_NO_WORKER;
    for (int list = 0; list < BT_LIST_COUNT; list++)
        then[list] = (bt_worker_set_t){.count = c->after_probe[list]};
    const unsigned places = places_with(q, r, then);
    return places != 0 ? places : BT_QUEUE_NO_WORKER; /* without an end to them, nobody waits */
}

/* Would a request that may use any worker find one with room? */
bool bt_queue_pool_has_room(bt_request_t *r)
{
    const unsigned limit = r->pool->spec.engine_request_limit;
    bool has_room[BT_LIST_COUNT] = {false};

    if (limit == 0)
        return false;
    const struct bt_candidates *c = bt_candidates_get(r->d, r->pool, BT_STR_NULL);
    for (int list = 0; list < BT_LIST_COUNT; list++)
        for (unsigned i = 0; i < c->sets[list].count && !has_room[list]; i++)
            has_room[list] = !bt_worker_is_full(c->sets[list].items[i], limit);
    return has_room[BT_LIST_HYBRID] || (has_room[BT_LIST_PREFILL] && has_room[BT_LIST_DECODE]);
}
