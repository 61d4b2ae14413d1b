/* admin.h - the operator's listener: metrics, workers, live requests.
 *
 * Owner: the control loop; bt_admin_worker_paths is the one function that request loops call.
 * Life:  new -> listen -> drain -> close(done). Close only when no request loop can call bt_admin_worker_paths any more,
 *        and end the control loop last: mail returns to it.
 * Flow:  server -> routes -> registry, or mail to the request loops (live.h) and their facts back.
 * Cost:  none on the request path; a scrape costs one mail per loop and one pass over workers and counters.
 */
#ifndef BT_ADMIN_ADMIN_H
#define BT_ADMIN_ADMIN_H

#include "admin/call/config.h"

typedef struct bt_admin bt_admin_t;

int bt_admin_new(bt_admin_t **admin_p, bt_loop_t *control, const bt_admin_config_t *config);
/* Takes a listening socket (bt_listener_bind). */
int bt_admin_listen(bt_admin_t *admin, int fd);
/* Another process listens there: no new connections, one more answer on those there are. */
void bt_admin_drain(bt_admin_t *admin);
/* Takes an accepted socket; its connection must be counted in control->connections already, as listeners do. */
void bt_admin_accept(bt_admin_t *admin, int fd);
/* For shared->worker_paths, with the admin as user: answers the peers' worker paths of the client port. who: NULL = the
 * admin key, or anyone; borrowed for the call. */
void bt_admin_worker_paths(void *user, bt_exchange_t *x, const bt_identity_t *who);
/* Frees itself; done (may be NULL) runs when everything is closed. */
void bt_admin_close(bt_admin_t *admin, void (*done)(void *arg), void *arg);

#endif
