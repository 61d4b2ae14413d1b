/* health.h - what one answer to a health probe means, and what a row of them makes of a worker. The monitor
 * judges by it; whoever meets a worker on the way tells it what it has seen.
 *
 * Owner: the monitor keeps one track per worker; pure but for bt_worker_set_health.
 * Life:  as the monitor's watch of the worker.
 * Flow:  answer (or failure) -> bt_health_judge -> bt_health_count -> the worker's health.
 * Cost:  O(1).
 */
#ifndef BT_CLUSTER_CHECKS_HEALTH_H
#define BT_CLUSTER_CHECKS_HEALTH_H

#include "cluster/worker.h"

enum bt_verdict {
    BT_VERDICT_OK,
    BT_VERDICT_FAIL,    /* counts; enough in a row = down */
    BT_VERDICT_DEAD,    /* its engine says so: down at once */
    BT_VERDICT_REFUSED, /* nobody listens: down at once, what runs may go on */
    BT_VERDICT_SCALING, /* alive, but takes no new requests now */
    BT_VERDICT_OURS     /* we ran out of descriptors or memory: says nothing about the worker */
};

typedef struct bt_health_track {
    bool answered;       /* some probe has ended: from now on rows count */
    unsigned fails, oks; /* in a row */
    int last_health; /* what we left the worker at; another value = a passive signal came between */
} bt_health_track_t;

typedef struct bt_health_rules {
    uint64_t interval_ms;         /* between checks */
    unsigned failures, successes; /* in a row, until a worker is down or up */
} bt_health_rules_t;

/* rc < 0: no answer (error code); else status and the first bytes of the body. */
enum bt_verdict bt_health_judge(const bt_worker_t *w, int rc, unsigned status, bt_str_t body);
/* began_ms: when the probe was sent. A worker whose bytes came within the last interval is not failing, whatever it says;
 * one that is dead or refuses is believed unless bytes came after the probe was sent. why: short, for the log. */
void bt_health_count(bt_health_track_t *t, bt_worker_t *w, enum bt_verdict verdict, const char *why,
                     uint64_t began_ms, uint64_t now_ms, const bt_health_rules_t *rules);
/* Is this body (of a 5xx answer) the last word of an engine whose core has died? Of one that is being scaled? */
bool bt_health_is_engine_dead(bt_str_t body);
bool bt_health_is_scaling(unsigned status, bt_str_t body);

/* Passive signals, from any loop. refused = connect refused / reset while connecting: down at once. Other connect failures only
 * have the name resolved again; the breaker counts them. Recovery is the monitor's: two good answers. */
void bt_health_note_connect_failure(bt_worker_t *w, bool refused);
void bt_health_note_engine_dead(bt_worker_t *w);
void bt_health_note_scaling(bt_worker_t *w);

#endif
