/* kept.h - the part of an answer that is kept back, until it can be judged or put together with others.
 *
 * Owner: a leg, or a child of a split request.
 * Life:  zeroed -> add* -> drop.
 * Flow:  one piece stays in the buffer it was read into. More are put together: small ones would each hold a whole read buffer.
 * Cost:  nothing for one piece; then a copy, in a buffer that doubles.
 */
#ifndef BT_DISPATCH_STATE_KEPT_H
#define BT_DISPATCH_STATE_KEPT_H

#include "base/buf.h"
#include "base/str.h"

#include <stdbool.h>

struct bt_dispatch_shared;

typedef struct bt_kept {
    bt_str_t text;
    bt_buf_t *buf; /* its owner; NULL = nothing is kept */
    bool is_own;   /* nobody else writes into it or has spans of it */
} bt_kept_t;

/* BT_E_NOMEM: the limit is reached, or memory is; nothing has changed. */
int bt_kept_add(bt_kept_t *kept, const struct bt_dispatch_shared *shared, bt_buf_t *buf,
                bt_str_t piece);
void bt_kept_drop(bt_kept_t *kept);

#endif
