/* Table `health`: a row a replica, "<key><d, o or b>;..." of the workers that it finds down, has an open breaker for, or both. No row says that a
 * worker is well: what others say is a reason to look, never a verdict, so a replica with a broken network takes nobody's workers away.
 */
#include "share/share_impl.h"

#include <inttypes.h>

#define HINT_EVERY_MS 1000
#define OPEN_BEATS 5 /* a breaker hint outlives so many beats that bring none */

/* ---- out ---- */

static bool is_down(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->health, memory_order_relaxed) == BT_HEALTH_DOWN;
}

static void put_votes(bt_share_t *share)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t *out = &share->out;

    out->len = 0;
    for (unsigned i = 0; i < share->place_count; i++) {
        const bt_worker_t *w = share->places[i].worker;
        const bool down = is_down(w),
                   open = bt_breaker_state(&w->breaker, now_ms) == BT_BREAKER_OPEN;
        if (down || open)
            bt_text_printf(out, "%016" PRIx64 "%c;", share->places[i].key,
                           down && open ? 'b'
                           : down       ? 'd'
                                        : 'o');
    }
}

/* ---- in ---- */

static void note_vote(bt_share_t *share, bt_str_t vote)
{
    bt_share_place_t *p;
    uint64_t key;

    if (!bt_share_read_key(&vote, &key) || vote.n != 1)
        return;
    BT_SHARE_EACH_OF(share, key, p)
    {
        p->is_down_elsewhere |= vote.p[0] != 'o';
        p->is_open_elsewhere |= vote.p[0] != 'd';
    }
}

static void hint(bt_share_t *share, bt_share_place_t *p, uint64_t now_ms)
{
    if (p->is_open_elsewhere)
        bt_breaker_hint(&p->worker->breaker, now_ms + OPEN_BEATS * share->interval_ms);
    if (!p->is_down_elsewhere || is_down(p->worker)) {
        p->hinted_ms = 0;
        return;
    }
    if (p->hinted_ms != 0 && now_ms - p->hinted_ms < HINT_EVERY_MS)
        return;
    p->hinted_ms = now_ms;
    if (share->on_hint != NULL)
        share->on_hint(share->user, p->worker);
}

static void on_rows(bt_share_t *share, const bt_store_reply_t *reply)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_str_t text, vote;

    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < share->place_count; i++)
        share->places[i].is_down_elsewhere = share->places[i].is_open_elsewhere = false;
    for (unsigned i = 0; i < reply->row_count; i++) {
        text = reply->rows[i].value;
        while (!bt_share_is_own(share, reply->rows[i].name) &&
               bt_share_next_word(&text, ';', &vote))
            note_vote(share, vote);
    }
    for (unsigned i = 0; i < share->place_count; i++)
        hint(share, &share->places[i], now_ms);
}

void bt_share_health_beat(bt_share_t *share)
{
    if (share->health_ask.is_out)
        return;
    put_votes(share);
    bt_share_ask(share, &share->health_ask,
                 (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                 .key = BT_STR("health"),
                                 .field = bt_str(share->field),
                                 .value = bt_text_str(&share->out),
                                 .ttl_ms = share->expiry_ms},
                 on_rows);
}
