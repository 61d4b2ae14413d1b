/* copy.h - memory to memory: the ways that this build knows, and those that this process uses.
 *
 * Owner: the process; chosen once, whatever the number of agents.
 * Life:  from the first bt_kv_copy_init, which measures, to the end of the process.
 * Flow:  pieces in, bytes moved and ordered before whatever the caller stores next. Source and
 *        destination never overlap.
 * Cost:  the choice a few ms, BT_KV_COPY_BUDGET_NS of trials at most; a copy allocates nothing.
 */
#ifndef BT_TRANSPORT_COPY_H
#define BT_TRANSPORT_COPY_H

#include "transport/baton_kv.h"

#define BT_KV_COPY_BUDGET_NS UINT64_C(20000000)
#define BT_KV_COPY_WAYS 16u /* at most */
#define BT_KV_COPY_PAGE (16u << 10)
#define BT_KV_COPY_RUN (64u << 10) /* a row of so many is a run, not a page */

/* Of equal strides; rows 1: plain. */
typedef struct bt_kv_copy_piece {
    char *dst;
    const char *src;
    uint32_t bytes, rows, src_stride, dst_stride;
} bt_kv_copy_piece_t;

typedef struct bt_kv_copy_choice {
    bt_kv_copy_way_t small, pages, runs; /* as in bt_kv_agent_stats_t */
    uint64_t bytes_per_s, memcpy_bytes_per_s;
    uint64_t took_us;
} bt_kv_copy_choice_t;

/* What the choice asks: the real machine, or a spec's. */
typedef struct bt_kv_copy_bench {
    uint64_t (*now_ns)(void *user);
    /* One trial, of pieces of BT_KV_COPY_PAGE or _RUN: the CPU time it took. */
    uint64_t (*run_ns)(void *user, bt_kv_copy_way_t way, uint32_t piece_bytes);
    void *user;
    uint64_t trial_bytes;
} bt_kv_copy_bench_t;

/* What this processor can do, memcpy first; their number. */
uint32_t bt_kv_copy_ways(bt_kv_copy_way_t ways[BT_KV_COPY_WAYS]);
bt_kv_copy_choice_t bt_kv_copy_choose(const bt_kv_copy_bench_t *bench, const bt_kv_copy_way_t *ways,
                                      uint32_t count);
/* The first call measures, for the whole process. Any thread. */
const bt_kv_copy_choice_t *bt_kv_copy_init(void);
/* NULL before bt_kv_copy_init. */
const bt_kv_copy_choice_t *bt_kv_copy_chosen(void);

/* For a piece of a copy of `bytes` in all; choice NULL: memcpy. */
bt_kv_copy_way_t bt_kv_copy_way(const bt_kv_copy_choice_t *choice, size_t bytes,
                                size_t piece_bytes);
/* As chosen; before that by memcpy. `bytes`: of all pieces. */
void bt_kv_copy(const bt_kv_copy_piece_t *pieces, uint32_t count, size_t bytes);
/* By this one of bt_kv_copy_ways. */
void bt_kv_copy_by(bt_kv_copy_way_t way, const bt_kv_copy_piece_t *pieces, uint32_t count);

#endif
