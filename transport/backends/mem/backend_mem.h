/* backend_mem.h - what specs may do to the mem back end.
 *
 * Owner: the process: all agents in it share these switches.
 * Life:  static; 0 everywhere unless a spec says otherwise.
 * Flow:  set, watch what the agents do, set back.
 * Cost:  a relaxed load per batch.
 */
#ifndef BT_TRANSPORT_BACKEND_MEM_H
#define BT_TRANSPORT_BACKEND_MEM_H

#include <stdatomic.h>

typedef struct bt_kv_mem_faults {
    _Atomic int hold;  /* 1: the batch in front stays under way, half of it moved, for ever */
    _Atomic int busy;  /* 1: senders say that they have not drained */
    _Atomic int flip;  /* so many batches arrive with a byte flipped */
    _Atomic int again; /* so many posts are told that the queue is full */
    _Atomic int deny;  /* 1: paths cannot be opened */
} bt_kv_mem_faults_t;

extern bt_kv_mem_faults_t bt_kv_mem_faults;

#endif
