/* store_impl.h - what the two stores share behind store.h. Private to core/store.
 *
 * Owner: a client belongs to its loop; the store's list of clients, its health and its counts to the process.
 * Life:  a kind's client embeds bt_store_client first: make -> start -> submit ... -> stop -> bt_store_client_gone frees it.
 * Flow:  do -> checked here -> kind->submit -> bt_store_notify (from an event), or bt_store_settle: told on the next turn.
 * Cost:  answers and their text come from a free list of the client.
 */
#ifndef BT_STORE_STORE_IMPL_H
#define BT_STORE_STORE_IMPL_H

#include "store/store.h"
#include "store/store_url.h"

#include <pthread.h>
#include <stdatomic.h>

#define BT_STORE_SPACE_MAX 128
#define BT_STORE_KEY_MAX 512
#define BT_STORE_FIELD_MAX 512
#define BT_STORE_VALUE_MAX ((size_t) 1 << 20)
#define BT_STORE_ROWS_MAX 10000
#define BT_STORE_NUMBER_MAX (INT64_C(1) << 53)     /* a script's numbers are doubles */
#define BT_STORE_TTL_MAX_MS UINT64_C(315360000000) /* ten years: longer is the same */
#define BT_STORE_WHY_MAX 200

/* A reply that waits for the next turn, with the bytes that it borrows. */
typedef struct bt_store_answer {
    struct bt_store_answer *next; /* in the client's free list */
    bt_store_reply_t reply;
    bt_text_t bytes;
    bt_store_row_t *rows;
    unsigned row_cap;
} bt_store_answer_t;

typedef struct bt_store_kind {
    int (*client_make)(bt_store_client_t **client_p, bt_store_t *store);
    void (*client_start)(bt_store_client_t *client);
    /* A checked op that is in client->under_way. Answers by bt_store_notify from an event, or by bt_store_settle. */
    void (*submit)(bt_store_client_t *client, bt_store_op_t *op);
    /* op leaves under_way without the store's answer: nothing may lead to it any more. NULL: it never happens. */
    void (*forget)(bt_store_client_t *client, bt_store_op_t *op);
    /* Before a deadline counts: takes in what has arrived. May tell any op. */
    void (*look)(bt_store_client_t *client);
    /* A deadline has passed, its op has been told. Whose doing it was is for the kind to find out. NULL: it never happens. */
    void (*late)(bt_store_client_t *client);
    /* Nothing is under way: closes what is open, then bt_store_client_gone, at once or later. */
    void (*client_stop)(bt_store_client_t *client);
    void (*close)(bt_store_t *store);
} bt_store_kind_t;

extern const bt_store_kind_t bt_store_local_kind, bt_store_redis_kind;

/* ---- a store ---- */
struct bt_store {
    const bt_store_kind_t *kind;
    void *inner; /* the kind's own */
    bt_store_url_t where;
    char *username, *password, *sentinel_password; /* NULL = none */
    char *space;                                   /* of the probe's key */
    uint32_t connect_ms, op_ms, max_pending;
    pthread_mutex_t lock; /* of the clients' list, their health, and what was said of it */
    bt_list_t clients;
    enum bt_store_health told;
    _Atomic uint64_t ops, errors, timeouts, round_trips, connects, connect_failures, rtt_us_ema;
};

static inline void bt_store_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

int bt_store_redis_open(bt_store_t *store, const bt_store_config_t *config, char *err,
                        size_t err_size);
int bt_store_local_open(bt_store_t *store);
/* Other bounds than BT_LOCAL_*; before the first client. */
void bt_store_local_bound(bt_store_t *store, size_t items, size_t bytes);

/* ---- a client ---- */
struct bt_store_client {
    bt_store_t *store;
    bt_loop_t *loop;
    void (*on_up)(void *user);
    void *user;
    bt_list_t link;      /* in store->clients */
    bt_list_t under_way; /* ops whose answer is not known */
    bt_list_t settled;   /* ops whose answer lies in op->inner and is told on the next turn */
    bt_list_t telling;   /* those that are told on this one */
    unsigned pending;    /* ops in the three lists */
    bt_store_op_t
        *asking; /* whose deadline is being looked at; NULL once it has been told or cancelled */
    bt_store_answer_t *spare;
    unsigned spare_count;
    bt_mail_t mail; /* brings the next turn */
    bool mail_is_out, is_up_untold, is_freeing, is_stopped, is_gone;
    bool
        is_suspect; /* an op was late, nothing is sent until a probe has told more; no matter of health yet */
    enum bt_store_health health;                             /* under store->lock */
    char why[BT_STORE_WHY_MAX], complaint[BT_STORE_WHY_MAX]; /* "" = none */
    void (*done)(void *user);
    void *done_user;
};

/* op is over: counts it and calls back. Not from inside bt_store_do. */
void bt_store_notify(bt_store_op_t *op, const bt_store_reply_t *reply);
/* An empty answer (rc 0), or NULL when out of memory. */
bt_store_answer_t *bt_store_answer_get(bt_store_client_t *client);
/* op will get the answer on the next turn. answer NULL: BT_E_NOMEM. */
void bt_store_settle(bt_store_op_t *op, bt_store_answer_t *answer);
/* The same with rc < 0; error is a line that lives for ever, NULL = the code's own text. */
void bt_store_settle_error(bt_store_op_t *op, int rc, const char *error);
/* Says how the store looks from here. Becoming UP is told to the client's owner on the next turn. */
void bt_store_client_health(bt_store_client_t *client, enum bt_store_health health,
                            const char *why);
/* Nothing of the client is left in the loop: calls done and frees it (the kind's part too: it is one block). */
void bt_store_client_gone(bt_store_client_t *client);

/* ---- both kinds ask the same things of an op (store_check.c) ---- */
/* NULL, or what is wrong with it: a line that lives for ever. */
const char *bt_store_wrong_with(const bt_store_op_t *op);
bool bt_store_position_parse(bt_str_t text, uint64_t *epoch_p, uint64_t *number_p);
static inline uint64_t bt_store_ttl_ms(const bt_store_op_t *op)
{
    return op->ttl_ms < BT_STORE_TTL_MAX_MS ? op->ttl_ms : BT_STORE_TTL_MAX_MS;
}

#endif
