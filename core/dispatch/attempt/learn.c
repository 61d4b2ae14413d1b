/* learn.c - what workers' replies teach all later requests. */
#include "cluster/kv_trust.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"

#include <stdio.h>

static bool copy_text(bt_str_t object, const char *name, char *out, size_t size)
{
    bt_json_item_t item;
    long n;

    if (bt_json_get(object, bt_str(name), &item) < 0 || item.type != BT_JSON_STRING)
        return false;
    n = bt_json_unescape(item.value, out, size - 1);
    if (n <= 0)
        return false;
    out[n] = '\0';
    return true;
}

static int64_t member_i64(bt_str_t object, const char *name, int64_t otherwise)
{
    bt_json_item_t item;
    int64_t value;

    if (bt_json_get(object, bt_str(name), &item) < 0 || item.type != BT_JSON_NUMBER ||
        bt_json_i64(item.value, &value) < 0 || value < 0 || value > 65535)
        return otherwise;
    return value;
}

/* nixl_push: what this reply says about where prefill's KV agent lives serves all later requests at once. */
void bt_learn_agent(bt_leg_t *leg)
{
    struct bt_learned l = {0};
    bt_json_item_t params;

    if (bt_json_get(leg->reply.text, BT_STR("kv_transfer_params"), &params) < 0 ||
        params.type != BT_JSON_OBJECT)
        return;
    if (!copy_text(params.value, "remote_engine_id", l.engine_id, sizeof(l.engine_id)) ||
        !copy_text(params.value, "remote_host", l.host, sizeof(l.host)))
        return;
    if (strcmp(l.host, "localhost") == 0 || strcmp(l.host, "0.0.0.0") == 0)
        snprintf(l.host, sizeof(l.host), "%s", leg->worker->host);
    l.port = (int) member_i64(params.value, "remote_port", 0);
    l.tp_size = (int) member_i64(params.value, "tp_size", 1);
    l.pp_size = (int) member_i64(params.value, "pp_size", 1);
    if (l.port == 0)
        return;
    pthread_mutex_lock(&leg->worker->lock);
    leg->worker->learned = l;
    atomic_store_explicit(&leg->worker->has_learned, true, memory_order_release);
    pthread_mutex_unlock(&leg->worker->lock);
}

/* Of a prompt that the client has sent as text, and one engine has read as it came. */
static void learn_prompt(const bt_request_t *r, uint64_t tokens)
{
    if (tokens == 0 || r->warmup != NULL || r->intent.prompt_ids != 0 || r->task_count != 1 ||
        bt_token_replay_before(r) != 0) /* this prompt is longer than the client's */
        return;
    bt_estimate_learn(&r->pool->stat->estimate, r->intent.model, r->intent.prompt_bytes, tokens);
}

void bt_learn_token_size(bt_leg_t *leg)
{
    learn_prompt(leg->attempt->task->request, bt_leg_reply_tokens(leg));
}

/* Where no prefill has said it, and the end of the answer was kept. */
void bt_learn_answer(const bt_request_t *r)
{
    const bt_attempt_t *a = r->tasks[0].attempt;

    if (a != NULL && a->legs[1].tail != NULL && a->legs[0].reply_tokens == 0 && r->status == 200)
        learn_prompt(r, bt_usage_of_leg(&a->legs[1]).prompt);
}

/* Were its events right? Of a prompt whose logprobs are asked for engines compute all, whatever they hold. */
static void judge_prediction(const bt_request_t *r, bt_worker_t *w, uint64_t prompt, bool is_told,
                             uint64_t cached)
{
    if (prompt != 0 && r->task_count == 1 && r->warmup == NULL && w->id == r->predicted_at &&
        bt_token_replay_before(r) == 0 && r->intent.prompt_logprobs == BT_PROMPT_LOGPROBS_NONE)
        bt_kv_trust_note(w, r->predicted, prompt, is_told, cached);
}

/* Where no prefill has said it. */
void bt_learn_prediction(const bt_request_t *r)
{
    const bt_attempt_t *a = r->tasks[0].attempt;
    uint64_t cached = 0;

    if (r->predicted == 0 || r->status != 200 || a == NULL || a->pair.prefill != NULL ||
        !bt_usage_is_kept(&a->legs[1]) || a->pair.decode == NULL)
        return;
    const bool is_told = bt_usage_answer_tells_cached(&a->legs[1], &cached);
    judge_prediction(r, a->pair.decode, bt_usage_of_leg(&a->legs[1]).prompt, is_told, cached);
}

/* SGLang's /generate: a meta_info each prompt, in a list where there are several. */
static void add_generated(bt_str_t reply, uint64_t *prompt_p, uint64_t *cached_p)
{
    const uint64_t prompt = bt_usage_prompt(bt_json_find(reply, BT_STR("meta_info")));
    const uint64_t cached = prompt != 0 ? bt_usage_cached(reply) : 0;

    *prompt_p += prompt;
    *cached_p += cached < prompt ? cached : prompt;
}

static void read_generated(const bt_leg_t *leg, uint64_t *prompt_p, uint64_t *cached_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (leg->is_reply_object)
        add_generated(leg->reply.text, prompt_p, cached_p);
    else if (bt_json_array(&c, leg->reply.text) == 0)
        while (bt_json_next(&c, &item) == 1)
            if (item.type == BT_JSON_OBJECT)
                add_generated(item.value, prompt_p, cached_p);
}

/* A decode counts KV that was moved to it as cached, unless prefill's parameters tell it what prefill's own cache had, as vLLM's do from
 * 0.32 on. Looked for where an answer is read anyway. */
static bool is_cached_news(const bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;
    bt_str_t params;

    if ((r->task_count == 1 && r->replay == NULL &&
         r->intent.prompt_logprobs == BT_PROMPT_LOGPROBS_NONE) ||
        !leg->is_reply_object ||
        (leg->worker->engine != BT_ENGINE_VLLM && leg->worker->engine != BT_ENGINE_VLLM_ASCEND))
        return false;
    params = bt_json_find(bt_str_trim(leg->reply.text), BT_STR("kv_transfer_params"));
    return bt_json_type_of(params) != BT_JSON_OBJECT ||
           bt_json_find(params, BT_STR("remote_prefill_cached_tokens")).p == NULL;
}

void bt_learn_prefix_hits(bt_leg_t *leg)
{
    uint64_t prompt = bt_leg_reply_tokens(leg), cached = 0;

    if (prompt == 0)
        read_generated(leg, &prompt, &cached);
    else
        cached = bt_usage_cached(leg->reply.text);
    leg->cached_tokens = cached < prompt ? cached : prompt;
    leg->is_cached_news = is_cached_news(leg);
    if (leg->attempt->task->request->predicted != 0)
        judge_prediction(leg->attempt->task->request, leg->worker, prompt,
                         bt_usage_tells_cached(leg->reply.text, &(uint64_t){0}),
                         leg->cached_tokens);
    atomic_fetch_add_explicit(&leg->worker->prompt_tokens_total, prompt, memory_order_relaxed);
    atomic_fetch_add_explicit(&leg->worker->cached_tokens_total, leg->cached_tokens,
                              memory_order_relaxed);
}
