/* bootstrap.c - the registry that an SGLang prefill, or one with MooncakeConnector, serves on a port of its own. */
#include "mooncake.h"
#include "routes.h"

#include <stdio.h>

static long query_number(bt_str_t query, const char *name)
{
    ptrdiff_t at = bt_str_find(query, bt_str(name));
    long value = -2;

    if (at < 0)
        return -2;
    query.p += (size_t) at + strlen(name);
    query.n -= (size_t) at + strlen(name);
    if (query.n < 2 || query.p[0] != '=')
        return -2;
    for (size_t i = 1; i < query.n && query.p[i] != '&'; i++) {
        if (i == 1)
            value = 0;
        if (query.p[i] == '-')
            return -1;
        if (query.p[i] < '0' || query.p[i] > '9')
            return -2;
        value = value * 10 + (query.p[i] - '0');
    }
    return value;
}

static void serve_info(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_printf(&t,
                   "{\"attn_tp_size\": %u, \"attn_cp_size\": 1, \"dp_size\": %u, \"pp_size\": 1, "
                   "\"page_size\": %u, "
                   "\"kv_cache_dtype\": \"auto\", \"follow_bootstrap_room\": true, "
                   "\"enable_dsa_cache_layer_split\": false, "
                   "\"decode_allocation_policy\": \"early\", \"enable_kv_cache_sharding\": false, "
                   "\"prefill_http_port\": %u, "
                   "\"target_tp_rank\": null}",
                   worker->options.tp, worker->options.dp, worker->options.block_size,
                   worker->port);
    sim_respond_json(x, 200, &t);
}

static void serve_route(sim_worker_t *worker, bt_exchange_t *x)
{
    static const char *const names[] = {"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank",
                                        "target_pp_rank"};
    const unsigned sizes[] = {worker->options.dp, 1, worker->options.tp, 1};
    long ranks[4];
    bool all_any = true, known = true;
    bt_text_t t;

    for (unsigned i = 0; i < 4; i++) {
        ranks[i] = query_number(x->head.query, names[i]);
        if (ranks[i] == -2) {
            sim_respond_text(x, 400, "Missing inputs for bootstrap server.");
            return;
        }
        all_any &= ranks[i] == -1;
        known &= ranks[i] >= 0 && ranks[i] < (long) sizes[i];
    }
    if (all_any) {
        serve_info(worker, x);
        return;
    }
    bt_text_init(&t);
    if (known) {
        bt_text_printf(&t, "{\"rank_ip\": \"127.0.0.1\", \"rank_port\": %u}", worker->port);
        sim_respond_json(x, 200, &t);
        return;
    }
    bt_text_printf(&t,
                   "Bootstrap info not found for dp_rank=%ld cp_rank=%ld tp_rank=%ld pp_rank=%ld",
                   ranks[0], ranks[1], ranks[2], ranks[3]);
    sim_respond_text(x, 404, bt_text_str(&t).p);
    bt_text_fini(&t);
}

void sim_bootstrap_serve(sim_worker_t *worker, bt_exchange_t *x)
{
    bt_text_t t;

    if (worker->is_dead)
        return; /* the process hangs until it is killed */
    if (worker->options.connector == SIM_MOONCAKE) {
        sim_mooncake_query(worker, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/health"))) {
        sim_respond_text(x, 200, "OK");
    } else if (bt_str_eq(x->head.path, BT_STR("/route")) && x->head.method == BT_GET) {
        serve_route(worker, x);
    } else if (bt_str_eq(x->head.path, BT_STR("/route")) && x->head.method == BT_PUT) {
        sim_respond_text(x, 200, "OK");
    } else if (bt_str_eq(x->head.path, BT_STR("/register_dp_rank"))) {
        sim_respond_text(x, 200, "OK");
    } else if (bt_str_eq(x->head.path, BT_STR("/query_dp_ranks"))) {
        bt_text_init(&t);
        bt_text_puts(&t, "{}");
        sim_respond_json(x, 200, &t);
    } else {
        sim_respond_text(x, bt_str_eq(x->head.path, BT_STR("/route")) ? 405 : 404, "");
    }
}
