/* parts.h - images, audio and video of a chat or of /v1/responses, by their hashes.
 *
 * Owner: the request's arena.
 * Life:  as the request.
 * Flow:  messages -> hashes in their order; what an engine then does with them is media.c's.
 * Cost:  one pass over the messages.
 */
#ifndef SIM_PARTS_H
#define SIM_PARTS_H

#include "raw.h"

typedef struct sim_parts {
    uint64_t *hashes;
    unsigned count, others; /* others: parts and messages that are no media */
} sim_parts_t;

/* processor, io: mm_processor_kwargs and media_io_kwargs, or none. */
void sim_parts_read(sim_raw_t messages, sim_raw_t processor, sim_raw_t io, bt_arena_t *arena,
                    sim_parts_t *parts);

#endif
