/* clock.h - time.
 *
 * Owner: nobody.
 * Life:  static.
 * Flow:  monotonic for deadlines and durations, wall clock only for what people read. A loop says when it handles an event;
 *        what is noted of a request then has the time of that event, for a read each.
 * Cost:  one vDSO call; none for an event's time that is known.
 */
#ifndef BT_BASE_CLOCK_H
#define BT_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t bt_clock_us(void); /* CLOCK_MONOTONIC */
uint64_t bt_clock_ms(void);
/* The latest of these times that was read on this thread while it has handled this event; outside of one, now. Never before a
 * time that was read before. It is not for waiting, nor for how long a piece of work takes. */
uint64_t bt_clock_event_us(void);
uint64_t bt_clock_event_ms(void);
void bt_clock_begin_event(void); /* ends the one before, too */
void bt_clock_end_event(void);
uint64_t bt_clock_cpu_us(void);  /* that this thread has used */
uint64_t bt_clock_wall_ms(void); /* unix time */
uint64_t bt_clock_wall_us(void);
/* "2026-01-31T12:00:00.123Z" into out (at least 25 bytes). */
void bt_clock_iso8601(uint64_t wall_ms, char *out, size_t size);

#endif
