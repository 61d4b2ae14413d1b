#include "cluster/ledger.h"

/* The entry remembers exactly what it added, so a release takes back that and nothing else; the worker pointer is the
 * "held" flag, cleared before anybody could release again (an entry belongs to one loop). */

static void add(bt_worker_t *w, enum bt_phase phase, int64_t tokens, int64_t requests)
{
    bt_ledger_total_t *total = bt_worker_total(w, phase);

    atomic_fetch_add_explicit(&total->tokens, tokens, memory_order_relaxed);
    if (requests != 0)
        atomic_fetch_add_explicit(&total->requests, requests, memory_order_relaxed);
}

static void hold(bt_ledger_entry_t *e, bt_worker_t *worker, enum bt_phase phase, int64_t tokens)
{
    bt_ledger_release(e);
    *e = (bt_ledger_entry_t){.worker = worker, .phase = phase, .tokens = tokens > 0 ? tokens : 0};
    add(worker, phase, e->tokens, 1);
}

void bt_ledger_hold(bt_ledger_entry_t *e, bt_worker_t *worker, enum bt_phase phase, int64_t tokens)
{
    hold(e, worker, phase, tokens);
    atomic_fetch_add_explicit(&worker->load.started_since, 1, memory_order_relaxed);
}

void bt_ledger_pass(bt_ledger_entry_t *from, bt_ledger_entry_t *to, enum bt_phase phase,
                    int64_t tokens)
{
    bt_worker_t *worker = from->worker;
    if (worker == NULL)
        return;
    bt_ledger_release(from);
    hold(to, worker, phase, tokens);
}

void bt_ledger_grow(bt_ledger_entry_t *e, int64_t tokens)
{
    if (e->worker == NULL || tokens <= 0)
        return;
    e->tokens += tokens;
    add(e->worker, e->phase, tokens, 0);
}

void bt_ledger_release(bt_ledger_entry_t *e)
{
    bt_worker_t *worker = e->worker;
    if (worker == NULL)
        return;
    e->worker = NULL;
    add(worker, e->phase, -e->tokens, -1);
}
