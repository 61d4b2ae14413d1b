#include "help.h"

struct row {
    enum bt_engine engine;
    const char *connector, *child0, *child1, *profile;
    enum bt_capability cap;
    const char *dialect;
    const char *why; /* a part of the sentence; NULL = accepted */
};

#define U BT_ENGINE_UNKNOWN
#define SYNC BT_CAP_CONCURRENT_ENGINE_SYNC
#define HANDOFF BT_CAP_PREFILL_HANDOFF_DECODE
#define NONE BT_CAP_NONE

static const struct row rows[] = {
    {U, "NixlConnector", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {U, "nixlCONNECTOR", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {BT_ENGINE_VLLM, "nixl", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {U, "MooncakeConnectorV1", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {U, "mooncakeconnectorv1", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {U, "MooncakeHybridConnector", NULL, NULL, NULL, HANDOFF, "nixl", NULL},
    {U, "MooncakeLayerwiseConnector", NULL, NULL, NULL, SYNC, "mooncake_layerwise", NULL},
    {U, "mooncakelayerwiseconnector", NULL, NULL, "Trigger", SYNC, "mooncake_layerwise", NULL},
    {BT_ENGINE_VLLM_ASCEND, NULL, NULL, NULL, "trigger", SYNC, "mooncake_layerwise", NULL},
    {U, "SomethingNew", NULL, NULL, "trigger", SYNC, "mooncake_layerwise", NULL},
    {U, NULL, NULL, NULL, "mooncake_layerwise", SYNC, "mooncake_layerwise", NULL},
    {BT_ENGINE_MINDIE, "MooncakeLayerwiseConnector", NULL, NULL, NULL, SYNC, "mindie", NULL},
    {BT_ENGINE_MINDIE, NULL, NULL, NULL, "trigger", SYNC, "mindie", NULL},
    {U, NULL, NULL, NULL, "mindie", SYNC, "mindie", NULL},
    {U, "MultiConnector", "MooncakeLayerwiseConnector", "AscendStoreConnector", NULL, SYNC,
     "mooncake_layerwise", NULL},
    {U, "NixlConnector", NULL, NULL, "Trigger", NONE, NULL, "is for MooncakeLayerwiseConnector"},
    {U, "MooncakeLayerwiseConnector", NULL, NULL, "handoff", NONE, NULL,
     "leave dispatch_profile out"},
    {BT_ENGINE_SGLANG, NULL, NULL, NULL, "trigger", NONE, NULL, "bootstrap"},
    {U, "MultiConnector", "NixlConnector", "LMCacheConnectorV1", NULL, HANDOFF, "nixl", NULL},
    {U, "multiconnector", "NixlPushConnector", "OffloadingConnector", NULL, SYNC, "nixl_push",
     NULL},
    {U, "MultiConnector", "Whatever", "NixlConnector", NULL, NONE, NULL, "unknown connector"},
    {U, "MultiConnector", "NixlConnector", NULL, NULL, NONE, NULL, "at least two"},
    {U, "MultiConnector", NULL, NULL, NULL, NONE, NULL, "at least two"},
    {U, "MultiConnector", "MultiConnector", "NixlConnector", NULL, NONE, NULL, "at least two"},
    {U, NULL, NULL, NULL, "handoff", HANDOFF, "nixl", NULL},
    {BT_ENGINE_MINDIE, NULL, NULL, NULL, "HANDOFF", HANDOFF, "nixl", NULL},
    {U, "SomethingNew", NULL, NULL, "handoff", HANDOFF, "nixl", NULL},
    {U, "SomethingNew", NULL, NULL, "nixl", HANDOFF, "nixl", NULL},
    {BT_ENGINE_VLLM_ASCEND, "SomethingNew", NULL, NULL, "Nixl", HANDOFF, "nixl", NULL},
    {U, "SomethingNew", NULL, NULL, "nixl_push", SYNC, "nixl_push", NULL},
    {U, "SomethingNew", NULL, NULL, "shared_cache", HANDOFF, "shared_cache", NULL},
    {U, "SomethingNew", NULL, NULL, "sglang", SYNC, "sglang", NULL},
    {U, "SomethingNew", NULL, NULL, "bootstrap", SYNC, "sglang", NULL},
    {BT_ENGINE_VLLM, "SomethingNew", NULL, NULL, "bootstrap", NONE, NULL, "is for SGLang"},
    {BT_ENGINE_SGLANG, "SomethingNew", NULL, NULL, "bootstrap", SYNC, "sglang", NULL},
    {BT_ENGINE_SGLANG, "SomethingNew", NULL, NULL, "nixl", NONE, NULL, "bootstrap"},
    {U, "SomethingNew", NULL, NULL, "NixlConnector", NONE, NULL, "unknown dispatch_profile"},
    {U, "SomethingNew", NULL, NULL, "moriio", SYNC, "moriio", NULL},
    {U, "SomethingNew", NULL, NULL, "moriio_read", HANDOFF, "moriio_read", NULL},
    {U, "SomethingNew", NULL, NULL, "p2p_nccl", HANDOFF, "p2p_nccl", NULL},
    {U, "SomethingNew", NULL, NULL, "lmcache_pd", NONE, NULL, "unknown dispatch_profile"},
    {U, NULL, NULL, NULL, "shared_cache", HANDOFF, "shared_cache", NULL},
    {U, "MultiConnector", "SomethingNew", "Other", "nixl", HANDOFF, "nixl", NULL},
    {U, "NixlConnector", NULL, NULL, "nixl", HANDOFF, "nixl", NULL},
    {U, "NixlConnector", NULL, NULL, "shared_cache", NONE, NULL, "leave dispatch_profile out"},
    {U, "NixlPushConnector", NULL, NULL, "nixl", HANDOFF, "nixl", NULL},
    {U, "MoRIIOConnector", NULL, NULL, "nixl", NONE, NULL, "leave dispatch_profile out"},
    {U, "P2pNcclConnector", NULL, NULL, "bootstrap", NONE, NULL, "is for SGLang"},
    {U, "MooncakeLayerwiseConnector", NULL, NULL, "nixl", NONE, NULL, "leave dispatch_profile out"},
    {U, "NixlPushConnector", NULL, NULL, NULL, SYNC, "nixl_push", NULL},
    {U, "NIXL_PUSH", NULL, NULL, NULL, SYNC, "nixl_push", NULL},
    {U, "NixlPushConnector", NULL, NULL, "handoff", HANDOFF, "nixl", NULL},
    {U, "ExampleConnector", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "SharedStorageConnector", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "LMCacheConnectorV1", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "LMCacheMPConnector", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "MooncakeStoreConnector", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "PyNcclConnector", NULL, NULL, NULL, HANDOFF, "shared_cache", NULL},
    {U, "pyncclconnector", NULL, NULL, "shared_cache", HANDOFF, "shared_cache", NULL},
    {U, "shared_cache", NULL, NULL, "handoff", HANDOFF, "shared_cache", NULL},
    {U, "OffloadingConnector", NULL, NULL, NULL, HANDOFF, "offloading_p2p", NULL},
    {U, "offloading_p2p", NULL, NULL, "handoff", HANDOFF, "offloading_p2p", NULL},
    {U, "SomethingNew", NULL, NULL, "offloading_p2p", HANDOFF, "offloading_p2p", NULL},
    {U, "trtllm", NULL, NULL, NULL, HANDOFF, "trtllm", NULL},
    {BT_ENGINE_TRTLLM, NULL, NULL, NULL, NULL, HANDOFF, "trtllm", NULL},
    {BT_ENGINE_TRTLLM, "trtllm", NULL, NULL, "handoff", HANDOFF, "trtllm", NULL},
    {U, NULL, NULL, NULL, "trtllm", HANDOFF, "trtllm", NULL},
    {BT_ENGINE_TRTLLM, "NixlConnector", NULL, NULL, NULL, NONE, NULL, "leave connector out"},
    {BT_ENGINE_TRTLLM, NULL, NULL, NULL, "bootstrap", NONE, NULL, "is for SGLang"},
    {BT_ENGINE_VLLM, "trtllm", NULL, NULL, NULL, NONE, NULL, "needs engine trtllm"},
    {U, "BatonConnector", NULL, NULL, NULL, SYNC, "baton", NULL},
    {BT_ENGINE_VLLM, "batonconnector", NULL, NULL, "baton", SYNC, "baton", NULL},
    {U, "baton", NULL, NULL, NULL, SYNC, "baton", NULL},
    {U, "MultiConnector", "BatonConnector", "OffloadingConnector", NULL, SYNC, "baton", NULL},
    {U, "SomethingNew", NULL, NULL, "baton", SYNC, "baton", NULL},
    {U, NULL, NULL, NULL, "Baton", SYNC, "baton", NULL},
    {U, "BatonConnector", NULL, NULL, "handoff", NONE, NULL, "opened by the gateway"},
    {U, "BatonConnector", NULL, NULL, "bootstrap", NONE, NULL, "opened by the gateway"},
    {U, "NixlConnector", NULL, NULL, "baton", NONE, NULL, "is for BatonConnector"},
    {BT_ENGINE_SGLANG, "BatonConnector", NULL, NULL, NULL, NONE, NULL, "engine is SGLang"},
    {BT_ENGINE_SGLANG, NULL, NULL, NULL, "baton", NONE, NULL, "bootstrap"},
    {BT_ENGINE_SGLANG, NULL, NULL, NULL, NULL, SYNC, "sglang", NULL},
    {BT_ENGINE_SGLANG, "mooncake", NULL, NULL, NULL, SYNC, "sglang", NULL},
    {BT_ENGINE_SGLANG, "nixl", NULL, NULL, "bootstrap", SYNC, "sglang", NULL},
    {U, "sglang", NULL, NULL, NULL, SYNC, "sglang", NULL},
    {U, NULL, NULL, NULL, "bootstrap", SYNC, "sglang", NULL},
    {BT_ENGINE_SGLANG, "NixlConnector", NULL, NULL, NULL, NONE, NULL, "engine is SGLang"},
    {BT_ENGINE_SGLANG, NULL, NULL, NULL, "handoff", NONE, NULL, "bootstrap"},
    {BT_ENGINE_VLLM, "sglang", NULL, NULL, NULL, NONE, NULL, "needs engine SGLang"},
    {U, "NixlConnector", NULL, NULL, "bootstrap", NONE, NULL, "is for SGLang"},
    {U, "NixlConnector", NULL, NULL, "bogus", NONE, NULL, "unknown dispatch_profile"},
    {U, "MooncakeConnector", NULL, NULL, NULL, SYNC, "mooncake", NULL},
    {U, "MooncakeConnector", NULL, NULL, "mooncake", SYNC, "mooncake", NULL},
    {U, "MooncakeConnector", NULL, NULL, "handoff", NONE, NULL, "bootstrap"},
    {U, "mooncake", NULL, NULL, NULL, SYNC, "mooncake", NULL},
    {U, "MoRIIOConnector", NULL, NULL, NULL, SYNC, "moriio", NULL},
    {U, "moriio", NULL, NULL, NULL, SYNC, "moriio", NULL},
    {U, "moriio_read", NULL, NULL, NULL, HANDOFF, "moriio_read", NULL},
    {U, "P2pNcclConnector", NULL, NULL, NULL, HANDOFF, "p2p_nccl", NULL},
    {U, "p2p_nccl", NULL, NULL, "handoff", HANDOFF, "p2p_nccl", NULL},
    {U, "nccl", NULL, NULL, NULL, HANDOFF, "p2p_nccl", NULL},
    {U, "lmcache_pd", NULL, NULL, NULL, NONE, NULL, "use LMCacheConnectorV1"},
    {U, "ECMooncakeConnector", NULL, NULL, NULL, NONE, NULL, "use ECCPUConnector"},
    {BT_ENGINE_SGLANG, "moriio", NULL, NULL, NULL, NONE, NULL, "engine is SGLang"},
    {U, "FooConnector", NULL, NULL, NULL, NONE, NULL, "unknown connector"},
    {U, "NixlConnectorX", NULL, NULL, NULL, NONE, NULL, "unknown connector"},
    {U, NULL, NULL, NULL, NULL, NONE, NULL, "give --kv-connector or connector="},
    {BT_ENGINE_VLLM, NULL, NULL, NULL, NULL, NONE, NULL, "give --kv-connector or connector="},
};

static void every_row_of_the_table(void **state)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        bt_str_t children[2] = {bt_str(r->child0), bt_str(r->child1)};
        unsigned count = r->child1 != NULL ? 2 : r->child0 != NULL;
        enum bt_capability cap;
        const char *dialect, *why;
        assert_int_equal(bt_capability_derive(r->engine, bt_str(r->connector), children, count,
                                              bt_str(r->profile), &cap, &dialect, &why),
                         0);
        bool same_dialect =
            dialect == r->dialect || (dialect && r->dialect && strcmp(dialect, r->dialect) == 0);
        bool same_why = r->why == NULL ? why == NULL : why != NULL && strstr(why, r->why) != NULL;
        if (cap != r->cap || !same_dialect || !same_why)
            fail_msg("row %zu (%s, %s): %s %s \"%s\"", i, r->connector ? r->connector : "-",
                     r->profile ? r->profile : "-", bt_capability_name(cap),
                     dialect ? dialect : "-", why ? why : "-");
    }
}

static void multi_connectors_inside_each_other(void **state)
{
    const bt_str_t children[] = {BT_STR("MultiConnector"), BT_STR("multiconnector"),
                                 BT_STR("NixlConnector"), BT_STR("X"), BT_STR("Y")};
    const bt_str_t multi = BT_STR("MultiConnector");
    enum bt_capability cap;
    const char *dialect, *why;
    bt_pair_rules_t rules;

    bt_capability_derive(U, multi, children, 5, BT_STR_NULL, &cap, &dialect, &why);
    assert_null(why);
    assert_int_equal(cap, HANDOFF);
    assert_string_equal(dialect, "nixl");
    assert_int_equal(bt_capability_engine(multi, children, 5, BT_STR_NULL), BT_ENGINE_VLLM);
    bt_capability_pair_rules(U, multi, children, 5, dialect, &rules);
    assert_string_equal(rules.family, "nixl");
    bt_capability_derive(U, multi, children, 3, BT_STR_NULL, &cap, &dialect, &why);
    assert_non_null(strstr(why, "at least two"));
}

static void assert_derived(enum bt_engine engine, const char *connector, const char *profile,
                           enum bt_capability cap, const char *dialect, const char *part)
{
    enum bt_capability got;
    const char *name, *why;

    bt_capability_derive(engine, bt_str(connector), NULL, 0, bt_str(profile), &got, &name, &why);
    if (got != cap || (dialect == NULL) != (name == NULL) ||
        (name != NULL && strcmp(name, dialect) != 0) || (part == NULL) != (why == NULL) ||
        (why != NULL && strstr(why, part) == NULL))
        fail_msg("%s, %s: %s %s \"%s\"", connector, profile ? profile : "-",
                 bt_capability_name(got), name ? name : "-", why ? why : "-");
}

static int add(const char *connector, const char *dialect, enum bt_capability cap)
{
    const bt_own_connector_t own = {connector, dialect, cap, BT_ENGINE_VLLM, false, false};

    return bt_capability_add(&own);
}

static void connectors_of_users_files(void **state)
{
    bt_pair_rules_t rules;
    enum bt_capability cap;
    const char *dialect, *why;

    assert_derived(U, "PsychicConnector", NULL, NONE, NULL, "unknown connector");
    assert_derived(U, "PsychicConnector", "psychic", NONE, NULL, "unknown dispatch_profile");
    assert_int_equal(add("psychic", "psychic", HANDOFF), 0);
    assert_int_equal(add("PsychicConnector", "psychic", HANDOFF), 0);
    assert_int_equal(add("psychicconnector", "psychic", HANDOFF), 0); /* nothing new */
    assert_int_equal(add("PsychicConnector", "other", HANDOFF), BT_E_INVAL);
    assert_int_equal(add("PsychicConnector", "psychic", SYNC), BT_E_INVAL);
    assert_derived(U, "PSYCHICConnector", NULL, HANDOFF, "psychic", NULL);
    assert_derived(BT_ENGINE_SGLANG, "PsychicConnector", NULL, HANDOFF, "psychic", NULL);
    assert_derived(U, "PsychicConnector", "psychic", HANDOFF, "psychic", NULL);
    assert_derived(U, "PsychicConnector", "nixl", NONE, NULL, "leave dispatch_profile out");
    assert_derived(U, "PsychicConnector", "handoff", NONE, NULL, "leave dispatch_profile out");
    assert_derived(U, "MoRIIOConnector", "psychic", HANDOFF, "psychic", NULL);
    assert_derived(U, "NixlConnector", "psychic", HANDOFF, "psychic", NULL);
    assert_int_equal(bt_capability_engine(BT_STR("PsychicConnector"), NULL, 0, BT_STR_NULL),
                     BT_ENGINE_VLLM);
    assert_string_equal(bt_capability_nearest(BT_STR("PsychikConnector")), "PsychicConnector");
    bt_capability_pair_rules(U, BT_STR("PsychicConnector"), NULL, 0, "psychic", &rules);
    assert_string_equal(rules.family, "psychic");
    (void) bt_capability_derive(U, BT_STR("PsychicConnector"), NULL, 0, BT_STR_NULL, &cap, &dialect,
                                &why);
    assert_false(bt_capability_serves_alone(BT_ENGINE_VLLM, dialect));
}

/* Only where its file says so, whatever the engine; a file that says both is refused. */
static void own_workers_that_serve_alone(void **state)
{
    const bt_own_connector_t own = {"HermitConnector", "hermit", HANDOFF,
                                    BT_ENGINE_UNKNOWN, true,     false};
    enum bt_capability cap;
    const char *dialect, *why;

    assert_int_equal(bt_capability_add(&own), 0);
    assert_int_equal(bt_capability_add(&own), 0);
    assert_int_equal(add("HermitConnector", "hermit", HANDOFF), BT_E_INVAL);
    (void) bt_capability_derive(U, BT_STR("HermitConnector"), NULL, 0, BT_STR_NULL, &cap, &dialect,
                                &why);
    assert_string_equal(dialect, "hermit");
    assert_true(bt_capability_serves_alone(BT_ENGINE_UNKNOWN, dialect));
    assert_true(bt_capability_serves_alone(BT_ENGINE_SGLANG, dialect));
}

static void a_shipped_dialect_for_another_connector(void **state)
{
    bt_pair_rules_t rules;
    enum bt_capability cap;
    const char *dialect, *why;

    assert_int_equal(add("PulledConnector", "nixl", HANDOFF), 0);
    bt_capability_derive(U, BT_STR("PulledConnector"), NULL, 0, BT_STR_NULL, &cap, &dialect, &why);
    assert_null(why);
    assert_true(bt_capability_serves_alone(BT_ENGINE_VLLM, dialect));
    bt_capability_pair_rules(U, BT_STR("PulledConnector"), NULL, 0, dialect, &rules);
    assert_int_equal(rules.tp, BT_TP_DIVIDES);
    assert_int_equal(add("NixlConnector", "psychic", HANDOFF), 0); /* the user's word */
    assert_derived(U, "nixlconnector", NULL, HANDOFF, "psychic", NULL);
}

static void rules_that_connectors_demand(void **state)
{
    bt_pair_rules_t rules;
    bt_str_t multi[2] = {BT_STR("NixlConnector"), BT_STR("Other")};
    bt_capability_pair_rules(U, BT_STR("NixlConnector"), NULL, 0, "nixl", &rules);
    assert_int_equal(rules.tp, BT_TP_DIVIDES);
    assert_true(rules.equal_version);
    bt_capability_pair_rules(U, BT_STR("MultiConnector"), multi, 2, "nixl", &rules);
    assert_int_equal(rules.tp, BT_TP_DIVIDES);
    bt_capability_pair_rules(BT_ENGINE_VLLM_ASCEND, BT_STR("mooncakeconnectorV1"), NULL, 0, "nixl",
                             &rules);
    assert_int_equal(rules.tp, BT_TP_PREFILL_MULTIPLE);
    assert_false(rules.equal_version);
    bt_capability_pair_rules(BT_ENGINE_MINDIE, BT_STR_NULL, NULL, 0, "nixl",
                             &rules); /* profile handoff */
    assert_int_equal(rules.tp, BT_TP_PREFILL_MULTIPLE);
    bt_capability_pair_rules(BT_ENGINE_VLLM_ASCEND, BT_STR("nixl"), NULL, 0, "nixl", &rules);
    assert_int_equal(rules.tp, BT_TP_PREFILL_MULTIPLE);
    bt_capability_pair_rules(BT_ENGINE_SGLANG, BT_STR("nixl"), NULL, 0, "sglang", &rules);
    assert_int_equal(rules.tp, BT_TP_ANY);
    assert_false(rules.equal_version);
    bt_capability_pair_rules(U, BT_STR("batonCONNECTOR"), NULL, 0, "baton", &rules);
    assert_int_equal(rules.tp, BT_TP_ANY);
    assert_string_equal(rules.family, "baton");
    assert_true(bt_capability_is_gateway_managed("baton"));
    assert_false(bt_capability_is_gateway_managed("nixl"));
    assert_false(bt_capability_is_gateway_managed(NULL));
}

static void names_and_parsing(void **state)
{
    enum bt_engine engine = BT_ENGINE_UNKNOWN;
    enum bt_role role = BT_ROLE_PREFILL;
    assert_int_equal(bt_engine_parse(BT_STR("vLLM-Ascend"), &engine), 0);
    assert_int_equal(engine, BT_ENGINE_VLLM_ASCEND);
    assert_int_equal(bt_engine_parse(BT_STR("SGLang"), &engine), 0);
    assert_int_equal(engine, BT_ENGINE_SGLANG);
    assert_int_equal(bt_engine_parse(BT_STR("tgi"), &engine), BT_E_INVAL);
    assert_int_equal(engine, BT_ENGINE_SGLANG); /* written only on success */
    assert_int_equal(bt_role_parse(BT_STR("Union"), &role), 0);
    assert_int_equal(role, BT_ROLE_HYBRID);
    assert_int_equal(bt_role_parse(BT_STR("decode"), &role), 0);
    assert_string_equal(bt_role_name(role), "decode");
    assert_int_equal(bt_role_parse(BT_STR(""), &role), BT_E_INVAL);
    assert_string_equal(bt_engine_name(BT_ENGINE_VLLM_ASCEND), "vllm_ascend");
    assert_string_equal(bt_capability_name(NONE), "none");
    assert_true(bt_capability_prefill_serves_alone(BT_ENGINE_MINDIE, "nixl"));
    assert_false(bt_capability_prefill_serves_alone(BT_ENGINE_SGLANG, "sglang"));
    assert_false(bt_capability_prefill_serves_alone(BT_ENGINE_VLLM, "p2p_nccl"));
    assert_false(bt_capability_prefill_serves_alone(BT_ENGINE_VLLM, "moriio_read"));
    assert_int_equal(bt_capability_engine(BT_STR("NixlConnector"), NULL, 0, BT_STR_NULL),
                     BT_ENGINE_VLLM);
    assert_int_equal(bt_capability_engine(BT_STR("BatonConnector"), NULL, 0, BT_STR_NULL),
                     BT_ENGINE_VLLM);
    assert_int_equal(bt_capability_engine(BT_STR_NULL, NULL, 0, BT_STR("baton")), BT_ENGINE_VLLM);
    assert_int_equal(bt_capability_engine(BT_STR("MooncakeHybridConnector"), NULL, 0, BT_STR_NULL),
                     BT_ENGINE_VLLM_ASCEND);
    assert_int_equal(bt_capability_engine(BT_STR_NULL, NULL, 0, BT_STR("bootstrap")),
                     BT_ENGINE_SGLANG);
    assert_int_equal(bt_capability_engine(BT_STR("Foo"), NULL, 0, BT_STR_NULL), BT_ENGINE_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_table),
        cmocka_unit_test(multi_connectors_inside_each_other),
        cmocka_unit_test(rules_that_connectors_demand),
        cmocka_unit_test(names_and_parsing),
        cmocka_unit_test(connectors_of_users_files),
        cmocka_unit_test(own_workers_that_serve_alone),
        cmocka_unit_test(a_shipped_dialect_for_another_connector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
