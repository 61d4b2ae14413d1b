/* mask.h - writes over KV addresses in a request id that passes by, as an engine repeats it in its answer.
 *
 * Owner: the relay of one leg.
 * Life:  all zeros -> feed every body byte in order.
 * Flow:  what can be an address after "prefill_addr_" or "decode_addr_" becomes x's: lengths and every other byte stay. It goes by the
 *        shape alone: one that compared with the addresses would tell whoever makes an engine repeat guesses which of them is right.
 *        The same in all events, at any split of the body.
 * Cost:  one pass; no allocation.
 */
#ifndef BT_API_MASK_H
#define BT_API_MASK_H

#include "base/str.h"

enum bt_mask_at {
    BT_MASK_NONE, /* outside */
    BT_MASK_HOST,
    BT_MASK_COLON,
    BT_MASK_PORT,
    BT_MASK_UNDERSCORE, /* of a host's name, unless another one follows */
};

typedef struct bt_mask {
    enum bt_mask_at at;
    unsigned count; /* bytes that have passed */
    char last[16];  /* of them, by count */
} bt_mask_t;

/* Changes p[0..n) in place. */
void bt_mask_feed(bt_mask_t *m, char *p, size_t n);

#endif
