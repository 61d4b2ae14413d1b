/* redis_greeting.h - what a new connection is asked before it is up. Private to core/store.
 *
 * Owner: the connection, which sends what is put and brings the reply.
 * Life:  0 -> next, take, next, take ... -> next says that nothing is left.
 * Flow:  AUTH -> SELECT -> ROLE -> READWRITE, each only where the target needs it.
 * Cost:  a round trip for each.
 */
#ifndef BT_STORE_REDIS_GREETING_H
#define BT_STORE_REDIS_GREETING_H

#include "store/redis_conn.h"

enum bt_redis_greeting {
    BT_REDIS_ASK_AUTH,
    BT_REDIS_ASK_DB,
    BT_REDIS_ASK_ROLE,
    BT_REDIS_ASK_CLUSTER,
    BT_REDIS_ASK_NOTHING
};

/* The question that is due, put into text; false: there is none. */
bool bt_redis_greeting_next(enum bt_redis_greeting *step, const bt_redis_target_t *target,
                            bt_text_t *text);
/* Its reply. false: this server will not do, for the reason in why; is_answer_p: it is an error of the server's own. */
bool bt_redis_greeting_take(enum bt_redis_greeting *step, const redisReply *reply,
                            bool *is_answer_p, char *why, size_t why_size);

#endif
