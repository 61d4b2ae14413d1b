/* leg_view.h - one leg as a dialect sees it, and what it may make of it.
 *
 * Owner: dispatch fills it; all that it points to is borrowed.
 * Life:  one bt_dialect_edit.
 * Flow:  read by the API that Lua gets, and by templates.
 * Cost:  a value on the stack.
 */
#ifndef BT_SCRIPT_LEG_VIEW_H
#define BT_SCRIPT_LEG_VIEW_H

#include "base/json.h"

#include <stdint.h>

enum bt_dialect_leg {
    BT_DIALECT_PREFILL,
    BT_DIALECT_DECODE,
    BT_DIALECT_SINGLE,
    BT_DIALECT_CHECK,
    BT_DIALECT_LEGS
};

enum bt_dialect_verdict {
    BT_DIALECT_OK,
    BT_DIALECT_RECOMPUTE,
    BT_DIALECT_ENDS_EARLY,
    BT_DIALECT_REFUSED, /* the dialect says that something it was given is wrong */
    BT_DIALECT_BROKEN   /* it has failed itself: a Lua error */
};

/* One side of the pair as a dialect sees it (leg.prefill, leg.decode). */
typedef struct bt_dialect_peer {
    bt_str_t name, host, engine_id, kv_host, kv_address, version;
    unsigned port;
    int bootstrap_port; /* 0 unknown -> nil in Lua, -1 none -> nil */
    unsigned dp_size, tp_size, pp_size;
    int dp_rank;  /* -1 = not chosen -> nil */
    bool learned; /* engine_id, kv_host, bootstrap_port come from a reply */
} bt_dialect_peer_t;

typedef struct bt_leg_view {
    enum bt_dialect_leg which;
    bt_str_t path;       /* "/v1/chat/completions" */
    bt_str_t request_id; /* X-Request-Id of this leg */
    bt_str_t rid;        /* fixed width, "" when the dialect needs none */
    bt_str_t metaserver; /* decode of a trigger: the URL that its engine calls; "" otherwise */
    const uint64_t
        *rooms; /* one per prompt; leg.rooms = {"123", ...} decimal strings, leg.room = first */
    unsigned room_count;
    unsigned prompt_count; /* 0 = one scalar prompt, k = list of k */
    bool stream;
    bt_str_t body; /* client's body, for leg.has(key) -> type of a top-level member or nil */
    /* Optional: the same answer from an index that the caller has already (else `body` is scanned when Lua asks). */
    enum bt_json_type (*member)(const void *user, bt_str_t key);
    const void *member_user;
    bt_dialect_peer_t prefill, decode_peer;
    bt_str_t
        reply; /* prefill's JSON reply for decode of a hand-off, decode's call for prefill of a trigger; "" otherwise. Edits may borrow its bytes */
    bool is_reply_object;                   /* it has been validated as one */
    const bt_json_members_t *reply_members; /* where they are known already; else NULL */
    uint64_t reply_prompt_tokens;           /* usage.prompt_tokens of the reply; 0 = absent */
} bt_leg_view_t;

#endif
