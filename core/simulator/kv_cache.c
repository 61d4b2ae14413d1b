#include "simulator/kv_cache.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

struct bt_sim_kv_block {
    uint64_t id;
    uint32_t holders;
    bool is_here; /* its KV; else it is expected, and held */
    uint32_t next,
        prev; /* of those that may be forgotten, the oldest behind blocks[0]; or the free ones' chain */
};

static uint32_t slot_of(const bt_sim_kv_cache_t *kv, uint64_t id)
{
    uint64_t x = (id ^ id >> 29) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t) (x >> 32) & kv->index_mask;
}

/* Where it stands, or the free slot where it would. */
static uint32_t find(const bt_sim_kv_cache_t *kv, uint64_t id)
{
    uint32_t at = slot_of(kv, id);

    while (kv->index[at] != 0 && kv->blocks[kv->index[at]].id != id)
        at = (at + 1) & kv->index_mask;
    return at;
}

/* What stands behind moves up, so that no search ends at the gap. */
static void unindex(bt_sim_kv_cache_t *kv, uint64_t id)
{
    uint32_t gap = find(kv, id), at = gap;

    for (;;) {
        at = (at + 1) & kv->index_mask;
        if (kv->index[at] == 0)
            break;
        const uint32_t home = slot_of(kv, kv->blocks[kv->index[at]].id);
        if (((at - home) & kv->index_mask) < ((at - gap) & kv->index_mask))
            continue;
        kv->index[gap] = kv->index[at];
        gap = at;
    }
    kv->index[gap] = 0;
}

static void unlink_block(bt_sim_kv_cache_t *kv, uint32_t i)
{
    struct bt_sim_kv_block *b = &kv->blocks[i];

    kv->blocks[b->prev].next = b->next;
    kv->blocks[b->next].prev = b->prev;
}

static void link_newest(bt_sim_kv_cache_t *kv, uint32_t i)
{
    struct bt_sim_kv_block *b = &kv->blocks[i], *all = &kv->blocks[0];

    b->prev = all->prev;
    b->next = 0;
    kv->blocks[all->prev].next = i;
    all->prev = i;
}

static void free_block(bt_sim_kv_cache_t *kv, uint32_t i)
{
    kv->blocks[i].next = kv->free;
    kv->free = i;
}

/* It is in no list. */
static void drop(bt_sim_kv_cache_t *kv, uint32_t i)
{
    unindex(kv, kv->blocks[i].id);
    free_block(kv, i);
    kv->resident--;
}

static void forget_oldest(bt_sim_kv_cache_t *kv)
{
    const uint32_t i = kv->blocks[0].next;

    unlink_block(kv, i);
    drop(kv, i);
    kv->forgotten++;
    if (kv->on_change != NULL)
        kv->on_change(kv->user, kv->blocks[i].id, NULL, false);
}

int bt_sim_kv_init(bt_sim_kv_cache_t *kv, uint32_t capacity)
{
    size_t size = 16;

    while (size < 2 * (size_t) capacity)
        size *= 2;
    *kv = (bt_sim_kv_cache_t){.capacity = capacity, .index_mask = (uint32_t) (size - 1)};
    kv->blocks = calloc((size_t) capacity + 1, sizeof *kv->blocks);
    kv->index = calloc(size, sizeof *kv->index);
    if (kv->blocks == NULL || kv->index == NULL) {
        bt_sim_kv_fini(kv);
        return BT_E_NOMEM;
    }
    bt_sim_kv_reset(kv);
    return 0;
}

void bt_sim_kv_reset(bt_sim_kv_cache_t *kv)
{
    memset(kv->index, 0, ((size_t) kv->index_mask + 1) * sizeof *kv->index);
    memset(&kv->blocks[0], 0, sizeof kv->blocks[0]);
    kv->free = kv->resident = kv->held = kv->rooms = 0;
    for (uint32_t i = kv->capacity; i > 0; i--)
        free_block(kv, i);
}

void bt_sim_kv_fini(bt_sim_kv_cache_t *kv)
{
    free(kv->blocks);
    free(kv->index);
    *kv = (bt_sim_kv_cache_t){0};
}

uint32_t bt_sim_kv_match(const bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count)
{
    uint32_t n = 0;

    while (n < count) {
        const uint32_t at = kv->index[find(kv, ids[n])];
        if (at == 0 || !kv->blocks[at].is_here)
            break;
        n++;
    }
    return n;
}

/* Of these, how many have to be made. A prompt that names one twice asks for one too many, which does no harm. */
static uint32_t missing(const bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count,
                        uint32_t *idle_p)
{
    uint32_t n = 0;

    *idle_p = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = kv->index[find(kv, ids[i])];
        n += at == 0;
        *idle_p += at != 0 && kv->blocks[at].holders == 0;
    }
    return n;
}

static void make_room(bt_sim_kv_cache_t *kv)
{
    while (kv->resident + kv->rooms > kv->capacity)
        forget_oldest(kv);
}

static void hold_known(bt_sim_kv_cache_t *kv, uint32_t i)
{
    if (kv->blocks[i].holders++ > 0)
        return;
    unlink_block(kv, i);
    kv->held++;
}

static void note_here(bt_sim_kv_cache_t *kv, uint32_t i, const uint64_t *before)
{
    struct bt_sim_kv_block *b = &kv->blocks[i];

    if (!b->is_here && kv->on_change != NULL)
        kv->on_change(kv->user, b->id, before, true);
    b->is_here = true;
}

static void hold_new(bt_sim_kv_cache_t *kv, uint64_t id)
{
    kv->resident++;
    make_room(kv);
    const uint32_t i = kv->free;
    kv->free = kv->blocks[i].next;
    kv->blocks[i] = (struct bt_sim_kv_block){.id = id, .holders = 1};
    kv->index[find(kv, id)] = i;
    kv->held++;
}

bool bt_sim_kv_expect(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms)
{
    uint32_t idle;
    const uint64_t needed = (uint64_t) missing(kv, ids, count, &idle) + rooms + idle;

    if (kv->held + kv->rooms + needed > kv->capacity)
        return false;
    /* Known ones first: none of them may be forgotten for the others. */
    for (uint32_t i = 0; i < count; i++)
        if (kv->index[find(kv, ids[i])] != 0)
            hold_known(kv, kv->index[find(kv, ids[i])]);
    for (uint32_t i = 0; i < count; i++)
        if (kv->index[find(kv, ids[i])] == 0)
            hold_new(kv, ids[i]);
    kv->rooms += rooms;
    make_room(kv);
    return true;
}

void bt_sim_kv_arrived(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = kv->index[find(kv, ids[i])];
        if (at != 0) /* of a prompt that names a block twice it may be gone */
            note_here(kv, at, i > 0 ? &ids[i - 1] : NULL);
    }
}

bool bt_sim_kv_hold(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms)
{
    if (!bt_sim_kv_expect(kv, ids, count, rooms))
        return false;
    bt_sim_kv_arrived(kv, ids, count);
    return true;
}

void bt_sim_kv_not_made(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count)
{
    for (uint32_t i = count; i > 0; i--) {
        struct bt_sim_kv_block *b = &kv->blocks[kv->index[find(kv, ids[i - 1])]];
        if (b == kv->blocks || b->holders != 1 || !b->is_here)
            continue;
        b->is_here = false;
        if (kv->on_change != NULL)
            kv->on_change(kv->user, b->id, NULL, false);
    }
}

/* The end first, so that it is the first to be forgotten. */
void bt_sim_kv_let_go(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms)
{
    kv->rooms -= rooms;
    for (uint32_t i = count; i > 0; i--) {
        const uint32_t at = kv->index[find(kv, ids[i - 1])];
        if (at == 0 || kv->blocks[at].holders == 0 || --kv->blocks[at].holders > 0)
            continue;
        kv->held--;
        if (kv->blocks[at].is_here)
            link_newest(kv, at);
        else
            drop(kv, at);
    }
}
