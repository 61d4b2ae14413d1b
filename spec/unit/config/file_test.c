#include "load.h"

static const char *text_of(const char *body)
{
    return load_write("baton.lua", body);
}

/* The refusal without "FILE: ". */
static void refused(const char *body, const char *why)
{
    char want[600];
    const char *path = text_of(body);
    snprintf(want, sizeof want, "%s: %s", path, why);
    load_refused(path, want);
}

static void tables_of_settings(void **state)
{
    bt_config_t c;
    char want[256];

    load_ok(&c, text_of("return { tls = { min_version = '1.3', ciphers = 'x',\n"
                        "  redis = {}, workers = { ca = '/ca.pem' } },\n"
                        "  identity = { jwt = { clock_skew_secs = 7 } } }"));
    assert_int_equal(c.tls_min_version, 1);
    assert_string_equal(c.tls_ciphers, "x");
    assert_string_equal(c.worker_tls_ca, "/ca.pem");
    assert_int_equal(c.jwt_skew_ms, 7000);
    bt_config_fini(&c);
    /* paths are relative to the file; each certificate has its key */
    load_ok(&c, text_of("return { tls = { certificates = { { cert = 'a.pem', key = '/k' },\n"
                        "  { cert = '/b', key = '/l' } },\n"
                        "  admin = { certificates = { { cert = '/c', key = '/m' } } } } }"));
    snprintf(want, sizeof want, "%s/a.pem", load_folder());
    assert_int_equal(c.tls.cert_count, 2);
    assert_string_equal(c.tls.certs[0], want);
    assert_string_equal(c.tls.certs[1], "/b");
    assert_string_equal(c.tls.keys[1], "/l");
    assert_string_equal(c.admin_tls.keys[0], "/m");
    bt_config_fini(&c);
    refused("return { tls = { certificates = { { cert = 'a', key = 'b' }, { cert = 'c' } } } }",
            "tls.certificates[2]: expected a certificate and its key, { cert = \"FILE\", key = "
            "\"FILE\" }");
    refused("return { tls = { certificates = { cert = 'a', key = 'b' } } }",
            "tls.certificates: expected a list, { { cert = \"FILE\", key = \"FILE\" }, ... }: the "
            "first is for names that no other has");
    refused("return { tls = { admin = { certificates = { { cert = 1, key = 'b' } } } } }",
            "tls.admin.certificates: expected a list of up to 32 strings, got 1");
    refused("return { tls = { cert = 'a', certificates = { { cert = 'a', key = 'b' } } } }",
            "tls.certificates: is said twice: also as cert and key; leave out one");
    refused("return { tls = { certificates = { { cert = 'a', key = 'b' } } }, tls_key = 'b' }",
            "tls.certificates: is said twice: also as tls_key; leave out one");
    refused("return { tls = { workers = { ca = 'a' } }, worker_tls_ca = 'b' }",
            "tls.workers.ca: is said twice: also as worker_tls_ca; leave out one");
    refused("return { tls = { workers = { certs = 'a' } } }",
            "tls.workers.certs: unknown key, did you mean \"cert\"?");
    refused("return { tls = { client_allow = { 5 } } }",
            "tls.client_allow: expected a list of up to 64 strings, got 5");
    refused("return { tls = { worker = { } } }",
            "tls.worker: unknown key, did you mean \"workers\"?");
    refused("return { tls = 'x' }", "tls: expected a table of settings");
    refused("return { tls = { { cert = 'a', key = 'b' } } }",
            "tls: expected a table of settings, got a list");
    refused("return { identity = { key_file = 'x' } }",
            "identity.key_file: unknown key, did you mean \"keys_file\"?");
    refused("return { identity = { keys_file = '/none' }, client_api_keys_file = 'x' }",
            "identity.keys_file: is said twice: also as client_api_keys_file; leave out one");
}

static void reads_all_levels(void **state)
{
    bt_config_t c;
    char want[256];
    load_ok(
        &c,
        text_of("return {\n"
                "  port = 31000, admin_port = 0, host = '0.0.0.0', access_log = false, log_level = "
                "'warn',\n"
                "  proxy_path = { '/a', '/b' }, policy = 'random', request_timeout_secs = 12.5,\n"
                "  policy_dir = 'policies', breaker_failures = 7,\n"
                "  pools = {\n"
                "    { name = 'one', models = { 'm1', 'm2' }, policy = './mine.lua', max_attempts "
                "= 2,\n"
                "      workers = {\n"
                "        { url = 'http://a:1', name = 'left', role = 'prefill', connector = "
                "'NixlConnector',\n"
                "          bootstrap_port = 5600, tp_size = 4, dp_size = 2, version = '0.32.0',\n"
                "          transfer_group = 'g', lease_ms = 20000, zone = 'z', api_key = 'k',\n"
                "          labels = { rack = 'r1', disk = 'ssd' }, engine = 'vllm', models = { "
                "'m1' } },\n"
                "        { url = 'http://b:1', role = 'DECODE', connector = 'MultiConnector',\n"
                "          connectors = { 'NixlConnector', 'OffloadingConnector' } },\n"
                "      } },\n"
                "    { name = 'two', engine = 'sglang', workers = {\n"
                "        { url = 'http://c:1', role = 'prefill', bootstrap_port = 'none' },\n"
                "        { url = 'http://d:1' } } },\n"
                "  },\n"
                "}\n"));
    assert_int_equal(c.port, 31000);
    assert_int_equal(c.log_level, BT_LOG_WARN);
    assert_false(c.dispatch.access_log);
    assert_int_equal(c.breaker.failures, 7);
    assert_string_equal(c.dispatch.proxy_paths[1], "/b");
    snprintf(want, sizeof want, "%s/policies", load_folder());
    assert_string_equal(c.policy_dir, want); /* paths are relative to the file */
    assert_int_equal(c.pool_count, 2);
    const bt_config_pool_t *one = &c.pools[0], *two = &c.pools[1];
    assert_string_equal(one->spec.name, "one");
    assert_string_equal(one->spec.models[1], "m2");
    snprintf(want, sizeof want, "%s/./mine.lua", load_folder());
    assert_string_equal(one->spec.policy, want);
    assert_int_equal(one->spec.max_attempts, 2);
    assert_int_equal(one->spec.deadlines.total_ms, 12500);
    const bt_worker_spec_t *p = &one->workers[0], *d = &one->workers[1];
    assert_string_equal(p->name, "left");
    assert_int_equal(p->role, BT_ROLE_PREFILL);
    assert_int_equal(p->bootstrap_port, 5600);
    assert_int_equal(p->tp_size, 4);
    assert_int_equal(p->dp_size, 2);
    assert_int_equal(p->lease_ms, 20000);
    assert_string_equal(p->labels, "disk=ssd,rack=r1");
    assert_string_equal(p->version, "0.32.0");
    assert_string_equal(p->models[0], "m1");
    assert_int_equal(d->role, BT_ROLE_DECODE);
    assert_int_equal(d->child_count, 2);
    assert_string_equal(d->children[1], "OffloadingConnector");
    assert_string_equal(two->spec.policy, "random"); /* from the top level; a name, not a path */
    assert_int_equal(two->workers[0].bootstrap_port, -1);
    assert_string_equal(two->workers[0].connector, "sglang");
    assert_int_equal(two->workers[1].role, BT_ROLE_HYBRID);
    bt_config_fini(&c);
}

static void flags_win_over_the_file(void **state)
{
    bt_config_t c;
    char line[512];
    const char *path = text_of(
        "return { port = 1, log_level = 'debug', pools = { { policy = 'random', workers = {\n"
        "  { url = 'http://a:1' } } } } }");
    snprintf(line, sizeof line, "--port 2 %s --policy round_robin --worker-urls http://b:1", path);
    load_ok(&c, line);
    assert_int_equal(c.port, 2);
    assert_int_equal(c.log_level, BT_LOG_DEBUG);
    assert_string_equal(c.pools[0].spec.policy, "round_robin");
    assert_int_equal(c.pools[0].worker_count, 2); /* workers add up */
    bt_config_fini(&c);
    path = text_of("return { pools = { { name = 'a' }, { name = 'b' } } }");
    snprintf(line, sizeof line, "%s --max-attempts 9", path);
    load_ok(&c, line);
    assert_int_equal(c.pools[0].spec.max_attempts, 9);
    assert_int_equal(c.pools[1].spec.max_attempts, 9);
    bt_config_fini(&c);
    snprintf(line, sizeof line, "%s --decode http://b:1", path);
    char want[256];
    snprintf(want, sizeof want, "--decode: %s has 2 pools: list this worker in one of them", path);
    load_refused(line, want);
}

static double weight_of(const bt_config_t *c, unsigned pool, enum bt_policy_slot slot)
{
    const bt_value_t *params = c->pools[pool].params[slot],
                     *weight = params != NULL ? bt_value_get(params, "weight") : NULL;
    return weight != NULL ? weight->number : -1;
}

/* Parameters of the top level are for the policy of the top level. */
static void names_of_pools(void **state)
{
    refused("return { pools = { { name = 'a' }, { name = 'rules:x' } } }",
            "pools[2].name: \"rules:x\" begins with \"rules:\", which is the rules' own; choose "
            "another name");
    refused("return { pools = { { name = ('x'):rep(64) } } }",
            "pools[1].name: "
            "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\" longer than 63 "
            "bytes; choose another name");
}

static void parameters_of_policies(void **state)
{
    bt_config_t c;
    char line[512], want[300];
    const char *path = text_of(
        "return { rules_file = 'rules.lua', policy_http_hosts = { 'a:1', 'b:2' },\n"
        "  policy_wait_ms = 7, policy = 'x', params = { weight = 1 }, pools = {\n"
        "    { name = 'a' }, { name = 'b', policy = 'y' }, { name = 'c', params = { weight = 3 } "
        "},\n"
        "    { name = 'd', policy = 'z', prefill_policy = 'p', decode_policy = 'q',\n"
        "      params = { weight = 4 }, prefill_params = { weight = 5, list = { 1, 'two' } },\n"
        "      decode_params = { weight = 6 } } } }");
    load_ok(&c, path);
    snprintf(want, sizeof want, "%s/rules.lua", load_folder());
    assert_string_equal(c.rules_file, want);
    assert_string_equal(c.policy_http_hosts[1], "b:2");
    assert_int_equal(c.dispatch.policy_wait_ms, 7);
    assert_true(weight_of(&c, 0, BT_SLOT_BOTH) == 1);
    assert_string_equal(c.pools[0].params_places[BT_SLOT_BOTH], "params");
    assert_true(weight_of(&c, 1, BT_SLOT_BOTH) == -1);
    assert_true(weight_of(&c, 2, BT_SLOT_BOTH) == 3);
    assert_string_equal(c.pools[2].params_places[BT_SLOT_BOTH], "pools[3].params");
    assert_true(weight_of(&c, 3, BT_SLOT_BOTH) == 4);
    assert_true(weight_of(&c, 3, BT_SLOT_PREFILL) == 5);
    assert_true(weight_of(&c, 3, BT_SLOT_DECODE) == 6);
    assert_string_equal(c.pools[3].params_places[BT_SLOT_DECODE], "pools[4].decode_params");
    bt_config_fini(&c);
    snprintf(line, sizeof line, "%s --policy-param weight=2", path);
    snprintf(want, sizeof want,
             "--policy-param: %s has 4 pools: write params = { ... } in one of them", path);
    load_refused(line, want);
    path = text_of("return { params = { weight = 1, other = 2 } }");
    snprintf(line, sizeof line, "%s --policy-param weight=9", path);
    load_ok(&c, line); /* one pool: the flag is added to what the file says */
    assert_true(weight_of(&c, 0, BT_SLOT_BOTH) == 9);
    assert_int_equal(c.pools[0].params[BT_SLOT_BOTH]->count, 2);
    bt_config_fini(&c);
    refused("return { params = 7 }", "params: expected a table of the policy's parameters");
    refused("return { pools = { { params = 'x' } } }",
            "pools[1].params: expected a table of the policy's parameters");
    refused("return { pools = { { parms = {} } } }",
            "pools[1].parms: unknown key, did you mean \"params\"?");
    refused("return { pools = { { decode_params = {} } } }",
            "pools[1].decode_params: the pool has no prefill_policy and no decode_policy");
}

static void unknown_keys_name_the_nearest(void **state)
{
    refused("return { prot = 1 }", "prot: unknown key, did you mean \"port\"?");
    refused("return { kubernetes = 1 }", "kubernetes: unknown key; baton help file lists all");
    refused("return { prometheus_port = 1 }",
            "prometheus_port: unknown key, did you mean \"admin_port\"?");
    refused("return { cache_threshold = 1 }", "cache_threshold: unknown key; of sglang_cache_aware "
                                              "it is params = { cache_threshold = ... }");
    refused("return { ['log-level'] = 'info' }",
            "log-level: unknown key, did you mean \"log_level\"?");
    refused("return { pools = { { nam = 'x' } } }",
            "pools[1].nam: unknown key, did you mean \"name\"?");
    refused("return { pools = { {}, { workers = { { url = 'http://a:1' }, { url = 'http://a:2', "
            "bootstrap_prt = 1 } } } } }",
            "pools[2].workers[2].bootstrap_prt: unknown key, did you mean \"bootstrap_port\"?");
    refused("return { workers = {} }",
            "workers: unknown key here; it is a key of a pool (pools = { { ... } })");
    refused("return { pools = { { port = 1 } } }",
            "pools[1].port: unknown key here; it is a key of the top level");
    refused("return { pools = { { workers = { { url = 'http://a:1', policy = 'x' } } } } }",
            "pools[1].workers[1].policy: unknown key here; it is a key of a pool, not of a worker");
    refused("return { prefill = 'http://a:1' }", "prefill: unknown key; baton help file lists all");
}

static void wrong_values_name_what_is_expected(void **state)
{
    refused("return { port = '1' }", "port: expected a whole number from 0 to 65535, got \"1\"");
    refused("return { port = 1.5 }", "port: expected a whole number from 0 to 65535, got 1.5");
    refused("return { port = -1 }", "port: expected a whole number from 0 to 65535, got -1");
    refused("return { port = true }", "port: expected a whole number from 0 to 65535, got true");
    refused("return { access_log = 'yes' }", "access_log: expected true or false, got \"yes\"");
    refused("return { host = {} }", "host: expected a string that is not empty, got a table");
    refused("return { host = '' }", "host: expected a string that is not empty, got \"\"");
    refused("return { log_level = 'loud' }",
            "log_level: expected one of error, warn, info, debug, got \"loud\"");
    refused("return { request_timeout_secs = 0 }",
            "request_timeout_secs: expected a number from 0.001 to 86400, got 0");
    refused("return { pools = 3 }", "pools: expected a list of tables, { { ... }, ... }");
    refused("return { pools = { 3 } }",
            "pools[1]: expected a table like { name = \"llama\", workers = { ... } }");
    refused("return { pools = { { workers = 'x' } } }",
            "pools[1].workers: expected a list of tables, { { ... }, ... }");
    refused("return { pools = { { workers = { 'http://a:1' } } } }",
            "pools[1].workers[1]: expected a table like { url = \"http://127.0.0.1:8000\", role = "
            "\"decode\" }");
    refused("return { pools = { { workers = { { role = 'decode' } } } } }",
            "pools[1].workers[1].url: missing: where does this worker listen?");
    refused("return { pools = { { workers = { { url = 'http://a:1', role = 'perfill' } } } } }",
            "pools[1].workers[1].role: expected one of prefill, decode, hybrid, encode, got "
            "\"perfill\"");
    refused("return { pools = { { workers = { { url = 'http://a:1', role = 'encode', connector = "
            "'ecmooncakeconnector' } } } } }",
            "pools[1].workers[1].connector: connector \"ecmooncakeconnector\": not supported: its "
            "encoders push what they make to an engine whose ZeroMQ address the encode request "
            "must name before a pair is planned, and only to engines that prefill and decode "
            "themselves; use ECCPUConnector or ECExampleConnector, whose outputs prefill fetches");
    refused("return { pools = { { workers = { { url = 'http://a:1', bootstrap_port = 0 } } } } }",
            "pools[1].workers[1].bootstrap_port: expected a port from 1 to 65535, or none, got 0");
    refused("return { pools = { { models = { 'a', 3 } } } }",
            "pools[1].models: expected a list of up to 16 strings, got 3");
    refused("return { pools = { {}, {} } }", "pools[1].name: missing: several pools need names");
    refused("return { 1, 2 }", "expected a table of settings, got a list");
}

static void broken_lua_names_the_line(void **state)
{
    bt_config_t c;
    assert_true(load_line(&c, text_of("return {\n  port = ,\n}")) < 0);
    assert_non_null(strstr(load_err, "baton.lua:2:"));
    assert_true(load_line(&c, "/nonexistent/baton.lua") < 0);
    assert_non_null(strstr(load_err, "/nonexistent/baton.lua"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_pools),
        cmocka_unit_test(reads_all_levels),
        cmocka_unit_test(tables_of_settings),
        cmocka_unit_test(flags_win_over_the_file),
        cmocka_unit_test(parameters_of_policies),
        cmocka_unit_test(unknown_keys_name_the_nearest),
        cmocka_unit_test(wrong_values_name_what_is_expected),
        cmocka_unit_test(broken_lua_names_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
