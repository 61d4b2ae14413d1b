/* completion.h - what one event, or the whole body, of a completion or a chat says: its ids, text, end and usage, as spans.
 *
 * Owner: nobody; all spans point into the text that was read.
 * Life:  values.
 * Flow:  one object of /v1/completions -> spans of what a token replay reads and changes.
 * Cost:  one pass, and one more over its first choice and its usage; no allocation.
 */
#ifndef BT_API_COMPLETION_H
#define BT_API_COMPLETION_H

#include "base/json.h"

/* Raw values; p NULL: it is not there. Of several choices the first. */
typedef struct bt_completion {
    bt_str_t id, created, model, fingerprint;
    bt_str_t text, token_ids, finish, stop;
    bt_str_t role, reasoning; /* of a chat, whose text is its content */
    bt_str_t prompt_ids;      /* the choice's prompt_token_ids, else the object's */
    bt_str_t prompt_tokens, completion_tokens, total_tokens, cached_tokens; /* of its usage */
    bool has_choice;
} bt_completion_t;

/* 0; or BT_E_JSON*, when it is no object. */
int bt_completion_read(bt_completion_t *c, bt_str_t text);
/* The same, of a body whose members have been read. */
int bt_completion_take(bt_completion_t *c, const bt_json_members_t *members);
/* vLLM-Ascend's decode has given the request up: whoever asked shall have its prompt computed again. */
bool bt_completion_is_recomputed(const bt_completion_t *c);
/* A value that is there and says something. */
static inline bool bt_completion_has(bt_str_t value)
{
    return value.p != NULL && !bt_str_eq(value, BT_STR("null"));
}

#endif
