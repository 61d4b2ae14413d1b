#include "cluster/changes.h"

#include <stdatomic.h>

static _Atomic uint64_t change_count = 1;

uint64_t bt_workers_changes(void)
{
    return atomic_load_explicit(&change_count, memory_order_acquire);
}

void bt_workers_changed(void)
{
    atomic_fetch_add_explicit(&change_count, 1, memory_order_release);
}
