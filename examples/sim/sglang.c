/* sglang.c - what an SGLang engine does with a request: rooms, timers, aborts, and the ways to kill it.
 *
 *   prefill:  room joined -> decode there? -> compute -> hand the KV over -> answer (one token)
 *   decode:   room joined -> prefill there, computed -> KV -> answer
 *
 * Both wait for each other by a timer. A failed prefill tells nobody; an aborted decode tells its prefill.
 */
#include "sglang.h"
#include "rooms.h"
#include "words.h"
#include "worker.h"

#include "job.h"
#include <stdio.h>

#define HANDSHAKE_MS 14000
#define LOST_MS 8300
#define POLL_MS 4000
#define EXIT_MS 5100
#define FAKE_HOST "2.2.2.2"

/* ---- KV of this worker ---- */

static void count_tokens(sim_job_t *job)
{
    sim_blocks_t *blocks = &job->worker->blocks;

    for (unsigned i = 0; i < job->ask.prompt_count; i++) {
        const sim_prompt_t *prompt = &job->ask.prompts[i];
        uint32_t *ids = bt_arena_alloc(&job->arena, (prompt->blocks + 1) * sizeof(*ids));
        unsigned cached;
        if (sim_blocks_take(blocks, prompt, ids, &job->hits[i])) {
            job->ids[i] = ids;
            sim_blocks_compute(blocks, prompt, ids, job->hits[i]);
        }
        cached = job->hits[i] * job->worker->options.block_size;
        job->cached_tokens += cached;
        job->computed_tokens += prompt->tokens - cached;
    }
}

static void compute_here(sim_job_t *job)
{
    unsigned count = job->sample_count;

    count_tokens(job);
    for (unsigned i = 0; i < count; i++)
        sim_job_got_kv(job, i, job->ask.prompts[job->samples[i].prompt].kv);
}

static void take_external(sim_job_t *job)
{
    job->kv_source = "external";
    for (unsigned i = 0; i < job->ask.prompt_count; i++)
        job->external_tokens += job->ask.prompts[i].tokens;
}

/* The fake host moves nothing: decode goes on with whatever lies in its memory. */
static void use_garbage(sim_job_t *job)
{
    unsigned count = job->sample_count;

    take_external(job);
    job->kv_source = "fake";
    for (unsigned i = 0; i < count; i++)
        sim_job_got_kv(job, i, sim_mix(job->ask.prompts[job->samples[i].prompt].kv + 1));
}

/* ---- prefill ---- */

static const char *rid(const sim_job_t *job)
{
    return job->id;
}

static unsigned long long room_of(const sim_job_t *job)
{
    /* A job that a fault parked at its arrival has no samples. */
    return job->samples != NULL ? (unsigned long long) job->samples[0].room_number : 0;
}

#define FAILED(job, what, fmt, ...)                                                                \
    sim_job_fail((job), 500, what " for request rank=0 " fmt, __VA_ARGS__)

static void fail_prefill(sim_job_t *job, const char *reason)
{
    unsigned long long room = room_of(job);

    job->worker->counters.bootstrap_failed++;
    FAILED(job, "Prefill bootstrap failed",
           "req.rid='%s' req.bootstrap_room=%llu with exception "
           "KVTransferError(bootstrap_room=%llu): %s",
           rid(job), room, room, reason);
}

static void fail_decode(sim_job_t *job, const char *reason)
{
    unsigned long long room = room_of(job);

    job->worker->counters.transfer_failed++;
    FAILED(job, "Decode transfer failed",
           "decode_req.req.rid='%s' decode_req.req.bootstrap_room=%llu with exception "
           "KVTransferError(bootstrap_room=%llu): %s",
           rid(job), room, room, reason);
}

static void time_out(sim_job_t *job)
{
    bool is_prefill = sim_sglang_role(job) == SIM_PREFILL;
    double seconds =
        job->worker->options.waiting_ms * job->worker->world->options->time_scale / 1000;
    char reason[128];

    snprintf(reason, sizeof(reason), "Request %llu timed out after %.1fs in KVPoll.%s",
             room_of(job), seconds, is_prefill ? "Bootstrapping" : "WaitingForInput");
    if (is_prefill)
        fail_prefill(job, reason);
    else
        fail_decode(job, reason);
}

static void start_timer(sim_job_t *job)
{
    sim_job_later(job, sim_scaled_ms(job->worker->world, job->worker->options.waiting_ms),
                  time_out);
}

static void fail_unknown(sim_job_t *job)
{
    fail_prefill(job, "Failed due to an unknown reason from another rank");
}

/* The prefill computes once each of its samples has a decode. */
static void pair_prefill(sim_sample_t *s)
{
    sim_job_t *job = s->job;

    if (s->is_paired)
        return;
    s->is_paired = true;
    for (unsigned i = 0; i < job->sample_count; i++)
        if (!job->samples[i].is_paired)
            return;
    bt_timer_stop(&job->timer);
    compute_here(job);
}

static void admit_prefill(sim_job_t *job)
{
    sim_world_t *world = job->worker->world;
    unsigned paired = 0, count = job->sample_count;

    for (unsigned i = 0; i < count; i++) {
        sim_sample_t *s = &job->samples[i];
        sim_room_t *room = sim_room_get(world, job->worker, s->room_number);
        if (room == NULL || room->is_aborted) {
            sim_job_later(job, 4, fail_unknown);
            return;
        }
        s->room = room;
        bt_list_push(&room->prefills, &s->room_link);
        if (!room->has_kv) {
            room->has_kv = true;
            room->kv = job->ask.prompts[s->prompt].kv;
        }
        job->worker->counters.rank_requests[(s->room_number % job->worker->options.dp) & 15]++;
        paired += s->is_paired = room->decode != NULL;
    }
    if (paired == count)
        compute_here(job);
    else
        start_timer(job);
}

/* ---- decode ---- */

static sim_worker_t *find_prefill(sim_world_t *world, sim_raw_t host, sim_raw_t port)
{
    bt_str_t name =
        host.type == BT_JSON_STRING ? (bt_str_t){host.value.p + 1, host.value.n - 2} : BT_STR_NULL;
    bt_str_t digits =
        port.type == BT_JSON_STRING ? (bt_str_t){port.value.p + 1, port.value.n - 2} : port.value;
    uint64_t number = 0;

    if (bt_str_u64(digits, &number) != 0 ||
        !(bt_str_eq(name, BT_STR("127.0.0.1")) || bt_str_eq(name, BT_STR("localhost"))))
        return NULL;
    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        if (w->options.engine == SIM_SGLANG && w->options.role == SIM_PREFILL &&
            w->bootstrap_port == number && !w->is_dead)
            return w;
    }
    return NULL;
}

static void fail_handshake(sim_job_t *job)
{
    unsigned long long room = room_of(job);

    job->worker->counters.transfer_failed++;
    FAILED(job, "Decode handshake failed",
           "decode_req.req.rid='%s' decode_req.req.bootstrap_room=%llu with exception "
           "KVTransferError(bootstrap_room=%llu): "
           "Aborted by AbortReq.",
           rid(job), room, room);
}

/* Who sat in the seat before waits for ever now: nothing will be sent to it, and its timer was the room's. */
static void take_slot(sim_sample_t *s, sim_room_t *room)
{
    if (room->decode != NULL) {
        room->decode->room = NULL;
        sim_job_park(room->decode->job);
    }
    room->decode = s;
    s->room = room;
}

static void pair_prefills(sim_room_t *room)
{
    bt_list_t *it, *tmp;
    sim_sample_t *waiting[64];
    unsigned count = 0;

    bt_list_each (&room->prefills, it, tmp) {
        if (count < 64)
            waiting[count++] = bt_container_of(it, sim_sample_t, room_link);
    }
    /* With zero latency the first of them can empty the room, and end its job with all its samples. */
    for (unsigned i = 0; i < count; i++) {
        bool is_last = i + 1 == count || waiting[i + 1]->job != waiting[i]->job;
        if (is_last)
            pair_prefill(waiting[i]);
        else
            waiting[i]->is_paired = true;
    }
}

/* Fills room numbers; a decode that lacks a part never gets to the rooms. False: over or parked. */
static bool join_rooms(sim_job_t *job)
{
    sim_world_t *world = job->worker->world;
    const sim_ask_t *ask = &job->ask;

    for (unsigned i = 0; i < job->sample_count; i++) {
        sim_sample_t *s = &job->samples[i];
        sim_worker_t *prefill =
            find_prefill(world, sim_raw_at(ask->host, s->prompt), sim_raw_at(ask->port, s->prompt));
        sim_room_t *room;
        if (prefill == NULL) {
            sim_job_later(job, sim_scaled_ms(world, HANDSHAKE_MS), fail_handshake);
            return false;
        }
        room = sim_room_get(world, prefill, s->room_number);
        if (room == NULL || s->room_number > INT64_MAX)
            continue;
        job->worker->counters.rank_requests[(s->room_number % job->worker->options.dp) & 15]++;
        take_slot(s, room);
    }
    return true;
}

static void admit_decode(sim_job_t *job)
{
    unsigned count = job->sample_count;
    sim_room_t *rooms[128];

    take_external(job);
    if (job->fault.kind == SIM_KV_LOST) {
        sim_job_later(job, 1, fail_handshake);
        return;
    }
    if (!join_rooms(job))
        return;
    if (job->phase != SIM_PARKED)
        start_timer(job);
    for (unsigned i = 0; i < count; i++)
        rooms[i & 127] = job->samples[i].room;
    for (unsigned i = 0; i < count && i < 128; i++) {
        bool repeated = false;
        for (unsigned k = 0; k < i; k++)
            repeated |= rooms[k] == rooms[i];
        if (rooms[i] != NULL && !repeated)
            pair_prefills(rooms[i]);
    }
}

/* ---- both ---- */

static void number_rooms(sim_job_t *job)
{
    const sim_ask_t *ask = &job->ask;

    for (unsigned i = 0; i < job->sample_count; i++) {
        sim_sample_t *s = &job->samples[i];
        bool is_list = ask->room.type == BT_JSON_ARRAY;
        sim_sglang_read_room(sim_raw_at(ask->room, s->prompt), &s->room_number);
        if (!is_list)
            s->room_number +=
                s->prompt; /* a single room of a batch is the first of a run; samples share theirs */
    }
}

static bool is_fake(const sim_job_t *job)
{
    return bt_str_eq(sim_raw_at(job->ask.host, 0).value, BT_STR("\"" FAKE_HOST "\""));
}

/* A list where the engine wants one value: unhashable, and the scheduler dies of it. */
static bool has_list_for_one(const sim_job_t *job)
{
    const sim_ask_t *ask = &job->ask;

    return !ask->is_list && (ask->room.type == BT_JSON_ARRAY || ask->host.type == BT_JSON_ARRAY ||
                             ask->port.type == BT_JSON_ARRAY);
}

static void admit_split(sim_job_t *job)
{
    bool is_prefill = sim_sglang_role(job) == SIM_PREFILL;

    if (has_list_for_one(job)) {
        sim_worker_die(job->worker);
        return;
    }
    number_rooms(job);
    if (is_prefill && job->samples[0].room_number > INT64_MAX) {
        sim_worker_die(job->worker); /* Overflow when unpacking long long */
        return;
    }
    if (is_fake(job)) {
        if (is_prefill)
            compute_here(job);
        else
            use_garbage(job);
        return;
    }
    if (is_prefill)
        admit_prefill(job);
    else if (sim_sglang_is_absent(job->ask.host))
        sim_worker_die(job->worker); /* 'NoneType' object has no attribute 'startswith' */
    else if (sim_sglang_is_absent(job->ask.port))
        sim_job_park(job);
    else
        admit_decode(job);
}

static void admit(sim_job_t *job)
{
    if (sim_sglang_is_split(job))
        admit_split(job);
    else
        compute_here(job);
}

/* Prefill has computed: the KV of each room goes to whoever sits there. The rooms are closed before anybody runs on. */
static void first_token(sim_job_t *job)
{
    sim_world_t *world = job->worker->world;

    if (sim_sglang_role(job) != SIM_PREFILL || !sim_sglang_is_split(job))
        return;
    for (unsigned i = 0; i < job->sample_count; i++) {
        sim_room_t *room = job->samples[i].room;
        sim_sample_t *decode;
        uint64_t kv;
        if (room == NULL)
            continue;
        decode = room->decode;
        kv = room->kv;
        sim_room_close(world, room);
        if (decode == NULL)
            continue;
        decode->job->cached_tokens = job->cached_tokens;
        if (decode->job->phase == SIM_WAITING && decode->job->without_kv == 1)
            bt_timer_stop(&decode->job->timer);
        sim_job_got_kv(decode->job, (unsigned) (decode - decode->job->samples), kv);
    }
}

static void finished(sim_job_t *job)
{
    (void) job;
}

static void left(sim_job_t *job)
{
    for (unsigned i = 0; job->samples != NULL && i < job->sample_count; i++)
        sim_room_leave(&job->samples[i]);
}

/* ---- aborts ---- */

static void mark_aborted(sim_job_t *job)
{
    for (unsigned i = 0; job->samples != NULL && i < job->sample_count; i++) {
        sim_room_t *room = job->samples[i].room;
        sim_sample_t *prefill;
        if (room == NULL)
            continue;
        room->is_aborted = true;
        room->aborted_ms = bt_clock_ms();
        if (bt_list_empty(&room->prefills))
            continue;
        prefill = bt_container_of(room->prefills.next, sim_sample_t, room_link);
        if (prefill->job->phase == SIM_WAITING)
            sim_job_later(prefill->job, 4, fail_unknown);
    }
}

void sim_sglang_abort(sim_job_t *job)
{
    if (job->phase == SIM_ANSWERING) {
        sim_job_stop(job, "abort");
    } else if (sim_sglang_role(job) == SIM_PREFILL) {
        fail_prefill(job, "Aborted by AbortReq.");
    } else if (sim_sglang_role(job) == SIM_DECODE) {
        mark_aborted(job);
        fail_decode(job, "Aborted by AbortReq.");
    } else {
        sim_job_fail(job, 500, "Aborted by AbortReq.");
    }
}

/* A running stream ends at once; everything else is found by a poll, and goes on until then. */
static void client_gone(sim_job_t *job)
{
    uint64_t elapsed_ms = (bt_clock_us() - job->start_us) / 1000;
    uint64_t poll_ms = sim_scaled_ms(job->worker->world, POLL_MS);

    if (job->is_polled || (job->is_streaming && job->phase == SIM_ANSWERING)) {
        sim_sglang_abort(job);
        return;
    }
    if (job->fault.kind == SIM_HANG || job->fault.kind == SIM_HANG_HEADERS ||
        job->fault.kind == SIM_STALL) {
        sim_job_cut(job, false);
        return;
    }
    bt_timer_start(&job->poll, poll_ms - elapsed_ms % poll_ms);
}

/* Decodes that wait for a prefill which is gone learn it by missed heartbeats. */
static void fail_lost(sim_job_t *job)
{
    fail_decode(job, job->failure);
}

static void lose_prefill(sim_worker_t *prefill)
{
    sim_world_t *world = prefill->world;

    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        bt_list_t *it, *tmp;
        bt_list_each (&w->jobs, it, tmp) {
            sim_job_t *job = bt_container_of(it, sim_job_t, link);
            if (w->options.role != SIM_DECODE || job->phase != SIM_WAITING ||
                job->samples == NULL || job->samples[0].room == NULL ||
                job->samples[0].room->prefill_worker != prefill)
                continue;
            snprintf(job->failure, sizeof(job->failure),
                     "Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:%u)",
                     prefill->bootstrap_port);
            sim_job_later(job, sim_scaled_ms(world, LOST_MS), fail_lost);
        }
    }
    sim_rooms_clear(world, prefill);
}

/* Its process tree is killed as a whole: clients see their connections close without an answer. */
static void died(sim_worker_t *worker)
{
    bt_list_t *it, *tmp;

    bt_list_each (&worker->jobs, it, tmp)
        sim_job_park(bt_container_of(it, sim_job_t, link));
    if (worker->options.role == SIM_PREFILL)
        lose_prefill(worker);
}

const sim_engine_ops_t sim_sglang_ops = {sim_sglang_check, admit, first_token, finished, left,
                                         client_gone,      false, NULL,        died,     EXIT_MS};
