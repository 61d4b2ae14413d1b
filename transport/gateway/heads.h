/* heads.h - who has which heads, when the two sides of a room have unlike numbers of ranks. Private to transport.
 *
 * Owner: nobody; arithmetic.
 * Life:  of a call.
 * Flow:  both sides ask the same question of the same numbers, so a receiver's sources and a sender's receivers agree without a word.
 * Cost:  O(1).
 */
#ifndef BT_TRANSPORT_HEADS_H
#define BT_TRANSPORT_HEADS_H

#include "transport/agent/layout.h"

#include <stdbool.h>

/* Can so many ranks hold them, each the same share? */
bool bt_kv_heads_fit(uint32_t total, uint32_t ranks);
/* Does rank `to` of a worker take heads from rank `from` of the other? Both numbers of ranks fit. *slice_p: which of a page, where a receiver's page has
 * `page_bytes`; zeroed when it is the whole page. */
bool bt_kv_heads_slice(bt_kv_heads_t heads, uint32_t to, uint32_t to_ranks, uint32_t from,
                       uint32_t from_ranks, uint64_t page_bytes, bt_kv_slice_t *slice_p);

#endif
