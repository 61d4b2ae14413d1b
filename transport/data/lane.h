/* lane.h - chunks on their way to one peer: a queue, cut into batches for the back end.
 *
 * Owner: the link.
 * Life:  with the link. An item lives until all of its parts are posted, a part until the back end is through with it.
 * Flow:  first in, first out, whatever the room; at most POSTED_MAX parts are with the back end, the rest waits as chunks, which are small.
 *        A part is a block of pages x buffers with a note of its own, so that parts may overtake each other.
 * Cost:  runs are made when a part is posted; parts and their arrays are kept for reuse.
 */
#ifndef BT_TRANSPORT_LANE_H
#define BT_TRANSPORT_LANE_H

#include "transport/control/link.h"

typedef struct bt_kv_part {
    bt_list_t link; /* free list */
    bt_kv_batch_t batch;
    bt_kv_end_t *end;
    bt_kv_run_t *runs;
    uint32_t run_room;
    uint64_t units;
    bool is_last;
} bt_kv_part_t;

/* refs the job. 0, BT_E_NOMEM. */
int bt_kv_lane_add(bt_kv_agent_t *agent, bt_kv_end_t *end, bt_kv_job_t *job);
void bt_kv_lane_fini(bt_kv_agent_t *agent);

#endif
