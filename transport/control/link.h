/* link.h - the control connection to one peer: its bytes, its heartbeat, its back end's path, and its end.
 *
 * Owner: the agent. The receiver's agent dials; all rooms of the pair share the link.
 * Life:  CONNECTING -> HELLO -> UP -> LOST (for ever) -> freed when its last end is quiet.
 * Flow:  bt_kv_link_break only marks; the next turn acts (bt_kv_link_step), so that nothing vanishes under a caller's feet. Once lost, the rooms on
 *        it fail at once; the path is closed when this side has drained, or when release_ms is over.
 * Cost:  a write per call or turn that has something to say; a read per event.
 */
#ifndef BT_TRANSPORT_LINK_H
#define BT_TRANSPORT_LINK_H

#include "transport/agent/agent.h"

enum bt_kv_link_state { BT_KV_LINK_CONNECTING, BT_KV_LINK_HELLO, BT_KV_LINK_UP, BT_KV_LINK_LOST };

struct bt_kv_part;

/* Chunks on their way to the peer; data/lane.h. */
typedef struct bt_kv_lane {
    bt_list_t items;
    uint32_t item_count, posted;
    struct bt_kv_part *stuck; /* made, but the back end's queue was full */
} bt_kv_lane_t;

typedef struct bt_kv_peer_region {
    bt_list_t link;
    bt_kv_region_t id;
    uint64_t size;
    uint8_t *keys[BT_KV_BACKENDS];
    size_t key_bytes[BT_KV_BACKENDS];
} bt_kv_peer_region_t;

struct bt_kv_link {
    bt_list_t link, dirty, attention;
    bt_kv_agent_t *agent;
    bt_kv_auth_t auth; /* with a token */
    uint32_t id;
    int fd;
    enum bt_kv_link_state state;
    bool is_initiator, wants_out, is_peer_drained, is_same_host, has_crc;
    char host[64];
    uint16_t port;
    char peer[160]; /* for people: name and address */
    uint64_t incarnation;
    uint32_t pid;
    bt_kv_bytes_t in, out;
    bt_kv_bytes_t later; /* goes out when the peer has said hello */
    size_t out_at;
    uint64_t heard_us, said_us;
    uint32_t missed;
    uint64_t bytes_sent, bytes_received, notes, opened_us;
    bt_list_t peer_regions, peer_layouts, ends;
    uint32_t peer_region_count, peer_layout_count;
    bt_kv_lane_t lane;
    /* the path */
    uint8_t *offers[BT_KV_BACKENDS];
    size_t offer_bytes[BT_KV_BACKENDS];
    uint32_t kinds_left; /* common ones not tried yet */
    bt_kv_path_t *path;
    unsigned path_index; /* of the back end tried or in use */
    bool is_path_ready, is_peer_path_ready, is_path_failed, is_usable;
    char path_why[BT_KV_WHY_BYTES]; /* of the last one that failed */
    /* broken: what the next turn acts on */
    int broken_rc;
    char broken_why[BT_KV_REASON_MAX];
};

/* ---- link.c ---- */
/* The live link to this address, dialled when there is none. */
int bt_kv_link_to(bt_kv_agent_t *agent, const char *host, uint16_t port, bt_kv_link_t **link_p);
void bt_kv_link_accept(bt_kv_agent_t *agent);
void bt_kv_link_set_state(bt_kv_link_t *link, enum bt_kv_link_state state);
/* Is the peer's address in 127/8, or the one that this end has? */
bool bt_kv_link_is_local(const bt_kv_link_t *link);
void bt_kv_link_event(bt_kv_link_t *link, uint32_t events);
void bt_kv_link_flush(bt_kv_link_t *link);
/* Call after something was put into link->out. */
void bt_kv_link_send(bt_kv_link_t *link);
void bt_kv_link_want(bt_kv_link_t *link); /* the next turn steps it */
void bt_kv_link_break(bt_kv_link_t *link, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Against the rules: counted, and broken. */
void bt_kv_link_refuse(bt_kv_link_t *link, const char *what);
int bt_kv_link_step(bt_kv_link_t *link);
/* Heartbeats and silence, all links. */
void bt_kv_links_heartbeat(bt_kv_agent_t *agent);
void bt_kv_link_free(bt_kv_link_t *link);

/* ---- link_auth.c ---- */
/* It is dialled, or has dialled: whoever has a token proves it before anything else is said. */
void bt_kv_link_begin_auth(bt_kv_link_t *link);
/* Bytes used of what has been read, while bt_kv_auth_is_open; 0: more is needed; < 0: it has been refused. */
ptrdiff_t bt_kv_link_take_auth(bt_kv_link_t *link, const uint8_t *p, size_t n);

/* ---- link_hello.c ---- */
/* The reason goes to the peer too: its operator has to read it. */
void bt_kv_link_refuse_peer(bt_kv_link_t *link, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* False: the link is broken by it. Before anything is said. */
bool bt_kv_link_may_talk(bt_kv_link_t *link);
void bt_kv_link_hello(bt_kv_link_t *link);
void bt_kv_link_got_hello(bt_kv_link_t *link, const bt_kv_hello_t *hello);
/* This kind is no good: on to the next. */
void bt_kv_link_next_path(bt_kv_link_t *link, bool is_told, const char *why);
void bt_kv_link_check_usable(bt_kv_link_t *link);
void bt_kv_link_send_region(bt_kv_link_t *link, const bt_kv_mem_t *mem);
/* A receiver's room is given up before it was announced; without this its sender would wait for it. */
void bt_kv_link_send_left(bt_kv_link_t *link, uint64_t room, int rc, const char *reason);
void bt_kv_link_close_path(bt_kv_link_t *link);

/* ---- link_frames.c ---- */
/* False: the link is broken by it. */
bool bt_kv_link_got(bt_kv_link_t *link, bt_kv_frame_t *frame);
/* Tells the path of a region of the peer's, or that it has gone. < 0: it does not take it. */
int bt_kv_link_region(bt_kv_link_t *link, const bt_kv_peer_region_t *region, bool is_there);
uint64_t bt_kv_link_region_size(void *link, bt_kv_region_t region);
struct bt_kv_layout *bt_kv_link_layout(const bt_kv_link_t *link, bt_kv_layout_t id);
void bt_kv_link_forget(bt_kv_link_t *link); /* regions, layouts, offers */
void bt_kv_peer_layout_unref(struct bt_kv_layout *layout);

/* ---- data/: what the rooms on a link make of its news ---- */
/* Posts what can be posted. */
void bt_kv_lane_pump(bt_kv_agent_t *agent, bt_kv_link_t *link);
/* Forgets what waits of this end. */
void bt_kv_lane_drop(bt_kv_agent_t *agent, bt_kv_end_t *end);
/* ANNOUNCE, DONE, ABORT, ABORT_ACK, LEFT. What is against the rules, or NULL. */
const char *bt_kv_rooms_got(bt_kv_link_t *link, const bt_kv_frame_t *frame);
/* The link has become usable: a receiver's announcements go out. */
void bt_kv_rooms_announce(bt_kv_link_t *link);
/* True: nobody can reach a page of this link's rooms. */
bool bt_kv_rooms_are_quiet(const bt_kv_link_t *link);
/* The link is lost, and its rooms fail, but those that a gateway may repair. */
void bt_kv_rooms_lost(bt_kv_link_t *link);
/* A lost link's ends that nobody can reach let go of it. True: none is left. */
bool bt_kv_rooms_leave(bt_kv_link_t *link);

static inline bool bt_kv_link_is_live(const bt_kv_link_t *link)
{
    return link != NULL && link->state != BT_KV_LINK_LOST && link->broken_rc == 0;
}

#endif
