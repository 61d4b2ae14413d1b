/* clock.h - time.
 *
 * Owner: nobody.
 * Life:  static.
 * Flow:  monotonic for deadlines and durations, wall clock only for what people read.
 * Cost:  one vDSO call.
 */
#ifndef BT_BASE_CLOCK_H
#define BT_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

uint64_t bt_clock_us(void); /* CLOCK_MONOTONIC */
uint64_t bt_clock_ms(void);
uint64_t bt_clock_cpu_us(void);  /* that this thread has used */
uint64_t bt_clock_wall_ms(void); /* unix time */
/* "2026-01-31T12:00:00.123Z" into out (at least 25 bytes). */
void bt_clock_iso8601(uint64_t wall_ms, char *out, size_t size);

#endif
