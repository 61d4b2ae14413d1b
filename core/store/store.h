/* store.h - state that outlives a request and may be shared by replicas: one interface, two stores.
 *
 * Owner: the process has one store (bt_store_t); each loop has a client of it. An operation is embedded in its caller's struct.
 * Life:  open -> a client a loop -> operations -> clients free -> close.
 * Flow:  fill op, bt_store_do; cb runs exactly once on the same loop, never inside bt_store_do, unless bt_store_cancel came first.
 * Cost:  local: a lock of one shard. redis: part of a pipelined write at the turn's end; after warm-up no allocation of ours per operation (hiredis makes those of
 *        a reply).
 *
 * Consistency, by type. Everything of one key is atomic in the store (a server-side script in Redis). Times are the store's own clock.
 *   counter  linear in the store; lost with it. CELL_GET reads one without adding, CELL_SET and CELL_DROP set it back: a cell whose text is a whole number.
 *   cell     last writer wins; ttl by the store's clock. SET and DROP take a key of any type over.
 *   lease    one holder at a time, fenced: the number grows with every change of holder, also when the store has forgotten the lease (it is never below the
 *            store's ms), and when a holder comes back too late. A holder that cannot reach the store must stop by itself before its ttl.
 *   window   a quota of `limit` in fixed windows of window_ms: what is granted in one window is never more than limit. Grants are good until their window ends.
 *            All callers of a key use the same window_ms.
 *   table    fields with a ttl each, a writer each; a reader sees all that have not run out, in any order. SYNC is put and read in one round trip.
 *   log      bounded; entries in order; a reader that falls behind the bound, or whose log was lost and begun anew, is told (is_gap) and gets what there is
 *            from the oldest on. A position is "epoch-number"; numbers have no gaps.
 *
 * The store unavailable, slow, full, read-only or answering errors: cb gets rc < 0 at once or at the deadline, and the caller goes on with what it has: there is no queue of
 * operations that wait for a store to come back, and nothing is retried behind the caller's back (a counter must not count twice). The exceptions are a
 * script that the server does not know yet, and a key whose slot is on its way to another node: not executed, and sent again, after what was asked in between.
 * A timeout, a lost connection and a cancelled op may all have happened in the store.
 * Bounds: space 1-128 bytes without braces, key 1-512, field 512, value 1 MiB, 10,000 rows a read; numbers of windows below 2^53; a ttl over ten years is ten years.
 * Keys: the store puts "baton:{<space>}:" before them; `space` is a pool's or the fleet's name, so that all keys of one space are in one slot of a cluster.
 */
#ifndef BT_STORE_STORE_H
#define BT_STORE_STORE_H

#include "base/str.h"
#include "base/text.h"
#include "loop/loop.h"
#include "tls/counts.h"

typedef struct bt_store bt_store_t;
typedef struct bt_store_client bt_store_client_t;
typedef struct bt_store_op bt_store_op_t;

typedef struct bt_store_config { /* borrowed for open; zero = default */
    const char *
        url; /* NULL = local. redis://[user:password@]host:port[/db], rediss:// (TLS), unix:///path[?db=n], sentinel://[user:password@]host:port,host:port/master[/db], redis-cluster://[user:password@]host:port,host:port (rediss-cluster://: TLS) */
    const char *username, *password; /* instead of those in the url */
    const char *sentinel_password;
    const char *
        space; /* where it is tried whether the store takes writes: one that its user may touch ("baton") */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file, *tls_server_name;
    uint32_t connect_ms; /* 2,000 */
    uint32_t
        op_ms; /* 250: deadline of an operation. Where the store was late with one, the others fail at once until it answers in time; a connection silent for four deadlines with something under way is closed and dialled again */
    uint32_t max_pending; /* operations under way per client: 65,536; one more fails at once */
} bt_store_config_t;

/* Checks the configuration, and reads the files of TLS; connects to nothing. err: one line that names what to change. */
int bt_store_open(bt_store_t **store_p, const bt_store_config_t *config, char *err,
                  size_t err_size);
void bt_store_close(bt_store_t *store);           /* clients are gone */
bool bt_store_is_shared(const bt_store_t *store); /* more than this process may see it */
const bt_tls_counts_t *bt_store_tls_counts(void); /* of all sessions to Redis */

enum bt_store_health {
    BT_STORE_UP,       /* answers, and takes writes */
    BT_STORE_STARTING, /* has not been reached yet */
    BT_STORE_DEGRADED, /* answers with errors, or only reads: read-only, full, loading, no permission, wrong password; probed once a second */
    BT_STORE_UNAVAILABLE /* does not answer, or not in time */
};
/* Of any client, whichever is worst; why: one line, "" when UP. From any thread. One log line per change. */
enum bt_store_health bt_store_health(const bt_store_t *store, char *why, size_t why_size);

/* Would this client's operations be sent, and written? Of the client alone: no other's state is in it, and no complaint. From its loop. */
bool bt_store_client_is_up(const bt_store_client_t *client);

/* What the store holds is of no use to the client's owner (a key of ours has another type): an UP store is DEGRADED for this reason, until it is NULL. */
void bt_store_client_complain(bt_store_client_t *client, const char *why);

/* Connects from here on, again and again with back-off (100 ms to 5 s; to 1 s with Sentinel or a cluster). on_up (may be NULL) runs each time the store becomes usable: what was told before may be lost. */
int bt_store_client_new(bt_store_client_t **client_p, bt_store_t *store, bt_loop_t *loop,
                        void (*on_up)(void *user), void *user);
/* Operations under way get BT_E_CANCELLED on the next turn. done runs when nothing of it is left in the loop. */
void bt_store_client_free(bt_store_client_t *client, void (*done)(void *user), void *user);

enum bt_store_what {
    BT_STORE_COUNTER_ADD, /* amount, ttl_ms (0 = for ever; from the first add) -> number */
    BT_STORE_CELL_GET,    /* -> text, or is_none */
    BT_STORE_CELL_SET,    /* value, ttl_ms, if_absent -> number: 1 set, 0 was there */
    BT_STORE_CELL_DROP,   /* -> number: 1 was there */
    BT_STORE_LEASE_TAKE, /* owner (value), ttl_ms -> number: the fence, or 0 and text = who holds it. The holder's own call renews */
    BT_STORE_LEASE_DROP, /* owner (value) -> number: 1 was its */
    BT_STORE_WINDOW_TAKE, /* limit, window_ms, amount -> number: granted, 0 .. amount; rest: what can be granted yet; window = which one; left_ms of it */
    BT_STORE_WINDOW_GIVE, /* window_ms, amount, window: gives back, if that window still runs -> number: taken back */
    BT_STORE_TABLE_PUT,  /* field, value, ttl_ms (0 = for ever) */
    BT_STORE_TABLE_DROP, /* field -> number: 1 was there */
    BT_STORE_TABLE_ALL,  /* -> rows: field, value */
    BT_STORE_TABLE_SYNC, /* PUT, then ALL */
    BT_STORE_LOG_ADD,    /* value, limit = entries kept, about -> text: its position */
    BT_STORE_LOG_READ /* field = position read last ("" = only what comes from now on, "0" = from the oldest), limit = rows -> rows: position, value; is_gap; text: the position to go on from */
};

typedef struct bt_store_row {
    bt_str_t name, value;
} bt_store_row_t;

typedef struct bt_store_reply { /* borrowed for the call */
    /* 0; BT_E_STORE_UNAVAILABLE, BT_E_STORE (it answered with an error), BT_E_TOTAL_TIMEOUT, BT_E_LIMIT (too many under way, a counter would overflow, the local store
     * is full), BT_E_CANCELLED, BT_E_INVAL (outside the bounds, or the key holds another type), BT_E_NOMEM */
    int rc;
    const char *error; /* rc != 0: a line for people */
    int64_t number;
    bt_str_t text;
    bool is_none, is_gap;
    uint64_t window, left_ms;
    int64_t rest;
    const bt_store_row_t *rows;
    unsigned row_count;
} bt_store_reply_t;

/* Zeroed before its first use; may be used again from its own cb on. Strings are borrowed until bt_store_do returns. */
struct bt_store_op {
    /* the caller's */
    enum bt_store_what what;
    bt_str_t space, key, field, value;
    int64_t amount, limit;
    uint64_t ttl_ms, window_ms, window;
    bool if_absent;
    void (*cb)(bt_store_op_t *op, const bt_store_reply_t *reply);
    void *user;
    /* the store's */
    bt_list_t link;
    bt_timer_t deadline;
    bt_store_client_t *client;
    void *inner;
};
void bt_store_do(bt_store_client_t *client, bt_store_op_t *op);
/* For what nobody waits for: works on a copy of op, whose cb is not used. BT_E_NOMEM: nothing was done. */
int bt_store_send(bt_store_client_t *client, const bt_store_op_t *op);
/* No cb any more; the operation may still happen. Idle: nothing. */
void bt_store_cancel(bt_store_op_t *op);

typedef struct bt_store_stats { /* of the process; any thread */
    uint64_t ops, errors, timeouts,
        round_trips; /* round_trips: writes that carried at least one command */
    uint64_t connects, connect_failures;
    uint64_t rtt_us_ema;
} bt_store_stats_t;
void bt_store_stats(const bt_store_t *store, bt_store_stats_t *stats_p);

#endif
