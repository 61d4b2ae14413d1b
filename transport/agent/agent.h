/* agent.h - the agent's own state, and what its files share. Private to transport.
 *
 * Owner: bt_kv_agent_open makes it, bt_kv_agent_close frees it. Everything in it is guarded by `lock`, but the rooms' words.
 * Life:  open -> API calls and turns of progress, interleaved -> closing (a second at most) -> gone.
 * Flow:  an API call: enter, change something, leave (which, when the progress thread sleeps, sends what was queued, and wakes it when it has work).
 *        A turn (bt_kv_agent_turn): send, sockets, back ends, links that want attention, ends to drain, deadlines.
 * Cost:  a turn without news is one epoll_wait and a look at each back end.
 */
#ifndef BT_TRANSPORT_AGENT_H
#define BT_TRANSPORT_AGENT_H

#include "base/map.h"
#include "transport/agent/layout.h"
#include "transport/agent/room.h"
#include "transport/backends/backend.h"
#include "transport/backends/copy.h"
#include "transport/wire/frame.h"

#include <pthread.h>

#define BT_KV_WHY_BYTES 160

typedef struct bt_kv_end bt_kv_end_t;
struct bt_kv_room_command; /* gateway_conn.h */

/* A chunk as the engine gave it; shared by the receivers it goes to. */
typedef struct bt_kv_job {
    bt_list_t link; /* free list, or the room's chunks that wait for announcements */
    bt_kv_chunk_t chunk;
    uint32_t *pages; /* what chunk.pages points to; kept for reuse */
    uint32_t pages_room, refs;
} bt_kv_job_t;

struct bt_kv_room {
    bt_kv_room_t handle;
    uint64_t id; /* the pair's */
    bool is_sender, is_dummy, has_moved;
    enum bt_kv_state state; /* what the word says */
    struct bt_kv_layout *layout;
    bt_list_t timer; /* agent's starting, moving or ending */
    uint64_t opened_us, ready_us, first_us, ended_us, progress_us;
    bt_list_t ends;                 /* one a peer */
    uint32_t end_count, noisy_ends; /* noisy: not yet known to be quiet */
    bt_kv_room_stats_t stats;
    int rc;
    char reason[BT_KV_REASON_MAX];
    bt_kv_piece_t pieces[BT_KV_PIECES_MAX]; /* receiver's */
    uint32_t piece_count;
    struct bt_kv_room_command *command; /* of the gateway that has opened it; NULL = nobody's */
    bt_map_entry_t by_id;               /* in agent->senders; receivers: with the gateways */
    /* receiver */
    bool wants_source;    /* the engine has left it to the gateway to name one */
    uint64_t source_room; /* the room's name at its senders */
    uint32_t *pages;      /* in the prompt's order */
    uint32_t *sorted;     /* those behind the prefix by number, and as much room again */
    uint32_t pages_room, page_count, prefix_pages;
    uint64_t sum_wanted;
    uint32_t announced_ends, complete_ends;
    uint32_t sorted_count;
    uint32_t last_buffer, next_page; /* where a destination was found last; in pages: behind it */
    uint8_t got_pieces;
    /* sender */
    uint32_t receivers;
    bt_list_t jobs; /* chunks that came before WaitingForInput */
    uint32_t job_count;
    bool has_last;
};

struct bt_kv_agent {
    pthread_mutex_t lock;
    bt_kv_config_t config; /* defaults filled in; strings are the agent's */
    char *strings[5];
    uint64_t incarnation;
    char host_id[40];
    bool is_fake; /* BT_KV_FAKE alone */
    bt_kv_backend_t *backends[BT_KV_BACKENDS];
    char why_not[BT_KV_BACKENDS][BT_KV_WHY_BYTES];

    int epoll_fd, wake_fd, event_fd, listen_fd;
    uint16_t port;
    pthread_t thread;
    bool has_thread;
    _Atomic bool *is_event_wanted; /* somebody asked for event_fd */
    _Atomic bool is_asleep;
    bool is_closing, is_stopped,
        has_work;          /* has_work: the next turn finds something to do without an event */
    uint64_t now_us;       /* of this turn or call */
    uint64_t polled_us;    /* sockets were last looked at */
    bool is_moving;        /* the last turn found something to do */
    uint64_t heartbeat_us; /* links are looked at next */

    bt_kv_rooms_t rooms;
    bt_map_t senders; /* open sender rooms by id */
    bt_map_t early;   /* ends without a room, by room id */
    bt_map_t ends;    /* sender's ends by tag and link */
    bt_list_t early_order;
    bt_list_t starting, moving, ending; /* rooms, the one that times out first in front */
    bt_list_t draining;                 /* ends */
    struct bt_kv_tomb *tombs;           /* ring: rooms that failed before their receivers came */
    uint32_t tomb_at;

    bt_kv_mem_t **mems; /* by id - 1 */
    uint32_t mem_room;
    struct bt_kv_layout **layouts; /* by id - 1 */
    uint32_t layout_room;

    bt_list_t links; /* in use, or on their way out */
    bt_list_t dirty; /* have bytes to send */
    bt_list_t attention;
    uint32_t link_count, next_link;
    uint32_t stranger_count; /* accepted, and no hello yet */

    struct bt_kv_gateways *gateways; /* gateways; NULL = none was ever added */

    bt_list_t free_jobs, free_parts, free_items, free_ends;
    bt_kv_agent_stats_t stats;
};

/* ---- agent.c ---- */
void bt_kv_enter(bt_kv_agent_t *agent);
/* While the thread sleeps: sends what was queued, and wakes it when a turn is needed. */
void bt_kv_leave(bt_kv_agent_t *agent);
/* The next four under the lock. A turn lets it go while back ends copy; doze lets it go while it sleeps, limit_ms at most. */
int bt_kv_agent_turn(bt_kv_agent_t *agent);
int bt_kv_agent_doze(bt_kv_agent_t *agent, uint32_t limit_ms);
void bt_kv_agent_flush(bt_kv_agent_t *agent);
int bt_kv_links_attend(bt_kv_agent_t *agent);
void bt_kv_agent_wake(bt_kv_agent_t *agent);
void *bt_kv_agent_run(void *agent); /* the agent's thread */
/* A room reached WaitingForInput or ended. */
void bt_kv_agent_notify(bt_kv_agent_t *agent);

/* ---- memory.c ---- */
bt_kv_mem_t *bt_kv_mem_find(bt_kv_agent_t *agent, bt_kv_region_t region);
struct bt_kv_layout *bt_kv_layout_find(bt_kv_agent_t *agent, bt_kv_layout_t layout);
/* 0, or BT_E_INVAL: unknown region, or beyond it. */
int bt_kv_piece_check(bt_kv_agent_t *agent, const bt_kv_piece_t *piece);
void bt_kv_memory_fini(bt_kv_agent_t *agent);

/* ---- agent_api.c: rooms, whichever side ---- */
/* A body in Bootstrapping, emptied; in no list. */
int bt_kv_room_new(bt_kv_agent_t *agent, struct bt_kv_room **room_p);
/* Gives the slot back; the ends are gone already. */
void bt_kv_room_free(bt_kv_agent_t *agent, struct bt_kv_room *room);
void bt_kv_room_body_free(struct bt_kv_room *room);
struct bt_kv_room *bt_kv_room_find(const bt_kv_agent_t *agent, bt_kv_room_t handle);
static inline bool bt_kv_room_is_over(const struct bt_kv_room *room)
{
    return room->state == BT_KV_FAILED || room->state == BT_KV_SUCCESS;
}
/* One step forward, with everything that hangs on it (times, lists, figures, the engine's event). */
void bt_kv_room_advance(bt_kv_agent_t *agent, struct bt_kv_room *room, enum bt_kv_state state);
/* Something moved: the stall clock begins again. */
void bt_kv_room_touch(bt_kv_agent_t *agent, struct bt_kv_room *room);
/* Once; its peers are told, what waits is dropped, what moves is drained. */
void bt_kv_room_fail(bt_kv_agent_t *agent, struct bt_kv_room *room, int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Rooms whose time is up. Milliseconds until the next one, at most limit_ms. */
void bt_kv_rooms_expire(bt_kv_agent_t *agent);
/* What bt_kv_room_stats tells; stats.c. */
void bt_kv_room_figures(const bt_kv_agent_t *agent, const struct bt_kv_room *room,
                        bt_kv_room_stats_t *stats_p);
uint64_t bt_kv_rooms_due_us(const bt_kv_agent_t *agent);

/* ---- sender.c, receiver.c ---- */
typedef struct bt_kv_tomb {
    uint64_t id, until_us;
    uint32_t missing; /* receivers that have not come yet */
    bool is_left;     /* or: a receiver came, and left before the room was opened */
    int rc;
    char reason[120];
} bt_kv_tomb_t;
#define BT_KV_TOMBS 1024u

/* A receiver gave up an announcement that still waits for its room. */
void bt_kv_sender_left(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason);
/* A receiver gave up before it could announce itself. */
void bt_kv_sender_missed(bt_kv_agent_t *agent, uint64_t id, int rc, const char *reason);
/* An announcement came. < 0: against the rules, *why_p. */
int bt_kv_sender_announced(bt_kv_agent_t *agent, bt_kv_link_t *link, const bt_kv_announce_t *frame,
                           const char **why_p);
/* So many receivers will announce themselves, of a room that did not know (BT_KV_RECEIVERS_OF_GATEWAY). None: it is a dummy. */
void bt_kv_sender_expect(bt_kv_agent_t *agent, struct bt_kv_room *room, uint32_t receivers);
void bt_kv_sender_check(bt_kv_agent_t *agent, struct bt_kv_room *room);
void bt_kv_sender_failed(bt_kv_agent_t *agent, struct bt_kv_room *room);
void bt_kv_sender_expire(bt_kv_agent_t *agent);
/* Announcements still to be sent on a link that has become usable. */
void bt_kv_receiver_announce(bt_kv_agent_t *agent, bt_kv_end_t *end);
/* This sender too, for a room that has not announced itself. BT_E_AGAIN: not before an end that it has dropped on the same link is quiet. */
int bt_kv_receiver_attach(bt_kv_agent_t *agent, struct bt_kv_room *room,
                          const bt_kv_source_t *source);
/* Those were all. */
void bt_kv_receiver_attached(bt_kv_agent_t *agent, struct bt_kv_room *room);
/* The room goes on without this end, which falls silent beside it. */
void bt_kv_receiver_drop(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason);
void bt_kv_job_unref(bt_kv_agent_t *agent, bt_kv_job_t *job);

/* ---- gateway/ ---- */
/* What rooms call. The engine has opened one: its command, if any, is applied; it may fail at once. */
void bt_kv_gateways_opened(bt_kv_agent_t *agent, struct bt_kv_room *room);
/* A room with a command has a new state. */
void bt_kv_gateways_changed(bt_kv_agent_t *agent, struct bt_kv_room *room);
/* The slot is given back. */
void bt_kv_gateways_freed(bt_kv_agent_t *agent, struct bt_kv_room *room);
/* This end is lost, or its sender has given up. True: the room has dropped it and waits for another sender; false: it fails as always. */
bool bt_kv_gateways_orphans(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason);

#endif
