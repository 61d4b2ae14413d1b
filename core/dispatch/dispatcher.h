/* dispatcher.h - one loop's requests: from the client's exchange to workers and back. What other
 * folders include.
 *
 * Owner: one dispatcher per loop; bt_dispatch_shared_t is the little that all of them share.
 * Life:  new (before the loop runs) -> set_workers on every change -> drain -> free when it
 *        is idle.
 * Flow:  http/server -> request -> plan (Lua) -> attempt -> legs -> sink -> http/server.
 * Cost:  one arena, one request struct a request.
 */
#ifndef BT_DISPATCH_DISPATCHER_H
#define BT_DISPATCH_DISPATCHER_H

#include "dispatch/state/dispatch_state.h"

int bt_dispatch_shared_init(bt_dispatch_shared_t *shared, const bt_dispatch_config_t *config);
void bt_dispatch_shared_fini(bt_dispatch_shared_t *shared);
/* A counter of bt_stats_t, by its offset, over all loops. */
uint64_t bt_dispatch_sum(const bt_dispatch_shared_t *shared, size_t offset);
/* Cancels the requests of this owner (client.h; 0 = anybody's: an operator asks) with this id
 * (ours, or the client's rid) on whichever loop they live; found on none, on whichever replica.
 * Returns before it has happened. */
void bt_dispatch_shared_cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner);
/* Not elsewhere: another replica asks. */
void bt_dispatch_shared_cancel_here(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner);

/* Some worker has been found lost. On the control loop. */
void bt_dispatch_shared_worker_lost(bt_dispatch_shared_t *shared);

/* A decode's engine calls for prefill. Takes the call, on the control loop. */
struct bt_metaserver_call;
void bt_dispatch_shared_metaserver_call(void *shared, struct bt_metaserver_call *call);

/* Loads dialects. err: one line. */
int bt_dispatcher_new(bt_dispatcher_t **d_p, bt_loop_t *loop, bt_dispatch_shared_t *shared,
                      char *err, size_t err_size);
/* Policies come by d->generations; a pool without is served by the default choice. On failure
 * nothing changes. Takes its own reference. */
int bt_dispatcher_set_workers(bt_dispatcher_t *d, bt_workers_t *workers, char *err,
                              size_t err_size);
/* What hooks ask of the fleet's state goes to this client, borrowed until NULL is given, on the
 * loop or after it. Before the loop runs, when shared->space, replica and quotas are set. */
int bt_dispatcher_set_store(bt_dispatcher_t *d, bt_store_client_t *client);
/* What d->generations has prepared serves from here on. */
void bt_dispatcher_commit(bt_dispatcher_t *d);
/* It is idle (bt_dispatcher_idle), or bt_dispatcher_cancel_all has been called. */
void bt_dispatcher_free(bt_dispatcher_t *d);
bool bt_dispatcher_idle(const bt_dispatcher_t *d);
void bt_dispatcher_cancel_all(bt_dispatcher_t *d);
/* The server's callbacks; the server's user must be the dispatcher. */
extern const bt_server_ops_t bt_dispatcher_server_ops;

/* own_routes.c: what the gateway answers itself. True = handled. */
bool bt_own_routes_handle(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route);

/* What /readiness says, as JSON; true = some pool has a usable topology and we are not draining.
 * workers may be NULL. */
bool bt_readiness_describe(const bt_workers_t *workers, const bt_dispatch_shared_t *shared,
                           bt_text_t *out);
/* The live list, the oldest `limit` of it: JSON objects joined by commas. On the dispatcher's loop. */
void bt_dispatcher_describe(bt_dispatcher_t *d, unsigned limit, bt_text_t *out);
/* Whose room this is, on the dispatcher's loop: "request":{a row of the live list},"attempt":{...}.
 * False: it is not open here. hub_room_p: what the hub calls it when it is gateway-managed (another
 * prefill's number for it finds it too), else 0. */
bool bt_dispatcher_describe_room(bt_dispatcher_t *d, uint64_t room, bt_text_t *out,
                                 uint64_t *hub_room_p);
#endif
