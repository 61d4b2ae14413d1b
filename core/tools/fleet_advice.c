/* Which role holds each pool up, a row a pool. */
#include "tools/fleet.h"

#include "base/json.h"

#include <stdio.h>

/* "1 : 3", or nothing where the gateway advises nothing. */
static void put_split(bt_text_t *table, bt_str_t pool, const char *member)
{
    const bt_str_t split = fleet_get_raw(pool, member);
    char text[64] = "";

    if (split.n > 0)
        snprintf(text, sizeof text, "%llu : %llu",
                 (unsigned long long) fleet_get_number(split, "prefill"),
                 (unsigned long long) fleet_get_number(split, "decode"));
    fleet_cell(table, text, false);
}

static void put_used(bt_text_t *table, bt_str_t pool, const char *role)
{
    char text[64];

    fleet_get(fleet_get_raw(pool, role), "used", text, sizeof text);
    fleet_cell(table, text, false);
}

static void put_pool(bt_text_t *table, bt_str_t pool)
{
    static const char *const members[] = {"bottleneck", "confidence", "why"};
    char text[256];

    fleet_get(pool, "pool", text, sizeof text);
    fleet_cell(table, text, false);
    put_split(table, pool, "current");
    put_split(table, pool, "advised");
    put_used(table, pool, "prefill");
    put_used(table, pool, "decode");
    for (unsigned i = 0; i < 3; i++) {
        fleet_get(pool, members[i], text, sizeof text);
        fleet_cell(table, text, i == 2);
    }
}

static void print_advice(bt_str_t told)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t table;

    bt_text_init(&table);
    bt_text_puts(&table, "POOL\tP : D\tADVISED\tPREFILL USED\tDECODE USED\tBOTTLENECK\t"
                         "CONFIDENCE\tWHY\n");
    if (bt_json_array(&c, fleet_get_raw(told, "pools")) == 0)
        while (bt_json_next(&c, &item) > 0)
            put_pool(&table, item.value);
    fleet_print_table(&table);
    bt_text_fini(&table);
}

int fleet_advice(const fleet_tool_t *t)
{
    if (t->count > 0)
        return fleet_refuse("advice: takes no arguments");
    return fleet_list(t, "advice", "/admin/advice", print_advice);
}
