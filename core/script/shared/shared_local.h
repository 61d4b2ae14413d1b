/* shared_local.h - counters and last-value cells that all loops of the process share. Private to core/script.
 *
 * Owner: the process has one table; a dry run has its own, freed with it.
 * Life:  a name lives as long as its table (names are few: a policy's own words, not request data), so in the process's for ever:
 *        a counter goes on when its policy is reloaded, rolled back and put again.
 * Flow:  find or make a cell, then plain atomics on it.
 * Cost:  find is lock-free: one hash, usually one compare; making a new name takes a lock. A table is 64 KiB.
 */
#ifndef BT_SCRIPT_SHARED_LOCAL_H
#define BT_SCRIPT_SHARED_LOCAL_H

#include "base/str.h"

#include <stdatomic.h>

#define BT_SHARED_LOCAL_NAME_MAX 127
#define BT_SHARED_LOCAL_MAX 4096

typedef struct bt_shared_local bt_shared_local_t;

bt_shared_local_t *bt_shared_local_process(void);
bt_shared_local_t *bt_shared_local_new(void);           /* NULL when out of memory */
void bt_shared_local_free(bt_shared_local_t *counters); /* not the process's; NULL is fine */
/* NULL when the name is empty or too long, or when there are too many names. */
_Atomic int64_t *bt_shared_local_cell(bt_shared_local_t *counters, bt_str_t name);

/* For specs, of the process: the cells that are not 0, and all of them to 0. */
void bt_shared_local_each(void (*visit)(void *user, bt_str_t name, int64_t value), void *user);
void bt_shared_local_reset(void);

#endif
