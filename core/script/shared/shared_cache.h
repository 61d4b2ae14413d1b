/* shared_cache.h - what this process last read or wrote of the fleet's state, for hooks that cannot wait (baton.shared.cached). Private to core/script.
 *
 * Owner: the process.
 * Life:  a value stays until it is dropped, another one takes its place, or its set of four is full and it is the oldest. Larger ones than 64 KiB are not kept.
 * Flow:  whoever resumes a hook with the store's answer puts; cached() copies out.
 * Cost:  a lock for one of 64 parts; 8,192 values, 32 MiB at most.
 */
#ifndef BT_SCRIPT_SHARED_CACHE_H
#define BT_SCRIPT_SHARED_CACHE_H

#include "base/text.h"

#define BT_SHARED_CACHE_VALUE_MAX ((size_t) 64 << 10)

enum bt_shared_kind { BT_SHARED_NONE, BT_SHARED_NUMBER, BT_SHARED_STRING, BT_SHARED_TABLE };

/* bytes of a table: for each field the lengths of name and value as two uint32_t, then both. None: it is known that there is nothing. */
void bt_shared_cache_put(bt_str_t key, enum bt_shared_kind kind, double number, bt_str_t bytes,
                         uint64_t now_us);
void bt_shared_cache_drop(bt_str_t key);
/* False: not known. bytes_p is emptied first. */
bool bt_shared_cache_get(bt_str_t key, enum bt_shared_kind *kind_p, double *number_p,
                         bt_text_t *bytes_p, uint64_t *put_us_p);
void bt_shared_cache_clear(void); /* for specs */

#endif
