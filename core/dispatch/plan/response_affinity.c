/* response_affinity.c - /v1/responses: engines keep what they have answered in their own memory, so a follow-up must reach the worker that made it.
 *
 *      answer's id known -> response_owners.c (this process) + a cell "r:<id>" of the store: the worker's URL, for an hour; nobody waits for it
 *      a follow-up -> response_owners.c knows -> pinned
 *                  -> the store may know (several gateways) -> asked, and once more a moment later -> pinned, or as if nobody knew
 *                  -> nobody knows -> any worker (it may know, and says so when not), or 404 for an id in the path
 */
#include "dispatch/plan/response_affinity.h"

#include "dispatch/answer/answer.h"
#include "dispatch/plan/request_pool.h"
#include "dispatch/plan/response_owners.h"

#include <stdlib.h>

#define REMEMBERED_MS 3600000
#define ID_MAX 256
#define AGAIN_MS                                                                                   \
    20 /* the answer may have reached its client before the note of it reached the store */
#define PATH "/v1/responses/"

struct bt_response_query {
    bt_request_t *request;
    bt_store_op_t op;
    bt_timer_t again;
    bool is_second;
    bt_str_t id;
};

/* ---- remembering ---- */

static bool is_shared(const bt_request_t *r)
{
    return r->d->store != NULL && r->d->shared->store != NULL &&
           bt_store_is_shared(r->d->shared->store);
}

static bt_str_t key_of(bt_request_t *r, bt_str_t id)
{
    return bt_arena_printf(&r->arena, "r:%.*s", BT_STR_ARG(id));
}

void bt_response_affinity_note(bt_request_t *r, bt_str_t id, const bt_worker_t *worker)
{
    bt_hook_op_t want = {.kind = BT_HOOK_OP_STORE};

    bt_response_owners_put(r->d->shared->responses, id, worker->id);
    if (!is_shared(r) || id.n > ID_MAX)
        return;
    const bt_wait_ctx_t room = bt_dispatcher_wait_ctx(r->d);
    want.store.what = BT_STORE_CELL_SET;
    want.store.key = key_of(r, id);
    want.store.value = bt_str(worker->spec.url);
    want.store.ttl_ms = REMEMBERED_MS;
    bt_wait_store_send(&room, &want);
}

/* ---- finding ---- */

static bt_str_t id_of(const bt_request_t *r)
{
    bt_str_t id = r->intent.previous_response;

    if (r->route == BT_ROUTE_RESPONSE_BY_ID) {
        id = (bt_str_t){r->path.p + strlen(PATH), r->path.n - strlen(PATH)};
        for (size_t i = 0; i < id.n; i++)
            if (id.p[i] == '/')
                id.n = i;
        return id;
    }
    return r->route == BT_ROUTE_RESPONSES ? id : BT_STR_NULL;
}

static enum bt_progress go_without(bt_request_t *r)
{
    if (r->route == BT_ROUTE_RESPONSES)
        return BT_PROGRESS_NEXT;
    bt_answer_error(r, 404, "no worker of this gateway is known to have made this response", 0);
    return BT_PROGRESS_ENDED;
}

/* ---- asking the store ---- */

static void on_owner(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    struct bt_response_query *ask = bt_container_of(op, struct bt_response_query, op);
    bt_request_t *r = ask->request;
    const bool is_known = reply->rc == 0 && !reply->is_none && reply->text.n > 0;

    if (reply->rc == 0 && !is_known && !ask->is_second) {
        ask->is_second = true;
        bt_timer_start(&ask->again, AGAIN_MS);
        return;
    }
    r->response_query = NULL;
    if (is_known && bt_request_pin(r, 0, reply->text)) {
        bt_response_owners_put(r->d->shared->responses, ask->id, r->pinned->id);
        r->ops->go_on(r, BT_PROGRESS_NEXT);
    } else {
        r->ops->go_on(r, go_without(r));
    }
}

static void on_again(bt_timer_t *timer)
{
    struct bt_response_query *ask = bt_container_of(timer, struct bt_response_query, again);

    bt_store_do(ask->request->d->store, &ask->op);
}

static void ask_store(bt_request_t *r, bt_str_t id)
{
    struct bt_response_query *ask = bt_arena_zalloc(&r->arena, sizeof(*ask));

    ask->request = r;
    ask->id = bt_arena_str(&r->arena, id);
    ask->op = (bt_store_op_t){.what = BT_STORE_CELL_GET,
                              .space = bt_str(r->d->shared->space),
                              .key = key_of(r, id),
                              .cb = on_owner};
    bt_timer_init(r->d->loop, &ask->again, on_again);
    r->response_query = ask;
    bt_store_do(r->d->store, &ask->op);
}

enum bt_progress bt_response_affinity_find(bt_request_t *r)
{
    const bt_str_t id = id_of(r);
    const uint64_t worker_id = id.n > 0 ? bt_response_owners_get(r->d->shared->responses, id) : 0;

    if (id.n == 0 || (worker_id != 0 && bt_request_pin(r, worker_id, BT_STR_NULL)))
        return BT_PROGRESS_NEXT;
    if (id.n > ID_MAX || !is_shared(r))
        return go_without(r);
    ask_store(r, id);
    return BT_PROGRESS_WAITS;
}

void bt_response_affinity_end(bt_request_t *r)
{
    if (r->response_query != NULL) {
        bt_timer_stop(&r->response_query->again);
        bt_store_cancel(&r->response_query->op);
    }
    r->response_query = NULL;
}
