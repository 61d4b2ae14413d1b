/* log.h - one logger, text or JSON lines on stderr or in a file.
 *
 * Owner: the process; safe from every thread.
 * Life:  usable from the first instruction with defaults (info, text): each line is one write(2). From bt_log_start to
 *        bt_log_stop lines go into a bounded queue, and a thread writes them: stderr holds nobody up. Not in a forked child.
 * Flow:  error = an operator must act; warn = degraded but serving; info = once per object's life;
 *        debug = per request. Lower case, no trailing period. Lines that find the queue full are dropped, counted and told.
 * Cost:  a level check when off. Equal lines (same call site) above 10 a second are counted and summarised. A line is
 *        a copy under a short lock; a write takes many.
 */
#ifndef BT_BASE_LOG_H
#define BT_BASE_LOG_H

#include "base/str.h"

enum bt_log_level { BT_LOG_ERROR, BT_LOG_WARN, BT_LOG_INFO, BT_LOG_DEBUG };

struct bt_log_site { /* one static per call site; atomics inside */
    uint64_t window_ms;
    uint32_t count, suppressed;
};

extern int bt_log_level_now; /* read without a lock; set before threads start or by SIGHUP */

void bt_log_set(enum bt_log_level level, bool json, int fd);
/* Lines are appended to this file from now on. Borrows path. 0 or a negative errno. */
int bt_log_open(const char *path);
/* Opens that file by its name again; each line is in the old one or in the new one. 0, where there
 * is no file too, or a negative errno: lines go where they went. */
int bt_log_reopen(void);
void bt_log_write(struct bt_log_site *site, enum bt_log_level level, const char *component,
                  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Thread-local context added to every line until cleared: worker name, request id, trace id (NULL = none). */
void bt_log_context(const char *worker, const char *request_id, const char *trace_id);
/* Writes one finished line as it is (access log), newline added. */
void bt_log_line(bt_str_t line);

/* Starts the thread that writes. 0, BT_E_NOMEM or a negative errno: then lines are written directly, as before. */
int bt_log_start(void);
/* Writes what waits, for timeout_ms at most, and ends the thread; lines are written directly after it. Where stderr did not
 * take it all, the thread is left behind and later lines go nowhere. */
void bt_log_stop(unsigned timeout_ms);
/* Lines that were lost since the start: the queue was full, or stderr failed. */
uint64_t bt_log_dropped(void);
/* Before the process ends itself: what waits has a moment to leave, and lines are written directly from now on. False: stderr
 * takes nothing, and later lines go nowhere. */
bool bt_log_last_words(void);

#define bt_log_at(level, component, ...)                                                           \
    do {                                                                                           \
        static struct bt_log_site bt_log_site_;                                                    \
        if ((int) (level) <= __atomic_load_n(&bt_log_level_now, __ATOMIC_RELAXED))                 \
            bt_log_write(&bt_log_site_, (level), (component), __VA_ARGS__);                        \
    } while (0)
#define bt_log_error(component, ...) bt_log_at(BT_LOG_ERROR, component, __VA_ARGS__)
#define bt_log_warn(component, ...) bt_log_at(BT_LOG_WARN, component, __VA_ARGS__)
#define bt_log_info(component, ...) bt_log_at(BT_LOG_INFO, component, __VA_ARGS__)
#define bt_log_debug(component, ...) bt_log_at(BT_LOG_DEBUG, component, __VA_ARGS__)

#endif
