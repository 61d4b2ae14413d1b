/* Asking the store; what is put back when it has forgotten; pins, which it remembers for us across a restart. */
#include "rollout/rollout_impl.h"

#include "base/err.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define RESTORE_MS 500

/* ---- asking the store ---- */

static void on_answer(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    bt_rollout_ask_t *ask = bt_container_of(op, bt_rollout_ask_t, op);
    bt_rollout_t *r = ask->r;

    ask->is_out = false;
    r->is_unavailable = reply->rc < 0;
    if (reply->rc < 0)
        snprintf(r->away, sizeof r->away, "%s",
                 reply->error != NULL ? reply->error : bt_err_text(reply->rc));
    ask->done(r, reply);
}

void bt_rollout_ask(bt_rollout_t *r, bt_rollout_ask_t *ask, bt_store_op_t op,
                    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply))
{
    op.space = bt_str(r->space);
    op.cb = on_answer;
    ask->op = op;
    ask->r = r;
    ask->done = done;
    ask->is_out = true;
    bt_store_do(r->client, &ask->op);
}

void bt_rollout_send(bt_rollout_t *r, bt_store_op_t op)
{
    op.space = bt_str(r->space);
    (void) bt_store_send(r->client, &op);
}

void bt_rollout_put_row(bt_rollout_t *r, const bt_rollout_set_t *set, enum bt_rollout_state state,
                        const char *why)
{
    bt_text_t row;
    char field[24];

    bt_text_init(&row);
    bt_rollout_write_row(set, state, why, &row);
    snprintf(field, sizeof field, "%" PRIu64, set->number);
    bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                       .key = BT_STR("policy"),
                                       .field = bt_str(field),
                                       .value = bt_text_str(&row)});
    bt_text_fini(&row);
}

/* ---- putting back what the store has forgotten ---- */

static void on_restored(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    bt_rollout_ask_t name;

    if (reply->rc < 0)
        return;
    if (reply->number == 1)
        bt_log_warn("fleet", "the store had forgotten set %" PRIu64 ": it is put back",
                    r->held->number);
    bt_rollout_send(r, (bt_store_op_t){.what = BT_STORE_CELL_SET,
                                       .key = bt_rollout_key(&name, "policy_done", r->held->number),
                                       .value = BT_STR("commit"),
                                       .if_absent = true});
    bt_rollout_put_row(r, r->held, BT_ROLLOUT_COMMITTED, "");
}

void bt_rollout_restore(bt_rollout_t *r)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t text;

    if (r->restore_ask.is_out || r->held->number == 0 || now_ms - r->restored_ms < RESTORE_MS)
        return;
    r->restored_ms = now_ms;
    bt_text_init(&text);
    bt_rollout_set_write(r->held, &text);
    bt_rollout_ask(
        r, &r->restore_ask,
        (bt_store_op_t){.what = BT_STORE_CELL_SET,
                        .key = bt_rollout_key(&r->restore_ask, "policy_set", r->held->number),
                        .value = bt_text_str(&text),
                        .if_absent = true},
        on_restored);
    bt_text_fini(&text);
}

/* ---- pins ---- */

static void on_pins(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    if (reply->rc < 0)
        return;
    r->has_pins = true;
    for (unsigned i = 0; i < reply->row_count && !r->is_pinned && !r->must_tell_pin; i++) {
        if (!bt_str_eq(reply->rows[i].name, bt_str(r->replica)) ||
            bt_str_u64(reply->rows[i].value, &r->pin_number) < 0)
            continue;
        r->is_pinned = true;
        if (r->pin_number == 0)
            (void) bt_rollout_set_new(&r->pinned);
        r->ops->set_pinned(r->user, true);
        r->must_report = true;
    }
    bt_rollout_tell_joined(r);
}

static void on_pin_told(bt_rollout_t *r, const bt_store_reply_t *reply)
{
    r->must_tell_pin |= reply->rc < 0;
}

void bt_rollout_beat_pins(bt_rollout_t *r)
{
    char number[24];

    if (!r->has_pins && !r->pins_ask.is_out)
        bt_rollout_ask(r, &r->pins_ask,
                       (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("policy_pins")},
                       on_pins);
    if (!r->must_tell_pin || r->pin_ask.is_out)
        return;
    r->must_tell_pin = false;
    snprintf(number, sizeof number, "%" PRIu64, r->pin_number);
    bt_rollout_ask(r, &r->pin_ask,
                   (bt_store_op_t){.what = r->is_pinned ? BT_STORE_TABLE_PUT : BT_STORE_TABLE_DROP,
                                   .key = BT_STR("policy_pins"),
                                   .field = bt_str(r->replica),
                                   .value = bt_str(number)},
                   on_pin_told);
}

void bt_rollout_tell_joined(bt_rollout_t *r)
{
    void (*on_joined)(void *user) = r->on_joined;
    const uint64_t number = bt_rollout_held(r)->number;

    if (on_joined == NULL || !bt_rollout_has_joined(r))
        return;
    if (number > 0 && !bt_rollout_is_blocked(r, number) && !bt_rollout_note_add(r, number))
        return;
    r->on_joined = NULL;
    on_joined(r->joined_user);
}
