/* members.c - see members.h. Keys are compared unescaped: "kv\u005ftransfer_params" is the same key to every engine. */
#include "api/members.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

/* JSON types, beside null. */
enum {
    T_BOOL = 1,
    T_NUMBER = 2,
    T_STRING = 4,
    T_LIST = 8,
    T_OBJECT = 16,
    T_NAME = T_STRING | 32,    /* a short one */
    T_OPTIONS = T_OBJECT | 64, /* a small one */
    FORBIDDEN = 128            /* never taken from a client, whatever it is */
};

/* clang-format off */
static const struct member {
    bt_str_t name;
    unsigned types;
} members[] = {
    [BT_MEMBER_MODEL] = {BT_STR("model"), T_NAME}, [BT_MEMBER_STREAM] = {BT_STR("stream"), T_BOOL},
    [BT_MEMBER_N] = {BT_STR("n"), T_NUMBER}, [BT_MEMBER_BEST_OF] = {BT_STR("best_of"), T_NUMBER},
    [BT_MEMBER_USE_BEAM_SEARCH] = {BT_STR("use_beam_search"), T_BOOL}, [BT_MEMBER_ECHO] = {BT_STR("echo"), T_BOOL},
    [BT_MEMBER_LOGPROBS] = {BT_STR("logprobs"), T_BOOL | T_NUMBER},
    [BT_MEMBER_PROMPT_LOGPROBS] = {BT_STR("prompt_logprobs"), T_BOOL | T_NUMBER},
    [BT_MEMBER_PROMPT] = {BT_STR("prompt"), T_STRING | T_LIST | T_OBJECT},
    [BT_MEMBER_TEXT] = {BT_STR("text"), T_STRING | T_LIST | T_OBJECT},
    [BT_MEMBER_INPUT_IDS] = {BT_STR("input_ids"), T_LIST}, [BT_MEMBER_MESSAGES] = {BT_STR("messages"), T_LIST},
    [BT_MEMBER_INPUT] = {BT_STR("input"), T_STRING | T_LIST | T_OBJECT},
    [BT_MEMBER_TOKEN_IDS] = {BT_STR("token_ids"), T_LIST},
    [BT_MEMBER_SAMPLING_PARAMS] = {BT_STR("sampling_params"), T_OPTIONS | T_LIST},
    [BT_MEMBER_SEED] = {BT_STR("seed"), T_NUMBER}, [BT_MEMBER_MAX_TOKENS] = {BT_STR("max_tokens"), T_NUMBER},
    [BT_MEMBER_MAX_COMPLETION_TOKENS] = {BT_STR("max_completion_tokens"), T_NUMBER},
    [BT_MEMBER_MAX_OUTPUT_TOKENS] = {BT_STR("max_output_tokens"), T_NUMBER},
    [BT_MEMBER_RETURN_LOGPROB] = {BT_STR("return_logprob"), T_BOOL | T_LIST},
    [BT_MEMBER_LOGPROB_START_LEN] = {BT_STR("logprob_start_len"), T_NUMBER | T_LIST},
    [BT_MEMBER_FLAT_TOP_LOGPROBS] = {BT_STR("return_flat_raw_top_logprobs"), T_BOOL},
    [BT_MEMBER_FLAT_TOP_LOGPROBS_B64] = {BT_STR("return_flat_raw_top_logprobs_b64"), T_BOOL},
    [BT_MEMBER_VLLM_XARGS] = {BT_STR("vllm_xargs"), T_OPTIONS},
    [BT_MEMBER_SESSION_ID] = {BT_STR("session_id"), T_NAME},
    [BT_MEMBER_SESSION_PARAMS] = {BT_STR("session_params"), T_OPTIONS},
    [BT_MEMBER_PREVIOUS_RESPONSE_ID] = {BT_STR("previous_response_id"), T_NAME},
    /* of the prefix cache: vLLM and SGLang, SGLang, SGLang */
    [BT_MEMBER_CACHE_SALT] = {BT_STR("cache_salt"), T_STRING | T_LIST},
    [BT_MEMBER_EXTRA_KEY] = {BT_STR("extra_key"), T_STRING | T_LIST},
    [BT_MEMBER_LORA_PATH] = {BT_STR("lora_path"), T_STRING | T_LIST},
    [BT_MEMBER_RID] = {BT_STR("rid"), FORBIDDEN},
    /* SGLang: "never by an application client"; vLLM has it inside */
    [BT_MEMBER_KV_HINTS] = {BT_STR("kv_hints"), FORBIDDEN},
    {BT_STR("kv_transfer_params"), FORBIDDEN}, {BT_STR("batch_kv_transfer_params"), FORBIDDEN},
    {BT_STR("ec_transfer_params"), FORBIDDEN}, {BT_STR("bootstrap_host"), FORBIDDEN},
    {BT_STR("bootstrap_port"), FORBIDDEN}, {BT_STR("bootstrap_room"), FORBIDDEN},
    {BT_STR("bootstrap_pair_key"), FORBIDDEN}, {BT_STR("routed_dp_rank"), FORBIDDEN},
    {BT_STR("data_parallel_rank"), FORBIDDEN}, {BT_STR("disagg_prefill_dp_rank"), FORBIDDEN},
    {BT_STR("decode_tp_size"), FORBIDDEN}, {BT_STR("kv_cache_report_mode"), FORBIDDEN},
    {BT_STR("disaggregated_params"), FORBIDDEN}, {BT_STR("prompt_token_ids_b64"), FORBIDDEN},
    /* SGLang's own processes say these to each other */
    {BT_STR("http_worker_ipc"), FORBIDDEN}, {BT_STR("encoder_urls"), FORBIDDEN},
    {BT_STR("need_wait_for_mm_inputs"), FORBIDDEN}, {BT_STR("num_items_assigned"), FORBIDDEN},
    /* edited, or only of a size */
    {BT_STR("stream_options"), T_OPTIONS}, {BT_STR("min_tokens"), T_NUMBER},
    {BT_STR("min_completion_tokens"), T_NUMBER}, {BT_STR("priority"), T_NUMBER}, {BT_STR("user"), T_NAME},
    {BT_STR("request_id"), T_NAME},
    {BT_STR("store"), T_BOOL}, {BT_STR("background"), T_BOOL},
};
/* clang-format on */
#define MEMBER_COUNT (sizeof(members) / sizeof(members[0]))
_Static_assert(MEMBER_COUNT <= 64, "seen is a 64-bit mask");

/* Those whose names have as many bytes, a bit each: few to compare with. */
#define LENGTHS 64
static uint64_t of_length[LENGTHS];

__attribute__((constructor)) static void sort_by_length(void)
{
    for (unsigned i = 0; i < MEMBER_COUNT; i++)
        of_length[members[i].name.n % LENGTHS] |= UINT64_C(1) << i;
}

static int index_of(const bt_json_item_t *item)
{
    uint64_t left =
        item->key_escaped ? UINT64_MAX >> (64 - MEMBER_COUNT) : of_length[item->key.n % LENGTHS];

    for (; left != 0; left &= left - 1)
        if (bt_json_key_eq(item, members[__builtin_ctzll(left)].name))
            return __builtin_ctzll(left);
    return -1;
}

__attribute__((format(printf, 4, 5))) static int refuse(bt_arena_t *arena, const char **why_p,
                                                        int rc, const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    *why_p = bt_arena_str(arena, bt_str(text)).p;
    return rc;
}

static int refuse_double(bt_arena_t *arena, const char **why_p, bt_str_t name)
{
    return refuse(arena, why_p, BT_E_JSON_DUP, "duplicate key \"%s\" in the request body", name.p);
}

static unsigned type_bit(enum bt_json_type type)
{
    switch (type) {
    case BT_JSON_FALSE:
    case BT_JSON_TRUE:
        return T_BOOL;
    case BT_JSON_NUMBER:
        return T_NUMBER;
    case BT_JSON_STRING:
        return T_STRING;
    case BT_JSON_ARRAY:
        return T_LIST;
    case BT_JSON_OBJECT:
        return T_OBJECT;
    default:
        return 0;
    }
}

/* "true or false", "a string or a list" */
static void print_types(unsigned types, char *out, size_t size)
{
    static const char *const words[] = {"true or false", "a number", "a string", "a list",
                                        "an object"};
    size_t used = 0;

    for (unsigned i = 0; i < 5; i++)
        if ((types & (1U << i)) != 0 && used < size)
            used += (size_t) snprintf(out + used, size - used, "%s%s", used != 0 ? " or " : "",
                                      words[i]);
}

static int check_type(const struct member *m, const bt_json_item_t *item, bt_arena_t *arena,
                      const char **why_p)
{
    char wanted[96] = "";

    if (m->types == FORBIDDEN || item->type == BT_JSON_NULL ||
        (m->types & type_bit(item->type)) != 0)
        return 0;
    print_types(m->types, wanted, sizeof(wanted));
    return refuse(arena, why_p, BT_E_INVAL, "\"%s\" must be %s, not %.*s", m->name.p, wanted,
                  (int) (item->value.n < 40 ? item->value.n : 40), item->value.p);
}

static int check_size(const struct member *m, const bt_json_item_t *item, bt_arena_t *arena,
                      const char **why_p)
{
    const bool is_long = item->type == BT_JSON_STRING && (m->types & T_NAME) == T_NAME &&
                         item->value.n > BT_MEMBERS_NAME_MAX + 2;
    const bool is_large = (item->type == BT_JSON_OBJECT || item->type == BT_JSON_ARRAY) &&
                          (m->types & T_OPTIONS) == T_OPTIONS &&
                          item->value.n > BT_MEMBERS_OPTIONS_MAX;

    if (!is_long && !is_large)
        return 0;
    return refuse(arena, why_p, BT_E_LIMIT, "\"%s\" is longer than %zu bytes", m->name.p,
                  is_long ? (size_t) BT_MEMBERS_NAME_MAX : BT_MEMBERS_OPTIONS_MAX);
}

int bt_members_check(const bt_body_t *body, bool has_types, bt_edits_t *strip,
                     const bt_json_item_t **found, const char **why_p)
{
    uint64_t seen = 0;
    int rc = 0;

    memset(found, 0, BT_MEMBER_COUNT * sizeof(*found));
    for (unsigned i = 0; i < body->count && rc == 0; i++) {
        const bt_json_item_t *item = &body->items[i];
        const int k = index_of(item);
        if (k < 0)
            continue;
        if ((seen & (1ULL << k)) != 0)
            return refuse_double(strip->arena, why_p, members[k].name);
        seen |= 1ULL << k;
        if (k < BT_MEMBER_COUNT)
            found[k] = item;
        if (members[k].types == FORBIDDEN)
            rc = bt_edits_remove(strip, BT_STR(""), members[k].name);
        if (rc == 0 && has_types)
            rc = check_type(&members[k], item, strip->arena, why_p);
        if (rc == 0)
            rc = check_size(&members[k], item, strip->arena, why_p);
    }
    return rc;
}

int bt_members_clean(bt_str_t object, bt_arena_t *arena, bt_str_t *clean_p, const char **why_p)
{
    bt_slices_t kept = {0};
    bt_edits_t edits;
    bt_body_t body;
    uint64_t seen = 0;
    size_t err_off, n = 0;
    int rc = bt_body_index(&body, arena, object, &err_off);

    *clean_p = object;
    if (rc < 0)
        return refuse(arena, why_p, rc, "%s", bt_err_text(rc));
    bt_edits_init(&edits, arena);
    for (unsigned i = 0; i < body.count && rc == 0; i++) {
        const int k = index_of(&body.items[i]);
        if (k < 0 || members[k].types != FORBIDDEN)
            continue;
        if ((seen & (1ULL << k)) != 0)
            return refuse_double(arena, why_p, members[k].name);
        seen |= 1ULL << k;
        rc = bt_edits_remove(&edits, BT_STR(""), members[k].name);
    }
    if (rc == 0 && edits.count != 0)
        rc = bt_body_apply(&body, &edits, arena, &kept);
    if (rc < 0 || edits.count == 0)
        return rc;
    char *text = bt_arena_alloc(arena, kept.bytes);
    for (unsigned i = 0; i < kept.count; n += kept.items[i++].n)
        memcpy(text + n, kept.items[i].p, kept.items[i].n);
    *clean_p = (bt_str_t){text, n};
    return 0;
}
