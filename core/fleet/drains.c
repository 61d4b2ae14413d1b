/* Rows of workers that an operator has drained, whoever has added them: "draining":true until somebody ends it, whether there is such a worker or not; false
 * for a day.
 *
 *      drained, undrained by any replica's API -> true, false: each replica's worker of that address follows, now and whenever it appears
 *      removed by the API                      -> null for a day: the word has ended. A replica that still has the worker (its configuration's own) keeps it as it
 *                                                 is, for an operator who drains before he removes does not want it to serve there again; where it is added
 *                                                 again it serves, as with one gateway
 *      added by the API                        -> false, where it was true
 *      taken out of the table                  -> as undrained
 *
 * What an add or a removal does to it is told by the stamps of the two rows, for whoever adds or removes may not have read the drain yet.
 */
#include "fleet/rows.h"

#include "base/json.h"
#include "base/log.h"

#include <stdio.h>

static bool read_members(bt_fleet_row_t *row, bt_str_t value)
{
    bt_json_item_t draining;

    if (bt_fleet_row_field(row).n <= strlen(row->pool) + 1) /* no place is named */
        return false;
    if (bt_json_get(value, BT_STR("draining"), &draining) < 0 ||
        (draining.type != BT_JSON_TRUE && draining.type != BT_JSON_FALSE &&
         draining.type != BT_JSON_NULL))
        return false;
    row->drain = draining.type == BT_JSON_TRUE    ? BT_FLEET_DRAINING
                 : draining.type == BT_JSON_FALSE ? BT_FLEET_SERVING
                                                  : BT_FLEET_AS_IT_IS;
    return true;
}

static void write_members(bt_text_t *out, const bt_fleet_row_t *row)
{
    static const char *const words[] = {"null", "false", "true"};

    bt_text_printf(out, ",\"draining\":%s", words[row->drain]);
}

static bool is_lasting(const bt_fleet_row_t *row)
{
    return row->drain == BT_FLEET_DRAINING;
}

static bool undo(bt_fleet_row_t *row)
{
    bool is_drained = row->drain == BT_FLEET_DRAINING;

    row->drain = BT_FLEET_SERVING;
    return is_drained;
}

/* Whoever has added or removed the worker since may not have heard of the drain: every replica ends it by itself, and all write the same. The stamp is the
 * lowest one that counts, so that a drain that was ordered afterwards wins. */
static void end_outdated(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    const bt_fleet_row_t *w;

    if (row->drain != BT_FLEET_DRAINING || !bt_fleet_row_is_outdated(fleet, row, &w))
        return;
    row->drain = w->is_removed ? BT_FLEET_AS_IT_IS : BT_FLEET_SERVING;
    row->stamp = w->stamp + 1;
    bt_fleet_row_put(fleet, row);
}

static bool apply(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    const bt_worker_t *w = bt_fleet_row_worker(fleet, row);
    char at[32];

    end_outdated(fleet, row);
    const bool is_drained = row->drain == BT_FLEET_DRAINING;
    if (w == NULL || row->drain == BT_FLEET_AS_IT_IS || atomic_load(&w->draining) == is_drained)
        return false;
    bt_clock_iso8601(row->stamp, at, sizeof(at));
    if (is_drained)
        bt_log_info("fleet", "worker %s of pool %s: drained by an order of %s to the fleet",
                    w->name, row->pool, at);
    (void) bt_registry_drain(fleet->registry, bt_str(w->name), is_drained);
    return false; /* the same fleet */
}

const bt_fleet_kind_t bt_fleet_kind_drain = {.suffix = " drain",
                                             .read = read_members,
                                             .write = write_members,
                                             .is_lasting = is_lasting,
                                             .undo = undo,
                                             .apply = apply};

const char *bt_fleet_worker_drained(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w,
                                    bool draining)
{
    bt_fleet_row_t *row = bt_fleet_row_or_add(fleet, &bt_fleet_kind_drain, pool, w);

    if (row == NULL)
        return BT_FLEET_TOO_LONG;
    row->drain = draining ? BT_FLEET_DRAINING : BT_FLEET_SERVING;
    return bt_fleet_row_send(fleet, row);
}

void bt_fleet_drain_outdate(bt_fleet_t *fleet, const bt_fleet_row_t *worker_row)
{
    bt_fleet_row_t *row = bt_fleet_row_beside(fleet, worker_row, &bt_fleet_kind_drain);

    if (row != NULL)
        (void) apply(fleet, row);
}

/* ---- whether its worker is here or not ---- */

unsigned bt_fleet_undrain_url(bt_fleet_t *fleet, bt_str_t url, const char **why_p)
{
    char field[BT_FLEET_NAMED_MAX + 1], ignored[160];
    unsigned count = 0;
    bt_url_t at;

    if (bt_url_parse(&at, url, ignored, sizeof(ignored)) < 0)
        return 0;
    for (unsigned i = 0; i < fleet->row_count; i++) {
        bt_fleet_row_t *row = fleet->rows[i];
        if (row->drain != BT_FLEET_DRAINING ||
            !bt_fleet_field(row->pool, &at, row->kind->suffix, field) ||
            strcmp(field, row->field) != 0)
            continue;
        row->drain = BT_FLEET_SERVING;
        *why_p = bt_fleet_row_send(fleet, row);
        (void) apply(fleet, row);
        count++;
    }
    bt_url_fini(&at);
    return count;
}

void bt_fleet_drains_describe(const bt_fleet_t *fleet, bt_text_t *out)
{
    const char *comma = "";

    for (unsigned i = 0; i < fleet->row_count; i++) {
        const bt_fleet_row_t *row = fleet->rows[i];
        if (row->drain != BT_FLEET_DRAINING)
            continue;
        bt_text_puts(out, comma);
        bt_fleet_row_describe(fleet, row, out);
        bt_text_puts(out, "}");
        comma = ",";
    }
}
