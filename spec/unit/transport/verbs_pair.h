/* verbs_pair.h - two ends of a path over verbs, made of path_rig.h, for the specs on the fake provider and in the emulated machine.
 *
 * Owner: the spec. The sender is `a` and has dialled; `b` receives.
 * Life:  pair_open -> pair_fill, pair_post, RIG_UNTIL ... -> pair_close.
 * Flow:  source bytes are a pattern of their address; pair_check says which destination bytes differ.
 * Cost:  tests only.
 */
#ifndef BT_SPEC_VERBS_PAIR_H
#define BT_SPEC_VERBS_PAIR_H

#include "transport/path_rig.h"

#include "base/rand.h"
#include "transport/backends/verbs/verbs.h"

#define PAIR_BYTES ((size_t) 4 << 20)
#define PAGE_BYTES 4096u

typedef struct pair {
    rig_t a, b;
    rig_link_t *la, *lb;
    bt_kv_mem_t *src, *dst;
} pair_t;

static pair_t pair;

static inline void pair_fill(void)
{
    for (size_t i = 0; i < PAIR_BYTES / 8; i++)
        ((uint64_t *) (void *) pair.src->p)[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    memset(pair.dst->p, 0xee, PAIR_BYTES);
}

static inline void pair_link(void)
{
    int fds[2];

    rig_sockets(fds);
    pair.la = rig_link(&pair.a, fds[0], true);
    pair.lb = rig_link(&pair.b, fds[1], false);
}

static inline void pair_start(const char *devices_a, const char *devices_b)
{
    bt_kv_config_t config = {.name = "a", .rdma_devices = devices_a};

    rig_open_config(&pair.a, bt_kv_verbs_ops(), &config);
    config.rdma_devices = devices_b;
    rig_open_config(&pair.b, bt_kv_verbs_ops(), &config);
    pair.src = rig_pool(&pair.a, PAIR_BYTES);
    pair.dst = rig_private(&pair.b, PAIR_BYTES);
    pair_fill();
    pair_link();
}

#define PAIR_UNTIL(condition) RIG_UNTIL(&pair.a, &pair.b, condition)

/* A path is open when its own end says so and the peer's regions are known: told in that order. */
static inline void pair_open(const char *devices_a, const char *devices_b)
{
    pair_start(devices_a, devices_b);
    PAIR_UNTIL(pair.la->is_ready && pair.lb->is_ready);
    rig_say(pair.lb, 1);
    PAIR_UNTIL(pair.la->said == 1);
}

static inline void pair_close(void)
{
    rig_close(&pair.a);
    rig_close(&pair.b);
}

static inline bt_verbs_path_t *pair_path(const rig_link_t *link)
{
    return (bt_verbs_path_t *) (void *) link->path;
}

static inline bt_kv_run_t pair_run(uint64_t from, uint64_t to, uint32_t bytes)
{
    return (bt_kv_run_t){.src = pair.src,
                         .src_offset = from,
                         .dst = pair.dst->id,
                         .dst_offset = to,
                         .bytes = bytes,
                         .rows = 1};
}

/* n pages in a random order on both sides, no two of them neighbours by design. */
static inline void pair_scatter(bt_kv_run_t *runs, uint32_t n)
{
    uint32_t pages = (uint32_t) (PAIR_BYTES / PAGE_BYTES);

    for (uint32_t i = 0; i < n; i++)
        runs[i] = pair_run((uint64_t) (i * 389 + 7) % pages * PAGE_BYTES,
                           (uint64_t) (i * 269 + 3) % pages * PAGE_BYTES, PAGE_BYTES);
}

static inline void pair_check(const bt_kv_run_t *runs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < runs[i].rows; row++)
            assert_memory_equal(
                pair.dst->p + runs[i].dst_offset + (uint64_t) row * runs[i].dst_stride,
                pair.src->p + runs[i].src_offset + (uint64_t) row * runs[i].src_stride,
                runs[i].bytes);
}

#endif
