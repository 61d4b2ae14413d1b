/* warm.h - which (prefill, decode) pairs have moved KV since both engines began.
 *
 * Owner: the decode worker remembers its partners; one loop writes (dispatch/warmup.c), all read, and may
 *        take out what they know better of.
 * Life:  from a warm-up that went well until one of the two is down, lost or another process.
 * Flow:  dispatch/warmup.c -> bt_warm_note -> bt_warm_has, for the default choice and for policies.
 * Cost:  64 words a worker; a look-up finds its word at the first place it tries, as a rule.
 */
#ifndef BT_CLUSTER_WARM_H
#define BT_CLUSTER_WARM_H

#include "cluster/worker.h"

/* Are pairs warmed at all (--warm-pairs)? Where not, none is warm and nobody need ask. Set before
 * the first loop runs. */
extern _Atomic bool bt_warm_is_on;

/* This pair in the present lives of its two engines. */
uint64_t bt_warm_word(const bt_worker_t *p, const bt_worker_t *d);
/* A warm-up that began when the pair was `word` has gone well. Only by the loop that warms. */
void bt_warm_note(bt_worker_t *p, bt_worker_t *d, uint64_t word);
/* Its transfers keep failing. Any loop. */
void bt_warm_forget(const bt_worker_t *p, bt_worker_t *d);
bool bt_warm_has(const bt_worker_t *p, const bt_worker_t *d);
/* Has it been in a warm pair since its engine began? */
bool bt_warm_has_any(const bt_worker_t *w);

#endif
