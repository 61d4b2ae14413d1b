#include "load.h"

#define HEAD "return { pools = { { workers = { { url = 'http://a:1', "
#define TAIL " } } } } }"
#define NIXL                                                                                       \
    "'{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\",\"engine_id\":\"e7\"}'"

static bt_config_t loaded;

/* The worker with these members; until fini. */
static const bt_worker_spec_t *worker_of(const char *members)
{
    char text[1024];
    snprintf(text, sizeof text, HEAD "%s" TAIL, members);
    load_ok(&loaded, load_write("kv.lua", text));
    return &loaded.pools[0].workers[0];
}

static void refuses(const char *members, const char *why)
{
    char text[1024], want[1024];
    snprintf(text, sizeof text, HEAD "%s" TAIL, members);
    const char *path = load_write("kv.lua", text);
    snprintf(want, sizeof want, "%s: pools[1].workers[1].kv_transfer_config: %s", path, why);
    load_refused(path, want);
}

static void as_json_text(void **state)
{
    const bt_worker_spec_t *w = worker_of("kv_transfer_config = " NIXL);
    assert_int_equal(w->role, BT_ROLE_PREFILL);
    assert_string_equal(w->connector, "NixlConnector");
    assert_string_equal(w->engine_id, "e7");
    assert_int_equal(w->engine, BT_ENGINE_VLLM);
    bt_config_fini(&loaded);
    w = worker_of("engine_id = 'mine', connector = 'nixlconnector', role = 'prefill', "
                  "kv_transfer_config = " NIXL);
    assert_string_equal(w->connector, "nixlconnector");
    assert_string_equal(w->engine_id, "mine");
    bt_config_fini(&loaded);
}

static void as_a_table(void **state)
{
    const bt_worker_spec_t *w = worker_of(
        "kv_transfer_config = { kv_connector = 'MultiConnector', kv_role = 'kv_consumer', "
        "  kv_buffer_size = 1e9, kv_connector_extra_config = { connectors = {"
        "    { kv_connector = 'MultiConnector', kv_role = 'kv_both', kv_connector_extra_config = {"
        "        connectors = { { kv_connector = 'NixlPushConnector' },"
        "                       { kv_connector = 'LMCacheConnectorV1' } } } },"
        "    { kv_connector = 'OffloadingConnector' } } } }");
    assert_int_equal(w->role, BT_ROLE_DECODE);
    assert_string_equal(w->connector, "MultiConnector");
    assert_int_equal(w->child_count, 4);
    assert_string_equal(w->children[0], "MultiConnector");
    assert_string_equal(w->children[1], "NixlPushConnector");
    assert_string_equal(w->children[3], "OffloadingConnector");
    assert_int_equal(w->engine, BT_ENGINE_VLLM);
    bt_config_fini(&loaded);
}

static void a_worker_of_both_kinds_is_what_the_file_says(void **state)
{
    const char *both =
        "kv_transfer_config = { kv_connector = 'NixlConnector', kv_role = 'kv_both' }";
    char text[256];
    assert_int_equal(worker_of(both)->role, BT_ROLE_HYBRID);
    bt_config_fini(&loaded);
    snprintf(text, sizeof text, "role = 'decode', %s", both);
    assert_int_equal(worker_of(text)->role, BT_ROLE_DECODE);
    bt_config_fini(&loaded);
}

static void refusals(void **state)
{
    refuses("kv_transfer_config = '{'", "not JSON (byte 2)");
    refuses("kv_transfer_config = '[]'",
            "expected the engine's --kv-transfer-config: a table, or its JSON as text");
    refuses("kv_transfer_config = { kv_conector = 'NixlConnector' }",
            "kv_connector is missing: paste all of the engine's --kv-transfer-config");
    refuses("kv_transfer_config = { kv_connector = 7 }", "kv_connector: expected a string");
    refuses("kv_transfer_config = { kv_connector = '' }",
            "kv_connector: expected a string that is not empty, without control characters");
    refuses("kv_transfer_config = { kv_connector = 'NixlConnector', kv_role = 'producer' }",
            "kv_role: expected kv_producer, kv_consumer or kv_both, got \"producer\"");
    refuses("role = 'decode', kv_transfer_config = " NIXL,
            "kv_role \"kv_producer\" can only be prefill, but role is decode; change one");
    refuses("role = 'hybrid', kv_transfer_config = " NIXL,
            "kv_role \"kv_producer\" can only be prefill, but role is hybrid; change one");
    refuses("connector = 'sglang', kv_transfer_config = " NIXL,
            "kv_connector is \"NixlConnector\", but connector is \"sglang\"; leave connector out");
    refuses("connectors = { 'A', 'B' }, kv_transfer_config = " NIXL,
            "it names the connectors; leave connectors out");
    refuses("kv_transfer_config = { kv_connector = 'MultiConnector', "
            "kv_connector_extra_config = { connectors = { 'NixlConnector' } } }",
            "connectors: expected objects with a kv_connector");
    refuses("kv_transfer_config = { kv_connector = 'MultiConnector', "
            "kv_connector_extra_config = { connectors = 'NixlConnector' } }",
            "kv_connector_extra_config.connectors: expected a list");
    refuses("kv_transfer_config = (function() local t = {} for i = 1, 9 do t[i] = { kv_connector = "
            "'X' } end return { kv_connector = 'MultiConnector', kv_connector_extra_config = { "
            "connectors = t } } end)()",
            "connectors: more than 8");
}

static void a_connector_that_is_not_known_is_named(void **state)
{
    char want[512];
    const char *path =
        load_write("kv.lua", HEAD "kv_transfer_config = { kv_connector = 'NixlConector', "
                                  "kv_role = 'kv_producer' }" TAIL);
    snprintf(
        want, sizeof want,
        "%s: pools[1].workers[1].connector: connector \"NixlConector\": unknown connector (did "
        "you mean NixlConnector?)",
        path);
    load_refused(path, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_json_text),
        cmocka_unit_test(as_a_table),
        cmocka_unit_test(a_worker_of_both_kinds_is_what_the_file_says),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_connector_that_is_not_known_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
