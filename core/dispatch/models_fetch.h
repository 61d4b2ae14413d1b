/* models_fetch.h - asks every usable worker which models it serves, once. Private to dispatch (models.c).
 *
 * Owner: itself, on the asking loop.
 * Life:  from the start until the last worker has answered or its deadline (2 s) passed; counted in background_count.
 * Flow:  one GET per usable worker (at most 64), entries with the same id once, bytes as the first worker wrote them.
 * Cost:  a call a worker, 1 MiB of reply each at most.
 */
#ifndef BT_DISPATCH_MODELS_FETCH_H
#define BT_DISPATCH_MODELS_FETCH_H

#include "dispatch/dispatcher.h"

/* list: the whole body, borrowed; a slice without bytes: no worker could say. */
typedef void (*bt_models_cb)(void *user, bt_str_t list);

/* authorization: the client's, for workers that get no key of ours; borrowed until cb, which comes once and never from inside.
 * 0, BT_E_NOMEM. */
int bt_models_fetch(bt_dispatcher_t *d, bt_str_t authorization, bt_models_cb cb, void *user);

#endif
