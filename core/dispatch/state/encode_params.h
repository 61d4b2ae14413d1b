/* encode_params.h - what is encoded of a request, by whom, and what the encoders have said. Private to
 * dispatch.
 *
 * Owner: a request: all lies in its arena.
 * Life:  encode.c's.
 * Flow:  replies -> is each one of a part? -> all in one object -> the legs that compute the prompt.
 * Cost:  once a request; a copy of what the encoders say.
 */
#ifndef BT_DISPATCH_STATE_ENCODE_PARAMS_H
#define BT_DISPATCH_STATE_ENCODE_PARAMS_H

#include "api/media.h"
#include "dispatch/state/attempt_state.h"

typedef struct bt_encode_part {
    bt_task_t task; /* who was tried, how often; of no sink: its attempt is this one */
    bt_attempt_t attempt;
    bt_leg_t leg;
    bt_media_part_t item;
    const char *worker;
    uint64_t end_us; /* 0 = not yet */
} bt_encode_part_t;

typedef struct bt_encode {
    bt_encode_part_t *parts;
    unsigned count, left; /* left: that are not there yet */
    uint64_t start_us, end_us;
    bool is_over;
    int fail_rc;     /* 0 = it has not */
    bt_str_t params; /* ec_transfer_params of all parts; "" = the encoders say nothing */
} bt_encode_t;

/* Of a reply, which is one JSON object; NULL: nothing is wrong with what it says of its part. */
const char *bt_encode_params_fault(bt_str_t reply);
int bt_encode_merge(bt_request_t *r); /* BT_E_NOMEM */
/* What the leg must say of the parts. BT_E_LIMIT. */
int bt_encode_edit(const bt_leg_t *leg, bt_edits_t *edits);
/* Who has encoded, once each: "e0,e1"; "" = nobody. */
bt_str_t bt_encode_names(bt_request_t *r);

#endif
