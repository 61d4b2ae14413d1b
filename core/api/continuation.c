/* continuation.c - see continuation.h.
 *
 * A new worker knows the ids and nothing else. So whatever an engine carries from token to token beside them is refused: a
 * grammar's state, counts of what was produced (presence and frequency penalties), text that is held back until a stop string is
 * ruled out, several samples, and answers that tell more of a token than its text.
 */
#include "api/continuation.h"

#include <math.h>

/* vLLM's own default on /v1/completions. */
#define LIMIT_DEFAULT 16

static const struct {
    const char *name;
    double harmless; /* as a number; NAN: none is */
    const char *why;
    bool beyond_text; /* a token alone may say something else, or more than its text */
} refused[] = {
    {"tools", NAN, "tools", true},
    {"tool_choice", NAN, "tools", false},
    {"functions", NAN, "tools", true},
    {"n", 1, "n above 1", true},
    {"best_of", 1, "best_of", true},
    {"use_beam_search", NAN, "beam search", true},
    {"echo", NAN, "echo", true},
    {"suffix", NAN, "suffix", false},
    {"logprobs", NAN, "logprobs", true},
    {"top_logprobs", NAN, "logprobs", true},
    {"prompt_logprobs", NAN, "logprobs", true},
    {"return_tokens_as_token_ids", NAN, "logprobs", false},
    {"response_format", NAN, "structured output", true},
    {"structured_outputs", NAN, "structured output", true},
    {"guided_json", NAN, "structured output", true},
    {"guided_regex", NAN, "structured output", true},
    {"guided_choice", NAN, "structured output", true},
    {"guided_grammar", NAN, "structured output", true},
    {"structural_tag", NAN, "structured output", true},
    {"stop", NAN, "stop strings", true},
    {"bad_words", NAN, "bad_words", false},
    {"presence_penalty", 0, "penalties of what was produced", false},
    {"frequency_penalty", 0, "penalties of what was produced", false},
    {"repetition_detection", NAN, "repetition_detection", false},
    {"truncate_prompt_tokens", NAN, "truncate_prompt_tokens", false},
    {"prompt_embeds", NAN, "prompt_embeds", false},
    {"logits_processors", NAN, "logits_processors", false},
    {"thinking_token_budget", NAN, "thinking_token_budget", false},
    {"vllm_xargs", NAN, "vllm_xargs", false},
};

static bool is_empty(const bt_json_item_t *item)
{
    return item->type == BT_JSON_NULL || item->type == BT_JSON_FALSE ||
           bt_str_eq(item->value, BT_STR("\"\"")) || bt_str_eq(item->value, BT_STR("[]")) ||
           bt_str_eq(item->value, BT_STR("{}"));
}

static bool is_text_format(const bt_json_item_t *item)
{
    bt_json_item_t type;

    return item->type == BT_JSON_OBJECT && bt_json_get(item->value, BT_STR("type"), &type) == 0 &&
           bt_str_eq(type.value, BT_STR("\"text\""));
}

static bool is_harmless(const bt_json_item_t *item, const char *name, double harmless)
{
    double value;

    if (item == NULL || is_empty(item))
        return true;
    if (item->type == BT_JSON_NUMBER && bt_json_double(item->value, &value) == 0)
        return value == harmless;
    return strcmp(name, "response_format") == 0 && is_text_format(item);
}

const char *bt_continuation_refusal(const bt_intent_t *intent)
{
    if (intent->route != BT_ROUTE_COMPLETIONS)
        return "only /v1/completions can be continued";
    if (intent->prompt == NULL || intent->prompt_count != 0 || intent->unsplittable != NULL)
        return "a list of prompts";
    if (intent->prompt_logprobs != BT_PROMPT_LOGPROBS_NONE)
        return "logprobs of the prompt";
    /* An id is a byte of text or more, and seven digits at most. */
    if (intent->prompt_bytes > BT_CONTINUATION_IDS_MAX && intent->prompt_ids == 0)
        return "a prompt of more than 1 MiB";
    if (intent->prompt_ids > BT_CONTINUATION_IDS_MAX / 2)
        return "a prompt of too many ids";
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (!is_harmless(bt_body_find(&intent->body, bt_str(refused[i].name)), refused[i].name,
                         refused[i].harmless))
            return refused[i].why;
    return NULL;
}

const char *bt_continuation_beyond_text(const bt_intent_t *intent)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (refused[i].beyond_text &&
            !is_harmless(bt_body_find(&intent->body, bt_str(refused[i].name)), refused[i].name,
                         refused[i].harmless))
            return refused[i].why;
    return NULL;
}

uint64_t bt_continuation_number(const bt_intent_t *intent, const char *name)
{
    const bt_json_item_t *item = bt_body_find(&intent->body, bt_str(name));
    double value;

    if (item == NULL || item->type != BT_JSON_NUMBER || bt_json_double(item->value, &value) < 0 ||
        !(value >= 1) || value > 1e9)
        return 0;
    return (uint64_t) value;
}

uint64_t bt_continuation_limit(const bt_intent_t *intent)
{
    const bt_json_item_t *item = bt_intent_member(intent, BT_MEMBER_MAX_TOKENS);

    if (item == NULL)
        return LIMIT_DEFAULT;
    return item->type == BT_JSON_NULL ? BT_CONTINUATION_UNLIMITED
                                      : bt_continuation_number(intent, "max_tokens");
}

uint64_t bt_continuation_budget(uint64_t limit, uint64_t produced, uint64_t again)
{
    const uint64_t given = produced > again ? produced - again : 0;

    return limit > given ? limit - given : 1;
}
