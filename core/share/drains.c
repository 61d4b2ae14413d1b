/* Rows of workers that an operator has drained, whoever has added them: "draining":true for ever, false for a day.
 *
 *      drained, undrained by any replica's API -> true, false: each replica's worker of that address follows, now and whenever it appears
 *      removed by the API                      -> null for a day: the word has ended. A replica that still has the worker (its configuration's own) keeps it as it
 *                                                 is, for an operator who drains before he removes does not want it to serve there again; where it is added
 *                                                 again it serves, as with one gateway
 *      added by the API                        -> false, where it was true
 *      taken out of the table                  -> as undrained
 */
#include "share/rows.h"

#include "base/json.h"
#include "base/log.h"

static bool read_members(bt_share_row_t *row, bt_str_t value)
{
    bt_json_item_t draining;

    if (bt_json_get(value, BT_STR("draining"), &draining) < 0 ||
        (draining.type != BT_JSON_TRUE && draining.type != BT_JSON_FALSE &&
         draining.type != BT_JSON_NULL))
        return false;
    row->drain = draining.type == BT_JSON_TRUE    ? BT_SHARE_DRAINING
                 : draining.type == BT_JSON_FALSE ? BT_SHARE_SERVING
                                                  : BT_SHARE_AS_IT_IS;
    return true;
}

static void write_members(bt_text_t *out, const bt_share_row_t *row)
{
    static const char *const words[] = {"null", "false", "true"};

    bt_text_printf(out, ",\"draining\":%s", words[row->drain]);
}

static bool is_lasting(const bt_share_row_t *row)
{
    return row->drain == BT_SHARE_DRAINING;
}

static bool undo(bt_share_row_t *row)
{
    bool is_drained = row->drain == BT_SHARE_DRAINING;

    row->drain = BT_SHARE_SERVING;
    return is_drained;
}

static void apply(bt_share_t *share, bt_share_row_t *row)
{
    const bool is_drained = row->drain == BT_SHARE_DRAINING;
    bool has_pool;
    const bt_worker_t *w = bt_share_row_worker(share, row, &has_pool);

    if (w != NULL && row->drain != BT_SHARE_AS_IT_IS && atomic_load(&w->draining) != is_drained)
        (void) bt_registry_drain(share->registry, bt_str(w->name), is_drained);
}

const bt_share_kind_t bt_share_kind_drain = {.suffix = " drain",
                                             .read = read_members,
                                             .write = write_members,
                                             .is_lasting = is_lasting,
                                             .undo = undo,
                                             .apply = apply};

void bt_share_worker_drained(bt_share_t *share, const char *pool, const bt_worker_t *w,
                             bool draining)
{
    bt_share_row_t *row = bt_share_row_or_add(share, &bt_share_kind_drain, pool, w);

    if (row == NULL) {
        bt_log_warn("share", "that worker %s %s is not told to the other replicas: name it shorter",
                    w->spec.url, draining ? "drains" : "takes requests again");
        return;
    }
    row->drain = draining ? BT_SHARE_DRAINING : BT_SHARE_SERVING;
    bt_share_row_tell(share, row);
}

/* Only where it is drained: a row for every worker that is added would say nothing. */
static void say_otherwise(bt_share_t *share, const char *pool, const bt_worker_t *w,
                          enum bt_share_drain drain)
{
    bt_share_row_t *row = bt_share_row(share, &bt_share_kind_drain, pool, w);

    if (row == NULL || row->drain != BT_SHARE_DRAINING)
        return;
    row->drain = drain;
    bt_share_row_tell(share, row);
    apply(share, row);
}

void bt_share_drain_lift(bt_share_t *share, const char *pool, const bt_worker_t *w)
{
    say_otherwise(share, pool, w, BT_SHARE_SERVING);
}

void bt_share_drain_end(bt_share_t *share, const char *pool, const bt_worker_t *w)
{
    say_otherwise(share, pool, w, BT_SHARE_AS_IT_IS);
}
