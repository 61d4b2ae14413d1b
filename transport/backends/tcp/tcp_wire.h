/* tcp_wire.h - what goes over data connections, as bytes.
 *
 * Owner: nobody; no I/O, no state.
 * Life:  of a call.
 * Flow:  a connection begins with a greeting of the side that dialled; then frames go both ways. A batch is cut into blocks, which may go over
 *        several connections: the last one tells how many there are, and carries the note. The receiver answers a whole batch with an ACK.
 * Cost:  O(runs).
 *
 * All little-endian. A frame is a short head (16 bytes: type, flags, runs, bytes of the note, the batch's number); a BLOCK goes on with tag, bytes of
 * payload and (LAST) number of blocks, then the runs, the note, and the payload, in the order of the runs.
 */
#ifndef BT_TRANSPORT_TCP_WIRE_H
#define BT_TRANSPORT_TCP_WIRE_H

#include "transport/backends/backend.h"

#define BT_TCP_MAGIC 0x50435442u /* "BTCP" */
#define BT_TCP_VERSION 1u
#define BT_TCP_TOKEN_BYTES 16u
#define BT_TCP_ADDRESSES 8u
#define BT_TCP_OFFER_BYTES (8u + 4u * BT_TCP_ADDRESSES)
#define BT_TCP_GREETING_BYTES (12u + BT_TCP_TOKEN_BYTES)
#define BT_TCP_SHORT_BYTES 16u
#define BT_TCP_BLOCK_HEAD_BYTES 40u
#define BT_TCP_RUN_BYTES 24u
#define BT_TCP_RUNS_MAX 512u        /* in a block */
#define BT_TCP_BLOCK_MAX (4u << 20) /* bytes of a block's payload that are accepted */

typedef struct bt_tcp_offer {
    uint16_t port;
    uint32_t addresses[BT_TCP_ADDRESSES]; /* IPv4, host order; best first */
    uint32_t address_count;
} bt_tcp_offer_t;

typedef struct bt_tcp_greeting {
    uint16_t stream, streams; /* which one, of how many */
    uint8_t token[BT_TCP_TOKEN_BYTES];
} bt_tcp_greeting_t;

enum bt_tcp_type { BT_TCP_WELCOME = 1, BT_TCP_BLOCK = 2, BT_TCP_ACK = 3 };
enum bt_tcp_flag {
    BT_TCP_LAST = 1,     /* block: blocks and note count */
    BT_TCP_GIVEN_UP = 2, /* block, with LAST: the rest of the batch will not come */
    BT_TCP_REFUSED = 4   /* ack: not all of it was wanted */
};

typedef struct bt_tcp_head {
    uint8_t type, flags;
    uint16_t run_count;
    uint32_t note_bytes;
    uint64_t number;
    /* BLOCK */
    uint64_t tag, bytes;
    uint32_t blocks;
} bt_tcp_head_t;

typedef struct bt_tcp_run {
    bt_kv_region_t region;
    uint32_t bytes;
    uint64_t offset;
    uint32_t rows, stride;
} bt_tcp_run_t;

size_t bt_tcp_offer_put(const bt_tcp_offer_t *offer, uint8_t *to); /* at least BT_TCP_OFFER_BYTES */
int bt_tcp_offer_get(const uint8_t *p, size_t n, bt_tcp_offer_t *offer_p);
void bt_tcp_greeting_put(const bt_tcp_greeting_t *greeting, uint8_t to[BT_TCP_GREETING_BYTES]);
int bt_tcp_greeting_get(const uint8_t p[BT_TCP_GREETING_BYTES], bt_tcp_greeting_t *greeting_p);
/* Bytes written: BT_TCP_SHORT_BYTES, or BT_TCP_BLOCK_HEAD_BYTES of a block. */
size_t bt_tcp_head_put(const bt_tcp_head_t *head, uint8_t *to);
/* Bytes of the frame up to its payload, 0 when n is too few to tell, BT_E_INVAL: malformed, *why_p. */
ptrdiff_t bt_tcp_head_get(const uint8_t *p, size_t n, bt_tcp_head_t *head_p, const char **why_p);
void bt_tcp_run_put(const bt_tcp_run_t *run, uint8_t to[BT_TCP_RUN_BYTES]);
/* The head's runs, which begin at p. BT_E_INVAL: malformed, or they do not sum up to the head's bytes. */
int bt_tcp_runs_get(const uint8_t *p, const bt_tcp_head_t *head, bt_tcp_run_t *runs_p,
                    const char **why_p);

#endif
