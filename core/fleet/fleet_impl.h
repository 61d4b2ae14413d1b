/* fleet_impl.h - the parts of a share. Private to core/fleet.
 *
 * Owner: the control loop.
 * Life:  as the fleet; each part has one operation under way at most, and its heartbeat does nothing while that is out.
 * Flow:  fleet.c heartbeats -> each part's _beat asks the store -> its answer is applied there and then.
 * Cost:  all that one heartbeat asks leaves in one write.
 */
#ifndef BT_FLEET_FLEET_IMPL_H
#define BT_FLEET_FLEET_IMPL_H

#include "fleet/fleet.h"
#include "script/shared/prefix_hash.h"

#define BT_FLEET_NAME_MAX 128
#define BT_FLEET_FIELD_MAX (BT_FLEET_NAME_MAX + 24) /* "<replica>#<incarnation>" */
#define BT_FLEET_NAMED_MAX 512                      /* of any field that is read */
#define BT_FLEET_CALL_MAX 4096
#define BT_FLEET_BATCH_BYTES ((size_t) 64 * 1024)

/* One operation of a part. */
typedef struct bt_fleet_query {
    bt_store_op_t op;
    bt_fleet_t *fleet;
    void (*done)(bt_fleet_t *fleet, const bt_store_reply_t *reply);
    bool is_out;
    bool is_unfit; /* what the store has there is of another type */
} bt_fleet_query_t;

/* A worker by what all replicas call it: a hash of where it listens. */
typedef struct bt_worker_key_find {
    uint64_t key;
    bt_worker_t *worker;                                      /* of share->fleet */
    int64_t tokens[BT_PHASE_COUNT], requests[BT_PHASE_COUNT]; /* load.c: sums of the others */
    bool is_down_elsewhere, is_open_elsewhere;                /* health.c: as told this time */
    uint64_t hinted_ms;                                       /* when on_hint was last called */
} bt_worker_key_t;

/* replica.c: one that is there, this one included. */
typedef struct bt_fleet_peer {
    bt_list_t link;
    char field[BT_FLEET_FIELD_MAX];
    char *info;                     /* JSON */
    unsigned room_word, room_loops; /* of it; loops 0 = it does not tell */
    unsigned missed;                /* answers of the store in a row without it */
    bool is_seen;
} bt_fleet_peer_t;

/* fields.c: a worker by its pool and where it listens, as rows name it. */
typedef struct bt_worker_field {
    char *field;
    bt_worker_t *worker; /* of share->fleet */
} bt_worker_field_t;

struct bt_fleet {
    bt_loop_t *control;
    bt_store_t *store;
    bt_store_client_t *client;
    bt_registry_t *registry;
    struct bt_quotas *quotas;
    bt_workers_t *workers;        /* reference, or NULL */
    bt_worker_key_t *worker_keys; /* by key */
    unsigned worker_key_count;
    bt_worker_key_t **by_id;          /* by worker id */
    bt_worker_field_t *worker_fields; /* by field; NULL = not known */
    unsigned worker_field_count;
    char *space, *replica, *admin_url, *version;
    char field[BT_FLEET_FIELD_MAX]; /* this replica's, in every table */
    unsigned loops;                 /* that mint rooms; 0 = not told */
    uint64_t incarnation, started_wall_ms;
    uint64_t interval_ms, expiry_ms;
    void (*on_hint)(void *user, bt_worker_t *w);
    void (*on_call)(void *user, bt_str_t name, bt_str_t argument);
    void (*on_first_read)(void *user); /* NULL = there was one */
    int (*begin_role)(void *user, bt_worker_t *w, const bt_role_switch_ask_t *ask, char *err,
                      size_t err_size);
    void *user;
    bt_timer_t heartbeat;
    uint64_t heartbeat_us; /* when the one under way was sent */
    unsigned waiting;      /* its answers that have not come */
    bool has_failed;       /* one of them was an error */
    unsigned unfit;        /* asks that are */
    bool is_up;            /* the last answer of the store was one */
    uint64_t answered_ms;  /* by `load`, for the last time */
    bt_text_t out;         /* where values are put together */
    /* parts */
    bt_fleet_query_t replicas_query, load_query, health_query, workers_query, calls_query,
        prefix_query;
    bt_list_t peers;
    bool has_twin; /* another replica of our name, said once */
    uint64_t twin_since_ms;
    struct bt_fleet_row **rows; /* rows.h; by field */
    unsigned row_count, row_room;
    bool has_unread;                  /* a row that cannot be read, said once */
    char epoch[24];                   /* of the table of workers; "" = not known */
    unsigned rows_due;                /* heartbeats until the table is read again */
    bool must_apply;                  /* rows or the fleet have changed */
    bool has_waiting;                 /* a row is to be applied later */
    char calls_at[48], prefix_at[48]; /* positions in the logs */
    bt_prefix_ring_t **rings;
    unsigned ring_count;
    /* closing */
    bool is_closing;
    unsigned drops; /* that are not answered */
    void (*done)(void *user);
    void *done_user;
    /* counted; read by other threads */
    _Atomic unsigned replica_count;
    _Atomic uint64_t heartbeats, heartbeats_failed, prefix_sent, prefix_received, prefix_dropped,
        calls_sent, calls_received, lag_us;
};

/* ---- fleet.c ---- */
/* Asks; done gets the answer, an error too, but nothing once the fleet is closing. */
void bt_fleet_query(bt_fleet_t *fleet, bt_fleet_query_t *ask, bt_store_op_t op,
                    void (*done)(bt_fleet_t *fleet, const bt_store_reply_t *reply));
/* Asks without waiting for the answer. False when out of memory. */
bool bt_fleet_put(bt_fleet_t *fleet, bt_store_op_t op);
bool bt_fleet_is_own(const bt_fleet_t *fleet, bt_str_t field);

/* ---- worker_key.c ---- */
uint64_t bt_worker_key_of(const bt_worker_t *w);
/* The places of the fleet, anew. Keeps what is known of workers that stay. */
int bt_worker_keys_build(bt_fleet_t *fleet, bt_workers_t *workers);
/* The first of this key; others follow it. NULL when there is none; end_p: one behind the last of all. */
bt_worker_key_t *bt_worker_key_find(const bt_fleet_t *fleet, uint64_t key);
bt_worker_key_t *bt_worker_key_by_id(const bt_fleet_t *fleet, uint32_t id);
#define BT_FLEET_EACH_OF(fleet, key_, p)                                                           \
    for ((p) = bt_worker_key_find((fleet), (key_));                                                \
         (p) != NULL && (p) < (fleet)->worker_keys + (fleet)->worker_key_count &&                  \
         (p)->key == (key_);                                                                       \
         (p)++)
/* What stands before the separator (or the end), which is skipped. False at the end. */
bool bt_fleet_next_word(bt_str_t *text, char separator, bt_str_t *word_p);

/* ---- fields.c ---- */
/* For qsort: by bytes, the shorter first. */
int bt_fleet_order(bt_str_t a, bt_str_t b);
/* What may be a field's name: somebody will print it and look it up again. */
bool bt_fleet_is_name(bt_str_t text);

/* ---- spec.c ---- */
/* {"url":..., ...}: everything that is said. */
void bt_fleet_spec_put(bt_text_t *out, const bt_worker_spec_t *spec);
/* BT_E_JSON, BT_E_INVAL, BT_E_NOMEM. The spec must be fini'ed in any case. Unknown members are passed over: a newer version wrote it. */
int bt_fleet_spec_read(bt_worker_spec_t *spec, bt_str_t json);

/* ---- the parts: asked once a heartbeat ---- */
int bt_fleet_replicas_init(bt_fleet_t *fleet);
void bt_fleet_replicas_tick(bt_fleet_t *fleet);
void bt_fleet_replicas_fini(bt_fleet_t *fleet);
void bt_fleet_replicas_describe(const bt_fleet_t *fleet, bt_text_t *out);
void bt_fleet_load_tick(bt_fleet_t *fleet);
void bt_fleet_load_forget(bt_fleet_t *fleet); /* others' load counts as nothing */
void bt_fleet_health_tick(bt_fleet_t *fleet);
void bt_fleet_rows_tick(bt_fleet_t *fleet);
void bt_fleet_rows_read(bt_fleet_t *fleet); /* something has changed: do not wait */
void bt_fleet_rows_apply(bt_fleet_t *fleet);
void bt_fleet_rows_on_fleet(bt_fleet_t *fleet); /* which has changed */
void bt_fleet_rows_fini(bt_fleet_t *fleet);
unsigned bt_fleet_workers_count(const bt_fleet_t *fleet);
void bt_fleet_drains_describe(const bt_fleet_t *fleet, bt_text_t *out);
void bt_fleet_roles_describe(const bt_fleet_t *fleet, bt_text_t *out);
void bt_fleet_calls_tick(bt_fleet_t *fleet);
void bt_fleet_prefix_tick(bt_fleet_t *fleet);
void bt_fleet_prefix_read(bt_fleet_t *fleet);

#endif
