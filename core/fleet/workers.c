/* Rows of workers that some replica's API has added or removed: "worker":{..}, or "removed":true for a day.
 *
 * Only what has come by a row is ever taken out because of a row: the configuration's own workers are each replica's own. A row whose worker the
 * configuration has already changes nothing.
 */
#include "fleet/rows.h"

#include "base/json.h"
#include "base/log.h"

/* ---- told by our own API ---- */

const char *bt_fleet_worker_added(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w)
{
    bt_fleet_row_t *row = bt_fleet_row_or_add(fleet, &bt_fleet_kind_worker, pool, w);
    bt_worker_spec_t copy;
    const char *why;

    if (row == NULL || bt_worker_spec_copy(&copy, &w->spec) < 0)
        return BT_FLEET_TOO_LONG;
    bt_worker_spec_fini(&row->spec);
    row->spec = copy;
    row->is_removed = row->is_refused = false;
    row->is_ours = true;
    why = bt_fleet_row_send(fleet, row);
    bt_fleet_drain_outdate(fleet, row);
    bt_fleet_role_outdate(fleet, row);
    return why;
}

const char *bt_fleet_worker_removed(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w)
{
    bt_fleet_row_t *row = bt_fleet_row_or_add(fleet, &bt_fleet_kind_worker, pool, w);
    const char *why;

    if (row == NULL)
        return BT_FLEET_TOO_LONG;
    row->is_removed = true;
    row->is_ours = row->is_refused = false;
    why = bt_fleet_row_send(fleet, row);
    bt_fleet_drain_outdate(fleet, row);
    bt_fleet_role_outdate(fleet, row);
    return why;
}

/* ---- the kind ---- */

/* A worker of another field would be added, and never found again. */
static bool is_of(const bt_fleet_row_t *row, const bt_worker_spec_t *spec)
{
    char field[BT_FLEET_NAMED_MAX + 1], ignored[160];
    bool is_same;
    bt_url_t at;

    if (bt_url_parse(&at, bt_str(spec->url), ignored, sizeof(ignored)) < 0)
        return false;
    at.rank = spec->dp_rank >= 0 ? spec->dp_rank : at.rank;
    is_same =
        bt_fleet_field(row->pool, &at, row->kind->suffix, field) && strcmp(field, row->field) == 0;
    bt_url_fini(&at);
    return is_same;
}

static bool read_members(bt_fleet_row_t *row, bt_str_t value)
{
    bt_json_item_t removed, worker;
    bt_worker_spec_t spec;

    if (bt_json_get(value, BT_STR("removed"), &removed) < 0 ||
        bt_json_get(value, BT_STR("worker"), &worker) < 0 ||
        (removed.type != BT_JSON_TRUE && worker.type != BT_JSON_OBJECT))
        return false;
    bt_worker_spec_init(&spec);
    if (removed.type != BT_JSON_TRUE &&
        (bt_fleet_spec_read(&spec, worker.value) < 0 || !is_of(row, &spec))) {
        bt_worker_spec_fini(&spec);
        return false;
    }
    bt_worker_spec_fini(&row->spec);
    row->spec = spec;
    row->is_removed = removed.type == BT_JSON_TRUE;
    row->is_refused = false;
    return true;
}

static void write_members(bt_text_t *out, const bt_fleet_row_t *row)
{
    if (row->is_removed) {
        bt_text_puts(out, ",\"removed\":true");
    } else {
        bt_text_puts(out, ",\"worker\":");
        bt_fleet_spec_put(out, &row->spec);
    }
}

static bool is_lasting(const bt_fleet_row_t *row)
{
    return !row->is_removed;
}

static bool undo(bt_fleet_row_t *row)
{
    row->is_removed = true;
    return row->is_ours;
}

/* Its name may be taken here: names are each replica's own. */
static void add_worker(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    char err[256] = "";
    int rc = bt_registry_add(fleet->registry, row->pool, &row->spec, err, sizeof(err));

    if (rc < 0 && row->spec.name != NULL) {
        char *name = row->spec.name;
        row->spec.name = NULL;
        rc = bt_registry_add(fleet->registry, row->pool, &row->spec, err, sizeof(err));
        row->spec.name = name;
    }
    row->is_ours = rc == 0;
    row->is_refused = rc < 0;
    if (rc == 0)
        bt_log_info("fleet", "worker %s of pool %s was added by another replica", row->spec.url,
                    row->pool);
    else
        bt_log_warn("fleet", "worker %s, which another replica has added, is not taken: %s",
                    row->spec.url, err);
}

static void remove_worker(bt_fleet_t *fleet, bt_fleet_row_t *row, bt_worker_t *w)
{
    bt_worker_ref(w);
    if (bt_registry_unname(fleet->registry, bt_str(w->name), BT_NAMED_API) == 0)
        bt_log_info("fleet", "worker %s of pool %s was removed by another replica", w->name,
                    row->pool);
    bt_worker_unref(w);
    row->is_ours = false;
}

static bool has_pool(const bt_workers_t *workers, const char *name)
{
    for (unsigned i = 0; i < workers->pool_count; i++)
        if (strcmp(workers->pools[i].spec.name, name) == 0)
            return true;
    return false;
}

static bool apply(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    bt_worker_t *w = bt_fleet_row_worker(fleet, row);
    const bool is_ours = row->is_ours;

    if (row->is_removed) {
        if (is_ours && w != NULL)
            remove_worker(fleet, row, w);
        row->is_ours = false;
        return is_ours && w != NULL;
    }
    if (w != NULL || row->is_refused)
        return false;
    if (has_pool(fleet->workers, row->pool)) {
        add_worker(fleet, row);
        return row->is_ours;
    }
    row->is_refused = true;
    bt_log_warn("fleet",
                "worker %s, which another replica has added, is not taken: there is "
                "no pool %s here",
                row->spec.url, row->pool);
    return false;
}

const bt_fleet_kind_t bt_fleet_kind_worker = {.suffix = "",
                                              .read = read_members,
                                              .write = write_members,
                                              .is_lasting = is_lasting,
                                              .undo = undo,
                                              .apply = apply};

unsigned bt_fleet_workers_count(const bt_fleet_t *fleet)
{
    unsigned count = 0;

    for (unsigned i = 0; i < fleet->row_count; i++)
        count += fleet->rows[i]->kind == &bt_fleet_kind_worker && !fleet->rows[i]->is_removed;
    return count;
}
