/* members.h - the one list of body members that the gateway has a say in: what a client may not write, and of which JSON types the
 * rest must be.
 *
 * Owner: nobody; a constant table.
 * Life:  static.
 * Flow:  every object of a body through which an engine takes such members is checked here, on every path that reaches a worker.
 * Cost:  members times the length of the list, which is a compare of lengths for nearly all of them.
 */
#ifndef BT_API_MEMBERS_H
#define BT_API_MEMBERS_H

#include "api/body.h"

#define BT_MEMBERS_NAME_MAX 1024 /* bytes of a model, a session, an id: more is no name */
#define BT_MEMBERS_OPTIONS_MAX                                                                     \
    ((size_t) 1 << 20) /* bytes of an object of options: every leg reads it once more */

/* Those that the gateway reads. */
enum bt_member {
    BT_MEMBER_MODEL,
    BT_MEMBER_STREAM,
    BT_MEMBER_N,
    BT_MEMBER_BEST_OF,
    BT_MEMBER_USE_BEAM_SEARCH,
    BT_MEMBER_ECHO,
    BT_MEMBER_LOGPROBS,
    BT_MEMBER_PROMPT_LOGPROBS,
    BT_MEMBER_PROMPT,
    BT_MEMBER_TEXT,
    BT_MEMBER_INPUT_IDS,
    BT_MEMBER_MESSAGES,
    BT_MEMBER_INPUT,
    BT_MEMBER_TOKEN_IDS,
    BT_MEMBER_SAMPLING_PARAMS,
    BT_MEMBER_SEED,
    BT_MEMBER_MAX_TOKENS,
    BT_MEMBER_MAX_COMPLETION_TOKENS,
    BT_MEMBER_MAX_OUTPUT_TOKENS,
    BT_MEMBER_RETURN_LOGPROB,
    BT_MEMBER_LOGPROB_START_LEN,
    BT_MEMBER_FLAT_TOP_LOGPROBS,
    BT_MEMBER_FLAT_TOP_LOGPROBS_B64,
    BT_MEMBER_VLLM_XARGS,
    BT_MEMBER_SESSION_ID,
    BT_MEMBER_SESSION_PARAMS,
    BT_MEMBER_PREVIOUS_RESPONSE_ID,
    BT_MEMBER_CACHE_SALT,
    BT_MEMBER_EXTRA_KEY,
    BT_MEMBER_LORA_PATH,
    BT_MEMBER_RID,
    BT_MEMBER_KV_HINTS, /* stripped like the rid; hints.c of dispatch may put it back */
    BT_MEMBER_COUNT
};

/* All: 0, or a BT_E_* with a sentence for the client in *why_p (in strip's arena). */

/* The body itself. Twice the same controlled key is refused, because gateway and engine could believe different ones; forbidden ones
 * become removals in strip; found[BT_MEMBER_COUNT] gets those that are there, else NULL. has_types: the route's members are understood, so those of another type than the engines document are
 * refused: an engine may convert what we cannot ("true" to a boolean), and would then be asked something else than we planned. */
int bt_members_check(const bt_body_t *body, bool has_types, bt_edits_t *strip,
                     const bt_json_item_t **found, const char **why_p);
/* An object within the body: *clean_p = its text without forbidden members, or the same text where there are none. */
int bt_members_clean(bt_str_t object, bt_arena_t *arena, bt_str_t *clean_p, const char **why_p);

#endif
