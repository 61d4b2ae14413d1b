/* tcp_pair.h - two rigs over TCP: what the specs of this back end share. Include it once a program. */
#ifndef BT_SPEC_TCP_PAIR_H
#define BT_SPEC_TCP_PAIR_H

#include "path_rig.h"

#include "transport/backends/tcp/tcp.h"

#include <netinet/in.h>
#include <sys/ioctl.h>

#define PAGE 16384u

typedef struct tcp_pair {
    rig_t tx, rx;
    rig_link_t *out, *in; /* of tx (dialled by the other), of rx */
    bt_kv_mem_t *src, *dst;
    size_t size;
} tcp_pair_t;

static inline bt_tcp_path_t *tcp_path(rig_link_t *link)
{
    return (bt_tcp_path_t *) (void *) link->path;
}
static inline void fill_random(bt_kv_mem_t *mem, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= mem->size; i += 8) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(mem->p + i, &seed, 8);
    }
}
/* Both ends are open and told so. */
static inline void pair_link(tcp_pair_t *pair)
{
    int fds[2];
    rig_sockets(fds);
    pair->out = rig_link(&pair->tx, fds[0], false);
    pair->in = rig_link(&pair->rx, fds[1], true);
}
static inline void pair_open(tcp_pair_t *pair, uint32_t streams, size_t size)
{
    pair->size = size;
    rig_open(&pair->tx, &bt_kv_tcp_ops);
    rig_open(&pair->rx, &bt_kv_tcp_ops);
    ((bt_tcp_t *) (void *) pair->tx.backend)->streams = streams;
    pair->src = rig_private(&pair->tx, size);
    pair->dst = rig_private(&pair->rx, size);
    fill_random(pair->src, 7);
    pair_link(pair);
    RIG_UNTIL(&pair->tx, &pair->rx, pair->out->is_ready && pair->in->is_ready);
}
static inline void pair_close(tcp_pair_t *pair)
{
    rig_close(&pair->tx);
    rig_close(&pair->rx);
}
static inline bt_kv_run_t plain_run(const tcp_pair_t *pair, uint64_t from, uint64_t to,
                                    uint32_t bytes)
{
    return (bt_kv_run_t){.src = pair->src,
                         .src_offset = from,
                         .dst = pair->dst->id,
                         .dst_offset = to,
                         .bytes = bytes,
                         .rows = 1};
}
static inline bool are_there(const tcp_pair_t *pair, const bt_kv_run_t *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t row = 0; row < runs[i].rows; row++)
            if (memcmp(pair->src->p + runs[i].src_offset + (size_t) row * runs[i].src_stride,
                       pair->dst->p + runs[i].dst_offset + (size_t) row * runs[i].dst_stride,
                       runs[i].bytes) != 0)
                return false;
    return true;
}
static inline bool is_all_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}
static inline void set_buffers(bt_tcp_path_t *path, int bytes)
{
    for (uint32_t i = 0; i < path->streams; i++) {
        setsockopt(path->conns[i]->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
        setsockopt(path->conns[i]->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    }
}
static inline uint32_t numbers_below(uint32_t bound)
{
    static uint64_t x = 88172645463325252;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t) (x % bound);
}

#endif
