/* A worker's spec, written and read again. */
#include "../cluster/help.h"

#include "fleet/fleet_impl.h"

static int read_text(bt_worker_spec_t *spec, const char *json)
{
    int rc = bt_fleet_spec_read(spec, bt_str(json));

    if (rc < 0)
        bt_worker_spec_fini(spec);
    return rc;
}

static void check_same(const bt_worker_spec_t *spec)
{
    bt_worker_spec_t again;
    bt_text_t out;

    bt_text_init(&out);
    bt_fleet_spec_put(&out, spec);
    assert_int_equal(bt_fleet_spec_read(&again, bt_text_str(&out)), 0);
    assert_true(bt_worker_spec_same(spec, &again));
    assert_true((spec->name == NULL) == (again.name == NULL));
    if (spec->name != NULL)
        assert_string_equal(spec->name, again.name);
    bt_worker_spec_fini(&again);
    bt_text_fini(&out);
}

static void test_everything_comes_back(void **state)
{
    bt_worker_spec_t spec;

    make_spec(&spec, BT_ROLE_PREFILL, "http://host:1/x@2", "MultiConnector");
    check_same(&spec);
    spec.name = text("p\"7");
    spec.models[spec.model_count++] = text("a/b");
    spec.models[spec.model_count++] = text("\xc3\xa9");
    spec.children[spec.child_count++] = text("NixlConnector");
    spec.children[spec.child_count++] = text("X");
    spec.engine = BT_ENGINE_VLLM_ASCEND;
    spec.dispatch_profile = text("handoff");
    spec.bootstrap_port = -1;
    spec.dp_size = 4;
    spec.tp_size = 8;
    spec.pp_size = 2;
    spec.dp_rank = 3;
    spec.engine_id = text("e");
    spec.kv_host = text("k");
    spec.kv_address = text("k:1");
    spec.version = text("1.2");
    spec.transfer_group = text("g");
    spec.lease_ms = 480000;
    spec.zone = text("z");
    spec.labels = text("a=b,c=d");
    spec.api_key = text("secret\\");
    spec.tls_name = text("a.test");
    check_same(&spec);
    bt_worker_spec_fini(&spec);
}

static void test_what_is_new_is_passed_over_and_what_is_wrong_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        "{\"url\":3}",
        "{\"url\":\"http://h:1\"",
        "{\"url\":\"http://h:1\",\"dp_size\":\"x\"}",
        "{\"url\":\"http://h:1\",\"dp_size\":70000}",
        "{\"url\":\"http://h:1\",\"dp_size\":-2}",
        "{\"url\":\"http://h:1\",\"lease_ms\":-1}",
        "{\"url\":\"http://h:1\",\"role\":\"king\"}",
        "{\"url\":\"http://h:1\",\"engine\":\"v8\"}",
        "{\"url\":\"http://h:1\",\"models\":[1]}",
        "{\"url\":\"http://h:1\",\"models\":\"m\"}",
        "{\"url\":\"http://\\u0000h:1\"}",
        "{\"url\":\"http://h:1\",\"models\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\","
        "\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]}",
    };
    bt_worker_spec_t spec;

    assert_int_equal(read_text(&spec, "{\"url\":\"http://h:1\",\"colour\":{\"a\":[1]}}"), 0);
    assert_string_equal(spec.url, "http://h:1");
    assert_int_equal(spec.role, BT_ROLE_HYBRID);
    assert_int_equal(spec.dp_rank, -1);
    bt_worker_spec_fini(&spec);
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (read_text(&spec, wrong[i]) == 0)
            fail_msg("taken: %s", wrong[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_comes_back),
        cmocka_unit_test(test_what_is_new_is_passed_over_and_what_is_wrong_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
