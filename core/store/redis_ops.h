/* redis_ops.h - an op as a command's bytes, and a server's reply as the op's. Private to core/store.
 *
 * Owner: the caller's text and rows.
 * Life:  a call.
 * Flow:  op -> bytes (those of a script in two parts, so that the text can take the name's place) ... reply -> bt_store_reply_t, borrowed from it.
 * Cost:  O(bytes); no allocation once the text has grown.
 */
#ifndef BT_STORE_REDIS_OPS_H
#define BT_STORE_REDIS_OPS_H

#include "store/redis_scripts.h"
#include "store/store_impl.h"

struct redisReply;

#define BT_REDIS_NO_SCRIPT BT_REDIS_SCRIPT_COUNT

/* The part of a command that comes after the script's name, or the whole of one without a script; count: of its arguments. */
typedef struct bt_redis_command {
    enum bt_redis_script script;
    unsigned count;
    bt_text_t *args;
} bt_redis_command_t;

/* A command's bytes, appended to text: how many arguments, then each. */
void bt_redis_put_head(bt_text_t *text, unsigned count);
void bt_redis_put_arg(bt_text_t *text, bt_str_t arg);

/* args is emptied first. */
void bt_redis_op_encode(const bt_store_op_t *op, bt_redis_command_t *command);
/* EVALSHA, or EVAL with the text, and the command's arguments, appended to out. */
void bt_redis_command_put(const bt_redis_command_t *command, bool with_text, bt_text_t *out);
/* "baton:{space}:key" */
void bt_redis_key(bt_str_t space, bt_str_t key, char *out, size_t size, size_t *n_p);

/* What an error reply is about. */
enum bt_redis_error {
    BT_REDIS_E_TYPE,     /* the op's own fault: another type, no number */
    BT_REDIS_E_OVERFLOW, /* the same */
    BT_REDIS_E_NOSCRIPT, /* not executed: send the text */
    BT_REDIS_E_READONLY,
    BT_REDIS_E_MOVED, /* not executed: another node of the cluster has the slot */
    BT_REDIS_E_ASK,   /* not executed: that node may have the key already */
    BT_REDIS_E_STATE  /* anything else: what the server or our user cannot do now */
};
enum bt_redis_error bt_redis_error_of(bt_str_t text);

/* A growing array of rows that lives as long as its owner. */
typedef struct bt_redis_rows {
    bt_store_row_t *rows;
    unsigned cap;
} bt_redis_rows_t;
/* reply_p->rc: 0, BT_E_INVAL, BT_E_LIMIT, BT_E_STORE, BT_E_NOMEM. error: a NUL-terminated line of the reply's, or static. */
void bt_redis_op_decode(const bt_store_op_t *op, const struct redisReply *reply,
                        bt_redis_rows_t *rows, bt_store_reply_t *reply_p);

#endif
