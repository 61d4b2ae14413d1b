/* ledger.h - load that we ourselves have put on workers: tokens and requests per phase.
 *
 * Owner: an entry is embedded in a leg and belongs to its loop; totals are atomics of the process (ledger_totals.h).
 * Life:  hold -> (grow)* -> release. Release is idempotent; an entry released (or never held) does nothing, so no path can
 *        drive a total negative and nothing stays held when a leg ends twice.
 * Flow:  prefill: prompt tokens until prefill's part ended; decode: prompt tokens + events so far until the body ended.
 * Cost:  two or three relaxed atomic adds a call.
 */
#ifndef BT_CLUSTER_LEDGER_H
#define BT_CLUSTER_LEDGER_H

#include "cluster/worker.h"

typedef struct bt_ledger_entry {
    bt_worker_t *worker; /* NULL = not held; borrowed from the leg, which holds the reference */
    enum bt_phase phase;
    int64_t tokens;
} bt_ledger_entry_t;

/* Entries start zeroed. Holding a held entry releases it first. Counts one leg in worker->load.started_since. */
void bt_ledger_hold(bt_ledger_entry_t *e, bt_worker_t *worker, enum bt_phase phase, int64_t tokens);
/* The leg goes on in its other phase: `to` holds from now on, `from` no more. Nothing when `from` is not held. */
void bt_ledger_pass(bt_ledger_entry_t *from, bt_ledger_entry_t *to, enum bt_phase phase,
                    int64_t tokens);
void bt_ledger_grow(bt_ledger_entry_t *e, int64_t tokens);
void bt_ledger_release(bt_ledger_entry_t *e);

#endif
