/* flatten.h - prompts of all routes as plain bytes.
 *
 * Owner: the bytes live in the arena, or in the body where nothing had to be changed.
 * Life:  as long as both.
 * Flow:  string -> itself; ids -> 4 bytes each, little-endian; messages -> role LF text LF each.
 * Cost:  one copy where needed.
 */
#ifndef SIM_FLATTEN_H
#define SIM_FLATTEN_H

#include "raw.h"

/* before: put in front. All: 0 or -1 with a problem. */
int sim_flatten_string(sim_raw_t raw, bt_arena_t *arena, bt_str_t *out_p, sim_problem_t *problem_p);
int sim_flatten_ids(sim_raw_t raw, bt_arena_t *arena, bt_str_t *out_p, sim_problem_t *problem_p);
/* system: instruction in front of the messages, absent is fine. messages may be a string: one user message. */
int sim_flatten_messages(sim_raw_t system, sim_raw_t messages, bt_str_t before, bt_arena_t *arena,
                         bt_str_t *out_p, sim_problem_t *problem_p);

#endif
