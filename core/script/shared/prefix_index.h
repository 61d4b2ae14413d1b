/* prefix_index.h - which workers were lately sent a prompt that begins like this one. For core/script and core/fleet.
 *
 * Owner: the process; all loops read and write it.
 * Life:  entries are overwritten when their set of ways is full, least recently inserted first; workers that have gone
 *        stay until then, and nobody asks for them.
 * Flow:  the prompt's chain of block hashes (prefix_hash.h) -> insert after a choice, match before one. What an insert has added
 *        goes to the thread's ring, if it has one (prefix_ring.h): other gateways hear of it.
 * Cost:  no locks. Two cache lines per block. 262,144 blocks in 19 MiB, with blocks of 64 tokens about the 67,108,864 characters
 *        that other routers keep by default. The memory is real once bt_prefix_warm has run, or as it is used.
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
/* Other gateways do not hear of it. */
void bt_prefix_insert_untold(const uint64_t *hashes, unsigned count, uint32_t worker,
                             uint64_t now_ms);
void bt_prefix_find(const uint64_t *hashes, unsigned count, bt_prefix_matches_t *matches);
/* By hand, the longest first; a worker's first counts, and none above BT_PREFIX_MATCHES_MAX. */
void bt_prefix_matches_clear(bt_prefix_matches_t *matches);
void bt_prefix_matches_add(bt_prefix_matches_t *matches, uint32_t worker, unsigned blocks);
/* Blocks of this worker; 0 when it has none. */
unsigned bt_prefix_matched(const bt_prefix_matches_t *matches, uint32_t worker);
/* Its engine is another process: it has nothing. Some ms where the index is full: off the request path. */
void bt_prefix_forget(uint32_t worker);
/* How many blocks the index holds for the worker, about. */
unsigned bt_prefix_cached(uint32_t worker);
/* For whoever takes a recorded decision again: so many it held then. */
void bt_prefix_set_cached(uint32_t worker, unsigned blocks);
/* Blocks that other gateways put in lately, between two of their reports: so far the counts of two workers may be apart and mean
 * nothing. note: with every report, 0 too; one thread. */
unsigned bt_prefix_inflow(void);
void bt_prefix_note_inflow(unsigned blocks);
/* Makes all memory real, some 10 ms of work. A long prompt would otherwise meet three page faults a block, more than a plan has
 * time for. Off the request path, any thread, and again for nothing. */
void bt_prefix_warm(void);
/* For specs; not while others use it. */
void bt_prefix_clear(void);

#endif
