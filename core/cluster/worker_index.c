/* Open addressing, at most half full: a change of the set looks up thousands of workers, and must not hold the control loop. */
#include "cluster/worker_index.h"

#include "base/err.h"
#include "cluster/url.h"

#include <stdlib.h>

int bt_worker_index_init(bt_worker_index_t *x, unsigned count)
{
    uint32_t size = 8;

    while (size < 2 * (count + 1))
        size *= 2;
    x->cells = calloc(size, sizeof(bt_worker_t *));
    x->mask = size - 1;
    return x->cells != NULL ? 0 : BT_E_NOMEM;
}

void bt_worker_index_fini(bt_worker_index_t *x)
{
    free(x->cells);
    *x = (bt_worker_index_t){0};
}

bool bt_worker_same_place(const bt_worker_t *a, const bt_worker_t *b)
{
    return a->place_hash == b->place_hash && a->port == b->port &&
           a->spec.dp_rank == b->spec.dp_rank && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->base_path, b->base_path) == 0;
}

static bool has_name(const bt_worker_t *w, const char *name)
{
    return strcmp(w->name, name) == 0;
}

static bt_worker_t **cell_of_place(const bt_worker_index_t *x, const bt_worker_t *w)
{
    uint32_t i = (uint32_t) w->place_hash & x->mask;

    while (x->cells[i] != NULL && !bt_worker_same_place(x->cells[i], w))
        i = (i + 1) & x->mask;
    return &x->cells[i];
}

static bt_worker_t **cell_of_name(const bt_worker_index_t *x, const char *name)
{
    const uint64_t h = bt_str_hash(bt_str(name));
    uint32_t i = (uint32_t) (h ^ (h >> 32)) & x->mask;

    while (x->cells[i] != NULL && !has_name(x->cells[i], name))
        i = (i + 1) & x->mask;
    return &x->cells[i];
}

static bt_worker_t *put(bt_worker_t **cell, bt_worker_t *w)
{
    if (*cell != NULL)
        return *cell;
    *cell = w;
    return NULL;
}

bt_worker_t *bt_worker_index_put_place(bt_worker_index_t *x, bt_worker_t *w)
{
    return put(cell_of_place(x, w), w);
}

bt_worker_t *bt_worker_index_find_place(const bt_worker_index_t *x, const bt_worker_t *place)
{
    return *cell_of_place(x, place);
}

int bt_worker_index_find_spec(const bt_worker_index_t *x, const bt_worker_spec_t *spec,
                              bt_worker_t **found_p, char *why, size_t why_size)
{
    bt_url_t url;
    int rc = bt_url_parse(&url, bt_str(spec->url), why, why_size);

    if (rc < 0)
        return rc;
    const int rank = spec->dp_rank >= 0 ? spec->dp_rank : url.rank;
    const bt_worker_t place = {.host = url.host,
                               .port = url.port,
                               .base_path = url.base_path,
                               .spec.dp_rank = rank,
                               .place_hash =
                                   bt_worker_place_hash(url.host, url.port, url.base_path, rank)};
    *found_p = bt_worker_index_find_place(x, &place);
    bt_url_fini(&url);
    return 0;
}

bt_worker_t *bt_worker_index_put_name(bt_worker_index_t *x, bt_worker_t *w)
{
    return put(cell_of_name(x, w->name), w);
}

bt_worker_t *bt_worker_index_find_name(const bt_worker_index_t *x, const char *name)
{
    return *cell_of_name(x, name);
}

int bt_worker_index_places(bt_worker_index_t *x, bt_worker_t *const *items, unsigned count,
                           unsigned room)
{
    if (bt_worker_index_init(x, count + room) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++)
        (void) bt_worker_index_put_place(x, items[i]);
    return 0;
}

int bt_worker_index_names(bt_worker_index_t *x, const bt_workers_t *f)
{
    unsigned count = 0;

    for (unsigned i = 0; i < f->pool_count; i++)
        count += f->pools[i].all.count;
    if (bt_worker_index_init(x, count) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < f->pool_count; i++)
        for (unsigned j = 0; j < f->pools[i].all.count; j++)
            (void) bt_worker_index_put_name(x, f->pools[i].all.items[j]);
    return 0;
}
