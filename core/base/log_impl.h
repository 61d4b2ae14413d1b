/* log_impl.h - log.c and log_queue.c: lines on their way to stderr. Others use log.h.
 *
 * Owner: the process.
 * Life:  start -> put from any thread -> stop. Before, after and in a forked child there is no queue: put says so.
 * Flow:  put copies a line under a short lock; one thread writes what has gathered. A full queue drops the line and counts
 *        it; the count is written as a line of its own when stderr takes bytes again.
 * Cost:  a lock, a copy, and every BT_LOG_REST_MS at most a wake-up; an idle process has none. BT_LOG_QUEUE_BYTES at most.
 */
#ifndef BT_BASE_LOG_IMPL_H
#define BT_BASE_LOG_IMPL_H

#include "base/str.h"

#define BT_LOG_QUEUE_BYTES                                                                         \
    ((size_t) 4 << 20)   /* lines that wait, and those that are being written */
#define BT_LOG_REST_MS 2 /* between two writes: lines gather */

/* Copies the line and adds its newline. False: there is no queue, the caller writes itself. */
bool bt_log_queue_put(bt_str_t line);
/* Everything that was put before is written. False: not within the time. */
bool bt_log_queue_flush(unsigned timeout_ms);
/* No queue from here on. Lines are given to their writers, or to nobody. */
void bt_log_queue_leave(bool is_silent);

/* ---- of log.c ---- */
int bt_log_fd(void);
/* The line that tells of n lost ones, newline included; returns its length. */
size_t bt_log_dropped_line(char *out, size_t size, uint64_t n);

#endif
