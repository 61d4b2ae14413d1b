/* info.c - what a worker says about itself: models, versions, loads, tokens, aborts. */
#include "flatten.h"
#include "job.h"
#include "reply.h"
#include "routes.h"
#include "sglang.h"

#include <stdio.h>

static bool is_sglang(const sim_worker_t *worker)
{
    return worker->options.engine == SIM_SGLANG;
}

static void serve_models(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":"
                   "1700000000,\"owned_by\":\"%s\","
                   "\"root\":\"%s\",\"parent\":null,\"max_model_len\":%u}]}",
                   worker->options.model, sim_engine_name(worker->options.engine),
                   worker->options.model, worker->options.context);
    sim_respond_json(x, 200, &t);
}

static void serve_health(sim_worker_t *worker, bt_exchange_t *x)
{
    if (worker->options.engine != SIM_VLLM && worker->is_dead)
        return; /* the process hangs until it is killed */
    bt_exchange_respond(x, worker->is_dead ? 503 : 200, NULL, BT_STR(""), NULL, 0);
}

static void serve_server_info(sim_worker_t *worker, bt_exchange_t *x)
{
    const sim_worker_options_t *o = &worker->options;
    const char *mode = o->role == SIM_HYBRID ? "null" : sim_role_name(o->role);
    bt_text_t t;

    bt_text_init(&t);
    if (is_sglang(worker))
        bt_text_printf(
            &t,
            "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"disaggregation_mode\":\"%s\","
            "\"disaggregation_transfer_backend\":\"mooncake\",\"disaggregation_bootstrap_port\":%u,"
            "\"version\":\"%s\","
            "\"status\":\"ready\",\"load_balance_method\":\"%s\",\"tp_size\":%u,\"dp_size\":%u,"
            "\"max_total_num_tokens\":%llu,\"internal_states\":[{\"disaggregation_mode\":\"%s\"}]}",
            o->model, o->model, mode, worker->bootstrap_port, o->version,
            o->role == SIM_PREFILL ? "follow_bootstrap_room" : "round_robin", o->tp, o->dp,
            (unsigned long long) o->blocks * o->block_size, mode);
    else
        bt_text_printf(&t,
                       "{\"vllm_config\":{\"model_config\":{\"model\":\"%s\"},\"parallel_config\":{"
                       "\"tensor_parallel_size\":%u},"
                       "\"kv_transfer_config\":{\"kv_connector\":\"%s\",\"engine_id\":\"%s\",\"kv_"
                       "role\":\"%s\"}}}",
                       o->model, o->tp, o->connector_name, o->engine_id,
                       o->role == SIM_PREFILL  ? "kv_producer"
                       : o->role == SIM_DECODE ? "kv_consumer"
                                               : "kv_both");
    sim_respond_json(x, 200, &t);
}

static void serve_model_info(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"model_path\":\"%s\",\"tokenizer_path\":\"%s\",\"is_generation\":true,"
                   "\"weight_version\":\"default\"}",
                   worker->options.model, worker->options.model);
    sim_respond_json(x, 200, &t);
}

static void serve_version(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t, "{\"version\":\"%s\"}", worker->options.version);
    sim_respond_json(x, 200, &t);
}

static void serve_load(sim_worker_t *worker, bt_exchange_t *x)
{
    unsigned waiting, running = sim_jobs_running(worker, &waiting);
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t, "{\"server_load\":%u}", running + waiting);
    sim_respond_json(x, 200, &t);
}

static void serve_loads(sim_worker_t *worker, bt_exchange_t *x)
{
    unsigned waiting, running = sim_jobs_running(worker, &waiting);
    unsigned long long total =
        (unsigned long long) worker->options.blocks * worker->options.block_size;
    unsigned long long used = (unsigned long long) worker->blocks.used * worker->options.block_size,
                       queued = 0;
    bool is_prefill = worker->options.role == SIM_PREFILL;
    bt_list_t *it, *tmp;
    bt_text_t t;

    if (bt_str_find(x->head.query, BT_STR("include=zz")) >= 0) {
        sim_respond_text(x, 500, "Internal Server Error");
        return;
    }
    bt_list_each (&worker->jobs, it, tmp) {
        const sim_job_t *job = bt_container_of(it, sim_job_t, link);
        if (job->phase == SIM_WAITING || job->phase == SIM_PARKED)
            queued += sim_reply_prompt_tokens(job);
    }
    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"timestamp\":%llu,\"version\":\"%s\",\"accelerator\":null,\"num_"
                   "accelerators\":1,\"loads\":[{\"dp_rank\":0,"
                   "\"num_running_reqs\":%u,\"num_waiting_reqs\":%u,\"num_used_tokens\":%llu,\"num_"
                   "total_tokens\":%llu,"
                   "\"max_total_num_tokens\":%llu,\"token_usage\":%.4f,\"gen_throughput\":0.0,"
                   "\"cache_hit_rate\":0.0,"
                   "\"max_running_requests\":4096,",
                   (unsigned long long) bt_clock_wall_ms() / 1000, worker->options.version, running,
                   waiting, used, used + queued, total, (double) used / (double) total);
    bt_text_printf(
        &t,
        "\"disaggregation\":{\"mode\":\"%s\",\"prefill_bootstrap_queue_reqs\":%u,\"prefill_"
        "inflight_queue_reqs\":0,"
        "\"decode_prealloc_queue_reqs\":0,\"decode_transfer_queue_reqs\":%u,\"decode_retracted_"
        "queue_reqs\":0},"
        "\"queues\":{\"waiting\":%u,\"grammar\":0,\"paused\":0,\"retracted\":0}}]}",
        worker->options.role == SIM_HYBRID ? "null" : sim_role_name(worker->options.role),
        is_prefill ? waiting : 0, worker->options.role == SIM_DECODE ? waiting : 0, waiting);
    sim_respond_json(x, 200, &t);
}

/* As the prompt of a request that is served. */
static void serve_tokenize(sim_worker_t *worker, bt_exchange_t *x)
{
    const sim_raw_t prompt = sim_raw_get(x->body, "prompt"), none = {0};
    bt_str_t bytes = x->body;
    sim_problem_t problem;
    bt_text_t t;

    if (prompt.type == BT_JSON_STRING)
        bytes = sim_raw_text(prompt, &x->arena);
    else if (sim_flatten_messages(none, sim_raw_get(x->body, "messages"), BT_STR_NULL, &x->arena,
                                  &bytes, &problem) != 0) {
        sim_respond_text(x, 400, "prompt or messages are expected");
        return;
    }

    bt_text_init(&t);
    bt_text_printf(&t, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[",
                   (unsigned) ((bytes.n + 3) / 4), worker->options.context);
    for (size_t i = 0; i < bytes.n; i += 4) {
        uint32_t id = 0;
        memcpy(&id, bytes.p + i, bytes.n - i < 4 ? bytes.n - i : 4);
        bt_text_printf(&t, "%s%u", i > 0 ? "," : "", id);
    }
    bt_text_puts(&t, "]}");
    sim_respond_json(x, 200, &t);
}

/* What /inference/v1/generate would be asked: a token is four bytes. */
static void serve_render(sim_worker_t *worker, bt_exchange_t *x)
{
    const sim_raw_t prompt = sim_raw_get(x->body, "prompt");
    const bt_str_t bytes =
        prompt.type == BT_JSON_STRING ? sim_raw_text(prompt, &x->arena) : x->body;
    bt_text_t t;

    (void) worker;
    bt_text_init(&t);
    bt_text_puts(&t, "{\"token_ids\":[");
    for (size_t i = 0; i < bytes.n; i += 4) {
        uint32_t id = 0;
        memcpy(&id, bytes.p + i, bytes.n - i < 4 ? bytes.n - i : 4);
        bt_text_printf(&t, "%s%u", i > 0 ? "," : "", id);
    }
    bt_text_puts(&t, "],\"sampling_params\":{}}");
    sim_respond_json(x, 200, &t);
}

static void serve_detokenize(sim_worker_t *worker, bt_exchange_t *x)
{
    sim_raw_t tokens = sim_raw_get(x->body, "tokens");
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_text_t bytes, t;
    int64_t id;

    (void) worker;
    bt_text_init(&bytes);
    if (tokens.type == BT_JSON_ARRAY) {
        bt_json_array(&c, tokens.value);
        while (bt_json_next(&c, &item) == 1) {
            uint32_t word = bt_json_i64(item.value, &id) == 0 ? (uint32_t) id : 0;
            bt_text_put(&bytes, (bt_str_t){(const char *) &word, strnlen((const char *) &word, 4)});
        }
    }
    bt_text_init(&t);
    bt_text_puts(&t, "{\"prompt\":");
    bt_text_json_str(&t, bt_text_str(&bytes));
    bt_text_puts(&t, "}");
    bt_text_fini(&bytes);
    sim_respond_json(x, 200, &t);
}

/* Every request whose id begins so. A finished one is answered, so the list is walked anew after each hit. */
static sim_job_t *find_abort(sim_worker_t *worker, bt_str_t prefix)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->jobs, it, tmp) {
        sim_job_t *job = bt_container_of(it, sim_job_t, link);
        if (sim_sglang_has_rid(job, prefix, true))
            return job;
    }
    return NULL;
}

static void abort_all(sim_worker_t *worker, bt_str_t prefix)
{
    sim_job_t *job;

    while ((job = find_abort(worker, prefix)) != NULL) {
        worker->counters.aborts_hit++;
        sim_sglang_abort(job);
    }
}

static void serve_abort(sim_worker_t *worker, bt_exchange_t *x)
{
    sim_raw_t rid = sim_raw_get(x->body, "rid");

    worker->counters.aborts_asked++;
    if (rid.type == BT_JSON_STRING && rid.value.n > 2)
        abort_all(worker, sim_raw_text(rid, &x->arena));
    else if (sim_raw_get(x->body, "abort_all").type == BT_JSON_TRUE)
        abort_all(worker, BT_STR(""));
    bt_exchange_respond(x, 200, NULL, BT_STR(""), NULL, 0);
}

/* SGLang's --enable-pd-role-switch: nothing may run, and the same role again is a success. */
static void serve_role_switch(sim_worker_t *worker, bt_exchange_t *x)
{
    const sim_raw_t wanted = sim_raw_get(x->body, "new_role");
    const enum sim_role old = worker->options.role;
    const char *why = NULL;
    enum sim_role role = old;
    bt_text_t t;

    if (wanted.type == BT_JSON_STRING &&
        bt_str_eq(sim_raw_text(wanted, &x->arena), BT_STR("prefill")))
        role = SIM_PREFILL;
    else if (wanted.type == BT_JSON_STRING &&
             bt_str_eq(sim_raw_text(wanted, &x->arena), BT_STR("decode")))
        role = SIM_DECODE;
    else
        why = "new_role must be prefill or decode";
    if (why == NULL && (!worker->options.role_switch || old == SIM_HYBRID))
        why = "PD role switch is not enabled";
    else if (why == NULL && role != old && !bt_list_empty(&worker->jobs))
        why = "not idle";
    if (why == NULL)
        worker->options.role = role;
    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"success\":%s,\"message\":\"%s\",\"old_role\":\"%s\",\"new_role\":\"%s\"}",
                   why == NULL ? "true" : "false",
                   why != NULL   ? why
                   : role == old ? "already in target role"
                                 : "switched",
                   sim_role_name(old), sim_role_name(worker->options.role));
    sim_respond_json(x, why == NULL ? 200 : 400, &t);
}

/* GET /v1/responses/{id} */
static void serve_response(sim_worker_t *worker, bt_exchange_t *x, bt_str_t id)
{
    bt_str_t answer = sim_story_find(worker, id);
    bt_text_t t;

    if (answer.n > 0) {
        bt_exchange_respond(x, 200, "application/json", answer, NULL, 0);
        return;
    }
    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"error\":{\"message\":\"Response with id '%.*s' not "
                   "found.\",\"type\":\"invalid_request_error\","
                   "\"param\":\"response_id\",\"code\":404}}",
                   BT_STR_ARG(id));
    sim_respond_json(x, 404, &t);
}

static const struct {
    const char *path;
    void (*serve)(sim_worker_t *worker, bt_exchange_t *x);
    bool is_post, vllm, sglang;
} paths[] = {
    {"/v1/completions/render", serve_render, true, true, false},
    {"/v1/chat/completions/render", serve_render, true, true, false},
    {"/health", serve_health, false, true, true},
    {"/metrics", sim_metrics_serve, false, true, true},
    {"/v1/models", serve_models, false, true, true},
    {"/version", serve_version, false, true, false},
    {"/load", serve_load, false, true, false},
    {"/server_info", serve_server_info, false, true, true},
    {"/get_server_info", serve_server_info, false, false, true},
    {"/get_model_info", serve_model_info, false, false, true},
    {"/model_info", serve_model_info, false, false, true},
    {"/v1/loads", serve_loads, false, false, true},
    {"/health_generate", serve_health, false, false, true},
    {"/tokenize", serve_tokenize, true, true, true},
    {"/detokenize", serve_detokenize, true, true, true},
    {"/abort_request", serve_abort, true, false, true},
    {"/pd_role_switch", serve_role_switch, true, false, true},
};

bool sim_info_serve(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_str_t path = x->head.path, responses = BT_STR("/v1/responses/");

    if (x->head.method == BT_GET && bt_str_starts(path, responses)) {
        serve_response(worker, x, (bt_str_t){path.p + responses.n, path.n - responses.n});
        return true;
    }
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (!bt_str_eq(path, bt_str(paths[i].path)) ||
            !(is_sglang(worker) ? paths[i].sglang : paths[i].vllm) ||
            (paths[i].serve == serve_render && !worker->options.scale_out))
            continue;
        if (paths[i].is_post != (x->head.method == BT_POST) && x->head.method != BT_HEAD) {
            sim_respond_text(x, 405, "{\"detail\":\"Method Not Allowed\"}");
            return true;
        }
        paths[i].serve(worker, x);
        return true;
    }
    return false;
}
