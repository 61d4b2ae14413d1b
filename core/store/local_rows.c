/* local_rows.c - the local store's tables and logs: what answers with rows. Their bytes lie one after the other in the answer's text, and pointers into it are set
 * when it is complete, since it moves while it grows. */
#include "store/local_work.h"

#include "base/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- tables ---- */
int bt_local_do_table_put(bt_local_work_t *w)
{
    const bt_store_op_t *op = w->op;
    bt_local_item_t *item;
    int rc = bt_local_want(w, BT_LOCAL_TABLE, true);

    if (rc != 0)
        return rc;
    rc = bt_local_item_new(w->map, op->field, op->value, &item);
    if (rc != 0)
        return bt_local_full(w, rc);
    item->until_ms = bt_local_end_of(w, bt_store_ttl_ms(op));
    rc = bt_local_table_put(w->map, w->entry, item);
    if (rc != 0) {
        bt_local_item_free(w->map, item);
        return bt_local_full(w, rc);
    }
    return 0;
}

void bt_local_do_table_drop(bt_local_work_t *w)
{
    unsigned at;

    if (bt_local_want(w, BT_LOCAL_TABLE, false) != 0 || w->entry == NULL)
        return;
    bt_local_table_sweep(w->map, w->entry, w->now_ms);
    if (bt_local_table_find(w->entry, w->op->field, &at) == NULL)
        return;
    bt_local_table_drop(w->map, w->entry, at);
    w->answer->reply.number = 1;
}

/* Room for rows, whose bytes are added after it: the text may move until the last of them is in. */
static int want_rows(bt_local_work_t *w, unsigned count)
{
    bt_store_answer_t *answer = w->answer;

    if (count <= answer->row_cap)
        return 0;
    bt_store_row_t *rows = realloc(answer->rows, count * sizeof(*rows));
    if (rows == NULL)
        return bt_local_full(w, BT_E_NOMEM);
    answer->rows = rows;
    answer->row_cap = count;
    return 0;
}

/* Lengths first, pointers when the text is complete (point_rows). */
static void add_row(bt_local_work_t *w, bt_str_t name, bt_str_t value)
{
    bt_store_row_t *row = &w->answer->rows[w->answer->reply.row_count++];

    bt_local_put_text(w, name);
    bt_local_put_text(w, value);
    row->name.n = name.n;
    row->value.n = value.n;
}

static void point_rows(bt_local_work_t *w, size_t at)
{
    bt_store_answer_t *answer = w->answer;

    for (unsigned i = 0; i < answer->reply.row_count; i++) {
        bt_store_row_t *row = &answer->rows[i];
        row->name.p = answer->bytes.data + at;
        row->value.p = row->name.p + row->name.n;
        at += row->name.n + row->value.n;
    }
    answer->reply.rows = answer->rows;
}

void bt_local_do_table_all(bt_local_work_t *w)
{
    if (bt_local_want(w, BT_LOCAL_TABLE, false) != 0 || w->entry == NULL)
        return;
    bt_local_table_sweep(w->map, w->entry, w->now_ms);
    if (want_rows(w, w->entry->count) != 0)
        return;
    for (unsigned i = 0; i < w->entry->count; i++)
        add_row(w, bt_local_item_name(w->entry->items[i]), bt_local_item_value(w->entry->items[i]));
    point_rows(w, 0);
}

/* ---- logs: an entry's position is "epoch-number"; numbers have no gaps, an epoch is one life of the key ---- */
static void put_position(bt_local_work_t *w, uint64_t number)
{
    bt_text_printf(&w->answer->bytes, "%" PRIu64 "-%" PRIu64,
                   w->entry != NULL ? w->entry->number : 0, number);
}

void bt_local_do_log_add(bt_local_work_t *w)
{
    bt_local_item_t *item;
    bool is_new = w->entry == NULL;

    if (bt_local_want(w, BT_LOCAL_LOG, true) != 0)
        return;
    if (is_new) {
        w->entry->number = bt_local_next_fence(w);
        w->entry->used = 1;
    }
    int rc = bt_local_item_new(w->map, BT_STR_NULL, w->op->value, &item);
    if (rc == 0) {
        rc = bt_local_log_add(w->map, w->entry, item, (uint64_t) w->op->limit);
        if (rc != 0)
            bt_local_item_free(w->map, item);
    }
    if (rc != 0) {
        bt_local_full(w, rc);
        return;
    }
    put_position(w, w->entry->used + w->entry->count - 1);
}

/* The number of the first entry that the reader has not seen. */
static uint64_t log_from(bt_local_work_t *w)
{
    const bt_local_entry_t *log = w->entry;
    uint64_t epoch = 0, number = 0, oldest = log->used, next = oldest + log->count;

    if (bt_str_eq(w->op->field, BT_STR("0")))
        return oldest;
    bt_store_position_parse(w->op->field, &epoch, &number);
    if (epoch == 0 && number == 0) {
        w->answer->reply.is_gap = oldest > 1;
        return oldest;
    }
    w->answer->reply.is_gap = epoch != log->number || number + 1 < oldest || number >= next;
    return w->answer->reply.is_gap ? oldest : number + 1;
}

static void log_rows(bt_local_work_t *w)
{
    const bt_local_entry_t *log = w->entry;
    uint64_t from = log_from(w), next = log->used + log->count;
    uint64_t most = w->op->limit < BT_STORE_ROWS_MAX ? (uint64_t) w->op->limit : BT_STORE_ROWS_MAX;
    uint64_t count = next - from < most ? next - from : most;
    char position[48];

    if (want_rows(w, (unsigned) count) != 0)
        return;
    put_position(w, from + count - 1);
    size_t at = w->answer->bytes.len;
    for (uint64_t i = from; i < from + count; i++) {
        int n = snprintf(position, sizeof(position), "%" PRIu64 "-%" PRIu64, log->number, i);
        add_row(w, (bt_str_t){position, (size_t) n},
                bt_local_item_value(bt_local_log_at(log, (unsigned) (i - log->used))));
    }
    point_rows(w, at);
    w->answer->reply.text.n = at;
}

void bt_local_do_log_read(bt_local_work_t *w)
{
    if (bt_local_want(w, BT_LOCAL_LOG, false) != 0)
        return;
    if (w->entry == NULL) {
        w->answer->reply.is_gap = w->op->field.n > 0 && !bt_str_eq(w->op->field, BT_STR("0")) &&
                                  !bt_str_eq(w->op->field, BT_STR("0-0"));
        bt_local_put_text(w, BT_STR("0-0"));
    } else if (w->op->field.n == 0) {
        put_position(w, w->entry->used + w->entry->count - 1);
    } else {
        log_rows(w);
    }
}
