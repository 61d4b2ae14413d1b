/* prefix_index.h - which workers were lately sent a prompt that begins like this one. Private to core/script.
 *
 * Owner: the process; all loops read and write it.
 * Life:  entries are overwritten when their set of ways is full, least recently inserted first; workers that have gone
 *        stay until then, and nobody asks for them.
 * Flow:  the prompt's chain of block hashes (prefix_hash.h) -> insert after a choice, match before one.
 * Cost:  no locks. Two cache lines per block. 262,144 blocks in at most 19 MiB, touched only as they are used: with blocks
 *        of 64 tokens about the 67,108,864 characters that other routers keep by default.
 *
 * A guess, not a fact: engines evict by themselves, and two threads that meet in one entry may leave a worker out or leave
 * one in. A wrong guess costs one prefill that could have been shorter.
 */
#ifndef BT_SCRIPT_PREFIX_INDEX_H
#define BT_SCRIPT_PREFIX_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_PREFIX_MATCHES_MAX 64

typedef struct bt_prefix_matches {
    unsigned longest; /* leading blocks that somebody has */
    unsigned count;
    struct bt_prefix_match {
        uint32_t worker;                            /* its id */
        unsigned blocks;                            /* leading blocks it has */
    } items[BT_PREFIX_MATCHES_MAX];                 /* longest first */
    unsigned char slots[4 * BT_PREFIX_MATCHES_MAX]; /* index + 1 by worker, open addressing */
} bt_prefix_matches_t;

/* worker ids are never 0; their low 32 bits count. */
void bt_prefix_insert(const uint64_t *hashes, unsigned count, uint32_t worker, uint64_t now_ms);
void bt_prefix_find(const uint64_t *hashes, unsigned count, bt_prefix_matches_t *matches);
/* Blocks of this worker; 0 when it has none. */
unsigned bt_prefix_matched(const bt_prefix_matches_t *matches, uint32_t worker);
/* How many blocks the index holds for the worker, about. */
unsigned bt_prefix_cached(uint32_t worker);
/* For specs; not while others use it. */
void bt_prefix_clear(void);

#endif
