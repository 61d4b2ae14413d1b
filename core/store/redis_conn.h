/* redis_conn.h - one connection to a Redis or a Sentinel, from the dial to the last byte. Private to core/store.
 *
 * Owner: whoever opened it; lives on one loop, allocated here.
 * Life:  open -> on_up | on_gone -> close or on_gone -> on_freed (last, always).
 * Flow:  resolve -> connect -> TLS -> greeting -> on_up; then each call gets the next reply. Commands of a turn leave in one write at its end.
 * Cost:  no allocation of ours per call; hiredis makes those of a reply.
 */
#ifndef BT_STORE_REDIS_CONN_H
#define BT_STORE_REDIS_CONN_H

#include "store/redis_greeting.h"
#include "store/store_impl.h"

#include <hiredis/hiredis.h>

typedef struct bt_redis_conn bt_redis_conn_t;
typedef struct bt_redis_call bt_redis_call_t;

/* A command under way, embedded. reply NULL: the connection was lost, or closed by its owner. */
typedef void (*bt_redis_call_cb)(bt_redis_call_t *call, const redisReply *reply);
struct bt_redis_call {
    bt_list_t link;
    bt_redis_call_cb cb;
    uint64_t sent_us; /* when its turn ended and it went to the socket; 0 = not yet */
};

typedef struct bt_redis_conn_ops {
    void (*on_up)(void *user);
    /* Once; its calls have been told. is_answer: it does answer, with an error. why is borrowed. */
    void (*on_gone)(void *user, bool is_answer, const char *why);
    void (*on_freed)(void *user);
} bt_redis_conn_ops_t;

/* No callback comes from inside. BT_E_NOMEM. */
int bt_redis_conn_open(bt_redis_conn_t **conn_p, bt_loop_t *loop, const bt_redis_target_t *target,
                       const bt_redis_conn_ops_t *ops, void *user);
/* bytes: a whole command; copied. After on_up only. */
void bt_redis_conn_send(bt_redis_conn_t *conn, bt_redis_call_t *call, bt_str_t bytes);
/* Reads what has arrived. Any callback may come. */
void bt_redis_conn_check(bt_redis_conn_t *conn);
/* For how long the oldest call has been with the server. 0: none is, or there is more to read than the last look has taken. */
uint64_t bt_redis_conn_waited_us(const bt_redis_conn_t *conn);
/* No on_gone any more; calls under way get NULL before it returns. */
void bt_redis_conn_close(bt_redis_conn_t *conn);
uint64_t bt_redis_conn_up_ms(const bt_redis_conn_t *conn); /* how long it has been up; 0 = is not */

#endif
