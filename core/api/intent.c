/* intent.c - one look at the members of the body.
 *
 * members.c says which of them a client may write, and of what type; here is what they mean. Keys nobody here cares about may be
 * doubled and may be anything; they go through untouched.
 */
#include "api/intent.h"

#include "api/members.h"
#include "base/err.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define INTEGER_MAX 9007199254740992.0 /* 2^53: up to there a double counts in ones */

__attribute__((format(printf, 4, 5))) static int refuse(const bt_intent_t *intent,
                                                        const char **why_p, int rc, const char *fmt,
                                                        ...)
{
    char text[320];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    *why_p = bt_arena_str(intent->strip.arena, bt_str(text)).p;
    return rc;
}

/* Enough of a value to be known again. */
#define SHOWN(item) (int) ((item)->value.n < 40 ? (item)->value.n : 40), (item)->value.p

/* A text that is kept for as long as the request lives; one that is absent, or no text, leaves *text_p. */
static int read_name(const bt_intent_t *intent, const bt_json_item_t *item, bt_str_t *text_p,
                     const char **why_p)
{
    char *out;
    long n;

    if (item == NULL || item->type != BT_JSON_STRING)
        return 0;
    if (item->value.n > BT_MEMBERS_NAME_MAX + 2)
        return refuse(intent, why_p, BT_E_LIMIT, "\"%.40s\" is longer than %d bytes",
                      bt_arena_str(intent->strip.arena, item->key).p, BT_MEMBERS_NAME_MAX);
    out = bt_arena_alloc(intent->strip.arena, item->value.n);
    n = bt_json_unescape(item->value, out, item->value.n);
    if (n >= 0)
        *text_p = (bt_str_t){out, (size_t) n};
    return 0;
}

static bool is_true(const bt_json_item_t *item)
{
    return item != NULL && item->type == BT_JSON_TRUE;
}

static bool is_given(const bt_json_item_t *item)
{
    return item != NULL && item->type != BT_JSON_NULL && item->type != BT_JSON_FALSE;
}

/* One nested object: refuses doubled controlled keys, reports the named members. */
static int look_inside(const bt_intent_t *intent, const bt_json_item_t *item, const bt_str_t *names,
                       bt_json_item_t *found, unsigned count, const char **why_p)
{
    bt_json_cursor_t c;
    bt_json_item_t member;
    int rc;

    memset(found, 0, count * sizeof(*found));
    if (item == NULL || item->type != BT_JSON_OBJECT)
        return 0;
    rc = bt_json_object(&c, item->value);
    while (rc >= 0 && (rc = bt_json_next(&c, &member)) == 1)
        for (unsigned i = 0; i < count; i++) {
            if (!bt_json_key_eq(&member, names[i]))
                continue;
            if (found[i].type != BT_JSON_NONE)
                return refuse(intent, why_p, BT_E_JSON_DUP,
                              "duplicate key \"%.*s\" in a nested object of the request body",
                              BT_STR_ARG(names[i]));
            found[i] = member;
        }
    return rc;
}

/* 7, 7.0 and 7e0 are the same number to engines. */
static bool is_integer(const bt_json_item_t *item, int64_t *value_p)
{
    double value;

    if (item->type != BT_JSON_NUMBER)
        return false;
    if (bt_json_i64(item->value, value_p) == 0)
        return true;
    if (bt_json_double(item->value, &value) < 0 || floor(value) != value ||
        fabs(value) > INTEGER_MAX)
        return false;
    *value_p = (int64_t) value;
    return true;
}

static bool is_absent(const bt_json_item_t *item)
{
    return item == NULL || item->type == BT_JSON_NULL || item->type == BT_JSON_NONE;
}

/* Absent leaves *value_p. */
static int read_integer(bt_intent_t *intent, const bt_json_item_t *item, const char *name,
                        int64_t *value_p, const char **why_p)
{
    if (is_absent(item) || is_integer(item, value_p))
        return 0;
    return refuse(intent, why_p, BT_E_INVAL, "\"%s\" must be an integer, not %.*s", name,
                  SHOWN(item));
}

static int read_count(bt_intent_t *intent, const bt_json_item_t *item, const char **why_p)
{
    int64_t n = 1;
    int rc = read_integer(intent, item, "n", &n, why_p);

    if (rc == 0 && (n < 1 || n > 100000))
        return refuse(intent, why_p, BT_E_INVAL, "\"n\" must be a positive integer, not %.*s",
                      SHOWN(item));
    if (rc == 0)
        intent->n = (unsigned) n;
    return rc;
}

/* Of several spellings the first that is there holds. Less than 1 is the engine's to refuse. */
static int read_max_tokens(bt_intent_t *intent, const bt_json_item_t *item, const char *name,
                           const char **why_p)
{
    int64_t n = 0;
    int rc = read_integer(intent, item, name, &n, why_p);

    if (rc == 0 && intent->max_tokens == 0 && n > 0)
        intent->max_tokens = (uint64_t) n;
    return rc;
}

static int read_seed(bt_intent_t *intent, const bt_json_item_t *item, const char **why_p)
{
    intent->has_seed = !is_absent(item);
    return read_integer(intent, item, "seed", &intent->seed, why_p);
}

/* An object's door to the engine's own members: the object is set anew, without them. */
static int strip_object(bt_intent_t *intent, bt_str_t parent, bt_str_t name,
                        const bt_json_item_t *item, const char **why_p)
{
    bt_str_t clean;
    int rc = item != NULL && item->type == BT_JSON_OBJECT
                 ? bt_members_clean(item->value, intent->strip.arena, &clean, why_p)
                 : 0;

    if (rc < 0 || item == NULL || item->type != BT_JSON_OBJECT || clean.p == item->value.p)
        return rc;
    return bt_edits_set(&intent->strip, parent, name, clean, true);
}

enum { S_N, S_SAMPLING_SEED, S_SEED, S_MAX, S_MAX_NEW, S_MIN, S_PROMPT_LOGPROBS, S_EXTRA, S_COUNT };
static const bt_str_t sampling_names[S_COUNT] = {[S_N] = BT_STR("n"),
                                                 [S_SAMPLING_SEED] = BT_STR("sampling_seed"),
                                                 [S_SEED] = BT_STR("seed"),
                                                 [S_MAX] = BT_STR("max_tokens"),
                                                 [S_MAX_NEW] = BT_STR("max_new_tokens"),
                                                 [S_MIN] = BT_STR("min_tokens"),
                                                 [S_PROMPT_LOGPROBS] = BT_STR("prompt_logprobs"),
                                                 [S_EXTRA] = BT_STR("extra_args")};

/* Two forms at once, or a route that does not have the form: one worker shall see what it makes of that. */
static void ask_prompt(bt_intent_t *intent, enum bt_prompt_logprobs form)
{
    static const bool has_form[BT_ROUTE_COUNT][BT_PROMPT_LOGPROBS_VLLM + 1] = {
        [BT_ROUTE_GENERATE][BT_PROMPT_LOGPROBS_INPUT] = true,
        [BT_ROUTE_COMPLETIONS][BT_PROMPT_LOGPROBS_ECHO] = true,
        [BT_ROUTE_COMPLETIONS][BT_PROMPT_LOGPROBS_VLLM] = true,
        [BT_ROUTE_CHAT][BT_PROMPT_LOGPROBS_VLLM] = true,
        [BT_ROUTE_TOKENS][BT_PROMPT_LOGPROBS_VLLM] = true,
    };

    if (!has_form[intent->route][form] ||
        (intent->prompt_logprobs != BT_PROMPT_LOGPROBS_NONE && intent->prompt_logprobs != form) ||
        (form == BT_PROMPT_LOGPROBS_VLLM && intent->stream)) /* vLLM refuses that itself */
        intent->unsplittable = bt_prompt_logprobs_why(form);
    intent->prompt_logprobs = form;
}

/* One object of sampling parameters on a route that has its counts there. */
static int read_counts(bt_intent_t *intent, const bt_json_item_t *found, const char **why_p)
{
    const bt_json_item_t *seed =
        found[S_SAMPLING_SEED].type != BT_JSON_NONE ? &found[S_SAMPLING_SEED] : &found[S_SEED];
    const bt_json_item_t *logprobs = &found[S_PROMPT_LOGPROBS];
    int64_t unused;
    int rc = read_max_tokens(intent, &found[S_MAX], "max_tokens", why_p);

    if (rc == 0)
        rc = read_max_tokens(intent, &found[S_MAX_NEW], "max_new_tokens", why_p);
    if (rc == 0)
        rc = read_integer(intent, &found[S_MIN], "min_tokens", &unused, why_p);
    if (rc == 0)
        rc = read_count(intent, &found[S_N], why_p);
    if (rc == 0)
        rc = read_seed(intent, seed, why_p);
    if (is_given(logprobs) && logprobs->type != BT_JSON_NONE)
        ask_prompt(intent, BT_PROMPT_LOGPROBS_VLLM);
    return rc;
}

#define EXTRA_IN_LIST "\"extra_args\" in a list of \"sampling_params\" is not supported"

/* SGLang takes a list, one object a prompt. Its samples can't be told apart by prompt, so there are none. */
static int read_sampling_list(bt_intent_t *intent, const bt_json_item_t *list, const char **why_p)
{
    bt_json_item_t element, found[S_COUNT];
    bt_json_cursor_t c;
    int rc = bt_json_array(&c, list->value);

    while (rc >= 0 && (rc = bt_json_next(&c, &element)) == 1) {
        if (element.type != BT_JSON_OBJECT)
            return refuse(intent, why_p, BT_E_INVAL,
                          "\"sampling_params\" must be an object or a list of objects");
        rc = look_inside(intent, &element, sampling_names, found, S_COUNT, why_p);
        if (rc == 0)
            rc = read_counts(intent, found, why_p);
        if (rc == 0 && intent->n > 1)
            return refuse(intent, why_p, BT_E_INVAL,
                          "\"n\" above 1 in a list of \"sampling_params\" is not supported: send "
                          "one object for all prompts");
        if (rc == 0 && found[S_EXTRA].type != BT_JSON_NONE)
            return refuse(intent, why_p, BT_E_INVAL, EXTRA_IN_LIST);
    }
    return rc;
}

/* Of a list that is not understood here. */
static int refuse_extra(bt_intent_t *intent, const bt_json_item_t *list, const char **why_p)
{
    const bt_str_t extra = BT_STR("extra_args");
    bt_json_item_t element, found;
    bt_json_cursor_t c;
    int rc = bt_json_array(&c, list->value);

    while (rc >= 0 && (rc = bt_json_next(&c, &element)) == 1) {
        rc = look_inside(intent, &element, &extra, &found, 1, why_p);
        if (rc == 0 && found.type != BT_JSON_NONE)
            return refuse(intent, why_p, BT_E_INVAL, EXTRA_IN_LIST);
    }
    return rc;
}

/* Whatever the route: extra_args of this object goes to the engine. */
static int strip_sampling(bt_intent_t *intent, const char **why_p)
{
    const bt_str_t name = BT_STR("sampling_params"), extra = BT_STR("extra_args");
    const bt_json_item_t *item = intent->members[BT_MEMBER_SAMPLING_PARAMS];
    bt_json_item_t found;
    int rc;

    if (item != NULL && item->type == BT_JSON_ARRAY)
        return refuse_extra(intent, item, why_p);
    rc = look_inside(intent, item, &extra, &found, 1, why_p);
    return rc == 0 ? strip_object(intent, name, extra, &found, why_p) : rc;
}

/* /generate and /inference/v1/generate have their counts there. */
static int read_sampling(bt_intent_t *intent, const char **why_p)
{
    const bt_json_item_t *item = intent->members[BT_MEMBER_SAMPLING_PARAMS];
    bt_json_item_t found[S_COUNT];
    int rc = 0;

    if (intent->route != BT_ROUTE_GENERATE && intent->route != BT_ROUTE_TOKENS)
        return strip_sampling(intent, why_p);
    if (item != NULL && item->type == BT_JSON_ARRAY && intent->route == BT_ROUTE_GENERATE)
        return read_sampling_list(intent, item, why_p);
    if (item != NULL && item->type == BT_JSON_ARRAY)
        return refuse(intent, why_p, BT_E_INVAL,
                      "\"sampling_params\" must be an object on this route");
    rc = look_inside(intent, item, sampling_names, found, S_COUNT, why_p);
    if (rc == 0)
        rc = read_counts(intent, found, why_p);
    return rc == 0 ? strip_sampling(intent, why_p) : rc;
}

static int read_xargs(bt_intent_t *intent, const char **why_p)
{
    static const bt_str_t names[] = {BT_STR("session_id")};
    const bt_str_t name = BT_STR("vllm_xargs");
    const bt_json_item_t *item = intent->members[BT_MEMBER_VLLM_XARGS];
    bt_json_item_t session;
    int rc = look_inside(intent, item, names, &session, 1, why_p);

    if (rc == 0)
        rc = strip_object(intent, BT_STR(""), name, item, why_p);
    if (rc == 0)
        rc = read_name(intent, &session, &intent->session, why_p);
    return rc;
}

static const bt_json_item_t *prompt_member(const bt_intent_t *intent)
{
    static const enum bt_member by_route[BT_ROUTE_COUNT][4] = {
        /* model, which is 0, ends them */
        [BT_ROUTE_CHAT] = {BT_MEMBER_MESSAGES},
        [BT_ROUTE_CHAT_BATCH] = {BT_MEMBER_MESSAGES},
        [BT_ROUTE_MESSAGES] = {BT_MEMBER_MESSAGES},
        [BT_ROUTE_COMPLETIONS] = {BT_MEMBER_PROMPT},
        [BT_ROUTE_RESPONSES] = {BT_MEMBER_INPUT},
        [BT_ROUTE_GENERATE] = {BT_MEMBER_TEXT, BT_MEMBER_INPUT_IDS, BT_MEMBER_PROMPT},
        [BT_ROUTE_TOKENS] = {BT_MEMBER_TOKEN_IDS},
        [BT_ROUTE_EMBEDDINGS] = {BT_MEMBER_INPUT},
    };

    for (const enum bt_member *m = by_route[intent->route]; *m != BT_MEMBER_MODEL; m++) {
        const bt_json_item_t *item = intent->members[*m];
        if (item != NULL && item->type != BT_JSON_NULL)
            return item;
    }
    return NULL;
}

/* Elsewhere a list is one conversation, or one for which it does not matter. */
static bool is_prompt_list(enum bt_route route)
{
    return route == BT_ROUTE_COMPLETIONS || route == BT_ROUTE_GENERATE ||
           route == BT_ROUTE_TOKENS || route == BT_ROUTE_EMBEDDINGS;
}

/* Room grows at 8, 16, 32 ... */
static void note_prompt(bt_intent_t *intent, uint64_t at, bt_str_t text)
{
    bt_str_t *more;

    if (at >= BT_PROMPTS_MAX)
        return;
    if (at == 0 || (at >= 8 && (at & (at - 1)) == 0)) {
        more = bt_arena_alloc(intent->strip.arena, (at != 0 ? 2 * at : 8) * sizeof(*more));
        if (at != 0)
            memcpy(more, intent->prompts, at * sizeof(*more));
        intent->prompts = more;
    }
    intent->prompts[at] = text;
}

/* A list of strings or of id lists is many prompts; a list of numbers is one prompt given as ids. */
static void read_prompt_list(bt_intent_t *intent, bt_str_t list)
{
    bt_json_walk_t walk;
    bt_str_t element;
    size_t ids;
    uint64_t count = 0, inner = 0;
    bool is_ids = false;

    bt_json_walk(&walk, list);
    for (; bt_json_walk_next(&walk, &element, &ids); count++) {
        const enum bt_json_type type = bt_json_type_of(element);
        if (count == 0)
            is_ids = type == BT_JSON_NUMBER;
        if (is_ids)
            count += bt_json_walk_integers(&walk);
        if (!is_ids)
            note_prompt(intent, count, element);
        if (type == BT_JSON_ARRAY)
            inner += ids;
    }
    intent->prompt_ids = is_ids ? count : inner;
    if (!is_ids)
        intent->prompt_count = count > UINT32_MAX ? UINT32_MAX : (unsigned) count;
}

static int read_prompt(bt_intent_t *intent, const char **why_p)
{
    intent->prompt = prompt_member(intent);
    if (intent->prompt == NULL)
        return 0;
    if (intent->prompt->type == BT_JSON_OBJECT)
        return refuse(intent, why_p, BT_E_INVAL, "\"%.40s\" must be a string or a list",
                      bt_arena_str(intent->strip.arena, intent->prompt->key).p);
    intent->prompt_bytes = intent->prompt->value.n;
    if (intent->prompt->type == BT_JSON_ARRAY && is_prompt_list(intent->route))
        read_prompt_list(intent, intent->prompt->value);
    return 0;
}

/* SGLang takes either for all prompts or a list, one a prompt: then one is enough. */
static bool is_any_true(const bt_json_item_t *item)
{
    return is_true(item) || (item != NULL && item->type == BT_JSON_ARRAY &&
                             bt_str_find(item->value, BT_STR("true")) >= 0);
}

/* What an engine may convert to a boolean or a number, we would have read otherwise. */
static int check_elements(const bt_intent_t *intent, enum bt_member id, const char *wanted,
                          bool (*is_fine)(bt_str_t element), const char **why_p)
{
    const bt_json_item_t *item = intent->members[id];
    bt_json_walk_t walk;
    bt_str_t element;
    size_t inner;

    if (item == NULL || item->type != BT_JSON_ARRAY)
        return 0;
    bt_json_walk(&walk, item->value);
    while (bt_json_walk_next(&walk, &element, &inner))
        if (!is_fine(element))
            return refuse(intent, why_p, BT_E_INVAL, "\"%.40s\" must be a list of %s, not %.*s",
                          bt_arena_str(intent->strip.arena, item->key).p, wanted,
                          (int) (element.n < 40 ? element.n : 40), element.p);
    return 0;
}

static bool is_boolean(bt_str_t element)
{
    const enum bt_json_type type = bt_json_type_of(element);

    return type == BT_JSON_TRUE || type == BT_JSON_FALSE || type == BT_JSON_NULL;
}

static bool is_whole_number(bt_str_t element)
{
    int64_t value;

    return bt_json_type_of(element) == BT_JSON_NULL ||
           (bt_json_type_of(element) == BT_JSON_NUMBER && bt_json_i64(element, &value) == 0);
}

static int check_logprobs(const bt_intent_t *intent, const char **why_p)
{
    int rc = check_elements(intent, BT_MEMBER_RETURN_LOGPROB, "true and false", is_boolean, why_p);

    return rc == 0 ? check_elements(intent, BT_MEMBER_LOGPROB_START_LEN, "integers",
                                    is_whole_number, why_p)
                   : rc;
}

static bool wants_input_logprobs(const bt_intent_t *intent)
{
    const bt_json_item_t *start = intent->members[BT_MEMBER_LOGPROB_START_LEN];
    int64_t value = -1;

    if (is_absent(start) || !is_any_true(intent->members[BT_MEMBER_RETURN_LOGPROB]))
        return false;
    return start->type == BT_JSON_ARRAY || (is_integer(start, &value) && value >= 0);
}

static const char *unsplittable_feature(const bt_intent_t *intent)
{
    const bt_json_item_t *best_of = intent->members[BT_MEMBER_BEST_OF];
    int64_t value;

    if (intent->route == BT_ROUTE_CHAT_BATCH)
        return "a batch of conversations is answered by one worker";
    if (intent->prompt_count > BT_PROMPTS_MAX)
        return "more than 4096 prompts in one request need one worker for all of them";
    if (intent->route == BT_ROUTE_RESPONSES && intent->previous_response.n != 0)
        return "previous_response_id continues what one worker remembers";
    if (best_of != NULL && is_integer(best_of, &value) && value > 1)
        return "best_of chooses among samples inside one worker";
    if (is_true(intent->members[BT_MEMBER_USE_BEAM_SEARCH]))
        return "beam search shares KV between samples inside one worker";
    return NULL;
}

static void read_prompt_logprobs(bt_intent_t *intent)
{
    if (is_given(intent->members[BT_MEMBER_PROMPT_LOGPROBS]))
        ask_prompt(intent, BT_PROMPT_LOGPROBS_VLLM);
    if (is_true(intent->members[BT_MEMBER_ECHO]) && is_given(intent->members[BT_MEMBER_LOGPROBS]))
        ask_prompt(intent, BT_PROMPT_LOGPROBS_ECHO);
    if (!wants_input_logprobs(intent))
        return;
    ask_prompt(intent, BT_PROMPT_LOGPROBS_INPUT);
    if (is_true(intent->members[BT_MEMBER_FLAT_TOP_LOGPROBS]) ||
        is_true(
            intent->members
                [BT_MEMBER_FLAT_TOP_LOGPROBS_B64])) /* arrays of one shape: no lists that could be joined */
        intent->unsplittable = bt_prompt_logprobs_why(BT_PROMPT_LOGPROBS_INPUT);
}

static int read_session(bt_intent_t *intent, const char **why_p)
{
    static const bt_str_t names[] = {BT_STR("session_id")};
    const bt_json_item_t *id = intent->members[BT_MEMBER_SESSION_ID];
    bt_json_item_t inner;
    int rc;

    if (id != NULL && id->type == BT_JSON_STRING)
        return read_name(intent, id, &intent->session, why_p);
    rc = look_inside(intent, intent->members[BT_MEMBER_SESSION_PARAMS], names, &inner, 1, why_p);
    return rc == 0 ? read_name(intent, &inner, &intent->session, why_p) : rc;
}

static int read_names(bt_intent_t *intent, const char **why_p)
{
    int rc = read_name(intent, intent->members[BT_MEMBER_MODEL], &intent->model, why_p);

    if (rc == 0)
        rc = read_name(intent, intent->members[BT_MEMBER_PREVIOUS_RESPONSE_ID],
                       &intent->previous_response, why_p);
    if (rc == 0)
        rc = read_name(intent, intent->members[BT_MEMBER_RID], &intent->client_rid, why_p);
    return rc;
}

static int read_numbers(bt_intent_t *intent, const char **why_p)
{
    static const struct {
        enum bt_member id;
        const char *name;
    } limits[] = {{BT_MEMBER_MAX_COMPLETION_TOKENS, "max_completion_tokens"},
                  {BT_MEMBER_MAX_TOKENS, "max_tokens"},
                  {BT_MEMBER_MAX_OUTPUT_TOKENS, "max_output_tokens"}};
    int rc = read_seed(intent, intent->members[BT_MEMBER_SEED], why_p);

    for (unsigned i = 0; i < 3 && rc == 0; i++)
        rc = read_max_tokens(intent, intent->members[limits[i].id], limits[i].name, why_p);
    if (rc == 0 && intent->route != BT_ROUTE_GENERATE)
        rc = read_count(intent, intent->members[BT_MEMBER_N], why_p);
    return rc;
}

/* A route whose members are understood. */
static int read_facts(bt_intent_t *intent, const char **why_p)
{
    const char *why;
    int rc = read_numbers(intent, why_p);

    intent->stream = is_true(intent->members[BT_MEMBER_STREAM]);
    if (rc == 0)
        rc = read_sampling(intent, why_p);
    if (rc == 0)
        rc = read_prompt(intent, why_p);
    if (rc == 0)
        rc = read_session(intent, why_p);
    if (rc == 0)
        rc = check_logprobs(intent, why_p);
    if (rc == 0)
        read_prompt_logprobs(intent);
    why = rc == 0 ? unsplittable_feature(intent) : NULL;
    if (why != NULL)
        intent->unsplittable = why;
    return rc;
}

static int index_body(bt_intent_t *intent, bt_str_t text, const char **why_p)
{
    size_t err_off = 0;
    int rc = bt_body_index(&intent->body, intent->strip.arena, text, &err_off);

    if (rc < 0 && bt_str_trim(text).n == 0)
        return refuse(intent, why_p, rc,
                      "the request body is empty; this route takes a JSON object");
    if (rc < 0)
        return refuse(intent, why_p, rc, "request body is no valid JSON object: %s at byte %zu",
                      bt_err_text(rc), err_off);
    intent->has_body = true;
    return 0;
}

int bt_intent_read(bt_intent_t *intent, bt_arena_t *arena, enum bt_route route, bt_str_t text,
                   const char **why_p)
{
    const bool is_understood = bt_route_info(route)->body == BT_BODY_JSON;
    int rc;

    memset(intent, 0, sizeof(*intent));
    intent->route = route;
    intent->n = 1;
    intent->members = bt_arena_zalloc(arena, BT_MEMBER_COUNT * sizeof(intent->members[0]));
    intent->model = intent->session = intent->previous_response = intent->client_rid = BT_STR("");
    bt_edits_init(&intent->strip, arena);
    *why_p = "request body is no JSON object";
    rc = index_body(intent, text, why_p);
    if (rc == 0)
        rc = bt_members_check(&intent->body, is_understood, &intent->strip, intent->members, why_p);
    if (rc == 0)
        rc = read_names(intent, why_p);
    if (rc == 0)
        rc = read_xargs(intent, why_p);
    if (rc == 0)
        rc = is_understood ? read_facts(intent, why_p) : strip_sampling(intent, why_p);
    return rc;
}

uint64_t bt_intent_prompt_tokens(const bt_intent_t *intent, uint64_t bytes_per_token_milli)
{
    uint64_t tokens = intent->prompt_ids;

    if (tokens == 0 && bytes_per_token_milli != 0)
        tokens = intent->prompt_bytes * 1000 / bytes_per_token_milli;
    return tokens != 0 ? tokens : 1;
}
