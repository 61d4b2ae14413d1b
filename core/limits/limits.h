/* limits.h - the limits that hold in this process: which, how many requests run under each, and what has come of them.
 *
 * Owner: the gateway; each loop has a view of the list in force.
 * Life:  new -> set at the start and with every SIGHUP -> free, when no view is left.
 * Flow:  set swaps the list under a lock and moves the version; a loop that sees another version takes a reference anew. What is counted is
 *        found by name and subject, not by row, so that a reload loses nothing. Windows are quotas (fleet/quota.h), not here.
 * Cost:  renew: an atomic read. enter, leave: a lock of one shard, and an allocation of whoever is the first of its subject.
 */
#ifndef BT_LIMITS_LIMITS_H
#define BT_LIMITS_LIMITS_H

#include "limits/limit.h"

typedef struct bt_limits bt_limits_t;

/* Of one name; atomics, for ever. */
typedef struct bt_limit_count {
    char name[BT_LIMIT_NAME_MAX + 1];
    _Atomic int64_t running; /* under its concurrent, where that is limited */
    _Atomic uint64_t admitted, refused[BT_LIMIT_WHATS], too_large, crowded;
    _Atomic uint64_t reserved[2], used[2]; /* tokens: input, output */
} bt_limit_count_t;

int bt_limits_new(bt_limits_t **limits_p);
void bt_limits_free(bt_limits_t *limits); /* NULL is fine */
/* Takes the reference; NULL: nothing is limited. From any thread. */
void bt_limits_set(bt_limits_t *limits, bt_limit_table_t *table);

typedef struct bt_limits_view {
    uint64_t version;
    bt_limit_table_t *table; /* reference; NULL = nothing is limited */
} bt_limits_view_t;
void bt_limits_renew(bt_limits_t *limits, bt_limits_view_t *view);
void bt_limits_drop(bt_limits_view_t *view);

/* One more of key runs, if that makes at most `most`. now_p: how many do. False also when memory is short. */
bool bt_limits_enter(bt_limits_t *limits, bt_str_t key, int64_t most, int64_t *now_p);
void bt_limits_leave(bt_limits_t *limits, bt_str_t key); /* once for each enter */

typedef void (*bt_limits_count_cb)(void *user, const bt_limit_count_t *count);
void bt_limits_each(bt_limits_t *limits, bt_limits_count_cb cb, void *user);

static inline void bt_limit_count_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
