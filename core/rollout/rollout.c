/* Every heartbeat reads the table of sets and follows it:
 *
 *   highest committed > what is here --> read its texts --> hold --> take (unless pinned)
 *   highest committed < what is here --> the store has forgotten: put ours back; the highest number wins
 *   a newer one is proposed ----------> read its texts --> store a note --> try aside --> vote; the cell policy_done tells how it ended
 *
 * Who has proposed may end at any moment. A decision is a cell that is written once, by whoever comes first: the proposer, or a
 * replica that has waited longer than any proposer would, which then writes "abort". So nothing is ever both. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INTERVAL_MS 100
#define EXPIRY_MS 2000
#define JOIN_INTERVAL_MS 20
#define ABANDON_MS 1000 /* beyond twice vote_ms: nobody decides any more */
#define AGAIN_MS 1000   /* what failed is tried again after it, twice that, ... */
#define AGAIN_MAX_MS 30000

/* ---- what is known ---- */

static const bt_rollout_row_t *newest_committed(const bt_rollout_t *r)
{
    for (unsigned i = 0; i < r->row_count; i++)
        if (r->rows[i].state == BT_ROLLOUT_COMMITTED)
            return &r->rows[i];
    return NULL;
}

const bt_rollout_row_t *bt_rollout_row(const bt_rollout_t *r, uint64_t number)
{
    for (unsigned i = 0; i < r->row_count; i++)
        if (r->rows[i].number == number)
            return &r->rows[i];
    return NULL;
}

uint64_t bt_rollout_top(const bt_rollout_t *r)
{
    const uint64_t top = r->row_count > 0 ? r->rows[0].number : 0;

    return top > r->held->number ? top : r->held->number;
}

uint64_t bt_rollout_committed(const bt_rollout_t *r)
{
    const bt_rollout_row_t *row = newest_committed(r);

    return row != NULL && row->number > r->held->number ? row->number : r->held->number;
}

uint64_t bt_rollout_number(const bt_rollout_t *r)
{
    return r->serving->number;
}

bool bt_rollout_is_pinned(const bt_rollout_t *r)
{
    return r->is_pinned;
}

static bt_rollout_set_t *wanted(const bt_rollout_t *r)
{
    return r->is_pinned ? r->pinned : r->held;
}

bt_rollout_set_t *bt_rollout_held(const bt_rollout_t *r)
{
    return wanted(r) != NULL ? wanted(r) : r->held;
}

bool bt_rollout_has_joined(const bt_rollout_t *r)
{
    return r->has_rows && r->has_pins && r->notes.is_known &&
           r->held->number >= bt_rollout_committed(r) && wanted(r) != NULL;
}

static void set_to(bt_rollout_set_t **at, bt_rollout_set_t *set)
{
    bt_rollout_set_t *old = *at;

    *at = bt_rollout_set_ref(set);
    bt_rollout_set_unref(old);
}

/* ---- taking ---- */

static void refuse_blocked(bt_rollout_t *r, const bt_rollout_set_t *set)
{
    char trouble[sizeof r->trouble];

    snprintf(trouble, sizeof trouble,
             "set %" PRIu64 " does not serve here: it brought this replica down before; push one "
             "without what did it, or roll back",
             set->number);
    r->must_report |= strcmp(trouble, r->trouble) != 0;
    memcpy(r->trouble, trouble, sizeof trouble);
}

static void serve_wanted(bt_rollout_t *r)
{
    bt_rollout_set_t *set = wanted(r);

    if (!r->is_running || !r->notes.is_known || r->taking != NULL || set == NULL ||
        set->number == r->serving->number || bt_clock_ms() < r->take_again_ms)
        return;
    if (bt_rollout_is_blocked(r, set->number)) {
        refuse_blocked(r, set);
        return;
    }
    r->taking = bt_rollout_set_ref(set);
    r->ops->take_set(r->user, set);
}

void bt_rollout_taken(bt_rollout_t *r, bt_rollout_set_t *set, int rc, const char *why)
{
    if (r->taking != set)
        return;
    if (rc == 0) {
        set_to(&r->serving, set);
        r->trouble[0] = '\0';
        r->take_wait_ms = r->take_again_ms = 0;
    } else {
        snprintf(r->trouble, sizeof r->trouble, "set %" PRIu64 " does not serve here: %s",
                 set->number, why);
        r->take_wait_ms = r->take_wait_ms > 0 ? 2 * r->take_wait_ms : AGAIN_MS;
        if (r->take_wait_ms > AGAIN_MAX_MS)
            r->take_wait_ms = AGAIN_MAX_MS;
        r->take_again_ms = bt_clock_ms() + r->take_wait_ms;
    }
    r->must_report = true;
    set_to(&r->taking, NULL);
    serve_wanted(r);
}

void bt_rollout_hold(bt_rollout_t *r, bt_rollout_set_t *set)
{
    if (set->number <= r->held->number)
        return;
    set_to(&r->before, r->held);
    set_to(&r->held, set);
    r->take_again_ms = r->take_wait_ms = 0; /* what failed is not what is wanted now */
    r->must_report = true;
    bt_rollout_note_prune(r);
    serve_wanted(r);
}

/* ---- texts ---- */

static void vote(bt_rollout_t *r, enum bt_rollout_vote what, const char *why)
{
    r->look.vote = what;
    snprintf(r->look.why, sizeof r->look.why, "%s", why);
    r->must_report = true;
}

static void give_texts(bt_rollout_t *r, bt_rollout_set_t *set)
{
    const bt_rollout_row_t *row = newest_committed(r);

    if (r->is_pinned && r->pinned == NULL && set->number == r->pin_number)
        set_to(&r->pinned, set);
    if (r->look.number == set->number && r->look.set == NULL)
        set_to(&r->look.set, set);
    if (row != NULL && row->number == set->number)
        bt_rollout_hold(r, set);
    serve_wanted(r);
}

static void on_texts(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    const uint64_t number = r->fetching;
    bt_rollout_set_t *set;
    int rc;

    if (reply->rc < 0)
        return;
    rc = reply->is_none ? 0 : bt_rollout_set_read(&set, reply->text);
    if (rc == 0 && !reply->is_none && set->number != number) {
        bt_rollout_set_unref(set);
        rc = BT_E_INVAL;
    }
    if (rc == 0 && !reply->is_none) {
        r->missing = 0;
        give_texts(r, set);
        bt_rollout_set_unref(set);
        return;
    }
    if (rc < 0 && r->look.number == number && r->look.vote == BT_ROLLOUT_NO_VOTE)
        vote(r, BT_ROLLOUT_NO, "its texts in the store cannot be read");
    r->must_report |= r->missing != number;
    r->missing = number;
    r->missing_ms = bt_clock_ms();
}

static void fetch(bt_rollout_t *r, uint64_t number)
{
    if (r->set_ask.is_out || (r->missing == number && bt_clock_ms() - r->missing_ms < AGAIN_MS))
        return;
    r->fetching = number;
    bt_rollout_ask(r, &r->set_ask,
                   (bt_store_op_t){.what = BT_STORE_CELL_GET,
                                   .key = bt_rollout_key(&r->set_ask, "policy_set", number)},
                   on_texts);
}

/* ---- a proposal ---- */

static void forget_look(bt_rollout_t *r)
{
    bt_rollout_set_unref(r->look.set);
    r->look = (bt_rollout_look_t){0};
}

void bt_rollout_tried(bt_rollout_t *r, const bt_rollout_set_t *set, int rc, const char *why)
{
    bt_rollout_note_remove(r, set->number);
    if (r->look.set != set)
        return;
    r->look.is_trying = false;
    vote(r, rc == 0 ? BT_ROLLOUT_YES : BT_ROLLOUT_NO, rc == 0 ? "" : why);
}

static void on_decision(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0 || reply->is_none || r->look.number == 0)
        return;
    if (!bt_str_eq(reply->text, BT_STR("commit")))
        r->look.is_over = true;
    else if (r->look.set != NULL)
        bt_rollout_hold(r, r->look.set);
}

static void on_abandoned(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    r->look.since_ms = bt_clock_ms();
    if (reply->rc < 0 || r->look.set == NULL || reply->number == 0)
        return; /* next time: what was decided */
    r->look.is_over = true;
    bt_log_warn("fleet", "set %" PRIu64 " is given up: replica %s, which has proposed it, is gone",
                r->look.number, r->look.set->replica);
    bt_rollout_put_row(r, r->look.set, BT_ROLLOUT_ABORTED,
                       "the replica that has proposed it is gone");
}

static void ask_decision(bt_rollout_t *r)
{
    const bool is_late = bt_clock_ms() - r->look.since_ms > 2 * r->vote_ms + ABANDON_MS;
    bt_rollout_ask_t *ask = &r->done_ask;
    bt_store_op_t op = {.what = BT_STORE_CELL_GET};

    if (ask->is_out || r->look.is_over)
        return;
    op.key = bt_rollout_key(ask, "policy_done", r->look.number);
    if (is_late && r->push == NULL) {
        op.what = BT_STORE_CELL_SET;
        op.if_absent = true;
        op.value = BT_STR("abort the replica that has proposed it is gone");
    }
    bt_rollout_ask(r, ask, op, op.if_absent ? on_abandoned : on_decision);
}

static void look_at(bt_rollout_t *r, const bt_rollout_row_t *row)
{
    bt_rollout_look_t *look = &r->look;

    if (look->number != row->number) {
        forget_look(r);
        look->number = row->number;
        look->since_ms = bt_clock_ms();
    }
    ask_decision(r);
    if (look->set == NULL) {
        fetch(r, row->number);
        return;
    }
    if (!r->is_running || r->is_pinned || look->is_trying || look->is_over ||
        look->vote != BT_ROLLOUT_NO_VOTE)
        return;
    if (bt_rollout_is_blocked(r, look->number)) {
        vote(r, BT_ROLLOUT_NO, "it brought this replica down before");
        return;
    }
    if (!bt_rollout_note_add(r, look->number))
        return;
    look->is_trying = true;
    r->ops->try_set(r->user, look->set);
}

/* ---- following ---- */

static void follow(bt_rollout_t *r)
{
    const bt_rollout_row_t *row = newest_committed(r), *head = r->row_count > 0 ? r->rows : NULL;

    if (row != NULL && row->number > r->held->number) {
        if (r->look.set != NULL && r->look.number == row->number)
            bt_rollout_hold(r, r->look.set);
        else
            fetch(r, row->number);
    } else if (row == NULL || row->number < r->held->number) {
        bt_rollout_restore(r);
    }
    if (r->is_pinned && r->pinned == NULL)
        fetch(r, r->pin_number);
    if (head != NULL && head->state == BT_ROLLOUT_PROPOSED && head->number > r->held->number)
        look_at(r, head);
    else if (r->look.number > 0)
        forget_look(r);
    serve_wanted(r);
}

static void on_rows(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    bt_rollout_read_rows(r, reply);
    r->has_rows = true;
    r->rows_read++;
    follow(r);
    if (r->push != NULL)
        bt_rollout_push_beat(r);
    bt_rollout_tell_joined(r);
}

static void on_peers(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    bool is_missed = false;

    if (reply->rc < 0 || bt_rollout_read_peers(r, reply) < 0) {
        r->must_report = true;
        return;
    }
    r->peers_read++;
    for (unsigned i = 0; i < r->peer_count; i++)
        is_missed |= r->held->number > 0 && r->peers[i].missing == r->held->number;
    if (is_missed)
        bt_rollout_restore(r);
    if (r->push != NULL)
        bt_rollout_push_peers(r);
}

static void report(bt_rollout_t *r)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t row;

    if (r->peers_ask.is_out || (!r->must_report && r->push == NULL && !r->look.is_trying &&
                                now_ms - r->reported_ms < r->expiry_ms / 4))
        return;
    r->must_report = false;
    r->reported_ms = now_ms;
    r->must_tell_pin |= r->is_pinned; /* the store may have forgotten it */
    bt_text_init(&row);
    bt_rollout_write_report(r, &row);
    bt_rollout_ask(r, &r->peers_ask,
                   (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                   .key = BT_STR("policy_votes"),
                                   .field = bt_str(r->replica),
                                   .value = bt_text_str(&row),
                                   .ttl_ms = r->expiry_ms},
                   on_peers);
    bt_text_fini(&row);
}

/* ---- pins ---- */

void bt_rollout_pin(bt_rollout_t *r, bool is_pinned)
{
    if (r->is_pinned == is_pinned)
        return;
    r->is_pinned = is_pinned;
    set_to(&r->pinned, is_pinned ? r->serving : NULL);
    r->pin_number = r->serving->number;
    r->must_tell_pin = r->must_report = true;
    r->take_again_ms = 0;
    r->ops->set_pinned(r->user, is_pinned);
    bt_log_info("fleet",
                is_pinned ? "pinned: this replica stays with set %" PRIu64
                          : "unpinned: this replica follows the fleet again, from set "
                            "%" PRIu64,
                r->serving->number);
    bt_rollout_beat_pins(r); /* now: it shall be known after a crash, too */
    serve_wanted(r);
}

/* ---- life ---- */

static void on_heartbeat(bt_timer_t *timer)
{
    bt_rollout_t *r = bt_container_of(timer, bt_rollout_t, beat);

    bt_timer_start(timer, r->is_running ? r->interval_ms : JOIN_INTERVAL_MS);
    if (!r->rows_ask.is_out)
        bt_rollout_ask(r, &r->rows_ask,
                       (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy")},
                       on_rows);
    bt_rollout_beat_pins(r);
    bt_rollout_note_sync(r);
    if (r->is_running)
        report(r);
    serve_wanted(r);
    if (r->push != NULL)
        bt_rollout_push_beat(r);
}

int bt_rollout_new(bt_rollout_t **rollout_p, bt_loop_t *loop, const bt_rollout_config_t *config)
{
    bt_rollout_t *r = calloc(1, sizeof *r);
    int rc;

    if (r == NULL)
        return BT_E_NOMEM;
    rc = bt_rollout_set_new(&r->held);
    if (rc < 0) {
        free(r);
        return rc;
    }
    r->serving = bt_rollout_set_ref(r->held);
    r->loop = loop;
    r->client = config->client;
    r->ops = config->ops;
    r->user = config->user;
    bt_str_copy(r->space, sizeof r->space, config->space);
    bt_str_copy(r->replica, sizeof r->replica, config->replica);
    r->interval_ms = config->interval_ms > 0 ? config->interval_ms : INTERVAL_MS;
    r->expiry_ms = config->expiry_ms > 0 ? config->expiry_ms : EXPIRY_MS;
    r->vote_ms = config->vote_ms > 0 ? config->vote_ms : BT_ROLLOUT_VOTE_MS;
    r->spread_ms = config->spread_ms > 0 ? config->spread_ms : BT_ROLLOUT_SPREAD_MS;
    snprintf(r->away, sizeof r->away, "it has not been reached yet");
    r->is_unavailable = true;
    bt_timer_init(loop, &r->beat, on_heartbeat);
    *rollout_p = r;
    return 0;
}

void bt_rollout_join(bt_rollout_t *r, void (*on_joined)(void *user), void *user)
{
    r->on_joined = on_joined;
    r->joined_user = user;
    bt_timer_start(&r->beat, 0);
}

void bt_rollout_begin(bt_rollout_t *r, bt_rollout_set_t *served)
{
    r->is_running = r->must_report = true;
    r->on_joined = NULL;
    bt_rollout_note_remove(r, bt_rollout_held(r)->number);
    if (served != NULL)
        set_to(&r->serving, served);
    bt_timer_start(&r->beat, 0);
}

void bt_rollout_free(bt_rollout_t *r)
{
    if (r == NULL)
        return;
    bt_rollout_ask_t *const asks[] = {&r->rows_ask, &r->peers_ask, &r->set_ask,     &r->done_ask,
                                      &r->pins_ask, &r->pin_ask,   &r->restore_ask, &r->notes.ask};

    bt_timer_stop(&r->beat);
    bt_rollout_push_free(r);
    for (unsigned i = 0; i < sizeof asks / sizeof asks[0]; i++)
        if (asks[i]->is_out)
            bt_store_cancel(&asks[i]->op);
    bt_rollout_set_t *const sets[] = {r->held,   r->before, r->serving,
                                      r->taking, r->pinned, r->look.set};
    for (unsigned i = 0; i < sizeof sets / sizeof sets[0]; i++)
        bt_rollout_set_unref(sets[i]);
    free(r->rows);
    free(r->peers);
    free(r);
}
