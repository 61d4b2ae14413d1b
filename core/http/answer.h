/* answer.h - reads one HTTP/1.1 answer out of the pieces a connection gets. Private to core/http.
 *
 * Owner: the connection.
 * Life:  start (for each answer) -> next* until BT_ANSWER_END or an error; eof when the peer closed; fini at the end. The
 *        head and its spans are good until drop_head, start or fini.
 * Flow:  pull style, no callbacks: 1xx heads are swallowed, then HEAD once, BODY runs as slices of the piece, END. What
 *        stands behind END in the piece is not looked at: an answer nobody asked for.
 * Cost:  a head is copied into an arena (so that a stream that runs for minutes does not hold a whole read buffer), which
 *        takes a block from the thread's free list. Body is never copied.
 */
#ifndef BT_HTTP_ANSWER_H
#define BT_HTTP_ANSWER_H

#include "base/arena.h"
#include "http/chunk.h"
#include "http/message.h"

enum { BT_ANSWER_MORE, BT_ANSWER_HEAD, BT_ANSWER_BODY, BT_ANSWER_END };

typedef struct bt_answer {
    const bt_head_t *head; /* from BT_ANSWER_HEAD on; in the arena */
    bool head_request;     /* no body whatever the head says */
    bool until_eof;        /* the body's end is the connection's end */
    bool keep_alive;       /* as the head says */
    unsigned char state;
    bt_chunk_t chunk;
    uint64_t left;    /* body bytes still to come when the length is known */
    bt_arena_t arena; /* the head's bytes, and what they say */
    char *bytes;
    size_t len, cap; /* bytes gathered so far */
    size_t seen;     /* bt_head_scan's */
} bt_answer_t;

/* a: zeroed before the first start. */
void bt_answer_start(bt_answer_t *a, bool head_request);
void bt_answer_fini(bt_answer_t *a);
/* Nobody looks at it any more; framing stays. */
void bt_answer_drop_head(bt_answer_t *a);
/* *at_p walks over the piece; *body_p is filled with BT_ANSWER_BODY. BT_E_UPSTREAM_HTTP. */
int bt_answer_next(bt_answer_t *a, bt_str_t piece, size_t *at_p, bt_str_t *body_p);
/* The peer has closed: BT_ANSWER_END when that ends the body, else BT_E_RESET. */
int bt_answer_eof(bt_answer_t *a);
/* The connection can carry another answer behind this one. */
bool bt_answer_keeps_alive(const bt_answer_t *a);

#endif
