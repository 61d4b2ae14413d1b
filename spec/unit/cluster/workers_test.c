#include "help.h"

/* A pair that fits; each test spoils one thing. */
static bt_worker_spec_t p_spec, d_spec;
static bt_worker_t *p, *d;

static int setup(void **state)
{
    make_spec(&p_spec, BT_ROLE_PREFILL, "http://127.0.0.1:1", "NixlConnector");
    make_spec(&d_spec, BT_ROLE_DECODE, "http://127.0.0.1:2", "NixlConnector");
    p_spec.name = text("p0");
    d_spec.name = text("d0");
    p = d = NULL;
    return 0;
}

static int teardown(void **state)
{
    bt_worker_spec_fini(&p_spec);
    bt_worker_spec_fini(&d_spec);
    bt_worker_unref(p);
    bt_worker_unref(d);
    return 0;
}

static const char *refusal(void)
{
    p = worker_of(&p_spec);
    d = worker_of(&d_spec);
    return bt_workers_pair_refusal(p, d);
}

static void set(char **member, const char *value)
{
    free(*member);
    *member = text(value);
}

static void assert_refused(const char *part)
{
    const char *why = refusal();
    assert_non_null(why);
    assert_non_null(strstr(why, part));
}

static void equal_ones_fit(void **state)
{
    assert_null(refusal());
}

static void no_common_dialect(void **state)
{
    set(&d_spec.connector, "ExampleConnector");
    assert_refused("no common dialect");
}

static void no_common_capability(void **state)
{
    set(&d_spec.connector, "NixlPushConnector");
    assert_refused("no common dialect");
}

static void same_dialect_but_other_wire(void **state)
{
    set(&d_spec.connector, "MooncakeConnectorV1");
    assert_refused("read each other's KV");
}

static void unknown_connector(void **state)
{
    set(&d_spec.connector, "BarConnector");
    assert_refused("unknown connector BarConnector");
}

static void layerwise_tp_must_be_a_multiple(void **state)
{
    set(&p_spec.connector, "MooncakeLayerwiseConnector");
    set(&d_spec.connector, "MooncakeLayerwiseConnector");
    p_spec.tp_size = 2;
    d_spec.tp_size = 4;
    assert_refused("multiple");
}

static void nixl_tp_must_divide(void **state)
{
    p_spec.tp_size = 3;
    d_spec.tp_size = 2;
    assert_refused("divide");
}

static void nixl_tp_may_be_larger_on_either_side(void **state)
{
    p_spec.tp_size = 2;
    d_spec.tp_size = 8;
    assert_null(refusal());
}

static void mooncake_v1_tp_smaller_on_prefill(void **state)
{
    set(&p_spec.connector, "MooncakeConnectorV1");
    set(&d_spec.connector, "MooncakeConnectorV1");
    p_spec.tp_size = 2;
    d_spec.tp_size = 8;
    assert_refused("multiple of decode's");
}

static void mooncake_v1_tp_multiple_fits(void **state)
{
    set(&p_spec.connector, "MooncakeConnectorV1");
    set(&d_spec.connector, "MooncakeHybridConnector");
    p_spec.tp_size = 8;
    d_spec.tp_size = 2;
    assert_null(refusal());
}

static void pair_of(const char *prefill, const char *decode)
{
    set(&p_spec.connector, prefill);
    set(&d_spec.connector, decode);
}

static void p2p_nccl_tp_must_be_the_same(void **state)
{
    pair_of("P2pNcclConnector", "p2p_nccl");
    p_spec.tp_size = 2;
    d_spec.tp_size = 4;
    assert_refused("tp_size must be the same");
}

static void p2p_nccl_tp_is_the_same(void **state)
{
    pair_of("P2pNcclConnector", "nccl");
    p_spec.tp_size = d_spec.tp_size = 4;
    assert_null(refusal());
}

static void moriio_dp_must_be_the_same(void **state)
{
    pair_of("MoRIIOConnector", "moriio");
    p_spec.dp_size = 2;
    assert_refused("dp_size must be the same");
}

static void moriio_dp_is_what_was_registered(void **state)
{
    pair_of("MoRIIOConnector", "moriio");
    p_spec.dp_size = d_spec.registered.dp_size = 2;
    assert_null(refusal());
}

static void moriio_modes_differ(void **state)
{
    pair_of("MoRIIOConnector", "MoRIIOConnector");
    p_spec.registered.mode = BT_TRANSFER_READ;
    d_spec.registered.mode = BT_TRANSFER_WRITE;
    assert_refused("transfer modes differ");
}

static void moriio_mode_said_or_registered(void **state)
{
    pair_of("moriio_read", "MoRIIOConnector");
    d_spec.registered.mode = BT_TRANSFER_READ;
    assert_null(refusal());
}

static void tp_is_compared_only_when_both_say_it(void **state)
{
    p_spec.tp_size = 3;
    assert_null(refusal());
}

static void versions_differ(void **state)
{
    p_spec.version = text("0.31.0");
    d_spec.version = text("0.32.0");
    assert_refused("versions differ");
}

static void versions_only_when_both_given(void **state)
{
    p_spec.version = text("0.31.0");
    assert_null(refusal());
}

static void versions_may_differ_where_nothing_demands(void **state)
{
    set(&p_spec.connector, "ExampleConnector");
    set(&d_spec.connector, "SharedStorageConnector");
    p_spec.version = text("0.31.0");
    d_spec.version = text("0.32.0");
    assert_null(refusal());
}

static void transfer_groups_differ(void **state)
{
    p_spec.transfer_group = text("rack1");
    assert_refused("transfer groups");
}

static void no_common_model(void **state)
{
    p_spec.models[p_spec.model_count++] = text("a");
    d_spec.models[d_spec.model_count++] = text("b");
    assert_refused("model");
}

static void one_common_model_is_enough(void **state)
{
    p_spec.models[p_spec.model_count++] = text("a");
    d_spec.models[d_spec.model_count++] = text("b");
    d_spec.models[d_spec.model_count++] = text("a");
    assert_null(refusal());
}

/* ---- pools ---- */

static bt_workers_t *make_workers(bt_pool_spec_t *pools, unsigned count, bt_worker_t ***workers,
                                  unsigned *counts)
{
    bt_pool_stat_t *stats[4] = {NULL};
    bt_workers_t *f = NULL;
    for (unsigned i = 0; i < count; i++)
        assert_non_null(stats[i] = bt_pool_stat_new());
    assert_int_equal(
        bt_workers_new(&f, pools, stats, count, (bt_worker_t *const *const *) workers, counts), 0);
    for (unsigned i = 0; i < count; i++)
        bt_pool_stat_unref(stats[i]);
    return f;
}

static void routing_by_model(void **state)
{
    bt_pool_spec_t pools[3];
    bt_worker_t *none[1] = {NULL}, **workers[3] = {none, none, none};
    unsigned counts[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++)
        bt_pool_spec_init(&pools[i]);
    assert_int_equal(pools[0].deadlines.first_event_ms, 300000);
    assert_int_equal(pools[0].max_fanout, 64);
    pools[0].models[pools[0].model_count++] = text("big");
    pools[1].models[pools[1].model_count++] = text("small");
    bt_workers_t *two = make_workers(pools, 2, workers, counts);
    bt_workers_t *three = make_workers(pools, 3, workers, counts);
    assert_int_equal(bt_workers_route(two, BT_STR("small"))->index, 1);
    assert_null(bt_workers_route(two, BT_STR("other")));
    assert_int_equal(bt_workers_route(two, BT_STR_NULL)->index, 0);
    assert_int_equal(bt_workers_route(three, BT_STR("other"))->index, 2);
    assert_int_equal(bt_workers_route(three, BT_STR_NULL)->index, 2);
    assert_int_equal(atomic_load(&three->pools[2].stat->estimate.milli), 4000);
    bt_workers_unref(two);
    bt_workers_unref(three);
    for (int i = 0; i < 3; i++)
        bt_pool_spec_fini(&pools[i]);
}

/* ---- topology ---- */

static char why[512];

static enum bt_topology topology_of(bt_worker_t **workers, unsigned count)
{
    bt_pool_spec_t pool;
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    bt_worker_t **lists[1] = {workers};
    bt_workers_t *f = make_workers(&pool, 1, lists, &count);
    bt_pool_spec_fini(&pool);
    why[0] = '\0';
    enum bt_topology t = bt_workers_topology(&f->pools[0], 1000, why, sizeof why);
    bt_workers_unref(f);
    return t;
}

static void assert_why(const char *part)
{
    if (strstr(why, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, why);
}

static void pair_when_both_are_up(void **state)
{
    assert_null(refusal());
    set_up(p);
    set_up(d);
    assert_int_equal(topology_of((bt_worker_t *[]){d, p}, 2), BT_TOPOLOGY_PAIR);
}

static void prefill_alone_is_degraded_on_vllm(void **state)
{
    assert_null(refusal());
    set_up(p);
    assert_int_equal(topology_of((bt_worker_t *[]){p}, 1), BT_TOPOLOGY_DEGRADED);
    assert_int_equal(topology_of((bt_worker_t *[]){p, d}, 2),
                     BT_TOPOLOGY_DEGRADED); /* d is not up */
}

static void lone_sglang_prefill_serves_nothing(void **state)
{
    set(&p_spec.connector, "sglang");
    set(&d_spec.connector, "sglang");
    assert_null(refusal());
    set_up(p);
    assert_int_equal(topology_of((bt_worker_t *[]){p}, 1), BT_TOPOLOGY_NONE);
    assert_why("no decode worker");
    assert_why("p0: a prefill worker of engine sglang cannot serve alone");
    bt_worker_set_health(d, BT_HEALTH_DOWN, "test");
    assert_int_equal(topology_of((bt_worker_t *[]){p, d}, 2), BT_TOPOLOGY_NONE);
    assert_why("d0: down");
}

static void decode_alone_serves_nothing(void **state)
{
    assert_null(refusal());
    set_up(d);
    assert_int_equal(topology_of((bt_worker_t *[]){d}, 1), BT_TOPOLOGY_NONE);
    assert_why("no prefill worker");
    assert_int_equal(topology_of((bt_worker_t *[]){p, d}, 2), BT_TOPOLOGY_NONE);
    assert_why("p0: starting");
}

static void refused_pair_is_named_not_papered_over(void **state)
{
    p_spec.tp_size = 3;
    d_spec.tp_size = 2;
    assert_non_null(refusal());
    set_up(p);
    set_up(d);
    assert_int_equal(topology_of((bt_worker_t *[]){p, d}, 2), BT_TOPOLOGY_NONE);
    assert_why("p0 with d0: one tp_size must divide the other");
    assert_null(strstr(why, "127.0.0.1"));
}

static void unknown_connector_is_named(void **state)
{
    set(&d_spec.connector, "BarConnector");
    assert_non_null(refusal());
    set_up(p);
    set_up(d);
    assert_int_equal(topology_of((bt_worker_t *[]){p, d}, 2), BT_TOPOLOGY_NONE);
    assert_why("d0: unknown connector BarConnector");
}

static void hybrid_is_single_and_second_to_a_pair(void **state)
{
    bt_worker_t *h = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:3", NULL);
    assert_null(refusal());
    set_up(h);
    set_up(p);
    assert_int_equal(topology_of((bt_worker_t *[]){p, h, d}, 3),
                     BT_TOPOLOGY_SINGLE); /* before degraded */
    set_up(d);
    assert_int_equal(topology_of((bt_worker_t *[]){p, h, d}, 3), BT_TOPOLOGY_PAIR);
    assert_int_equal(topology_of((bt_worker_t *[]){h}, 1), BT_TOPOLOGY_SINGLE);
    bt_worker_unref(h);
}

static void an_empty_pool(void **state)
{
    assert_int_equal(topology_of((bt_worker_t *[]){NULL}, 0), BT_TOPOLOGY_NONE);
    assert_why("pool default has no worker");
}

static void a_long_list_of_reasons_is_cut(void **state)
{
    bt_worker_t *many[64];
    for (int i = 0; i < 64; i++)
        many[i] = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:9", "nixl");
    assert_int_equal(topology_of(many, 64), BT_TOPOLOGY_NONE);
    assert_int_equal(strlen(why), sizeof why - 1);
    for (int i = 0; i < 64; i++)
        bt_worker_unref(many[i]);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(equal_ones_fit),
        CASE(no_common_dialect),
        CASE(no_common_capability),
        CASE(same_dialect_but_other_wire),
        CASE(unknown_connector),
        CASE(layerwise_tp_must_be_a_multiple),
        CASE(nixl_tp_must_divide),
        CASE(nixl_tp_may_be_larger_on_either_side),
        CASE(mooncake_v1_tp_smaller_on_prefill),
        CASE(mooncake_v1_tp_multiple_fits),
        CASE(p2p_nccl_tp_must_be_the_same),
        CASE(p2p_nccl_tp_is_the_same),
        CASE(moriio_dp_must_be_the_same),
        CASE(moriio_dp_is_what_was_registered),
        CASE(moriio_modes_differ),
        CASE(moriio_mode_said_or_registered),
        CASE(tp_is_compared_only_when_both_say_it),
        CASE(versions_differ),
        CASE(versions_only_when_both_given),
        CASE(versions_may_differ_where_nothing_demands),
        CASE(transfer_groups_differ),
        CASE(no_common_model),
        CASE(one_common_model_is_enough),
        CASE(routing_by_model),
        CASE(pair_when_both_are_up),
        CASE(prefill_alone_is_degraded_on_vllm),
        CASE(lone_sglang_prefill_serves_nothing),
        CASE(decode_alone_serves_nothing),
        CASE(refused_pair_is_named_not_papered_over),
        CASE(unknown_connector_is_named),
        CASE(hybrid_is_single_and_second_to_a_pair),
        CASE(an_empty_pool),
        CASE(a_long_list_of_reasons_is_cut),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
