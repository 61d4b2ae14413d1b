/* chunk.h - reads the framing of a chunked body, strictly. Private to core/http.
 *
 * Owner: the connection that reads.
 * Life:  init -> next* until BT_CHUNK_END or BT_E_HTTP.
 * Flow:  pull style: each call gives the next run of data as a slice of the piece, so a caller may stop (close, pause)
 *        between any two. Extensions and trailers are checked, bounded and thrown away.
 * Cost:  a state machine over the framing bytes; data is never touched.
 */
#ifndef BT_HTTP_CHUNK_H
#define BT_HTTP_CHUNK_H

#include "base/str.h"

#define BT_CHUNK_OVERHEAD_MAX 8192 /* bytes of one chunk's size line, or of all trailers together */

enum { BT_CHUNK_MORE, BT_CHUNK_DATA, BT_CHUNK_END };

typedef struct bt_chunk {
    uint64_t left;     /* data bytes of the open chunk still to come */
    uint32_t overhead; /* bytes of the open size line or of the trailers */
    uint8_t state;
    uint8_t digits;
} bt_chunk_t;

void bt_chunk_init(bt_chunk_t *chunk);
/* *at_p walks over the piece. BT_CHUNK_MORE: piece used up; BT_CHUNK_DATA: *data_p filled; BT_CHUNK_END: the body is
 * complete and *at_p stands behind it; BT_E_HTTP: malformed. */
int bt_chunk_next(bt_chunk_t *chunk, bt_str_t piece, size_t *at_p, bt_str_t *data_p);

#endif
