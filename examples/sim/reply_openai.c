/* reply_openai.c - /v1/completions and /v1/chat/completions. */
#include "chain.h"
#include "logprobs.h"
#include "reply.h"
#include "trtllm.h"
#include "words.h"

static bool is_sglang(const sim_job_t *job)
{
    return job->worker->options.engine == SIM_SGLANG;
}

static void put_stem(bt_text_t *t, const sim_job_t *job, const char *object)
{
    bt_text_puts(t, "{\"id\":");
    bt_text_json_str(t, bt_str(job->id));
    bt_text_printf(t, ",\"object\":\"%s\",\"created\":%llu,\"model\":\"%s\"", object,
                   (unsigned long long) job->created_s, job->worker->options.model);
}

/* data: {... "choices":[{"index":   - everything in front of the index is the same in all events of a job. */
static void make_head(sim_job_t *job, const char *object)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_puts(&t, "data: ");
    put_stem(&t, job, object);
    bt_text_puts(&t, ",\"choices\":[{\"index\":");
    job->chunk_head = bt_arena_str(&job->arena, bt_text_str(&t));
    bt_text_fini(&t);
}

static void put_usage_event(sim_job_t *job, bt_text_t *t, const char *object)
{
    if (job->ask.include_usage) {
        bt_text_puts(t, "data: ");
        put_stem(t, job, object);
        bt_text_puts(t, ",\"choices\":[],\"usage\":");
        sim_reply_usage(t, job);
        bt_text_puts(t, "}\n\n");
    }
    bt_text_puts(t, "data: [DONE]\n\n");
}

static void put_choice_end(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s)
{
    if (job->worker->options.engine == SIM_TRTLLM)
        sim_trtllm_print_choice(t, job, s);
    bt_text_puts(t, "}");
}

static void put_kv(bt_text_t *t, const sim_job_t *job)
{
    if (is_sglang(job))
        return;
    if (job->worker->options.engine == SIM_TRTLLM) {
        sim_trtllm_print_tail(t, job);
        return;
    }
    bt_text_puts(t, ",\"kv_transfer_params\":");
    if (job->kv_reply.n > 0)
        bt_text_put(t, job->kv_reply);
    else
        bt_text_puts(t, "null");
    bt_text_puts(t, ",\"ec_transfer_params\":");
    bt_text_put(t, job->ec_reply.n > 0 ? job->ec_reply : BT_STR("null"));
}

/* ---- completions ---- */

static void completions_begin(sim_job_t *job, bt_text_t *t)
{
    (void) t;
    make_head(job, "text_completion");
}

static void put_token_by_ids(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_text_t end;

    bt_text_init(&end);
    bt_text_printf(&end, "\",\"logprobs\":null,\"finish_reason\":%s%s%s,\"stop_reason\":null",
                   last ? "\"" : "", last ? job->finish : "null", last ? "\"" : "");
    sim_chain_put_ids(&end, job, s, i, i + 1, i == 0);
    bt_text_puts(&end, "}],\"usage\":null}\n\n");
    sim_reply_put_token(job, s->index, BT_STR(",\"text\":\""), sim_reply_word(s, i),
                        bt_text_str(&end));
    bt_text_fini(&end);
}

/* SGLang's text begins with the prompt where echo is asked for: behind the opening quote. */
static void put_echo(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s)
{
    bt_text_t quoted;

    if (!is_sglang(job) || job->ask.prompts[s->prompt].echo.n == 0)
        return;
    bt_text_init(&quoted);
    bt_text_json_str(&quoted, job->ask.prompts[s->prompt].echo);
    bt_text_put(t, (bt_str_t){quoted.data + 1, quoted.len - 2});
    bt_text_fini(&quoted);
}

static void put_logprobs(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned from,
                         unsigned to)
{
    if (is_sglang(job))
        sim_logprobs_choice(t, job, s, from, to);
    else
        bt_text_puts(t, "null");
}

static void put_token_with_logprobs(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_text_t word, end;

    bt_text_init(&word);
    bt_text_init(&end);
    if (i == 0)
        put_echo(&word, job, s);
    bt_text_put(&word, sim_reply_word(s, i));
    bt_text_puts(&end, "\",\"logprobs\":");
    put_logprobs(&end, job, s, i, i + 1);
    bt_text_printf(&end, ",\"finish_reason\":%s%s%s,\"stop_reason\":null}],\"usage\":null}\n\n",
                   last ? "\"" : "", last ? job->finish : "null", last ? "\"" : "");
    sim_reply_put_token(job, s->index, BT_STR(",\"text\":\""), bt_text_str(&word),
                        bt_text_str(&end));
    bt_text_fini(&word);
    bt_text_fini(&end);
}

static void completions_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_str_t end = BT_STR(
        "\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}],\"usage\":null}\n\n");

    if (job->worker->options.by_ids) {
        put_token_by_ids(job, s, i, last);
        return;
    }
    if (is_sglang(job) && (job->ask.echo || job->ask.logprobs >= 0)) {
        put_token_with_logprobs(job, s, i, last);
        return;
    }
    if (last)
        end = job->finish[0] == 'l' ? BT_STR("\",\"logprobs\":null,\"finish_reason\":\"length\","
                                             "\"stop_reason\":null}],\"usage\":null}\n\n")
                                    : BT_STR("\",\"logprobs\":null,\"finish_reason\":\"stop\","
                                             "\"stop_reason\":null}],\"usage\":null}\n\n");
    sim_reply_put_token(job, s->index, BT_STR(",\"text\":\""), sim_reply_word(s, i), end);
}

/* What an abort cut off still gets its last event. */
static void put_abort(sim_job_t *job, bt_text_t *t, const char *object, const char *part)
{
    if (job->made >= job->max_tokens)
        return;
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_puts(t, "data: ");
        put_stem(t, job, object);
        bt_text_printf(t,
                       ",\"choices\":[{\"index\":%u,%s,\"logprobs\":null,\"finish_reason\":\"%s\"",
                       i, part, job->finish);
        if (job->is_recomputed)
            bt_text_puts(t, ",\"stop_reason\":\"recomputed\"");
        sim_chain_put_ids(t, job, &job->samples[i],
                          job->made - (job->made > 0 && job->fault.kind == SIM_RECOMPUTE_AGAIN),
                          job->made, false);
        bt_text_puts(t, "}],\"usage\":null}\n\n");
    }
}

static void completions_tail(sim_job_t *job, bt_text_t *t)
{
    put_abort(job, t, "text_completion", "\"text\":\"\"");
    put_usage_event(job, t, "text_completion");
}

static void completions_whole(sim_job_t *job, bt_text_t *t)
{
    put_stem(t, job, "text_completion");
    bt_text_puts(t, ",\"choices\":[");
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_printf(t, "%s{\"index\":%u,\"text\":\"", i > 0 ? "," : "", i);
        put_echo(t, job, &job->samples[i]);
        sim_reply_text(t, job, &job->samples[i]);
        bt_text_puts(t, "\",\"logprobs\":");
        put_logprobs(t, job, &job->samples[i], 0, job->made);
        bt_text_printf(t, ",\"finish_reason\":\"%s\",\"stop_reason\":%s", job->finish,
                       job->is_recomputed ? "\"recomputed\"" : "null");
        sim_chain_put_ids(t, job, &job->samples[i], 0, job->made, true);
        if (job->worker->options.engine == SIM_VLLM) {
            bt_text_puts(t, ",\"prompt_logprobs\":");
            sim_logprobs_prompt(t, job, job->samples[i].prompt);
        }
        put_choice_end(t, job, &job->samples[i]);
    }
    bt_text_puts(t, "],\"usage\":");
    sim_reply_usage(t, job);
    put_kv(t, job);
    bt_text_puts(t, "}");
}

const sim_form_t sim_form_completions = {completions_begin, completions_token, completions_tail,
                                         completions_whole};

/* ---- chat ---- */

static void chat_begin(sim_job_t *job, bt_text_t *t)
{
    make_head(job, "chat.completion.chunk");
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_put(t, job->chunk_head);
        bt_text_printf(t,
                       "%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                       "\"finish_reason\":null}],\"usage\":null}\n\n",
                       i);
    }
}

static void chat_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_str_t end = BT_STR("\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");

    if (last && !is_sglang(job))
        end = job->finish[0] == 'l' ? BT_STR("\"},\"logprobs\":null,\"finish_reason\":\"length\","
                                             "\"stop_reason\":null}],\"usage\":null}\n\n")
                                    : BT_STR("\"},\"logprobs\":null,\"finish_reason\":\"stop\","
                                             "\"stop_reason\":null}],\"usage\":null}\n\n");
    sim_reply_put_token(job, s->index, BT_STR(",\"delta\":{\"content\":\""), sim_reply_word(s, i),
                        end);
}

static void chat_tail(sim_job_t *job, bt_text_t *t)
{
    /* SGLang ends each choice with an event of its own. */
    if (is_sglang(job) && job->made >= job->max_tokens)
        for (unsigned i = 0; i < job->sample_count; i++) {
            bt_text_put(t, job->chunk_head);
            bt_text_printf(t,
                           "%u,\"delta\":{\"content\":null},\"logprobs\":null,\"finish_reason\":\"%"
                           "s\"}],\"usage\":null}\n\n",
                           i, job->finish);
        }
    put_abort(job, t, "chat.completion.chunk", "\"delta\":{\"content\":null}");
    put_usage_event(job, t, "chat.completion.chunk");
}

static void chat_whole(sim_job_t *job, bt_text_t *t)
{
    put_stem(t, job, "chat.completion");
    bt_text_puts(t, ",\"choices\":[");
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_printf(t, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":\"",
                       i > 0 ? "," : "", i);
        sim_reply_text(t, job, &job->samples[i]);
        bt_text_printf(t,
                       "\",\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_"
                       "reason\":null",
                       job->finish);
        put_choice_end(t, job, &job->samples[i]);
    }
    bt_text_puts(t, "],\"usage\":");
    sim_reply_usage(t, job);
    if (job->worker->options.engine == SIM_VLLM) {
        bt_text_puts(t, ",\"prompt_logprobs\":");
        sim_logprobs_prompt(t, job, 0);
    }
    put_kv(t, job);
    bt_text_puts(t, "}");
}

const sim_form_t sim_form_chat = {chat_begin, chat_token, chat_tail, chat_whole};

/* ---- /inference/v1/generate ---- */

static void put_ids(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned from,
                    unsigned to)
{
    (void) job;
    for (unsigned i = from; i < to; i++)
        bt_text_printf(t, "%s%u", i > from ? "," : "", sim_word_id(s->kv, s->seed, i));
}

static void tokens_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t, "data: {\"request_id\":\"%s\",\"choices\":[{\"index\":%u,\"token_ids\":[",
                   job->id, s->index);
    put_ids(&t, job, s, i, i + 1);
    bt_text_printf(&t, "],\"finish_reason\":%s}]}\n\n", last ? "\"length\"" : "null");
    sim_reply_put(job, bt_text_str(&t));
    bt_text_fini(&t);
}

static void tokens_tail(sim_job_t *job, bt_text_t *t)
{
    (void) job;
    bt_text_puts(t, "data: [DONE]\n\n");
}

static void tokens_whole(sim_job_t *job, bt_text_t *t)
{
    bt_text_printf(t, "{\"request_id\":\"%s\",\"choices\":[", job->id);
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_printf(t, "%s{\"index\":%u,\"token_ids\":[", i > 0 ? "," : "", i);
        put_ids(t, job, &job->samples[i], 0, job->made);
        bt_text_printf(t, "],\"finish_reason\":\"%s\",\"logprobs\":null}", job->finish);
    }
    bt_text_puts(t, "],\"usage\":");
    sim_reply_usage(t, job);
    bt_text_puts(t, ",\"prompt_logprobs\":");
    sim_logprobs_prompt(t, job, 0);
    put_kv(t, job);
    bt_text_puts(t, "}");
}

const sim_form_t sim_form_tokens = {NULL, tokens_token, tokens_tail, tokens_whole};
