/* One proposal on its way, at the replica that was asked. Each step asks the store once; an answer that is an error is asked for
 * again at the next heartbeat, until the deadline.
 *
 *   LEASE -> BASE (settle what another has left open; the texts that serve) -> CLAIM (a number: its texts, written once) -> PROPOSE
 *         -> VOTE --all live ones say ok--> CONFIRM (the store has forgotten nothing) --> DECIDE commit --+--> TELL -> SPREAD -> answer
 *              +------one refuses, or one is silent for too long------------------------> DECIDE abort ---+
 *
 * The lease keeps two of them from talking at once; that nothing breaks does not depend on it: a number's texts and its decision
 * are cells that are written once. Who is live: who has a row in `policy_votes`, which runs out with its replica. So a replica that
 * was killed is waited for no longer than its row lives; one that only hangs in its hooks stops the whole at the deadline. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CLAIMS_MAX 16
#define EARLY_MS                                                                                   \
    UINT64_C(3000) /* until it is proposed: nobody waits longer for a store that is unavailable */

typedef struct bt_rollout_push push_t;

static void run(push_t *p);

/* ---- the end ---- */

void bt_rollout_push_free(bt_rollout_t *r)
{
    push_t *p = r->push;

    if (p == NULL)
        return;
    r->push = NULL;
    if (p->ask.is_out)
        bt_store_cancel(&p->ask.op);
    if (p->lease.is_out)
        bt_store_cancel(&p->lease.op);
    for (unsigned i = 0; i < p->count; i++)
        free((char *) p->items[i].text.p);
    free(p->items);
    bt_rollout_set_unref(p->base);
    bt_rollout_set_unref(p->back);
    bt_rollout_set_unref(p->set);
    free(p);
}

void bt_rollout_push_drop_lease(bt_rollout_t *r)
{
    bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_LEASE_DROP,
                                       .key = BT_STR("rollout"),
                                       .value = bt_str(r->replica)});
}

static void finish(push_t *p, unsigned status, bt_str_t text)
{
    bt_rollout_t *r = p->r;
    bt_rollout_done_cb done = p->done;
    void *arg = p->arg;

    bt_rollout_push_drop_lease(r);
    bt_rollout_push_free(r);
    if (done != NULL)
        done(arg, status, text);
}

void bt_rollout_push_fail(push_t *p, unsigned status, const char *fmt, ...)
{
    char why[BT_ROLLOUT_WHY_MAX + 256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    finish(p, status, bt_str(why));
}

void bt_rollout_push_answer(push_t *p, bool is_changed)
{
    bt_text_t text;

    bt_text_init(&text);
    bt_text_printf(&text, "{\"changed\":%s,", is_changed ? "true" : "false");
    bt_rollout_describe_set(p->set, &text);
    bt_text_puts(&text, ",\"replicas\":");
    bt_rollout_describe_peers(p->r, &text);
    bt_text_puts(&text, "}\n");
    finish(p, 200, bt_text_str(&text));
    bt_text_fini(&text);
}

/* ---- asking ---- */

void bt_rollout_push_go_on(bt_rollout_t *r)
{
    if (r->push != NULL)
        run(r->push);
}

/* What is known of the table was read before this moment. */
void bt_rollout_push_need_rows(push_t *p)
{
    p->rows_read = p->r->rows_read + (p->r->rows_ask.is_out ? 1 : 0);
}

void bt_rollout_push_ask(push_t *p, bt_store_op_t op,
                         void (*done)(bt_rollout_t *r, const bt_store_reply_t *))
{
    bt_rollout_ask(p->r, &p->ask, op, done);
}

static void on_lease(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    if (reply->number == 0) {
        bt_rollout_push_fail(p, 409,
                             "replica %.*s is rolling something out: try again when it is done",
                             BT_STR_ARG(reply->text));
        return;
    }
    p->step = BT_PUSH_BASE;
    bt_rollout_push_need_rows(p); /* who had the lease may have committed something */
}

/* Kept for as long as we work; nobody waits for the answer. */
static void on_renewed(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    (void) r;
    (void) reply;
}

static bt_store_op_t lease_op(const bt_rollout_t *r)
{
    return (bt_store_op_t){.what = BT_STORE_LEASE_TAKE,
                           .key = BT_STR("rollout"),
                           .value = bt_str(r->replica),
                           .ttl_ms = BT_ROLLOUT_LEASE_MS};
}

static void on_claimed(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    if (reply->number == 1)
        p->step = BT_PUSH_PROPOSE;
    else if (++p->claims < CLAIMS_MAX) /* somebody has it and has not come further */
        p->number++;
    else
        bt_rollout_push_fail(p, 503, "no free number: others propose all the time");
    bt_rollout_push_go_on(r);
}

/* ---- the steps ---- */

static void ask_claim(push_t *p)
{
    bt_text_t text;

    bt_text_init(&text);
    p->set->number = p->number;
    bt_rollout_set_write(p->set, &text);
    if (text.failed)
        bt_rollout_push_fail(p, 503, "out of memory");
    else
        bt_rollout_push_ask(p,
                            (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                            .key = bt_rollout_key(&p->ask, "policy_set", p->number),
                                            .value = bt_text_str(&text),
                                            .if_absent = true},
                            on_claimed);
    bt_text_fini(&text);
}

void bt_rollout_push_done(push_t *p, uint64_t number, const char *value,
                          void (*done)(bt_rollout_t *r, const bt_store_reply_t *))
{
    bt_store_op_t op = {.what = value != NULL ? BT_STORE_CELL_SET : BT_STORE_CELL_GET,
                        .key = bt_rollout_key(&p->ask, "policy_done", number),
                        .value = bt_str(value),
                        .if_absent = value != NULL};

    bt_rollout_push_ask(p, op, done);
}

/* The store was unavailable for too long. Before a decision was asked for it is clear that nothing has changed. */
static bool is_over(push_t *p)
{
    const bt_rollout_t *r = p->r;

    if (p->step == BT_PUSH_VOTE || p->step == BT_PUSH_SPREAD || bt_clock_ms() < p->deadline_ms)
        return false;
    if (p->step <= BT_PUSH_CONFIRM)
        bt_rollout_push_fail(p, 503, "the shared store does not do it: %s; nothing has changed",
                             r->away);
    else
        bt_rollout_push_fail(p, 503,
                             "the shared store became unavailable (%s): whether set %" PRIu64
                             " is committed will be seen when it is back; it is %s",
                             r->away, p->set->number,
                             p->is_commit ? "what was wanted" : "to be aborted");
    return true;
}

static void run(push_t *p)
{
    if (p->ask.is_out || is_over(p))
        return;
    if (p->step == BT_PUSH_LEASE)
        bt_rollout_push_ask(p, lease_op(p->r), on_lease);
    else if (p->step == BT_PUSH_CLAIM)
        ask_claim(p);
    else if (p->step < BT_PUSH_CLAIM)
        bt_rollout_base_run(p);
    else
        bt_rollout_vote_run(p);
}

void bt_rollout_push_beat(bt_rollout_t *r)
{
    push_t *p = r->push;

    if (p->step > BT_PUSH_LEASE && p->step < BT_PUSH_SPREAD && !p->lease.is_out)
        bt_rollout_ask(r, &p->lease, lease_op(r), on_renewed);
    run(p);
}

void bt_rollout_push_peers(bt_rollout_t *r)
{
    push_t *p = r->push;

    if (p->step == BT_PUSH_VOTE && r->peers_read > p->peers_read)
        bt_rollout_vote_count(p);
    run(p);
}

/* ---- asking for a change ---- */

static int copy_items(push_t *p, const bt_rollout_change_t *change)
{
    p->items = calloc(change->count, sizeof *p->items);
    if (p->items == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < change->count; i++) {
        p->items[i] = change->items[i];
        p->items[i].text.p = bt_str_dup(change->items[i].text);
        p->count++;
        if (p->items[i].text.p == NULL)
            return BT_E_NOMEM;
    }
    return 0;
}

int bt_rollout_change(bt_rollout_t *r, const bt_rollout_change_t *change, bt_rollout_done_cb done,
                      void *arg, char *err, size_t err_size)
{
    push_t *p;

    if (r->push != NULL) {
        snprintf(err, err_size, "this replica is rolling something out: try again when it is done");
        return BT_E_AGAIN;
    }
    snprintf(err, err_size, "out of memory");
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return BT_E_NOMEM;
    r->push = p;
    p->r = r;
    if (copy_items(p, change) < 0) {
        bt_rollout_push_free(r);
        return BT_E_NOMEM;
    }
    bt_str_copy(p->by, sizeof p->by, change->by);
    p->done = done;
    p->arg = arg;
    p->deadline_ms = bt_clock_ms() + (r->vote_ms < EARLY_MS ? r->vote_ms : EARLY_MS);
    return 0;
}

void bt_rollout_forget(bt_rollout_t *r, void *arg)
{
    if (r->push != NULL && r->push->arg == arg)
        r->push->done = NULL;
}
