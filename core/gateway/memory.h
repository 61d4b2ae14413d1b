/* memory.h - does --max-buffered-bytes fit into what the process may have (RLIMIT_DATA, RLIMIT_AS)?
 *
 * Owner: the gateway; pure arithmetic but for the call that looks at the process.
 * Life:  once, when everything is open.
 * Flow:  what is mapped now + threads still to come + the flag + what malloc wastes of it <= limit, else the start is refused: a
 *        process that ran into its limit under load would fail requests that the flag promises room for.
 * Cost:  start-up only.
 */
#ifndef BT_GATEWAY_MEMORY_H
#define BT_GATEWAY_MEMORY_H

#include "gateway/process.h"

/* All in bytes. */
typedef struct bt_memory_need {
    const char *name; /* of the limit, and how it is set: for the message */
    uint64_t limit;
    uint64_t held; /* counted against it now, and for what is still to be opened */
    uint64_t
        jitter; /* by which that may be more at the next start: what is proposed has room for it */
    uint64_t max_buffered;
} bt_memory_need_t;

/* 0 or BT_E_CONFIG: err is one line. */
int bt_memory_fits(const bt_memory_need_t *ask, char *err, size_t err_size);
/* Nothing is looked at under sanitizers, whose shadows have terabytes. */
int bt_gateway_memory_check(const bt_gateway_t *g, char *err, size_t err_size);

#endif
