/* redis_client.h - a loop's client of a Redis: which connection it has, and what is under way. Private to core/store.
 *
 * Owner: its loop.
 * Life:  make -> dial, lose, dial again ... -> stop -> gone when the last connection is freed.
 * Flow:  (Sentinel ->) dial -> up: probe says UP or DEGRADED, an op or probe that is late UNAVAILABLE -> lost: calls settle as away, back-off, dial.
 * Cost:  a call, with the bytes of its command, comes from a free list.
 */
#ifndef BT_STORE_REDIS_CLIENT_H
#define BT_STORE_REDIS_CLIENT_H

#include "store/redis_conn.h"
#include "store/redis_ops.h"

typedef struct bt_redis_client bt_redis_client_t;

/* A connection that has held for so long is a good one. */
#define BT_REDIS_STEADY_MS UINT64_C(5000)
#define BT_REDIS_LATE "the shared store does not answer in time"

/* An op's command. It outlives an op that was cancelled or is late: the reply still comes. */
typedef struct bt_redis_op {
    bt_redis_call_t call;
    bt_redis_client_t *client;
    bt_store_op_t *op; /* NULL: nobody waits any more */
    bt_redis_command_t command;
    bt_text_t args;           /* kept until the reply, for a server that does not know the script */
    bool is_repeat;           /* with the script's text */
    bool is_aside;            /* sent where an ASK has pointed, after ASKING */
    bt_redis_call_t asking;   /* that ASKING */
    struct bt_redis_op *next; /* in the client's free list */
} bt_redis_op_t;

typedef struct bt_redis_place {
    char host[256]; /* without brackets */
    unsigned port;  /* 0 = none */
} bt_redis_place_t;

struct bt_redis_client {
    bt_store_client_t base; /* first */
    bt_redis_conn_t *conn;  /* dialled or up; NULL while waiting for `again` */
    bool is_up;             /* conn takes commands */
    bool is_answering;      /* the last that was heard of it was an error, not silence */
    bool is_heard; /* conn has answered a probe in time, and nothing was late since: ops are sent */
    uint64_t heard_ms;   /* since when it is not away */
    unsigned conns;      /* not yet freed */
    unsigned failures;   /* in a row: the back-off's exponent */
    unsigned refusals;   /* probes in a row that another server may not refuse */
    unsigned seed;       /* the Sentinel, or the cluster's node, that is asked next */
    unsigned turn;       /* which of a name's addresses is dialled, if it has several */
    unsigned asked;      /* sentinels asked in vain in this round */
    bt_redis_place_t at; /* of what was dialled last, where Sentinel or a cluster says it */
    /* a cluster's */
    bt_redis_place_t owner; /* who took a probe last */
    unsigned redirects;     /* in a row, without back-off */
    bt_redis_conn_t *aside; /* to where ASK points; NULL = none */
    bt_redis_place_t asked_at;
    bool is_aside_up;
    bt_list_t asked_ops; /* wait for it to be */
    bt_timer_t again;
    bt_timer_t probe_again;
    bt_redis_call_t probe, question; /* of the store; of a Sentinel */
    bt_timer_t probe_late;           /* its deadline */
    bt_timer_t op_late; /* an op's time is over, but its command has not been out for so long */
    unsigned lates;     /* probes that were late, lately: their back-off's exponent */
    bool is_probing, is_probe_late;
    bool has_erred; /* an op was refused since the last probe was sent */
    bt_text_t out;  /* where a command is put together */
    bt_redis_rows_t rows;
    bt_redis_op_t *spare;
    unsigned spare_count;
};

/* What a Redis store shares among its clients: store->inner. */
typedef struct bt_redis_store {
    bt_tls_client_t *tls; /* NULL: plain */
    char *tls_name;       /* whom the certificate must be for; NULL: the host dialled */
} bt_redis_store_t;

/* redis_client.c */
/* One more connection of the client's; ops->on_freed must be bt_redis_client_freed. BT_E_NOMEM. */
int bt_redis_client_open(bt_redis_client_t *client, bt_redis_conn_t **conn_p, const char *host,
                         unsigned port, const bt_redis_conn_ops_t *ops);
void bt_redis_client_dial(bt_redis_client_t *client, const char *host, unsigned port);
/* The dial, or the question to all Sentinels, was in vain: health, then again after the back-off. */
void bt_redis_client_lost(bt_redis_client_t *client, bool is_answer, const char *why);
/* The connection is closed, and again after the back-off: what answers there is no use. */
void bt_redis_client_redial(bt_redis_client_t *client, const char *why);
/* The connection is given up for one that the caller dials at once; it closes this. */
void bt_redis_client_leave(bt_redis_client_t *client, const char *why);
/* on_freed of all its connections. */
void bt_redis_client_freed(void *client);
/* The server refuses what it should do: DEGRADED, and a probe once a second. */
void bt_redis_client_refused(bt_redis_client_t *client, bool is_readonly, const char *why);
/* An op was not answered in time. If that is the server's doing: suspect, those under way are given up, nothing is sent but a probe, at once. */
void bt_redis_client_late(bt_store_client_t *base);

/* redis_sentinel.c: asks, then dials what it learned. */
void bt_redis_sentinel_query(bt_redis_client_t *client);

/* redis_cluster.c */
bool bt_redis_is_cluster(const bt_redis_client_t *client);
/* The address in "MOVED 3999 host:port" or "ASK ...", said by `from`. false: there is none. */
bool bt_redis_redirection(bt_str_t text, const bt_redis_place_t *from, bt_redis_place_t *to_p);
/* Dials the next seed. */
void bt_redis_cluster_begin(bt_redis_client_t *client);
/* An answer was MOVED: goes there, or backs off. */
void bt_redis_cluster_moved(bt_redis_client_t *client, const char *text);
/* call was answered with ASK: true, it is on its way there; false, it is not and never will be. */
bool bt_redis_cluster_ask(bt_redis_op_t *call, const char *text);
/* The same command by the same way, as call->is_repeat says. */
bool bt_redis_cluster_again(bt_redis_op_t *call);
void bt_redis_cluster_leave_aside(bt_redis_client_t *client);

/* redis_calls.c */
void bt_redis_submit(bt_store_client_t *base, bt_store_op_t *op);
void bt_redis_forget(bt_store_client_t *base, bt_store_op_t *op);
void bt_redis_calls_fini(bt_redis_client_t *client);

#endif
