/* shm.h - the insides of the shared-memory back end, shared by shm_*.c only.
 *
 * Owner: bt_shm_t belongs to the agent; a path belongs to the back end until path_close, or until the copy under way has ended.
 * Life:  a path: START -> (told, or connected) -> HELLO -> PROBE -> READY; BROKEN from anywhere, final.
 * Flow:  everything under the agent's lock, but copies (bt_shm_copy_begin .. end).
 * Cost:  a turn without news reads two cache lines a path and makes no system call.
 */
#ifndef BT_TRANSPORT_SHM_H
#define BT_TRANSPORT_SHM_H

#include <sys/types.h>
#include <sys/uio.h>

#include "base/sanitize.h"
#include "transport/backends/copy.h"
#include "transport/backends/shm/shm_area.h"

#define BT_SHM_OFFER_MAGIC 0x4d485342u /* "BSHM" */
#define BT_SHM_HANDSHAKE_MS 5000u
#define BT_SHM_GUESTS_MAX 64u    /* connections whose path is not known yet */
#define BT_SHM_REGIONS_MAX 4096u /* of a peer */
#define BT_SHM_PIECES 256u       /* in a slice */
#define BT_SHM_IOVS 512u         /* in a process_vm_readv; at most IOV_MAX */
/* Pulled in one go: a process_vm_readv costs 2 to 3 us beyond its copying, which a slice of memcpy does not; with 1 MiB it was a twentieth of the rate. */
#define BT_SHM_PULL_BYTES ((size_t) 4 << 20)
#define BT_SHM_LOOK_US 1000u /* between looks at the sockets while there is no sleep */
#define BT_SHM_POPULATE_BYTES ((size_t) 32 << 20)

typedef struct bt_shm_offer {
    uint32_t magic, version;
    uint32_t uid, unused;
    uint8_t boot_id[16];
    uint8_t incarnation[16]; /* names the socket */
} bt_shm_offer_t;

enum bt_shm_msg_type {
    BT_SHM_HELLO = 1, /* cookie; a: where the word to probe is, b: the word; fds: area, eventfd */
    BT_SHM_VERDICT,   /* id: 1 = your private memory can be read; a: errno */
    BT_SHM_GRANT_ASK, /* it cannot yet: please grant */
    BT_SHM_GRANTED,   /* id: 1 = granted, probe again; 0 = not granted */
    BT_SHM_REGION,    /* id; a: size, b: address, c: 1 = a pool, fd: its memfd */
    BT_SHM_UNREGION,  /* id */
    BT_SHM_BYE        /* closed on purpose: a hang-up without it is a process that ends */
};
typedef struct bt_shm_msg {
    uint32_t type, id;
    uint64_t a, b, c;
    uint8_t cookie[16];
} bt_shm_msg_t;

/* What is mapped of a peer's memfd. */
typedef struct bt_shm_view {
    const char *p; /* NULL = nothing */
    size_t length;
} bt_shm_view_t;

/* A region of the peer's. */
typedef struct bt_shm_map {
    bt_kv_region_t id;
    uint64_t size;
    uint64_t address;       /* in the peer */
    bt_shm_view_t view;     /* of a pool */
    size_t populated_bytes; /* faulted in so far */
} bt_shm_map_t;

typedef struct bt_shm_maps {
    bt_shm_map_t *all; /* by id */
    uint32_t count, room;
    uint32_t last; /* found last */
} bt_shm_maps_t;

enum bt_shm_stage { BT_SHM_START, BT_SHM_WAITING, BT_SHM_PROBING, BT_SHM_READY, BT_SHM_BROKEN };

typedef struct bt_shm bt_shm_t;

/* What the inner epoll hands back. */
enum bt_shm_watch_kind { BT_SHM_W_LISTENER, BT_SHM_W_GUEST, BT_SHM_W_SOCKET, BT_SHM_W_PIDFD };
typedef struct bt_shm_watch {
    enum bt_shm_watch_kind kind;
    void *owner;
} bt_shm_watch_t;

/* As sender. */
typedef struct bt_shm_tx {
    bt_list_t sending,
        flying;    /* bt_kv_batch_t.link: not all in the ring yet; waiting for the receiver */
    uint32_t held; /* in both lists */
    uint64_t run_head, run_tail, batch_head, batch_done;
    uint64_t window_head, window_tail;
    uint64_t window_end[BT_SHM_RUNS]; /* window_head behind each run in the ring */
    bool is_cut;                      /* the first of `sending` is to end early */
    bool may_pull;   /* the peer can read our private memory; else it goes through the window */
    bool in_window;  /* a copy into it is under way with the lock let go: the ring is that copy's */
    bool is_blocked; /* until the receiver frees space, or the socket takes messages again */
} bt_shm_tx_t;

/* As receiver. */
typedef struct bt_shm_rx {
    uint64_t taken, run_tail, batch_count; /* runs taken, of which told; batches over */
    bt_shm_batch_t batch;                  /* the copies of what was in shared memory */
    bt_shm_run_t run;
    uint64_t row, byte; /* how far into run */
    bool in_batch, in_run, has_pulled, has_window;
    bool owes_kick; /* batch_done has moved, and the sender was not woken for it */
    uint8_t status;
} bt_shm_rx_t;

typedef struct bt_shm_path {
    bt_kv_path_t base;
    bt_list_t link;
    enum bt_shm_stage stage;
    bool is_initiator, is_closed, is_told; /* path_close was called; the agent knows of the end */
    bool has_cookie, has_peer_verdict, has_verdict, has_asked;
    bool can_pull; /* we from the peer */
    int pull_errno;
    uint32_t held; /* by a function up the stack */
    int rc;
    char why[200];
    uint64_t deadline_ms;
    bt_shm_offer_t offer; /* the peer's */
    uint8_t cookie[16];
    int sock, pidfd, area_fd, wake_in, wake_out;
    pid_t pid; /* 0 = not visible from here */
    bt_shm_watch_t sock_watch, pid_watch;
    bt_list_t unsent; /* struct unsent, shm_sock.c */
    bt_shm_area_t *mine;
    const bt_shm_area_t *theirs;
    uint64_t probe_word, last_woken;
    uint64_t peer_word_at, peer_word;
    bt_shm_maps_t maps;
    bt_shm_tx_t tx;
    bt_shm_rx_t rx;
} bt_shm_path_t;

typedef struct bt_shm_region { /* ours; keys[] of bt_kv_mem_t */
    bt_list_t link;
    const bt_kv_mem_t *mem;
    bool is_pool; /* and sealed, so that peers may map it */
} bt_shm_region_t;

typedef struct bt_shm_slice {
    bt_kv_copy_piece_t pieces[BT_SHM_PIECES]; /* pulled: src is an address of the peer's */
    uint32_t count, iovs;
    size_t bytes;
    bool is_pulled;
} bt_shm_slice_t;

struct bt_shm {
    bt_kv_backend_t base;
    int listener, inner; /* inner: an epoll over all that is not a wake-up */
    bt_shm_watch_t listener_watch;
    bt_shm_offer_t offer;
    bt_list_t paths, regions, guests;
    uint32_t guest_count, opening; /* connections without a path; paths that are not READY */
    uint64_t sleeps, look_us;      /* number of the last sleep; when to look at the sockets again */
    bool is_armed, has_slept;
    bool has_new_pools; /* not faulted in yet */
    uint32_t idle_turns;
    const bt_shm_path_t *busy_path; /* a copy is under way with the lock let go, of: */
    uint64_t busy_tag;
    bool
        is_busy; /* atomic: cleared by the copier when its last byte has moved, before it has the lock again */
    bt_shm_slice_t slice;
};

/* For specs: what this machine does not do by itself. */
typedef struct bt_shm_hooks {
    int probe_failures;   /* so many next probes fail with EPERM; -1 = all */
    bool no_window;       /* there is no memory for it */
    bool no_seal;         /* areas and pools stay unsealed, and are passed on all the same */
    bool no_map;          /* mapping fails */
    unsigned short_sends; /* so many next messages find the kernel without memory (ENOBUFS) */
} bt_shm_hooks_t;
extern bt_shm_hooks_t bt_shm_hooks;

static inline bt_shm_path_t *bt_shm_path_of(const bt_kv_path_t *base)
{
    return (bt_shm_path_t *) (uintptr_t) base;
}

static inline bt_shm_t *bt_shm_of(const bt_shm_path_t *path)
{
    return (bt_shm_t *) (void *) path->base.backend;
}

/* Between the last byte of a copy and the flags that say whether it may count. TSan knows no fences. */
static inline void bt_shm_read_fence(void)
{
#if !BT_TSAN
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

/* backend_shm.c */
void bt_shm_copy_begin(bt_shm_path_t *path, uint64_t tag); /* lets the lock go */
void bt_shm_copy_end(bt_shm_path_t *path);                 /* and has it again: look at is_closed */

/* shm_path.c */
int bt_shm_path_open(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *offer, size_t size, bool is_initiator);
int bt_shm_path_received(bt_kv_path_t *path, const uint8_t *message, size_t size);
void bt_shm_path_close(bt_kv_path_t *path);
void bt_shm_path_let_go(
    bt_shm_path_t *path); /* after held++: frees it, if it was closed meanwhile */
/* Final; the agent hears of it from progress. */
void bt_shm_path_break(bt_shm_path_t *path, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int bt_shm_path_step(bt_shm_path_t *path); /* opening, deadlines, telling the agent */
void bt_shm_path_attach(bt_shm_path_t *path, int sock);
void bt_shm_path_read(bt_shm_path_t *path); /* its socket has something */
bool bt_shm_path_peer_lives(const bt_shm_path_t *path);
void bt_shm_path_region(bt_shm_path_t *path,
                        const bt_shm_region_t *region); /* tells the peer of it */

/* shm_sock.c */
int bt_shm_listen(const bt_shm_offer_t *offer);
int bt_shm_connect(const bt_shm_offer_t *offer);
bool bt_shm_is_own_user(int sock, pid_t *pid_p); /* the peer's process runs as ours does */
int bt_shm_pidfd(int sock, pid_t pid);
int bt_shm_send(bt_shm_path_t *path, const bt_shm_msg_t *msg, const int *fds, uint32_t fd_count);
void bt_shm_flush(bt_shm_path_t *path);
void bt_shm_unsent_free(bt_shm_path_t *path);
/* 1 = a message, its fds (or -1) are the caller's; 0 = none now; < 0: the connection is over. */
int bt_shm_recv(int sock, bt_shm_msg_t *msg, int fds[2]);
void bt_shm_accept(bt_shm_t *shm);
void bt_shm_guest_read(bt_shm_t *shm, void *guest);
void bt_shm_guests_expire(bt_shm_t *shm, uint64_t now_ms);
void bt_shm_guests_match(bt_shm_t *shm, bt_shm_path_t *path); /* its cookie is known now */
void bt_shm_guests_free(bt_shm_t *shm);

/* shm_map.c */
int bt_shm_area_make(bt_shm_area_t **area_p, int *fd_p);
/* Of the peer's memfd; takes nothing. BT_E_INVAL: it is not what it should be, `why` says it. */
int bt_shm_map_fd(int fd, size_t size, bt_shm_view_t *view_p, const char **why_p);
void bt_shm_unmap(const bt_shm_view_t *view);
bool bt_shm_seal(int fd); /* true: sealed well enough for peers to map it */
int bt_shm_maps_add(bt_shm_maps_t *maps, const bt_shm_map_t *map);
const bt_shm_map_t *bt_shm_maps_find(bt_shm_maps_t *maps, bt_kv_region_t id);
void bt_shm_maps_remove(bt_shm_maps_t *maps, bt_kv_region_t id);
void bt_shm_maps_free(bt_shm_maps_t *maps);
/* A piece that is not faulted in yet: its address, or NULL. It counts as populated from now on. */
const char *bt_shm_maps_populate_next(bt_shm_maps_t *maps, size_t *bytes_p);
void bt_shm_populate(const char *p, size_t bytes);

/* shm_pull.c */
int bt_shm_probe(pid_t pid, uint64_t at, uint64_t word); /* 0, or an errno */
bool bt_shm_grant(const void *who, pid_t pid);           /* one process may be granted at a time */
void bt_shm_revoke(const void *who);
int bt_shm_pull(pid_t pid, const bt_shm_slice_t *slice); /* 0, or an errno */

/* shm_send.c */
int bt_shm_post(bt_kv_path_t *path, bt_kv_batch_t *batch);
int bt_shm_pump(bt_shm_path_t *path);   /* batches into the ring; true: something moved */
int bt_shm_window(bt_shm_path_t *path); /* the same through the window: lets the lock go */
int bt_shm_reap(bt_shm_path_t *path);   /* what the receiver has finished */
bool bt_shm_tx_has_news(const bt_shm_path_t *path);
bool bt_shm_tx_drain(bt_shm_path_t *path, uint64_t tag);
void bt_shm_tx_drop(bt_shm_path_t *path); /* all of it, BT_E_CANCELLED */

/* shm_take.c */
int bt_shm_rx_step(bt_shm_path_t *path, size_t *budget);
bool bt_shm_rx_has_news(const bt_shm_path_t *path);

/* shm_wake.c */
void bt_shm_kick(bt_shm_path_t *path);
void bt_shm_kick_owed(bt_shm_path_t *path);
void bt_shm_wake_self(bt_shm_path_t *path);
bool bt_shm_arm(bt_kv_backend_t *backend);
void bt_shm_disarm(bt_shm_t *shm);

#endif
