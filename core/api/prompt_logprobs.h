/* prompt_logprobs.h - log probabilities of a prompt's own tokens: of a pair only prefill, which computes the prompt, can tell them.
 *
 * Owner: the caller; spans point into prefill's reply, which has to stay.
 * Life:  read once from prefill's reply, then put into decode's answer: the whole of it, or event by event.
 * Flow:  intent -> which form is asked for -> decode is asked without what it would break of -> read -> put
 * Cost:  nothing where nobody asks; else one pass over both answers, and a copy of decode's.
 */
#ifndef BT_API_PROMPT_LOGPROBS_H
#define BT_API_PROMPT_LOGPROBS_H

#include "api/cuts.h"
#include "api/route.h"
#include "script/dialect/dialect.h"

/* In whose form a client asks. */
enum bt_prompt_logprobs {
    BT_PROMPT_LOGPROBS_NONE,
    BT_PROMPT_LOGPROBS_INPUT, /* SGLang's /generate: return_logprob with logprob_start_len */
    BT_PROMPT_LOGPROBS_ECHO,  /* /v1/completions: echo with logprobs */
    BT_PROMPT_LOGPROBS_VLLM   /* prompt_logprobs */
};

/* Do prefill's answers of such a pair have it? */
bool bt_prompt_logprobs_told(const bt_dialect_t *dialect, enum bt_prompt_logprobs asked);
const char *bt_prompt_logprobs_why(
    enum bt_prompt_logprobs asked); /* it needs one worker, otherwise */
/* What decode must not be asked: vLLM's engine dies of it when it has not computed the prompt itself. */
int bt_prompt_logprobs_strip(enum bt_prompt_logprobs asked, enum bt_route route, bt_edits_t *edits);

#define BT_PROMPT_LOGPROBS_LISTS 4

/* Of one prompt: what stands in prefill's lists for it, without their brackets. p NULL: it has no such list. */
struct bt_prompt_lists {
    bt_str_t items[BT_PROMPT_LOGPROBS_LISTS];
    bool is_put; /* an event has them */
};

typedef struct bt_prompt_logprobs_part {
    enum bt_prompt_logprobs asked;
    bool is_top; /* VLLM: on the answer itself, not on its choice */
    struct bt_prompt_lists *prompts;
    unsigned count;
} bt_prompt_logprobs_part_t;

/* BT_E_JSON: the reply does not tell them. */
int bt_prompt_logprobs_read(bt_prompt_logprobs_part_t *part, enum bt_prompt_logprobs asked,
                            enum bt_route route, bt_str_t reply, bt_arena_t *arena);
/* decode's whole answer with them, at the end of *buf_p. BT_E_JSON: there is no place for them in it; BT_E_NOMEM. */
int bt_prompt_logprobs_put(bt_prompt_logprobs_part_t *part, bt_str_t answer, bt_buf_t **buf_p);
/* One event of its stream; payload: its data, a span of it. */
int bt_prompt_logprobs_put_event(bt_prompt_logprobs_part_t *part, bt_str_t event, bt_str_t payload,
                                 bt_buf_t **buf_p);

#endif
