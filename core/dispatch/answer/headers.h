/* headers.h - heads of legs and of answers. Private to dispatch.
 *
 * Owner: nobody; what is written lies in the request's arenas.
 * Life:  a call.
 * Flow:  the client's head, a dialect's edits, keys -> a leg's head; a worker's head -> the client's.
 * Cost:  one pass over the headers.
 */
#ifndef BT_DISPATCH_ANSWER_HEADERS_H
#define BT_DISPATCH_ANSWER_HEADERS_H

#include "dispatch/state/attempt_state.h"

bt_str_t bt_headers_request(bt_leg_t *leg, const bt_edits_t *edits, size_t body_bytes,
                            bool has_body);
/* Of a call that is the gateway's own, on behalf of the request. */
bt_str_t bt_headers_own(bt_request_t *r, const bt_worker_t *w, bt_str_t path,
                        const char *request_id, size_t body_bytes);
unsigned bt_headers_answer(bt_request_t *r, const bt_head_t *from, bt_header_t *out, unsigned max);
/* Copies names and values; to may be from. */
void bt_headers_keep(bt_arena_t *arena, bt_header_t *to, const bt_header_t *from, unsigned count);
bool bt_headers_id_ok(bt_str_t id);

#endif
