/* vllm.c - what a vLLM engine does with a request: checks, KV by connector, and the ways to kill it.
 *
 *   no params            -> computed here
 *   nixl (pull)          -> prefill holds blocks; decode reads them by id from (host, port), then frees them by request id
 *   nixl_push            -> joined by the request id that both legs share; either side may come first
 *   shared cache         -> found by content, or computed
 *   ascend               -> as nixl, but incomplete parameters are computed locally
 *   layer-wise           -> decode calls the metaserver, prefill pushes into its blocks: layerwise.c
 *   mooncake             -> joined by transfer id: mooncake.c
 *   p2p_nccl, moriio     -> as push, joined by addresses in the request id: paired.c
 *   baton                -> bytes move through libbaton_kv: baton.c
 *
 * The engine trusts the parameters: incomplete ones kill it or park the request. So does the simulator.
 */
#include "baton.h"
#include "held.h"
#include "job.h"
#include "layerwise.h"
#include "logprobs.h"
#include "media.h"
#include "mooncake.h"
#include "offloading.h"
#include "paired.h"
#include "params.h"
#include "worker.h"

#include <stdio.h>

#define HANDSHAKE_MS 5100
#define EXIT_MS 1000
#define RETRY_MS 10 /* waiting for free blocks */

static enum sim_connector connector_of(const sim_job_t *job)
{
    return job->worker->options.connector;
}

static bool is_paired(const sim_job_t *job)
{
    return connector_of(job) == SIM_P2P_NCCL || connector_of(job) == SIM_MORIIO;
}

/* ---- checks ---- */

static int check_lengths(sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_ask_t *ask = &job->ask;
    unsigned context = job->worker->options.context;

    for (unsigned i = 0; i < ask->prompt_count; i++) {
        unsigned tokens = ask->prompts[i].tokens;
        if (tokens >= context)
            return sim_problem_set(
                problem_p, 400,
                "This model's maximum context length is %u tokens. However, your request "
                "has %u input tokens.",
                context, tokens);
        if (ask->max_tokens > (int64_t) (context - tokens)) {
            sim_problem_set(
                problem_p, 400,
                "'max_tokens' or 'max_completion_tokens' is too large: %lld. This model's maximum "
                "context length is %u tokens and your request has %u input tokens.",
                (long long) ask->max_tokens, context, tokens);
            problem_p->param = "max_tokens";
            return -1;
        }
    }
    return 0;
}

static int check_fields(sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_ask_t *ask = &job->ask;

    if (ask->model.n > 0 && !bt_str_eq(ask->model, bt_str(job->worker->options.model))) {
        sim_problem_set(problem_p, 404, "The model `%.*s` does not exist.", BT_STR_ARG(ask->model));
        problem_p->param = "model";
        return -1;
    }
    if (ask->kv_params.type != BT_JSON_NONE && ask->kv_params.type != BT_JSON_NULL &&
        ask->kv_params.type != BT_JSON_OBJECT)
        return sim_problem_set(problem_p, 400,
                               "kv_transfer_params: Input should be a valid dictionary");
    if (sim_media_check(job, problem_p) != 0 || sim_logprobs_check(ask, problem_p) != 0)
        return -1;
    if (ask->max_tokens == 0)
        return sim_problem_set(problem_p, 400, "max_tokens must be at least 1, got 0.");
    if (ask->min_tokens > (int64_t) job->max_tokens)
        return sim_problem_set(problem_p, 400,
                               "min_tokens must be less than or equal to max_tokens=%u, got %lld.",
                               job->max_tokens, (long long) ask->min_tokens);
    if (ask->n > 1 && ask->has_temperature && ask->temperature == 0)
        return sim_problem_set(problem_p, 400, "n must be 1 when using greedy sampling, got %lld.",
                               (long long) ask->n);
    return check_lengths(job, problem_p);
}

static sim_worker_t *find_peer(const sim_job_t *job)
{
    const sim_params_t *p = &job->params;
    sim_world_t *world = job->worker->world;
    uint64_t port = 0;

    if (bt_str_u64(p->port, &port) != 0 ||
        !(bt_str_eq(p->host, BT_STR("127.0.0.1")) || bt_str_eq(p->host, BT_STR("localhost"))))
        return NULL;
    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        if (w->options.engine == SIM_VLLM && w->side_port == port &&
            bt_str_eq(p->engine_id, bt_str(w->options.engine_id)) &&
            (!p->has_tp || p->tp == w->options.tp) && w->options.connector == connector_of(job))
            return w;
    }
    return NULL;
}

/* The request is refused or given up: prefill is told by an empty read, and frees. */
static void tell_unread(sim_job_t *job)
{
    sim_worker_t *peer = find_peer(job);
    sim_held_t *held = peer != NULL ? sim_held_find(peer, job->params.request_id) : NULL;

    if (held == NULL)
        return;
    peer->counters.kv_freed_unread++;
    sim_held_free(held);
}

static bool pulls(const sim_job_t *job)
{
    return job->params.do_remote_prefill &&
           (connector_of(job) == SIM_NIXL || connector_of(job) == SIM_ASCEND);
}

static int check(sim_job_t *job, sim_problem_t *problem_p)
{
    sim_worker_t *worker = job->worker;

    sim_params_read(job->ask.kv_params, &job->arena, &job->params);
    if (check_fields(job, problem_p) == 0)
        return connector_of(job) == SIM_BATON       ? sim_baton_check(job, problem_p)
               : connector_of(job) == SIM_LAYERWISE ? sim_layerwise_check(job, problem_p)
                                                    : 0;
    if (!pulls(job))
        return -1;
    if (sim_params_complete(&job->params)) {
        tell_unread(job);
        return -1;
    }
    if (connector_of(job) == SIM_NIXL) {
        /* The clean-up of a refused request reads the missing key: the answer still goes out, the engine does not live on. */
        bt_timer_start(&worker->death_timer, 1);
    }
    return -1;
}

/* ---- KV ---- */

/* False: no room yet (another try is under way). */
static bool take_blocks(sim_job_t *job)
{
    sim_blocks_t *blocks = &job->worker->blocks;

    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        const sim_prompt_t *prompt = &job->ask.prompts[i];
        uint32_t *ids = bt_arena_alloc(&job->arena, (prompt->blocks + 1) * sizeof(*ids));
        if (sim_blocks_take(blocks, prompt, ids, &job->hits[i])) {
            job->ids[i] = ids;
            continue;
        }
        while (i-- > 0) {
            sim_blocks_release(blocks, job->ids[i], job->ask.prompts[i].blocks);
            job->ids[i] = NULL;
        }
        sim_job_later(job, RETRY_MS, sim_vllm_admit);
        return false;
    }
    return true;
}

static unsigned hit_tokens(const sim_job_t *job, unsigned hits)
{
    return hits * job->worker->options.block_size;
}

/* What the blocks of each prompt hold becomes the KV of its samples. May end the job. */
static void use_blocks(sim_job_t *job)
{
    unsigned count = job->sample_count;

    if (job->external_tokens > 0 && sim_logprobs_wants_prompt(&job->ask)) {
        sim_worker_die(job->worker); /* OverflowError: numbers that nobody has computed */
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        const sim_sample_t *s = &job->samples[i];
        const sim_prompt_t *prompt = &job->ask.prompts[s->prompt];
        sim_job_got_kv(job, i,
                       sim_blocks_kv(&job->worker->blocks, job->ids[s->prompt], prompt->blocks));
    }
}

void sim_vllm_received(sim_job_t *job)
{
    use_blocks(job);
}

/* False: the engine is over. */
static bool get_media(sim_job_t *job)
{
    if (job->worker->options.role == SIM_ENCODE || sim_media_fetch(job))
        return true;
    sim_worker_die(job->worker);
    return false;
}

static void compute_here(sim_job_t *job)
{
    if (!get_media(job))
        return;
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        const sim_prompt_t *prompt = &job->ask.prompts[i];
        sim_blocks_compute(&job->worker->blocks, prompt, job->ids[i], job->hits[i]);
        if (connector_of(job) == SIM_BATON)
            sim_baton_computed(job, i, job->hits[i]);
        job->cached_tokens += hit_tokens(job, job->hits[i]);
        job->computed_tokens += prompt->tokens - hit_tokens(job, job->hits[i]);
    }
    use_blocks(job);
}

static void use_shared(sim_job_t *job)
{
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        const sim_prompt_t *prompt = &job->ask.prompts[i];
        unsigned cached = hit_tokens(job, job->hits[i]),
                 whole = prompt->tokens / job->worker->options.block_size;
        const bool is_shared = sim_shared_has(job->worker->world, prompt->kv);
        unsigned found = is_shared ? hit_tokens(job, whole) : 0;
        if (!is_shared && !get_media(job))
            return;
        found = found > cached ? found - cached : 0;
        sim_blocks_compute(&job->worker->blocks, prompt, job->ids[i], job->hits[i]);
        sim_shared_put(job->worker->world, prompt->kv);
        job->cached_tokens += cached;
        job->external_tokens += found;
        job->computed_tokens += prompt->tokens - cached - found;
    }
    if (job->external_tokens > 0)
        job->kv_source = "shared_cache";
    use_blocks(job);
}

static void fail_load(sim_job_t *job)
{
    job->worker->counters.failed_transfers++;
    sim_job_fail(job, 500, "Internal server error");
}

static void confirm_read(sim_worker_t *peer, sim_held_t *held)
{
    if (held == NULL) {
        peer->counters.notifications_after_expiry++;
        return;
    }
    peer->counters.kv_read++;
    sim_held_free(held);
}

/* Copies the blocks that this worker has not cached itself. False: the request or the engine is over. */
static bool read_blocks(sim_job_t *job, unsigned prompt_index, const uint32_t *remote,
                        unsigned remote_count)
{
    const sim_prompt_t *prompt = &job->ask.prompts[prompt_index];
    unsigned hits = job->hits[prompt_index];
    unsigned need = prompt->blocks - hits;

    if (need > remote_count) {
        sim_worker_die(job->worker); /* assert num_decode_blocks <= len(prefill_group) */
        return false;
    }
    for (unsigned i = 0; i < remote_count; i++)
        if (!sim_blocks_valid_id(&job->peer->blocks, remote[i])) {
            fail_load(job);
            return false;
        }
    /* The last `need` of the remote blocks. */
    uint32_t *aligned = bt_arena_zalloc(&job->arena, (prompt->blocks + 1) * sizeof(*aligned));
    memcpy(aligned + hits, remote + (remote_count - need), need * sizeof(*aligned));
    sim_blocks_copy(&job->worker->blocks, prompt, job->ids[prompt_index], hits, &job->peer->blocks,
                    aligned);
    return true;
}

static void count_external(sim_job_t *job)
{
    job->kv_source = "external";
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        job->cached_tokens += hit_tokens(job, job->hits[i]);
        job->external_tokens += job->ask.prompts[i].tokens - hit_tokens(job, job->hits[i]);
    }
}

static void finish_pull(sim_job_t *job)
{
    const sim_params_t *p = &job->params;
    sim_worker_t *peer = job->peer;

    if (peer->is_dead) {
        fail_load(job);
        return;
    }
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        if (!read_blocks(job, i, p->ids, p->id_count))
            return;
        confirm_read(peer, sim_held_find(peer, p->request_id));
    }
    job->peer = NULL;
    use_blocks(job);
}

static uint64_t transfer_ms(const sim_job_t *job)
{
    return (
        uint64_t) (sim_jitter(job->worker->world, job->worker, job->worker->options.transfer_ms) +
                   0.5);
}

static void pull(sim_job_t *job)
{
    const sim_params_t *p = &job->params;

    if (p->id_count == 0) {
        sim_worker_die(job->worker); /* assert num_external_tokens == 0 */
        return;
    }
    if (!sim_params_complete(p)) {
        job->kills_on_leave =
            true; /* "Got invalid KVTransferParams": the clean-up will trip over it */
        sim_job_park(job);
        return;
    }
    job->peer = find_peer(job);
    if (job->peer == NULL) {
        sim_job_later(job, sim_scaled_ms(job->worker->world, HANDSHAKE_MS), fail_load);
        return;
    }
    count_external(job);
    sim_job_later(job, transfer_ms(job), finish_pull);
}

/* ---- push ---- */

static sim_held_t *held_for(sim_job_t *job, unsigned prompt)
{
    char external[192];
    sim_held_t *held;

    sim_external_id(job, prompt, external, sizeof(external));
    held = sim_held_find_external(job->peer, external);
    return held != NULL && sim_paired_is_for(job, held) ? held : NULL;
}

static void finish_push(sim_job_t *job)
{
    sim_worker_t *peer = job->peer;
    const bool reads_by_id = job->worker->options.read_mode;

    if (peer->is_dead) {
        fail_load(job);
        return;
    }
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        sim_held_t *held = held_for(job, i);
        if (held == NULL ||
            !(reads_by_id ? read_blocks(job, i, job->params.ids, job->params.id_count)
                          : read_blocks(job, i, held->ids, held->blocks)))
            return;
        confirm_read(peer, held);
    }
    job->peer = NULL;
    use_blocks(job);
}

static bool is_all_held(sim_job_t *job)
{
    for (unsigned i = 0; i < job->ask.prompt_count; i++)
        if (held_for(job, i) == NULL)
            return false;
    return true;
}

void sim_vllm_wait(sim_job_t *job, sim_worker_t *peer)
{
    job->peer = peer;
    count_external(job);
    if (is_all_held(job))
        sim_job_later(job, transfer_ms(job), finish_push);
    else
        bt_list_push(&job->worker->world->push_waiters, &job->push_link);
}

static void wait_push(sim_job_t *job)
{
    const sim_params_t *p = &job->params;

    if (!p->has_engine_id || !p->has_host || !p->has_port || !p->has_tp || !p->has_request_id) {
        sim_worker_die(job->worker); /* KeyError in the scheduler */
        return;
    }
    sim_worker_t *peer = find_peer(job);
    if (peer != NULL)
        sim_vllm_wait(job, peer);
    else
        count_external(job); /* registered nowhere: waits until its client gives up */
}

/* A prefill has KV to give: whoever registered for it gets it. */
static void serve_waiters(sim_worker_t *worker)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->world->push_waiters, it, tmp) {
        sim_job_t *job = bt_container_of(it, sim_job_t, push_link);
        if (job->peer != worker || !is_all_held(job))
            continue;
        bt_list_remove(&job->push_link);
        /* Never from inside the prefill's own end: the list and that job are in use. */
        sim_job_later(job, transfer_ms(job) > 0 ? transfer_ms(job) : 1, finish_push);
    }
}

/* ---- mooncake.c ---- */

uint64_t sim_vllm_transfer_ms(const sim_job_t *job)
{
    return transfer_ms(job);
}

void sim_vllm_receive(sim_job_t *job, sim_held_t *held)
{
    if (!read_blocks(job, 0, held->ids, held->blocks))
        return;
    count_external(job);
    confirm_read(job->peer, held);
    job->peer = NULL;
    use_blocks(job);
}

/* ---- the engine ---- */

void sim_vllm_admit(sim_job_t *job)
{
    bool remote = job->params.do_remote_prefill;

    if (!take_blocks(job))
        return;
    if (connector_of(job) == SIM_SHARED)
        use_shared(job);
    else if (connector_of(job) == SIM_MOONCAKE && sim_mooncake_admit(job))
        return;
    else if (connector_of(job) == SIM_OFFLOADING && sim_offloading_find(job) != NULL)
        sim_vllm_receive(job, sim_offloading_find(job));
    else if (remote && connector_of(job) == SIM_NIXL)
        pull(job);
    else if (remote && connector_of(job) == SIM_ASCEND && sim_params_complete(&job->params))
        pull(job);
    else if (remote && connector_of(job) == SIM_NIXL_PUSH)
        wait_push(job);
    else if (connector_of(job) == SIM_LAYERWISE && sim_layerwise_admit(job))
        return;
    else if (!sim_paired_admit(job) && (connector_of(job) != SIM_BATON || !sim_baton_admit(job)))
        compute_here(job);
}

static void computing(sim_job_t *job, uint64_t ms)
{
    sim_baton_computing(job, ms);
}

static void first_token(sim_job_t *job)
{
    sim_baton_first_token(job);
    if (connector_of(job) == SIM_LAYERWISE)
        sim_layerwise_push(job);
}

static bool holds(const sim_job_t *job)
{
    enum sim_connector c = connector_of(job);
    const bool is_asked =
        job->params.do_remote_decode && (c == SIM_NIXL || c == SIM_NIXL_PUSH || c == SIM_ASCEND);

    return (is_asked || sim_paired_holds(job)) && job->finish[0] != 'a' &&
           job->fault.kind != SIM_NO_PARAMS;
}

/* Every prompt's KV is held, but the answer has room for the first one's parameters only. */
static void finished(sim_job_t *job)
{
    sim_baton_finished(job);
    if (job->worker->options.role == SIM_ENCODE)
        sim_media_encoded(job);
    if (connector_of(job) == SIM_MOONCAKE)
        sim_mooncake_finished(job);
    if (connector_of(job) == SIM_OFFLOADING)
        sim_offloading_finished(job);
    if (!holds(job))
        return;
    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        sim_held_t *held = sim_held_keep(job, i);
        if (held != NULL && i == 0)
            job->kv_reply = is_paired(job)
                                ? sim_paired_reply(job, held)
                                : sim_params_print(held, job->cached_tokens, &job->arena);
    }
    serve_waiters(job->worker);
}

static void left(sim_job_t *job)
{
    sim_baton_left(job);
}

static void client_gone(sim_job_t *job)
{
    if (job->kills_on_leave) {
        sim_worker_die(job->worker);
        return;
    }
    if (pulls(job) && job->peer != NULL && sim_params_complete(&job->params))
        tell_unread(job);
    sim_job_cut(job, false);
}

/* The API server answers for a while after its engine has died. */
static void died(sim_worker_t *worker)
{
    while (!bt_list_empty(&worker->jobs))
        sim_job_fail(
            bt_container_of(worker->jobs.next, sim_job_t, link), 500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.");
}

const sim_engine_ops_t sim_vllm_ops = {check,       sim_vllm_admit, first_token, finished, left,
                                       client_gone, true,           computing,   died,     EXIT_MS};
