/* routes.c - see routes.h. */
#include "routes.h"

#include "job.h"

static const struct {
    const char *path;
    enum sim_route route;
    bool vllm, sglang, trtllm;
} inference[] = {
    {"/v1/completions", SIM_COMPLETIONS, true, true, true},
    {"/v1/chat/completions", SIM_CHAT, true, true, true},
    {"/v1/responses", SIM_RESPONSES, true, true, false},
    {"/v1/messages", SIM_MESSAGES, true, true, false},
    {"/generate", SIM_GENERATE, false, true, false},
    {"/inference/v1/generate", SIM_TOKENS, true, false, false},
    {"/v1/embeddings", SIM_EMBEDDINGS, true, true, false},
    {"/rerank", SIM_RERANK, true, false, false},
    {"/v1/rerank", SIM_RERANK, true, true, false},
    {"/classify", SIM_CLASSIFY, true, true, false},
};

static int find_inference(const sim_worker_t *worker, bt_str_t path)
{
    for (size_t i = 0; i < sizeof(inference) / sizeof(inference[0]); i++) {
        const bool serves[] = {[SIM_VLLM] = inference[i].vllm,
                               [SIM_SGLANG] = inference[i].sglang,
                               [SIM_TRTLLM] = inference[i].trtllm};
        if (bt_str_eq(path, bt_str(inference[i].path)) && serves[worker->options.engine] &&
            (inference[i].route != SIM_TOKENS || worker->options.scale_out))
            return (int) inference[i].route;
    }
    return -1;
}

void sim_respond_json(bt_exchange_t *x, unsigned status, bt_text_t *text)
{
    bt_exchange_respond(x, status, "application/json", bt_text_str(text), NULL, 0);
    bt_text_fini(text);
}

void sim_respond_text(bt_exchange_t *x, unsigned status, const char *text)
{
    bt_exchange_respond(x, status, "text/plain; charset=utf-8", bt_str(text), NULL, 0);
}

static void respond_detail(bt_exchange_t *x, unsigned status, const char *detail)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t, "{\"detail\":\"%s\"}", detail);
    sim_respond_json(x, status, &t);
}

/* vLLM's API server answers for its dead engine; the others' processes are only waiting to be killed. */
static void serve_dead(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    if (worker->options.engine != SIM_VLLM)
        return;
    bt_text_init(&t);
    bt_text_puts(&t, "{\"error\":{\"message\":\"EngineCore encountered an issue. See stack trace "
                     "(above) for the root cause.\","
                     "\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
    sim_respond_json(x, 500, &t);
}

/* Faults that make sense without a job: on routes that infer nothing, and the worker's own on all. */
static bool apply_plain_fault(sim_worker_t *worker, bt_exchange_t *x, const sim_fault_t *fault)
{
    switch (fault->kind) {
    case SIM_OK:
        return false;
    case SIM_HANG:
    case SIM_HANG_HEADERS:
        return true;
    case SIM_STATUS:
        respond_detail(x, fault->status, "simulated error");
        return true;
    case SIM_DIE:
        sim_worker_die(worker);
        return false;
    case SIM_REFUSE:
        sim_worker_refuse(worker, fault->ms);
        bt_exchange_reset(x);
        return true;
    default:
        bt_exchange_abort(x);
        return true;
    }
}

static bool is_of_worker(const sim_fault_t *fault)
{
    return fault->kind == SIM_DIE || fault->kind == SIM_REFUSE;
}

static bool is_control(bt_str_t path)
{
    return bt_str_starts(path, BT_STR("/sim/"));
}

static void on_request(bt_exchange_t *x)
{
    sim_worker_t *worker = bt_server_user(x->server);
    int route = x->head.method == BT_POST ? find_inference(worker, x->head.path) : -1;
    sim_fault_t fault = {0};
    uint64_t number;

    x->user = NULL;
    if (is_control(x->head.path)) {
        sim_control_serve(worker, x);
        return;
    }
    number = sim_record_add(&worker->record, &x->head, x->body);
    if (worker->faults.count > 0 || route >= 0)
        fault =
            sim_faults_pick(&worker->faults, &x->head, x->body, worker->options.role, route >= 0);
    if ((route < 0 || is_of_worker(&fault)) && apply_plain_fault(worker, x, &fault))
        return;
    if (route >= 0 && worker->is_dead) {
        serve_dead(worker, x);
    } else if (route >= 0) {
        sim_job_start(worker, x, (enum sim_route) route, &fault, number);
    } else {
        sim_record_note(&worker->record, number, 200, "done");
        if (sim_info_serve(worker, x))
            return;
        if (find_inference(worker, x->head.path) >= 0)
            respond_detail(x, 405, "Method Not Allowed");
        else
            respond_detail(x, 404, "Not Found");
    }
}

static void on_gone(bt_exchange_t *x)
{
    if (x->user != NULL)
        sim_job_gone(x->user);
}

static void on_drain(bt_exchange_t *x)
{
    if (x->user != NULL)
        sim_job_drain(x->user);
}

static const bt_server_ops_t api_ops = {
    .on_request = on_request, .on_gone = on_gone, .on_drain = on_drain};

static void on_bootstrap_request(bt_exchange_t *x)
{
    sim_bootstrap_serve(bt_server_user(x->server), x);
}

static void ignore_gone(bt_exchange_t *x)
{
    (void) x;
}

static const bt_server_ops_t bootstrap_ops = {.on_request = on_bootstrap_request,
                                              .on_gone = ignore_gone};

const sim_servers_t sim_servers = {&api_ops, &bootstrap_ops};
