/* The wall clock's time of an entry is worked out from now: one that was set meanwhile does not put entries out of order. */
#include "admin/status/flight.h"

#include "admin/call/query.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"

#include <inttypes.h>
#include <stdlib.h>

#define SECS_MAX 86400

typedef struct row {
    bt_flight_event_t event;
    unsigned ring;
} row_t;

typedef struct rows {
    row_t *items;
    size_t count;
} rows_t;

static void take_ring(rows_t *rows, unsigned ring, uint64_t since_us)
{
    const uint64_t last = bt_flight_last(ring);

    for (uint64_t number = bt_flight_first(last); number <= last; number++) {
        row_t *row = &rows->items[rows->count];
        if (!bt_flight_read(ring, number, &row->event) || row->event.last_us < since_us)
            continue;
        row->ring = ring;
        rows->count++;
    }
}

static int compare(const void *a, const void *b)
{
    const row_t *x = a, *y = b;

    return x->event.at_us != y->event.at_us ? (x->event.at_us > y->event.at_us) * 2 - 1
                                            : (x->ring > y->ring) - (x->ring < y->ring);
}

static void put_row(bt_text_t *out, const row_t *row, uint64_t now_us, uint64_t wall_us)
{
    const bt_flight_event_t *e = &row->event;
    const uint64_t ago_us = now_us > e->at_us ? now_us - e->at_us : 0;
    char time[32];

    bt_clock_iso8601((wall_us - ago_us) / 1000, time, sizeof time);
    bt_text_printf(out, "{\"time\":\"%s\",\"monotonic_us\":%" PRIu64 ",\"loop\":", time, e->at_us);
    if (row->ring == bt_flight_rings() - 1)
        bt_text_puts(out, "\"control\"");
    else
        bt_text_printf(out, "%u", row->ring);
    bt_text_printf(out, ",\"kind\":\"%s\",\"detail\":", bt_flight_kind_name(e->kind));
    bt_text_json_str(out, bt_str(e->detail));
    if (e->us != 0)
        bt_text_printf(out, ",\"us\":%" PRIu64, e->us);
    if (e->cpu_us != BT_FLIGHT_CPU_UNKNOWN)
        bt_text_printf(out, ",\"cpu_us\":%" PRIu64, e->cpu_us);
    if (e->count > 1)
        bt_text_printf(out, ",\"times\":%" PRIu32 ",\"last_monotonic_us\":%" PRIu64, e->count,
                       e->last_us);
    bt_text_puts(out, "}");
}

static bool read_secs(bt_str_t query, uint64_t *secs_p)
{
    bt_str_t name, value;

    while (bt_query_next(&query, &name, &value))
        if (!bt_str_eq(name, BT_STR("secs")) || bt_str_u64(value, secs_p) < 0 || *secs_p == 0 ||
            *secs_p > SECS_MAX)
            return false;
    return true;
}

void bt_admin_flight(const bt_admin_call_t *c)
{
    const uint64_t now_us = bt_clock_us(), wall_us = bt_clock_wall_us();
    const unsigned rings = bt_flight_rings();
    bt_text_t *out = &c->reply->body;
    rows_t rows = {.count = 0};
    uint64_t secs = SECS_MAX;
    char time[32];

    if (!read_secs(c->request->query, &secs)) {
        bt_reply_error(c->reply, 400, "?secs=N, with N from 1 to %d, is all that this takes",
                       SECS_MAX);
        return;
    }
    rows.items = calloc((size_t) rings * BT_FLIGHT_ENTRIES + 1, sizeof *rows.items);
    if (rows.items == NULL) {
        bt_reply_error(c->reply, 503, "%s", bt_err_text(BT_E_NOMEM));
        return;
    }
    for (unsigned ring = 0; ring < rings; ring++)
        take_ring(&rows, ring, now_us > secs * 1000000 ? now_us - secs * 1000000 : 0);
    qsort(rows.items, rows.count, sizeof *rows.items, compare);
    bt_clock_iso8601(wall_us / 1000, time, sizeof time);
    bt_text_printf(out, "{\"time\":\"%s\",\"monotonic_us\":%" PRIu64 ",\"events\":[", time, now_us);
    for (size_t i = 0; i < rows.count; i++) {
        bt_text_puts(out, i == 0 ? "\n" : ",\n");
        put_row(out, &rows.items[i], now_us, wall_us);
    }
    bt_text_puts(out, "]}\n");
    free(rows.items);
}
