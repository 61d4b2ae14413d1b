/* frame.h - what agents say to each other on the control connection, as bytes.
 *
 * Owner: nobody; no I/O, no state. What a decoded frame points to belongs to the buffer it was read from.
 * Life:  of a call.
 * Flow:  bt_kv_frame_next cuts one frame out of what has been read, bt_kv_frame_decode checks it and fills the union; bt_kv_put_* append.
 * Cost:  O(bytes); puts grow their buffer, which is kept.
 *
 * Order. With a token both prove it first, and frames are sealed from then on (auth.h). HELLO then, from the dialler, then from the other one; whoever does not take a HELLO (version, another host) says CLOSE with the reason after it,
 * and nothing else. What an agent has (REGION, LAYOUT) is told after a HELLO that it has taken, and all other types come after that.
 *
 * A frame: u32 bytes of the payload, u8 type, u8 flags, u16 0; all little-endian. Flag 1 = a reader that does not know the type may skip it.
 * Payloads may grow at their end: a reader ignores what it does not know.
 */
#ifndef BT_TRANSPORT_FRAME_H
#define BT_TRANSPORT_FRAME_H

#include "base/str.h"
#include "transport/baton_kv.h"
#include "transport/wire/auth.h"
#include "transport/wire/cursor.h"

#define BT_KV_FRAME_HEAD 8
#define BT_KV_FRAME_MAX (8u << 20)  /* bytes of a payload */
#define BT_KV_HELLO_MAX (16u << 10) /* of the first one */
#define BT_KV_FRAME_SKIP 1          /* flag */
#define BT_KV_PAGES_MAX (1u << 20)  /* of a room */
#define BT_KV_BUFFERS_MAX 4096u     /* of a layout */
#define BT_KV_REASON_MAX 240u       /* bytes of a reason */
#define BT_KV_FORMAT_MAX 240u       /* bytes of a kv_format */
#define BT_KV_OFFERS_MAX 8u         /* of a hello, keys of a region */
#define BT_KV_MAGIC 0x564b5442u     /* "BTKV" */

enum bt_kv_frame_type {
    BT_KV_HELLO = 1, /* the first one, both ways */
    BT_KV_CLOSE =
        2, /* the last one: why; drained = the sender of it touches none of our memory any more */
    BT_KV_PING = 3,   /* heartbeat with progress counters */
    BT_KV_REGION = 4, /* a region and each back end's key to it */
    BT_KV_REGION_GONE = 5,
    BT_KV_LAYOUT = 6,
    BT_KV_LAYOUT_GONE = 7,
    BT_KV_PATH = 8, /* a back end's own message to its other end */
    BT_KV_PATH_READY = 9,
    BT_KV_PATH_FAILED = 10, /* this kind does not work: both go on to the next */
    BT_KV_ANNOUNCE = 16,    /* receiver: my pages of this room */
    BT_KV_DONE = 17,        /* receiver: all of it is here, and right */
    BT_KV_ABORT = 18,       /* either: the room has failed */
    BT_KV_ABORT_ACK = 19,   /* either: drained; I touch nothing of this room any more */
    BT_KV_LEFT =
        20 /* receiver: it gives up a room that it could not announce yet; tag: the room's id */
};

typedef struct bt_kv_blob {
    uint8_t kind; /* bit of bt_kv_kind */
    bt_str_t bytes;
} bt_kv_blob_t;

typedef struct bt_kv_hello {
    uint32_t version;
    bt_str_t name, host_id;
    uint64_t incarnation;
    uint32_t pid;
    bool crc;
    bt_kv_blob_t offers[BT_KV_OFFERS_MAX];
    uint32_t offer_count;
    bt_str_t kv_format; /* empty: not said */
} bt_kv_hello_t;

typedef struct bt_kv_region_frame {
    bt_kv_region_t id;
    uint64_t size;
    bt_kv_blob_t keys[BT_KV_OFFERS_MAX];
    uint32_t key_count;
} bt_kv_region_frame_t;

typedef struct bt_kv_layout_frame {
    bt_kv_layout_t id;
    uint32_t pages, buffer_count;
    const uint8_t *buffers; /* bt_kv_get_buffer */
} bt_kv_layout_frame_t;

typedef struct bt_kv_announce {
    uint64_t tag, room;
    bt_kv_layout_t layout;
    uint32_t prefix_pages, page_count;
    bt_kv_slice_t slice;
    bt_kv_piece_t pieces[BT_KV_PIECES_MAX];
    uint32_t piece_count;
    const uint8_t *pages; /* bt_kv_get_u32(pages + 4 * i) */
} bt_kv_announce_t;

typedef struct bt_kv_frame {
    uint8_t type, flags;
    const uint8_t *payload;
    uint32_t size;
    union {
        bt_kv_hello_t hello;
        bt_kv_region_frame_t region;
        bt_kv_layout_frame_t layout;
        bt_kv_announce_t announce;
        bt_kv_blob_t path; /* PATH, PATH_FAILED (bytes: why), PATH_READY */
        uint32_t id;       /* REGION_GONE, LAYOUT_GONE */
        struct {
            uint64_t tag; /* DONE, ABORT, ABORT_ACK, LEFT */
            int rc;       /* ABORT, LEFT */
            bt_str_t reason;
        } room;
        struct {
            bool drained;
            bt_str_t reason;
        } close;
        struct {
            uint64_t bytes, notes;
        } ping;
    };
} bt_kv_frame_t;

/* Bytes of the first frame in [p, p + n), 0 when it is not all there yet, BT_E_INVAL when it can't become one (longer than max, rubbish). */
ptrdiff_t bt_kv_frame_next(const uint8_t *p, size_t n, uint32_t max, bt_kv_frame_t *frame_p);
/* Of a frame that bt_kv_frame_next gave. 0, BT_E_INVAL: malformed, and *why_p says what; 1: an unknown type that may be skipped. */
int bt_kv_frame_decode(bt_kv_frame_t *frame, const char **why_p);

bt_kv_buffer_t bt_kv_get_buffer(const bt_kv_layout_frame_t *frame, uint32_t i);

/* ---- writing: a growing buffer; when memory runs out is_broken is set and the rest does nothing ---- */
typedef struct bt_kv_bytes {
    uint8_t *p;
    size_t n, room;
    bool is_broken;
    bt_kv_seal_t *seal; /* NULL, or of every frame that is put while it is on */
} bt_kv_bytes_t;

void bt_kv_put(bt_kv_bytes_t *out, const void *p, size_t n);
/* Frames that were put into another buffer, without seals. */
void bt_kv_put_frames(bt_kv_bytes_t *out, const bt_kv_bytes_t *frames);
void bt_kv_put_hello(bt_kv_bytes_t *out, const bt_kv_hello_t *hello);
void bt_kv_put_region(bt_kv_bytes_t *out, const bt_kv_region_frame_t *region);
void bt_kv_put_layout(bt_kv_bytes_t *out, bt_kv_layout_t id, const bt_kv_buffer_t *buffers,
                      uint32_t count, uint32_t pages);
void bt_kv_put_id(bt_kv_bytes_t *out, enum bt_kv_frame_type type, uint32_t id);
void bt_kv_put_blob(bt_kv_bytes_t *out, enum bt_kv_frame_type type, enum bt_kv_kind kind,
                    bt_str_t bytes);
/* announce->pages is not used: the numbers come from `pages`. */
void bt_kv_put_announce(bt_kv_bytes_t *out, const bt_kv_announce_t *announce,
                        const uint32_t *pages);
void bt_kv_put_room(bt_kv_bytes_t *out, enum bt_kv_frame_type type, uint64_t tag, int rc,
                    bt_str_t reason);
void bt_kv_put_close(bt_kv_bytes_t *out, bool is_drained, bt_str_t reason);
void bt_kv_put_ping(bt_kv_bytes_t *out, uint64_t bytes, uint64_t notes);

/* ---- notes: what goes with a batch, through the back end ---- */
typedef struct bt_kv_note {
    uint64_t tag;
    uint32_t first, page_count, buffer_first, buffer_count; /* what the batch brought */
    uint32_t crc;
    uint8_t pieces; /* bit i: piece i came with it */
    bool is_last, has_crc;
    uint64_t units; /* with is_last: pages * buffers of the whole room */
    uint64_t bytes;
} bt_kv_note_t;

size_t bt_kv_note_encode(const bt_kv_note_t *note, uint8_t *to); /* at least BT_KV_NOTE_BYTES */
int bt_kv_note_decode(const uint8_t *p, size_t n, bt_kv_note_t *note_p);

#endif
