/* How it works:
 *
 *   down --up--> asking from 0 --end, deadline--> following --gap--> asking from next --end, deadline--> following
 *
 * Batches of an answer are taken like those of the stream, by their numbers: what was taken already is left out, so that it does not matter how
 * far an answer and the stream overlap. An answer with a hole in it (its ROUTER drops what a full pipe does not take) is asked for again from
 * there, as long as each brings something.
 *
 * A loss shows by the number behind it, so the last batch before a pause would be missed until the next one comes. */
#include "kvindex/follow.h"

#include "kvindex/chain.h"

#include <stdlib.h>

#define FORWARD_MAX                                                                                \
    (UINT64_C(1)                                                                                   \
     << 32) /* TensorRT-LLM's numbers begin with the time: so far ahead is a new process */

const char *bt_kv_loss_name(enum bt_kv_loss loss)
{
    static const char *const names[] = {"none", "gap", "restart", "down", "unknown", "snapshot"};

    return loss < BT_KV_LOSSES ? names[loss] : "?";
}

static void drop_held(bt_kv_follow_t *f)
{
    free(f->held.p);
    f->held.p = NULL;
    f->held.is_there = false;
}

void bt_kv_follow_fini(bt_kv_follow_t *f)
{
    drop_held(f);
}

static void lose(bt_kv_follow_t *f, enum bt_kv_loss loss)
{
    bt_kv_part_clear(f->index, f->part);
    f->stats.losses[loss]++;
    f->on_loss(f->user, loss);
}

static void follow(bt_kv_follow_t *f)
{
    f->is_asking = f->is_checking = false;
    bt_kv_part_set_live(f->index, f->part, true);
}

/* ---- batches ---- */

static void on_event(void *user, const bt_kv_event_t *event)
{
    bt_kv_follow_t *f = user;

    bt_kv_part_apply(f->index, f->part, event);
}

static void take(bt_kv_follow_t *f, uint64_t number, bt_str_t payload)
{
    f->next = number + 1;
    f->has_next = true;
    f->last_hash = bt_kv_hash(payload);
    f->stats.batches++;
    if (bt_kv_decode(f->decoder, payload, on_event, f) < 0)
        lose(f, BT_KV_LOSS_UNKNOWN);
}

/* ---- answers ---- */

static bool ask(bt_kv_follow_t *f, uint64_t from, bool is_joining, uint64_t now_ms)
{
    if (!f->has_replay || f->ask(f->user, from) < 0)
        return false;
    f->is_asking = true;
    f->due++;
    f->is_joining = is_joining;
    f->is_checking = f->has_progress = false;
    f->deadline_ms = now_ms + BT_KV_REPLAY_DEADLINE_MS;
    return true;
}

/* Another process has said the snapshot's last batch, or nobody knows it any more: all begins anew. */
static void drop_snapshot(bt_kv_follow_t *f, uint64_t now_ms)
{
    f->is_resuming = false;
    f->due = 0; /* a question ends the answer before it */
    lose(f, BT_KV_LOSS_SNAPSHOT);
    if (!ask(f, 0, true, now_ms))
        follow(f);
}

/* The first of an answer must be the batch that was the last one. */
static void take_first(bt_kv_follow_t *f, uint64_t number, bt_str_t payload, uint64_t now_ms)
{
    if (number != f->next || bt_kv_hash(payload) != f->last_hash) {
        drop_snapshot(f, now_ms);
        return;
    }
    f->is_resuming = false;
    f->has_next = f->has_progress = true;
    f->next++;
}

static void hold(bt_kv_follow_t *f, uint64_t number, bt_str_t payload)
{
    drop_held(f);
    f->held.p = malloc(payload.n + 1);
    if (f->held.p == NULL)
        return;
    memcpy(f->held.p, payload.p, payload.n);
    f->held.n = payload.n;
    f->held.number = number;
    f->held.is_there = true;
}

/* What the answer has brought is all that there is. */
static void end_answer(bt_kv_follow_t *f, uint64_t now_ms)
{
    const bool has_hole = f->held.is_there && f->has_next && f->held.number > f->next;

    if (has_hole && f->has_progress && ask(f, f->next, false, now_ms))
        return;
    if (has_hole)
        lose(f, BT_KV_LOSS_GAP);
    follow(f);
    if (f->held.is_there && (!f->has_next || f->held.number >= f->next))
        take(f, f->held.number, (bt_str_t){f->held.p, f->held.n});
    drop_held(f);
}

static void take_answer(bt_kv_follow_t *f, uint64_t number, bt_str_t payload, uint64_t now_ms)
{
    const bool is_end = number == UINT64_MAX;

    if (is_end && f->due > 0)
        f->due--;
    if (!f->is_asking ||
        (is_end && f->due > 0)) /* the end of an answer that was asked for before */
        return;
    f->deadline_ms = now_ms + BT_KV_REPLAY_DEADLINE_MS;
    if (f->is_resuming) {
        take_first(f, number, payload, now_ms);
        return;
    }
    if (is_end) {
        end_answer(f, now_ms);
        return;
    }
    if (f->has_next && number < f->next)
        return;
    if (f->has_next && number > f->next && (f->has_progress || !f->is_joining)) {
        if (f->has_progress) {
            if (!f->held.is_there)
                hold(f, number, payload);
            return; /* a hole within the answer: asked for again at its end */
        }
        lose(f, BT_KV_LOSS_GAP); /* what we wanted is not kept any more */
    }
    f->has_progress = true;
    f->stats.replayed++;
    take(f, number, payload);
}

/* ---- the stream ---- */

/* A part that is begun anew: what the new process has said before this batch, too. */
static void begin_anew(bt_kv_follow_t *f, uint64_t number, bt_str_t payload, uint64_t now_ms)
{
    lose(f, BT_KV_LOSS_RESTART);
    f->has_next = false;
    if (number == 0 || !ask(f, 0, true, now_ms))
        take(f, number, payload);
    else
        hold(f, number, payload);
}

static void take_stream(bt_kv_follow_t *f, uint64_t number, bt_str_t payload, uint64_t now_ms)
{
    if (f->is_resuming)
        return; /* before its engine was asked: the answer will have it */
    const bool is_back = f->has_seen && number <= f->last_seen;
    const bool is_far = f->has_next && number > f->next && number - f->next > FORWARD_MAX;

    f->has_seen = true;
    f->last_seen = number;
    f->quiet_at_ms = now_ms + BT_KV_QUIET_MS;
    if (is_back || is_far) {
        begin_anew(f, number, payload, now_ms);
        return;
    }
    if (f->has_next && number < f->next)
        return; /* an answer has brought it */
    if (!f->has_next || number == f->next) {
        take(f, number, payload);
        follow(f);
        return;
    }
    f->stats.gaps++;
    if (ask(f, f->next, false, now_ms)) {
        hold(f, number, payload);
        return;
    }
    lose(f, BT_KV_LOSS_GAP);
    take(f, number, payload);
}

/* ---- what comes ---- */

static bool read_number(bt_str_t frame, uint64_t *number_p)
{
    uint64_t number = 0;

    for (size_t i = 0; i < frame.n; i++)
        number = number << 8 | (unsigned char) frame.p[i];
    *number_p = number;
    return frame.n == 8;
}

void bt_kv_follow_message(bt_kv_follow_t *f, const bt_str_t *frames, unsigned count, bool is_answer,
                          uint64_t now_ms)
{
    uint64_t number;

    if (is_answer && count > 0 && frames[0].n == 0) { /* what a REQ would not show */
        frames++;
        count--;
    }
    if (count < 2 || count > 3 || !read_number(frames[count - 2], &number)) {
        f->stats.losses[BT_KV_LOSS_UNKNOWN]++;
        return;
    }
    if (is_answer)
        take_answer(f, number, frames[count - 1], now_ms);
    else
        take_stream(f, number, frames[count - 1], now_ms);
}

void bt_kv_follow_up(bt_kv_follow_t *f, uint64_t now_ms)
{
    f->is_up = true;
    f->due = 0;
    f->has_next = f->has_seen = false;
    if (f->is_resuming && ask(f, f->next, true, now_ms))
        return;
    if (f->is_resuming)
        drop_snapshot(f, now_ms);
    else if (!ask(f, 0, true, now_ms))
        follow(f);
}

void bt_kv_follow_resume(bt_kv_follow_t *f, bt_kv_place_t place)
{
    f->is_resuming = true;
    f->next = place.number;
    f->last_hash = place.hash;
}

bool bt_kv_follow_place(const bt_kv_follow_t *f, bt_kv_place_t *place_p)
{
    const bool is_whole = f->has_next && bt_kv_part_is_live(f->index, f->part);

    if (is_whole || f->is_resuming)
        *place_p = (bt_kv_place_t){f->is_resuming ? f->next : f->next - 1, f->last_hash};
    return is_whole || f->is_resuming;
}

/* The engine may be another process when it is back, or it has gone on without us: it says again what it can. */
void bt_kv_follow_down(bt_kv_follow_t *f)
{
    if (!f->is_up)
        return;
    f->is_up = f->is_asking = f->is_checking = f->has_next = f->has_seen = false;
    drop_held(f);
    if (f->is_resuming)
        return; /* it has not been asked yet, or has not answered */
    bt_kv_part_set_live(f->index, f->part, false);
    lose(f, BT_KV_LOSS_DOWN);
}

void bt_kv_follow_turn(bt_kv_follow_t *f, uint64_t now_ms)
{
    if (f->is_asking && now_ms >= f->deadline_ms && f->is_resuming) {
        drop_snapshot(f, now_ms);
    } else if (f->is_asking && now_ms >= f->deadline_ms) {
        f->due = 0;
        end_answer(f, now_ms);
    }
    if (f->is_asking || !f->has_next || f->quiet_at_ms == 0 || now_ms < f->quiet_at_ms)
        return;
    f->quiet_at_ms = 0;
    f->is_checking = ask(f, f->next, false, now_ms);
}

bool bt_kv_follow_wants_more(const bt_kv_follow_t *f)
{
    return !f->is_asking || f->is_checking;
}
