/* Table `load`: a row a replica, "<key> <prefill tokens> <prefill requests> <decode tokens> <decode requests>;..." of the workers that it has something on,
 * in hexadecimal keys and decimal numbers. The sum of all rows but our own is put into the workers' totals, where views, native functions and the default choice find it beside
 * our own ledger, which is exact and live.
 *
 * A replica that dies leaves its row, which the store drops at its end; a store that does not answer leaves the sums, which are dropped here after the same time.
 */
#include "fleet/fleet_impl.h"

#include <inttypes.h>

#define LOAD_MAX (INT64_C(1) << 40) /* more is no load but a broken row */

static int64_t not_less(int64_t own)
{
    return own > 0 ? own : 0;
}

/* ---- out ---- */

static void put_report(bt_fleet_t *fleet)
{
    bt_text_t *out = &fleet->out;

    out->len = 0;
    for (unsigned i = 0; i < fleet->worker_key_count; i++) {
        const bt_worker_t *w = fleet->worker_keys[i].worker;
        int64_t n[] = {not_less(bt_worker_own_tokens(w, BT_PHASE_PREFILL)),
                       not_less(bt_worker_own_requests(w, BT_PHASE_PREFILL)),
                       not_less(bt_worker_own_tokens(w, BT_PHASE_DECODE)),
                       not_less(bt_worker_own_requests(w, BT_PHASE_DECODE))};
        if (n[0] + n[1] + n[2] + n[3] > 0)
            bt_text_printf(out, "%016" PRIx64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 ";",
                           fleet->worker_keys[i].key, n[0], n[1], n[2], n[3]);
    }
}

/* ---- in ---- */

static bool read_number(bt_str_t *text, int64_t *number_p)
{
    uint64_t number;
    bt_str_t word;

    if (!bt_fleet_next_word(text, ' ', &word) || bt_str_u64(word, &number) < 0 ||
        number > (uint64_t) LOAD_MAX)
        return false;
    *number_p = (int64_t) number;
    return true;
}

static void add_entry(bt_fleet_t *fleet, bt_str_t text)
{
    bt_worker_key_t *p;
    uint64_t key;
    int64_t n[4];

    if (!bt_str_take_hex64(&text, &key) || text.n == 0 || text.p[0] != ' ')
        return;
    text = (bt_str_t){text.p + 1, text.n - 1};
    for (unsigned i = 0; i < 4; i++)
        if (!read_number(&text, &n[i]))
            return;
    BT_FLEET_EACH_OF(fleet, key, p)
    {
        p->tokens[BT_PHASE_PREFILL] += n[0];
        p->requests[BT_PHASE_PREFILL] += n[1];
        p->tokens[BT_PHASE_DECODE] += n[2];
        p->requests[BT_PHASE_DECODE] += n[3];
    }
}

static void publish(bt_fleet_t *fleet)
{
    for (unsigned i = 0; i < fleet->worker_key_count; i++) {
        bt_worker_key_t *p = &fleet->worker_keys[i];
        for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++)
            bt_worker_set_others(p->worker, (enum bt_phase) phase, p->tokens[phase],
                                 p->requests[phase]);
    }
}

static void clear(bt_fleet_t *fleet)
{
    for (unsigned i = 0; i < fleet->worker_key_count; i++)
        for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++)
            fleet->worker_keys[i].tokens[phase] = fleet->worker_keys[i].requests[phase] = 0;
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    bt_str_t text, entry;

    if (reply->rc != 0)
        return;
    fleet->answered_ms = bt_clock_ms();
    clear(fleet);
    for (unsigned i = 0; i < reply->row_count; i++) {
        text = reply->rows[i].value;
        while (!bt_fleet_is_own(fleet, reply->rows[i].name) &&
               bt_fleet_next_word(&text, ';', &entry))
            add_entry(fleet, entry);
    }
    publish(fleet);
}

void bt_fleet_load_tick(bt_fleet_t *fleet)
{
    if (fleet->load_query.is_out)
        return;
    put_report(fleet);
    bt_fleet_query(fleet, &fleet->load_query,
                   (bt_store_op_t){.what = BT_STORE_TABLE_SYNC,
                                   .key = BT_STR("load"),
                                   .field = bt_str(fleet->field),
                                   .value = bt_text_str(&fleet->out),
                                   .ttl_ms = fleet->expiry_ms},
                   on_rows);
}

void bt_fleet_load_forget(bt_fleet_t *fleet)
{
    clear(fleet);
    publish(fleet);
}
