/* backoff.h - which failing pairs are not to be tried again yet.
 *
 * Owner: whoever tries them (warmup.c).
 * Life:  all zeros -> bt_backoff_failed at each failure; what has gone well is asked for no more.
 * Flow:  500 ms, doubled with each failure, to a minute.
 * Cost:  at most BT_BACKOFF_PROBES places; no allocation. A pair that finds them all in use takes the place of the one whose wait ends first.
 */
#ifndef BT_DISPATCH_BACKOFF_H
#define BT_DISPATCH_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

#define BT_BACKOFF_PLACES 512
#define BT_BACKOFF_PROBES 16

typedef struct bt_backoff {
    struct bt_backoff_place {
        uint64_t prefill, decode; /* 0, 0 = free */
        unsigned count;           /* failures in a row */
        uint64_t again_ms;
    } places[BT_BACKOFF_PLACES];
} bt_backoff_t;

bool bt_backoff_must_wait(const bt_backoff_t *b, uint64_t prefill, uint64_t decode,
                          uint64_t now_ms);
/* Returns the failures so far; wait_ms_p: until it may be tried again. */
unsigned bt_backoff_failed(bt_backoff_t *b, uint64_t prefill, uint64_t decode, uint64_t now_ms,
                           uint64_t *wait_ms_p);

#endif
