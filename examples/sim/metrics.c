/* metrics.c - /metrics under the engines' own names. */
#include "routes.h"

#include "job.h"

static double usage_of(const sim_worker_t *worker)
{
    return (double) worker->blocks.used / (double) worker->blocks.count;
}

static void gauge(bt_text_t *t, const char *name, const char *labels, double value)
{
    bt_text_printf(t, "# TYPE %s gauge\n%s{%s} %.9g\n", name, name, labels, value);
}

static void counter(bt_text_t *t, const char *name, const char *labels, uint64_t value)
{
    bt_text_printf(t, "# TYPE %s counter\n%s_total{%s} %llu\n", name, name, labels,
                   (unsigned long long) value);
}

static void put_sources(bt_text_t *t, const sim_worker_t *worker, const char *labels)
{
    const sim_counters_t *c = &worker->counters;
    const char *name = "vllm:prompt_tokens_by_source";

    bt_text_printf(t,
                   "# TYPE %s counter\n%s_total{%s,source=\"local_compute\"} "
                   "%llu\n%s_total{%s,source=\"local_cache_hit\"} %llu\n"
                   "%s_total{%s,source=\"external_kv_transfer\"} %llu\n",
                   name, name, labels, (unsigned long long) c->local_compute, name, labels,
                   (unsigned long long) c->local_cache_hit, name, labels,
                   (unsigned long long) c->external_kv);
}

static void put_vllm(bt_text_t *t, const sim_worker_t *worker)
{
    const sim_counters_t *c = &worker->counters;
    unsigned waiting, running = sim_jobs_running(worker, &waiting);
    bt_text_t labels;
    const char *l;

    bt_text_init(&labels);
    bt_text_printf(&labels, "engine=\"0\",model_name=\"%s\"", worker->options.model);
    l = bt_text_str(&labels).p;
    gauge(t, "vllm:num_requests_running", l, running);
    gauge(t, "vllm:num_requests_waiting", l, waiting);
    bt_text_printf(t,
                   "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
                   "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} %u\n",
                   l, waiting);
    gauge(t, "vllm:kv_cache_usage_perc", l, usage_of(worker));
    counter(t, "vllm:prompt_tokens", l, c->prompt_tokens);
    counter(t, "vllm:generation_tokens", l, c->generation_tokens);
    put_sources(t, worker, l);
    counter(t, "vllm:external_prefix_cache_hits", l, c->external_kv);
    counter(t, "vllm:prefix_cache_hits", l, c->local_cache_hit);
    counter(t, "vllm:prefix_cache_queries", l,
            c->local_cache_hit + c->local_compute + c->external_kv);
    bt_text_printf(t,
                   "# TYPE vllm:request_success "
                   "counter\nvllm:request_success_total{%s,finished_reason=\"length\"} %llu\n"
                   "vllm:request_success_total{%s,finished_reason=\"error\"} %llu\n",
                   l, (unsigned long long) c->answered, l, (unsigned long long) c->failed);
    counter(t, "vllm:nixl_num_kv_expired_reqs", l, c->kv_expired);
    counter(t, "vllm:nixl_num_notifications_after_expiry", l, c->notifications_after_expiry);
    counter(t, "vllm:nixl_num_failed_transfers", l, c->failed_transfers);
    bt_text_fini(&labels);
}

static void put_sglang(bt_text_t *t, const sim_worker_t *worker)
{
    const sim_counters_t *c = &worker->counters;
    unsigned waiting, running = sim_jobs_running(worker, &waiting);
    bool is_prefill = worker->options.role == SIM_PREFILL,
         is_decode = worker->options.role == SIM_DECODE;
    bt_text_t labels;
    const char *l;

    bt_text_init(&labels);
    bt_text_printf(&labels, "engine_type=\"%s\",model_name=\"%s\"",
                   is_prefill  ? "prefill"
                   : is_decode ? "decode"
                               : "unified",
                   worker->options.model);
    l = bt_text_str(&labels).p;
    gauge(t, "sglang:num_running_reqs", l, running);
    gauge(t, "sglang:num_queue_reqs", l, waiting);
    gauge(t, "sglang:token_usage", l, usage_of(worker));
    gauge(t, "sglang:full_token_usage", l, usage_of(worker));
    gauge(t, "sglang:cache_hit_rate", l, 0);
    gauge(t, "sglang:gen_throughput", l, 0);
    gauge(t, "sglang:num_prefill_bootstrap_queue_reqs", l, is_prefill ? waiting : 0);
    gauge(t, "sglang:num_prefill_inflight_queue_reqs", l, 0);
    gauge(t, "sglang:num_decode_prealloc_queue_reqs", l, 0);
    gauge(t, "sglang:num_decode_transfer_queue_reqs", l, is_decode ? waiting : 0);
    counter(t, "sglang:prompt_tokens", l, c->prompt_tokens);
    counter(t, "sglang:generation_tokens", l, c->generation_tokens);
    counter(t, "sglang:num_requests", l, c->requests);
    counter(t, "sglang:cached_tokens", l, c->local_cache_hit);
    counter(t, "sglang:num_bootstrap_failed_reqs", l, c->bootstrap_failed);
    counter(t, "sglang:num_transfer_failed_reqs", l, c->transfer_failed);
    counter(t, "sglang:num_aborted_requests", l, c->aborts_hit);
    bt_text_fini(&labels);
}

void sim_metrics_serve(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    if (worker->options.engine == SIM_TRTLLM)
        bt_text_puts(&t, "[]"); /* iterations since the last question, as JSON */
    else if (worker->options.engine == SIM_SGLANG)
        put_sglang(&t, worker);
    else
        put_vllm(&t, worker);
    bt_exchange_respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", bt_text_str(&t), NULL,
                        0);
    bt_text_fini(&t);
}
