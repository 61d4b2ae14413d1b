/* The rows that are known, in an array by field: a table is read once a second, and each row of it is looked for here. Rows come and go one at a time, which
 * moves those behind. */
#include "fleet/rows.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

/* Where the field is, or would be. */
static unsigned index_of(const bt_fleet_t *fleet, bt_str_t field)
{
    unsigned low = 0, high = fleet->row_count;

    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (bt_fleet_order(bt_str(fleet->rows[middle]->field), field) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bt_fleet_row_t *bt_fleet_row_find(const bt_fleet_t *fleet, bt_str_t field)
{
    const unsigned at = index_of(fleet, field);

    return at < fleet->row_count && bt_str_eq(bt_str(fleet->rows[at]->field), field)
               ? fleet->rows[at]
               : NULL;
}

void bt_fleet_row_free(bt_fleet_row_t *row)
{
    bt_worker_spec_fini(&row->spec);
    free(row->field);
    free(row->pool);
    free(row->value);
    free(row);
}

static bool has_room(bt_fleet_t *fleet)
{
    const unsigned room = fleet->row_room > 0 ? 2 * fleet->row_room : 16;
    bt_fleet_row_t **rows;

    if (fleet->row_count < fleet->row_room)
        return true;
    rows = realloc(fleet->rows, room * sizeof(bt_fleet_row_t *));
    if (rows == NULL)
        return false;
    fleet->rows = rows;
    fleet->row_room = room;
    return true;
}

bt_fleet_row_t *bt_fleet_row_add(bt_fleet_t *fleet, const bt_fleet_kind_t *kind, bt_str_t field,
                                 const char *pool)
{
    bt_fleet_row_t *row = has_room(fleet) ? calloc(1, sizeof(*row)) : NULL;
    const unsigned at = index_of(fleet, field);

    if (row == NULL)
        return NULL;
    bt_worker_spec_init(&row->spec);
    row->kind = kind;
    row->role = BT_FLEET_ROLE_AS_SAID;
    row->field = bt_str_dup(field);
    row->pool = bt_str_dup(bt_str(pool));
    if (row->field == NULL || row->pool == NULL) {
        bt_fleet_row_free(row);
        return NULL;
    }
    memmove(fleet->rows + at + 1, fleet->rows + at,
            (fleet->row_count++ - at) * sizeof(bt_fleet_row_t *));
    return fleet->rows[at] = row;
}

void bt_fleet_row_forget(bt_fleet_t *fleet, bt_fleet_row_t *row)
{
    const unsigned at = index_of(fleet, bt_str(row->field));

    memmove(fleet->rows + at, fleet->rows + at + 1,
            (--fleet->row_count - at) * sizeof(bt_fleet_row_t *));
    bt_fleet_row_free(row);
}

bt_fleet_row_t *bt_fleet_row_or_add(bt_fleet_t *fleet, const bt_fleet_kind_t *kind,
                                    const char *pool, const bt_worker_t *w)
{
    char field[BT_FLEET_NAMED_MAX + 1];
    const bt_url_t at = bt_fleet_url(w);
    bt_fleet_row_t *row;

    if (!bt_fleet_field(pool, &at, kind->suffix, field)) {
        bt_log_warn("fleet", "worker %s: " BT_FLEET_TOO_LONG, w->spec.url);
        return NULL;
    }
    row = bt_fleet_row_find(fleet, bt_str(field));
    return row != NULL ? row : bt_fleet_row_add(fleet, kind, bt_str(field), pool);
}

bt_str_t bt_fleet_row_field(const bt_fleet_row_t *row)
{
    return (bt_str_t){row->field, strlen(row->field) - strlen(row->kind->suffix)};
}

bt_fleet_row_t *bt_fleet_row_beside(const bt_fleet_t *fleet, const bt_fleet_row_t *row,
                                    const bt_fleet_kind_t *kind)
{
    char field[BT_FLEET_NAMED_MAX + 1];
    const int n =
        snprintf(field, sizeof(field), "%.*s%s", BT_STR_ARG(bt_fleet_row_field(row)), kind->suffix);

    return n > 0 && n < (int) sizeof(field) ? bt_fleet_row_find(fleet, bt_str(field)) : NULL;
}

bt_worker_t *bt_fleet_row_worker(const bt_fleet_t *fleet, const bt_fleet_row_t *row)
{
    return bt_worker_field(fleet, bt_fleet_row_field(row));
}
