#include "http/http2_counts.h"

#define PLACES 16 /* with more loops some share one, which costs them time and no count */

static struct place {
    _Alignas(64) bt_http2_counts_t counts;
} places[PLACES];
static _Atomic unsigned taken;

const char *bt_http2_reset_name(enum bt_http2_reset reset)
{
    static const char *const names[BT_HTTP2_RESETS] = {"client", "stall", "cut", "refused",
                                                       "malformed"};
    return names[reset];
}

const char *bt_http2_end_name(enum bt_http2_end end)
{
    static const char *const names[BT_HTTP2_ENDS] = {"flood", "rapid_reset", "stall", "slow_head",
                                                     "malformed"};
    return names[end];
}

bt_http2_counts_t *bt_http2_counts_take(void)
{
    return &places[atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed) % PLACES].counts;
}

static void add(_Atomic uint64_t *sum, const _Atomic uint64_t *value)
{
    atomic_fetch_add_explicit(sum, atomic_load_explicit(value, memory_order_relaxed),
                              memory_order_relaxed);
}

void bt_http2_counts_sum(bt_http2_counts_t *sum)
{
    *sum = (bt_http2_counts_t){0};
    for (unsigned i = 0; i < PLACES; i++) {
        const bt_http2_counts_t *c = &places[i].counts;
        /* closed first: never more of them than were begun */
        add(&sum->connections_closed, &c->connections_closed);
        add(&sum->connections, &c->connections);
        add(&sum->streams_closed, &c->streams_closed);
        add(&sum->streams, &c->streams);
        for (unsigned k = 0; k < BT_HTTP2_RESETS; k++)
            add(&sum->resets[k], &c->resets[k]);
        for (unsigned k = 0; k < BT_HTTP2_ENDS; k++)
            add(&sum->ends[k], &c->ends[k]);
    }
}
