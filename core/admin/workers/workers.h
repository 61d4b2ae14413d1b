/* workers.h - the worker routes: ours under /workers, and the three that other routers' users type. Private to core/admin.
 *
 * Owner: the control loop, which owns the registry.
 * Life:  one request.
 * Flow:  request -> registry -> reply. Keys are never shown; addresses are, to operators.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_WORKERS_WORKERS_H
#define BT_ADMIN_WORKERS_WORKERS_H

#include "admin/call/call.h"

/* Handlers; the call's key is a name or url. */
void bt_workers_list(const bt_admin_call_t *c);
void bt_workers_add(const bt_admin_call_t *c);
void bt_workers_show(const bt_admin_call_t *c);
void bt_workers_remove(const bt_admin_call_t *c);
void bt_workers_drain(const bt_admin_call_t *c);
void bt_workers_undrain(const bt_admin_call_t *c);
void bt_workers_set_role(const bt_admin_call_t *c); /* worker_role.c */
/* The end of an answer about a change: whether the other replicas are told, where there may be any. why: NULL = they are. */
void bt_workers_end_told(const bt_admin_call_t *c, const char *why);
/* Other routers' routes: answers are plain text. */
void bt_workers_peer_add(const bt_admin_call_t *c);
void bt_workers_peer_remove(const bt_admin_call_t *c);
void bt_workers_peer_list(const bt_admin_call_t *c);

/* worker_json.c: one worker as JSON. pairs: also who it may work with, and why not with the others. */
void bt_worker_describe(bt_text_t *out, const bt_worker_pool_t *pool, bt_worker_t *w, bool pairs);

#endif
