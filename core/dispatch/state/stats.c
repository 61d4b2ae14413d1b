/* stats.c - buckets are those that dashboards of this field already use (1 ms .. 240 s). */
#include "dispatch/state/stats.h"

const uint64_t bt_histogram_bounds_us[BT_HISTOGRAM_BUCKETS] = {
    1000,     5000,     10000,    25000,     50000,     100000,   250000,
    500000,   1000000,  2500000,  5000000,   10000000,  15000000, 30000000,
    45000000, 60000000, 90000000, 120000000, 180000000, 240000000};

unsigned bt_histogram_bucket(uint64_t us)
{
    unsigned i = 0;

    while (i < BT_HISTOGRAM_BUCKETS && us > bt_histogram_bounds_us[i])
        i++;
    return i;
}

void bt_histogram_note(bt_histogram_t *h, uint64_t us, uint64_t n)
{
    bt_stats_add_(&h->buckets[bt_histogram_bucket(us)], n);
    bt_stats_add_(&h->sum_us, us * n);
    bt_stats_add_(&h->count, n);
}
