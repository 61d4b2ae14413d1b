/* reply_other.c - /generate, /v1/messages, /v1/responses, and the routes that score. */
#include "logprobs.h"
#include "reply.h"
#include "words.h"

#include <stdlib.h>

/* ---- SGLang /generate ---- */

static bool is_batch(const sim_job_t *job)
{
    return job->ask.is_list || job->sample_count > 1;
}

static void put_generated(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned count,
                          bool done)
{
    const char *end = job->finish;

    bt_text_puts(t, "{\"text\":\"");
    sim_words(t, s->kv, s->seed, count);
    bt_text_puts(t, "\",\"output_ids\":[");
    for (unsigned i = 0; i < count; i++)
        bt_text_printf(t, "%s%u", i > 0 ? "," : "", sim_word_id(s->kv, s->seed, i));
    bt_text_puts(t, "],\"meta_info\":{\"id\":");
    bt_text_json_str(t, job->rids != NULL ? job->rids[s->prompt] : bt_str(job->id));
    bt_text_puts(t, ",\"finish_reason\":");
    if (!done)
        bt_text_puts(t, "null");
    else if (end[0] == 'a')
        bt_text_puts(
            t,
            "{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null}");
    else if (end[0] == 'l')
        bt_text_printf(t, "{\"type\":\"length\",\"length\":%u}",
                       job->worker->options.role == SIM_PREFILL ? 0 : job->max_tokens);
    else
        bt_text_puts(t, "{\"type\":\"stop\",\"matched\":2}");
    bt_text_printf(t,
                   ",\"prompt_tokens\":%u,\"weight_version\":\"default\",\"completion_tokens\":%u,"
                   "\"cached_tokens\":%u",
                   job->ask.prompts[s->prompt].tokens, count, job->cached_tokens);
    sim_logprobs_meta(t, job, s, count);
    bt_text_puts(t, "}");
    if (is_batch(job))
        bt_text_printf(t, ",\"index\":%u", s->index);
    bt_text_puts(t, "}");
}

/* Each event repeats the whole text so far, as this route does by default. */
static void generate_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_puts(&t, "data: ");
    put_generated(&t, job, s, i + 1, last);
    bt_text_puts(&t, "\n\n");
    sim_reply_put(job, bt_text_str(&t));
    bt_text_fini(&t);
}

static void generate_tail(sim_job_t *job, bt_text_t *t)
{
    for (unsigned i = 0; job->made < job->max_tokens && i < job->sample_count; i++) {
        bt_text_puts(t, "data: ");
        put_generated(t, job, &job->samples[i], job->made, true);
        bt_text_puts(t, "\n\n");
    }
    bt_text_puts(t, "data: [DONE]\n\n");
}

static void generate_whole(sim_job_t *job, bt_text_t *t)
{
    bt_text_puts(t, is_batch(job) ? "[" : "");
    for (unsigned i = 0; i < job->sample_count; i++) {
        bt_text_puts(t, i > 0 ? "," : "");
        put_generated(t, job, &job->samples[i], job->made, true);
    }
    bt_text_puts(t, is_batch(job) ? "]" : "");
}

const sim_form_t sim_form_generate = {NULL, generate_token, generate_tail, generate_whole};

/* ---- Anthropic /v1/messages ---- */

static const char *stop_reason(const sim_job_t *job)
{
    return job->finish[0] == 'l' ? "max_tokens" : "end_turn";
}

static void messages_begin(sim_job_t *job, bt_text_t *t)
{
    job->chunk_head =
        BT_STR("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    bt_text_printf(t,
                   "event: message_start\ndata: "
                   "{\"type\":\"message_start\",\"message\":{\"id\":\"%s\",\"type\":\"message\","
                   "\"role\":\"assistant\",\"content\":[],\"model\":\"%s\",\"stop_reason\":null,"
                   "\"stop_sequence\":null,"
                   "\"usage\":{\"input_tokens\":%u,\"output_tokens\":0}}}\n\n",
                   job->id, job->worker->options.model, sim_reply_prompt_tokens(job));
    bt_text_puts(t,
                 "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
                 "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n");
}

static void messages_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    (void) last;
    sim_reply_put_token(job, 0, BT_STR(",\"delta\":{\"type\":\"text_delta\",\"text\":\""),
                        sim_reply_word(s, i), BT_STR("\"}}\n\n"));
}

static void messages_tail(sim_job_t *job, bt_text_t *t)
{
    bt_text_puts(
        t, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
    bt_text_printf(
        t,
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"%s\","
        "\"stop_sequence\":null},\"usage\":{\"input_tokens\":%u,\"output_tokens\":%u}}\n\n",
        stop_reason(job), sim_reply_prompt_tokens(job), job->made);
    bt_text_puts(t, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void messages_whole(sim_job_t *job, bt_text_t *t)
{
    bt_text_printf(t,
                   "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
                   "\"type\":\"text\",\"text\":\"",
                   job->id);
    sim_reply_text(t, job, &job->samples[0]);
    bt_text_printf(t,
                   "\"}],\"model\":\"%s\",\"stop_reason\":\"%s\",\"stop_sequence\":null,\"usage\":{"
                   "\"input_tokens\":%u,"
                   "\"output_tokens\":%u}",
                   job->worker->options.model, stop_reason(job), sim_reply_prompt_tokens(job),
                   job->made);
    bt_text_puts(t, ",\"kv_transfer_params\":");
    bt_text_put(t, job->kv_reply.n > 0 ? job->kv_reply : BT_STR("null"));
    bt_text_puts(t, "}");
}

const sim_form_t sim_form_messages = {messages_begin, messages_token, messages_tail,
                                      messages_whole};

/* ---- /v1/responses ---- */

struct sim_story {
    struct sim_story *next;
    char *id, *answer, *turns; /* turns: the conversation so far, flattened */
};
#define STORIES_MAX 256U

static void free_story(struct sim_story *s)
{
    free(s->id);
    free(s->answer);
    free(s->turns);
    free(s);
}

void sim_stories_clear(sim_worker_t *worker)
{
    while (worker->stories != NULL) {
        struct sim_story *s = worker->stories;
        worker->stories = s->next;
        free_story(s);
    }
    worker->story_count = 0;
}

static struct sim_story *find_story(const sim_worker_t *worker, bt_str_t id)
{
    struct sim_story *s = worker->stories;

    while (s != NULL && !bt_str_eq(id, bt_str(s->id)))
        s = s->next;
    return s;
}

bt_str_t sim_story_find(const sim_worker_t *worker, bt_str_t id)
{
    struct sim_story *s = find_story(worker, id);

    return s != NULL ? bt_str(s->answer) : BT_STR_NULL;
}

int sim_story_before(sim_worker_t *worker, bt_str_t body, bt_arena_t *arena, bt_str_t *before_p,
                     sim_problem_t *problem_p)
{
    bt_str_t id = sim_ask_previous(body, arena);
    struct sim_story *s = id.p != NULL ? find_story(worker, id) : NULL;

    if (id.p == NULL)
        return 0;
    if (s == NULL)
        return sim_problem_set(problem_p, 404, "Response with id '%.*s' not found.",
                               BT_STR_ARG(id));
    *before_p = bt_arena_str(arena, bt_str(s->turns));
    return 0;
}

static void drop_oldest(sim_worker_t *worker)
{
    struct sim_story **at = &worker->stories;

    if (worker->story_count < STORIES_MAX)
        return;
    while ((*at)->next != NULL)
        at = &(*at)->next;
    free_story(*at);
    *at = NULL;
    worker->story_count--;
}

void sim_story_keep(sim_job_t *job, bt_str_t answer, bt_str_t text)
{
    sim_worker_t *worker = job->worker;
    struct sim_story *s = calloc(1, sizeof(*s));
    bt_text_t turns;

    if (s == NULL)
        return;
    drop_oldest(worker);
    bt_text_init(&turns);
    bt_text_printf(&turns, "%.*sassistant\n%.*s\n", BT_STR_ARG(job->ask.text), BT_STR_ARG(text));
    s->id = bt_str_dup(bt_str(job->id));
    s->answer = bt_str_dup(answer);
    s->turns = bt_str_dup(bt_text_str(&turns));
    bt_text_fini(&turns);
    s->next = worker->stories;
    worker->stories = s;
    worker->story_count++;
}

static void put_response(bt_text_t *t, const sim_job_t *job, const char *status)
{
    bool done = status[0] == 'c';

    bt_text_printf(t,
                   "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\","
                   "\"model\":\"%s\",\"output\":[",
                   job->id, (unsigned long long) job->created_s, status,
                   job->worker->options.model);
    if (done) {
        bt_text_printf(t,
                       "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"status\":"
                       "\"completed\","
                       "\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"text\":\"",
                       job->id);
        sim_reply_text(t, job, &job->samples[0]);
        bt_text_puts(t, "\"}]}");
    }
    bt_text_puts(t, "],\"usage\":");
    if (done)
        bt_text_printf(t, "{\"input_tokens\":%u,\"output_tokens\":%u,\"total_tokens\":%u}",
                       sim_reply_prompt_tokens(job), job->made,
                       sim_reply_prompt_tokens(job) + job->made);
    else
        bt_text_puts(t, "null");
    if (done && job->worker->options.engine == SIM_VLLM) {
        bt_text_puts(t, ",\"kv_transfer_params\":");
        bt_text_put(t, job->kv_reply.n > 0 ? job->kv_reply : BT_STR("null"));
    }
    bt_text_puts(t, "}");
}

static void responses_begin(sim_job_t *job, bt_text_t *t)
{
    job->chunk_head =
        BT_STR("event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\","
               "\"output_index\":0,\"content_index\":");
    bt_text_puts(t, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":");
    put_response(t, job, "in_progress");
    bt_text_puts(
        t,
        "}\n\nevent: response.in_progress\ndata: {\"type\":\"response.in_progress\",\"response\":");
    put_response(t, job, "in_progress");
    bt_text_puts(t, "}\n\n");
}

static void responses_token(sim_job_t *job, sim_sample_t *s, unsigned i, bool last)
{
    (void) last;
    sim_reply_put_token(job, 0, BT_STR(",\"delta\":\""), sim_reply_word(s, i), BT_STR("\"}\n\n"));
}

static void keep_story(sim_job_t *job, bt_str_t answer)
{
    bt_text_t text;

    bt_text_init(&text);
    sim_reply_text(&text, job, &job->samples[0]);
    sim_story_keep(job, answer, bt_text_str(&text));
    bt_text_fini(&text);
}

static void responses_tail(sim_job_t *job, bt_text_t *t)
{
    size_t from;

    bt_text_puts(t,
                 "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":");
    from = t->len;
    put_response(t, job, "completed");
    keep_story(job, (bt_str_t){t->data + from, t->len - from});
    bt_text_puts(t, "}\n\n");
}

static void responses_whole(sim_job_t *job, bt_text_t *t)
{
    put_response(t, job, "completed");
    keep_story(job, bt_text_str(t));
}

const sim_form_t sim_form_responses = {responses_begin, responses_token, responses_tail,
                                       responses_whole};

/* ---- routes that score ---- */

static double score(uint64_t kv, unsigned i)
{
    return (double) (sim_mix(kv + i) >> 11) / 9007199254740992.0;
}

void sim_reply_scores(sim_job_t *job)
{
    const sim_ask_t *ask = &job->ask;
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t,
                   ask->route == SIM_EMBEDDINGS ? "{\"object\":\"list\",\"model\":\"%s\",\"data\":["
                   : ask->route == SIM_RERANK   ? "{\"model\":\"%s\",\"results\":["
                                                : "{\"model\":\"%s\",\"data\":[",
                   job->worker->options.model);
    for (unsigned i = 0; i < ask->prompt_count; i++) {
        uint64_t kv = ask->prompts[i].kv;
        bt_text_puts(&t, i > 0 ? "," : "");
        if (ask->route == SIM_EMBEDDINGS)
            bt_text_printf(
                &t, "{\"object\":\"embedding\",\"index\":%u,\"embedding\":[%.6f,%.6f,%.6f,%.6f]}",
                i, score(kv, 0), score(kv, 1), score(kv, 2), score(kv, 3));
        else if (ask->route == SIM_RERANK)
            bt_text_printf(&t, "{\"index\":%u,\"relevance_score\":%.6f}", i, score(kv, 0));
        else
            bt_text_printf(&t, "{\"index\":%u,\"label\":\"LABEL_%u\",\"probs\":[%.6f]}", i,
                           (unsigned) (kv & 1), score(kv, 0));
    }
    bt_text_printf(&t, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}",
                   sim_reply_prompt_tokens(job), sim_reply_prompt_tokens(job));
    sim_record_note(&job->worker->record, job->number, 200, "done");
    job->x->user = NULL;
    bt_exchange_respond(job->x, 200, "application/json", bt_text_str(&t), NULL, 0);
    bt_text_fini(&t);
}
