/* Table `health`: a row a replica, "<key><d, o or b>;..." of the workers that it finds down, has an open breaker for, or both. No row says that a
 * worker is well: what others say is a reason to look, never a verdict, so a replica with a broken network takes nobody's workers away.
 */
#include "fleet/fleet_impl.h"

#include <inttypes.h>

#define HINT_EVERY_MS 1000
#define OPEN_HEARTBEATS 5 /* a breaker hint outlives so many heartbeats that bring none */

/* ---- out ---- */

static bool is_down(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->health, memory_order_relaxed) == BT_HEALTH_DOWN;
}

static void put_votes(bt_fleet_t *fleet)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_text_t *out = &fleet->out;

    out->len = 0;
    for (unsigned i = 0; i < fleet->worker_key_count; i++) {
        const bt_worker_t *w = fleet->worker_keys[i].worker;
        const bool down = is_down(w),
                   open = bt_breaker_state(&w->breaker, now_ms) == BT_BREAKER_OPEN;
        if (down || open)
            bt_text_printf(out, "%016" PRIx64 "%c;", fleet->worker_keys[i].key,
                           down && open ? 'b'
                           : down       ? 'd'
                                        : 'o');
    }
}

/* ---- in ---- */

static void note_vote(bt_fleet_t *fleet, bt_str_t vote)
{
    bt_worker_key_t *p;
    uint64_t key;

    if (!bt_str_take_hex64(&vote, &key) || vote.n != 1)
        return;
    BT_FLEET_EACH_OF(fleet, key, p)
    {
        p->is_down_elsewhere |= vote.p[0] != 'o';
        p->is_open_elsewhere |= vote.p[0] != 'd';
    }
}

static void hint(bt_fleet_t *fleet, bt_worker_key_t *p, uint64_t now_ms)
{
    if (p->is_open_elsewhere)
        bt_breaker_hint(&p->worker->breaker, now_ms + OPEN_HEARTBEATS * fleet->interval_ms);
    if (!p->is_down_elsewhere || is_down(p->worker)) {
        p->hinted_ms = 0;
        return;
    }
    if (p->hinted_ms != 0 && now_ms - p->hinted_ms < HINT_EVERY_MS)
        return;
    p->hinted_ms = now_ms;
    if (fleet->on_hint != NULL)
        fleet->on_hint(fleet->user, p->worker);
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_str_t text, vote;

    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < fleet->worker_key_count; i++)
        fleet->worker_keys[i].is_down_elsewhere = fleet->worker_keys[i].is_open_elsewhere = false;
    for (unsigned i = 0; i < reply->row_count; i++) {
        text = reply->rows[i].value;
        while (!bt_fleet_is_own(fleet, reply->rows[i].name) &&
               bt_fleet_next_word(&text, ';', &vote))
            note_vote(fleet, vote);
    }
    for (unsigned i = 0; i < fleet->worker_key_count; i++)
        hint(fleet, &fleet->worker_keys[i], now_ms);
}

void bt_fleet_health_tick(bt_fleet_t *fleet)
{
    if (fleet->health_query.is_out)
        return;
    put_votes(fleet);
    bt_fleet_query(fleet, &fleet->health_query,
                   (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                   .key = BT_STR("health"),
                                   .field = bt_str(fleet->field),
                                   .value = bt_text_str(&fleet->out),
                                   .ttl_ms = fleet->expiry_ms},
                   on_rows);
}
