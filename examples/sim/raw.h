/* raw.h - values of a body as they stand there, and what is wrong with them.
 *
 * Owner: the body; unescaped text lies in the caller's arena.
 * Life:  as long as both.
 * Flow:  ask.c and flatten.c look at values, and answer with a problem where one does not fit.
 * Cost:  a look-up is one pass over its object or array.
 */
#ifndef SIM_RAW_H
#define SIM_RAW_H

#include "base/arena.h"
#include "base/json.h"

/* A raw JSON value and its type; BT_JSON_NONE when the member is absent. */
typedef struct sim_raw {
    bt_str_t value;
    enum bt_json_type type;
} sim_raw_t;

typedef struct sim_problem {
    unsigned status;
    const char *type, *param; /* param NULL: null */
    char message[400];
} sim_problem_t;

/* Always -1. */
int sim_problem_set(sim_problem_t *problem_p, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Elements of a JSON array, or 0 when it is none. */
unsigned sim_raw_count(sim_raw_t raw);
/* Element i of an array; the value itself when it is no array. */
sim_raw_t sim_raw_at(sim_raw_t raw, unsigned i);
sim_raw_t sim_raw_get(bt_str_t object, const char *name);
/* Unescaped string, or the raw text of anything else. */
bt_str_t sim_raw_text(sim_raw_t raw, bt_arena_t *arena);

#endif
