/* Rows of workers that some replica's API has added or removed: "worker":{..}, or "removed":true for a day.
 *
 * Only what has come by a row is ever taken out because of a row: the configuration's own workers are each replica's own. A row whose worker the
 * configuration has already changes nothing.
 */
#include "share/rows.h"

#include "base/json.h"
#include "base/log.h"

/* ---- told by our own API ---- */

void bt_share_worker_added(bt_share_t *share, const char *pool, const bt_worker_t *w)
{
    bt_share_row_t *row = bt_share_row_or_add(share, &bt_share_kind_worker, pool, w);
    bt_worker_spec_t copy;

    if (row == NULL || bt_worker_spec_copy(&copy, &w->spec) < 0) {
        bt_log_warn("share", "worker %s is not told to the other replicas: name it shorter",
                    w->spec.url);
        return;
    }
    bt_worker_spec_fini(&row->spec);
    row->spec = copy;
    row->is_removed = row->is_refused = false;
    row->is_ours = true;
    bt_share_row_tell(share, row);
    bt_share_drain_lift(share, pool, w);
}

void bt_share_worker_removed(bt_share_t *share, const char *pool, const bt_worker_t *w)
{
    bt_share_row_t *row = bt_share_row_or_add(share, &bt_share_kind_worker, pool, w);

    if (row == NULL)
        return;
    row->is_removed = true;
    row->is_ours = row->is_refused = false;
    bt_share_row_tell(share, row);
    bt_share_drain_end(share, pool, w);
}

/* ---- the kind ---- */

static bool read_members(bt_share_row_t *row, bt_str_t value)
{
    bt_json_item_t removed, worker;
    bt_worker_spec_t spec;

    if (bt_json_get(value, BT_STR("removed"), &removed) < 0 ||
        bt_json_get(value, BT_STR("worker"), &worker) < 0 ||
        (removed.type != BT_JSON_TRUE && worker.type != BT_JSON_OBJECT))
        return false;
    bt_worker_spec_init(&spec);
    if (removed.type != BT_JSON_TRUE && bt_share_spec_read(&spec, worker.value) < 0) {
        bt_worker_spec_fini(&spec);
        return false;
    }
    bt_worker_spec_fini(&row->spec);
    row->spec = spec;
    row->is_removed = removed.type == BT_JSON_TRUE;
    row->is_refused = false;
    return true;
}

static void write_members(bt_text_t *out, const bt_share_row_t *row)
{
    if (row->is_removed) {
        bt_text_puts(out, ",\"removed\":true");
    } else {
        bt_text_puts(out, ",\"worker\":");
        bt_share_spec_put(out, &row->spec);
    }
}

static bool is_lasting(const bt_share_row_t *row)
{
    return !row->is_removed;
}

static bool undo(bt_share_row_t *row)
{
    row->is_removed = true;
    return row->is_ours;
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
    bt_worker_t *w = bt_share_row_worker(share, row, &has_pool);

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

const bt_share_kind_t bt_share_kind_worker = {.suffix = "",
                                              .read = read_members,
                                              .write = write_members,
                                              .is_lasting = is_lasting,
                                              .undo = undo,
                                              .apply = apply};

unsigned bt_share_workers_count(const bt_share_t *share)
{
    const bt_list_t *it;
    unsigned count = 0;

    for (it = share->rows.next; it != &share->rows; it = it->next) {
        const bt_share_row_t *row = bt_container_of(it, bt_share_row_t, link);
        count += row->kind == &bt_share_kind_worker && !row->is_removed;
    }
    return count;
}
