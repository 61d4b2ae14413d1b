/* subscriber.h - follows the events of many engines, and keeps the index by them.
 *
 * Owner: the control loop. The index's writer is a thread of libzmq's feeds (zmq/feeds.h): nothing else changes the index.
 * Life:  new -> add, remove -> close, which has a deadline; then the index may be freed.
 * Flow:  the snapshot is read, where there is one -> a source is one worker: an endpoint for each of its ranks, on ports that follow each other -> parts of the index, told by on_parts -> events.
 * Cost:  three sockets a rank; see index.h.
 */
#ifndef BT_KVINDEX_SUBSCRIBER_H
#define BT_KVINDEX_SUBSCRIBER_H

#include "kvindex/follow.h"

#define BT_KV_NAME_MAX 64
#define BT_KV_ENDPOINT_BYTES 256

typedef struct bt_kv_subscriber bt_kv_subscriber_t;

typedef struct bt_kv_source {
    void *user;         /* names the source */
    const char *name;   /* for the log */
    const char *events; /* "tcp://host:port"; rank r is at port + r */
    const char *replay; /* likewise; NULL = it says nothing again */
    unsigned first_rank, ranks;
} bt_kv_source_t;

typedef struct bt_kv_subscriber_config {
    bt_kv_index_t *index;
    /* Where the index is kept beyond the process, and how often it is written beside the last time, at close; NULL: nowhere, 0: only then. Copied. */
    const char *snapshot;
    unsigned snapshot_ms;
    /* On the thread. Parts first .. first + count - 1 are the source's; count 0: it has none (any more). */
    void (*on_parts)(void *user, uint32_t first, unsigned count);
    /* On the thread: what one of its ranks says begins anew. May be NULL. */
    void (*on_anew)(void *user);
    /* On the thread: nothing more is said of it. Of all that were added, when they are removed or all is closed. */
    void (*on_gone)(void *user);
} bt_kv_subscriber_config_t;

typedef struct bt_kv_subscriber_stats {
    bt_kv_index_stats_t index;
    bt_kv_follow_stats_t follow; /* of all */
    bt_kv_event_stats_t events;
    unsigned sources, live; /* live: ranks that are followed */
} bt_kv_subscriber_stats_t;

/* One rank of a source, as of the last second or so. */
typedef struct bt_kv_rank_stats {
    char name[BT_KV_NAME_MAX], endpoint[BT_KV_ENDPOINT_BYTES]; /* endpoint: the rank's own */
    unsigned rank;
    bool is_live;  /* followed */
    bool has_last; /* a batch of it has come */
    uint64_t last; /* its number */
    uint64_t blocks;
    bt_kv_follow_stats_t follow;
} bt_kv_rank_stats_t;

int bt_kv_subscriber_new(bt_kv_subscriber_t **subscriber_p,
                         const bt_kv_subscriber_config_t *config);
/* Copies the texts. */
int bt_kv_subscriber_add(bt_kv_subscriber_t *subscriber, const bt_kv_source_t *source);
int bt_kv_subscriber_remove(bt_kv_subscriber_t *subscriber, void *user);
/* Writes the snapshot soon, for a process that takes this one's place. */
void bt_kv_subscriber_save(bt_kv_subscriber_t *subscriber);
/* As of the last second or so. */
void bt_kv_subscriber_stats(bt_kv_subscriber_t *subscriber, bt_kv_subscriber_stats_t *stats);
/* A copy of all ranks, to be freed; how many. 0 also where memory is short. */
unsigned bt_kv_subscriber_ranks(bt_kv_subscriber_t *subscriber, bt_kv_rank_stats_t **ranks_p);
/* Once the snapshot is written. False: its thread has not ended in time, be it for a disk that hangs; the index must stay. It may be closed again. */
bool bt_kv_subscriber_close(bt_kv_subscriber_t *subscriber, unsigned deadline_ms);

#endif
