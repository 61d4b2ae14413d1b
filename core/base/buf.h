/* buf.h - refcounted byte buffers, the unit in which bytes travel from socket to socket.
 *
 * Owner: every holder of a reference; counts are not atomic, so a buffer stays on one thread.
 * Life:  from bt_buf_new() until the last bt_buf_unref(); standard-size buffers are recycled
 *        (base/pages.h), large ones too (base/blocks.h), others are freed.
 * Flow:  filled from [data+len, data+cap), read by slices that hold a reference.
 * Cost:  O(1); no allocation once there are free pieces. All live bytes of capacity are counted
 *        (base/mem.h) so that the server can refuse work before memory runs out.
 */
#ifndef BT_BASE_BUF_H
#define BT_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BT_BUF_STD_BYTES                                                                           \
    ((size_t) 16384 - 32) /* capacity of a standard read buffer: 16 KiB with its header */

typedef struct bt_buf {
    uint32_t refs;
    uint32_t kind; /* internal: standard or sized */
    size_t cap;
    size_t len; /* bytes in use; maintained by whoever fills it */
    char *data;
} bt_buf_t;

/* cap <= BT_BUF_STD_BYTES gives a standard buffer. NULL when out of memory. Starts with one reference, len 0. */
bt_buf_t *bt_buf_new(size_t cap);
/* Is memory for one of that size ours already, so that it costs the system nothing? */
bool bt_buf_is_there(size_t cap);
/* Sized buffer holding a copy. */
bt_buf_t *bt_buf_copy(const void *data, size_t len);
bt_buf_t *bt_buf_ref(bt_buf_t *buf);
void bt_buf_unref(bt_buf_t *buf); /* NULL is fine */
/* At least cap bytes of capacity; the first len bytes stay. For who has the only reference and no spans into it. BT_E_NOMEM: *buf_p is
 * as it was. */
int bt_buf_grow(bt_buf_t **buf_p, size_t cap);

#endif
