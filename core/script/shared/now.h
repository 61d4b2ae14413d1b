/* now.h - the time that policies see. Private to core/script.
 *
 * Owner: the process.
 * Life:  the real clock, until a spec sets another one (testing.c); the gateway never does.
 * Flow:  baton.take, window and ewma, the age of reports, tick and events go by it; budgets and deadlines by the real clock.
 * Cost:  one relaxed load more than the clock itself.
 */
#ifndef BT_SCRIPT_NOW_H
#define BT_SCRIPT_NOW_H

#include "base/clock.h"

#include <stdatomic.h>

extern _Atomic uint64_t bt_now_faked_us; /* 0 = the real clock */

/* real_us, unless a spec has set the time. */
static inline uint64_t bt_now_or(uint64_t real_us)
{
    uint64_t faked_us = atomic_load_explicit(&bt_now_faked_us, memory_order_relaxed);

    return faked_us != 0 ? faked_us : real_us;
}

static inline uint64_t bt_now_us(void)
{
    return bt_now_or(bt_clock_us());
}

#endif
