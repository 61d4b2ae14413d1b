/* rollout.h - the fleet's policies and rules over the admin listener. Private to core/admin.
 *
 * Owner: the control loop.
 * Life:  an exchange that waits for a rollout lives in its arena; the rollout is told when the
 *        client leaves first.
 * Flow:  PUT /fleet/policies/<name> -> bt_rollout_change -> (every replica has voted, and serves
 *        it) -> the answer.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_ROLLOUT_H
#define BT_ADMIN_ROLLOUT_H

#include "admin/prom.h"
#include "http/server.h"
#include "rollout/rollout.h"

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
    uint64_t number;
} bt_rollout_request_t;

/* Answers x, whose body is the request's, when it is over. */
void bt_rollout_answer(bt_rollout_t *r, bt_exchange_t *x, const bt_rollout_request_t *ask);
/* ?by=..., ?to=...: by gets "admin" when nothing is said. BT_E_INVAL: to is no number. */
int bt_rollout_query(bt_str_t query, char *by, size_t by_size, uint64_t *number_p);
void bt_rollout_list(const bt_rollout_t *r, bt_text_t *out); /* JSON */
void bt_rollout_metrics(const bt_rollout_t *r, bt_prom_t *p);

#endif
