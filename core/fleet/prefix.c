/* Log `prefix`: what each replica's choices have newly put into its prefix index, in batches:
 *
 *      u64 incarnation of the writer, then groups: u64 key of the worker, u64 count, count x u64 block hash; all little-endian
 *
 * Blocks come from the request loops by rings (script/shared/prefix_ring.h), leave once a heartbeat, and go into every other replica's index, where they are as good as its
 * own. A block that is in the index already, whoever put it there, is not told again. A replica that begins reads what the log still holds; one that falls
 * behind goes on with what is left: the index is a guess, and a gap costs prefills that could have been shorter.
 */
#include "fleet/fleet_impl.h"

#include "script/shared/prefix_index.h"

#include <endian.h>
#include <stdio.h>

#define BATCHES_KEPT 1024
#define BATCHES_READ 64
#define BATCHES_PER_HEARTBEAT 8
#define INFLOW_MAX 65536U /* a newcomer reads far more at once, and that is no rate */

static void put_u64(bt_text_t *out, uint64_t n)
{
    uint64_t le = htole64(n);

    bt_text_put(out, (bt_str_t){(const char *) &le, sizeof(le)});
}

/* ---- out ---- */

/* Fills out with one batch from ring *ring_p on. Blocks in it. */
static uint64_t fill_batch(bt_fleet_t *fleet, unsigned *ring_p)
{
    uint64_t hashes[BT_PREFIX_BLOCKS_MAX], blocks = 0;
    bt_text_t *out = &fleet->out;
    uint32_t id;

    out->len = 0;
    put_u64(out, fleet->incarnation);
    while (*ring_p < fleet->ring_count && out->len < BT_FLEET_BATCH_BYTES - sizeof(hashes)) {
        unsigned count = bt_prefix_ring_take(fleet->rings[*ring_p], &id, hashes);
        const bt_worker_key_t *p = count > 0 ? bt_worker_key_by_id(fleet, id) : NULL;
        if (count == 0)
            ++*ring_p;
        if (p == NULL)
            continue; /* removed since */
        put_u64(out, p->key);
        put_u64(out, count);
        for (unsigned i = 0; i < count; i++)
            put_u64(out, hashes[i]);
        blocks += count;
    }
    return blocks;
}

static void send_batches(bt_fleet_t *fleet)
{
    unsigned ring = 0;

    for (unsigned i = 0; i < BATCHES_PER_HEARTBEAT; i++) {
        uint64_t blocks = fill_batch(fleet, &ring);
        if (blocks == 0)
            return;
        bool is_sent = fleet->is_up && !fleet->out.failed &&
                       bt_fleet_put(fleet, (bt_store_op_t){.what = BT_STORE_LOG_ADD,
                                                           .key = BT_STR("prefix"),
                                                           .value = bt_text_str(&fleet->out),
                                                           .limit = BATCHES_KEPT});
        atomic_fetch_add_explicit(is_sent ? &fleet->prefix_sent : &fleet->prefix_dropped, blocks,
                                  memory_order_relaxed);
    }
}

/* ---- in ---- */

static bool take_u64(bt_str_t *bytes, uint64_t *n_p)
{
    uint64_t le;

    if (bytes->n < sizeof(le))
        return false;
    memcpy(&le, bytes->p, sizeof(le));
    *n_p = le64toh(le);
    *bytes = (bt_str_t){bytes->p + sizeof(le), bytes->n - sizeof(le)};
    return true;
}

/* One worker's blocks into the index; returns how many of them go to a worker that we have. */
static uint64_t apply_group(bt_fleet_t *fleet, uint64_t key, bt_str_t bytes, uint64_t now_ms)
{
    uint64_t hashes[BT_PREFIX_BLOCKS_MAX];
    bt_worker_key_t *p;
    unsigned count = 0;

    while (count < BT_PREFIX_BLOCKS_MAX && take_u64(&bytes, &hashes[count]))
        count++;
    BT_FLEET_EACH_OF(fleet, key, p)
    bt_prefix_insert(hashes, count, (uint32_t) p->worker->id, now_ms);
    return bt_worker_key_find(fleet, key) != NULL ? count : 0;
}

static uint64_t apply_batch(bt_fleet_t *fleet, bt_str_t bytes)
{
    uint64_t writer, key, count, all = 0, now_ms = bt_clock_ms();

    if (!take_u64(&bytes, &writer) || writer == fleet->incarnation)
        return 0;
    while (take_u64(&bytes, &key) && take_u64(&bytes, &count) && count <= bytes.n / 8) {
        all += apply_group(fleet, key, (bt_str_t){bytes.p, count * 8}, now_ms);
        bytes = (bt_str_t){bytes.p + count * 8, bytes.n - count * 8};
    }
    return all;
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    uint64_t blocks = 0;

    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < reply->row_count; i++)
        blocks += apply_batch(fleet, reply->rows[i].value);
    atomic_fetch_add_explicit(&fleet->prefix_received, blocks, memory_order_relaxed);
    bt_prefix_note_inflow(blocks < INFLOW_MAX ? (unsigned) blocks : INFLOW_MAX);
    if (reply->text.n > 0 && reply->text.n < sizeof(fleet->prefix_at))
        snprintf(fleet->prefix_at, sizeof(fleet->prefix_at), "%.*s", BT_STR_ARG(reply->text));
    if (reply->row_count >= BATCHES_READ)
        bt_fleet_prefix_read(fleet); /* there is more */
}

void bt_fleet_prefix_read(bt_fleet_t *fleet)
{
    if (fleet->prefix_query.is_out)
        return;
    bt_fleet_query(fleet, &fleet->prefix_query,
                   (bt_store_op_t){.what = BT_STORE_LOG_READ,
                                   .key = BT_STR("prefix"),
                                   .field = bt_str(fleet->prefix_at),
                                   .limit = BATCHES_READ},
                   on_rows);
}

void bt_fleet_prefix_tick(bt_fleet_t *fleet)
{
    send_batches(fleet);
    bt_fleet_prefix_read(fleet);
}
