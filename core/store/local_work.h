/* local_work.h - one op at work in the local store. Private to it.
 *
 * Owner: submit's stack; the shard's lock is held.
 * Life:  a call.
 * Flow:  want the entry -> change it -> fill the answer. What refuses changes nothing.
 * Cost:  none of its own.
 */
#ifndef BT_STORE_LOCAL_WORK_H
#define BT_STORE_LOCAL_WORK_H

#include "store/local_map.h"
#include "store/store_impl.h"

typedef struct local {
    bt_local_map_t map;
    uint64_t clock_ahead_ms;
    _Atomic uint64_t fence; /* the last one given, over all keys */
} bt_local_t;

/* One op at work. */
typedef struct work {
    bt_store_op_t *op;
    bt_local_t *local;
    bt_local_map_t *map;
    bt_local_shard_t *shard;
    bool is_full;            /* a bound was met; nothing has changed */
    bt_local_entry_t *entry; /* NULL: there is none */
    bt_str_t name;
    uint64_t hash, now_ms;
    bt_store_answer_t *answer;
} bt_local_work_t;

/* store_local.c */
int bt_local_full(bt_local_work_t *w, int rc);
/* The entry is of this type, or none was there; make: it is made then. */
int bt_local_want(bt_local_work_t *w, enum bt_local_type type, bool make);
uint64_t bt_local_next_fence(bt_local_work_t *w);
static inline uint64_t bt_local_end_of(const bt_local_work_t *w, uint64_t ttl_ms)
{
    return ttl_ms > 0 ? w->now_ms + ttl_ms : 0;
}
static inline void bt_local_put_text(bt_local_work_t *w, bt_str_t text)
{
    bt_text_put(&w->answer->bytes, text);
}

/* local_rows.c: tables and logs */
int bt_local_do_table_put(bt_local_work_t *w);
void bt_local_do_table_drop(bt_local_work_t *w);
void bt_local_do_table_all(bt_local_work_t *w);
void bt_local_do_log_add(bt_local_work_t *w);
void bt_local_do_log_read(bt_local_work_t *w);

#endif
