/* mask.h - writes over KV addresses in a request id that passes by, as an engine repeats it in its answer.
 *
 * Owner: the relay of one decode leg.
 * Life:  init -> feed every body byte in order.
 * Flow:  both addresses of "prefill_addr_<one>___decode_addr_<other>" become x's, where they are exactly these two: lengths and
 *        every other byte stay, so do texts that only look alike. The same in all events, at any split of the body.
 * Cost:  one pass (memchr outside of ids); no allocation after init.
 */
#ifndef BT_API_MASK_H
#define BT_API_MASK_H

#include "base/arena.h"
#include "base/str.h"

typedef struct bt_mask {
    bt_str_t pattern;      /* the id as it is, from its first word on */
    size_t prefill_end;    /* of prefill's address in it */
    size_t decode_address; /* where decode's begins */
    size_t matched;        /* bytes of the pattern that have just passed */
} bt_mask_t;

void bt_mask_init(bt_mask_t *m, bt_arena_t *arena, bt_str_t prefill, bt_str_t decode);
/* Changes p[0..n) in place. */
void bt_mask_feed(bt_mask_t *m, char *p, size_t n);

#endif
