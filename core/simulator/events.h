/* events.h - what is to happen in a run, by virtual time.
 *
 * Owner: one run.
 * Life:  zeroed -> (push -> pop)* -> fini.
 * Flow:  equal times come in the order in which they were pushed, so that a seed gives one run.
 * Cost:  O(log n) a push and a pop; forget walks all, which only failures and switches ask for.
 */
#ifndef BT_SIMULATOR_EVENTS_H
#define BT_SIMULATOR_EVENTS_H

#include <stdint.h>

enum bt_sim_event_kind {
    BT_SIM_NOTHING, /* it was forgotten */
    BT_SIM_ARRIVE,
    BT_SIM_WAKE,      /* a hook has slept */
    BT_SIM_LINE_TICK, /* somebody has waited for a place for as long as it may */
    BT_SIM_CALLED,    /* it has one */
    BT_SIM_STEP,      /* an engine's step ends */
    BT_SIM_MOVED,     /* a job's KV is at its decode */
    BT_SIM_SAMPLE,    /* the gateway's look at the engines' load */
    BT_SIM_FAIL,      /* an engine's process ends */
    BT_SIM_REVIVE,    /* and is there again */
    BT_SIM_CHECK,     /* the gateway's health check of a worker */
    BT_SIM_LEASE,     /* prefill frees KV that nobody has fetched */
    BT_SIM_ADVISE,    /* the advisor looks */
    BT_SIM_SWITCH,    /* a worker is to take the other role */
    BT_SIM_DRAIN,     /* is it idle? */
    BT_SIM_SWITCHED
};

typedef struct bt_sim_event {
    double at_s;
    uint64_t number; /* the order of equal times */
    enum bt_sim_event_kind kind;
    unsigned engine;
    void *of; /* WAKE, CALLED: a flight; MOVED: a job; LEASE: a request */
} bt_sim_event_t;

typedef struct bt_sim_events {
    bt_sim_event_t *heap;
    unsigned count, cap;
    uint64_t next_number;
    int rc; /* an event was lost: out of memory */
} bt_sim_events_t;

void bt_sim_events_push(bt_sim_events_t *events, double at_s, enum bt_sim_event_kind kind,
                        unsigned engine, void *of);
bt_sim_event_t bt_sim_events_pop(bt_sim_events_t *events); /* there is one */
/* Those of this kind, engine and object will not happen. of: NULL = any. */
void bt_sim_events_forget(bt_sim_events_t *events, enum bt_sim_event_kind kind, unsigned engine,
                          const void *of);
void bt_sim_events_fini(bt_sim_events_t *events);

#endif
