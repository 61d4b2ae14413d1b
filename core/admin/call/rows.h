/* rows.h - an answer of many rows, written a piece a turn: the control loop does not stand still for it, and it never lies in memory whole.
 * Private to core/admin.
 *
 * Owner: rows are their holder's until bt_rows_send takes them.
 * Life:  send -> a piece a turn, as long as the client reads -> the last one, or its client leaves.
 * Flow:  a writer of rows -> pieces -> chunks of the exchange; no piece while the client does not read.
 * Cost:  a piece of about BT_PIECE_BYTES a turn, and what the client has not read yet.
 */
#ifndef BT_ADMIN_CALL_ROWS_H
#define BT_ADMIN_CALL_ROWS_H

#include "base/text.h"
#include "http/server.h"

#define BT_PIECE_BYTES ((size_t) 64 << 10)

/* Embedded in what writes them. */
typedef struct bt_rows {
    /* Until out is BT_PIECE_BYTES long, and a row more; true: that was the last one. */
    bool (*write)(struct bt_rows *rows, bt_text_t *out);
    void (*free)(struct bt_rows *rows);
} bt_rows_t;

/* Starts x's answer with first, and goes on with rows, which it takes. x->user is its own from here on. */
void bt_rows_send(bt_exchange_t *x, const bt_header_t *headers, unsigned header_count,
                  bt_str_t first, bt_rows_t *rows);

#endif
