/* successor.h - the worker that takes another one's place by a new description: the only place that says what of a worker's past is its
 * successor's.
 *
 * Owner: the registry, for the time of one change.
 * Life:  make -> put into a draft, by which it becomes known.
 * Flow:  who stands there now and what is said of it -> the successor, not yet published.
 * Cost:  one worker.
 *
 * Whoever describes it anew (the file, SIGHUP, DNS, pods, the API, its engine's registration, a role switch), the successor gets
 *   always                     who names it and since when, whether an operator drains it, the doubt about its role (role_unknown)
 *   of the same process        that it is up and where, its breaker, averages, load, what it has said that it cannot do; what it has registered
 *   and in the same dialect    its engine ids, and what was learned from its replies
 *   never                      who is down (its first check tells: the old description may have been why), legs, counters
 * It is the same process unless the two descriptions contradict each other in what an engine is given when it starts: role, engine,
 * connector, ports, sizes, version, ids; or a source knows that it has ended. What only one of them says contradicts nothing. Another address is another place: nobody stood there.
 */
#ifndef BT_CLUSTER_SUCCESSOR_H
#define BT_CLUSTER_SUCCESSOR_H

#include "cluster/draft.h"

enum bt_successor_by {
    BT_SUCCESSOR_DESCRIBED, /* by a source, again and again: a role that was switched stays, see below */
    BT_SUCCESSOR_ADDED,      /* by an operator, now */
    BT_SUCCESSOR_SWITCHED,   /* to another role */
    BT_SUCCESSOR_REGISTERED, /* by what it says of itself */
    BT_SUCCESSOR_ENDED, /* by a source that knows that another process is there: in the role that it is given at its start */
};

/* before: who stands there; NULL: nobody, and it is a new worker. Its name is the caller's affair. */
int bt_successor_make(bt_registry_t *r, enum bt_successor_by by, const bt_worker_spec_t *spec,
                      const bt_worker_t *before, bt_worker_t **worker_p, char *err,
                      size_t err_size);
/* Under the old name where the description gives none. */
int bt_successor_keep_name(bt_worker_t *w, const bt_worker_t *before);

/* What its sources say of it, a switch of its role aside. */
const bt_worker_spec_t *bt_successor_said_of(const bt_worker_t *w);
/* Does this description differ from what its source has said of w so far? Names are not compared.
 * A switched role is an operator's word, and holds against a source that says the same role as before. What else the source says is
 * followed; once it says another role than before, so is that. */
bool bt_successor_is_needed(const bt_worker_t *w, const bt_worker_spec_t *spec);

#endif
