/* routes.h - from a plain request to a plain answer, without a socket. Private to core/admin.
 *
 * Owner: the caller owns both structs; a request's spans are borrowed.
 * Life:  fill the request -> bt_routes_answer -> send the reply -> bt_reply_fini.
 * Flow:  path (with or without /admin) -> one row of a table -> its handler. The admin listener and the mail of the
 *        client port come the same way.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_ROUTES_H
#define BT_ADMIN_ROUTES_H

#include "admin/admin.h"
#include "admin/rollout.h"

typedef struct bt_admin_request {
    enum bt_method method; /* HEAD is asked as GET */
    bt_str_t path, query;
    bt_str_t body;
    bool authorized;     /* has shown the key, or none is asked */
    const char *refusal; /* why what needs no key is all it may have (origin.h), or NULL */
    unsigned refusal_status;
    bool workers_only; /* came by the client port */
} bt_admin_request_t;

typedef struct bt_admin_reply {
    unsigned status;
    const char *type;             /* content type */
    const char *allow;            /* with 405 */
    char name[136];               /* with BT_WANTS_POLICY_* and _RECORD: which one */
    bool as_text;                 /* with BT_WANTS_RECORD */
    enum bt_rollout_what rollout; /* with BT_WANTS_ROLLOUT: what, by whom, to which set */
    char by[BT_ROLLOUT_BY_MAX + 1];
    uint64_t number; /* of a set; with BT_WANTS_ROOM: which one */
    bt_text_t body;
} bt_admin_reply_t;

/* What the caller still has to do: metrics, requests, records and rooms need facts of the request loops (live.h) before the body can be made, a
 * change of a policy waits until all loops have it (policies.h), one of the fleet until all replicas have (rollout.h). */
enum bt_answer_state {
    BT_ANSWERED,
    BT_WANTS_METRICS,
    BT_WANTS_REQUESTS,
    BT_WANTS_RECORD,
    BT_WANTS_ROOM,
    BT_WANTS_POLICY_PUT,
    BT_WANTS_POLICY_DELETE,
    BT_WANTS_ROLLOUT
};

void bt_reply_init(bt_admin_reply_t *reply);
void bt_reply_fini(bt_admin_reply_t *reply);
/* {"error":{"message":...,"code":status}}, whatever was in the body before. */
void bt_reply_error(bt_admin_reply_t *reply, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

enum bt_answer_state bt_routes_answer(const bt_admin_config_t *config,
                                      const bt_admin_request_t *request, bt_admin_reply_t *reply);

#endif
