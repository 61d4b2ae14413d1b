/* flight.h - flight recorder: the last unusual things that happened on each loop, for whoever asks afterwards.
 *
 * Owner: the process; a ring belongs to the one thread that is bound to it. Anybody may read any ring.
 * Life:  open, before the threads -> bind on each -> close, when they have ended. Before, after and on other threads a note is nothing.
 * Flow:  note -> the ring, oldest overwritten; a reader skips the entry that is being written. Equal notes within a second are one
 *        entry that counts, so that trouble which repeats leaves room for the rest. What others wrote (prompts, errors) is never noted.
 * Cost:  a note: one clock, one line of text; no lock, no allocation. 32 KiB a loop.
 */
#ifndef BT_BASE_FLIGHT_H
#define BT_BASE_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#define BT_FLIGHT_ENTRIES 256U /* a ring */
#define BT_FLIGHT_DETAIL 80    /* bytes, the NUL included */
#define BT_FLIGHT_CPU_UNKNOWN UINT64_MAX

enum bt_flight_kind {
    BT_FLIGHT_STALL,   /* a loop's turn took long */
    BT_FLIGHT_POLICY,  /* so did a policy's hook */
    BT_FLIGHT_GC,      /* so did collecting a VM's garbage */
    BT_FLIGHT_WORKER,  /* up, down, drained, removed, another role */
    BT_FLIGHT_BREAKER, /* opened */
    BT_FLIGHT_RELOAD,  /* policies, rules, configuration */
    BT_FLIGHT_STORE,   /* unavailable, back */
    BT_FLIGHT_QUEUE,   /* a request was refused */
    BT_FLIGHT_KINDS
};

typedef struct bt_flight_event {
    uint64_t at_us, last_us; /* CLOCK_MONOTONIC of the first and the last that this entry counts */
    uint64_t us;             /* that the longest took; 0 = it is no matter of time */
    uint64_t cpu_us;         /* that the longest used at most; or BT_FLIGHT_CPU_UNKNOWN */
    uint32_t kind;           /* enum bt_flight_kind */
    uint32_t count;
    char detail[BT_FLIGHT_DETAIL];
} bt_flight_event_t;

/* 0 or BT_E_NOMEM. */
int bt_flight_open(unsigned rings);
void bt_flight_close(void);
void bt_flight_bind(unsigned ring); /* what this thread notes goes there */

void bt_flight_note(enum bt_flight_kind kind, uint64_t us, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void bt_flight_stall(uint64_t us, uint64_t cpu_us, const char *what);

/* Safe in a signal's handler. */
unsigned bt_flight_rings(void);
const char *bt_flight_kind_name(uint32_t kind);
/* Entries have the numbers 1, 2, ...; the newest one's, 0 = there is none. */
uint64_t bt_flight_last(unsigned ring);
/* False: it is none of the last BT_FLIGHT_ENTRIES, or is being written. */
bool bt_flight_read(unsigned ring, uint64_t number, bt_flight_event_t *event_p);
/* The oldest that may be there, if last is the newest. */
static inline uint64_t bt_flight_first(uint64_t last)
{
    return last > BT_FLIGHT_ENTRIES ? last - BT_FLIGHT_ENTRIES + 1 : 1;
}

#endif
