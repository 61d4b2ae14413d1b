/* What the engines' code does with a leg that is not as it should be, by connector:
 *
 *   P2pNcclConnector   an id without the other's address ends the engine (ValueError); an address of nobody, or KV that went to
 *                      another decode, is waited for until the client leaves
 *   MoRIIOConnector    a leg of the other role, an id without addresses and missing keys end the engine (assert, KeyError); sizes,
 *                      ranks and transfer ids that do not fit are waited for; READ with another engine's id fails the load
 */
#include "paired.h"

#include "job.h"
#include "registrant.h"
#include "worker.h"

#include <stdio.h>

#define PREFILL "___prefill_addr_"
#define DECODE "___decode_addr_"
#define ID_CHARS 32

static enum sim_connector connector_of(const sim_job_t *job)
{
    return job->worker->options.connector;
}

/* ---- ids ---- */

/* What stands between two words of the id, or nothing. */
static bt_str_t between(const char *id, const char *from, const char *to)
{
    const char *start = strstr(id, from), *end;

    if (start == NULL)
        return BT_STR_NULL;
    start += strlen(from);
    end = strstr(start, to);
    return end != NULL && end > start ? (bt_str_t){start, (size_t) (end - start)} : BT_STR_NULL;
}

/* ___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$ */
static bt_str_t decode_of_moriio(const char *id)
{
    const char *start = strstr(id, DECODE), *at;

    if (start == NULL)
        return BT_STR_NULL;
    start += strlen(DECODE);
    at = strrchr(start, '_');
    if (at == NULL || at == start || strspn(at + 1, "0123456789abcdef") != ID_CHARS ||
        (at[1 + ID_CHARS] != '\0' && at[1 + ID_CHARS] != '-'))
        return BT_STR_NULL;
    return (bt_str_t){start, (size_t) (at - start)};
}

/* ___decode_addr_(.*):(\d+): up to the last digits behind a colon. */
static bt_str_t decode_of_p2p(const char *id)
{
    const char *start = strstr(id, DECODE), *colon;

    if (start == NULL)
        return BT_STR_NULL;
    start += strlen(DECODE);
    colon = strrchr(start, ':');
    if (colon == NULL || colon[1] < '0' || colon[1] > '9')
        return BT_STR_NULL;
    return (bt_str_t){start, (size_t) (colon - start) + 1 + strspn(colon + 1, "0123456789")};
}

static bt_str_t partner_of(const sim_job_t *job, bool is_prefill)
{
    if (is_prefill)
        return connector_of(job) == SIM_MORIIO ? decode_of_moriio(job->id) : decode_of_p2p(job->id);
    return between(job->id, PREFILL, connector_of(job) == SIM_MORIIO ? DECODE : "___");
}

static sim_worker_t *find_by_address(const sim_job_t *job, bt_str_t address, enum sim_role role)
{
    sim_world_t *world = job->worker->world;
    char own[SIM_KV_ADDRESS_MAX];

    for (unsigned i = 0; i < world->worker_count; i++) {
        sim_worker_t *w = world->workers[i];
        if (w->options.connector != connector_of(job) || w->options.role != role)
            continue;
        sim_kv_address(w, own);
        if (bt_str_eq(address, bt_str(own)))
            return w;
    }
    return NULL;
}

/* Did prefill send to this worker? */
static bool names_me(const sim_job_t *job)
{
    const bt_str_t decode =
        connector_of(job) == SIM_MORIIO ? decode_of_moriio(job->id) : decode_of_p2p(job->id);

    return find_by_address(job, decode, SIM_DECODE) == job->worker;
}

static bool die(sim_job_t *job)
{
    sim_worker_die(job->worker);
    return true;
}

static bool wait_for_ever(sim_job_t *job)
{
    sim_job_park(job);
    return true;
}

/* ---- P2pNcclConnector ---- */

static bool admit_p2p(sim_job_t *job)
{
    const bool is_prefill = job->worker->options.role == SIM_PREFILL;
    const bt_str_t partner = partner_of(job, is_prefill);
    sim_worker_t *peer;

    if (partner.p == NULL)
        return die(job);
    peer = find_by_address(job, partner, is_prefill ? SIM_DECODE : SIM_PREFILL);
    if (peer == NULL || (!is_prefill && !names_me(job)))
        return wait_for_ever(job);
    if (is_prefill)
        return false;
    sim_vllm_wait(job, peer);
    return true;
}

/* ---- MoRIIOConnector ---- */

static int64_t number_of(const sim_job_t *job, const char *key)
{
    bt_json_item_t item;
    int64_t n;

    if (bt_json_get(job->ask.kv_params.value, bt_str(key), &item) < 0 ||
        item.type != BT_JSON_NUMBER || bt_json_i64(item.value, &n) < 0)
        return -1;
    return n;
}

static bt_str_t text_of(const sim_job_t *job, const char *key)
{
    bt_json_item_t item;

    if (bt_json_get(job->ask.kv_params.value, bt_str(key), &item) < 0 ||
        item.type != BT_JSON_STRING)
        return BT_STR_NULL;
    return (bt_str_t){item.value.p + 1, item.value.n - 2};
}

/* A flat list of block ids. */
static void read_ids(sim_job_t *job)
{
    sim_params_t *p = &job->params;
    bt_json_item_t list, id;
    bt_json_cursor_t c;
    int64_t n;

    p->id_count = 0;
    if (bt_json_get(job->ask.kv_params.value, BT_STR("remote_block_ids"), &list) < 0 ||
        list.type != BT_JSON_ARRAY)
        return;
    p->ids =
        bt_arena_alloc(&job->arena, (size_t) (bt_json_count(list.value) + 1) * sizeof(*p->ids));
    bt_json_array(&c, list.value);
    while (bt_json_next(&c, &id) == 1)
        p->ids[p->id_count++] = bt_json_i64(id.value, &n) == 0 && n > 0 ? (uint32_t) n : 0;
}

/* X-data-parallel-rank; an engine of one rank has rank 0. -1: the engine chooses, and the other side does not know. */
static int rank_of(const sim_job_t *job)
{
    const bt_str_t header = bt_head_get(&job->x->head, BT_STR("x-data-parallel-rank"));
    uint64_t rank;

    if (job->worker->options.dp == 1)
        return 0;
    return bt_str_u64(header, &rank) == 0 && rank < job->worker->options.dp ? (int) rank : -1;
}

static bool knows_partner(const sim_job_t *job, const sim_worker_t *peer)
{
    return number_of(job, "remote_dp_size") == (int64_t) peer->options.dp &&
           number_of(job, "remote_tp_size") == (int64_t) peer->options.tp;
}

static bool admit_moriio(sim_job_t *job)
{
    const bool is_prefill = job->worker->options.role == SIM_PREFILL;
    const bt_str_t partner = partner_of(job, is_prefill);
    sim_params_t *p = &job->params;
    sim_worker_t *peer;

    if (!p->is_there || (!p->do_remote_decode && !p->do_remote_prefill))
        return false; /* an ordinary request */
    if (is_prefill ? p->do_remote_prefill : p->do_remote_decode)
        return die(job); /* assert on the role */
    job->transfer_id = text_of(job, "transfer_id");
    job->paired_rank = rank_of(job);
    if (partner.p == NULL || job->transfer_id.p == NULL || number_of(job, "remote_dp_size") < 0 ||
        number_of(job, "remote_tp_size") < 0)
        return die(job);
    peer = find_by_address(job, partner, is_prefill ? SIM_DECODE : SIM_PREFILL);
    if (peer == NULL || !knows_partner(job, peer) || (!is_prefill && !names_me(job)))
        return wait_for_ever(job);
    if (is_prefill)
        return false;
    if (peer->options.dp > 1 && number_of(job, "remote_dp_rank") != job->paired_rank)
        return wait_for_ever(job);
    read_ids(job);
    char engine_id[64];
    snprintf(engine_id, sizeof(engine_id), "127.0.0.1:%u", peer->side_port);
    if (job->worker->options.read_mode && p->id_count == 0)
        return die(job);
    if (job->worker->options.read_mode &&
        !bt_str_eq(text_of(job, "remote_engine_id"), bt_str(engine_id)))
        return wait_for_ever(job); /* the handshake goes to nobody */
    sim_vllm_wait(job, peer);
    return true;
}

/* ---- both ---- */

bool sim_paired_admit(sim_job_t *job)
{
    if (job->worker->options.role == SIM_HYBRID)
        return false;
    if (connector_of(job) == SIM_P2P_NCCL)
        return admit_p2p(job);
    return connector_of(job) == SIM_MORIIO && admit_moriio(job);
}

/* MoRIIO's prefill keeps KV only when its token was not the end of the text: whether it is one cannot be known here, so a leg
 * that lets it be one keeps nothing. */
bool sim_paired_holds(const sim_job_t *job)
{
    if (job->worker->options.role != SIM_PREFILL)
        return false;
    if (connector_of(job) == SIM_P2P_NCCL)
        return true;
    return connector_of(job) == SIM_MORIIO && job->params.do_remote_decode && job->ask.ignores_eos;
}

bool sim_paired_is_for(const sim_job_t *job, const sim_held_t *held)
{
    return connector_of(job) != SIM_MORIIO ||
           (bt_str_eq(job->transfer_id, bt_str(held->transfer_id)) &&
            job->paired_rank == held->paired_rank);
}

bt_str_t sim_paired_reply(sim_job_t *job, sim_held_t *held)
{
    const sim_worker_options_t *o = &held->worker->options;
    bt_str_t out;
    bt_text_t t;

    if (connector_of(job) != SIM_MORIIO)
        return BT_STR_NULL;
    snprintf(held->transfer_id, sizeof(held->transfer_id), "%.*s", BT_STR_ARG(job->transfer_id));
    held->paired_rank = job->paired_rank;
    bt_text_init(&t);
    bt_text_puts(&t,
                 "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[");
    for (unsigned i = 0; i < held->blocks; i++)
        bt_text_printf(&t, "%s%u", i > 0 ? "," : "", held->ids[i]);
    bt_text_printf(&t,
                   "],\"remote_engine_id\":\"127.0.0.1:%u\",\"remote_host\":\"127.0.0.1\","
                   "\"remote_handshake_port\":%u,\"remote_notify_port\":61005,"
                   "\"remote_dp_rank\":%d,\"remote_dp_rank_override\":true,\"remote_dp_size\":%u,"
                   "\"remote_dp_size_local\":%u,\"tp_size\":%u,\"transfer_id\":\"%s\"}",
                   held->worker->side_port, held->worker->side_port, held->paired_rank, o->dp,
                   o->dp, o->tp, held->transfer_id);
    out = bt_arena_str(&job->arena, bt_text_str(&t));
    bt_text_fini(&t);
    return out;
}
