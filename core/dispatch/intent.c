/* intent.c - one look at the members of the body.
 *
 * Every key that is read, edited or stripped is "controlled": two of the same name in one object mean that gateway and engine
 * could believe different ones, so that is a 400. Keys nobody here cares about may be doubled; they go through untouched.
 */
#include "dispatch/intent.h"

#include "base/err.h"

#include <stdio.h>

/* clang-format off */
#define FORBIDDEN(name) {BT_STR(name), true}
#define CONTROLLED(name) {BT_STR(name), false}

static const struct controlled {
    bt_str_t name;
    bool forbidden;
} controlled[] = {
    /* never taken from a client */
    FORBIDDEN("kv_transfer_params"), FORBIDDEN("batch_kv_transfer_params"), FORBIDDEN("ec_transfer_params"),
    FORBIDDEN("bootstrap_host"), FORBIDDEN("bootstrap_port"), FORBIDDEN("bootstrap_room"),
    FORBIDDEN("bootstrap_pair_key"), FORBIDDEN("rid"), FORBIDDEN("routed_dp_rank"), FORBIDDEN("data_parallel_rank"),
    FORBIDDEN("disagg_prefill_dp_rank"), FORBIDDEN("decode_tp_size"),
    /* read or edited */
    CONTROLLED("model"), CONTROLLED("stream"), CONTROLLED("stream_options"), CONTROLLED("n"), CONTROLLED("best_of"),
    CONTROLLED("use_beam_search"), CONTROLLED("echo"), CONTROLLED("logprobs"), CONTROLLED("prompt_logprobs"),
    CONTROLLED("prompt"), CONTROLLED("text"), CONTROLLED("input_ids"), CONTROLLED("messages"), CONTROLLED("input"),
    CONTROLLED("token_ids"), CONTROLLED("sampling_params"), CONTROLLED("seed"), CONTROLLED("max_tokens"),
    CONTROLLED("max_completion_tokens"), CONTROLLED("max_output_tokens"), CONTROLLED("min_tokens"),
    CONTROLLED("min_completion_tokens"), CONTROLLED("return_logprob"), CONTROLLED("logprob_start_len"),
    CONTROLLED("vllm_xargs"), CONTROLLED("session_id"), CONTROLLED("session_params"), CONTROLLED("user"),
    CONTROLLED("previous_response_id"), CONTROLLED("request_id"), CONTROLLED("store"), CONTROLLED("background"),
};
/* clang-format on */
#define CONTROLLED_COUNT (sizeof(controlled) / sizeof(controlled[0]))
_Static_assert(CONTROLLED_COUNT <= 64, "seen is a 64-bit mask");

static int controlled_index(const bt_json_item_t *item)
{
    for (unsigned i = 0; i < CONTROLLED_COUNT; i++)
        if ((item->key_escaped || item->key.n == controlled[i].name.n) &&
            bt_json_key_eq(item, controlled[i].name))
            return (int) i;
    return -1;
}

static bt_str_t unescaped(bt_arena_t *arena, const bt_json_item_t *item)
{
    char *out;
    long n;

    if (item == NULL || item->type != BT_JSON_STRING)
        return BT_STR("");
    out = bt_arena_alloc(arena, item->value.n);
    n = bt_json_unescape(item->value, out, item->value.n);
    return n < 0 ? BT_STR("") : (bt_str_t){out, (size_t) n};
}

static bool is_true(const bt_json_item_t *item)
{
    return item != NULL && item->type == BT_JSON_TRUE;
}

static bool is_given(const bt_json_item_t *item)
{
    return item != NULL && item->type != BT_JSON_NULL && item->type != BT_JSON_FALSE;
}

static int refuse(bt_intent_t *intent, const char **why_p, int rc, const char *fmt, bt_str_t what)
{
    *why_p = bt_arena_printf(intent->strip.arena, fmt, BT_STR_ARG(what)).p;
    return rc;
}

/* Duplicates of controlled keys, and the strip list. */
static int check_top_level(bt_intent_t *intent, const char **why_p)
{
    uint64_t seen = 0;

    for (unsigned i = 0; i < intent->body.count; i++) {
        int k = controlled_index(&intent->body.items[i]);
        if (k < 0)
            continue;
        if ((seen & (1ULL << k)) != 0)
            return refuse(intent, why_p, BT_E_JSON_DUP,
                          "duplicate key \"%.*s\" in the request body", controlled[k].name);
        seen |= 1ULL << k;
        if (controlled[k].forbidden &&
            bt_edits_remove(&intent->strip, BT_STR(""), controlled[k].name) < 0)
            return BT_E_LIMIT;
    }
    return 0;
}

/* One nested object: refuses doubled controlled keys, reports the named members. */
static int look_inside(bt_intent_t *intent, bt_str_t object, const bt_str_t *names,
                       bt_json_item_t *found, unsigned count, const char **why_p)
{
    const bt_json_item_t *item = bt_body_find(&intent->body, object);
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
                              names[i]);
            found[i] = member;
        }
    return rc;
}

static int read_count(bt_intent_t *intent, const bt_json_item_t *item, const char **why_p)
{
    int64_t n;

    if (item == NULL || item->type == BT_JSON_NULL || item->type == BT_JSON_NONE)
        return 0;
    if (bt_json_i64(item->value, &n) < 0 || n < 1 || n > 100000)
        return refuse(intent, why_p, BT_E_INVAL, "\"n\" must be a positive integer, not %.*s",
                      (bt_str_t){item->value.p, item->value.n < 40 ? item->value.n : 40});
    intent->n = (unsigned) n;
    return 0;
}

/* What is no count is the engine's to refuse. The first that is said holds. */
static void read_max_tokens(bt_intent_t *intent, const bt_json_item_t *item)
{
    int64_t n;

    if (intent->max_tokens == 0 && item != NULL && item->type == BT_JSON_NUMBER &&
        bt_json_i64(item->value, &n) == 0 && n > 0)
        intent->max_tokens = (uint64_t) n;
}

static void read_seed(bt_intent_t *intent, const bt_json_item_t *item)
{
    intent->has_seed = item != NULL && item->type == BT_JSON_NUMBER &&
                       bt_json_i64(item->value, &intent->seed) == 0;
}

/* sampling_params.extra_args is the engine's other door to kv_transfer_params. Edits reach one level down, so the object is
 * set anew, without that member. */
static int strip_extra_args(bt_intent_t *intent, bt_str_t args)
{
    const bt_str_t forbidden = BT_STR("kv_transfer_params");
    bt_arena_t *arena = intent->strip.arena;
    bt_slices_t kept = {0};
    bt_edits_t edits;
    bt_body_t body;
    size_t err_off, n = 0;
    char *text;
    int rc = bt_body_index(&body, arena, args, &err_off);

    if (rc < 0 || bt_body_find(&body, forbidden) == NULL)
        return rc;
    bt_edits_init(&edits, arena);
    rc = bt_edits_remove(&edits, BT_STR(""), forbidden);
    if (rc == 0)
        rc = bt_body_apply(&body, &edits, arena, &kept);
    if (rc < 0)
        return rc;
    text = bt_arena_alloc(arena, kept.bytes);
    for (unsigned i = 0; i < kept.count; n += kept.items[i++].n)
        memcpy(text + n, kept.items[i].p, kept.items[i].n);
    return bt_edits_set(&intent->strip, BT_STR("sampling_params"), BT_STR("extra_args"),
                        (bt_str_t){text, n}, true);
}

/* sampling_params of /generate and /inference/v1/generate hold n and seed. */
static int read_sampling(bt_intent_t *intent, const char **why_p)
{
    static const bt_str_t names[] = {BT_STR("n"),
                                     BT_STR("sampling_seed"),
                                     BT_STR("seed"),
                                     BT_STR("max_tokens"),
                                     BT_STR("max_new_tokens"),
                                     BT_STR("min_tokens"),
                                     BT_STR("prompt_logprobs"),
                                     BT_STR("extra_args")};
    bt_json_item_t found[8];
    int rc = look_inside(intent, BT_STR("sampling_params"), names, found, 8, why_p);

    if (rc < 0)
        return rc;
    if (intent->route == BT_ROUTE_GENERATE || intent->route == BT_ROUTE_TOKENS) {
        read_max_tokens(intent, &found[3]);
        read_max_tokens(intent, &found[4]);
        rc = read_count(intent, &found[0], why_p);
        read_seed(intent, found[1].type != BT_JSON_NONE ? &found[1] : &found[2]);
        if (is_given(&found[6]) && found[6].type != BT_JSON_NONE)
            intent->unsplittable = "prompt_logprobs needs the whole prompt on one worker";
    }
    if (rc == 0 && found[7].type == BT_JSON_OBJECT)
        rc = strip_extra_args(intent, found[7].value);
    return rc;
}

static int read_xargs(bt_intent_t *intent, const char **why_p)
{
    static const bt_str_t names[] = {BT_STR("kv_transfer_params"), BT_STR("session_id")};
    bt_json_item_t found[2];
    int rc = look_inside(intent, BT_STR("vllm_xargs"), names, found, 2, why_p);

    if (rc < 0)
        return rc;
    if (found[0].type != BT_JSON_NONE)
        rc = bt_edits_remove(&intent->strip, BT_STR("vllm_xargs"), names[0]);
    if (found[1].type == BT_JSON_STRING)
        intent->session = unescaped(intent->strip.arena, &found[1]);
    return rc;
}

static const bt_json_item_t *prompt_member(const bt_intent_t *intent)
{
    static const bt_str_t by_route[BT_ROUTE_COUNT][3] = {
        [BT_ROUTE_CHAT] = {BT_STR("messages")},
        [BT_ROUTE_MESSAGES] = {BT_STR("messages")},
        [BT_ROUTE_COMPLETIONS] = {BT_STR("prompt")},
        [BT_ROUTE_RESPONSES] = {BT_STR("input")},
        [BT_ROUTE_GENERATE] = {BT_STR("text"), BT_STR("input_ids"), BT_STR("prompt")},
        [BT_ROUTE_TOKENS] = {BT_STR("token_ids")},
        [BT_ROUTE_EMBEDDINGS] = {BT_STR("input")},
    };

    for (unsigned i = 0; i < 3 && by_route[intent->route][i].n != 0; i++) {
        const bt_json_item_t *item = bt_body_find(&intent->body, by_route[intent->route][i]);
        if (item != NULL && item->type != BT_JSON_NULL)
            return item;
    }
    return NULL;
}

/* A list of strings or of id lists is many prompts; a list of numbers is one prompt given as ids. */
static int read_prompt(bt_intent_t *intent)
{
    bt_json_cursor_t c;
    bt_json_item_t element;
    enum bt_json_type first = BT_JSON_NONE;
    uint64_t count = 0;
    int rc;

    intent->prompt = prompt_member(intent);
    if (intent->prompt == NULL)
        return 0;
    intent->prompt_bytes = intent->prompt->value.n;
    if (intent->prompt->type != BT_JSON_ARRAY || intent->route == BT_ROUTE_CHAT ||
        intent->route == BT_ROUTE_MESSAGES || intent->route == BT_ROUTE_RESPONSES)
        return 0;
    rc = bt_json_array(&c, intent->prompt->value);
    while (rc >= 0 && (rc = bt_json_next(&c, &element)) == 1) {
        if (count++ == 0)
            first = element.type;
        if (element.type == BT_JSON_ARRAY) {
            long ids = bt_json_count(element.value);
            intent->prompt_ids += ids > 0 ? (uint64_t) ids : 0;
        }
    }
    if (rc < 0)
        return rc;
    if (first == BT_JSON_NUMBER) {
        intent->prompt_ids = count;
        return 0;
    }
    intent->prompt_count = count > UINT32_MAX ? UINT32_MAX : (unsigned) count;
    return 0;
}

static void read_features(bt_intent_t *intent)
{
    const bt_body_t *b = &intent->body;
    const bt_json_item_t *best_of = bt_body_find(b, BT_STR("best_of"));
    const bt_json_item_t *start = bt_body_find(b, BT_STR("logprob_start_len"));
    int64_t value;

    if (intent->unsplittable != NULL)
        return;
    if (intent->prompt_count > BT_PROMPTS_MAX) {
        intent->unsplittable =
            "more than 4096 prompts in one request need one worker for all of them";
        return;
    }
    if (intent->route == BT_ROUTE_RESPONSES && intent->previous_response.n != 0)
        intent->unsplittable = "previous_response_id continues what one worker remembers";
    else if (best_of != NULL && bt_json_i64(best_of->value, &value) == 0 && value > 1)
        intent->unsplittable = "best_of chooses among samples inside one worker";
    else if (is_true(bt_body_find(b, BT_STR("use_beam_search"))))
        intent->unsplittable = "beam search shares KV between samples inside one worker";
    else if (is_given(bt_body_find(b, BT_STR("prompt_logprobs"))))
        intent->unsplittable = "prompt_logprobs needs the whole prompt on one worker";
    else if (is_true(bt_body_find(b, BT_STR("echo"))) &&
             is_given(bt_body_find(b, BT_STR("logprobs"))))
        intent->unsplittable = "echo with logprobs needs the whole prompt on one worker";
    else if (is_true(bt_body_find(b, BT_STR("return_logprob"))) && start != NULL &&
             bt_json_i64(start->value, &value) == 0 && value >= 0)
        intent->unsplittable =
            "input logprobs (logprob_start_len) need the whole prompt on one worker";
}

static void read_session(bt_intent_t *intent)
{
    const bt_json_item_t *id = bt_body_find(&intent->body, BT_STR("session_id"));
    const bt_json_item_t *params = bt_body_find(&intent->body, BT_STR("session_params"));
    bt_json_item_t inner;

    if (id != NULL && id->type == BT_JSON_STRING)
        intent->session = unescaped(intent->strip.arena, id);
    else if (params != NULL && params->type == BT_JSON_OBJECT &&
             bt_json_get(params->value, BT_STR("session_id"), &inner) == 0 &&
             inner.type == BT_JSON_STRING)
        intent->session = unescaped(intent->strip.arena, &inner);
}

int bt_intent_read(bt_intent_t *intent, bt_arena_t *arena, enum bt_route route, bt_str_t text,
                   const char **why_p)
{
    size_t err_off = 0;
    int rc;

    memset(intent, 0, sizeof(*intent));
    intent->route = route;
    intent->n = 1;
    bt_edits_init(&intent->strip, arena);
    *why_p = "request body is no JSON object";
    rc = bt_body_index(&intent->body, arena, text, &err_off);
    if (rc < 0) {
        *why_p = bt_arena_printf(arena, "request body is no valid JSON object: %s at byte %zu",
                                 bt_err_text(rc), err_off)
                     .p;
        return rc;
    }
    intent->has_body = true;
    rc = check_top_level(intent, why_p);
    if (rc < 0)
        return rc;
    intent->model = unescaped(arena, bt_body_find(&intent->body, BT_STR("model")));
    intent->previous_response =
        unescaped(arena, bt_body_find(&intent->body, BT_STR("previous_response_id")));
    intent->client_rid = unescaped(arena, bt_body_find(&intent->body, BT_STR("rid")));
    intent->stream = is_true(bt_body_find(&intent->body, BT_STR("stream")));
    read_seed(intent, bt_body_find(&intent->body, BT_STR("seed")));
    read_max_tokens(intent, bt_body_find(&intent->body, BT_STR("max_completion_tokens")));
    read_max_tokens(intent, bt_body_find(&intent->body, BT_STR("max_tokens")));
    read_max_tokens(intent, bt_body_find(&intent->body, BT_STR("max_output_tokens")));
    if (route != BT_ROUTE_GENERATE)
        rc = read_count(intent, bt_body_find(&intent->body, BT_STR("n")), why_p);
    if (rc == 0)
        rc = read_sampling(intent, why_p);
    if (rc == 0)
        rc = read_xargs(intent, why_p);
    if (rc == 0)
        rc = read_prompt(intent);
    read_session(intent);
    read_features(intent);
    return rc;
}

uint64_t bt_intent_prompt_tokens(const bt_intent_t *intent, uint64_t bytes_per_token_milli)
{
    uint64_t tokens = intent->prompt_ids;

    if (tokens == 0 && bytes_per_token_milli != 0)
        tokens = intent->prompt_bytes * 1000 / bytes_per_token_milli;
    return tokens != 0 ? tokens : 1;
}
