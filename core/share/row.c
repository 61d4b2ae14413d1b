/* The rows that are known, in an array by field: a table is read once a second, and each row of it is looked for here. Rows come and go one at a time, which
 * moves those behind. */
#include "share/rows.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

/* Where the field is, or would be. */
static unsigned index_of(const bt_share_t *share, bt_str_t field)
{
    unsigned low = 0, high = share->row_count;

    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        if (bt_share_order(bt_str(share->rows[middle]->field), field) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bt_share_row_t *bt_share_row_find(const bt_share_t *share, bt_str_t field)
{
    const unsigned at = index_of(share, field);

    return at < share->row_count && bt_str_eq(bt_str(share->rows[at]->field), field)
               ? share->rows[at]
               : NULL;
}

void bt_share_row_free(bt_share_row_t *row)
{
    bt_worker_spec_fini(&row->spec);
    free(row->field);
    free(row->pool);
    free(row->value);
    free(row);
}

static bool has_room(bt_share_t *share)
{
    const unsigned room = share->row_room > 0 ? 2 * share->row_room : 16;
    bt_share_row_t **rows;

    if (share->row_count < share->row_room)
        return true;
    rows = realloc(share->rows, room * sizeof(bt_share_row_t *));
    if (rows == NULL)
        return false;
    share->rows = rows;
    share->row_room = room;
    return true;
}

bt_share_row_t *bt_share_row_add(bt_share_t *share, const bt_share_kind_t *kind, bt_str_t field,
                                 const char *pool)
{
    bt_share_row_t *row = has_room(share) ? calloc(1, sizeof(*row)) : NULL;
    const unsigned at = index_of(share, field);

    if (row == NULL)
        return NULL;
    bt_worker_spec_init(&row->spec);
    row->kind = kind;
    row->field = bt_str_dup(field);
    row->pool = bt_str_dup(bt_str(pool));
    if (row->field == NULL || row->pool == NULL) {
        bt_share_row_free(row);
        return NULL;
    }
    memmove(share->rows + at + 1, share->rows + at,
            (share->row_count++ - at) * sizeof(bt_share_row_t *));
    return share->rows[at] = row;
}

void bt_share_row_forget(bt_share_t *share, bt_share_row_t *row)
{
    const unsigned at = index_of(share, bt_str(row->field));

    memmove(share->rows + at, share->rows + at + 1,
            (--share->row_count - at) * sizeof(bt_share_row_t *));
    bt_share_row_free(row);
}

bt_share_row_t *bt_share_row_or_add(bt_share_t *share, const bt_share_kind_t *kind,
                                    const char *pool, const bt_worker_t *w)
{
    char field[BT_SHARE_NAMED_MAX + 1];
    const bt_url_t at = bt_share_url(w);
    bt_share_row_t *row;

    if (!bt_share_field(pool, &at, kind->suffix, field)) {
        bt_log_warn("share", "worker %s: " BT_SHARE_TOO_LONG, w->spec.url);
        return NULL;
    }
    row = bt_share_row_find(share, bt_str(field));
    return row != NULL ? row : bt_share_row_add(share, kind, bt_str(field), pool);
}

bt_str_t bt_share_row_field(const bt_share_row_t *row)
{
    return (bt_str_t){row->field, strlen(row->field) - strlen(row->kind->suffix)};
}

bt_share_row_t *bt_share_row_beside(const bt_share_t *share, const bt_share_row_t *row,
                                    const bt_share_kind_t *kind)
{
    char field[BT_SHARE_NAMED_MAX + 1];
    const int n =
        snprintf(field, sizeof(field), "%.*s%s", BT_STR_ARG(bt_share_row_field(row)), kind->suffix);

    return n > 0 && n < (int) sizeof(field) ? bt_share_row_find(share, bt_str(field)) : NULL;
}

bt_worker_t *bt_share_row_worker(const bt_share_t *share, const bt_share_row_t *row)
{
    return bt_share_spot(share, bt_share_row_field(row));
}
