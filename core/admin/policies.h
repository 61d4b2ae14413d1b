/* policies.h - policies over the admin listener: list, put a text, take it away. Private to core/admin but for the ops.
 *
 * Owner: the control loop. Who reloads policies stands above this folder and comes as a table of functions.
 * Life:  an exchange that waits for a reload lives in its arena; the reload is told when the client leaves first.
 * Flow:  PUT /policies/<name> -> put -> (all loops have it) -> done -> the answer.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_POLICIES_H
#define BT_ADMIN_POLICIES_H

#include "admin/prom.h"
#include "http/server.h"

/* status 200: text is the JSON answer; else a sentence. Called once, maybe before put returns. */
typedef void (*bt_policies_done_cb)(void *arg, unsigned status, bt_str_t text);

typedef struct bt_policies_ops {
    void (*list)(void *user, bt_text_t *out);       /* JSON */
    void (*list_rules)(void *user, bt_text_t *out); /* JSON; NULL = this gateway has none */
    void (*metrics)(void *user, bt_prom_t *p);
    void (*put)(void *user, bt_str_t name, bt_str_t text, bt_policies_done_cb done, void *arg);
    void (*remove)(void *user, bt_str_t name, bt_policies_done_cb done, void *arg);
    void (*cancel)(void *user, void *arg); /* done(arg) must not be called any more */
} bt_policies_ops_t;

/* A name that can be a file's: letters, digits, '_', '-', '.', not at the start; at most 64. */
bool bt_policies_name_ok(bt_str_t name);
/* Answers x when the reload is over. name is for the call only. */
void bt_policies_change(const bt_policies_ops_t *ops, void *user, bt_exchange_t *x, bool is_put,
                        bt_str_t name);

/* ---- rules.c ---- */
/* GET /rules. False: there is nothing to be seen. */
bool bt_rules_list(const bt_policies_ops_t *ops, void *user, bt_text_t *out);

#endif
