/* The date is computed here and not by gmtime_r, which takes the C library's time-zone lock on
 * every call. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t now_us(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

static _Thread_local struct {
    uint64_t us;  /* the last time that was read; 0 = none since the event began */
    bool is_open; /* it is handled now */
} event;

uint64_t bt_clock_us(void)
{
    return event.us = now_us(CLOCK_MONOTONIC);
}

uint64_t bt_clock_ms(void)
{
    return bt_clock_us() / 1000;
}

uint64_t bt_clock_event_us(void)
{
    return event.is_open && event.us != 0 ? event.us : bt_clock_us();
}

uint64_t bt_clock_event_ms(void)
{
    return bt_clock_event_us() / 1000;
}

void bt_clock_begin_event(void)
{
    event.is_open = true;
    event.us = 0;
}

void bt_clock_end_event(void)
{
    event.is_open = false;
}

uint64_t bt_clock_cpu_us(void)
{
    return now_us(CLOCK_THREAD_CPUTIME_ID);
}

uint64_t bt_clock_wall_us(void)
{
    return now_us(CLOCK_REALTIME);
}

uint64_t bt_clock_wall_ms(void)
{
    return bt_clock_wall_us() / 1000;
}

/* Gregorian date of a day since 1970-01-01. Years are counted from 1 March, so the leap day is a
 * year's last. */
static void date_of(uint64_t days, unsigned *year_p, unsigned *month_p, unsigned *day_p)
{
    uint64_t since = days + 719468; /* from 0000-03-01 */
    uint64_t era = since / 146097;  /* 400 years */
    unsigned doe = (unsigned) (since % 146097);
    unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    unsigned shifted = (5 * doy + 2) / 153; /* 0 = March */

    *day_p = doy - (153 * shifted + 2) / 5 + 1;
    *month_p = shifted < 10 ? shifted + 3 : shifted - 9;
    *year_p = (unsigned) (era * 400) + yoe + (*month_p <= 2 ? 1 : 0);
}

void bt_clock_iso8601(uint64_t wall_ms, char *out, size_t size)
{
    unsigned year, month, day;
    unsigned ms_of_day = (unsigned) (wall_ms % 86400000);

    date_of(wall_ms / 86400000, &year, &month, &day);
    snprintf(out, size, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", year, month, day,
             ms_of_day / 3600000, ms_of_day / 60000 % 60, ms_of_day / 1000 % 60, ms_of_day % 1000);
}
