/* layerwise.c - see layerwise.h.
 *
 * The engine reads what it needs with params["..."]: one that is missing ends prefill's engine. Decode asks nobody whether its
 * call was understood: without a push it waits until its client leaves.
 */
#include "layerwise.h"

#include "base/text.h"
#include "callback.h"
#include "held.h"
#include "worker.h"

#include <stdio.h>

#define OTHER_REQUEST "cmpl-somebody-else-0"

/* ---- decode ---- */

/* Of its one prompt. */
static unsigned external_tokens(const sim_job_t *job)
{
    return job->ask.prompts[0].tokens - job->hits[0] * job->worker->options.block_size;
}

static void put_blocks(bt_text_t *t, const sim_job_t *job)
{
    bt_text_puts(t, "[[");
    for (unsigned i = 0; i < job->ask.prompts[0].blocks; i++)
        bt_text_printf(t, "%s%u", i > 0 ? "," : "", job->ids[0][i]);
    bt_text_puts(t, "]]");
}

static void put_call(bt_text_t *t, const sim_job_t *job, const char *request_id)
{
    const sim_worker_options_t *o = &job->worker->options;

    bt_text_puts(t, "{\"token_ids\":[],\"request_id\":");
    bt_text_json_str(t, bt_str(request_id));
    bt_text_puts(t, ",\"do_remote_prefill\":false,\"do_remote_decode\":true,\"remote_block_ids\":");
    put_blocks(t, job);
    bt_text_printf(t, ",\"remote_block_size\":[%u],\"remote_engine_id\":", o->block_size);
    bt_text_json_str(t, bt_str(o->engine_id));
    bt_text_printf(t,
                   ",\"remote_host\":\"127.0.0.1\",\"remote_port\":%u,\"remote_tp_size\":%u,"
                   "\"remote_pcp_size\":1,\"remote_dcp_size\":1,\"remote_cached_tokens\":%u}",
                   job->worker->side_port, o->tp, job->hits[0] * o->block_size);
}

static void call(sim_job_t *job, bt_str_t url)
{
    const sim_fault_t *fault = &job->fault;
    const bool is_bad = fault->kind == SIM_BAD_CALL;
    char id[192];
    bt_text_t t;

    sim_external_id(job, 0, id, sizeof(id));
    bt_text_init(&t);
    if (is_bad && fault->after_chunks == 1)
        bt_text_puts(&t, "{\"request_id\":");
    else if (is_bad && fault->after_chunks == 2)
        put_call(&t, job, OTHER_REQUEST);
    else if (!is_bad)
        put_call(&t, job, id);
    else
        bt_text_puts(&t, "{}");
    for (unsigned i = 0; i < (fault->kind == SIM_CALL_TWICE ? 2U : 1U); i++)
        sim_callback_send(job->worker, url, bt_text_str(&t),
                          fault->kind == SIM_LATE_CALL ? fault->ms : 0);
    bt_text_fini(&t);
}

static void wait_for_push(sim_job_t *job)
{
    const sim_raw_t url = sim_raw_get(job->ask.kv_params.value, "metaserver");

    job->kv_source = "external";
    job->cached_tokens += job->hits[0] * job->worker->options.block_size;
    job->external_tokens += external_tokens(job);
    if (url.type == BT_JSON_STRING && job->fault.kind != SIM_NO_CALL)
        call(job, sim_raw_text(url, &job->arena));
}

/* ---- prefill ---- */

static bool has_all(bt_str_t params)
{
    static const struct {
        const char *name;
        enum bt_json_type type;
    } needed[] = {{"request_id", BT_JSON_STRING},       {"remote_block_ids", BT_JSON_ARRAY},
                  {"remote_block_size", BT_JSON_ARRAY}, {"remote_engine_id", BT_JSON_STRING},
                  {"remote_host", BT_JSON_STRING},      {"remote_port", BT_JSON_NUMBER},
                  {"remote_tp_size", BT_JSON_NUMBER},   {"remote_pcp_size", BT_JSON_NUMBER},
                  {"remote_dcp_size", BT_JSON_NUMBER},  {"remote_cached_tokens", BT_JSON_NUMBER}};

    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (sim_raw_get(params, needed[i].name).type != needed[i].type)
            return false;
    return true;
}

int sim_layerwise_check(sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_params_t *p = &job->params;

    if (!p->do_remote_decode && !p->do_remote_prefill)
        return 0;
    if (job->ask.prompt_count != 1 || job->ask.n > 1)
        return sim_problem_set(problem_p, 400, "one prompt and one sample for each call");
    return 0;
}

bool sim_layerwise_admit(sim_job_t *job)
{
    if (job->params.do_remote_prefill) {
        wait_for_push(job);
        return true;
    }
    if (!job->params.do_remote_decode || has_all(job->ask.kv_params.value))
        return false;
    sim_worker_die(job->worker); /* KeyError in the scheduler */
    return true;
}

static bool is_of(const sim_worker_t *w, bt_str_t params, bt_arena_t *arena)
{
    uint64_t port = 0;

    return w->options.connector == SIM_LAYERWISE && !w->is_dead &&
           bt_str_u64(sim_raw_get(params, "remote_port").value, &port) == 0 &&
           port == w->side_port &&
           bt_str_eq(sim_raw_text(sim_raw_get(params, "remote_engine_id"), arena),
                     bt_str(w->options.engine_id)) &&
           bt_str_eq(sim_raw_text(sim_raw_get(params, "remote_host"), arena), BT_STR("127.0.0.1"));
}

/* The decode whose blocks these are, waiting under this id. */
static bool waits_for(const sim_job_t *decode, const sim_job_t *prefill, bt_str_t id)
{
    const sim_params_t *p = &prefill->params;
    char external[192];

    sim_external_id(decode, 0, external, sizeof(external));
    return decode->phase == SIM_WAITING && decode->params.do_remote_prefill &&
           decode->ids[0] != NULL && bt_str_eq(id, bt_str(external)) &&
           p->id_count == decode->ask.prompts[0].blocks &&
           memcmp(p->ids, decode->ids[0], p->id_count * sizeof(*p->ids)) == 0;
}

static sim_job_t *find_decode(sim_job_t *job)
{
    const bt_str_t params = job->ask.kv_params.value;
    const bt_str_t id = sim_raw_text(sim_raw_get(params, "request_id"), &job->arena);
    sim_world_t *world = job->worker->world;
    bt_list_t *it, *tmp;

    for (unsigned i = 0; i < world->worker_count; i++) {
        if (!is_of(world->workers[i], params, &job->arena))
            continue;
        bt_list_each (&world->workers[i]->jobs, it, tmp) {
            sim_job_t *decode = bt_container_of(it, sim_job_t, link);
            if (waits_for(decode, job, id))
                return decode;
        }
    }
    return NULL;
}

/* Both sides name the request by their own X-Request-Id: prefill's word "done" is for that. */
static bool is_same_request(const sim_job_t *a, const sim_job_t *b)
{
    char one[192], other[192];

    sim_external_id(a, 0, one, sizeof(one));
    sim_external_id(b, 0, other, sizeof(other));
    return strcmp(one, other) == 0;
}

void sim_layerwise_push(sim_job_t *job)
{
    sim_job_t *decode;
    sim_blocks_t *blocks;
    unsigned hits;
    double ms;

    if (!job->params.do_remote_decode)
        return;
    decode = find_decode(job);
    if (decode == NULL || !is_same_request(job, decode) ||
        job->ask.prompts[0].blocks < decode->ask.prompts[0].blocks) {
        job->worker->counters.failed_transfers++; /* FAILED_SENDING: prefill answers all the same */
        return;
    }
    blocks = &decode->worker->blocks;
    hits = decode->hits[0];
    sim_blocks_copy(blocks, &decode->ask.prompts[0], decode->ids[0], hits, &job->worker->blocks,
                    job->ids[0]);
    ms = sim_jitter(job->worker->world, job->worker, decode->worker->options.transfer_ms);
    /* Never from inside the prefill's own turn. */
    sim_job_later(decode, ms >= 1 ? (uint64_t) (ms + 0.5) : 1, sim_vllm_received);
}
