/* rate.h - rates by name that all loops share: moving averages, token buckets, sliding windows. Private to core/script.
 *
 * Owner: the process has one table; a dry run has its own, freed with it.
 * Life:  a cell is made at its first use. Names may come from requests (a tenant), so cells are bounded: 16,384 in 1 MiB;
 *        when a set of eight ways is full, the one unused for longest gives way and starts anew.
 * Flow:  name and kind -> a 64-bit hash -> a cell; the hash is the name, two names with one hash would share.
 * Cost:  no locks; one cache line of keys and one of values.
 */
#ifndef BT_SCRIPT_RATE_H
#define BT_SCRIPT_RATE_H

#include "base/str.h"

typedef struct bt_rates bt_rates_t;

bt_rates_t *bt_rates_process(void);
bt_rates_t *bt_rates_new(void);    /* NULL when out of memory */
void bt_rates_free(bt_rates_t *r); /* not the process's; NULL is fine */
/* value += weight * (sample - value), the first sample as it is. Returns the new value. */
double bt_rate_ewma(bt_rates_t *r, bt_str_t name, double sample, double weight, uint64_t now_us);
/* False: nothing was ever given. */
bool bt_rate_ewma_get(bt_rates_t *r, bt_str_t name, double *value_p, uint64_t now_us);
/* A bucket of `burst` that fills with `per_s`. Takes cost and returns 0, or takes nothing and returns how long to wait in
 * seconds (HUGE_VAL: more than the bucket ever holds). */
double bt_rate_take(bt_rates_t *r, bt_str_t name, double per_s, double burst, double cost,
                    uint64_t now_us);
/* Adds to a window of the last window_us and returns its sum: this half-open window's count, and of the one before it the
 * part that still overlaps, as if that had come evenly. */
double bt_rate_window(bt_rates_t *r, bt_str_t name, double amount, uint64_t window_us,
                      uint64_t now_us);
/* Forgets everything of the process. For specs: while nothing else uses rates. */
void bt_rate_clear(void);

#endif
