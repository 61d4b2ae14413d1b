/* wait_store.c - how it works:
 *
 *      WINDOW_TAKE  -> fleet/quota.c (a chunk that was leased ahead, or a lease) -> answer
 *      WINDOW_GIVE  -> fleet/quota.c, at once; no answer
 *      all others   -> one operation of the loop's store client, with its own deadline (the store's op_ms)
 *
 * The client copies an operation's strings before it returns, so nothing of the VM is kept here. */
#include "generation/wait_store.h"

#include "base/err.h"

#include <stdlib.h>

struct bt_wait_store {
    bt_wait_store_cb cb;
    void *user;
    bool is_quota;
    bt_store_op_t op;
    bt_quota_take_t take;
    bt_later_t later; /* tells what was answered at once */
};

/* ---- answers ---- */

static void answer_take(const bt_quota_take_t *take, bt_hook_answer_t *answer_p,
                        bt_store_reply_t *reply_p)
{
    *reply_p = (bt_store_reply_t){.rc = take->rc,
                                  .number = take->is_granted,
                                  .window = take->window,
                                  .left_ms = take->retry_ms};
    *answer_p = (bt_hook_answer_t){.rc = take->rc, .store = reply_p};
    if (take->rc == BT_E_LIMIT)
        answer_p->why = "too many quotas at a time";
}

static void on_taken(bt_quota_take_t *take)
{
    bt_wait_store_t *w = bt_container_of(take, bt_wait_store_t, take);
    bt_store_reply_t reply;
    bt_hook_answer_t answer;

    answer_take(take, &answer, &reply);
    w->cb(w->user, &answer);
}

static void on_later(bt_later_t *later)
{
    on_taken(&bt_container_of(later, bt_wait_store_t, later)->take);
}

static void on_reply(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_wait_store_t *w = bt_container_of(op, bt_wait_store_t, op);
    /* Its deadline is not the hook's: there is time left to do without it. */
    const int rc = reply->rc == BT_E_TOTAL_TIMEOUT ? BT_E_STORE_UNAVAILABLE : reply->rc;
    const bt_hook_answer_t answer = {.rc = rc, .store = reply, .why = reply->error};

    w->cb(w->user, &answer);
}

/* ---- asking ---- */

static bt_quota_take_t take_of(const bt_hook_op_t *hook_op)
{
    return (bt_quota_take_t){.key = hook_op->store.key,
                             .limit = hook_op->store.limit,
                             .amount = hook_op->store.amount,
                             .window_ms = hook_op->store.window_ms};
}

static bool is_lease(const bt_hook_op_t *hook_op)
{
    return hook_op->store.what == BT_STORE_LEASE_TAKE || hook_op->store.what == BT_STORE_LEASE_DROP;
}

static void fill_op(bt_store_op_t *op, const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op)
{
    *op = (bt_store_op_t){.what = hook_op->store.what,
                          .space = bt_str(room->space),
                          .key = hook_op->store.key,
                          .field = hook_op->store.field,
                          .value = is_lease(hook_op) ? bt_str(room->replica) : hook_op->store.value,
                          .amount = hook_op->store.amount,
                          .ttl_ms = hook_op->store.ttl_ms,
                          .if_absent = hook_op->store.if_absent};
}

bool bt_wait_store_now(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op,
                       bt_hook_answer_t *answer_p, bt_store_reply_t *reply_p)
{
    bt_quota_take_t take;

    if (hook_op->kind != BT_HOOK_OP_STORE)
        return false;
    if (room->store == NULL) {
        *answer_p = (bt_hook_answer_t){.rc = BT_E_STORE_UNAVAILABLE};
        return true;
    }
    if (hook_op->store.what != BT_STORE_WINDOW_TAKE)
        return false;
    take = take_of(hook_op);
    if (!bt_quota_try(room->quotas, &take))
        return false;
    answer_take(&take, answer_p, reply_p);
    return true;
}

int bt_wait_store_start(bt_wait_store_t **wait_p, const bt_wait_ctx_t *room,
                        const bt_hook_op_t *hook_op, bt_wait_store_cb cb, void *user)
{
    bt_wait_store_t *w;

    if (room->store == NULL)
        return BT_E_STORE_UNAVAILABLE;
    w = calloc(1, sizeof(*w));
    if (w == NULL)
        return BT_E_NOMEM;
    w->cb = cb;
    w->user = user;
    bt_later_init(&w->later, on_later);
    w->is_quota = hook_op->store.what == BT_STORE_WINDOW_TAKE;
    if (w->is_quota) {
        w->take = take_of(hook_op);
        w->take.cb = on_taken;
        if (bt_quota_take(room->quotas, &w->take) == 0)
            bt_loop_later(room->loop, &w->later);
    } else {
        fill_op(&w->op, room, hook_op);
        w->op.cb = on_reply;
        bt_store_do(room->store, &w->op);
    }
    *wait_p = w;
    return 0;
}

void bt_wait_store_free(bt_wait_store_t **wait_p)
{
    bt_wait_store_t *w = *wait_p;

    *wait_p = NULL;
    if (w == NULL)
        return;
    bt_list_remove(&w->later.link);
    if (w->is_quota)
        bt_quota_cancel(&w->take);
    else
        bt_store_cancel(&w->op);
    free(w);
}

/* ---- sending ---- */

void bt_wait_store_send(const bt_wait_ctx_t *room, const bt_hook_op_t *hook_op)
{
    bt_store_op_t op;

    if (room->store == NULL)
        return;
    if (hook_op->store.what == BT_STORE_WINDOW_GIVE) {
        bt_quota_give(room->quotas, hook_op->store.key, hook_op->store.window_ms,
                      hook_op->store.amount, hook_op->store.window);
        return;
    }
    fill_op(&op, room, hook_op);
    (void) bt_store_send(room->store, &op);
}
