/* index_impl.h - what index.c and query.c share. */
#ifndef BT_KVINDEX_INDEX_IMPL_H
#define BT_KVINDEX_INDEX_IMPL_H

#include "kvindex/index.h"
#include "kvindex/names.h"
#include "kvindex/owners.h"
#include "kvindex/table.h"

typedef struct bt_kv_part {
    bool is_open;
    int group; /* of a hybrid model: the one that counts; -1 = none yet */
    bt_kv_names_t names;
    bt_kv_names_t copies; /* the engine's hash -> how many more blocks of its device have it */
} bt_kv_part_t;

struct bt_kv_index {
    bt_epoch_t epoch;
    bt_kv_table_t table;
    bt_kv_owners_t owners;
    uint64_t max_held, held, names;
    uint64_t sweep_at; /* so many names are worth a look at all of them */
    unsigned max_parts;
    bt_kv_part_t *parts; /* by number, from 1 */
    bt_kv_index_stats_t stats;
    unsigned size_parts[BT_KV_SIZES_MAX]; /* how many parts have blocks of that size */
    /* ---- read by all ---- */
    _Atomic uint32_t high; /* no part has a higher number */
    _Atomic uint32_t *block_tokens;
    _Atomic bool *is_live;
    _Atomic uint32_t sizes[BT_KV_SIZES_MAX]; /* 0 = free */
    _Atomic uint64_t loras[BT_KV_LORAS_MAX]; /* hashes of names; they fill up in order, 0 = free */
};

#endif
