/* intent.h - what a client's body asks for: read once, checked, and stripped of what a client may not steer (rules section 2).
 *
 * Owner: the request; lives in its arena.
 * Life:  as the request.
 * Flow:  body index -> controlled keys (twice in one object = refused) -> facts for policies, dialects and fan-out, plus the
 *        edits that strip forbidden members from every leg.
 * Cost:  linear in the bytes; prompts are only counted, never copied. A MiB of short numbers takes 3 ms: large ones are read off
 *        the loop (scan.h).
 */
#ifndef BT_API_INTENT_H
#define BT_API_INTENT_H

#include "api/members.h"
#include "api/prompt_logprobs.h"
#include "api/route.h"

#define BT_PROMPTS_MAX                                                                             \
    4096 /* more prompts in one request are not split: each costs a room or a leg */

typedef struct bt_intent {
    enum bt_route route;
    bool has_body; /* a JSON object came in */
    bt_body_t body;
    const bt_json_item_t *
        *members;     /* by enum bt_member, each NULL where it is not there; NULL = none is */
    bt_str_t model;   /* unescaped */
    bt_str_t session; /* session id found in the body, unescaped; "" */
    bt_str_t previous_response; /* /v1/responses: previous_response_id, unescaped */
    bt_str_t client_rid;        /* SGLang rid given by the client (text), for /abort_request */
    bool stream;
    unsigned n; /* samples per prompt, at least 1 */
    const bt_json_item_t
        *prompt; /* prompt | text | input_ids | messages | input | token_ids; NULL = none */
    unsigned prompt_count; /* 0 = one scalar prompt; k = a list of k prompts */
    bt_str_t *prompts;     /* of a list: each one's text; up to BT_PROMPTS_MAX are noted */
    uint64_t prompt_bytes; /* raw bytes of the prompt value */
    uint64_t max_tokens;   /* of one sample, as the client limits it; 0 = it does not */
    uint64_t prompt_ids;   /* number of ids where ids were given, else 0 */
    bool has_seed;
    int64_t seed;
    const char *unsplittable; /* why it must not be split into prefill and decode, or NULL */
    enum bt_prompt_logprobs prompt_logprobs; /* of a pair, prefill's answer has them */
    bt_edits_t strip;                        /* for every leg */
} bt_intent_t;

/* NULL = it is not there. */
static inline const bt_json_item_t *bt_intent_member(const bt_intent_t *intent, enum bt_member id)
{
    return intent->members != NULL ? intent->members[id] : NULL;
}

/* 0, or a BT_E_* with a sentence for the client in *why_p (arena or static). head may be NULL. */
int bt_intent_read(bt_intent_t *intent, bt_arena_t *arena, enum bt_route route, bt_str_t text,
                   const char **why_p);
/* ids where given, else bytes * 1000 / bytes_per_token_milli, at least 1. */
uint64_t bt_intent_prompt_tokens(const bt_intent_t *intent, uint64_t bytes_per_token_milli);

#endif
