/* ledger_totals.h - what lies on each worker, those of all workers side by side.
 *
 * Owner: the process; a worker has one place from its making to its end.
 * Life:  static; a place that is free holds zeros, and the lowest is taken first, so that a fleet's lie together.
 * Flow:  ledgers of all loops add, and the fleet adds what other gateways told; rankings of whole fleets read.
 * Cost:  16 bytes a phase and worker: a ranking of 10,000 reads 160 KB in a row, and never the workers themselves.
 */
#ifndef BT_CLUSTER_LEDGER_TOTALS_H
#define BT_CLUSTER_LEDGER_TOTALS_H

#include <stdatomic.h>
#include <stdint.h>

#define BT_LEDGER_PLACES                                                                           \
    32768 /* twice as many as a registry has: removed workers drain, policies are tested */

enum bt_phase { BT_PHASE_PREFILL, BT_PHASE_DECODE, BT_PHASE_COUNT };

typedef struct bt_ledger_total {
    _Atomic int64_t tokens, requests;
} bt_ledger_total_t;

extern bt_ledger_total_t bt_ledger_totals[BT_PHASE_COUNT][BT_LEDGER_PLACES];

/* A place is a distance in bytes: whoever reads thousands need not multiply. BT_E_LIMIT when all are taken. Any thread. */
int bt_ledger_place_take(uint32_t *place_p);
void bt_ledger_place_give_back(uint32_t place);

static inline bt_ledger_total_t *bt_ledger_total_at(enum bt_phase phase, uint32_t place)
{
    return (bt_ledger_total_t *) (void *) ((char *) bt_ledger_totals[phase] + place);
}
static inline int64_t bt_ledger_tokens(enum bt_phase phase, uint32_t place)
{
    return atomic_load_explicit(&bt_ledger_total_at(phase, place)->tokens, memory_order_relaxed);
}
static inline int64_t bt_ledger_requests(enum bt_phase phase, uint32_t place)
{
    return atomic_load_explicit(&bt_ledger_total_at(phase, place)->requests, memory_order_relaxed);
}

#endif
