/* baton.c - see baton.h.
 *
 * Prefill never waits for its room: it computes and answers whether or not anybody takes the KV. Decode does nothing but wait. Either side's end is the
 * end of the other's room: that is the library's business, here it is only aborted and released.
 */
#include "baton.h"

#include "kv.h"
#include "words.h"

#include <inttypes.h>

/* ---- checks ---- */

static bool uses_room(const sim_job_t *job)
{
    return job->params.do_remote_decode || job->params.do_remote_prefill;
}

int sim_baton_check(sim_job_t *job, sim_problem_t *problem_p)
{
    const sim_params_t *p = &job->params;
    const sim_ask_t *ask = &job->ask;

    if (!uses_room(job))
        return 0;
    if (p->do_remote_decode && p->do_remote_prefill)
        return sim_problem_set(problem_p, 400,
                               "kv_transfer_params: do_remote_decode and do_remote_prefill exclude "
                               "each other");
    if (!p->has_room || p->is_room_wrong)
        return sim_problem_set(problem_p, 400,
                               "kv_transfer_params.baton_room: must be an integer from 1 to "
                               "9223372036854775807");
    if (ask->prompt_count != 1 || ask->n != 1 || ask->prompts[0].blocks == 0)
        return sim_problem_set(
            problem_p, 400,
            "kv_transfer_params.baton_room: a room is for one prompt of at least "
            "one token and one sample; got %u prompts, n=%lld",
            ask->prompt_count, (long long) ask->n);
    return 0;
}

/* ---- prefill ---- */

static void on_sent(sim_kv_room_t *room, void *user)
{
    sim_job_t *job = user;

    (void) room;
    job->kv_room = NULL;
}

static void fail_open(sim_job_t *job, int rc)
{
    job->worker->counters.failed_transfers++;
    sim_job_fail(job, 500, "KV transfer failed: room %" PRIu64 " cannot be opened: %s",
                 job->params.room, bt_kv_error_text(rc));
}

static bool open_sender(sim_job_t *job)
{
    const sim_prompt_t *prompt = &job->ask.prompts[0];
    sim_kv_ask_t ask = {.number = job->params.room,
                        .ids = job->ids[0],
                        .blocks = prompt->blocks,
                        .prefix = job->hits[0],
                        .on_end = on_sent,
                        .user = job};
    int rc = sim_kv_send_open(job->worker->kv, &ask, &job->kv_room);

    if (rc == 0)
        return true;
    fail_open(job, rc);
    return false;
}

static bool is_sender(const sim_job_t *job)
{
    return job->kv_room != NULL && job->kv_room->is_sender;
}

void sim_baton_computed(sim_job_t *job, unsigned i, unsigned first)
{
    const sim_prompt_t *prompt = &job->ask.prompts[i];

    if (job->worker->kv == NULL)
        return;
    sim_kv_write(job->worker->kv, job->ids[i], first, prompt->blocks);
    if (!is_sender(job))
        return;
    job->kv_room->aux_bytes = prompt->bytes;
    job->kv_room->aux_kv = sim_blocks_kv(&job->worker->blocks, job->ids[i], prompt->blocks);
    if (job->fault.kind == SIM_KV_STALL)
        sim_kv_stall(job->kv_room, job->fault.after_chunks);
    else if (job->fault.kind == SIM_KV_CORRUPT)
        sim_kv_corrupt(job->kv_room, job->fault.after_chunks);
}

void sim_baton_computing(sim_job_t *job, uint64_t ms)
{
    if (is_sender(job))
        sim_kv_send_paced(job->kv_room, ms);
}

void sim_baton_first_token(sim_job_t *job)
{
    if (is_sender(job))
        sim_kv_send_rest(job->kv_room);
}

/* The answer goes out, the KV stays until somebody has it or nobody will. */
void sim_baton_finished(sim_job_t *job)
{
    if (!is_sender(job))
        return;
    sim_kv_leave(job->kv_room);
    job->kv_room = NULL;
}

void sim_baton_left(sim_job_t *job)
{
    sim_kv_room_t *room = job->kv_room;

    job->kv_room = NULL;
    if (room != NULL)
        sim_kv_abort(room, "the request was aborted");
}

/* ---- decode ---- */

/* The blocks of the failed room are still its own: a writer may be in them. Others are taken. */
static void compute_instead(sim_job_t *job)
{
    sim_blocks_release(&job->worker->blocks, job->ids[0], job->ask.prompts[0].blocks);
    job->ids[0] = NULL;
    job->params.do_remote_prefill = false;
    job->worker->counters.failed_transfers++;
    sim_vllm_admit(job);
}

static void use_arrived(sim_job_t *job, const sim_kv_room_t *room)
{
    const sim_prompt_t *prompt = &job->ask.prompts[0];
    unsigned cached = room->prefix * job->worker->options.block_size;
    uint64_t kv = sim_kv_read(job->worker->kv, prompt, job->ids[0]);
    size_t bytes = 0;

    for (unsigned i = 0; i < prompt->blocks; i++)
        bytes += job->worker->blocks.table[job->ids[0][i]].bytes;
    kv ^= sim_mix(sim_kv_aux(room, bytes, kv)); /* sim_mix(0) is 0 */
    job->kv_source = "external";
    job->cached_tokens = cached;
    job->external_tokens = prompt->tokens - cached;
    job->worker->counters.kv_read++;
    sim_job_got_kv(job, 0, kv);
}

static void on_received(sim_kv_room_t *room, void *user)
{
    sim_job_t *job = user;

    job->kv_room = NULL;
    if (job->phase != SIM_WAITING)
        return;
    if (!room->is_failed) {
        use_arrived(job, room);
    } else if (job->worker->options.kv_recompute) {
        compute_instead(job);
    } else {
        job->worker->counters.failed_transfers++;
        sim_job_fail(job, 500, "KV transfer failed: room %" PRIu64 ": %s", room->number,
                     room->reason);
    }
}

static void open_receiver(sim_job_t *job)
{
    sim_kv_ask_t ask = {.number = job->params.room,
                        .ids = job->ids[0],
                        .blocks = job->ask.prompts[0].blocks,
                        .prefix = job->hits[0],
                        .source = job->params.source,
                        .on_end = on_received,
                        .user = job};
    int rc = sim_kv_recv_open(job->worker->kv, &ask, &job->kv_room);

    if (rc != 0)
        fail_open(job, rc);
}

bool sim_baton_admit(sim_job_t *job)
{
    if (job->worker->kv == NULL || !uses_room(job))
        return false;
    if (job->params.do_remote_decode)
        return !open_sender(job);
    open_receiver(job);
    return true;
}
