/* backend.h - what moves bytes between two agents: one table of functions, five of them behind it. Private to transport.
 *
 * Owner: one bt_kv_backend_t per agent and kind, one bt_kv_path_t per link that uses it. All calls are made under the agent's lock,
 *        by whichever thread holds it; nothing here waits.
 * Life:  open -> region_add... -> path_open (with what the peer's hello offers) -> ready -> post... -> path_close -> close.
 * Flow:  the sender posts batches; a batch is a chunk for one receiver as runs (source, destination, length), plus a note. When all of its
 *        bytes lie at the receiver, the receiver's agent gets the note (bt_kv_got_note), and the sender's hears that the batch is over
 *        (bt_kv_batch_over): only then may its source pages be reused.
 *        A back end may push (the sender writes) or pull (the receiver reads): the agent does not know which.
 * Cost:  post is O(runs). progress does a bounded piece of work (BT_KV_SLICE_BYTES of copying) and returns.
 *
 * Threads: everything but post, region_add, region_remove and region_key is called from the agent's progress only (its thread, or bt_kv_progress), so
 * path_close, drain and told never meet a copy under way in progress. post and the region calls come from any thread, also while progress has let the
 * lock go. Only progress may let it go (bt_kv_unlock); post may copy a little itself, under the lock. No bt_kv_* callback calls back into a back end.
 *
 * Safety: a destination is (region, offset) of the receiver, checked by the *receiver's* side against its own regions and against the
 * room's announced pages wherever the receiver's code moves the bytes (shm, tcp); where the sender's hardware writes (verbs), the remote key limits it to
 * the regions. mem trusts, being one process.
 */
#ifndef BT_TRANSPORT_BACKEND_H
#define BT_TRANSPORT_BACKEND_H

#include "base/err.h"
#include "base/list.h"
#include "transport/baton_kv.h"

#define BT_KV_BACKENDS 5 /* kinds in all, list.c */
#define BT_KV_SLICE_BYTES                                                                          \
    ((size_t) 256 << 10)       /* copied in one go while the agent's lock is let go of */
#define BT_KV_NOTE_BYTES 64    /* of a note, at most */
#define BT_KV_OFFER_BYTES 1024 /* of what a back end tells about itself in the hello */

typedef struct bt_kv_backend bt_kv_backend_t;
typedef struct bt_kv_path bt_kv_path_t; /* a back end's side of one link */
typedef struct bt_kv_link bt_kv_link_t; /* link.h: the control connection */

/* A registered piece of memory. */
typedef struct bt_kv_mem {
    bt_kv_region_t id;
    char *p;
    size_t size;
    int fd;             /* of a pool's memfd, or a dma-buf (p is NULL then); -1 = private memory */
    uint64_t fd_offset; /* of the region's first byte in a dma-buf */
    bool is_pool;
    void *keys[5]; /* what each back end made of it (by bt_kv_backend_index) */
    size_t mapped; /* of a pool: bytes of its mapping, which is also the memfd's size (>= size) */
    uint32_t refs; /* the agent's: layouts and rooms that use it */
} bt_kv_mem_t;

/* A contiguous piece on both sides, or `rows` pieces of `bytes` at fixed strides (rows 1: plain). */
typedef struct bt_kv_run {
    const bt_kv_mem_t *src;
    uint64_t src_offset;
    bt_kv_region_t dst; /* the receiver's id */
    uint64_t dst_offset;
    uint32_t bytes;
    uint32_t rows, src_stride, dst_stride;
} bt_kv_run_t;

/* Belongs to the agent; the back end borrows it from post until bt_kv_batch_over. */
typedef struct bt_kv_batch {
    bt_list_t link; /* the back end's queue */
    bt_kv_path_t *path;
    uint64_t tag; /* of the room on this link: what drain names */
    const bt_kv_run_t *runs;
    uint32_t run_count;
    uint64_t bytes;
    uint8_t note[BT_KV_NOTE_BYTES];
    uint32_t note_bytes; /* 0 = nobody is told */
    /* the back end's own progress */
    uint32_t next_run;
    uint64_t next_byte, posted, done;
} bt_kv_batch_t;

typedef struct bt_kv_backend_ops {
    enum bt_kv_kind kind;
    const char *name;
    int rank; /* the higher, the better: the best common one is tried first */
    /* err: why it cannot be used on this machine (kept for describe). agent is only for bt_kv_* callbacks below. */
    int (*open)(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent, const bt_kv_config_t *config,
                char *err, size_t err_size);
    void (*close)(bt_kv_backend_t *backend); /* all paths are closed */
    /* Both NULL: it reads and writes by address, whatever has one, and keeps no list. */
    int (*region_add)(bt_kv_backend_t *backend, bt_kv_mem_t *mem);
    void (*region_remove)(bt_kv_backend_t *backend, bt_kv_mem_t *mem);
    /* What a peer must know to reach us; bytes written, 0 = not offered. */
    size_t (*offer)(bt_kv_backend_t *backend, uint8_t *to, size_t size);
    /* The peer's offer came. 0: a path that will call bt_kv_path_ready or bt_kv_path_failed (never from inside). Further messages of its own
     * go by bt_kv_path_send and arrive at `received`. is_initiator: this side dialled the link. */
    int (*path_open)(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *offer, size_t size, bool is_initiator);
    int (*received)(bt_kv_path_t *path, const uint8_t *message,
                    size_t size); /* < 0: the path has failed */
    /* No batch is left posted on it after this: each got bt_kv_batch_over with BT_E_CANCELLED. Nothing of this side moves on it any more. */
    void (*path_close)(bt_kv_path_t *path);
    /* A region of the peer's: id, size, and the key that its region_key made; removed: key NULL. Both NULL where a number is all that a peer needs. */
    int (*peer_region)(bt_kv_path_t *path, bt_kv_region_t id, uint64_t size, const uint8_t *key,
                       size_t key_size);
    size_t (*region_key)(bt_kv_backend_t *backend, const bt_kv_mem_t *mem, uint8_t *to,
                         size_t size);
    /* 0, or BT_E_AGAIN: the path's queue is full, the agent tries again after the next batch is over. bt_kv_batch_over may come from inside.
     * Notes of one tag may overtake each other on their way. */
    int (*post)(bt_kv_path_t *path, bt_kv_batch_t *batch);
    /* The room has failed: whatever of it is not yet moving is dropped (bt_kv_batch_over, BT_E_CANCELLED). True: nothing of this tag moves
     * on *this* side any more, and nothing will, whatever the peer still sends. False: ask again after progress. */
    bool (*drain)(bt_kv_path_t *path, uint64_t tag);
    /* Things done; 0 = nothing to do now. A wake-up that it owes to a peer may wait for the next progress or arm. */
    int (*progress)(bt_kv_backend_t *backend);
    /* About to sleep. True: there is something to do after all. Else every event will make one of `fds` readable. */
    bool (*arm)(bt_kv_backend_t *backend);
    /* Only without close_revokes. True: the peer's process is known to be gone (pidfd): its reads and
     * writes are over. */
    bool (*peer_is_dead)(const bt_kv_path_t *path);
    /* Adds to a line of bt_kv_agent_describe: how data goes on this path, and why not better. */
    int (*describe)(const bt_kv_path_t *path, char *text, size_t size);
    /* After path_close the peer cannot touch our memory, whatever it does: all goes through this side's code or hardware. False (a pool that
     * the peer has mapped, memory that it reads by itself): a lost peer's rooms are released when peer_is_dead says so, or after release_ms. */
    bool close_revokes;
    /* Only this side's code writes into this side's memory: a receiver's pages are free again when its own drain says so, however long the peer is silent. */
    bool is_pulled;
} bt_kv_backend_ops_t;

/* The first member of every back end and path. */
struct bt_kv_backend {
    const bt_kv_backend_ops_t *ops;
    bt_kv_agent_t *agent;
};
struct bt_kv_path {
    bt_kv_backend_t *backend;
    bt_kv_link_t *link;
    void *user; /* the agent's */
};

/* list.c. NULL: not in this build, or no device; fake, which moves nothing, needs none. */
const bt_kv_backend_ops_t *bt_kv_backend_ops_at(unsigned index);
extern const bt_kv_backend_ops_t bt_kv_mem_ops, bt_kv_shm_ops, bt_kv_tcp_ops;
const bt_kv_backend_ops_t *bt_kv_verbs_ops(
    void); /* NULL where libibverbs is not built in or finds no device */
static inline unsigned bt_kv_backend_index(enum bt_kv_kind kind)
{
    return (unsigned) __builtin_ctz((unsigned) kind);
}

/* ---- what back ends call; all under the agent's lock ---- */
void bt_kv_path_ready(bt_kv_path_t *path);
void bt_kv_path_failed(bt_kv_path_t *path, int rc, const char *why);
/* A message to the path's other end, over the control connection. */
int bt_kv_path_send(bt_kv_path_t *path, const uint8_t *message, size_t size);
/* In place: what one side has told the other so becomes a secret of the two, where they have proved a token; whoever has read it cannot use it. At most 32 bytes. */
void bt_kv_path_bind(bt_kv_path_t *path, uint8_t *bytes, size_t n);
/* All bytes of the batch lie at the receiver (rc 0), or it is given up. The batch is the agent's again. */
void bt_kv_batch_over(bt_kv_batch_t *batch, int rc);
/* Receiver: all bytes that belong to this note are in place. */
void bt_kv_got_note(bt_kv_path_t *path, const uint8_t *note, size_t size);
/* Receiver: may the peer's data of this tag go to [offset, offset + bytes) of this region now? The pages a live room has announced to this link
 * (several when they adjoin without a gap), or its pieces; NULL = no (the room failed, ended, or never asked for it). Of a run with rows, ask for the
 * extent (rows - 1) * dst_stride + bytes: it lies inside one page. */
char *bt_kv_destination(bt_kv_path_t *path, uint64_t tag, bt_kv_region_t region, uint64_t offset,
                        uint64_t bytes);
/* A file descriptor that the agent's sleep watches for reading (EPOLLIN) or also for writing (EPOLLOUT). */
int bt_kv_watch(bt_kv_agent_t *agent, int fd, uint32_t events);
void bt_kv_unwatch(bt_kv_agent_t *agent, int fd);
/* Around a copy inside progress: others may use the agent meanwhile (post, regions). No path is closed between them. */
void bt_kv_unlock(bt_kv_agent_t *agent);
void bt_kv_relock(bt_kv_agent_t *agent);

#endif
