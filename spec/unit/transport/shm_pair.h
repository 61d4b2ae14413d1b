/* shm_pair.h - two agents' worth of the shm back end in one process, for its specs.
 *
 * Owner: the spec. `a` sends, `b` receives; either may do both.
 * Life:  pair_open (hooks set before) -> ... -> pair_close.
 * Flow:  pair_turn is both sides' turn.
 * Cost:  tests only.
 */
#ifndef BT_SPEC_SHM_PAIR_H
#define BT_SPEC_SHM_PAIR_H

#include "path_rig.h"
#include "transport/backends/shm/shm.h"

typedef struct pair {
    rig_t a, b;
    rig_link_t *la, *lb;
} pair_t;

static inline bt_shm_path_t *shm_path(rig_link_t *link)
{
    return (bt_shm_path_t *) (void *) link->path;
}

static inline void pair_link(pair_t *p)
{
    int fds[2];
    rig_sockets(fds);
    p->la = rig_link(&p->a, fds[0], false);
    p->lb = rig_link(&p->b, fds[1], true);
}

static inline void pair_open(pair_t *p)
{
    rig_open(&p->a, &bt_kv_shm_ops);
    rig_open(&p->b, &bt_kv_shm_ops);
    pair_link(p);
    RIG_UNTIL(&p->a, &p->b,
              (p->la->is_ready && p->lb->is_ready) || p->la->has_failed || p->lb->has_failed);
}

static inline void pair_close(pair_t *p)
{
    rig_close(&p->a);
    rig_close(&p->b);
    bt_shm_hooks = (bt_shm_hooks_t){0};
    rig_hooks = (rig_hooks_t){0};
}

static inline void fill(bt_kv_mem_t *mem, unsigned seed)
{
    for (size_t i = 0; i < mem->size; i++)
        mem->p[i] = (char) ((i * 31 + (i >> 8) * 7 + seed) & 0xff);
}

static inline bt_kv_run_t plain(const bt_kv_mem_t *src, uint64_t src_offset, const bt_kv_mem_t *dst,
                                uint64_t dst_offset, uint32_t bytes)
{
    return (bt_kv_run_t){.src = src,
                         .src_offset = src_offset,
                         .dst = dst->id,
                         .dst_offset = dst_offset,
                         .bytes = bytes,
                         .rows = 1,
                         .src_stride = bytes,
                         .dst_stride = bytes};
}

/* What the runs should have made of the destination. */
static inline void model(char *dst, const bt_kv_run_t *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t row = 0; row < runs[i].rows; row++)
            memcpy(dst + runs[i].dst_offset + (size_t) row * runs[i].dst_stride,
                   runs[i].src->p + runs[i].src_offset + (size_t) row * runs[i].src_stride,
                   runs[i].bytes);
}

#endif
