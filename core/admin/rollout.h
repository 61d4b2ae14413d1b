/* rollout.h - the fleet's policies and rules over the admin listener. Private to core/admin but for the ops.
 *
 * Owner: the control loop. Who rolls out stands above this folder and comes as a table of functions.
 * Life:  an exchange that waits for a rollout lives in its arena; who rolls out is told when the client leaves first.
 * Flow:  PUT /fleet/policies/<name> -> change -> (every replica has voted, and serves it) -> done -> the answer.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_ROLLOUT_H
#define BT_ADMIN_ROLLOUT_H

#include "admin/policies.h"
#include "admin/prom.h"

#define BT_ROLLOUT_ASK_BY_MAX 96

enum bt_rollout_what {
    BT_ROLLOUT_ASK_PUT, /* name, body = the policy's text */
    BT_ROLLOUT_ASK_DROP,
    BT_ROLLOUT_ASK_BUNDLE, /* body = JSON */
    BT_ROLLOUT_ASK_CLEAR,
    BT_ROLLOUT_ASK_PUT_RULES, /* body = the text of the file */
    BT_ROLLOUT_ASK_DROP_RULES,
    BT_ROLLOUT_ASK_BACK, /* number, 0 = the one before */
    BT_ROLLOUT_ASK_PIN,
    BT_ROLLOUT_ASK_UNPIN
};

typedef struct bt_rollout_request { /* borrowed for the call */
    enum bt_rollout_what what;
    const char *name, *by;
    bt_str_t body;
    uint64_t number;
} bt_rollout_request_t;

typedef struct bt_rollout_admin_ops {
    void (*list)(void *user, bt_text_t *out); /* JSON */
    void (*metrics)(void *user, bt_prom_t *p);
    void (*change)(void *user, const bt_rollout_request_t *ask, bt_reload_done_cb done, void *arg);
    void (*cancel)(void *user, void *arg); /* done(arg) must not be called any more */
} bt_rollout_admin_ops_t;

/* Answers x when it is over. */
void bt_rollout_ask_change(const bt_rollout_admin_ops_t *ops, void *user, bt_exchange_t *x,
                           const bt_rollout_request_t *ask);
/* ?by=..., ?to=...: by gets "admin" when nothing is said. BT_E_INVAL: to is no number. */
int bt_rollout_ask_query(bt_str_t query, char *by, size_t by_size, uint64_t *number_p);

#endif
