#include "kvindex/epoch.h"

#include "base/err.h"

#include <stdlib.h>

struct bt_retired {
    struct bt_retired *next;
    void *memory;
    size_t bytes;
    uint64_t epoch;
};

void bt_epoch_init(bt_epoch_t *e)
{
    *e = (bt_epoch_t){.now = 1};
}

static void free_oldest(bt_epoch_t *e)
{
    struct bt_retired *r = e->oldest;

    e->oldest = r->next;
    if (e->oldest == NULL)
        e->newest = NULL;
    e->retired_bytes -= r->bytes;
    free(r->memory);
    free(r);
}

void bt_epoch_fini(bt_epoch_t *e)
{
    while (e->oldest != NULL)
        free_oldest(e);
}

int bt_epoch_join(bt_epoch_t *e, unsigned *place_p)
{
    const unsigned place = atomic_fetch_add(&e->readers, 1);

    if (place >= BT_EPOCH_READERS_MAX) {
        atomic_fetch_sub(&e->readers, 1);
        return BT_E_LIMIT;
    }
    *place_p = place;
    return 0;
}

void bt_epoch_retire(bt_epoch_t *e, void *memory, size_t bytes)
{
    struct bt_retired *r = malloc(sizeof(*r));

    if (r == NULL)
        return;
    *r = (struct bt_retired){.memory = memory, .bytes = bytes};
    if (e->unmarked == NULL)
        e->unmarked = r;
    if (e->newest != NULL)
        e->newest->next = r;
    else
        e->oldest = r;
    e->newest = r;
    e->retired_bytes += bytes;
}

/* Whoever enters from now on finds none of them. */
static void mark_all(bt_epoch_t *e)
{
    const uint64_t epoch = atomic_fetch_add(&e->now, 1);

    for (; e->unmarked != NULL; e->unmarked = e->unmarked->next)
        e->unmarked->epoch = epoch;
}

void bt_epoch_collect(bt_epoch_t *e)
{
    const unsigned readers = atomic_load(&e->readers);
    uint64_t oldest = UINT64_MAX;

    if (e->oldest == NULL)
        return;
    if (e->unmarked != NULL)
        mark_all(e);
    for (unsigned i = 0; i < readers && i < BT_EPOCH_READERS_MAX; i++) {
        const uint64_t at = atomic_load(&e->places[i].at);
        if (at != 0 && at < oldest)
            oldest = at;
    }
    while (e->oldest != NULL && e->oldest->epoch < oldest)
        free_oldest(e);
}
