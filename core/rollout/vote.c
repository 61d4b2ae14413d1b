/* A proposal is in the table: votes are counted, the decision is written once, and then it is told. What a replica votes is its own
 * business (rollout/rollout.c); here it is only a row with this number in it. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct bt_rollout_push push_t;

/* ---- votes ---- */

__attribute__((format(printf, 3, 4))) static void abort_it(push_t *p, unsigned status,
                                                           const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(p->why, sizeof p->why, fmt, args);
    va_end(args);
    p->is_commit = false;
    p->status = status;
    p->step = BT_PUSH_DECIDE;
    p->deadline_ms = bt_clock_ms() + p->r->vote_ms;
}

static void name_silent(const push_t *p, char *out, size_t size)
{
    const bt_rollout_t *r = p->r;
    size_t used = 0;

    out[0] = '\0';
    for (unsigned i = 0; i < r->peer_count; i++) {
        const bt_rollout_peer_t *peer = &r->peers[i];
        if (peer->is_pinned || peer->voted_on == p->set->number || used + 4 >= size)
            continue;
        used +=
            (size_t) snprintf(out + used, size - used, "%s%.64s", used > 0 ? ", " : "", peer->name);
        used = used < size ? used : size - 1;
    }
}

void bt_rollout_vote_count(push_t *p)
{
    const bt_rollout_t *r = p->r;
    const uint64_t number = p->set->number;
    unsigned yes = 0, silent = 0;

    for (unsigned i = 0; i < r->peer_count; i++) {
        const bt_rollout_peer_t *peer = &r->peers[i];
        const bool has_voted = peer->voted_on == number;
        if (!peer->is_pinned && has_voted && peer->vote == BT_ROLLOUT_NO) {
            abort_it(p, 400, "replica %s refuses: %s", peer->name, peer->why);
            return;
        }
        yes += !peer->is_pinned && has_voted && peer->vote == BT_ROLLOUT_YES;
        silent += !peer->is_pinned && !has_voted;
    }
    if (silent > 0 || r->peer_count == 0)
        return;
    if (yes == 0) {
        abort_it(p, 409, "every replica is pinned: nobody can say whether it would serve");
        return;
    }
    p->step = BT_PUSH_CONFIRM;
    p->deadline_ms = bt_clock_ms() + r->vote_ms;
}

/* A store that was flushed meanwhile has forgotten who is alive, too: those that we counted are not all. */
static void on_confirmed(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;
    uint64_t number;
    bool is_there = false;

    if (reply->rc < 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++)
        is_there |= bt_str_u64(reply->rows[i].name, &number) == 0 && number == p->set->number;
    p->is_commit = is_there;
    p->step = BT_PUSH_DECIDE;
    if (!is_there)
        abort_it(p, 503, "the shared store has forgotten the proposal");
    bt_rollout_push_go_on(r);
}

static void check_vote(push_t *p)
{
    const bt_rollout_t *r = p->r;
    char silent[256];

    if (r->rows_read > p->rows_read && bt_rollout_row(r, p->set->number) == NULL) {
        abort_it(p, 503, "the shared store has forgotten the proposal");
    } else if (bt_clock_ms() >= p->deadline_ms) {
        name_silent(p, silent, sizeof silent);
        abort_it(p, r->is_unavailable ? 503 : 504, "no vote within %" PRIu64 " ms from %s%s%s",
                 r->vote_ms, silent[0] != '\0' ? silent : "any replica",
                 r->is_unavailable ? "; the shared store: " : "", r->is_unavailable ? r->away : "");
    }
}

/* ---- the decision ---- */

static void on_decided(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    r->push->step = reply->number == 1 ? BT_PUSH_TELL : BT_PUSH_DECIDED;
    bt_rollout_push_go_on(r);
}

/* Somebody was first: a replica for which we were gone. */
static void on_was_decided(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    const bool is_commit = bt_str_eq(reply->text, BT_STR("commit"));
    if (p->is_commit && !is_commit) {
        p->status = 503;
        snprintf(p->why, sizeof p->why, "another replica took this one for gone");
    }
    p->is_commit = is_commit;
    p->step = BT_PUSH_TELL;
    bt_rollout_push_go_on(r);
}

/* Numbers that nobody can go back to, and nobody stays with. */
static void prune(const push_t *p)
{
    bt_rollout_t *r = p->r;

    for (unsigned i = 0; i < r->row_count; i++) {
        const uint64_t number = r->rows[i].number;
        bool is_used = number + BT_ROLLOUT_KEPT > p->set->number || number == p->base_number ||
                       number == p->base->previous;
        bt_rollout_ask_t name;
        char field[24];
        for (unsigned k = 0; k < r->peer_count; k++)
            is_used |= r->peers[k].is_pinned && r->peers[k].number == number;
        if (is_used)
            continue;
        snprintf(field, sizeof field, "%" PRIu64, number);
        bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                           .key = BT_STR("policy"),
                                           .field = bt_str(field)});
        bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_CELL_DROP,
                                           .key = bt_rollout_key(&name, "policy_set", number)});
        bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_CELL_DROP,
                                           .key = bt_rollout_key(&name, "policy_done", number)});
    }
}

static void on_told(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    prune(p);
    if (!p->is_commit) {
        bt_log_warn("fleet", "set %" PRIu64 " is aborted: %s", p->set->number, p->why);
        bt_rollout_push_fail(p, p->status, "set %" PRIu64 " is committed nowhere: %s",
                             p->set->number, p->why);
        return;
    }
    bt_log_info("fleet", "set %" PRIu64 " is committed", p->set->number);
    bt_rollout_push_drop_lease(r);
    p->step = BT_PUSH_SPREAD;
    p->peers_read = r->peers_read;
    p->deadline_ms = bt_clock_ms() + r->spread_ms;
    bt_rollout_hold(r, p->set);
}

static void check_spread(push_t *p)
{
    const bt_rollout_t *r = p->r;
    bool is_behind = r->peers_read == p->peers_read;

    for (unsigned i = 0; i < r->peer_count; i++)
        is_behind |= !r->peers[i].is_pinned && r->peers[i].number < p->set->number;
    if (!is_behind || bt_clock_ms() >= p->deadline_ms)
        bt_rollout_push_answer(p, true);
}

/* ---- the steps ---- */

static void on_proposed(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    push_t *p = r->push;

    if (reply->rc < 0)
        return;
    p->step = BT_PUSH_VOTE;
    bt_rollout_push_need_rows(p);
    p->peers_read = r->peers_read;
    p->deadline_ms = bt_clock_ms() + r->vote_ms;
    bt_log_info("fleet", "set %" PRIu64 " is proposed, by %s", p->set->number, p->set->by);
}

static void ask_row(push_t *p, enum bt_rollout_state state,
                    void (*done)(bt_rollout_t *r, const bt_store_reply_t *))
{
    char field[24];
    bt_text_t row;

    bt_text_init(&row);
    snprintf(field, sizeof field, "%" PRIu64, p->set->number);
    bt_rollout_write_row(p->set, state, p->why, &row);
    bt_rollout_push_ask(p,
                        (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                        .key = BT_STR("policy"),
                                        .field = bt_str(field),
                                        .value = bt_text_str(&row)},
                        done);
    bt_text_fini(&row);
}

void bt_rollout_vote_run(push_t *p)
{
    char value[BT_ROLLOUT_WHY_MAX + 8];

    switch (p->step) {
    case BT_PUSH_PROPOSE:
        ask_row(p, BT_ROLLOUT_PROPOSED, on_proposed);
        break;
    case BT_PUSH_VOTE:
        check_vote(p);
        break;
    case BT_PUSH_CONFIRM:
        bt_rollout_push_ask(p, (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy")},
                            on_confirmed);
        break;
    case BT_PUSH_DECIDE:
        snprintf(value, sizeof value, "%s%s", p->is_commit ? "commit" : "abort ", p->why);
        bt_rollout_push_done(p, p->set->number, value, on_decided);
        break;
    case BT_PUSH_DECIDED:
        bt_rollout_push_done(p, p->set->number, NULL, on_was_decided);
        break;
    case BT_PUSH_TELL:
        ask_row(p, p->is_commit ? BT_ROLLOUT_COMMITTED : BT_ROLLOUT_ABORTED, on_told);
        break;
    default:
        check_spread(p);
    }
}
