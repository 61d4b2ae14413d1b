/* Table `workers`, whatever its rows mean: stamps and the epoch. The highest stamp wins everywhere (of two values with one stamp the greater text), so order
 * and repetition do not matter. What is told here gets a stamp above all that is known of the place.
 *
 *      told here (API) -> row, stamp above all known -> put, and the call `workers`
 *      read            -> newer: applied here       older than what is known here: ours is put again       cannot be read: what is known counts
 *      not in the table-> the store was flushed (another @epoch): put again       the same @epoch: it has run out or was taken away, and is forgotten
 *
 * A store that is unavailable loses what is put into it, and has something older, or nothing, when it is back: the same two cases.
 */
#include "fleet/rows.h"

#include "base/json.h"
#include "base/log.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define DAY_MS UINT64_C(86400000)
#define LOOK_EVERY_MS 1000
#define APPLIED_PER_HEARTBEAT 16
#define EPOCH "@epoch"

/* ---- told by our own API ---- */

static void write_value(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    bt_text_t *out = &fleet->out;

    out->len = 0;
    bt_text_printf(out, "{\"stamp\":%" PRIu64 ",\"pool\":", row->stamp);
    bt_text_json_str(out, bt_str(row->pool));
    row->kind->write(out, row);
    bt_text_puts(out, "}");
    free(row->value);
    row->value = bt_str_dup(bt_text_str(out));
}

static void put_row(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    if (row->value == NULL || fleet->is_closing)
        return;
    row->must_put =
        !bt_fleet_put(fleet, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                             .key = BT_STR("workers"),
                                             .field = bt_str(row->field),
                                             .value = bt_str(row->value),
                                             .ttl_ms = row->kind->is_lasting(row) ? 0 : DAY_MS});
}

void bt_fleet_row_put(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    row->is_stored = false;
    write_value(fleet, row);
    put_row(fleet, row);
}

const char *bt_fleet_why_untold(const bt_fleet_t *fleet)
{
    if (fleet->workers_query.is_unfit)
        return "the store has something else where workers are told: they follow when that is gone";
    if (bt_store_client_is_up(fleet->client))
        return NULL;
    switch (bt_store_health(fleet->store, NULL, 0)) {
    case BT_STORE_STARTING:
        return "the store has not been reached yet: they follow when it is";
    case BT_STORE_DEGRADED:
        return "the store takes nothing now: they follow when it does";
    default:
        return "the store is unavailable: they follow when it is back";
    }
}

/* Above all that is known of the place: a clock may be late. */
static uint64_t next_stamp(const bt_fleet_t *fleet, const bt_fleet_row_t *row)
{
    const bt_fleet_kind_t *const kinds[] = {&bt_fleet_kind_worker, &bt_fleet_kind_drain,
                                            &bt_fleet_kind_role};
    uint64_t stamp = bt_clock_wall_ms();

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const bt_fleet_row_t *known = bt_fleet_row_beside(fleet, row, kinds[i]);
        if (known != NULL && known->stamp >= stamp)
            stamp = known->stamp + 1;
    }
    return stamp;
}

const char *bt_fleet_row_send(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    row->stamp = next_stamp(fleet, row);
    bt_fleet_row_put(fleet, row);
    (void) bt_fleet_call(fleet, "workers", BT_STR_NULL);
    return row->value != NULL ? bt_fleet_why_untold(fleet) : "out of memory";
}

bool bt_fleet_row_is_outdated(const bt_fleet_t *fleet, const bt_fleet_row_t *row,
                              const bt_fleet_row_t **worker_row_p)
{
    *worker_row_p = bt_fleet_row_beside(fleet, row, &bt_fleet_kind_worker);
    return *worker_row_p != NULL && row->stamp <= (*worker_row_p)->stamp;
}

/* ---- read ---- */

/* What every value has; false when it says nothing that can be read. A stamp far beyond our time would be the last word for ever. */
struct head {
    uint64_t stamp;
    char pool[128];
};

static bool read_head(const bt_store_row_t *stored, struct head *head)
{
    bt_json_item_t stamp, pool;
    int64_t number;
    long n;

    if (bt_json_get(stored->value, BT_STR("stamp"), &stamp) < 0 || stamp.type != BT_JSON_NUMBER ||
        bt_json_i64(stamp.value, &number) < 0 || number <= 0 ||
        (uint64_t) number > bt_clock_wall_ms() + DAY_MS ||
        bt_json_get(stored->value, BT_STR("pool"), &pool) < 0 || pool.type != BT_JSON_STRING)
        return false;
    n = bt_json_unescape(pool.value, head->pool, sizeof(head->pool) - 1);
    if (n < 0 || !bt_fleet_is_name(stored->name) || (size_t) n >= stored->name.n ||
        memcmp(stored->name.p, head->pool, (size_t) n) != 0 || stored->name.p[n] != ' ')
        return false;
    head->stamp = (uint64_t) number;
    head->pool[n] = '\0';
    return true;
}

static bool has_suffix(bt_str_t field, const char *text)
{
    const bt_str_t suffix = bt_str(text);

    return field.n > suffix.n && memcmp(field.p + field.n - suffix.n, suffix.p, suffix.n) == 0;
}

static const bt_fleet_kind_t *kind_of(bt_str_t field)
{
    return has_suffix(field, bt_fleet_kind_drain.suffix)  ? &bt_fleet_kind_drain
           : has_suffix(field, bt_fleet_kind_role.suffix) ? &bt_fleet_kind_role
                                                          : &bt_fleet_kind_worker;
}

/* < 0: older than the row; > 0: newer. */
static int compare(const bt_fleet_row_t *row, uint64_t stamp, bt_str_t value)
{
    if (stamp != row->stamp)
        return stamp < row->stamp ? -1 : 1;
    return bt_fleet_order(value, row->value != NULL ? bt_str(row->value) : BT_STR_NULL);
}

/* Somebody else's, or a later version's: what is known counts. Said once for each row that is known, and once for all others. */
static void log_unread(bool *is_said, bt_str_t field)
{
    char name[100];
    const size_t n = field.n < sizeof(name) ? field.n : sizeof(name);

    if (*is_said)
        return;
    *is_said = true;
    memcpy(name, field.p, n);
    bt_str_tame(name, n);
    bt_log_warn("fleet", "row %.*s of the table of workers cannot be read: it changes nothing here",
                (int) n, name);
}

static void read_new(bt_fleet_t *fleet, const bt_store_row_t *stored)
{
    struct head head;
    bt_fleet_row_t *row;

    if (!read_head(stored, &head)) {
        log_unread(&fleet->has_unread, stored->name);
        return;
    }
    row = bt_fleet_row_add(fleet, kind_of(stored->name), stored->name, head.pool);
    if (row == NULL)
        return;
    if (!row->kind->read(row, stored->value)) {
        log_unread(&fleet->has_unread, stored->name);
        bt_fleet_row_forget(fleet, row);
        return;
    }
    row->is_seen = row->is_stored = true;
    row->stamp = head.stamp;
    row->value = bt_str_dup(stored->value);
    fleet->must_apply = true;
}

static void read_again(bt_fleet_t *fleet, bt_fleet_row_t *row, const bt_store_row_t *stored)
{
    struct head head;
    int age;

    row->is_seen = true;
    row->must_put = false;
    if (!read_head(stored, &head)) {
        log_unread(&row->is_unread, stored->name);
        return;
    }
    age = compare(row, head.stamp, stored->value);
    row->is_stored = true;
    row->must_put = age < 0;
    if (age <= 0)
        return;
    if (!row->kind->read(row, stored->value)) {
        log_unread(&row->is_unread, stored->name);
        return;
    }
    row->is_unread = false;
    row->stamp = head.stamp;
    free(row->value);
    row->value = bt_str_dup(stored->value);
    fleet->must_apply = true;
}

static void read_row(bt_fleet_t *fleet, const bt_store_row_t *stored)
{
    bt_fleet_row_t *row = bt_fleet_row_find(fleet, stored->name);

    if (row == NULL) {
        read_new(fleet, stored);
    } else if (row->value != NULL && bt_str_eq(bt_str(row->value), stored->value)) {
        row->is_seen = row->is_stored = true;
        row->must_put = row->is_unread = false;
    } else {
        read_again(fleet, row, stored);
    }
}

/* The store holds nothing of this row. False: it is forgotten. */
static bool keep_missing(bt_fleet_t *fleet, bt_fleet_row_t *row, bool is_same_epoch)
{
    if (!is_same_epoch || !row->is_stored)
        row->must_put = true;
    else if (row->kind->undo(row))
        fleet->must_apply = true;
    else
        return false;
    return true;
}

static void miss_rows(bt_fleet_t *fleet, bool is_same_epoch)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < fleet->row_count; i++) {
        bt_fleet_row_t *row = fleet->rows[i];
        if (row->is_seen || keep_missing(fleet, row, is_same_epoch))
            fleet->rows[kept++] = row;
        else
            bt_fleet_row_free(row);
    }
    fleet->row_count = kept;
}

static bool is_epoch(bt_str_t text)
{
    uint64_t ignored;

    return text.n == 16 && bt_str_take_hex64(&text, &ignored);
}

/* True when the table is the one that was read before. What nobody of us has written is as good as none. */
static bool check_epoch(bt_fleet_t *fleet, bt_str_t epoch)
{
    char fresh[sizeof(fleet->epoch)];

    if (is_epoch(epoch)) {
        const bool is_same = bt_str_eq(epoch, bt_str(fleet->epoch));
        snprintf(fleet->epoch, sizeof(fleet->epoch), "%.*s", BT_STR_ARG(epoch));
        return is_same;
    }
    fleet->epoch[0] = '\0';
    snprintf(fresh, sizeof(fresh), "%016" PRIx64, bt_rand_u64());
    (void) bt_fleet_put(fleet, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                               .key = BT_STR("workers"),
                                               .field = BT_STR(EPOCH),
                                               .value = bt_str(fresh)});
    return false;
}

static void note_read(bt_fleet_t *fleet)
{
    void (*first)(void *) = fleet->on_first_read;

    fleet->on_first_read = NULL;
    if (first != NULL)
        first(fleet->user);
}

static void on_rows(bt_fleet_t *fleet, const bt_store_reply_t *reply)
{
    bt_str_t epoch = BT_STR_NULL;

    if (reply->rc != 0)
        return;
    for (unsigned i = 0; i < fleet->row_count; i++)
        fleet->rows[i]->is_seen = false;
    for (unsigned i = 0; i < reply->row_count; i++)
        if (bt_str_eq(reply->rows[i].name, BT_STR(EPOCH)))
            epoch = reply->rows[i].value;
        else
            read_row(fleet, &reply->rows[i]);
    miss_rows(fleet, check_epoch(fleet, epoch));
    for (unsigned i = 0; i < fleet->row_count; i++)
        if (fleet->rows[i]->must_put)
            put_row(fleet, fleet->rows[i]);
    fleet->rows_due = fleet->epoch[0] == '\0' ? 1 : fleet->rows_due;
    if (fleet->must_apply || fleet->has_waiting)
        bt_fleet_rows_apply(fleet);
    note_read(fleet);
}

void bt_fleet_rows_read(bt_fleet_t *fleet)
{
    fleet->rows_due = 0;
}

void bt_fleet_rows_tick(bt_fleet_t *fleet)
{
    if (fleet->must_apply)
        bt_fleet_rows_apply(fleet);
    if (fleet->workers_query.is_out || fleet->rows_due-- > 0)
        return;
    fleet->rows_due = (unsigned) (LOOK_EVERY_MS / fleet->interval_ms);
    bt_fleet_query(fleet, &fleet->workers_query,
                   (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("workers")}, on_rows);
}

/* ---- applied ---- */

/* False: there may be more to do. A fleet costs by its workers, so a replica that finds a thousand new ones takes them in some at a time. */
static bool apply_kind(bt_fleet_t *fleet, const bt_fleet_kind_t *kind)
{
    unsigned fleets = 0;

    for (unsigned i = 0; i < fleet->row_count && fleets < APPLIED_PER_HEARTBEAT; i++)
        if (fleet->rows[i]->kind == kind)
            fleets += kind->apply(fleet, fleet->rows[i]);
    return fleets < APPLIED_PER_HEARTBEAT;
}

static bool has_worker_fields(bt_fleet_t *fleet)
{
    if (fleet->worker_fields != NULL)
        return true;
    if (fleet->workers == NULL)
        return false;
    if (bt_worker_fields_build(fleet) == 0)
        return true;
    bt_log_error("fleet", "out of memory: what the others do to workers waits");
    return false;
}

/* The registry publishes as it changes, which comes back here as set_fleet: must_apply is then set again for nothing. */
void bt_fleet_rows_apply(bt_fleet_t *fleet)
{
    if (!has_worker_fields(fleet))
        return;
    const bool is_all = apply_kind(fleet, &bt_fleet_kind_worker);
    (void) apply_kind(fleet, &bt_fleet_kind_drain);
    fleet->has_waiting = false;
    (void) apply_kind(fleet, &bt_fleet_kind_role);
    fleet->must_apply = !is_all;
}

/* Workers may not be added or removed in here: the registry is about to publish. */
void bt_fleet_rows_on_fleet(bt_fleet_t *fleet)
{
    fleet->must_apply = true; /* a reload takes out what the configuration does not name */
    bt_worker_fields_fini(fleet);
    if (has_worker_fields(fleet))
        (void) apply_kind(fleet, &bt_fleet_kind_drain);
}

void bt_fleet_rows_fini(bt_fleet_t *fleet)
{
    bt_worker_fields_fini(fleet);
    for (unsigned i = 0; i < fleet->row_count; i++)
        bt_fleet_row_free(fleet->rows[i]);
    free(fleet->rows);
}
