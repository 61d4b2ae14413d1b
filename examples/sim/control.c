/* control.c - /sim/...: what specs ask and order. No real engine has these routes. */
#include "base/text.h"
#include "kv.h"
#include "registrant.h"
#include "rooms.h"
#include "routes.h"
#include "worker.h"

#include <stdio.h>

static void put_counters(bt_text_t *t, const sim_counters_t *c)
{
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        {"requests", c->requests},
        {"answered", c->answered},
        {"failed", c->failed},
        {"cancelled", c->cancelled},
        {"kv_held", c->kv_held},
        {"kv_read", c->kv_read},
        {"kv_expired", c->kv_expired},
        {"kv_freed_unread", c->kv_freed_unread},
        {"notifications_after_expiry", c->notifications_after_expiry},
        {"failed_transfers", c->failed_transfers},
        {"callbacks_sent", c->callbacks_sent},
        {"callbacks_answered", c->callbacks_answered},
        {"callback_status", c->callback_status},
        {"prompt_tokens", c->prompt_tokens},
        {"generation_tokens", c->generation_tokens},
        {"local_compute", c->local_compute},
        {"local_cache_hit", c->local_cache_hit},
        {"external_kv", c->external_kv},
        {"media_encoded", c->media_encoded},
        {"media_fetched", c->media_fetched},
        {"media_local", c->media_local},
        {"aborts_asked", c->aborts_asked},
        {"aborts_hit", c->aborts_hit},
        {"bootstrap_failed", c->bootstrap_failed},
        {"transfer_failed", c->transfer_failed},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        bt_text_printf(t, ",\"%s\":%llu", all[i].name, (unsigned long long) all[i].value);
}

static void put_phases(bt_text_t *t, const sim_worker_t *worker)
{
    static const char *const names[] = {"waiting", "parked", "computing", "answering"};
    unsigned counts[5] = {0}, ghosts = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&worker->jobs, it, tmp) {
        const sim_job_t *job = bt_container_of(it, sim_job_t, link);
        counts[job->phase]++;
        ghosts += job->x == NULL;
    }
    for (unsigned i = 0; i < 4; i++)
        bt_text_printf(t, ",\"%s\":%u", names[i], counts[i]);
    bt_text_printf(t, ",\"live\":%u,\"without_client\":%u",
                   counts[0] + counts[1] + counts[2] + counts[3], ghosts);
}

static void put_held(bt_text_t *t, const sim_worker_t *worker)
{
    unsigned requests = 0, blocks = 0, rooms = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&worker->held, it, tmp) {
        blocks += bt_container_of(it, sim_held_t, link)->blocks;
        requests++;
    }
    if (worker->kv != NULL) {
        blocks += sim_kv_held(worker->kv, &rooms);
        requests += rooms;
    }
    bt_text_printf(t,
                   ",\"held_kv_requests\":%u,\"held_kv_blocks\":%u,\"used_blocks\":%u,\"rooms\":%u",
                   requests, blocks, worker->blocks.used, sim_rooms_count(worker->world, worker));
}

static void serve_state(sim_worker_t *worker, bt_exchange_t *x)
{
    const sim_worker_options_t *o = &worker->options;
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"name\":\"%s\",\"role\":\"%s\",\"engine\":\"%s\",\"connector\":\"%s\","
                   "\"engine_id\":\"%s\",\"model\":\"%s\","
                   "\"port\":%u,\"bootstrap_port\":%u,\"side_port\":%u,\"engine_dead\":%s",
                   o->name, sim_role_name(o->role), sim_engine_name(o->engine), o->connector_name,
                   o->engine_id, o->model, worker->port, worker->bootstrap_port, worker->side_port,
                   worker->is_dead ? "true" : "false");
    if (o->connector == SIM_P2P_NCCL || o->connector == SIM_MORIIO) {
        char kv_address[SIM_KV_ADDRESS_MAX];
        sim_kv_address(worker, kv_address);
        bt_text_printf(&t, ",\"kv_address\":\"%s\"", kv_address);
    }
    put_held(&t, worker);
    put_phases(&t, worker);
    put_counters(&t, &worker->counters);
    bt_text_printf(&t, ",\"connections\":%u,\"faults\":%u,\"rank_requests\":[",
                   worker->server != NULL ? bt_server_connection_count(worker->server) : 0,
                   worker->faults.count);
    for (unsigned i = 0; i < o->dp && i < 16; i++)
        bt_text_printf(&t, "%s%llu", i > 0 ? "," : "",
                       (unsigned long long) worker->counters.rank_requests[i]);
    bt_text_puts(&t, "]");
    if (worker->kv != NULL)
        sim_kv_print(worker->kv, &t);
    bt_text_puts(&t, "}");
    sim_respond_json(x, 200, &t);
}

static void serve_requests(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_str_t query = x->head.query, since = BT_STR("since=");
    ptrdiff_t at = bt_str_find(query, since);
    uint64_t from = 0;
    bt_text_t t;

    if (at >= 0)
        bt_str_u64((bt_str_t){query.p + (size_t) at + since.n, query.n - (size_t) at - since.n},
                   &from);
    bt_text_init(&t);
    sim_record_print(&worker->record, from, &t);
    sim_respond_json(x, 200, &t);
}

static void serve_fault(sim_worker_t *worker, bt_exchange_t *x)
{
    char error[160];
    sim_fault_t fault;
    bt_text_t t;

    bt_text_init(&t);
    if (x->head.method == BT_DELETE) {
        worker->faults.count = 0;
        bt_text_puts(&t, "{\"ok\":true}");
        sim_respond_json(x, 200, &t);
        return;
    }
    if (sim_fault_read(x->body, &fault, error, sizeof(error)) != 0) {
        bt_text_puts(&t, "{\"error\":");
        bt_text_json_str(&t, bt_str(error));
        bt_text_puts(&t, "}");
        sim_respond_json(x, 400, &t);
        return;
    }
    /* These two need no request to come first. */
    if (fault.kind == SIM_REFUSE && fault.path[0] == '\0')
        sim_worker_refuse(worker, fault.ms);
    else if (fault.kind == SIM_DIE && fault.path[0] == '\0' && fault.after_chunks == 0 &&
             fault.times == 1)
        sim_worker_die(worker);
    else
        sim_faults_add(&worker->faults, &fault);
    bt_text_puts(&t, "{\"ok\":true}");
    sim_respond_json(x, 200, &t);
}

static void put_text(sim_raw_t raw, char *out, size_t size, bt_arena_t *arena)
{
    bt_str_t text = raw.type == BT_JSON_STRING ? sim_raw_text(raw, arena) : BT_STR("");

    snprintf(out, size, "%.*s", BT_STR_ARG(text));
}

/* {"gateway":"127.0.0.1:4711","token":"..."}: one more gateway for this worker's agents. */
static void serve_gateway(sim_worker_t *worker, bt_exchange_t *x)
{
    char address[64], token[128], error[200] = "this worker has no BatonConnector";
    int rc = -1;
    bt_text_t t;

    put_text(sim_raw_get(x->body, "gateway"), address, sizeof(address), &x->arena);
    put_text(sim_raw_get(x->body, "token"), token, sizeof(token), &x->arena);
    if (worker->kv != NULL)
        rc = sim_kv_gateway(worker->kv, bt_str(address), token[0] != '\0' ? token : NULL, error,
                            sizeof(error));
    bt_text_init(&t);
    bt_text_puts(&t, rc == 0 ? "{\"ok\":true}" : "{\"error\":");
    if (rc != 0) {
        bt_text_json_str(&t, bt_str(error));
        bt_text_puts(&t, "}");
    }
    sim_respond_json(x, rc == 0 ? 200 : 400, &t);
}

/* {"register":"127.0.0.1:30001"}: from now on there; "": nowhere any more. */
static void serve_register(sim_worker_t *worker, bt_exchange_t *x)
{
    const bool can =
        worker->options.connector == SIM_P2P_NCCL || worker->options.connector == SIM_MORIIO;

    if (!can) {
        sim_respond_text(x, 400, "this worker's connector does not register\n");
        return;
    }
    sim_registrant_close(worker);
    put_text(sim_raw_get(x->body, "register"), worker->options.registers_at,
             sizeof(worker->options.registers_at), &x->arena);
    if (worker->is_dead || sim_registrant_open(worker) == 0)
        sim_respond_text(x, 200, "ok\n");
    else
        sim_respond_text(x, 400, "ZeroMQ does not take that address\n");
}

/* {"elsewhere":true}: on other ports. Whoever is asked stays: it has to answer. */
static void serve_end(sim_worker_t *worker, sim_worker_t *named, bt_exchange_t *x)
{
    bt_text_t t;

    if (named == worker) {
        sim_respond_text(x, 400, "ask another worker of the process: ?worker=NAME\n");
        return;
    }
    if (bt_str_eq(x->head.path, BT_STR("/sim/terminate")))
        sim_worker_terminate(named);
    else
        sim_worker_restart(named, sim_raw_get(x->body, "elsewhere").type == BT_JSON_TRUE);
    bt_text_init(&t);
    bt_text_printf(&t, "{\"port\":%u,\"engine_id\":\"%s\"}", named->port, named->options.engine_id);
    sim_respond_json(x, 200, &t);
}

/* A closed worker has no listener, so any other worker of the process can be asked to reset it: ?worker=NAME. */
static sim_worker_t *find_named(sim_worker_t *worker, bt_str_t query)
{
    bt_str_t key = BT_STR("worker=");

    if (!bt_str_starts(query, key))
        return worker;
    query.p += key.n;
    query.n -= key.n;
    for (unsigned i = 0; i < worker->world->worker_count; i++)
        if (bt_str_eq(query, bt_str(worker->world->workers[i]->options.name)))
            return worker->world->workers[i];
    return NULL;
}

void sim_control_serve(sim_worker_t *worker, bt_exchange_t *x)
{
    sim_worker_t *named = find_named(worker, x->head.query);
    bt_text_t t;

    if (named == NULL) {
        sim_respond_text(x, 404, "no such worker\n");
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/state"))) {
        serve_state(named, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/requests"))) {
        serve_requests(worker, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/fault"))) {
        serve_fault(named, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/gateway"))) {
        serve_gateway(named, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/register"))) {
        serve_register(named, x);
    } else if (x->head.method == BT_POST && (bt_str_eq(x->head.path, BT_STR("/sim/terminate")) ||
                                             bt_str_eq(x->head.path, BT_STR("/sim/restart")))) {
        serve_end(worker, named, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/sim/reset")) && x->head.method == BT_POST) {
        sim_worker_reset(named);
        bt_text_init(&t);
        bt_text_puts(&t, "{\"ok\":true}");
        sim_respond_json(x, 200, &t);
    } else {
        sim_respond_text(
            x, 404,
            "paths: /sim/state /sim/requests?since= /sim/fault /sim/gateway /sim/register "
            "/sim/terminate /sim/restart /sim/reset\n");
    }
}
