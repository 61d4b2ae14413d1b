/* prompt_logprobs.c - where they stand, and where they go (sglang-on-cpu facts: "What a good pair looks like"; vllm facts: 0.1).
 *
 *   INPUT  /generate: meta_info.input_token_logprobs and its sisters. Decode says []: prefill's items go before decode's own. A list of
 *          prompts is a list of answers. An engine's stream repeats them in every event; here each answer's first and last event have
 *          them: who reads on from the first has them, and so has who reads the last alone, which tells all.
 *   ECHO   SGLang's /v1/completions: four lists in choices[].logprobs. Prefill's less the last one of each, which is of the token that
 *          it has made itself, go before decode's. In a stream: in each choice's first event.
 *   VLLM   prompt_logprobs, of the choice on /v1/completions, else of the answer. It replaces decode's null. vLLM streams none.
 */
#include "api/prompt_logprobs.h"

#include "base/err.h"

#define PROMPTS_MAX 4096u /* BT_PROMPTS_MAX; intent.h would include us in a circle */

static const struct form {
    const char *why;
    bt_str_t lists[BT_PROMPT_LOGPROBS_LISTS];
} forms[] = {
    [BT_PROMPT_LOGPROBS_INPUT] =
        {"input logprobs (logprob_start_len) need the whole prompt on one worker",
         {BT_STR("input_token_logprobs"), BT_STR("input_top_logprobs"),
          BT_STR("input_token_ids_logprobs")}},
    [BT_PROMPT_LOGPROBS_ECHO] = {"echo with logprobs needs the whole prompt on one worker",
                                 {BT_STR("tokens"), BT_STR("token_logprobs"), BT_STR("text_offset"),
                                  BT_STR("top_logprobs")}},
    [BT_PROMPT_LOGPROBS_VLLM] = {"prompt_logprobs needs the whole prompt on one worker",
                                 {BT_STR("prompt_logprobs")}},
};

bool bt_prompt_logprobs_told(const bt_dialect_t *dialect, enum bt_prompt_logprobs asked)
{
    switch (asked) {
    case BT_PROMPT_LOGPROBS_NONE:
        return true;
    case BT_PROMPT_LOGPROBS_INPUT:
    case BT_PROMPT_LOGPROBS_ECHO:
        return dialect->prompt_logprobs == BT_DIALECT_LOGPROBS_SGLANG;
    case BT_PROMPT_LOGPROBS_VLLM:
        return dialect->prompt_logprobs == BT_DIALECT_LOGPROBS_VLLM;
    }
    return false;
}

const char *bt_prompt_logprobs_why(enum bt_prompt_logprobs asked)
{
    return forms[asked].why;
}

int bt_prompt_logprobs_strip(enum bt_prompt_logprobs asked, enum bt_route route, bt_edits_t *edits)
{
    if (asked != BT_PROMPT_LOGPROBS_VLLM)
        return 0;
    return bt_edits_remove(edits, route == BT_ROUTE_TOKENS ? BT_STR("sampling_params") : BT_STR(""),
                           BT_STR("prompt_logprobs"));
}

/* ---- prefill's reply, which has been validated ---- */

static bt_str_t find_object(bt_str_t object, bt_str_t name)
{
    const bt_str_t value = bt_json_find(object, name);

    return bt_json_type_of(value) == BT_JSON_OBJECT ? value : BT_STR_NULL;
}

static bt_str_t inner(bt_str_t list)
{
    return bt_str_trim((bt_str_t){list.p + 1, list.n - 2});
}

/* A list's items but the last one. */
static bt_str_t all_but_last(bt_str_t list)
{
    const char *from = NULL, *to = NULL, *end = NULL;
    bt_json_walk_t walk;
    bt_str_t element;
    size_t unused;

    bt_json_walk(&walk, list);
    while (bt_json_walk_next(&walk, &element, &unused)) {
        from = from == NULL ? element.p : from;
        to = end;
        end = element.p + element.n;
    }
    return to != NULL ? (bt_str_t){from, (size_t) (to - from)} : BT_STR("");
}

/* The object in which an answer to one prompt has its lists. */
static bt_str_t holder_of(const bt_prompt_logprobs_part_t *part, bt_str_t item)
{
    if (bt_json_type_of(item) != BT_JSON_OBJECT)
        return BT_STR_NULL;
    if (part->asked == BT_PROMPT_LOGPROBS_VLLM)
        return item;
    return find_object(item, part->asked == BT_PROMPT_LOGPROBS_ECHO ? BT_STR("logprobs")
                                                                    : BT_STR("meta_info"));
}

/* False: it has none. */
static bool read_prompt(const bt_prompt_logprobs_part_t *part, bt_str_t item,
                        struct bt_prompt_lists *lists)
{
    const bt_str_t holder = holder_of(part, item);
    bool has_any = false;

    for (unsigned i = 0; i < BT_PROMPT_LOGPROBS_LISTS && holder.p != NULL; i++) {
        const bt_str_t name = forms[part->asked].lists[i];
        const bt_str_t value = name.n != 0 ? bt_json_find(holder, name) : BT_STR_NULL;
        if (bt_json_type_of(value) != BT_JSON_ARRAY)
            continue;
        lists->items[i] =
            part->asked == BT_PROMPT_LOGPROBS_ECHO ? all_but_last(value) : inner(value);
        has_any = true;
    }
    return has_any;
}

/* The list of answers, one a prompt; BT_STR_NULL: the answer itself is the one. */
static bt_str_t items_of(const bt_prompt_logprobs_part_t *part, bt_str_t answer)
{
    if (part->is_top)
        return BT_STR_NULL;
    if (part->asked == BT_PROMPT_LOGPROBS_INPUT)
        return answer.p[0] == '[' ? answer : BT_STR_NULL;
    return bt_json_find(answer, BT_STR("choices"));
}

static bool is_list(bt_str_t value)
{
    return bt_json_type_of(value) == BT_JSON_ARRAY;
}

int bt_prompt_logprobs_read(bt_prompt_logprobs_part_t *part, enum bt_prompt_logprobs asked,
                            enum bt_route route, bt_str_t reply, bt_arena_t *arena)
{
    bt_json_walk_t walk;
    bt_str_t items, item;
    size_t unused;
    bool has_any = false;

    *part = (bt_prompt_logprobs_part_t){.asked = asked,
                                        .is_top = asked == BT_PROMPT_LOGPROBS_VLLM &&
                                                  route != BT_ROUTE_COMPLETIONS};
    reply = bt_str_trim(reply);
    if (bt_json_validate(reply, NULL) < 0)
        return BT_E_JSON;
    items = items_of(part, reply);
    part->count = is_list(items) ? (unsigned) bt_json_size(items) : 1;
    if (part->count > PROMPTS_MAX) /* no request has more, whatever an engine answers */
        return BT_E_JSON;
    part->prompts = bt_arena_zalloc(arena, part->count * sizeof(*part->prompts) + 1);
    if (!is_list(items))
        return read_prompt(part, reply, &part->prompts[0]) ? 0 : BT_E_JSON;
    bt_json_walk(&walk, items);
    for (unsigned i = 0; bt_json_walk_next(&walk, &item, &unused); i++) {
        const bool has = read_prompt(part, item, &part->prompts[i]);
        if (!has && part->asked != BT_PROMPT_LOGPROBS_INPUT) /* where one prompt may ask for none */
            return BT_E_JSON;
        has_any |= has;
    }
    return has_any ? 0 : BT_E_JSON;
}

/* ---- decode's answer ---- */

static void put_list(bt_cuts_t *cuts, bt_str_t value, bt_str_t items, bool is_instead)
{
    const bt_str_t behind = {value.p + value.n, 0}, before = {value.p + 1, 0};

    if (is_instead) {
        bt_cuts_replace(cuts, value, BT_STR("["));
        bt_cuts_replace(cuts, behind, items);
        bt_cuts_replace(cuts, behind, BT_STR("]"));
        return;
    }
    bt_cuts_replace(cuts, before, items);
    if (items.n != 0 && inner(value).n != 0)
        bt_cuts_replace(cuts, before, BT_STR(","));
}

/* BT_E_JSON: one of prefill's lists has no place in this answer. */
static int put_lists(const bt_prompt_logprobs_part_t *part, const struct bt_prompt_lists *lists,
                     bt_str_t item, bt_cuts_t *cuts)
{
    const bt_str_t holder = holder_of(part, item);

    for (unsigned i = 0; i < BT_PROMPT_LOGPROBS_LISTS; i++) {
        bt_str_t value;
        if (lists->items[i].p == NULL)
            continue;
        value = holder.p != NULL ? bt_json_find(holder, forms[part->asked].lists[i]) : BT_STR_NULL;
        if (!is_list(value) && bt_json_type_of(value) != BT_JSON_NULL)
            return BT_E_JSON;
        put_list(cuts, value, lists->items[i],
                 !is_list(value) || part->asked == BT_PROMPT_LOGPROBS_VLLM);
    }
    return 0;
}

/* Writes text up to the item's end, with the lists in it. */
static int put_item(const bt_prompt_logprobs_part_t *part, const struct bt_prompt_lists *lists,
                    bt_str_t item, const char **at_p, bt_buf_t **buf_p)
{
    const char *end = item.p + item.n;
    bt_cuts_t cuts = {.count = 0};
    int rc = put_lists(part, lists, item, &cuts);

    if (rc == 0)
        rc = bt_cuts_write(&cuts, (bt_str_t){*at_p, (size_t) (end - *at_p)}, buf_p);
    *at_p = end;
    return rc;
}

int bt_prompt_logprobs_put(bt_prompt_logprobs_part_t *part, bt_str_t answer, bt_buf_t **buf_p)
{
    const char *at = answer.p;
    bt_json_walk_t walk;
    bt_str_t items, item;
    size_t unused;
    unsigned i = 0;
    int rc = 0;

    if (bt_json_validate(answer, NULL) < 0)
        return BT_E_JSON;
    items = items_of(part, bt_str_trim(answer));
    if (!is_list(items)) {
        rc = part->count == 1 ? put_item(part, &part->prompts[0], bt_str_trim(answer), &at, buf_p)
                              : BT_E_JSON;
    } else {
        bt_json_walk(&walk, items);
        while (rc == 0 && bt_json_walk_next(&walk, &item, &unused))
            rc =
                i < part->count ? put_item(part, &part->prompts[i++], item, &at, buf_p) : BT_E_JSON;
        if (rc == 0 && i != part->count)
            rc = BT_E_JSON;
    }
    if (rc < 0)
        return rc;
    return bt_cuts_append(buf_p, (bt_str_t){at, answer.n - (size_t) (at - answer.p)});
}

static struct bt_prompt_lists *lists_of(bt_prompt_logprobs_part_t *part, bt_str_t item)
{
    int64_t index = 0;
    bt_str_t value = BT_STR_NULL;

    if (bt_json_type_of(item) == BT_JSON_OBJECT)
        value = bt_json_find(item, BT_STR("index"));
    if (value.p != NULL &&
        (bt_json_type_of(value) != BT_JSON_NUMBER || bt_json_i64(value, &index) < 0))
        return NULL;
    return index >= 0 && (uint64_t) index < part->count ? &part->prompts[index] : NULL;
}

static bool is_last_event(const bt_prompt_logprobs_part_t *part, bt_str_t item)
{
    const bt_str_t meta = holder_of(part, item);
    const bt_str_t why = meta.p != NULL ? bt_json_find(meta, BT_STR("finish_reason")) : BT_STR_NULL;

    return why.p != NULL && bt_json_type_of(why) != BT_JSON_NULL;
}

static bool is_wanted(const bt_prompt_logprobs_part_t *part, const struct bt_prompt_lists *lists,
                      bt_str_t item)
{
    return !lists->is_put || (part->asked == BT_PROMPT_LOGPROBS_INPUT && is_last_event(part, item));
}

/* Events without a place for them are others: usage, an abort. */
int bt_prompt_logprobs_put_event(bt_prompt_logprobs_part_t *part, bt_str_t event, bt_str_t payload,
                                 bt_buf_t **buf_p)
{
    bt_str_t items = BT_STR_NULL, item = payload;
    bt_cuts_t cuts = {.count = 0};
    struct bt_prompt_lists *lists;
    bt_json_walk_t walk;
    size_t unused;

    if (payload.n == 0 || payload.p[0] != '{' || bt_json_validate(payload, NULL) < 0)
        return bt_cuts_append(buf_p, event);
    items = items_of(part, payload);
    if (is_list(items)) { /* a choice an event */
        bt_json_walk(&walk, items);
        if (!bt_json_walk_next(&walk, &item, &unused))
            return bt_cuts_append(buf_p, event);
    }
    lists = lists_of(part, item);
    if (lists == NULL || !is_wanted(part, lists, item) || put_lists(part, lists, item, &cuts) < 0)
        return bt_cuts_append(buf_p, event);
    lists->is_put = true;
    return bt_cuts_write(&cuts, event, buf_p);
}
