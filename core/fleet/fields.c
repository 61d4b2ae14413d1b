/* What rows are called: "<pool> <host>:<port><path>@<rank>" and the suffix of their kind. Hosts are compared in any case, so they are written in small letters.
 *
 * The workers of our fleet stand in an array by that (without a suffix), made anew when the fleet changes: rows are matched with workers whenever either
 * change, and there may be thousands of both.
 */
#include "fleet/rows.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

int bt_fleet_order(bt_str_t a, bt_str_t b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    const int by_text = n > 0 ? memcmp(a.p, b.p, n) : 0;

    return by_text != 0 ? by_text : (a.n > b.n) - (a.n < b.n);
}

bool bt_fleet_is_name(bt_str_t text)
{
    char tamed[BT_FLEET_NAMED_MAX];

    if (text.n == 0 || text.n > sizeof(tamed))
        return false;
    memcpy(tamed, text.p, text.n);
    bt_str_tame(tamed, text.n);
    return memcmp(tamed, text.p, text.n) == 0;
}

bool bt_fleet_field(const char *pool, const bt_url_t *at, const char *suffix,
                    char field[BT_FLEET_NAMED_MAX + 1])
{
    const size_t host_at = strlen(pool) + 1, host_n = strlen(at->host);
    const int n = snprintf(field, BT_FLEET_NAMED_MAX + 1, "%s %s:%u%s@%d%s", pool, at->host,
                           at->port, at->base_path, at->rank, suffix);

    if (n < 0 || n > BT_FLEET_NAMED_MAX)
        return false;
    for (char *p = field + host_at; p < field + host_at + host_n; p++)
        *p = (char) (*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    return true;
}

bt_url_t bt_fleet_url(const bt_worker_t *w)
{
    return (bt_url_t){
        .host = w->host, .port = w->port, .base_path = w->base_path, .rank = w->spec.dp_rank};
}

/* ---- the fleet's workers ---- */

static int compare_worker_fields(const void *a, const void *b)
{
    const bt_worker_field_t *x = a, *y = b;

    return bt_fleet_order(bt_str(x->field), bt_str(y->field));
}

/* A worker whose field is too long is not told to anybody, and is in no row. */
static int fill(bt_fleet_t *fleet, const bt_workers_t *workers)
{
    char field[BT_FLEET_NAMED_MAX + 1];

    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned j = 0; j < workers->pools[i].all.count; j++) {
            bt_worker_t *w = workers->pools[i].all.items[j];
            const bt_url_t at = bt_fleet_url(w);
            if (!bt_fleet_field(workers->pools[i].spec.name, &at, "", field))
                continue;
            bt_worker_field_t *worker_field = &fleet->worker_fields[fleet->worker_field_count];
            *worker_field = (bt_worker_field_t){.field = bt_str_dup(bt_str(field)), .worker = w};
            if (worker_field->field == NULL)
                return BT_E_NOMEM;
            fleet->worker_field_count++;
        }
    qsort(fleet->worker_fields, fleet->worker_field_count, sizeof(*fleet->worker_fields),
          compare_worker_fields);
    return 0;
}

void bt_worker_fields_fini(bt_fleet_t *fleet)
{
    for (unsigned i = 0; i < fleet->worker_field_count; i++)
        free(fleet->worker_fields[i].field);
    free(fleet->worker_fields);
    fleet->worker_fields = NULL;
    fleet->worker_field_count = 0;
}

int bt_worker_fields_build(bt_fleet_t *fleet)
{
    bt_worker_fields_fini(fleet);
    fleet->worker_fields =
        calloc(fleet->worker_key_count + 1, sizeof(*fleet->worker_fields)); /* all workers */
    if (fleet->worker_fields == NULL || fill(fleet, fleet->workers) < 0) {
        bt_worker_fields_fini(fleet);
        return BT_E_NOMEM;
    }
    return 0;
}

bt_worker_t *bt_worker_field(const bt_fleet_t *fleet, bt_str_t field)
{
    unsigned low = 0, high = fleet->worker_field_count;

    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const int order = bt_fleet_order(bt_str(fleet->worker_fields[middle].field), field);
        if (order == 0)
            return fleet->worker_fields[middle].worker;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- told to people ---- */

/* "<host>:<port><path>@<rank>" as a url is typed. */
static void put_place(bt_text_t *out, bt_str_t worker_key)
{
    char text[BT_FLEET_NAMED_MAX + 3];
    const char *end = worker_key.p + worker_key.n, *slash = memchr(worker_key.p, '/', worker_key.n);
    const char *rank = memrchr(worker_key.p, '@', worker_key.n), *colon;
    size_t n = worker_key.n;

    if (rank != NULL && bt_str_eq((bt_str_t){rank, (size_t) (end - rank)}, BT_STR("@-1")))
        n = (size_t) (rank - worker_key.p);
    colon = memrchr(worker_key.p, ':', slash != NULL ? (size_t) (slash - worker_key.p) : n);
    if (colon != NULL && memchr(worker_key.p, ':', (size_t) (colon - worker_key.p)) != NULL)
        snprintf(text, sizeof(text), "[%.*s]%.*s", (int) (colon - worker_key.p), worker_key.p,
                 (int) (worker_key.p + n - colon), colon);
    else
        snprintf(text, sizeof(text), "%.*s", (int) n, worker_key.p);
    bt_text_json_str(out, bt_str(text));
}

void bt_fleet_row_describe(const bt_fleet_t *fleet, const bt_fleet_row_t *row, bt_text_t *out)
{
    const bt_str_t field = bt_fleet_row_field(row);
    const size_t pool_n = strlen(row->pool) + 1;

    bt_text_puts(out, "{\"pool\":");
    bt_text_json_str(out, bt_str(row->pool));
    bt_text_puts(out, ",\"worker\":");
    put_place(out, (bt_str_t){field.p + pool_n, field.n - pool_n});
    bt_text_printf(out, ",\"here\":%s", bt_fleet_row_worker(fleet, row) != NULL ? "true" : "false");
}
