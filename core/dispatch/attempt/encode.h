/* encode.h - a request's media, encoded before it is planned (vLLM's E->P->D). Private to
 * dispatch.
 *
 * Owner: a request: the stage and its parts lie in its arena.
 * Life:  enter -> one leg a part, tried again elsewhere -> all there, or one failed -> drop.
 * Flow:  parts of the messages -> encoders, all at once -> ec_transfer_params of the legs that
 *        compute the prompt.
 * Cost:  nothing without media, or in a pool without encode workers. A part is borrowed from the
 *        body, its bytes are not copied.
 */
#ifndef BT_DISPATCH_ATTEMPT_ENCODE_H
#define BT_DISPATCH_ATTEMPT_ENCODE_H

#include "dispatch/state/encode_params.h"

/* A station: the request's pool is known. */
enum bt_progress bt_encode_enter(bt_request_t *r);
/* The request ends, wherever it is. */
void bt_encode_cancel(bt_request_t *r);
void bt_encode_drop(bt_request_t *r); /* its memory goes */
bool bt_encode_is_running(const bt_request_t *r);
/* A leg of its parts, whose worker is lost, fails. */
void bt_encode_lost(bt_leg_t *leg);
#endif
