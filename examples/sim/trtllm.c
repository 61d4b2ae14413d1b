/* trtllm.c - what a TensorRT-LLM server does with a request, context first.
 *
 *   context_only      one token and disaggregated_params are the answer; the KV stays under disagg_request_id until it is read
 *   generation_only   pulls that KV from where the opaque state says, goes on behind first_gen_tokens
 *   neither           computed here
 *
 * Bodies are read with extra="forbid": a member that the server does not know is a 400. What goes wrong in the engine is a
 * 400 as well; under a stream, whose head is out by then, the connection ends.
 */
#include "trtllm.h"

#include "flatten.h"
#include "held.h"
#include "job.h"
#include "words.h"
#include "worker.h"

#include <inttypes.h>
#include <stdio.h>

#define POLL_MS 1000
#define EXIT_MS 1000
#define RETRY_MS 10
#define LOST_MS 2000
#define BOTH                                                                                       \
    "model frequency_penalty logit_bias logprobs n presence_penalty response_format seed stop "    \
    "stream "                                                                                      \
    "stream_options temperature top_p user prompt_ignore_length best_of use_beam_search top_k "    \
    "top_p_min min_p "                                                                             \
    "repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output "  \
    "ignore_eos "                                                                                  \
    "min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens "         \
    "lora_request echo "                                                                           \
    "add_special_tokens disaggregated_params priority conversation_params thinking_token_budget "  \
    "max_tokens "

static const char completions_members[] =
    " " BOTH "prompt suffix return_context_logits detokenize ";
static const char chat_members[] =
    " " BOTH "messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens "
    "tools tool_choice "
    "parallel_tool_calls reasoning_effort thinking add_generation_prompt documents chat_template "
    "chat_template_kwargs "
    "media_io_kwargs cache_salt agent_hierarchy mm_processor_kwargs ";

enum { TEXT = 1, INTEGER, LIST, OBJECT };
static const struct {
    const char *name;
    int type;
    bool is_new; /* not in releases before 1.3 */
} fields[] = {
    {"request_type", TEXT, false},        {"first_gen_tokens", LIST, false},
    {"first_gen_log_probs", LIST, false}, {"first_gen_logits", LIST, false},
    {"ctx_request_id", INTEGER, false},   {"encoded_opaque_state", TEXT, false},
    {"draft_tokens", LIST, false},        {"disagg_request_id", INTEGER, false},
    {"ctx_dp_rank", INTEGER, false},      {"ctx_info_endpoint", TEXT, false},
    {"schedule_style", INTEGER, false},   {"ctx_usage", OBJECT, true},
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))

/* ---- checks ---- */

/* What pydantic refuses has another form than what the server itself does. */
static int refuse(sim_problem_t *problem_p, bt_str_t where, const char *what)
{
    sim_problem_set(problem_p, 400, "1 validation error: body.%.*s: %s", BT_STR_ARG(where), what);
    problem_p->type = "validation";
    return -1;
}

static bool is_word_of(const char *words, const bt_json_item_t *item)
{
    char spaced[80] = " ";
    const long n = bt_json_unescape_raw(item->key, spaced + 1, sizeof(spaced) - 3);

    if (n <= 0)
        return false;
    spaced[n + 1] = ' ';
    return strstr(words, spaced) != NULL;
}

static int check_members(const sim_job_t *job, sim_problem_t *problem_p)
{
    const char *words = job->ask.route == SIM_CHAT ? chat_members : completions_members;
    const bt_str_t body = job->x->body;
    bt_json_cursor_t c;
    bt_json_item_t item;

    bt_json_object(&c, body);
    while (bt_json_next(&c, &item) == 1)
        if (!is_word_of(words, &item))
            return refuse(problem_p, item.key, "Extra inputs are not permitted");
    if (job->ask.route == SIM_CHAT && sim_raw_get(body, "max_tokens").type != BT_JSON_NONE &&
        sim_raw_get(body, "max_completion_tokens").type != BT_JSON_NONE)
        return refuse(problem_p, BT_STR("max_completion_tokens"), "Extra inputs are not permitted");
    if (sim_raw_get(body, "stream_options").type == BT_JSON_OBJECT && !job->ask.stream)
        return refuse(problem_p, BT_STR("stream_options"),
                      "Stream options can only be defined when stream is true.");
    return 0;
}

static bool has_type(sim_raw_t raw, int type)
{
    int64_t value;

    switch (type) {
    case TEXT:
        return raw.type == BT_JSON_STRING;
    case INTEGER:
        return raw.type == BT_JSON_NUMBER && bt_json_i64(raw.value, &value) == 0;
    case LIST:
        return raw.type == BT_JSON_ARRAY;
    default:
        return raw.type == BT_JSON_OBJECT;
    }
}

static bool is_old(const sim_job_t *job)
{
    return bt_str_starts(bt_str(job->worker->options.version), BT_STR("1.2"));
}

static int check_usage(const bt_json_item_t *item, sim_problem_t *problem_p)
{
    bt_json_cursor_t c;
    bt_json_item_t member;

    bt_json_object(&c, item->value);
    while (bt_json_next(&c, &member) == 1)
        if (!is_word_of(" prompt_tokens total_tokens completion_tokens prompt_tokens_details ",
                        &member))
            return refuse(problem_p, member.key, "Extra inputs are not permitted");
    return 0;
}

static int check_field(const sim_job_t *job, const bt_json_item_t *item, sim_problem_t *problem_p)
{
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (!bt_json_key_eq(item, bt_str(fields[i].name)) || (fields[i].is_new && is_old(job)))
            continue;
        if (item->type == BT_JSON_NULL)
            return 0;
        if (!has_type((sim_raw_t){item->value, item->type}, fields[i].type))
            return refuse(problem_p, item->key, "Input should be of another type");
        return fields[i].type == OBJECT ? check_usage(item, problem_p) : 0;
    }
    return refuse(problem_p, item->key, "Extra inputs are not permitted");
}

static int check_params(const sim_job_t *job, bt_str_t params, sim_problem_t *problem_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    bt_json_object(&c, params);
    while (bt_json_next(&c, &item) == 1)
        if (check_field(job, &item, problem_p) != 0)
            return -1;
    if (sim_raw_get(params, "request_type").type != BT_JSON_STRING)
        return refuse(problem_p, BT_STR("disaggregated_params.request_type"), "Field required");
    return 0;
}

static bt_str_t text_of(const sim_trtllm_t *t, const char *name, bt_arena_t *arena)
{
    const sim_raw_t raw = sim_raw_get(t->params, name);

    return raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL ? BT_STR_NULL
                                                                : sim_raw_text(raw, arena);
}

static int take_params(sim_job_t *job, sim_trtllm_t *t, sim_problem_t *problem_p)
{
    const bt_str_t type = text_of(t, "request_type", &job->arena);
    const sim_raw_t first = sim_raw_get(t->params, "first_gen_tokens");
    const sim_raw_t usage = sim_raw_get(t->params, "ctx_usage");

    t->is_context = bt_str_ieq(type, BT_STR("context_only"));
    t->is_generation = bt_str_ieq(type, BT_STR("generation_only"));
    if (!t->is_context && !t->is_generation && !bt_str_ieq(type, BT_STR("context_and_generation")))
        return sim_problem_set(problem_p, 400,
                               "Unknown request type: %.*s. Must be context_only, "
                               "generation_only or context_and_generation",
                               BT_STR_ARG(type));
    t->has_first =
        sim_raw_count(first) > 0 && bt_json_i64(sim_raw_at(first, 0).value, &t->first) == 0;
    t->id = t->given = text_of(t, "disagg_request_id", &job->arena);
    if (t->given.n == 0)
        t->id = text_of(t, "ctx_request_id", &job->arena);
    t->state = text_of(t, "encoded_opaque_state", &job->arena);
    t->endpoint = text_of(t, "ctx_info_endpoint", &job->arena);
    if (t->state.n % 4 != 0)
        return sim_problem_set(problem_p, 400, "Incorrect padding");
    if (usage.type == BT_JSON_OBJECT && t->is_generation) {
        sim_raw_t details = sim_raw_get(usage.value, "prompt_tokens_details"), cached = {0};
        int64_t count = 0;
        if (details.type == BT_JSON_OBJECT)
            cached = sim_raw_get(details.value, "cached_tokens");
        if (cached.type == BT_JSON_NUMBER && bt_json_i64(cached.value, &count) == 0)
            job->cached_tokens = (unsigned) count;
    }
    return 0;
}

/* ---- prompts as ids: four bytes each, the last ones padded ---- */

static void print_ids(sim_job_t *job, sim_trtllm_t *t)
{
    const bt_str_t text = job->ask.prompts[0].text;
    const size_t bytes = (size_t) sim_tokens_of_bytes(text.n) * SIM_TOKEN_BYTES;
    char *padded = bt_arena_zalloc(&job->arena, bytes + 1);
    bt_text_t out;

    memcpy(padded, text.p, text.n);
    t->ids_kv = sim_kv((bt_str_t){padded, bytes});
    bt_text_init(&out);
    for (size_t i = 0; i < bytes; i += SIM_TOKEN_BYTES) {
        uint32_t id;
        memcpy(&id, padded + i, sizeof(id));
        bt_text_printf(&out, "%s%" PRIu32, i > 0 ? "," : "[", id);
    }
    bt_text_puts(&out, "]");
    t->ids = bt_arena_str(&job->arena, bt_text_str(&out));
    bt_text_fini(&out);
}

static int take_ids(sim_job_t *job, sim_trtllm_t *t, sim_problem_t *problem_p)
{
    const sim_raw_t raw = sim_raw_get(job->x->body, "prompt_token_ids");
    bt_str_t bytes;

    if (raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL)
        return 0;
    if (raw.type != BT_JSON_ARRAY)
        return refuse(problem_p, BT_STR("prompt_token_ids"), "Input should be a valid list");
    if (sim_flatten_ids(raw, &job->arena, &bytes, problem_p) != 0)
        return -1;
    sim_prompt_make(&t->own, bytes, job->worker->blocks.block_bytes, &job->arena);
    job->ask.prompts = &t->own;
    return 0;
}

static int check(sim_job_t *job, sim_problem_t *problem_p)
{
    sim_trtllm_t *t = bt_arena_zalloc(&job->arena, sizeof(*t));
    const sim_raw_t params = sim_raw_get(job->x->body, "disaggregated_params");

    job->trtllm = t;
    if (check_members(job, problem_p) != 0)
        return -1;
    if (params.type != BT_JSON_NONE && params.type != BT_JSON_NULL) {
        if (params.type != BT_JSON_OBJECT)
            return refuse(problem_p, BT_STR("disaggregated_params"), "Input should be an object");
        t->params = bt_arena_str(&job->arena, params.value);
        if (check_params(job, t->params, problem_p) != 0 || take_params(job, t, problem_p) != 0)
            return -1;
    }
    if (take_ids(job, t, problem_p) != 0)
        return -1;
    if (t->is_context) {
        job->finish = job->fault.kind == SIM_EOS && job->max_tokens == 1 ? "stop" : "length";
        job->max_tokens = 1;
        print_ids(job, t);
    }
    return 0;
}

/* ---- KV ---- */

static void compute_here(sim_job_t *job)
{
    const unsigned count = job->sample_count;

    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        const sim_prompt_t *prompt = &job->ask.prompts[i];
        uint32_t *ids = bt_arena_alloc(&job->arena, (prompt->blocks + 1) * sizeof(*ids));
        unsigned cached;
        if (!sim_blocks_take(&job->worker->blocks, prompt, ids, &job->hits[i])) {
            sim_job_later(job, RETRY_MS, compute_here);
            return;
        }
        job->ids[i] = ids;
        sim_blocks_compute(&job->worker->blocks, prompt, ids, job->hits[i]);
        cached = job->hits[i] * job->worker->options.block_size;
        job->cached_tokens += cached;
        job->computed_tokens += prompt->tokens - cached;
    }
    for (unsigned i = 0; i < count; i++)
        sim_job_got_kv(job, i, job->ask.prompts[job->samples[i].prompt].kv);
}

/* As base64, of which nobody but this engine knows the inside. */
static void print_state(const sim_worker_t *worker, char *out, size_t size)
{
    int n = snprintf(out, size, "SimState/%.30s/", worker->options.name);

    while (n % 4 != 0)
        out[n++] = 'A';
    out[n] = '\0';
}

static sim_worker_t *find_peer(const sim_job_t *job)
{
    sim_world_t *world = job->worker->world;
    char state[64];

    for (unsigned i = 0; i < world->worker_count; i++) {
        print_state(world->workers[i], state, sizeof(state));
        if (world->workers[i]->options.engine == SIM_TRTLLM &&
            bt_str_eq(job->trtllm->state, bt_str(state)))
            return world->workers[i];
    }
    return NULL;
}

static void fail_transfer(sim_job_t *job)
{
    job->worker->counters.failed_transfers++;
    sim_job_fail(job, 400, "Error in kv cache transfer for generation requests");
}

/* Another prompt than that of the KV, or another first token than that which was sampled from it: nobody notices, the text
 * is another one. */
static uint64_t kv_as_found(const sim_job_t *job, const sim_sample_t *s, const sim_held_t *held)
{
    const uint64_t kv = sim_blocks_kv(&job->peer->blocks, held->ids, held->blocks);
    const uint64_t asked = job->ask.prompts[s->prompt].kv;

    if ((asked != kv && asked != held->ids_kv) ||
        job->trtllm->first != (int64_t) sim_word_id(kv, s->seed, 0))
        return sim_mix(kv + asked);
    return kv;
}

static void finish_pull(sim_job_t *job)
{
    const unsigned count = job->sample_count;
    sim_held_t *held = job->peer->is_dead ? NULL : sim_held_find(job->peer, job->trtllm->id);

    if (held == NULL) {
        fail_transfer(job);
        return;
    }
    job->kv_source = "external";
    job->external_tokens = job->ask.prompts[0].tokens;
    for (unsigned i = 0; i < count; i++)
        job->samples[i].kv = kv_as_found(job, &job->samples[i], held);
    job->peer->counters.kv_read++;
    sim_held_free(held);
    for (unsigned i = 0; i < count; i++)
        sim_job_got_kv(job, i, job->samples[i].kv);
}

/* False: it is over, or waits for ever (no kv_transfer_timeout_ms). */
static void pull(sim_job_t *job)
{
    const sim_trtllm_t *t = job->trtllm;

    if (!t->has_first || t->id.n == 0) {
        sim_job_fail(job, 400, "__init__(): incompatible constructor arguments");
        return;
    }
    job->peer = find_peer(job);
    if (t->state.n == 0 || job->peer == NULL) {
        sim_worker_die(job->worker); /* the state is read through a null pointer, or is none */
        return;
    }
    if (job->peer->is_dead || job->fault.kind == SIM_KV_LOST)
        sim_job_later(job, sim_scaled_ms(job->worker->world, LOST_MS), fail_transfer);
    else if (sim_held_find(job->peer, t->id) == NULL)
        sim_job_park(job);
    else
        sim_job_later(job,
                      (uint64_t) (sim_jitter(job->worker->world, job->worker,
                                             job->worker->options.transfer_ms) +
                                  0.5),
                      finish_pull);
}

static void admit(sim_job_t *job)
{
    if (job->trtllm->is_generation)
        pull(job);
    else
        compute_here(job);
}

static void first_token(sim_job_t *job)
{
    (void) job;
}

static void finished(sim_job_t *job)
{
    sim_trtllm_t *t = job->trtllm;
    sim_held_t *held;

    if (!t->is_context || job->finish[0] != 'l' || job->fault.kind == SIM_NO_PARAMS)
        return;
    if (t->id.n == 0)
        t->id = bt_arena_printf(&job->arena, "%" PRIu64, job->number);
    held = sim_held_keep(job, 0);
    if (held == NULL)
        return;
    snprintf(held->id, sizeof(held->id), "%.*s", BT_STR_ARG(t->id));
    held->ids_kv = t->ids_kv;
}

static void left(sim_job_t *job)
{
    (void) job;
}

/* The server looks once a second whether its client is there. */
static void client_gone(sim_job_t *job)
{
    const uint64_t elapsed_ms = (bt_clock_us() - job->start_us) / 1000;
    const uint64_t poll_ms = sim_scaled_ms(job->worker->world, POLL_MS);

    if (job->is_polled)
        sim_job_cut(job, false);
    else
        bt_timer_start(&job->poll, poll_ms - elapsed_ms % poll_ms);
}

static void died(sim_worker_t *worker)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->jobs, it, tmp)
        sim_job_park(bt_container_of(it, sim_job_t, link));
}

/* ---- answers ---- */

static void print_or_null(bt_text_t *t, const char *name, bt_str_t value)
{
    bt_text_printf(t, ",\"%s\":%.*s", name, value.n > 0 ? (int) value.n : 4,
                   value.n > 0 ? value.p : "null");
}

void sim_trtllm_print_choice(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s)
{
    const sim_trtllm_t *own = job->trtllm;
    char state[64];

    if (!own->is_context || job->fault.kind == SIM_NO_PARAMS) {
        print_or_null(t, "disaggregated_params", own->is_generation ? own->params : BT_STR_NULL);
        return;
    }
    print_state(job->worker, state, sizeof(state));
    bt_text_printf(
        t,
        ",\"disaggregated_params\":{\"request_type\":\"context_only\",\"first_gen_tokens\":[%u],"
        "\"first_gen_log_probs\":null,\"first_gen_logits\":null",
        sim_word_id(s->kv, s->seed, 0));
    print_or_null(t, "ctx_request_id", own->id);
    bt_text_printf(t, ",\"encoded_opaque_state\":\"%s\",\"draft_tokens\":null", state);
    print_or_null(t, "disagg_request_id", own->given);
    bt_text_printf(t, ",\"ctx_dp_rank\":0,\"ctx_info_endpoint\":null,\"schedule_style\":null%s}",
                   is_old(job) ? "" : ",\"ctx_usage\":null");
}

void sim_trtllm_print_tail(bt_text_t *t, const sim_job_t *job)
{
    print_or_null(t, "prompt_token_ids", job->trtllm->ids);
}

const sim_engine_ops_t sim_trtllm_ops = {check,       admit, first_token, finished, left,
                                         client_gone, true,  NULL,        died,     EXIT_MS};
