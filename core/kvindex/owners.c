/* How it works: the writer reads a set into a plain list only where its form changes; everything else is one store. Forms change up when they
 * are full, and down a good way below, so that an owner that comes and goes does not move the others each time. */
#include "kvindex/owners.h"

#include <stdlib.h>
#include <string.h>

#define BITMAP_LEAST 32u /* fewer owners go back into an array */
#define ARRAY_LEAST 2u   /* and so many into the word */
#define TIERS 3u

static size_t set_bytes(const bt_kv_set_t *set)
{
    return sizeof(*set) + set->cap * sizeof(uint32_t) + (size_t) set->words * TIERS * 8;
}

static uint32_t load_owner(bt_kv_set_t *set, unsigned i)
{
    return atomic_load_explicit(&bt_kv_set_owners(set)[i], memory_order_relaxed);
}

static unsigned planes_of(bt_kv_set_t *set, uint32_t part)
{
    unsigned tiers = 0;

    for (unsigned t = 0; t < TIERS && part / 64 < set->words; t++)
        if ((atomic_load_explicit(&bt_kv_set_plane(set, t)[part / 64], memory_order_relaxed) >>
                 part % 64 &
             1) != 0)
            tiers |= 1u << t;
    return tiers;
}

static void put_planes(bt_kv_set_t *set, uint32_t part, unsigned tiers)
{
    const uint64_t bit = UINT64_C(1) << part % 64;

    for (unsigned t = 0; t < TIERS; t++) {
        _Atomic uint64_t *word = &bt_kv_set_plane(set, t)[part / 64];
        const uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

        atomic_store_explicit(word, (tiers >> t & 1) != 0 ? old | bit : old & ~bit,
                              memory_order_relaxed);
    }
}

/* ---- forms ---- */

/* Owners of an array or a word that are to be put elsewhere; bitmaps are never read into more than an array takes. */
struct list {
    uint32_t owners[BT_KV_ARRAY_MAX + 1];
    unsigned count;
};

static void read_bitmaps(bt_kv_set_t *set, struct list *list)
{
    for (uint32_t part = 0; part < set->words * 64 && list->count < BT_KV_ARRAY_MAX; part++) {
        const unsigned tiers = planes_of(set, part);
        if (tiers != 0)
            list->owners[list->count++] = bt_kv_owner(part, tiers);
    }
}

static void read_word(uint64_t word, struct list *list)
{
    list->count = 0;
    if (!bt_kv_word_is_set(word)) {
        for (unsigned i = 0; i < BT_KV_INLINE_MAX; i++)
            if (bt_kv_word_owner(word, i) != 0)
                list->owners[list->count++] = bt_kv_word_owner(word, i);
        return;
    }
    bt_kv_set_t *set = bt_kv_word_set(word);
    for (unsigned i = 0; i < set->cap; i++)
        if (load_owner(set, i) != 0)
            list->owners[list->count++] = load_owner(set, i);
    if (set->cap == 0)
        read_bitmaps(set, list);
}

static uint64_t inline_word(const struct list *list)
{
    uint64_t word = 0;

    for (unsigned i = 0; i < list->count; i++)
        word |= (uint64_t) list->owners[i] << (1 + 21 * i);
    return word;
}

static bt_kv_set_t *new_set(bt_kv_owners_t *o, uint32_t cap, uint32_t words)
{
    const bt_kv_set_t sizes = {.cap = cap, .words = words};
    bt_kv_set_t *set = calloc(1, set_bytes(&sizes));

    if (set == NULL)
        return NULL;
    set->cap = cap;
    set->words = words;
    o->bytes += set_bytes(set);
    return set;
}

static void drop_set(bt_kv_owners_t *o, bt_kv_set_t *set)
{
    o->bytes -= set_bytes(set);
    bt_epoch_retire(o->epoch, set, set_bytes(set));
}

static uint32_t bitmap_words(const bt_kv_owners_t *o)
{
    uint32_t words = 4;

    while (words * 64 <= o->parts)
        words *= 2;
    return words;
}

static bt_kv_set_t *set_of(bt_kv_owners_t *o, const struct list *list)
{
    uint32_t cap = 8;

    while (cap < list->count)
        cap *= 2;
    bt_kv_set_t *set = cap <= BT_KV_ARRAY_MAX ? new_set(o, cap, 0) : new_set(o, 0, bitmap_words(o));
    if (set == NULL)
        return NULL;
    for (unsigned i = 0; i < list->count; i++)
        if (set->cap > 0)
            atomic_init(&bt_kv_set_owners(set)[i], list->owners[i]);
        else
            put_planes(set, bt_kv_owner_part(list->owners[i]), bt_kv_owner_tiers(list->owners[i]));
    set->count = list->count;
    return set;
}

/* In place of the old word; the same one when there is no memory. */
static uint64_t rewrite(bt_kv_owners_t *o, uint64_t word, const struct list *list)
{
    uint64_t fresh = 0;

    if (list->count <= BT_KV_INLINE_MAX) {
        fresh = inline_word(list);
    } else {
        bt_kv_set_t *set = set_of(o, list);
        if (set == NULL)
            return word;
        fresh = (uint64_t) (uintptr_t) set | 1;
    }
    if (bt_kv_word_is_set(word))
        drop_set(o, bt_kv_word_set(word));
    return fresh;
}

static uint64_t widen_bitmaps(bt_kv_owners_t *o, uint64_t word)
{
    bt_kv_set_t *old = bt_kv_word_set(word), *set = new_set(o, 0, bitmap_words(o));

    if (set == NULL)
        return word;
    for (unsigned t = 0; t < TIERS; t++)
        memcpy((void *) bt_kv_set_plane(set, t), (void *) bt_kv_set_plane(old, t), old->words * 8u);
    set->count = old->count;
    drop_set(o, old);
    return (uint64_t) (uintptr_t) set | 1;
}

/* ---- changes ---- */

static uint64_t add_to_list(bt_kv_owners_t *o, uint64_t word, uint32_t part, unsigned tiers,
                            bool *added_p)
{
    struct list list;

    read_word(word, &list);
    for (unsigned i = 0; i < list.count; i++)
        if (bt_kv_owner_part(list.owners[i]) == part) {
            list.owners[i] |= tiers;
            return inline_word(&list);
        }
    list.owners[list.count++] = bt_kv_owner(part, tiers);
    const uint64_t fresh = rewrite(o, word, &list);
    *added_p = fresh != word;
    return fresh;
}

/* False: it is full. */
static bool add_to_array(bt_kv_set_t *set, uint32_t part, unsigned tiers, bool *added_p)
{
    int free_at = -1;

    for (unsigned i = 0; i < set->cap; i++) {
        const uint32_t owner = load_owner(set, i);
        if (owner == 0 && free_at < 0)
            free_at = (int) i;
        if (owner == 0 || bt_kv_owner_part(owner) != part)
            continue;
        atomic_store_explicit(&bt_kv_set_owners(set)[i], owner | tiers, memory_order_relaxed);
        return true;
    }
    if (free_at < 0)
        return false;
    atomic_store_explicit(&bt_kv_set_owners(set)[free_at], bt_kv_owner(part, tiers),
                          memory_order_relaxed);
    set->count++;
    *added_p = true;
    return true;
}

uint64_t bt_kv_owners_add(bt_kv_owners_t *o, uint64_t word, uint32_t part, unsigned tiers,
                          bool *added_p)
{
    *added_p = false;
    if (!bt_kv_word_is_set(word))
        return add_to_list(o, word, part, tiers, added_p);
    bt_kv_set_t *set = bt_kv_word_set(word);
    if (set->cap > 0)
        return add_to_array(set, part, tiers, added_p) ? word
                                                       : add_to_list(o, word, part, tiers, added_p);
    if (part / 64 >= set->words) {
        word = widen_bitmaps(o, word);
        set = bt_kv_word_set(word);
        if (part / 64 >= set->words)
            return word;
    }
    const unsigned held = planes_of(set, part);
    put_planes(set, part, held | tiers);
    *added_p = held == 0;
    set->count += held == 0;
    return word;
}

static uint64_t shrink(bt_kv_owners_t *o, uint64_t word)
{
    const bt_kv_set_t *set = bt_kv_word_set(word);
    struct list list;

    if (set->count > (set->cap > 0 ? ARRAY_LEAST : BITMAP_LEAST))
        return word;
    read_word(word, &list);
    return rewrite(o, word, &list);
}

unsigned bt_kv_owners_tiers(uint64_t word, uint32_t part)
{
    bt_kv_set_t *set = bt_kv_word_is_set(word) ? bt_kv_word_set(word) : NULL;
    const unsigned count = set == NULL ? BT_KV_INLINE_MAX : set->cap;

    if (set != NULL && set->cap == 0)
        return planes_of(set, part);
    for (unsigned i = 0; i < count; i++) {
        const uint32_t owner = set == NULL ? bt_kv_word_owner(word, i) : load_owner(set, i);
        if (bt_kv_owner_part(owner) == part)
            return bt_kv_owner_tiers(owner);
    }
    return 0;
}

static uint64_t remove_inline(uint64_t word, uint32_t part, unsigned left)
{
    struct list list;

    read_word(word, &list);
    for (unsigned i = 0; i < list.count; i++) {
        if (bt_kv_owner_part(list.owners[i]) != part)
            continue;
        list.owners[i] = left != 0 ? bt_kv_owner(part, left) : list.owners[--list.count];
        break;
    }
    return inline_word(&list);
}

static void put_in_array(bt_kv_set_t *set, uint32_t part, unsigned tiers)
{
    for (unsigned i = 0; i < set->cap; i++)
        if (bt_kv_owner_part(load_owner(set, i)) == part)
            atomic_store_explicit(&bt_kv_set_owners(set)[i],
                                  tiers != 0 ? bt_kv_owner(part, tiers) : 0, memory_order_relaxed);
}

uint64_t bt_kv_owners_remove(bt_kv_owners_t *o, uint64_t word, uint32_t part, unsigned tiers,
                             unsigned *held_p)
{
    const unsigned held = bt_kv_owners_tiers(word, part), left = held & ~tiers;

    *held_p = held;
    if (left == held)
        return word;
    if (!bt_kv_word_is_set(word))
        return remove_inline(word, part, left);
    bt_kv_set_t *set = bt_kv_word_set(word);
    if (set->cap > 0)
        put_in_array(set, part, left);
    else
        put_planes(set, part, left);
    set->count -= left == 0;
    return left == 0 ? shrink(o, word) : word;
}

unsigned bt_kv_owners_drop(bt_kv_owners_t *o, uint64_t word)
{
    struct list list;

    if (!bt_kv_word_is_set(word)) {
        read_word(word, &list);
        return list.count;
    }
    const unsigned count = bt_kv_word_set(word)->count;
    drop_set(o, bt_kv_word_set(word));
    return count;
}
