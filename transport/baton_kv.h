/* baton_kv.h - libbaton_kv: moves KV cache pages from a prefill process to a decode process. The one public header.
 *
 * Owner: an engine embeds an agent, one per process and rank. Handles are numbers, never pointers: a stale one is refused.
 * Life:  agent -> memory -> layouts -> rooms, many at once -> close. A room is opened on both sides, in any order.
 * Flow:  receiver: recv_open(room, sender's address, pages) -> poll until Success or Failed -> release.
 *        sender:   send_open(room) -> WaitingForInput -> send, chunk by chunk or layer by layer, the last with aux -> Success.
 * Cost:  no call waits. Per chunk: work by runs of pages, not by pages; no allocation after warm-up; a poll is one atomic load.
 *
 * Threads: with BT_KV_PROGRESS_THREAD (the default) any thread may call anything; the agent's own thread moves data and sleeps when there is
 * none to move. With BT_KV_PROGRESS_CALLER no thread is made: bt_kv_progress does the work, and one thread at a time may call the agent.
 *
 * States are numbered as in SGLang's KVPoll, so that MIN over ranks works. They only move forward; Success and Failed are final.
 *
 *     Bootstrapping 1 ---> WaitingForInput 2 ---> Transferring 3 ---> Success 4
 *           |                     |                     |
 *           +---------------------+---------------------+----------> Failed 0
 *
 * Sender:   Bootstrapping until every receiver has announced its pages; WaitingForInput until the first chunk.
 * Receiver: Bootstrapping until its announcement has been sent to every sender; WaitingForInput until the first byte.
 *
 * Pages. A layout is a list of buffers (a layer's K, a layer's V, ...): page i of buffer b lies at base[b] + i * stride[b] and has
 * bytes[b] bytes. A chunk names pages by index, for a range of buffers: the same index in each. Both sides of a room have the same number
 * of buffers and pages of the same size, or the receiver's is sliced (tensor parallel: bt_kv_slice_t; where a gateway names the senders: bt_kv_heads_t).
 * What the bytes of a page mean is the engines' affair: two agents that say it (kv_format) and do not say the same get no link.
 *
 * Release. After Failed a writer may still be under way in the receiver's pages, and a reader in the sender's. bt_kv_room_release tells
 * when they may be used again: 1 = now (the handle is gone), 0 = ask again. (After Success, too, where a gateway has replaced the sender: the first one must be quiet.) It never stays 0 for longer than release_ms after the end of the room or
 * the death of the peer's process, whichever proves that nobody touches them.
 *
 * Who may connect. An agent tells its regions and layouts only to a peer that it may have rooms with. With a token: to one that has proved the same token, from
 * wherever. Without one: to agents on its own host, whose address is loopback or the one that this end of the connection has (what a proxy on this host forwards counts
 * as this host's); all others are refused by name. allow_remote opens an agent without a token to whoever reaches its port: he reads those tables, and as the other
 * side of a room its pages. Both rules hold for those that it dials, too. The token is not said: both prove that they have it, over nonces
 * (HMAC-SHA256; transport/wire/auth.h), and what they say on the control connection is sealed from then on; data connections are let in by a secret of that
 * session. Nothing is encrypted: pages, and what is said about them, can be read on their way, and pages changed. What was recorded lets a token be guessed at, so
 * take a long random one (openssl rand -hex 32). Several, one a line: the first is proved to whom the agent dials, any is taken from whoever dials it; so one is changed by
 * "old, new" on all, then "new, old", then "new".
 *
 * Errors: 0 or a negative code; bt_kv_error_text names it. A bad argument changes nothing.
 */
#ifndef BATON_KV_H
#define BATON_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BT_KV_API __attribute__((visibility("default")))
#define BT_KV_VERSION 1 /* of this interface; a peer with another one is refused by name */

typedef struct bt_kv_agent bt_kv_agent_t;
typedef uint64_t bt_kv_room_t; /* handle: slot and epoch; 0 = none */

enum bt_kv_state {
    BT_KV_FAILED = 0,
    BT_KV_BOOTSTRAPPING = 1,
    BT_KV_WAITING_FOR_INPUT = 2,
    BT_KV_TRANSFERRING = 3,
    BT_KV_SUCCESS = 4
};

enum bt_kv_kind {
    BT_KV_FAKE =
        1, /* alone only: nothing moves, no peer is needed, every room succeeds: for tests of the caller */
    BT_KV_MEM = 2,   /* both agents in this process */
    BT_KV_SHM = 4,   /* same host: pools mapped by both, private memory by process_vm_readv */
    BT_KV_TCP = 8,   /* anywhere */
    BT_KV_VERBS = 16 /* RDMA */
};

enum bt_kv_progress { BT_KV_PROGRESS_THREAD, BT_KV_PROGRESS_CALLER };

/* Zero means the default, everywhere. */
typedef struct bt_kv_config {
    const char *name; /* of this agent, for peers' messages and stats; required */
    const char *
        host; /* numeric IPv4, of the control listener and of data connections; default 127.0.0.1 */
    uint16_t port; /* 0 = any; bt_kv_agent_port tells */
    enum bt_kv_progress progress;
    uint32_t
        backends; /* bits of bt_kv_kind that may be used; default all but fake. The best common one is taken a peer */
    const char *
        token; /* shared secret of agents that may talk to each other, or several, one a line, of 1,024 bytes in all; NULL or "" = none, and then agents of this host only */
    uint32_t heartbeat_ms; /* default 1,000: sent on every quiet control connection */
    uint32_t dead_ms;      /* default 5,000 without a sign of life: all rooms with that peer fail */
    uint32_t bootstrap_ms; /* default 300,000: Bootstrapping and WaitingForInput together */
    uint32_t stall_ms;     /* default 60,000: Transferring without progress */
    uint32_t release_ms;   /* default 30,000 */
    uint32_t max_rooms;    /* default 65,536 at once; one more is BT_E_LIMIT */
    uint32_t
        lane_depth; /* default 1,024 chunks waiting for one peer; one more is BT_E_AGAIN, nothing taken */
    uint32_t tcp_streams; /* data connections to a peer; default 1 */
    uint32_t spin_us;     /* how long the agent's thread looks before it sleeps; default 10 */
    bool crc;             /* CRC32C over page data, checked before Success */
    bool allow_remote; /* no token, and agents of other hosts all the same: see "Who may connect" */
    const char *rdma_devices; /* "mlx5_0,mlx5_1"; NULL = all that are active */
    int gid_index;            /* -1 or 0 = chosen */
    const char *
        kv_format; /* what the bytes of a page are, in words: "dtype=float16 block_size=32 ...", at most 240 bytes.
                      Agents whose formats differ refuse each other and name the first word that does; NULL = not compared */
} bt_kv_config_t;

/* err: one line that names what is wrong and the remedy. */
BT_KV_API int bt_kv_agent_open(bt_kv_agent_t **agent_p, const bt_kv_config_t *config, char *err,
                               size_t err_size);
/* Fails every room, tells the peers, waits at most a second for them, frees. NULL: nothing. */
BT_KV_API void bt_kv_agent_close(bt_kv_agent_t *agent);
BT_KV_API uint16_t bt_kv_agent_port(const bt_kv_agent_t *agent);
/* Becomes readable when a room has ended or reached WaitingForInput; reading it (8 bytes) re-arms. For an engine's own loop. */
BT_KV_API int bt_kv_agent_fd(const bt_kv_agent_t *agent);
/* CALLER mode: does what there is to do, and when there is nothing, sleeps for it at most timeout_ms (0 = not at all). Number of things done.
 * Call it until that is 0: what other calls, or rooms that have just ended, have to say to peers leaves with the next one. */
BT_KV_API int bt_kv_progress(bt_kv_agent_t *agent, uint32_t timeout_ms);
BT_KV_API const char *bt_kv_error_text(int rc);

/* ---- memory ---- */
typedef uint32_t bt_kv_region_t; /* 0 = none */

/* A pool of the library's own (memfd, huge pages where the system grants them): peers on this host map it. Zeroed. */
BT_KV_API int bt_kv_pool_alloc(bt_kv_agent_t *agent, size_t size, void **p,
                               bt_kv_region_t *region_p);
/* The engine's own memory; it must stay until the region is removed. */
BT_KV_API int bt_kv_region_add(bt_kv_agent_t *agent, void *p, size_t size,
                               bt_kv_region_t *region_p);
/* Device memory behind a dma-buf. BT_E_INVAL where no back end can take it. */
BT_KV_API int bt_kv_region_add_dmabuf(bt_kv_agent_t *agent, int fd, uint64_t offset, size_t size,
                                      bt_kv_region_t *region_p);
/* BT_E_AGAIN while a room uses it. A pool's memory is unmapped. */
BT_KV_API int bt_kv_region_remove(bt_kv_agent_t *agent, bt_kv_region_t region);

/* ---- layout ---- */
typedef struct bt_kv_buffer {
    bt_kv_region_t region;
    uint64_t offset; /* of page 0 in the region */
    uint64_t stride; /* from page i to page i + 1; >= bytes */
    uint64_t bytes;  /* of a page */
} bt_kv_buffer_t;

typedef uint32_t bt_kv_layout_t; /* 0 = none */
/* pages: how many fit; every buffer must hold that many. */
BT_KV_API int bt_kv_layout_add(bt_kv_agent_t *agent, const bt_kv_buffer_t *buffers, uint32_t count,
                               uint32_t pages, bt_kv_layout_t *layout_p);
BT_KV_API int bt_kv_layout_remove(bt_kv_agent_t *agent, bt_kv_layout_t layout);

/* ---- receiver ---- */
/* Which part of a page comes from which sender, when the tensor-parallel sizes differ: a page is `rows` rows (tokens); of each row the
 * receiver takes `bytes` bytes from src_offset of the sender's row and puts them at dst_offset of its own. Zeroed = the whole page. The library
 * merges rows where both sides are contiguous and moves the rest as strided blocks, one descriptor a page. */
typedef struct bt_kv_slice {
    uint32_t rows;
    uint32_t src_row, dst_row; /* bytes of a row on each side */
    uint32_t src_offset, dst_offset, bytes;
} bt_kv_slice_t;

typedef struct bt_kv_source {
    const char *host; /* of the sender's agent, numeric */
    uint16_t port;
    bool dummy; /* it sends nothing and is not waited for (MLA: another rank has the same bytes) */
    bt_kv_slice_t slice;
} bt_kv_source_t;

typedef struct bt_kv_piece { /* aux or state data: one contiguous piece of a region */
    bt_kv_region_t region;
    uint64_t offset, bytes; /* bytes 0 = none */
} bt_kv_piece_t;

#define BT_KV_PIECES_MAX 8

typedef struct bt_kv_recv {
    uint64_t room; /* the pair's id, never 0 */
    bt_kv_layout_t layout;
    const uint32_t *pages; /* where the prompt's pages go, in order; copied */
    uint32_t page_count;
    uint32_t prefix_pages; /* so many leading pages are here already: the sender leaves them out */
    const bt_kv_source_t *sources;
    uint32_t source_count;
    bt_kv_piece_t pieces[BT_KV_PIECES_MAX]; /* [0] aux, then states; filled with the last chunk */
    uint32_t piece_count;
} bt_kv_recv_t;

/* source_count 0: the gateway says who sends (see "a gateway" below): the agent of this one's rank; before it has, the room is Bootstrapping. BT_E_INVAL without
 * a gateway. Where the two workers have different numbers of agents: those that hold its heads (bt_kv_heads_t), or the room fails: give the sources
 * (bt_kv_gateway_peers). A room that the gateway has aborted before it was opened is opened, and Failed. */
BT_KV_API int bt_kv_recv_open(bt_kv_agent_t *agent, const bt_kv_recv_t *recv, bt_kv_room_t *room_p);

/* ---- sender ---- */
/* As bt_kv_send_spec.receivers: those of the other side's agents, as a gateway names them, that take pages from this one (bt_kv_heads_t); where none do the room is a
 * dummy. BT_E_INVAL without a gateway. */
#define BT_KV_RECEIVERS_OF_GATEWAY UINT32_MAX

typedef struct bt_kv_send_spec {
    uint64_t room;
    bt_kv_layout_t layout;
    uint32_t receivers; /* that must announce their pages; default 1 */
    bool dummy;         /* WaitingForInput at once, Success with the last chunk, nothing moves */
} bt_kv_send_spec_t;
BT_KV_API int bt_kv_send_open(bt_kv_agent_t *agent, const bt_kv_send_spec_t *spec,
                              bt_kv_room_t *room_p);
/* What receivers have said: pages they want, and the least prefix all of them have. BT_E_AGAIN while Bootstrapping. */
BT_KV_API int bt_kv_send_wanted(bt_kv_agent_t *agent, bt_kv_room_t room, uint32_t *page_count_p,
                                uint32_t *prefix_pages_p);

typedef struct bt_kv_chunk {
    uint32_t first;        /* pages[0] is the prompt's page number `first` */
    const uint32_t *pages; /* in the sender's layout; copied */
    uint32_t page_count;
    uint32_t buffer_first,
        buffer_count; /* layer-wise: which buffers; count 0 = all from buffer_first on */
    bool last;        /* nothing comes after it */
    bt_kv_piece_t
        pieces[BT_KV_PIECES_MAX]; /* with the last chunk: what fills the receivers' pieces */
    uint32_t piece_count;
} bt_kv_chunk_t;
/* Pages must not change until the room has ended. Chunks may come before WaitingForInput: they wait. BT_E_AGAIN: the lane is full. After the last
 * one: BT_E_INVAL. The last chunk's page total must be what the receiver expects, or the room fails. */
BT_KV_API int bt_kv_send(bt_kv_agent_t *agent, bt_kv_room_t room, const bt_kv_chunk_t *chunk);

/* ---- rooms ---- */
/* A state; a handle that names no room is BT_KV_FAILED. Lock-free, any thread. */
BT_KV_API enum bt_kv_state bt_kv_poll(const bt_kv_agent_t *agent, bt_kv_room_t room);
BT_KV_API void bt_kv_poll_many(const bt_kv_agent_t *agent, const bt_kv_room_t *rooms,
                               uint32_t count, uint8_t *states);
/* Fails it on both sides. Ended already: nothing. */
BT_KV_API int bt_kv_abort(bt_kv_agent_t *agent, bt_kv_room_t room, const char *reason);
/* Why it failed: code, and a sentence that names the peer. 0 and "" when it has not. */
BT_KV_API int bt_kv_room_error(bt_kv_agent_t *agent, bt_kv_room_t room, char *text, size_t size);
/* See "Release" above. A room that has not ended is aborted by it. Unknown: 1. */
BT_KV_API int bt_kv_room_release(bt_kv_agent_t *agent, bt_kv_room_t room);

/* ---- a gateway that sees and manages rooms ----
 * The agent keeps a connection to each gateway it was given: it registers, sends heartbeats, tells every change of the rooms that the gateway has opened, and does as it is
 * told: which agents send, another sender for a receiver that still waits for its first byte, abort. Losing a gateway fails no room: the agent dials again (100 ms,
 * doubling to 5 s) and tells all of them anew. Rooms that no gateway has opened are nobody's business but the engine's.
 * A worker's rank is one agent's: while another one that lives has registered for it this one is refused, and tries again when the gateway says. One that has been
 * killed and started again is taken at once, or, where its old connection is still there, when that has missed two heartbeats. */

/* Which part of the KV each rank of a worker holds, for rooms with a worker of another tensor-parallel size. Rank r of n holds the heads from r * total / n to
 * (r + 1) * total / n; with more ranks than heads, n / total ranks in a row hold the same one. MLA's latent, which all ranks hold, is one head. A page is
 * `rows` rows, and each row is the rank's heads in order, all of one size. Both sides must say the same (see kv_format). Ranks with the same heads move whole
 * pages; for a part of one, all buffers must have pages of one size. */
typedef struct bt_kv_heads {
    uint32_t
        total; /* of the model; 0 = pages cannot be cut: both sides need the same number of ranks */
    uint32_t
        rows; /* default 1: heads are the page's outermost dimension; tokens first: its tokens */
} bt_kv_heads_t;

typedef struct bt_kv_gateway {
    const char *host; /* numeric IPv4 of the gateway's --transfer-port */
    uint16_t port;
    const char
        *worker; /* whose agent this is: the worker's URL, or its name at the gateway; required */
    uint32_t rank,
        ranks; /* tensor-parallel rank, and how many agents the worker has; 0 ranks = 1 */
    const char *
        token; /* the gateway's --transfer-token, of which the first line is proved; NULL = none. Texts: at most 240 bytes, tokens 1,024; ranks: 64 */
    bt_kv_heads_t heads; /* BT_E_INVAL where its total and `ranks` don't divide one another */
} bt_kv_gateway_t;

#define BT_KV_GATEWAYS_MAX 8
/* Returns at once; the first turn dials. gateway_p may be NULL. BT_E_LIMIT: one too many. BT_E_INVAL: also for an agent of BT_KV_FAKE alone, which nobody can dial. */
BT_KV_API int bt_kv_gateway_add(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway,
                                uint32_t *gateway_p);
/* 1: registered; 0: not (yet); err, when given, gets why not, or "". BT_E_INVAL: no such gateway. */
BT_KV_API int bt_kv_gateway_state(bt_kv_agent_t *agent, uint32_t gateway, char *err,
                                  size_t err_size);

typedef struct bt_kv_peer {
    char host[64];
    uint16_t port;
    uint32_t rank;
} bt_kv_peer_t;
/* The other side's agents of a room (by the pair's id), as a gateway named them: for receivers that cut slices out of senders with another tensor-parallel
 * size, and give their sources themselves. Fills at most max; *count_p is how many there are. BT_E_AGAIN: no gateway has named them yet. */
BT_KV_API int bt_kv_gateway_peers(bt_kv_agent_t *agent, uint64_t room, bt_kv_peer_t *peers,
                                  uint32_t max, uint32_t *count_p);

/* ---- figures ---- */
typedef struct bt_kv_room_stats {
    uint64_t bytes; /* moved so far */
    uint64_t pages,
        descriptors; /* pages * buffers asked for; runs that were moved: their ratio is the coalescing */
    uint64_t bootstrap_us, wait_us, transfer_us; /* how long each phase took, or has taken */
    uint32_t backend;                            /* bit of bt_kv_kind, 0 = not known yet */
} bt_kv_room_stats_t;
BT_KV_API int bt_kv_room_stats(bt_kv_agent_t *agent, bt_kv_room_t room,
                               bt_kv_room_stats_t *stats_p);

typedef struct bt_kv_copy_way {
    uint32_t store_bytes; /* of stores that go around the cache: 16, 32, 64; 0 = they stay in it */
    uint32_t lanes;       /* of 4 KiB each, copied side by side; 1 lane and store_bytes 0: memcpy */
    uint32_t ahead_bytes; /* what is read is asked for so early; 0 = not */
} bt_kv_copy_way_t;

typedef struct bt_kv_agent_stats {
    uint64_t rooms_open, rooms_success, rooms_failed;
    uint64_t bytes_sent, bytes_received;
    uint64_t chunks, pages, descriptors;
    uint64_t links, links_lost, heartbeats_missed;
    uint64_t crc_errors, refused_frames; /* malformed, or against the rules */
    uint64_t links_by_backend[5];        /* fake, mem, shm, tcp, verbs: what was chosen */
    /* How mem and shm copy, by what a copy is made of: less than 16 KiB in all; more, in pages;
     * more, in runs of 64 KiB and above. Measured once a process, in a few ms, when the first
     * agent that may copy opens; all 0 until then. */
    bt_kv_copy_way_t copy_small, copy_pages, copy_runs;
    uint64_t copy_bytes_per_s, memcpy_bytes_per_s; /* of pages then; 0 = no time to measure */
    uint64_t copy_measured_us;                     /* how long it took */
} bt_kv_agent_stats_t;
BT_KV_API void bt_kv_agent_stats(bt_kv_agent_t *agent, bt_kv_agent_stats_t *stats_p);
/* One line a link: peer, back end and why not a better one, rates; one a gateway. Text for people; returns its length as snprintf. */
BT_KV_API int bt_kv_agent_describe(bt_kv_agent_t *agent, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
