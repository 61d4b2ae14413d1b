/* ask.c - see ask.h.
 *
 * The members are collected first (struct members), in one pass that also proves the body well-formed; what they mean
 * depends on the route and is decided after it.
 */
#include "ask.h"

#include "flatten.h"
#include "words.h"

struct members {
    sim_raw_t model, stream, stream_options, n, max_tokens, max_new, min_tokens, seed, temperature;
    sim_raw_t prompt, messages, system, input, instructions, text, input_ids, token_ids, sampling,
        documents, query;
    sim_raw_t previous, logprobs, prompt_logprobs, echo, return_ids, ignore_eos, stop, stop_ids,
        mm_processor, media_io;
};

void sim_prompt_make(sim_prompt_t *prompt_p, bt_str_t bytes, size_t block_bytes, bt_arena_t *arena)
{
    unsigned blocks = (unsigned) ((bytes.n + block_bytes - 1) / block_bytes);
    uint64_t state = SIM_STATE_FIRST;

    *prompt_p = (sim_prompt_t){
        .text = bytes, .tokens = sim_tokens_of_bytes(bytes.n), .bytes = bytes.n, .blocks = blocks};
    prompt_p->states = bt_arena_alloc(arena, (blocks + 1) * sizeof(uint64_t));
    for (unsigned i = 0; i < blocks; i++) {
        size_t from = i * block_bytes,
               n = bytes.n - from < block_bytes ? bytes.n - from : block_bytes;
        state = sim_state_add(state, bytes.p + from, n);
        prompt_p->states[i] = state;
    }
    prompt_p->kv = sim_kv_of_state(state, bytes.n);
}

struct slot {
    const char *name;
    size_t offset;
    bool in_ask;
};

static const struct slot slots[] = {
#define MEMBER(name, field)                                                                        \
    {                                                                                              \
        name, offsetof(struct members, field), false                                               \
    }
#define ASKED(name, field)                                                                         \
    {                                                                                              \
        name, offsetof(sim_ask_t, field), true                                                     \
    }
    MEMBER("model", model),
    MEMBER("stream", stream),
    MEMBER("stream_options", stream_options),
    MEMBER("n", n),
    MEMBER("max_tokens", max_tokens),
    MEMBER("max_completion_tokens", max_new),
    MEMBER("max_output_tokens", max_new),
    MEMBER("max_new_tokens", max_new),
    MEMBER("min_tokens", min_tokens),
    MEMBER("seed", seed),
    MEMBER("sampling_seed", seed),
    MEMBER("temperature", temperature),
    MEMBER("prompt", prompt),
    MEMBER("messages", messages),
    MEMBER("system", system),
    MEMBER("input", input),
    MEMBER("instructions", instructions),
    MEMBER("text", text),
    MEMBER("input_ids", input_ids),
    MEMBER("token_ids", token_ids),
    MEMBER("sampling_params", sampling),
    MEMBER("query", query),
    MEMBER("previous_response_id", previous),
    MEMBER("logprobs", logprobs),
    MEMBER("prompt_logprobs", prompt_logprobs),
    MEMBER("echo", echo),
    ASKED("return_logprob", return_logprob),
    ASKED("logprob_start_len", logprob_start),
    ASKED("top_logprobs_num", top_logprobs),
    MEMBER("return_token_ids", return_ids),
    MEMBER("ignore_eos", ignore_eos),
    MEMBER("stop", stop),
    MEMBER("stop_token_ids", stop_ids),
    MEMBER("mm_processor_kwargs", mm_processor),
    MEMBER("media_io_kwargs", media_io),
    ASKED("documents", documents),
    ASKED("rid", rid),
    ASKED("request_id", request_id),
    ASKED("kv_transfer_params", kv_params),
    ASKED("ec_transfer_params", ec_params),
    ASKED("bootstrap_room", room),
    ASKED("bootstrap_host", host),
    ASKED("bootstrap_port", port),
    ASKED("routed_dp_rank", dp_rank),
    ASKED("data_parallel_rank", dp_rank),
    ASKED("priority", priority),
    ASKED("kv_hints", kv_hints),
};

static int collect(bt_str_t body, struct members *m, sim_ask_t *ask, sim_problem_t *problem_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, body);

    while (rc == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
            if (!bt_json_key_eq(&item, bt_str(slots[i].name)))
                continue;
            *(sim_raw_t *) (void *) ((slots[i].in_ask ? (char *) ask : (char *) m) +
                                     slots[i].offset) = (sim_raw_t){item.value, item.type};
            break;
        }
        rc = 0;
    }
    return rc == 0 ? 0 : sim_problem_set(problem_p, 400, "There was an error parsing the body");
}

/* What pydantic, which reads bodies for both engines, makes an integer of: 7, 7.0, "7", true. */
static bool is_integer(sim_raw_t raw, int64_t *value_p)
{
    double value;

    if (raw.type == BT_JSON_TRUE || raw.type == BT_JSON_FALSE) {
        *value_p = raw.type == BT_JSON_TRUE;
        return true;
    }
    if (raw.type == BT_JSON_STRING && raw.value.n > 2)
        raw.value = (bt_str_t){raw.value.p + 1, raw.value.n - 2};
    else if (raw.type != BT_JSON_NUMBER)
        return false;
    if (bt_json_i64(raw.value, value_p) == 0)
        return true;
    if (raw.type == BT_JSON_STRING || bt_json_double(raw.value, &value) != 0 ||
        value != (double) (int64_t) value)
        return false;
    *value_p = (int64_t) value;
    return true;
}

static int read_int(sim_raw_t raw, const char *name, int64_t *value_p, sim_problem_t *problem_p)
{
    if (raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL || is_integer(raw, value_p))
        return 0;
    sim_problem_set(problem_p, 400, "%s: Input should be a valid integer", name);
    problem_p->param = name;
    return -1;
}

/* And a boolean: true, 1, "1", "true", "yes", "on", "t", "y" in any case, and their opposites. */
static int is_boolean(sim_raw_t raw)
{
    static const char *const words[2][6] = {{"0", "off", "f", "false", "n", "no"},
                                            {"1", "on", "t", "true", "y", "yes"}};
    bt_str_t text = raw.value;

    if (raw.type == BT_JSON_TRUE || raw.type == BT_JSON_FALSE)
        return raw.type == BT_JSON_TRUE;
    if (raw.type == BT_JSON_STRING)
        text = (bt_str_t){raw.value.p + 1, raw.value.n - 2};
    for (int truth = 0; truth < 2; truth++)
        for (unsigned i = 0; i < (raw.type == BT_JSON_STRING ? 6 : 1); i++)
            if (raw.type != BT_JSON_ARRAY && bt_str_ieq(text, bt_str(words[truth][i])))
                return truth;
    return -1;
}

static int read_bool(sim_raw_t raw, const char *name, bool *value_p, sim_problem_t *problem_p)
{
    if (raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL)
        return 0;
    const int truth = is_boolean(raw);
    if (truth < 0)
        return sim_problem_set(problem_p, 400, "%s: Input should be a valid boolean", name);
    *value_p = truth == 1;
    return 0;
}

/* /generate and /inference/v1/generate keep these one level down. SGLang takes a list, too, one a prompt, all with the same n: the
 * first stands for all here. */
static int collect_sampling(enum sim_route route, struct members *m, sim_problem_t *problem_p)
{
    const bool is_list = m->sampling.type == BT_JSON_ARRAY && route == SIM_GENERATE;
    const sim_raw_t sampling = is_list ? sim_raw_at(m->sampling, 0) : m->sampling;
    struct members inner = {0};
    sim_ask_t ignored = {0};

    if (sampling.type != BT_JSON_OBJECT)
        return 0;
    if (collect(sampling.value, &inner, &ignored, problem_p) != 0)
        return -1;
    m->n = inner.n;
    m->max_tokens = inner.max_tokens;
    m->max_new = inner.max_new;
    m->min_tokens = inner.min_tokens;
    m->seed = inner.seed;
    m->temperature = inner.temperature;
    m->prompt_logprobs = inner.prompt_logprobs;
    return 0;
}

static int read_scalars(const struct members *m, sim_ask_t *ask, bt_arena_t *arena,
                        sim_problem_t *problem_p)
{
    int64_t seed = 0;

    ask->n = 1;
    ask->max_tokens = -1;
    ask->logprobs = ask->prompt_logprobs = -2;
    if (read_bool(m->stream, "stream", &ask->stream, problem_p) != 0 ||
        read_int(m->n, "n", &ask->n, problem_p) != 0 ||
        read_int(m->max_tokens, "max_tokens", &ask->max_tokens, problem_p) != 0 ||
        read_int(m->max_new, "max_completion_tokens", &ask->max_tokens, problem_p) != 0 ||
        read_int(m->min_tokens, "min_tokens", &ask->min_tokens, problem_p) != 0 ||
        read_int(m->seed, "seed", &seed, problem_p) != 0 ||
        read_bool(m->return_ids, "return_token_ids", &ask->return_token_ids, problem_p) != 0)
        return -1;
    ask->has_temperature = m->temperature.type == BT_JSON_NUMBER &&
                           bt_json_double(m->temperature.value, &ask->temperature) == 0;
    ask->has_seed = m->seed.type != BT_JSON_NONE && m->seed.type != BT_JSON_NULL &&
                    !(ask->has_temperature && ask->temperature == 0);
    ask->seed = ask->has_seed ? (uint64_t) seed : 0;
    ask->echo = m->echo.type == BT_JSON_TRUE;
    (void) is_integer(m->logprobs, &ask->logprobs);
    if (read_int(m->prompt_logprobs, "prompt_logprobs", &ask->prompt_logprobs, problem_p) != 0)
        return -1;
    ask->ignores_eos = m->ignore_eos.type == BT_JSON_TRUE && m->stop.type == BT_JSON_NONE &&
                       m->stop_ids.type == BT_JSON_NONE;
    if (m->stream_options.type == BT_JSON_OBJECT)
        ask->include_usage =
            sim_raw_get(m->stream_options.value, "include_usage").type == BT_JSON_TRUE;
    if (m->model.type == BT_JSON_STRING)
        ask->model = bt_arena_str(arena, sim_raw_text(m->model, arena));
    if (ask->n < 1 || ask->n > 128)
        return sim_problem_set(problem_p, 400, "n must be at least 1, got %lld.",
                               (long long) ask->n);
    return 0;
}

static int add_prompt(sim_ask_t *ask, sim_raw_t raw, size_t block_bytes, bt_arena_t *arena,
                      sim_problem_t *problem_p)
{
    bt_str_t bytes;
    int rc = raw.type == BT_JSON_ARRAY ? sim_flatten_ids(raw, arena, &bytes, problem_p)
                                       : sim_flatten_string(raw, arena, &bytes, problem_p);

    if (rc != 0)
        return rc;
    sim_prompt_make(&ask->prompts[ask->prompt_count], bytes, block_bytes, arena);
    if (ask->echo && raw.type == BT_JSON_STRING)
        ask->prompts[ask->prompt_count].echo = bt_arena_str(arena, bytes);
    ask->prompt_count++;
    return 0;
}

/* A string, a list of strings, a list of ids, a list of lists of ids. */
static int read_prompts(sim_ask_t *ask, sim_raw_t raw, size_t block_bytes, bt_arena_t *arena,
                        sim_problem_t *problem_p)
{
    unsigned count = sim_raw_count(raw);
    sim_raw_t first = sim_raw_at(raw, 0);
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (raw.type == BT_JSON_ARRAY && count == 0)
        return sim_problem_set(problem_p, 400, "prompt must not be empty");
    ask->is_list = raw.type == BT_JSON_ARRAY && first.type != BT_JSON_NUMBER;
    ask->prompts = bt_arena_alloc(arena, (ask->is_list ? count : 1) * sizeof(*ask->prompts));
    if (!ask->is_list)
        return add_prompt(ask, raw, block_bytes, arena, problem_p);
    bt_json_array(&c, raw.value);
    while (bt_json_next(&c, &item) == 1)
        if (add_prompt(ask, (sim_raw_t){item.value, item.type}, block_bytes, arena, problem_p) != 0)
            return -1;
    return 0;
}

static int read_one(sim_ask_t *ask, sim_raw_t system, sim_raw_t messages, bt_str_t before,
                    size_t block_bytes, bt_arena_t *arena, sim_problem_t *problem_p)
{
    bt_str_t bytes;

    if (sim_flatten_messages(system, messages, before, arena, &bytes, problem_p) != 0)
        return -1;
    ask->prompts = bt_arena_alloc(arena, sizeof(*ask->prompts));
    ask->prompt_count = 1;
    ask->text = bytes;
    sim_prompt_make(ask->prompts, bytes, block_bytes, arena);
    return 0;
}

/* The body goes before the request ends, so the little that is still wanted then is copied. */
static void keep_raws(sim_ask_t *ask, bt_arena_t *arena)
{
    sim_raw_t *const raws[] = {&ask->rid,           &ask->request_id,  &ask->kv_params,
                               &ask->room,          &ask->host,        &ask->port,
                               &ask->dp_rank,       &ask->ec_params,   &ask->return_logprob,
                               &ask->logprob_start, &ask->top_logprobs};

    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++)
        if (raws[i]->type != BT_JSON_NONE)
            raws[i]->value = bt_arena_str(arena, raws[i]->value);
}

static int read_route(enum sim_route route, const struct members *members, bt_str_t before,
                      size_t block_bytes, bt_arena_t *arena, sim_ask_t *ask_p,
                      sim_problem_t *problem_p)
{
    const struct members m = *members;
    sim_raw_t none = {0};

    switch (route) {
    case SIM_CHAT:
        sim_parts_read(m.messages, m.mm_processor, m.media_io, arena, &ask_p->media);
        return read_one(ask_p, none, m.messages, before, block_bytes, arena, problem_p);
    case SIM_MESSAGES:
        if (ask_p->max_tokens < 0)
            return sim_problem_set(problem_p, 400, "max_tokens: Field required");
        return read_one(ask_p, m.system, m.messages, before, block_bytes, arena, problem_p);
    case SIM_RESPONSES:
        sim_parts_read(m.input, m.mm_processor, m.media_io, arena, &ask_p->media);
        return read_one(ask_p, m.instructions, m.input, before, block_bytes, arena, problem_p);
    case SIM_GENERATE:
        return read_prompts(ask_p, m.text.type != BT_JSON_NONE ? m.text : m.input_ids, block_bytes,
                            arena, problem_p);
    case SIM_TOKENS:
        return read_prompts(ask_p, m.token_ids, block_bytes, arena, problem_p);
    case SIM_EMBEDDINGS:
    case SIM_CLASSIFY:
        return read_prompts(ask_p, m.input, block_bytes, arena, problem_p);
    case SIM_RERANK:
        return read_prompts(ask_p, ask_p->documents, block_bytes, arena, problem_p);
    case SIM_COMPLETIONS:
        break;
    }
    return read_prompts(ask_p, m.prompt, block_bytes, arena, problem_p);
}

int sim_ask_read(enum sim_route route, bt_str_t body, bt_str_t before, size_t block_bytes,
                 bt_arena_t *arena, sim_ask_t *ask_p, sim_problem_t *problem_p)
{
    struct members m = {0};

    *ask_p = (sim_ask_t){.route = route};
    if (collect(body, &m, ask_p, problem_p) != 0)
        return -1;
    keep_raws(ask_p, arena);
    if (collect_sampling(route, &m, problem_p) != 0 ||
        read_scalars(&m, ask_p, arena, problem_p) != 0)
        return -1;
    return read_route(route, &m, before, block_bytes, arena, ask_p, problem_p);
}

bt_str_t sim_ask_previous(bt_str_t body, bt_arena_t *arena)
{
    sim_raw_t raw = sim_raw_get(body, "previous_response_id");

    return raw.type == BT_JSON_STRING ? sim_raw_text(raw, arena) : BT_STR_NULL;
}
