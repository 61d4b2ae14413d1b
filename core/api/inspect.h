/* inspect.h - what an answer that says 200 says inside.
 *
 * Owner: nobody; the caller owns the bytes.
 * Life:  values.
 * Flow:  the first event, or the first BT_INSPECT_JSON_BYTES -> the status that they stand for.
 * Cost:  O(bytes), once an answer.
 */
#ifndef BT_API_INSPECT_H
#define BT_API_INSPECT_H

#include "base/json.h"

#define BT_INSPECT_JSON_BYTES ((size_t) 4096)
#define BT_INSPECT_SSE_BYTES ((size_t) 64 * 1024)

/* 0 = fine, else the status that it stands for (500 when it names none). */
unsigned bt_inspect_json(bt_str_t body);
unsigned bt_inspect_event(bt_str_t data);
bool bt_inspect_kv_transfer(bt_str_t body); /* an engine's "KV transfer failed" sentence */
/* "finish_reason" (text or object form) is abort. members_p: of the body, where it is one well-formed object; NULL: nobody asks
 * for them, and a body without a word of failure is not read. */
bool bt_inspect_aborted(bt_str_t body, bt_json_members_t *members_p);

#endif
