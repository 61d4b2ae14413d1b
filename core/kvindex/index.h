/* index.h - which workers hold which blocks, by what their engines say (event.h).
 *
 * Owner: one writer thread opens parts and applies events; loops ask (query.h) and never wait for it.
 * Life:  new -> part_open -> apply, clear -> part_close -> free, when nobody asks any more.
 * Flow:  event -> the part's names give the parent's own hash -> chain over the tokens -> the block's owners.
 * Cost:  (16 bytes a cell + 16 a name) / load: some 45 to 80 bytes for a block that one worker holds, 16 to 43 for each further worker.
 *
 * Bounded: max_held counts (block, part) pairs. Above it the blocks that were longest neither stored nor asked for are forgotten, which costs a
 * predicted hit, never a wrong one. Blocks that an engine's device holds more than once are counted: each copy is told, and its removal.
 */
#ifndef BT_KVINDEX_INDEX_H
#define BT_KVINDEX_INDEX_H

#include "kvindex/event.h"

#include <stdatomic.h>

#define BT_KV_SIZES_MAX 4u /* kinds of block sizes in one fleet */
#define BT_KV_LORAS_MAX 256u

typedef struct bt_kv_index bt_kv_index_t;

typedef struct bt_kv_index_config {
    uint64_t max_held;  /* 0 = 4,194,304 */
    unsigned max_parts; /* 0 = 16,384 */
} bt_kv_index_config_t;

/* The writer's counters. */
typedef struct bt_kv_index_stats {
    uint64_t blocks, held, names; /* live */
    uint64_t stored, removed;     /* blocks, of all time */
    uint64_t forgotten;           /* pairs, for want of room */
    uint64_t orphans; /* blocks whose parent is not known: something before them was missed */
    uint64_t
        odd_sizes; /* blocks of another size than the part's, or of a fifth size while four are in use */
    uint64_t bytes; /* of everything, what waits for readers too */
} bt_kv_index_stats_t;

int bt_kv_index_new(bt_kv_index_t **index_p, const bt_kv_index_config_t *config);
void bt_kv_index_free(bt_kv_index_t *index);

/* ---- the writer's ---- */
/* `count` parts side by side: the ranks of one worker. BT_E_LIMIT. */
int bt_kv_part_open(bt_kv_index_t *index, unsigned count, uint32_t *first_p);
void bt_kv_part_apply(bt_kv_index_t *index, uint32_t part, const bt_kv_event_t *event);
void bt_kv_part_clear(bt_kv_index_t *index, uint32_t part);
void bt_kv_part_close(bt_kv_index_t *index, uint32_t first, unsigned count);
/* How many blocks it holds. */
uint64_t bt_kv_part_held(const bt_kv_index_t *index, uint32_t part);
void bt_kv_index_stats(const bt_kv_index_t *index, bt_kv_index_stats_t *stats);

/* ---- the writer's: what a snapshot (snapshot.h) has of a part ---- */
/* A name of the engine, our own hash, the tiers it is in (0: it is known as a parent alone), further copies on the device. */
typedef void (*bt_kv_name_cb)(void *user, uint64_t engine, uint64_t own, unsigned tiers,
                              uint64_t more);
void bt_kv_part_each(const bt_kv_index_t *index, uint32_t part, bt_kv_name_cb on_name, void *user);
int bt_kv_part_group(const bt_kv_index_t *index, uint32_t part);
unsigned bt_kv_index_loras(const bt_kv_index_t *index, uint64_t hashes[BT_KV_LORAS_MAX]);
/* Of an empty part. False: the index takes no blocks like these. */
bool bt_kv_part_begin_restore(bt_kv_index_t *index, uint32_t part, uint64_t block_tokens,
                              int64_t group);
void bt_kv_part_restore(bt_kv_index_t *index, uint32_t part, uint64_t engine, uint64_t own,
                        unsigned tiers, uint64_t more);
void bt_kv_index_add_lora(bt_kv_index_t *index, uint64_t hash);

/* ---- anybody's ---- */
/* Is what is known of the part whole enough to be believed? Set by whoever follows its events; false after open and close. */
void bt_kv_part_set_live(bt_kv_index_t *index, uint32_t part, bool is_live);
bool bt_kv_part_is_live(const bt_kv_index_t *index, uint32_t part);
/* Tokens of its blocks; 0 = it has none. */
unsigned bt_kv_part_block_tokens(const bt_kv_index_t *index, uint32_t part);
/* Has an engine stored blocks of this adapter? */
bool bt_kv_index_knows_lora(const bt_kv_index_t *index, bt_str_t name);

#endif
