/* Table `workers`: a row a worker that some replica's API has added or removed, "<pool> <where it listens>" -> {"stamp":.., "pool":.., "worker":{..}}, or
 * {"stamp":.., "pool":.., "removed":true} for a day. The highest stamp wins everywhere, so order and repetition do not matter.
 *
 *      told here (API) -> row, stamp above all known -> put, and the call `workers`: the others look now instead of within a second
 *      read            -> newer: applied here       older than what is known here: ours is put again
 *      not in the table-> the store was flushed (another @epoch): put again       the same @epoch: it has run out or was taken away, and is forgotten
 *
 * Only what has come by a row is ever taken out because of a row: the configuration's own workers are each replica's own. A row whose worker the
 * configuration has already changes nothing.
 */
#include "share/share_impl.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rand.h"
#include "cluster/url.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REMOVED_MS UINT64_C(86400000)
#define LOOK_EVERY_MS 1000
#define FIELD_MAX 512
#define EPOCH "@epoch"

/* ---- rows ---- */

/* "<pool> <host>:<port><path>@<rank>"; false when the url is none or all is too long. */
static bool field_of(const char *pool, bt_str_t url_text, char field[FIELD_MAX + 1])
{
    char ignored[160];
    bt_url_t url;

    if (bt_url_parse(&url, url_text, ignored, sizeof(ignored)) < 0)
        return false;
    for (char *p = url.host; *p != '\0'; p++)
        *p = (char) (*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    int n = snprintf(field, FIELD_MAX + 1, "%s %s:%u%s@%d", pool, url.host, url.port, url.base_path,
                     url.rank);
    bt_url_fini(&url);
    return n > 0 && n <= FIELD_MAX;
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

static bt_share_row_t *find_or_add(bt_share_t *share, bt_str_t field, const char *pool)
{
    bt_share_row_t *row = find(share, field);

    if (row != NULL || (row = calloc(1, sizeof(*row))) == NULL)
        return row;
    bt_worker_spec_init(&row->spec);
    bt_list_push(&share->rows, &row->link);
    row->field = bt_str_dup(field);
    row->pool = bt_str_dup(bt_str(pool));
    if (row->field != NULL && row->pool != NULL)
        return row;
    free_row(row);
    return NULL;
}

static void write_value(bt_share_t *share, bt_share_row_t *row)
{
    bt_text_t *out = &share->out;

    out->len = 0;
    bt_text_printf(out, "{\"stamp\":%" PRIu64 ",\"pool\":", row->stamp);
    bt_text_json_str(out, bt_str(row->pool));
    if (row->is_removed) {
        bt_text_puts(out, ",\"removed\":true}");
    } else {
        bt_text_puts(out, ",\"worker\":");
        bt_share_spec_put(out, &row->spec);
        bt_text_puts(out, "}");
    }
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
                                             .ttl_ms = row->is_removed ? REMOVED_MS : 0});
}

/* ---- told by our own API ---- */

static void tell(bt_share_t *share, bt_share_row_t *row)
{
    const uint64_t now = bt_clock_wall_ms();

    row->stamp = row->stamp < now ? now : row->stamp + 1;
    row->is_stored = row->is_refused = false;
    write_value(share, row);
    put_row(share, row);
    (void) bt_share_call(share, "workers", BT_STR_NULL);
}

void bt_share_worker_added(bt_share_t *share, const char *pool, const bt_worker_spec_t *spec)
{
    char field[FIELD_MAX + 1];
    bt_worker_spec_t copy;
    bt_share_row_t *row;

    if (!field_of(pool, bt_str(spec->url), field) || bt_worker_spec_copy(&copy, spec) < 0 ||
        (row = find_or_add(share, bt_str(field), pool)) == NULL) {
        bt_log_warn("share", "worker %s is not told to the other replicas: name it shorter",
                    spec->url);
        return;
    }
    bt_worker_spec_fini(&row->spec);
    row->spec = copy;
    row->is_removed = false;
    row->is_ours = true;
    tell(share, row);
}

void bt_share_worker_removed(bt_share_t *share, const char *pool, bt_str_t url)
{
    char field[FIELD_MAX + 1];
    bt_share_row_t *row;

    if (!field_of(pool, url, field) || (row = find_or_add(share, bt_str(field), pool)) == NULL)
        return;
    row->is_removed = true;
    row->is_ours = false;
    tell(share, row);
}

/* ---- read ---- */

/* What one value says; false when it says nothing that can be read. */
struct said {
    uint64_t stamp;
    bool is_removed;
    bt_str_t worker;
    char pool[128];
};

static bool read_value(bt_str_t value, struct said *said)
{
    bt_json_item_t stamp, pool, removed, worker;
    int64_t number;
    long n;

    if (bt_json_get(value, BT_STR("stamp"), &stamp) < 0 || stamp.type != BT_JSON_NUMBER ||
        bt_json_i64(stamp.value, &number) < 0 || number < 0 ||
        bt_json_get(value, BT_STR("pool"), &pool) < 0 || pool.type != BT_JSON_STRING ||
        bt_json_get(value, BT_STR("removed"), &removed) < 0 ||
        bt_json_get(value, BT_STR("worker"), &worker) < 0)
        return false;
    n = bt_json_unescape(pool.value, said->pool, sizeof(said->pool) - 1);
    said->stamp = (uint64_t) number;
    said->is_removed = removed.type == BT_JSON_TRUE;
    said->worker = worker.value;
    if (n < 0)
        return false;
    said->pool[n] = '\0';
    return said->is_removed || worker.type == BT_JSON_OBJECT;
}

static void take_over(bt_share_t *share, bt_share_row_t *row, const struct said *said,
                      bt_str_t value)
{
    bt_worker_spec_t spec;

    bt_worker_spec_init(&spec);
    if (!said->is_removed && bt_share_spec_read(&spec, said->worker) < 0) {
        bt_worker_spec_fini(&spec);
        return;
    }
    bt_worker_spec_fini(&row->spec);
    row->spec = spec;
    row->stamp = said->stamp;
    row->is_removed = said->is_removed;
    row->is_refused = row->must_put = false;
    free(row->value);
    row->value = bt_str_dup(value);
    share->must_apply = true;
}

static void read_row(bt_share_t *share, const bt_store_row_t *stored)
{
    struct said said;
    bt_share_row_t *row;

    if (!read_value(stored->value, &said) ||
        (row = find_or_add(share, stored->name, said.pool)) == NULL)
        return;
    row->is_seen = row->is_stored = true;
    if (said.stamp > row->stamp)
        take_over(share, row, &said, stored->value);
    else
        row->must_put = said.stamp < row->stamp;
}

/* The store holds nothing of this row. */
static void miss_row(bt_share_t *share, bt_share_row_t *row, bool is_same_epoch)
{
    if (!is_same_epoch || !row->is_stored) {
        row->must_put = true;
    } else if (row->is_ours) {
        row->is_removed = true;
        share->must_apply = true;
    } else {
        free_row(row);
    }
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
    share->workers_due = share->epoch[0] == '\0' ? 1 : share->workers_due;
}

void bt_share_workers_look(bt_share_t *share)
{
    share->workers_due = 0;
}

void bt_share_workers_beat(bt_share_t *share)
{
    if (share->must_apply)
        bt_share_workers_apply(share);
    if (share->workers_ask.is_out || share->workers_due-- > 0)
        return;
    share->workers_due = (unsigned) (LOOK_EVERY_MS / share->interval_ms);
    bt_share_ask(share, &share->workers_ask,
                 (bt_store_op_t){.what = BT_STORE_TABLE_ALL, .key = BT_STR("workers")}, on_rows);
}

/* ---- applied ---- */

/* The worker of this row in our fleet, or NULL; *has_pool_p: is there its pool? */
static bt_worker_t *present(const bt_share_t *share, const bt_share_row_t *row, bool *has_pool_p)
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
            if (field_of(row->pool, bt_str(pool->all.items[j]->spec.url), field) &&
                strcmp(field, row->field) == 0)
                return pool->all.items[j];
    }
    return NULL;
}

/* Its name may be taken here: names are each replica's own. */
static void add_worker(bt_share_t *share, bt_share_row_t *row)
{
    char err[256] = "";
    int rc = bt_registry_add(share->registry, row->pool, &row->spec, err, sizeof(err));

    if (rc < 0 && row->spec.name != NULL) {
        char *name = row->spec.name;
        row->spec.name = NULL;
        rc = bt_registry_add(share->registry, row->pool, &row->spec, err, sizeof(err));
        row->spec.name = name;
    }
    row->is_ours = rc == 0;
    row->is_refused = rc < 0;
    if (rc == 0)
        bt_log_info("share", "worker %s of pool %s was added by another replica", row->spec.url,
                    row->pool);
    else
        bt_log_warn("share", "worker %s, which another replica has added, is not taken: %s",
                    row->spec.url, err);
}

static void remove_worker(bt_share_t *share, bt_share_row_t *row, bt_worker_t *w)
{
    bt_worker_ref(w);
    if (bt_registry_remove(share->registry, bt_str(w->name)) == 0)
        bt_log_info("share", "worker %s of pool %s was removed by another replica", w->name,
                    row->pool);
    bt_worker_unref(w);
    row->is_ours = false;
}

static void apply(bt_share_t *share, bt_share_row_t *row)
{
    bool has_pool;
    bt_worker_t *w = present(share, row, &has_pool);

    if (row->is_removed) {
        if (row->is_ours && w != NULL)
            remove_worker(share, row, w);
        row->is_ours = false;
    } else if (w == NULL && !row->is_refused && has_pool) {
        add_worker(share, row);
    } else if (w == NULL && !row->is_refused) {
        row->is_refused = true;
        bt_log_warn("share",
                    "worker %s, which another replica has added, is not taken: there is "
                    "no pool %s here",
                    row->spec.url, row->pool);
    }
}

/* The registry publishes as it changes, which comes back here as set_fleet: must_apply is then set again for nothing. */
void bt_share_workers_apply(bt_share_t *share)
{
    bt_list_t *it, *tmp;

    if (share->fleet == NULL)
        return;
    bt_list_each (&share->rows, it, tmp)
        apply(share, bt_container_of(it, bt_share_row_t, link));
    share->must_apply = false;
}

void bt_share_workers_fini(bt_share_t *share)
{
    bt_list_t *it, *tmp;

    bt_list_each (&share->rows, it, tmp)
        free_row(bt_container_of(it, bt_share_row_t, link));
}

unsigned bt_share_workers_count(const bt_share_t *share)
{
    const bt_list_t *it;
    unsigned count = 0;

    for (it = share->rows.next; it != &share->rows; it = it->next)
        count += !bt_container_of(it, bt_share_row_t, link)->is_removed;
    return count;
}
