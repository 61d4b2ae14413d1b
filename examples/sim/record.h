/* record.h - the last requests a worker has seen, for specs to look at.
 *
 * Owner: one worker.
 * Life:  init -> add / note* -> fini.
 * Flow:  a ring; older ones fall out. Numbers only grow, so ?since= asks for what is new.
 * Cost:  a copy of head and body per request; nothing when its size is 0 (--record 0).
 */
#ifndef SIM_RECORD_H
#define SIM_RECORD_H

#include "base/text.h"
#include "http/message.h"

typedef struct sim_entry {
    uint64_t number, time_us;
    char *method, *target, *headers,
        *body; /* headers: JSON object, repeated names joined by ", " */
    size_t body_len, body_kept;
    unsigned status;
    const char *end; /* "open", "done", "gone", "aborted" */
} sim_entry_t;

typedef struct sim_record {
    sim_entry_t *ring;
    unsigned size, body_max;
    uint64_t next; /* number of the next request, from 1 */
} sim_record_t;

int sim_record_init(sim_record_t *r, unsigned size, unsigned body_max);
void sim_record_fini(sim_record_t *r);
void sim_record_clear(sim_record_t *r);
/* Number of the request (counted even when nothing is kept). */
uint64_t sim_record_add(sim_record_t *r, const bt_head_t *head, bt_str_t body);
void sim_record_note(sim_record_t *r, uint64_t number, unsigned status, const char *end);
void sim_record_print(const sim_record_t *r, uint64_t since, bt_text_t *out);

#endif
