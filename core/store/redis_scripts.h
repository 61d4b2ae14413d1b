/* redis_scripts.h - what must be atomic in Redis: one Lua text per operation. Private to core/store.
 *
 * Owner: nobody; the names are computed once per process.
 * Life:  static.
 * Flow:  all take one key. Times are the server's (TIME), so that replicas of the gateway need no common clock.
 * Cost:  a script's name is 40 bytes on the wire; its text goes out only when the server does not know it.
 */
#ifndef BT_STORE_REDIS_SCRIPTS_H
#define BT_STORE_REDIS_SCRIPTS_H

#include "base/str.h"

enum bt_redis_script {
    BT_REDIS_COUNTER_ADD, /* amount, ttl_ms -> number as text */
    BT_REDIS_LEASE_TAKE,  /* owner, ttl_ms -> {fence} or {0, holder} */
    BT_REDIS_LEASE_DROP,  /* owner -> 0 or 1 */
    BT_REDIS_WINDOW_TAKE, /* limit, window_ms, amount -> {granted, window, left_ms, rest} */
    BT_REDIS_WINDOW_GIVE, /* window_ms, amount, window -> taken back */
    BT_REDIS_TABLE_PUT,   /* field, value, ttl_ms -> 1 */
    BT_REDIS_TABLE_DROP,  /* field -> 0 or 1 */
    BT_REDIS_TABLE_ALL,   /* -> {field, value, ...} */
    BT_REDIS_TABLE_SYNC,  /* field, value, ttl_ms -> {field, value, ...} */
    BT_REDIS_LOG_ADD,     /* value, limit -> position */
    BT_REDIS_LOG_READ,    /* position, rows -> {position, gap, position, value, ...} */
    BT_REDIS_PROBE,       /* writes, and so says whether writing goes */
    BT_REDIS_SCRIPT_COUNT
};

bt_str_t bt_redis_script_text(enum bt_redis_script script);
bt_str_t bt_redis_script_sha(enum bt_redis_script script);

#endif
