#include "help.h"

#include <netinet/in.h>

static bt_worker_t *leased(enum bt_engine engine, const char *connector, const char *version,
                           uint64_t lease_ms)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:1", connector);
    spec.engine = engine;
    spec.version = text(version);
    spec.lease_ms = lease_ms;
    return worker_of(&spec);
}

static void lease_by_engine_and_version(void **state)
{
    static const struct {
        enum bt_engine engine;
        const char *connector, *version;
        uint64_t given_ms, lease_ms;
    } rows[] = {
        {BT_ENGINE_VLLM, "nixl", NULL, 0, 30000},
        {BT_ENGINE_UNKNOWN, "NixlConnector", "0.22.0", 0, 30000},
        {BT_ENGINE_UNKNOWN, "NixlConnector", "0.21.3", 0, 480000},
        {BT_ENGINE_VLLM, "nixl", "v0.9.2rc1", 0, 480000},
        {BT_ENGINE_VLLM, "nixl", "0.32.0", 0, 30000},
        {BT_ENGINE_VLLM, "nixl", "1.0", 0, 30000},
        {BT_ENGINE_VLLM, "nixl", "nightly", 0, 30000},
        {BT_ENGINE_SGLANG, NULL, "0.5.9", 0, 30000},
        {BT_ENGINE_VLLM_ASCEND, "MooncakeConnectorV1", "0.23.0", 0, 480000},
        {BT_ENGINE_UNKNOWN, "MooncakeConnectorV1", NULL, 0, 480000},
        {BT_ENGINE_VLLM, "nixl", "0.9.0", 12345, 12345},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bt_worker_t *w =
            leased(rows[i].engine, rows[i].connector, rows[i].version, rows[i].given_ms);
        if (w->lease_ms != rows[i].lease_ms)
            fail_msg("row %zu: %llu", i, (unsigned long long) w->lease_ms);
        bt_worker_unref(w);
    }
}

static void address_parts(void **state)
{
    struct sockaddr_storage addr;
    bt_worker_t *w = quick_worker(BT_ROLE_HYBRID, "http://[::1]:8000/base/@2", NULL);
    assert_string_equal(w->host, "::1");
    assert_string_equal(w->authority, "[::1]:8000");
    assert_string_equal(w->base_path, "/base");
    assert_int_equal(w->spec.dp_rank, 2);
    assert_true(bt_worker_get_addr(w, &addr));
    assert_int_equal(addr.ss_family, AF_INET6);
    assert_int_equal(ntohs(((struct sockaddr_in6 *) &addr)->sin6_port), 8000);
    bt_worker_unref(w);

    w = quick_worker(BT_ROLE_HYBRID, "http://localhost:8000", NULL);
    assert_true(bt_worker_get_addr(w, &addr));
    assert_int_equal(addr.ss_family, AF_INET);
    bt_worker_unref(w);

    w = quick_worker(BT_ROLE_HYBRID, "http://some.name.invalid:8000", NULL);
    assert_false(bt_worker_get_addr(w, &addr));
    bt_worker_unref(w);
}

static void new_address_is_seen_once(void **state)
{
    struct sockaddr_storage addr = {0};
    struct sockaddr_in *in = (struct sockaddr_in *) &addr;
    bt_worker_t *w = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:8000", NULL);
    unsigned version = atomic_load(&w->addr_version);
    in->sin_family = AF_INET;
    in->sin_port = htons(8000);
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_zero[3] = 7; /* padding means nothing */
    bt_worker_set_addr(w, &addr);
    assert_int_equal(atomic_load(&w->addr_version), version);
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    bt_worker_set_addr(w, &addr);
    assert_int_equal(atomic_load(&w->addr_version), version + 1);
    bt_worker_unref(w);
}

static void refusals(void **state)
{
    bt_worker_spec_t spec;
    bt_worker_t *w = NULL;
    char err[256] = "";
    make_spec(&spec, BT_ROLE_PREFILL, "ftp://h:1", "nixl");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "\"ftp://h:1\": only"));
    assert_null(w);
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, "https://h:1", "nixl");
    spec.tls_ca = strdup("/no/such.pem");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "\"https://h:1\": /no/such.pem: "));
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, "http://h:1", "nixl");
    spec.tls_ca = strdup("/no/such.pem");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "for https:// only"));
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, "http://h:1", "nixl");
    spec.tls_name = strdup("a.test");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "for https:// only"));
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, "https://h:1", "nixl");
    spec.tls_name = strdup("a test");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "tls_name: expected a host name or an address, got \"a test\""));
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, "http://h:1@4", "nixl");
    spec.dp_size = 4;
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    assert_non_null(strstr(err, "rank 4"));
    bt_worker_spec_fini(&spec);

    make_spec(&spec, BT_ROLE_PREFILL, NULL, "nixl");
    assert_int_equal(bt_worker_new(&w, &spec, 1, 0, NULL, err, sizeof err), BT_E_CONFIG);
    bt_worker_spec_fini(&spec);

    w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "FooConnector");
    assert_string_equal(w->refusal, "unknown connector FooConnector");
    assert_null(bt_capability_nearest(BT_STR("TelepathyConnector")));
    assert_string_equal(bt_capability_nearest(BT_STR("NixlConector")), "NixlConnector");
    assert_string_equal(bt_capability_nearest(BT_STR("mooncakeconnectorv2")),
                        "MooncakeConnectorV1");
    set_up(w);
    assert_false(bt_worker_usable(w, 1));
    assert_true(bt_worker_is_healthy(w, 1));
    assert_string_equal(bt_worker_why_not(w, 1), "unknown_connector");
    bt_worker_unref(w);

    w = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:1", NULL); /* needs no dialect */
    assert_null(w->refusal);
    set_up(w);
    assert_true(bt_worker_usable(w, 1));
    bt_worker_unref(w);
}

static void why_not_in_one_word(void **state)
{
    bt_worker_t *w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "nixl");
    assert_string_equal(bt_worker_why_not(w, 1), "starting");
    bt_worker_set_health(w, BT_HEALTH_DOWN, "test");
    assert_string_equal(bt_worker_why_not(w, 1), "down");
    bt_worker_set_health(w, BT_HEALTH_DRAIN, "test");
    assert_string_equal(bt_worker_why_not(w, 1), "scaling");
    uint64_t epoch = bt_workers_changes();
    bt_worker_set_health(w, BT_HEALTH_UP, "test");
    assert_true(bt_workers_changes() > epoch);
    epoch = bt_workers_changes();
    bt_worker_set_health(w, BT_HEALTH_UP, "test"); /* no change */
    assert_int_equal(bt_workers_changes(), epoch);
    assert_null(bt_worker_why_not(w, 1));
    assert_true(bt_worker_usable(w, 1));
    atomic_store(&w->draining, true);
    assert_string_equal(bt_worker_why_not(w, 1), "draining");
    atomic_store(&w->draining, false);
    for (int i = 0; i < 5; i++)
        (void) bt_breaker_failure(&w->breaker, false, 1000);
    assert_string_equal(bt_worker_why_not(w, 1001), "breaker_open");
    assert_null(bt_worker_why_not(w, 11000)); /* may send its probe */
    bt_worker_unref(w);
}

static void a_triggers_worker_needs_a_metaserver(void **state)
{
    bt_worker_t *w =
        quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "MooncakeLayerwiseConnector");
    assert_true(w->is_trigger);
    set_up(w);
    assert_string_equal(bt_worker_why_not(w, 1), "no_metaserver");
    atomic_store(&bt_worker_has_metaserver, true);
    assert_null(bt_worker_why_not(w, 1));
    atomic_store(&bt_worker_has_metaserver, false);
    bt_worker_unref(w);
}

static void a_gateway_managed_worker_needs_its_agents(void **state)
{
    bt_worker_t *w = quick_worker(BT_ROLE_PREFILL, "http://127.0.0.1:1", "BatonConnector");
    assert_true(w->is_gateway_managed);
    assert_string_equal(bt_worker_why_not(w, 1), "starting"); /* what is worse comes first */
    set_up(w);
    assert_string_equal(bt_worker_why_not(w, 1), "no_agent");
    assert_false(bt_worker_usable(w, 1));
    assert_true(bt_worker_is_healthy(w, 1)); /* nobody serves alone in its place */
    atomic_store(&w->has_agents, true);
    assert_null(bt_worker_why_not(w, 1));
    assert_true(bt_worker_usable(w, 1));
    bt_worker_unref(w);

    w = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:1",
                     "BatonConnector"); /* takes part in no pair */
    assert_false(w->is_gateway_managed);
    set_up(w);
    assert_true(bt_worker_usable(w, 1));
    bt_worker_unref(w);
}

static void one_that_must_register_is_not_used_before(void **state)
{
    bt_worker_spec_t spec;
    bt_worker_t *w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "P2pNcclConnector");
    assert_true(w->must_register);
    assert_null(w->kv_address);
    set_up(w);
    assert_string_equal(bt_worker_why_not(w, 1), "not_registered");
    atomic_store(&w->is_registered, true);
    assert_null(bt_worker_why_not(w, 1));
    bt_worker_unref(w);

    make_spec(&spec, BT_ROLE_DECODE, "http://127.0.0.1:1", "P2pNcclConnector");
    spec.kv_address = text("10.0.0.1:14579");
    w = worker_of(&spec);
    assert_false(w->must_register);
    assert_string_equal(w->kv_address, "10.0.0.1:14579");
    bt_worker_unref(w);
    assert_false(
        (w = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:1", "p2p_nccl"))->must_register);
    bt_worker_unref(w);
}

/* Those that nobody may use are no reason to keep a breaker open, nor to close one. */
static void one_that_is_not_ready_counts_for_no_breaker(void **state)
{
    bt_breaker_group_t *group = bt_breaker_group_new();
    bt_worker_t *w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "P2pNcclConnector");
    bt_worker_t *refused = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:2", "nobody_knows");
    bt_breaker_join(&w->breaker, group);
    bt_breaker_join(&refused->breaker, group);
    bt_worker_set_health(w, BT_HEALTH_UP, "test");
    bt_worker_set_health(refused, BT_HEALTH_UP, "test");
    assert_int_equal(atomic_load(&group->usable), 0);
    atomic_store(&w->is_registered, true);
    bt_worker_note_service(w);
    assert_int_equal(atomic_load(&group->usable), 1);
    bt_worker_unref(w);
    bt_worker_unref(refused);
    bt_breaker_group_unref(group);
}

static void what_it_has_registered_makes_it(void **state)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:1", "MoRIIOConnector");
    spec.registered = (bt_registered_t){.dp_size = 4, .tp_size = 2, .mode = BT_TRANSFER_READ};
    strcpy(spec.registered.kv_address, "host:h,handshake:1,notify:2");
    bt_worker_t *w = worker_of(&spec);
    assert_string_equal(w->dialect, "moriio_read");
    assert_int_equal(w->capability, BT_CAP_PREFILL_HANDOFF_DECODE);
    assert_int_equal(w->dp_size, 4);
    assert_int_equal(w->tp_size, 2);
    assert_string_equal(w->kv_address, "host:h,handshake:1,notify:2");
    assert_true(w->must_register);
    bt_worker_unref(w);
}

static void a_kv_address_that_fits_no_id(void **state)
{
    static const struct {
        const char *connector, *address;
        bool fits;
    } rows[] = {
        {"p2p_nccl", "10.0.0.1:14579", true},
        {"p2p_nccl", "node-1.example:1", true},
        {"p2p_nccl", "10.0.0.1", false},
        {"p2p_nccl", "10.0.0.1:", false},
        {"p2p_nccl", ":14579", false},
        {"p2p_nccl", "10.0.0.1:0", false},
        {"p2p_nccl", "10.0.0.1:65536", false},
        {"p2p_nccl", "10.0.0.1:12x", false},
        {"p2p_nccl", "10.0.0.1: 12", false},
        {"p2p_nccl", "a___decode_addr_b:1", false},
        {"p2p_nccl", "a\r\nb:1", false},
        {"moriio", "host:10.0.0.1,handshake:6301,notify:61005", true},
        {"moriio_read", "host:10.0.0.1,handshake:6301,notify:61005", true},
        {"moriio", "10.0.0.1:6301", false},
        {"moriio", "host:10.0.0.1,handshake:6301", false},
        {"moriio", "host:10.0.0.1,handshake:6301,notify:61005,x:1", false},
        {"moriio", "host:,handshake:6301,notify:61005", false},
        {"moriio", "host:h,handshake:0,notify:61005", false},
        {"nixl", "whatever it is", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bt_worker_spec_t spec;
        bt_worker_t *w = NULL;
        char err[256] = "";
        make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:1", rows[i].connector);
        spec.kv_address = text(rows[i].address);
        int rc = bt_worker_new(&w, &spec, 1, 1, NULL, err, sizeof err);
        if ((rc == 0) != rows[i].fits || (rc < 0 && strstr(err, "kv_address must be") == NULL))
            fail_msg("%s %s: %d %s", rows[i].connector, rows[i].address, rc, err);
        bt_worker_unref(w);
        bt_worker_spec_fini(&spec);
    }
}

static void averages_follow_with_an_eighth(void **state)
{
    bt_worker_t *w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "nixl");
    bt_worker_note_ttft(w, 8000);
    assert_int_equal(atomic_load(&w->ttft_ema_us), 8000);
    bt_worker_note_ttft(w, 16000);
    assert_int_equal(atomic_load(&w->ttft_ema_us), 9000);
    bt_worker_note_tpot(w, 0);
    assert_int_equal(atomic_load(&w->tpot_ema_us), 1); /* 0 would mean "none yet" */
    bt_worker_unref(w);
}

static void ranks_in_turn_the_idlest_first(void **state)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:1", "sglang");
    spec.dp_size = 3;
    bt_worker_t *w = worker_of(&spec);
    for (int round = 0; round < 2; round++)
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(bt_worker_take_rank(w, -1), rank);
    bt_worker_give_rank_back(w, 1);
    assert_int_equal(bt_worker_take_rank(w, 2), 2); /* 2, 1 and 3 legs */
    assert_int_equal(bt_worker_take_rank(w, -1), 1);
    bt_worker_give_rank_back(w, 0);
    bt_worker_give_rank_back(w, 0);
    assert_int_equal(bt_worker_take_rank(w, -1), 0);
    assert_int_equal(bt_worker_next_rank(w), 2); /* the turn goes on whoever is taken */
    bt_worker_unref(w);
}

static void models(void **state)
{
    bt_worker_spec_t spec;
    make_spec(&spec, BT_ROLE_HYBRID, "http://127.0.0.1:1", NULL);
    spec.models[spec.model_count++] = text("a");
    bt_worker_t *w = worker_of(&spec);
    assert_true(bt_worker_serves_model(w, BT_STR("a")));
    assert_false(bt_worker_serves_model(w, BT_STR("b")));
    bt_worker_unref(w);
    w = quick_worker(BT_ROLE_HYBRID, "http://127.0.0.1:1", NULL);
    assert_true(bt_worker_serves_model(w, BT_STR("b")));
    bt_worker_unref(w);
}

static void names_that_are_safe_in_headers(void **state)
{
    static const char *const bad[] = {"", "a b", "a\r\nx-evil: 1", "caf\xc3\xa9", "a\"b"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bt_worker_spec_t spec;
        bt_worker_t *w = NULL;
        char err[256] = "";
        make_spec(&spec, BT_ROLE_HYBRID, "http://127.0.0.1:1", NULL);
        spec.name = text(bad[i]);
        assert_int_equal(bt_worker_new(&w, &spec, 1, 1, NULL, err, sizeof err), BT_E_CONFIG);
        assert_non_null(strstr(err, "worker name"));
        bt_worker_spec_fini(&spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lease_by_engine_and_version),
        cmocka_unit_test(address_parts),
        cmocka_unit_test(new_address_is_seen_once),
        cmocka_unit_test(refusals),
        cmocka_unit_test(why_not_in_one_word),
        cmocka_unit_test(a_triggers_worker_needs_a_metaserver),
        cmocka_unit_test(a_gateway_managed_worker_needs_its_agents),
        cmocka_unit_test(one_that_must_register_is_not_used_before),
        cmocka_unit_test(one_that_is_not_ready_counts_for_no_breaker),
        cmocka_unit_test(what_it_has_registered_makes_it),
        cmocka_unit_test(a_kv_address_that_fits_no_id),
        cmocka_unit_test(averages_follow_with_an_eighth),
        cmocka_unit_test(ranks_in_turn_the_idlest_first),
        cmocka_unit_test(models),
        cmocka_unit_test(names_that_are_safe_in_headers),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
