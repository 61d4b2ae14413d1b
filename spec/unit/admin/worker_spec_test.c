#include "cluster/help.h"

#include "admin/workers/worker_spec.h"

static char err[512];

static int json(bt_spec_request_t *r, const char *body)
{
    return bt_spec_from_json(r, bt_str(body), err, sizeof err);
}

static void test_every_member(void **state)
{
    bt_spec_request_t r;

    assert_int_equal(
        json(
            &r,
            "{\"url\":\"http://h:1\",\"name\":\"p-7\",\"pool\":\"q\",\"role\":\"prefill\","
            "\"models\":[\"a\",\"b\\u0041\"],\"engine\":\"vLLM-Ascend\",\"connector\":"
            "\"MultiConnector\","
            "\"connectors\":[\"X\",\"Y\"],\"dispatch_profile\":\"handoff\",\"bootstrap_port\":8998,"
            "\"dp_size\":4,\"tp_size\":8,\"pp_size\":2,\"dp_rank\":3,\"engine_id\":\"e\",\"kv_"
            "host\":\"k\","
            "\"version\":\"0.22\",\"transfer_group\":\"g\",\"lease_ms\":30000,\"zone\":\"z\","
            "\"labels\":{\"a\":\"1\",\"b\":\"2\"},\"api_key\":\"s\"}"),
        0);
    assert_string_equal(r.spec.url, "http://h:1");
    assert_string_equal(r.spec.name, "p-7");
    assert_string_equal(r.pool, "q");
    assert_int_equal(r.spec.role, BT_ROLE_PREFILL);
    assert_int_equal(r.spec.model_count, 2);
    assert_string_equal(r.spec.models[1], "bA");
    assert_int_equal(r.spec.engine, BT_ENGINE_VLLM_ASCEND);
    assert_string_equal(r.spec.connector, "MultiConnector");
    assert_int_equal(r.spec.child_count, 2);
    assert_string_equal(r.spec.children[0], "X");
    assert_string_equal(r.spec.dispatch_profile, "handoff");
    assert_int_equal(r.spec.bootstrap_port, 8998);
    assert_int_equal(r.spec.dp_size, 4);
    assert_int_equal(r.spec.tp_size, 8);
    assert_int_equal(r.spec.pp_size, 2);
    assert_int_equal(r.spec.dp_rank, 3);
    assert_string_equal(r.spec.engine_id, "e");
    assert_string_equal(r.spec.kv_host, "k");
    assert_string_equal(r.spec.version, "0.22");
    assert_string_equal(r.spec.transfer_group, "g");
    assert_int_equal(r.spec.lease_ms, 30000);
    assert_string_equal(r.spec.zone, "z");
    assert_string_equal(r.spec.labels, "a=1,b=2");
    assert_string_equal(r.spec.api_key, "s");
    bt_spec_request_fini(&r);
}

static void test_names_of_other_routers(void **state)
{
    bt_spec_request_t r;

    assert_int_equal(
        json(&r, "{\"url\":\"http://"
                 "h:1\",\"worker_type\":\"decode\",\"model_id\":\"m\",\"runtime\":\"sglang\","
                 "\"kv_connector\":\"NixlConnector\",\"bootstrap_port\":null}"),
        0);
    assert_int_equal(r.spec.role, BT_ROLE_DECODE);
    assert_string_equal(r.spec.models[0], "m");
    assert_int_equal(r.spec.engine, BT_ENGINE_SGLANG);
    assert_string_equal(r.spec.connector, "NixlConnector");
    assert_int_equal(r.spec.bootstrap_port, 0);
    bt_spec_request_fini(&r);
    assert_int_equal(json(&r, "{\"url\":\"http://h:1\",\"worker_type\":\"regular\"}"), 0);
    assert_int_equal(r.spec.role, BT_ROLE_HYBRID);
    bt_spec_request_fini(&r);
}

static void refuses(const char *body, const char *part)
{
    bt_spec_request_t r;

    if (json(&r, body) != BT_E_INVAL)
        fail_msg("accepted: %s", body);
    if (strstr(err, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\" (%s)", part, err, body);
    bt_spec_request_fini(&r);
}

static void test_refusals(void **state)
{
    refuses("", "JSON object");
    refuses("[]", "JSON object");
    refuses("{}", "\"url\" is missing");
    refuses("{\"url\":\"http://h:1\"", "at byte");
    refuses("{\"url\":\"http://h:1\"} x", "at byte");
    refuses("{\"url\":\"http://h:1\",\"bootstrap_prt\":1}", "did you mean \"bootstrap_port\"?");
    refuses("{\"urls\":\"http://h:1\"}", "did you mean \"url\"?");
    refuses("{\"url\":\"http://h:1\",\"priority\":1}", "unknown member \"priority\"");
    refuses("{\"url\":\"a\",\"url\":\"b\"}", "\"url\" is there twice");
    refuses("{\"url\":\"a\",\"u\\u0072l\":\"b\"}", "\"url\" is there twice");
    refuses("{\"url\":\"a\",\"role\":\"decode\",\"worker_type\":\"decode\"}", "are the same");
    refuses("{\"url\":1}", "\"url\" must be text");
    refuses("{\"url\":\"\"}", "must not be empty");
    refuses("{\"url\":\"http://h\\r\\nx: y\"}", "control characters");
    refuses("{\"url\":\"a\\u0000b\"}", "control characters");
    refuses("{\"url\":\"a\",\"api_key\":\"k\\nEvil: 1\"}", "control characters");
    refuses("{\"url\":\"a\",\"name\":\"a/b\"}", "letters, digits");
    refuses("{\"url\":\"a\",\"name\":\"\\\"} 1\"}", "letters, digits");
    refuses("{\"url\":\"a\",\"role\":\"encoder\"}", "prefill, decode, hybrid or encode");
    refuses("{\"url\":\"a\",\"engine\":\"tgi\"}", "sglang, vllm");
    refuses("{\"url\":\"a\",\"bootstrap_port\":0}", "1 to 65535");
    refuses("{\"url\":\"a\",\"bootstrap_port\":65536}", "1 to 65535");
    refuses("{\"url\":\"a\",\"bootstrap_port\":1.5}", "whole number");
    refuses("{\"url\":\"a\",\"dp_size\":0}", "1 to 65535");
    refuses("{\"url\":\"a\",\"dp_size\":\"4\"}", "must be a number");
    refuses("{\"url\":\"a\",\"dp_rank\":-1}", "whole number");
    refuses("{\"url\":\"a\",\"lease_ms\":5}", "1000");
    refuses("{\"url\":\"a\",\"models\":[1]}", "no text");
    refuses("{\"url\":\"a\",\"models\":{}}", "a list of texts");
    refuses("{\"url\":\"a\",\"models\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\","
            "\"a\",\"b\",\"c\",\"d\",\"e\","
            "\"f\",\"g\",\"h\"]}",
            "at most 16");
    refuses("{\"url\":\"a\",\"labels\":{\"k\":1}}", "texts by name");
    refuses("{\"url\":\"a\",\"labels\":{\"k\":\"a,b=c\"}}", "without ','");
    refuses("{\"url\":\"a\",\"labels\":[]}", "must be text");
}

static void test_query(void **state)
{
    bt_spec_request_t r;

    assert_int_equal(
        bt_spec_from_query(&r,
                           BT_STR("url=http%3A%2F%2Fh%3A1&worker_type=prefill&bootstrap_port=none"),
                           err, sizeof err),
        0);
    assert_string_equal(r.spec.url, "http://h:1");
    assert_int_equal(r.spec.role, BT_ROLE_PREFILL);
    assert_int_equal(r.spec.bootstrap_port, -1);
    bt_spec_request_fini(&r);

    assert_int_equal(bt_spec_from_query(&r, BT_STR("url=http://h:1&bootstrap_port=8998&dp_size=2"),
                                        err, sizeof err),
                     0);
    assert_int_equal(r.spec.bootstrap_port, 8998);
    assert_int_equal(r.spec.dp_size, 2);
    assert_int_equal(r.spec.dp_rank, -1);
    bt_spec_request_fini(&r);

    static const char *const bad[] = {"",
                                      "worker_type=prefill",
                                      "url=",
                                      "url=%zz",
                                      "url=a&nonsense=1",
                                      "url=a&url=b",
                                      "url=a%0d%0ab",
                                      "url=a&bootstrap_port=x"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (bt_spec_from_query(&r, bt_str(bad[i]), err, sizeof err) != BT_E_INVAL)
            fail_msg("accepted: %s", bad[i]);
        bt_spec_request_fini(&r);
    }
}

#define CONFIG(role)                                                                               \
    "{\"kv_connector\":\"MultiConnector\",\"kv_role\":\"" role "\",\"engine_id\":\"e7\","          \
    "\"kv_connector_extra_config\":{\"connectors\":[{\"kv_connector\":\"NixlConnector\"}]}}"

static void assert_is_nixl_prefill(const bt_spec_request_t *r)
{
    assert_int_equal(r->spec.role, BT_ROLE_PREFILL);
    assert_string_equal(r->spec.connector, "MultiConnector");
    assert_int_equal(r->spec.child_count, 1);
    assert_string_equal(r->spec.children[0], "NixlConnector");
    assert_string_equal(r->spec.engine_id, "e7");
}

/* An object, its text, and a query's value; before the other members or behind them. */
static void test_a_pasted_kv_transfer_config(void **state)
{
    static const char as_text[] = "{\"kv_transfer_config\":\"{\\n\\\"kv_connector\\\":"
                                  "\\\"NixlConnector\\\"}\",\"url\":\"http://"
                                  "h:1\"}";
    bt_spec_request_t r;

    assert_int_equal(
        json(&r, "{\"kv_transfer_config\":" CONFIG("kv_producer") ",\"url\":\"http://h:1\"}"), 0);
    assert_is_nixl_prefill(&r);
    bt_spec_request_fini(&r);
    assert_int_equal(json(&r, as_text), 0);
    assert_string_equal(r.spec.connector, "NixlConnector");
    bt_spec_request_fini(&r);
    assert_int_equal(
        bt_spec_from_query(&r, BT_STR("url=http://h:1&kv_transfer_config=" CONFIG("kv_producer")),
                           err, sizeof err),
        0);
    assert_is_nixl_prefill(&r);
    bt_spec_request_fini(&r);
}

#define OFFLOADING(extra)                                                                          \
    "{\"url\":\"http://h:1\",\"role\":\"prefill\",\"kv_transfer_config\":{\"kv_connector\":"       \
    "\"OffloadingConnector\",\"kv_connector_extra_config\":{" extra "}}}"

static void test_a_pasted_peer_to_peer_tier(void **state)
{
    bt_spec_request_t r;

    assert_int_equal(json(&r, OFFLOADING("\"secondary_tiers\":[{\"type\":\"fs\"},{\"type\":"
                                         "\"p2p\",\"host\":\"10.0.0.1\",\"port\":5800}]")),
                     0);
    assert_string_equal(r.spec.kv_host, "10.0.0.1");
    assert_int_equal(r.spec.bootstrap_port, 5800);
    bt_spec_request_fini(&r);
    assert_int_equal(json(&r, OFFLOADING("\"secondary_tiers\":[{\"type\":\"p2p\"}]")), 0);
    assert_null(r.spec.kv_host);
    assert_int_equal(r.spec.bootstrap_port, 0);
    bt_spec_request_fini(&r);
    refuses(OFFLOADING("\"secondary_tiers\":[{\"type\":\"p2p\",\"port\":0}]"), "1 to 65535");
    refuses(OFFLOADING("\"secondary_tiers\":[{\"type\":\"fs\"}]"), "no peer-to-peer tier");
    refuses(OFFLOADING("\"cpu_bytes_to_use\":1"), "no peer-to-peer tier");
}

static void test_a_kv_transfer_config_that_does_not_fit(void **state)
{
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":" CONFIG(
                "kv_producer") ",\"role\":\"decode\"}",
            "\"kv_transfer_config\": kv_role \"kv_producer\" can only be prefill");
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":" CONFIG(
                "kv_producer") ",\"worker_type\":\"decode\"}",
            "can only be prefill, but role is decode");
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":{}}", "kv_connector is missing");
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":\"{\"}", "not JSON (byte 2)");
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":7}", "must be text");
    refuses("{\"url\":\"http://h:1\",\"kv_transfer_config\":{\"kv_connector\":\"a\\nb\"}}",
            "without control characters");
    refuses(
        "{\"url\":\"http://h:1\",\"kv_transfer_config\":{\"kv_connector\":\"a\"},\"connectors\":["
        "\"b\"]}",
        "leave connectors out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member),
        cmocka_unit_test(test_names_of_other_routers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_query),
        cmocka_unit_test(test_a_pasted_kv_transfer_config),
        cmocka_unit_test(test_a_pasted_peer_to_peer_tier),
        cmocka_unit_test(test_a_kv_transfer_config_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
