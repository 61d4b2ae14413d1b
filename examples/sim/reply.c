/* reply.c - see reply.h.
 *
 * Stream events of all jobs are laid one behind the other into one shared buffer, and each exchange gets its slice of it:
 * thousands of slow streams then cost no buffer each.
 */
#include "reply.h"

#include "base/rand.h"
#include "chain.h"
#include "words.h"

#include <stdio.h>

static bt_buf_t *shared;  /* being filled */
static bt_text_t scratch; /* whole answers and rare events */

static const sim_form_t *form_of(const sim_job_t *job)
{
    switch (job->ask.route) {
    case SIM_CHAT:
        return &sim_form_chat;
    case SIM_RESPONSES:
        return &sim_form_responses;
    case SIM_MESSAGES:
        return &sim_form_messages;
    case SIM_GENERATE:
        return &sim_form_generate;
    case SIM_TOKENS:
        return &sim_form_tokens;
    default:
        return &sim_form_completions;
    }
}

static bt_text_t *take_scratch(void)
{
    scratch.len = 0;
    scratch.failed = false;
    return &scratch;
}

static char *room(size_t n)
{
    if (shared == NULL || shared->cap - shared->len < n) {
        bt_buf_unref(shared);
        shared = bt_buf_new(n);
    }
    return shared != NULL ? shared->data + shared->len : NULL;
}

void sim_reply_put(sim_job_t *job, bt_str_t event)
{
    event.n = job->is_cut ? event.n / 2 : event.n;
    char *at = room(event.n);

    if (at == NULL || event.n == 0)
        return;
    memcpy(at, event.p, event.n);
    shared->len += event.n;
    job->chunks++;
    bt_exchange_write(job->x, shared, at, event.n);
}

static char *add(char *at, bt_str_t s)
{
    memcpy(at, s.p, s.n);
    return at + s.n;
}

void sim_reply_put_token(sim_job_t *job, unsigned index, bt_str_t middle, bt_str_t word,
                         bt_str_t end)
{
    char digits[12], *start, *at;
    int n = snprintf(digits, sizeof(digits), "%u", index);
    size_t size = job->chunk_head.n + (size_t) n + middle.n + word.n + end.n;

    start = at = room(size);
    if (at == NULL)
        return;
    at = add(at, job->chunk_head);
    at = add(at, (bt_str_t){digits, (size_t) n});
    at = add(at, middle);
    at = add(at, word);
    add(at, end);
    shared->len += size;
    job->chunks++;
    bt_exchange_write(job->x, shared, start, job->is_cut ? size / 2 : size);
}

bt_str_t sim_reply_word(sim_sample_t *s, unsigned i)
{
    static char word[SIM_WORD_CHARS + 1] = " ";

    if (s->job->worker->options.by_ids)
        return sim_chain_word(s, i);
    sim_word(s->kv, s->seed, i, word + 1);
    return i == 0 ? (bt_str_t){word + 1, SIM_WORD_CHARS} : (bt_str_t){word, sizeof(word)};
}

void sim_reply_text(bt_text_t *t, const sim_job_t *job, sim_sample_t *s)
{
    for (unsigned i = 0; job->worker->options.by_ids && i < job->made; i++)
        bt_text_put(t, sim_chain_word(s, i));
    if (!job->worker->options.by_ids)
        sim_words(t, s->kv, s->seed, job->made);
}

unsigned sim_reply_prompt_tokens(const sim_job_t *job)
{
    unsigned tokens = 0;

    for (unsigned i = 0; i < job->ask.prompt_count; i++)
        tokens += job->ask.prompts[i].tokens;
    return tokens;
}

/* vLLM's decode counts what was moved as cached, unless it was told what prefill's own cache had. */
static unsigned cached_tokens(const sim_job_t *job)
{
    if (job->worker->options.engine != SIM_VLLM || job->external_tokens == 0)
        return job->cached_tokens;
    return job->params.has_prefill_cached ? (unsigned) job->params.prefill_cached
                                          : job->cached_tokens + job->external_tokens;
}

void sim_reply_usage(bt_text_t *t, const sim_job_t *job)
{
    unsigned prompt = sim_reply_prompt_tokens(job), made = job->made * job->sample_count;

    bt_text_printf(t,
                   "{\"prompt_tokens\":%u,\"total_tokens\":%u,\"completion_tokens\":%u,\"prompt_"
                   "tokens_details\":",
                   prompt, prompt + made, made);
    const bool is_trtllm = job->worker->options.engine == SIM_TRTLLM;
    if (cached_tokens(job) > 0 || is_trtllm)
        bt_text_printf(t, "{\"cached_tokens\":%u}", cached_tokens(job));
    else
        bt_text_puts(t, "null");
    bt_text_puts(t, is_trtllm ? "}" : ",\"completion_tokens_details\":null}");
}

static void set_id(sim_job_t *job, const char *prefix, bt_str_t id)
{
    snprintf(job->id, sizeof(job->id), "%s%.*s", prefix, BT_STR_ARG(id));
}

static const char *id_prefix(const sim_job_t *job)
{
    switch (job->ask.route) {
    case SIM_COMPLETIONS:
        return "cmpl-";
    case SIM_RESPONSES:
        return "resp_";
    case SIM_TOKENS:
        return "generate-tokens-";
    default:
        return "chatcmpl-";
    }
}

static void take_rids(sim_job_t *job)
{
    unsigned count = job->ask.prompt_count;

    if (count == 0 || sim_raw_count(job->ask.rid) != count)
        return;
    job->rids = bt_arena_alloc(&job->arena, count * sizeof(*job->rids));
    for (unsigned i = 0; i < count; i++)
        job->rids[i] = sim_raw_text(sim_raw_at(job->ask.rid, i), &job->arena);
}

void sim_reply_name(sim_job_t *job)
{
    char random[BT_UUID_CHARS + 1];
    bt_str_t header = bt_head_get(&job->x->head, BT_STR("x-request-id"));

    if (job->worker->options.engine == SIM_SGLANG) {
        snprintf(random, sizeof(random), "%016llx%016llx", (unsigned long long) bt_rand_u64(),
                 (unsigned long long) bt_rand_u64());
        take_rids(job);
        set_id(job, job->ask.route == SIM_RESPONSES ? "resp_" : "",
               job->rids != NULL                     ? job->rids[0]
               : job->ask.rid.type == BT_JSON_STRING ? sim_raw_text(job->ask.rid, &job->arena)
                                                     : bt_str(random));
        return;
    }
    bt_rand_uuid(random);
    if (job->ask.route == SIM_RESPONSES && job->ask.request_id.type == BT_JSON_STRING) {
        set_id(job, "", sim_raw_text(job->ask.request_id, &job->arena));
        return;
    }
    if (job->ask.route == SIM_RESPONSES) /* vLLM reads no header here */
        header = BT_STR("");
    else if (header.n == 0 && job->ask.request_id.type == BT_JSON_STRING)
        header = sim_raw_text(job->ask.request_id, &job->arena);
    set_id(job, id_prefix(job), header.n > 0 ? header : bt_str(random));
}

/* ---- streams ---- */

void sim_reply_begin(sim_job_t *job)
{
    const bt_header_t headers[] = {
        {BT_STR("content-type"), BT_STR("text/event-stream; charset=utf-8")},
        {BT_STR("x-sim-worker"), bt_str(job->worker->options.name)},
    };

    job->is_streaming = true;
    bt_exchange_start(job->x, 200, headers, 2, BT_LENGTH_CHUNKED);
}

static void put_begin(sim_job_t *job)
{
    bt_text_t *t = take_scratch();

    if (form_of(job)->begin == NULL)
        return;
    form_of(job)->begin(job, t);
    sim_reply_put(job, bt_text_str(t));
    job->chunks = 0; /* faults count tokens */
}

void sim_reply_token(sim_job_t *job, sim_sample_t *sample, unsigned i)
{
    if (!job->ask.stream)
        return;
    if (!job->is_streaming)
        sim_reply_begin(job);
    if (i == 0 && sample->index == 0)
        put_begin(job);
    form_of(job)->token(job, sample, i, i + 1 == job->max_tokens);
}

static void respond(sim_job_t *job, unsigned status, bt_str_t body)
{
    uint64_t kv = job->sample_count > 0 ? job->samples[0].kv : 0;
    const bt_header_t headers[] = {
        {BT_STR("x-sim-worker"), bt_str(job->worker->options.name)},
        {BT_STR("x-sim-kv-source"), bt_str(job->kv_source)},
        {BT_STR("x-sim-kv"), bt_arena_printf(&job->arena, "%016llx", (unsigned long long) kv)},
    };

    job->x->user = NULL;
    bt_exchange_respond(job->x, status, "application/json", body, headers, 3);
}

void sim_reply_end(sim_job_t *job)
{
    bt_text_t *t = take_scratch();

    if (!job->ask.stream) {
        form_of(job)->whole(job, t);
        respond(job, 200, bt_text_str(t));
        return;
    }
    if (!job->is_streaming)
        sim_reply_begin(job);
    form_of(job)->tail(job, t);
    sim_reply_put(job, bt_text_str(t));
    job->x->user = NULL;
    bt_exchange_end(job->x);
}

void sim_reply_part(sim_job_t *job)
{
    bt_text_t *t = take_scratch();
    const bt_header_t type = {BT_STR("content-type"), BT_STR("application/json")};

    form_of(job)->whole(job, t);
    bt_exchange_start(job->x, 200, &type, 1, t->len);
    sim_reply_put(job, (bt_str_t){t->data, t->len / 2});
    bt_exchange_flush(job->x);
}

/* ---- errors ---- */

static void put_vllm_error(bt_text_t *t, const sim_problem_t *p, bool spaced)
{
    const char *colon = spaced ? ": " : ":", *comma = spaced ? ", " : ",";

    bt_text_printf(t, "{\"error\"%s{\"message\"%s", colon, colon);
    bt_text_json_str(t, bt_str(p->message));
    bt_text_printf(t, "%s\"type\"%s\"%s\"%s\"param\"%s", comma, colon, p->type, comma, colon);
    if (p->param != NULL)
        bt_text_json_str(t, bt_str(p->param));
    else
        bt_text_puts(t, "null");
    bt_text_printf(t, "%s\"code\"%s%u}}", comma, colon, p->status);
}

static const char *sglang_type(const sim_problem_t *p)
{
    return p->status == 500 ? "500" : p->type;
}

static void put_sglang_error(bt_text_t *t, const sim_job_t *job, const sim_problem_t *p)
{
    if (job->ask.route == SIM_GENERATE && p->status < 500) {
        bt_text_puts(t, "{\"error\":{\"message\":");
        bt_text_json_str(t, bt_str(p->message));
        bt_text_puts(t, "}}");
        return;
    }
    if (job->ask.route == SIM_RESPONSES) {
        char message[sizeof(p->message) + 8];
        snprintf(message, sizeof(message), p->status >= 500 ? "%u: %s" : "%.0u%s", p->status,
                 p->message);
        bt_text_puts(t, "{\"error\":{\"message\":");
        bt_text_json_str(t, bt_str(message));
        bt_text_puts(t, ",\"type\":\"invalid_request_error\",\"param\":null,\"code\":400}}");
        return;
    }
    bt_text_puts(t, "{\"object\":\"error\",\"message\":");
    bt_text_json_str(t, bt_str(p->message));
    bt_text_printf(t, ",\"type\":\"%s\",\"param\":null,\"code\":%u}", sglang_type(p), p->status);
}

static void put_trtllm_error(bt_text_t *t, const sim_problem_t *p)
{
    bt_text_puts(t, strcmp(p->type, "validation") == 0 ? "{\"error\":"
                                                       : "{\"object\":\"error\",\"message\":");
    bt_text_json_str(t, bt_str(p->message));
    if (strcmp(p->type, "validation") != 0)
        bt_text_printf(t, ",\"type\":\"BadRequestError\",\"param\":null,\"code\":%u", p->status);
    bt_text_puts(t, "}");
}

static void put_error(bt_text_t *t, const sim_job_t *job, const sim_problem_t *p)
{
    switch (job->worker->options.engine) {
    case SIM_SGLANG:
        put_sglang_error(t, job, p);
        return;
    case SIM_TRTLLM:
        put_trtllm_error(t, p);
        return;
    case SIM_VLLM:
        put_vllm_error(t, p, false);
        return;
    }
}

static void put_sglang_event(bt_text_t *t, const sim_job_t *job, const sim_problem_t *p)
{
    if (job->ask.route == SIM_GENERATE) {
        bt_text_printf(t,
                       "data: "
                       "{\"text\":\"\",\"output_ids\":[],\"meta_info\":{\"id\":\"%s\",\"finish_"
                       "reason\":{\"type\":"
                       "\"abort\",\"message\":",
                       job->id);
        bt_text_json_str(t, bt_str(p->message));
        bt_text_printf(
            t,
            ",\"status_code\":%u,\"err_type\":null},\"prompt_tokens\":%u,\"completion_tokens\":0,"
            "\"cached_tokens\":0}}\n\ndata: [DONE]\n\n",
            p->status, sim_reply_prompt_tokens(job));
        return;
    }
    bt_text_puts(t, "data: {\"error\": {\"object\": \"error\", \"message\": ");
    bt_text_json_str(t, bt_str(p->message));
    bt_text_printf(t, ", \"type\": \"%s\", \"param\": null, \"code\": %u}}\n\ndata: [DONE]\n\n",
                   p->status >= 500 ? "INTERNAL_SERVER_ERROR" : "BAD_REQUEST", p->status);
}

/* In band: the head has gone out, or this engine's streams begin with 200 whatever comes. */
static void put_event_error(sim_job_t *job, const sim_problem_t *problem)
{
    bt_text_t *t = take_scratch();

    if (!job->is_streaming)
        sim_reply_begin(job);
    if (job->worker->options.engine == SIM_SGLANG) {
        put_sglang_event(t, job, problem);
    } else if (job->ask.route == SIM_MESSAGES) {
        bt_text_puts(t, "event: error\ndata: "
                        "{\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":");
        bt_text_json_str(t, bt_str(problem->message));
        bt_text_puts(t, "}}\n\n");
    } else {
        bt_text_puts(t, "data: ");
        put_vllm_error(t, problem, true);
        bt_text_puts(t, "\n\ndata: [DONE]\n\n");
    }
    sim_reply_put(job, bt_text_str(t));
    job->x->user = NULL;
    bt_exchange_end(job->x);
}

static bool is_in_band(const sim_job_t *job, const sim_problem_t *problem)
{
    if (job->is_streaming)
        return true;
    if (job->worker->options.engine != SIM_SGLANG || !job->ask.stream)
        return false;
    return job->ask.route == SIM_CHAT ||
           (job->ask.route == SIM_COMPLETIONS && problem->status >= 500);
}

void sim_reply_error(sim_job_t *job, const sim_problem_t *problem)
{
    bool is_sglang = job->worker->options.engine == SIM_SGLANG;
    unsigned status = problem->status;
    bt_text_t *t = take_scratch();

    if (job->is_streaming && job->worker->options.engine == SIM_TRTLLM) {
        job->x->user = NULL;
        bt_exchange_abort(job->x); /* it says nothing more */
        return;
    }
    if (is_in_band(job, problem)) {
        put_event_error(job, problem);
        return;
    }
    if (is_sglang && job->ask.route == SIM_RESPONSES && status >= 500)
        status = 400;
    put_error(t, job, problem);
    respond(job, status, bt_text_str(t));
}

/* ---- faults ---- */

void sim_reply_fault_status(sim_job_t *job)
{
    unsigned status = job->fault.status;
    const bt_header_t headers[] = {{BT_STR("x-sim-fault"), BT_STR("status")},
                                   {BT_STR("Retry-After"), BT_STR("7")}};
    sim_problem_t problem;
    bt_text_t *t = take_scratch();

    sim_problem_set(&problem, status, "simulated error %u", status);
    put_error(t, job, &problem);
    job->x->user = NULL;
    bt_exchange_respond(job->x, status, "application/json", bt_text_str(t), headers,
                        status == 429 || status == 503 ? 2 : 1);
}

void sim_reply_fault_body(sim_job_t *job)
{
    bool is_sglang = job->worker->options.engine == SIM_SGLANG;
    bt_str_t body =
        is_sglang ? BT_STR("{\"object\":\"error\",\"message\":\"simulated error in a "
                           "200\",\"type\":\"500\",\"param\":null,\"code\":500}")
                  : BT_STR("{\"error\":{\"message\":\"simulated error in a "
                           "200\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");

    respond(job, 200, body);
}

void sim_reply_fault_event(sim_job_t *job)
{
    sim_problem_t problem;

    sim_problem_set(&problem, 500, "simulated error event");
    put_event_error(job, &problem);
}
