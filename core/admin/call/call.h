/* call.h - a plain request, and the plain answer to it. Private to core/admin.
 *
 * Owner: the caller of routes.h owns both; a request's spans are borrowed, for the call.
 * Life:  bt_reply_init -> a handler fills it -> bt_admin_send -> bt_reply_fini.
 * Flow:  handlers get a bt_admin_call_t and know of no socket.
 * Cost:  control loop only; but for bt_reply_* and bt_admin_send, which any loop may call for its own exchange.
 */
#ifndef BT_ADMIN_CALL_CALL_H
#define BT_ADMIN_CALL_CALL_H

#include "admin/call/audit.h"
#include "admin/call/config.h"
#include "admin/call/rows.h"
#include "admin/call/wait.h"
#include "http/server.h"
#include "rollout/rollout.h"

typedef struct bt_admin_request {
    enum bt_method method; /* HEAD is asked as GET */
    bt_str_t path, query;
    bt_str_t body;
    bool authorized;     /* has shown the key, or none is asked */
    const char *refusal; /* why what needs no key is all it may have (origin.h), or NULL */
    unsigned refusal_status;
    bool workers_only; /* came by the client port */
    bool is_tls;
    bt_str_t
        session; /* of the page in whose name it is authorized (session.h); empty = it has shown a key, or none is asked */
    bt_str_t shown;   /* the client's key or token by which it is authorized; empty = it is not */
    bt_str_t address; /* of who asks */
    const char *by;   /* "key:ID", "jwt:SUB"; NULL = the admin key, or anyone where there is none */
    /* Where a change is noted whose answer waits for others; whoever gives that answer ends it. NULL: it cannot wait, or is none. */
    bt_audit_change_t *change;
} bt_admin_request_t;

typedef struct bt_admin_reply {
    unsigned status;
    const char *type;  /* content type */
    const char *allow; /* with 405 */
    char name[136];    /* with BT_WANTS_POLICY_*, _FLEET_* and _RECORD: which; "" = recent */
    bool as_text;      /* with BT_WANTS_RECORD */
    bool is_dry_run;   /* with BT_WANTS_POLICY_PUT, and with BT_WANTS_FLEET_PUT to _DROP_RULES */
    char by[BT_ROLLOUT_BY_MAX + 1]; /* with BT_WANTS_FLEET_*: who wants it */
    uint64_t
        number; /* with BT_WANTS_FLEET_BACK, of a set; _ROOM; _RECORD and _REQUESTS, how many */
    char object[256]; /* what a change was of, where the path does not say it; "" = it does */
    char why[256];    /* an error's message, cut */
    char cookie[160]; /* Set-Cookie; "" = none */
    bool is_page;     /* of the dashboard: a browser gets its rules with it */
    bt_text_t body;
    bt_rows_t *rows; /* the body goes on with them (rows.h); NULL = it is whole */
} bt_admin_reply_t;

/* What the caller still has to do: metrics, requests, records and rooms need facts of the request loops (live.h) before the body can be made, a
 * change of a policy waits until all loops have it (policies.h), one of the fleet until all replicas have (rollout.h). */
enum bt_answer_state {
    BT_ANSWERED,
    BT_WANTS_METRICS,
    BT_WANTS_REQUESTS,
    BT_WANTS_RECORD,
    BT_WANTS_ROOM,
    BT_WANTS_EVENTS, /* ui_stream.h */
    BT_WANTS_UI_STATE,
    BT_WANTS_POLICY_PUT,
    BT_WANTS_POLICY_DELETE,
    BT_WANTS_FLEET_PUT, /* name, body = the policy's text; all from here on are rollout.h's */
    BT_WANTS_FLEET_DROP,
    BT_WANTS_FLEET_BUNDLE, /* body = JSON */
    BT_WANTS_FLEET_CLEAR,
    BT_WANTS_FLEET_PUT_RULES, /* body = the text of the file */
    BT_WANTS_FLEET_DROP_RULES,
    BT_WANTS_FLEET_BACK, /* number, 0 = the one before */
    BT_WANTS_FLEET_PIN,
    BT_WANTS_FLEET_UNPIN
};

/* What a handler is given. */
typedef struct bt_admin_call {
    const bt_admin_config_t *config;
    const bt_admin_request_t *request;
    bt_str_t key;               /* what stands for '*' in the route, decoded */
    enum bt_answer_state state; /* the route's */
    bt_admin_reply_t *reply;
} bt_admin_call_t;

void bt_reply_init(bt_admin_reply_t *reply);
void bt_reply_fini(bt_admin_reply_t *reply);
/* {"error":{"message":...,"code":status}}, whatever was in the body before. */
void bt_reply_error(bt_admin_reply_t *reply, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes a piece of rows behind the body; true: it is whole now. */
bool bt_reply_go_on(bt_admin_reply_t *reply);

/* Takes the reply's rows. Rows that do not fit into one piece go out over the next turns; x->user is theirs then. */
void bt_admin_send(bt_exchange_t *x, bt_admin_reply_t *reply);
/* The end of a change that took a while: 200 with this JSON, or another status with this sentence. Nobody waits for x any more. change may
 * be NULL. */
void bt_admin_notify(bt_exchange_t *x, bt_audit_change_t *change, unsigned status, bt_str_t text);
/* Its client left first: it may be done all the same. */
void bt_admin_abandon(bt_audit_change_t *change);

#endif
