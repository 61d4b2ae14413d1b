/* Table `workers`, whatever its rows mean: stamps and the epoch. The highest stamp wins everywhere (of two values with one stamp the greater text), so order
 * and repetition do not matter.
 *
 *      told here (API) -> row, stamp above all known -> put, and the call `workers`
 *      read            -> newer: applied here       older than what is known here: ours is put again
 *      not in the table-> the store was flushed (another @epoch): put again       the same @epoch: it has run out or was taken away, and is forgotten
 *
 * A store that is away loses what is put into it, and has something older, or nothing, when it is back: the same two cases.
 */
#include "share/rows.h"

#include "base/err.h"
#include "base/json.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define DAY_MS UINT64_C(86400000)
#define LOOK_EVERY_MS 1000
#define FIELD_MAX 512
#define EPOCH "@epoch"

/* ---- the list ---- */

/* "<pool> <host>:<port><path>@<rank><suffix>"; false when that is too long. */
static bool field_of(const char *pool, const bt_worker_t *w, const char *suffix,
                     char field[FIELD_MAX + 1])
{
    size_t host_at = strlen(pool) + 1, host_n = strlen(w->host);
    int n = snprintf(field, FIELD_MAX + 1, "%s %s:%u%s@%d%s", pool, w->host, w->port, w->base_path,
                     w->spec.dp_rank, suffix);

    if (n < 0 || n > FIELD_MAX)
        return false;
    for (char *p = field + host_at; p < field + host_at + host_n; p++)
        *p = (char) (*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    return true;
}

static bt_share_row_t *find(const bt_share_t *share, bt_str_t field)
{
    const bt_list_t *it;

    for (it = share->rows.next; it != &share->rows; it = it->next) {
        bt_share_row_t *row = bt_container_of(it, bt_share_row_t, link);
        if (bt_str_eq(bt_str(row->field), field))
            return row;
    }
    return NULL;
}

static void free_row(bt_share_row_t *row)
{
    bt_list_remove(&row->link);
    bt_worker_spec_fini(&row->spec);
    free(row->field);
    free(row->pool);
    free(row->value);
    free(row);
}

static bt_share_row_t *add(bt_share_t *share, const bt_share_kind_t *kind, bt_str_t field,
                           const char *pool)
{
    bt_share_row_t *row = calloc(1, sizeof(*row));

    if (row == NULL)
        return NULL;
    bt_worker_spec_init(&row->spec);
    bt_list_push(&share->rows, &row->link);
    row->kind = kind;
    row->field = bt_str_dup(field);
    row->pool = bt_str_dup(bt_str(pool));
    if (row->field != NULL && row->pool != NULL)
        return row;
    free_row(row);
    return NULL;
}

bt_share_row_t *bt_share_row(bt_share_t *share, const bt_share_kind_t *kind, const char *pool,
                             const bt_worker_t *w)
{
    char field[FIELD_MAX + 1];

    return field_of(pool, w, kind->suffix, field) ? find(share, bt_str(field)) : NULL;
}

bt_share_row_t *bt_share_row_or_add(bt_share_t *share, const bt_share_kind_t *kind,
                                    const char *pool, const bt_worker_t *w)
{
    char field[FIELD_MAX + 1];
    bt_share_row_t *row;

    if (!field_of(pool, w, kind->suffix, field))
        return NULL;
    row = find(share, bt_str(field));
    return row != NULL ? row : add(share, kind, bt_str(field), pool);
}

bt_worker_t *bt_share_row_worker(const bt_share_t *share, const bt_share_row_t *row,
                                 bool *has_pool_p)
{
    const bt_fleet_t *fleet = share->fleet;
    char field[FIELD_MAX + 1];

    *has_pool_p = false;
    for (unsigned i = 0; i < fleet->pool_count; i++) {
        const bt_fleet_pool_t *pool = &fleet->pools[i];
        if (strcmp(pool->spec.name, row->pool) != 0)
            continue;
        *has_pool_p = true;
        for (unsigned j = 0; j < pool->all.count; j++)
            if (field_of(row->pool, pool->all.items[j], row->kind->suffix, field) &&
                strcmp(field, row->field) == 0)
                return pool->all.items[j];
    }
    return NULL;
}

/* ---- told by our own API ---- */

static void write_value(bt_share_t *share, bt_share_row_t *row)
{
    bt_text_t *out = &share->out;

    out->len = 0;
    bt_text_printf(out, "{\"stamp\":%" PRIu64 ",\"pool\":", row->stamp);
    bt_text_json_str(out, bt_str(row->pool));
    row->kind->write(out, row);
    bt_text_puts(out, "}");
    free(row->value);
    row->value = bt_str_dup(bt_text_str(out));
}

static void put_row(bt_share_t *share, bt_share_row_t *row)
{
    if (row->value == NULL || share->is_closing)
        return;
    row->must_put =
        !bt_share_put(share, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                             .key = BT_STR("workers"),
                                             .field = bt_str(row->field),
                                             .value = bt_str(row->value),
                                             .ttl_ms = row->kind->is_lasting(row) ? 0 : DAY_MS});
}

void bt_share_row_tell(bt_share_t *share, bt_share_row_t *row)
{
    const uint64_t now = bt_clock_wall_ms();

    row->stamp = row->stamp < now ? now : row->stamp + 1;
    row->is_stored = false;
    write_value(share, row);
    put_row(share, row);
    (void) bt_share_call(share, "workers", BT_STR_NULL);
}

/* ---- read ---- */

/* What every value has; false when it says nothing that can be read. */
struct head {
    uint64_t stamp;
    char pool[128];
};

static bool read_head(bt_str_t value, struct head *head)
{
    bt_json_item_t stamp, pool;
    int64_t number;
    long n;

    if (bt_json_get(value, BT_STR("stamp"), &stamp) < 0 || stamp.type != BT_JSON_NUMBER ||
        bt_json_i64(stamp.value, &number) < 0 || number <= 0 ||
        bt_json_get(value, BT_STR("pool"), &pool) < 0 || pool.type != BT_JSON_STRING)
        return false;
    n = bt_json_unescape(pool.value, head->pool, sizeof(head->pool) - 1);
    if (n < 0)
        return false;
    head->stamp = (uint64_t) number;
    head->pool[n] = '\0';
    return true;
}

static const bt_share_kind_t *kind_of(bt_str_t field)
{
    bt_str_t suffix = bt_str(bt_share_kind_drain.suffix);

    return field.n > suffix.n && memcmp(field.p + field.n - suffix.n, suffix.p, suffix.n) == 0
               ? &bt_share_kind_drain
               : &bt_share_kind_worker;
}

/* < 0: older than the row; > 0: newer. */
static int compare(const bt_share_row_t *row, uint64_t stamp, bt_str_t value)
{
    bt_str_t own = row->value != NULL ? bt_str(row->value) : BT_STR_NULL;
    size_t n = own.n < value.n ? own.n : value.n;
    int by_text = n > 0 ? memcmp(value.p, own.p, n) : 0;

    if (stamp != row->stamp)
        return stamp < row->stamp ? -1 : 1;
    if (by_text != 0)
        return by_text;
    return value.n < own.n ? -1 : value.n > own.n;
}

static void read_row(bt_share_t *share, const bt_store_row_t *stored)
{
    struct head head;
    bt_share_row_t *row;

    if (!read_head(stored->value, &head))
        return;
    row = find(share, stored->name);
    if (row == NULL && (row = add(share, kind_of(stored->name), stored->name, head.pool)) == NULL)
        return;
    int age = compare(row, head.stamp, stored->value);
    row->is_seen = row->is_stored = true;
    row->must_put = age < 0;
    if (age > 0 && row->kind->read(row, stored->value)) {
        row->stamp = head.stamp;
        free(row->value);
        row->value = bt_str_dup(stored->value);
        share->must_apply = true;
    } else if (row->stamp == 0) {
        free_row(row);
    }
}

/* The store holds nothing of this row. */
static void miss_row(bt_share_t *share, bt_share_row_t *row, bool is_same_epoch)
{
    if (!is_same_epoch || !row->is_stored)
        row->must_put = true;
    else if (row->kind->undo(row))
        share->must_apply = true;
    else
        free_row(row);
}

/* True when the table is the one that was read before. */
static bool check_epoch(bt_share_t *share, bt_str_t epoch)
{
    bool is_same = epoch.n > 0 && bt_str_eq(epoch, bt_str(share->epoch));
    char fresh[sizeof(share->epoch)];

    if (epoch.n < sizeof(share->epoch))
        snprintf(share->epoch, sizeof(share->epoch), "%.*s", BT_STR_ARG(epoch));
    if (epoch.n > 0)
        return is_same;
    snprintf(fresh, sizeof(fresh), "%016" PRIx64, bt_rand_u64());
    (void) bt_share_put(share, (bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                               .key = BT_STR("workers"),
                                               .field = BT_STR(EPOCH),
                                               .value = bt_str(fresh)});
    return false;
}

static void on_rows(bt_share_t *share, const bt_store_reply_t *reply)
{
    bt_str_t epoch = BT_STR_NULL;
    bt_list_t *it, *tmp;

    if (reply->rc != 0)
        return;
    bt_list_each (&share->rows, it, tmp)
        bt_container_of(it, bt_share_row_t, link)->is_seen = false;
    for (unsigned i = 0; i < reply->row_count; i++)
        if (bt_str_eq(reply->rows[i].name, BT_STR(EPOCH)))
            epoch = reply->rows[i].value;
        else
            read_row(share, &reply->rows[i]);
    bool is_same = check_epoch(share, epoch);
    bt_list_each (&share->rows, it, tmp) {
        bt_share_row_t *row = bt_container_of(it, bt_share_row_t, link);
        if (!row->is_seen)
            miss_row(share, row, is_same);
    }
    bt_list_each (&share->rows, it, tmp) {
        bt_share_row_t *row = bt_container_of(it, bt_share_row_t, link);
        if (row->must_put)
            put_row(share, row);
    }
    share->rows_due = share->epoch[0] == '\0' ? 1 : share->rows_due;
    if (share->must_apply)
        bt_share_rows_apply(share);
}

void bt_share_rows_look(bt_share_t *share)
{
    share->rows_due = 0;
}

void bt_share_rows_beat(bt_share_t *share)
{
    if (share->must_apply)
        bt_share_rows_apply(share);
    if (share->workers_ask.is_out || share->rows_due-- > 0)
        return;
    share->rows_due = (unsigned) (LOOK_EVERY_MS / share->interval_ms);
    bt_share_ask(share, &share->workers_ask,
                 (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("workers")}, on_rows);
}

/* ---- applied ---- */

static void apply_kind(bt_share_t *share, const bt_share_kind_t *kind)
{
    bt_list_t *it, *tmp;

    bt_list_each (&share->rows, it, tmp) {
        bt_share_row_t *row = bt_container_of(it, bt_share_row_t, link);
        if (row->kind == kind)
            kind->apply(share, row);
    }
}

/* The registry publishes as it changes, which comes back here as set_fleet: must_apply is then set again for nothing. */
void bt_share_rows_apply(bt_share_t *share)
{
    if (share->fleet == NULL)
        return;
    apply_kind(share, &bt_share_kind_worker);
    apply_kind(share, &bt_share_kind_drain);
    share->must_apply = false;
}

/* Workers may not be added or removed in here: the registry is about to publish. */
void bt_share_rows_on_fleet(bt_share_t *share)
{
    share->must_apply = true; /* a reload takes out what the configuration does not name */
    apply_kind(share, &bt_share_kind_drain);
}

void bt_share_rows_fini(bt_share_t *share)
{
    bt_list_t *it, *tmp;

    bt_list_each (&share->rows, it, tmp)
        free_row(bt_container_of(it, bt_share_row_t, link));
}
