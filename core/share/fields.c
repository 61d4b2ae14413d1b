/* What rows are called: "<pool> <host>:<port><path>@<rank>" and the suffix of their kind. Hosts are compared in any case, so they are written in small letters.
 *
 * The workers of our fleet stand in an array by that (without a suffix), made anew when the fleet changes: rows are matched with workers whenever either
 * change, and there may be thousands of both.
 */
#include "share/rows.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

int bt_share_order(bt_str_t a, bt_str_t b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    const int by_text = n > 0 ? memcmp(a.p, b.p, n) : 0;

    return by_text != 0 ? by_text : (a.n > b.n) - (a.n < b.n);
}

bool bt_share_is_name(bt_str_t text)
{
    char tamed[BT_SHARE_NAMED_MAX];

    if (text.n == 0 || text.n > sizeof(tamed))
        return false;
    memcpy(tamed, text.p, text.n);
    bt_str_tame(tamed, text.n);
    return memcmp(tamed, text.p, text.n) == 0;
}

bool bt_share_field(const char *pool, const bt_url_t *at, const char *suffix,
                    char field[BT_SHARE_NAMED_MAX + 1])
{
    const size_t host_at = strlen(pool) + 1, host_n = strlen(at->host);
    const int n = snprintf(field, BT_SHARE_NAMED_MAX + 1, "%s %s:%u%s@%d%s", pool, at->host,
                           at->port, at->base_path, at->rank, suffix);

    if (n < 0 || n > BT_SHARE_NAMED_MAX)
        return false;
    for (char *p = field + host_at; p < field + host_at + host_n; p++)
        *p = (char) (*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
    return true;
}

bt_url_t bt_share_url(const bt_worker_t *w)
{
    return (bt_url_t){
        .host = w->host, .port = w->port, .base_path = w->base_path, .rank = w->spec.dp_rank};
}

/* ---- the fleet's workers ---- */

static int compare_spots(const void *a, const void *b)
{
    const bt_share_spot_t *x = a, *y = b;

    return bt_share_order(bt_str(x->field), bt_str(y->field));
}

/* A worker whose field is too long is not told to anybody, and is in no row. */
static int fill(bt_share_t *share, const bt_fleet_t *fleet)
{
    char field[BT_SHARE_NAMED_MAX + 1];

    for (unsigned i = 0; i < fleet->pool_count; i++)
        for (unsigned j = 0; j < fleet->pools[i].all.count; j++) {
            bt_worker_t *w = fleet->pools[i].all.items[j];
            const bt_url_t at = bt_share_url(w);
            if (!bt_share_field(fleet->pools[i].spec.name, &at, "", field))
                continue;
            bt_share_spot_t *spot = &share->spots[share->spot_count];
            *spot = (bt_share_spot_t){.field = bt_str_dup(bt_str(field)), .worker = w};
            if (spot->field == NULL)
                return BT_E_NOMEM;
            share->spot_count++;
        }
    qsort(share->spots, share->spot_count, sizeof(*share->spots), compare_spots);
    return 0;
}

void bt_share_spots_fini(bt_share_t *share)
{
    for (unsigned i = 0; i < share->spot_count; i++)
        free(share->spots[i].field);
    free(share->spots);
    share->spots = NULL;
    share->spot_count = 0;
}

int bt_share_spots(bt_share_t *share)
{
    bt_share_spots_fini(share);
    share->spots = calloc(share->place_count + 1, sizeof(*share->spots)); /* all workers */
    if (share->spots == NULL || fill(share, share->fleet) < 0) {
        bt_share_spots_fini(share);
        return BT_E_NOMEM;
    }
    return 0;
}

bt_worker_t *bt_share_spot(const bt_share_t *share, bt_str_t field)
{
    unsigned low = 0, high = share->spot_count;

    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const int order = bt_share_order(bt_str(share->spots[middle].field), field);
        if (order == 0)
            return share->spots[middle].worker;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
