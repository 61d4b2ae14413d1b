/* redis_greeting.h - which server is meant, and what a new connection to it is asked before it is up. Private to core/store.
 *
 * Owner: the connection, which sends what is put and brings the reply.
 * Life:  0 -> next, take, next, take ... -> next says that nothing is left.
 * Flow:  AUTH -> SELECT -> ROLE -> READWRITE, each only where the target needs it.
 * Cost:  a round trip for each.
 */
#ifndef BT_STORE_REDIS_GREETING_H
#define BT_STORE_REDIS_GREETING_H

#include "base/text.h"
#include "tls/client.h"

#include <hiredis/hiredis.h>

typedef struct
    bt_redis_target { /* copied, but for what the strings are: they live as long as the store */
    const char *host; /* copied too. NULL: path */
    const char *path;
    unsigned port, db;
    unsigned turn; /* which of the host's addresses is dialled, where it has several */
    const char *username, *password;
    bt_tls_client_t *tls; /* NULL: plain */
    const char *tls_name; /* whom the certificate must be for; NULL: host */
    bool must_be_master;  /* asks ROLE */
    bool must_be_cluster; /* asks READWRITE */
    uint32_t connect_ms;  /* until on_up */
    uint32_t silent_ms;   /* something is under way and nothing has come for so long: gone */
    _Atomic uint64_t *round_trips; /* NULL: not counted */
} bt_redis_target_t;

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
