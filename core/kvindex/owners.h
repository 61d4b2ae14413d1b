/* owners.h - which parts hold a block, and in which tiers, behind one word.
 *
 * Owner: the index's writer; readers load the word, then read what it means within an epoch.
 * Life:  0 = nobody. Sets are retired (epoch.h) when the word is replaced.
 * Flow:  up to three owners stand in the word itself; more of them in an array of 8 to 64, then in bitmaps, one a tier.
 * Cost:  8 bytes for up to three owners, 4 bytes each to 64, 3 bits for each part that there is beyond.
 *
 * A set is changed in place, an owner at a time, by atomic stores: a reader finds each owner there or not, never something else.
 */
#ifndef BT_KVINDEX_OWNERS_H
#define BT_KVINDEX_OWNERS_H

#include "kvindex/epoch.h"

#include <stdbool.h>

#define BT_KV_PARTS_MAX 262143u /* 1.. */
#define BT_KV_INLINE_MAX 3u
#define BT_KV_ARRAY_MAX 64u

/* What readers see of a set: sizes are fixed with it. */
typedef struct bt_kv_set {
    uint32_t cap;   /* owners of an array; 0 = bitmaps */
    uint32_t words; /* of each of the bitmaps, 64 parts a word */
    uint32_t count; /* the writer's */
    _Alignas(
        8) char data[]; /* _Atomic uint32_t owners[cap], or _Atomic uint64_t planes[tiers][words] */
} bt_kv_set_t;

/* An owner: its part above, tiers as bits below. */
static inline uint32_t bt_kv_owner(uint32_t part, unsigned tiers)
{
    return part << 3 | tiers;
}
static inline uint32_t bt_kv_owner_part(uint32_t owner)
{
    return owner >> 3;
}
static inline unsigned bt_kv_owner_tiers(uint32_t owner)
{
    return owner & 7;
}

static inline bool bt_kv_word_is_set(uint64_t word)
{
    return (word & 1) != 0;
}
static inline bt_kv_set_t *bt_kv_word_set(uint64_t word)
{
    return (bt_kv_set_t *) (uintptr_t) (word & ~UINT64_C(1));
}
/* The i-th of the three; 0 = none. */
static inline uint32_t bt_kv_word_owner(uint64_t word, unsigned i)
{
    return (uint32_t) (word >> (1 + 21 * i)) & 0x1fffff;
}
static inline _Atomic uint32_t *bt_kv_set_owners(bt_kv_set_t *set)
{
    return (_Atomic uint32_t *) (void *) set->data;
}
static inline _Atomic uint64_t *bt_kv_set_plane(bt_kv_set_t *set, unsigned tier)
{
    return (_Atomic uint64_t *) (void *) set->data + (size_t) tier * set->words;
}

/* What a change did, for whoever counts. */
typedef struct bt_kv_owners {
    bt_epoch_t *epoch;
    uint32_t parts; /* there are no higher ones */
    size_t bytes;   /* of all sets */
} bt_kv_owners_t;

/* Both give the word that is to stand there from now on; the old one may be the same. added: it held nothing of the block before.
 * Out of memory nothing changes. */
uint64_t bt_kv_owners_add(bt_kv_owners_t *o, uint64_t word, uint32_t part, unsigned tiers,
                          bool *added_p);
/* held: the tiers that it had before. */
uint64_t bt_kv_owners_remove(bt_kv_owners_t *o, uint64_t word, uint32_t part, unsigned tiers,
                             unsigned *held_p);
/* The part's tiers; 0 = it is no owner. */
unsigned bt_kv_owners_tiers(uint64_t word, uint32_t part);
/* All of them; returns how many there were. */
unsigned bt_kv_owners_drop(bt_kv_owners_t *o, uint64_t word);

#endif
