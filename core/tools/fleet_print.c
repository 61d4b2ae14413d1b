/* Reading the gateway's JSON, and printing it as people read it. */
#include "tools/fleet.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define COLUMNS_MAX 12

bt_str_t fleet_get_raw(bt_str_t json, const char *key)
{
    bt_json_item_t item;

    if (bt_json_get(json, bt_str(key), &item) < 0 || item.type == BT_JSON_NONE ||
        item.type == BT_JSON_NULL)
        return BT_STR("");
    return item.value;
}

/* Text; of a number its digits. What could steer a terminal is not printed. */
void fleet_get(bt_str_t json, const char *key, char *out, size_t size)
{
    const bt_str_t raw = fleet_get_raw(json, key);
    char *text = malloc(raw.n + 1);
    long n = -1;

    out[0] = '\0';
    if (text == NULL || raw.n == 0) {
        free(text);
        return;
    }
    if (raw.p[0] == '"')
        n = bt_json_unescape(raw, text, raw.n);
    if (n >= 0) {
        text[n] = '\0';
        bt_str_tame(text, (size_t) n);
        bt_str_copy(out, size, text);
    } else if (raw.p[0] != '"') {
        snprintf(out, size, "%.*s", BT_STR_ARG(raw));
    }
    free(text);
}

uint64_t fleet_get_number(bt_str_t json, const char *key)
{
    int64_t value;

    return bt_json_i64(fleet_get_raw(json, key), &value) == 0 && value > 0 ? (uint64_t) value : 0;
}

bool fleet_get_bool(bt_str_t json, const char *key)
{
    return bt_str_eq(fleet_get_raw(json, key), BT_STR("true"));
}

/* ---- tables ---- */

void fleet_cell(bt_text_t *table, const char *text, bool is_last)
{
    bt_text_puts(table, text[0] != '\0' ? text : "-");
    bt_text_puts(table, is_last ? "\n" : "\t");
}

void fleet_cell_number(bt_text_t *table, uint64_t number, bool is_last)
{
    bt_text_printf(table, "%" PRIu64 "%s", number, is_last ? "\n" : "\t");
}

static bool next_cell(bt_str_t *rest, bt_str_t *cell, bool *is_last)
{
    size_t n = 0;

    if (rest->n == 0)
        return false;
    while (n < rest->n && rest->p[n] != '\t' && rest->p[n] != '\n')
        n++;
    *cell = (bt_str_t){rest->p, n};
    *is_last = n == rest->n || rest->p[n] == '\n';
    n += n < rest->n;
    *rest = (bt_str_t){rest->p + n, rest->n - n};
    return true;
}

void fleet_print_table(const bt_text_t *table)
{
    size_t widths[COLUMNS_MAX] = {0};
    bt_str_t rest = bt_text_str(table), cell;
    unsigned column = 0;
    bool is_last;

    while (next_cell(&rest, &cell, &is_last)) {
        if (column < COLUMNS_MAX && cell.n > widths[column])
            widths[column] = cell.n;
        column = is_last ? 0 : column + 1;
    }
    rest = bt_text_str(table);
    column = 0;
    while (next_cell(&rest, &cell, &is_last)) {
        const size_t width = column < COLUMNS_MAX && !is_last ? widths[column] : 0;
        printf("%.*s%*s%s", BT_STR_ARG(cell), width > cell.n ? (int) (width - cell.n) : 0, "",
               is_last ? "\n" : "  ");
        column = is_last ? 0 : column + 1;
    }
}

void fleet_print_time(uint64_t at_ms, char *out, size_t size)
{
    const time_t at = (time_t) (at_ms / 1000);
    struct tm parts;

    out[0] = '\0';
    if (at_ms > 0 && gmtime_r(&at, &parts) != NULL)
        (void) strftime(out, size, "%Y-%m-%d %H:%M:%SZ", &parts);
}

void fleet_print_json(const fleet_reply_t *reply)
{
    fwrite(reply->body.data, 1, reply->body.len, stdout);
    if (reply->body.len == 0 || reply->body.data[reply->body.len - 1] != '\n')
        fputc('\n', stdout);
}

int fleet_list(const fleet_tool_t *t, const char *what, const char *path,
               void (*print)(bt_str_t told))
{
    fleet_reply_t reply;
    int status;

    if (t->count > 1)
        return fleet_refuse("%s: takes no arguments", what);
    status = fleet_ask(t, BT_GET, path, BT_STR(""), t->timeout_ms, &reply);
    if (status == 0 && t->is_json)
        fleet_print_json(&reply);
    else if (status == 0)
        print(bt_text_str(&reply.body));
    fleet_reply_fini(&reply);
    return status == 0 ? bt_tool_flushed() : status;
}
