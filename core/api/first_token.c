/* first_token.c - see first_token.h.
 *
 * Prefill's text is the token decoded alone. Decode's stream is decoded as it grows, so that a token's text may depend on the next one:
 * half a character waits for its other half, and where a tokenizer cleans up blanks (" 's" becomes "'s"), so may a blank and what
 * stands behind it. Texts of which that could be true wait for decode, as they would without us.
 */
#include "api/first_token.h"

#include "api/continuation.h"
#include "base/err.h"

static bool is_true(const bt_intent_t *intent, const char *object, const char *name)
{
    const bt_json_item_t *item = bt_body_find(&intent->body, bt_str(object));
    bt_json_item_t member;

    return item != NULL && item->type == BT_JSON_OBJECT &&
           bt_json_get(item->value, bt_str(name), &member) == 0 && member.type == BT_JSON_TRUE;
}

const char *bt_first_token_refusal(const bt_intent_t *intent)
{
    const bt_json_item_t *detokenize = bt_body_find(&intent->body, BT_STR("detokenize"));

    if (!intent->stream)
        return "no stream";
    if (intent->prompt == NULL || intent->prompt_count != 0 || intent->unsplittable != NULL)
        return "a list of prompts";
    if (detokenize != NULL && detokenize->type == BT_JSON_FALSE)
        return "detokenize";
    if (is_true(intent, "stream_options", "continuous_usage_stats"))
        return "usage in every event";
    return bt_continuation_beyond_text(intent);
}

/* The beginning of what tokenizers clean up: " n't", " 'm", " 've", ... */
static bool is_cleaned_up(bt_str_t word)
{
    return bt_str_starts(word, BT_STR("'")) || bt_str_eq(word, BT_STR("n")) ||
           bt_str_eq(word, BT_STR("n'"));
}

bool bt_first_token_is_whole(bt_str_t text)
{
    const char *blank = text.n != 0 ? memrchr(text.p, ' ', text.n) : NULL;

    if (text.n == 0 || (unsigned char) text.p[text.n - 1] <= ' ' ||
        bt_str_find(text, BT_STR("\xef\xbf\xbd")) >= 0)
        return false;
    return blank == NULL ||
           !is_cleaned_up((bt_str_t){blank + 1, (size_t) (text.p + text.n - blank - 1)});
}

/* The bytes that spell one character, or one byte of it. */
static size_t spelled(bt_str_t raw)
{
    if (raw.p[0] != '\\')
        return 1;
    if (raw.n < 2 || raw.p[1] != 'u')
        return 2;
    return raw.n >= 12 && (raw.p[2] | 32) == 'd' && strchr("89abAB", raw.p[3]) != NULL &&
                   raw.p[6] == '\\'
               ? 12
               : 6;
}

long bt_first_token_cut(bt_str_t value, bt_str_t *left_p)
{
    size_t at = 1;
    char says[4];

    if (value.n < 2 || value.p[0] != '"')
        return BT_E_INVAL;
    while (at < value.n - 1 && left_p->n != 0) {
        bt_str_t raw = {value.p + at, value.n - 1 - at};
        long n;
        raw.n = spelled(raw) < raw.n ? spelled(raw) : raw.n;
        n = bt_json_unescape_raw(raw, says, sizeof(says));
        if (n <= 0 || !bt_str_starts(*left_p, (bt_str_t){says, (size_t) n}))
            return BT_E_INVAL;
        *left_p = (bt_str_t){left_p->p + n, left_p->n - (size_t) n};
        at += raw.n;
    }
    return (long) (at - 1);
}
