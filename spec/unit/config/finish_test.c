/* What one setting implies for others, and the refusals that need neither scripts nor sockets. */
#include "config/config.h"
#include "zmq/sockets.h"

#include "load.h"

static void refused_file(const char *body, const char *why)
{
    char want[600];
    const char *path = load_write("baton.lua", body);
    snprintf(want, sizeof want, "%s: %s", path, why);
    load_refused(path, want);
}

static void loopback(void **state)
{
    static const char *const yes[] = {"127.0.0.1", "127.9.9.9", "::1",
                                      "[::1]",     "localhost", "LocalHost"};
    static const char *const no[] = {"localhost.evil.example",
                                     "0.0.0.0",
                                     "::",
                                     "10.0.0.1",
                                     "[::]",
                                     "example.org",
                                     "",
                                     "128.0.0.1"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        assert_true(bt_host_is_loopback(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        assert_false(bt_host_is_loopback(no[i]));
}

static void workers_that_cannot_pair(void **state)
{
    load_refused(
        "--prefill http://a:1",
        "--prefill http://a:1: how do the engines move KV? add --pd-disaggregation (SGLang), "
        "--vllm-pd-disaggregation (vLLM) or --kv-connector NAME");
    load_refused("--kv-connector FooConnector --decode http://a:1",
                 "--decode http://a:1: connector \"FooConnector\": unknown connector; say how "
                 "it is served with dispatch_profile (handoff, nixl, ...) or with a file in "
                 "--dialect-dir");
    load_refused("--kv-connector NixlConector --decode http://a:1",
                 "--decode http://a:1: connector \"NixlConector\": unknown connector (did you mean "
                 "NixlConnector?)");
    refused_file(
        "return { pools = { { workers = { { url = 'http://a:1', role = 'prefill' } } } } }",
        "pools[1].workers[1].connector: missing: how does the engine move KV? \"sglang\" (SGLang), "
        "\"nixl\" (vLLM's "
        "NixlConnector), ...: baton help run, --connector");
    bt_config_t c;
    load_ok(
        &c,
        "--kv-connector FooConnector --worker-urls http://a:1"); /* workers that do both need none */
    bt_config_fini(&c);
}

static void urls(void **state)
{
    load_refused("--worker-urls ftp://a:1",
                 "--worker-urls ftp://a:1: only http:// and https:// URLs are supported");
    load_refused("--worker-urls http://a:0",
                 "--worker-urls http://a:0: the port must be a number from 1 to 65535");
    refused_file("return { pools = { { workers = { { url = 'http://' } } } } }",
                 "pools[1].workers[1].url: the host is missing");
    refused_file("return { pools = { { workers = { { url = 'https://a/llm/v1/' } } } } }",
                 "pools[1].workers[1].url: leave out /v1: clients' paths have it, and it would be "
                 "sent twice");
}

static void paths_and_ports(void **state)
{
    load_refused("--kv-snapshot-secs 60",
                 "--kv-snapshot-secs: nothing is written without --kv-snapshot; add --kv-snapshot "
                 "FILE, or leave it out");
    load_refused("--queue-weights gold=4,silver=0",
                 "--queue-weights: expected TENANT=N with N from 1 to 1000, got \"silver=0\"");
    load_refused("--policy-http-host example.org",
                 "--policy-http-host: expected HOST:PORT, got \"example.org\"");
    load_refused("--policy-http-host http://example.org:80",
                 "--policy-http-host: expected HOST:PORT, got \"http://example.org:80\"");
    load_refused("--policy-http-host a:0", "--policy-http-host: expected HOST:PORT, got \"a:0\"");
    load_refused("--policy-http-host :80", "--policy-http-host: expected HOST:PORT, got \":80\"");
    load_refused("--policy-http-host ::1:80",
                 "--policy-http-host: expected HOST:PORT, got \"::1:80\"; an IPv6 address stands "
                 "in brackets: [::1]:80");
    bt_config_t v6;
    load_ok(&v6, "--policy-http-host [::1]:80");
    bt_config_fini(&v6);
    load_refused("--policy-param weight", "--policy-param: expected NAME=VALUE, got \"weight\"");
    load_refused("--policy-param =1", "--policy-param: expected NAME=VALUE, got \"=1\"");
    load_refused("--policy-wait-ms 0",
                 "--policy-wait-ms: expected a whole number from 1 to 600000, got \"0\"");
    load_refused("--admin-allowed-host http://a",
                 "--admin-allowed-host: expected a host name without "
                 "scheme and port, got \"http://a\"");
    load_refused("--admin-allowed-host a:80", "--admin-allowed-host: expected a host name without "
                                              "scheme and port, got \"a:80\"");
    load_refused("--cors-origin app.example",
                 "--cors-origin: expected SCHEME://HOST[:PORT] in lower "
                 "case and without a path, or *, got \"app.example\"");
    load_refused("--cors-origin https://a.example/",
                 "--cors-origin: expected SCHEME://HOST[:PORT] in "
                 "lower case and without a path, or *, got "
                 "\"https://a.example/\"");
    load_refused("--cors-origin null", "--cors-origin: expected SCHEME://HOST[:PORT] in lower case "
                                       "and without a path, or *, got \"null\"");
    load_refused("--cors-origin * --cors-origin https://a.example",
                 "--cors-origin: \"*\" is all origins, leave out the others");
    load_refused(
        "--cors-origin * --cors-credentials",
        "--cors-credentials: not with --cors-origin \"*\": every page could act as whoever "
        "reads it; list the origins");
    load_refused("--cors-credentials",
                 "--cors-credentials: no page may call; name origins with --cors-origin");
    load_refused("--api-key a\nb:c",
                 "--api-key: a key holds no control characters, such as the end of a line");
    load_refused("--proxy-path x", "--proxy-path: expected a path that begins with /, got \"x\"");
    load_refused("--health-check-endpoint x",
                 "--health-check-endpoint: expected a path that begins with /, got \"x\"");
    load_refused("--port 29000", "--admin-port: 29000 is the client port already; choose another "
                                 "(--admin-port, --prometheus-port)");
    bt_config_t c;
    load_ok(&c, "--port 0 --admin-port 0");
    bt_config_fini(&c);
    load_ok(&c, "--port 29000 --admin-host ::1");
    bt_config_fini(&c);
    load_refused("--transfer-port 30000",
                 "--transfer-port: 30000 is the client port already; choose another");
    load_refused("--transfer-port 7000 --registry-port 7000",
                 "--registry-port: 7000 is the transfer port already; choose another");
    load_ok(&c, "--transfer-port 0 --registry-port 0");
    bt_config_fini(&c);
    if (!bt_zmq_is_built())
        return;
    load_refused("--registry-port 7000 --p2p-nccl-port 7000",
                 "--p2p-nccl-port: 7000 is the registry port already; choose another");
    load_refused("--p2p-nccl-port 7000 --moriio-port 7000",
                 "--moriio-port: 7000 is the p2p-nccl port already; choose another");
}

static void refused_without_zmq(const char *line, const char *what)
{
    char want[400];

    snprintf(want, sizeof want, "%s%s", what, bt_zmq_not_built);
    load_refused(line, want);
}

static void engines_that_register_need_a_port(void **state)
{
    bt_config_t c;
    if (!bt_zmq_is_built()) {
        refused_without_zmq("--connector P2pNcclConnector --prefill http://a:1",
                            "--prefill http://a:1: connector \"P2pNcclConnector\": ");
        refused_without_zmq("--moriio-port 0", "--moriio-port: ");
        return;
    }
    load_refused("--connector P2pNcclConnector --prefill http://a:1",
                 "--prefill http://a:1: connector \"P2pNcclConnector\": its engine registers by "
                 "ZeroMQ: add --p2p-nccl-port PORT, or kv_address to each worker");
    load_refused("--connector moriio --moriio-port 0 --p2p-nccl-port 0 --registration-allow node-1",
                 "--registration-allow: expected an address or a network, as 10.0.0.7 or "
                 "10.0.0.0/24, got \"node-1\"");
    load_refused("--registration-allow 10.0.0.7",
                 "--registration-allow: nobody can register; add --p2p-nccl-port PORT or "
                 "--moriio-port PORT");
    load_refused("--registration-new-workers",
                 "--registration-new-workers: nobody can register; add --p2p-nccl-port PORT or "
                 "--moriio-port PORT");
    load_refused("--moriio-port 0 --registration-scheme https",
                 "--registration-scheme: only with --registration-new-workers; others say https:// "
                 "in their URL");
    load_ok(&c, "--connector P2pNcclConnector --p2p-nccl-port 0 --prefill http://a:1");
    bt_config_fini(&c);
}

static void who_shows_no_key(void **state)
{
    const char *keys = load_write("keys.txt", "a-plain-key-of-some-length tenant=a\n");
    char line[512];
    bt_config_t c;

    load_refused("--anonymous-scopes inference",
                 "--anonymous-scopes: nobody is asked for a key: add --client-api-keys-file, "
                 "--client-api-keys-in-store or --jwt-issuer, or leave it out");
    snprintf(line, sizeof line, "--client-api-keys-file %s --anonymous-models m", keys);
    load_refused(line, "--anonymous-models: only with --anonymous-scopes: who shows no key is "
                       "refused");
    static const char *const wrong[] = {"admin-read", "inference,everything",
                                        "inference,admin-write", ","};
    for (unsigned i = 0; i < 4; i++) {
        char want[200];
        snprintf(line, sizeof line, "--client-api-keys-file %s --anonymous-scopes %s", keys,
                 wrong[i]);
        snprintf(want, sizeof want,
                 "--anonymous-scopes: expected some of inference,models,cancel, got \"%s\"",
                 wrong[i]);
        load_refused(line, want);
    }
    snprintf(line, sizeof line, "--client-api-keys-file %s", keys);
    load_ok(&c, line);
    assert_int_equal(c.dispatch.anonymous.scopes, 0);
    bt_config_fini(&c);
    snprintf(line, sizeof line,
             "--client-api-keys-file %s --anonymous-scopes inference,models --anonymous-models m-*",
             keys);
    load_ok(&c, line);
    assert_int_equal(c.dispatch.anonymous.scopes, BT_MAY_INFER | BT_MAY_LIST_MODELS);
    assert_true(bt_identity_may_use(&c.dispatch.anonymous, BT_STR("m-1")));
    assert_false(bt_identity_may_use(&c.dispatch.anonymous, BT_STR("n")));
    assert_false(c.dispatch.anonymous.sets_tenant);
    bt_config_fini(&c);
}

/* Decodes are told an address; one that they cannot call is a time-out of every request. */
static void decodes_can_call_the_metaserver(void **state)
{
#define DECODE "--kv-connector MooncakeLayerwiseConnector --decode http://10.0.0.2:8000 "
    bt_config_t c;
    char url[320];

    load_refused(DECODE, "--decode http://10.0.0.2:8000: connector \"MooncakeLayerwiseConnector\": "
                         "its decode calls the gateway for prefill: add --metaserver-port PORT");
    load_refused(DECODE "--metaserver-port 12000",
                 "--metaserver-host: decode http://10.0.0.2:8000 is on another host and cannot "
                 "call 127.0.0.1; listen where it can reach, or say so with "
                 "--metaserver-advertise HOST[:PORT]");
    static const char *const wildcards[] = {"0.0.0.0", "::", "[::]"};
    for (unsigned i = 0; i < 3; i++) {
        char words[200], why[200];
        snprintf(words, sizeof words, DECODE "--metaserver-port 12000 --metaserver-host %s",
                 wildcards[i]);
        snprintf(why, sizeof why,
                 "--metaserver-host: no decode can call %s; say with --metaserver-advertise "
                 "HOST[:PORT] how they reach this gateway",
                 wildcards[i]);
        load_refused(words, why);
    }
    load_refused("--metaserver-port 12000 --metaserver-advertise http://a:1",
                 "--metaserver-advertise: expected HOST or HOST:PORT, got \"http://a:1\"");
    load_refused("--metaserver-port 12000 --metaserver-advertise a:0",
                 "--metaserver-advertise: expected HOST or HOST:PORT, got \"a:0\"");
    load_refused("--metaserver-advertise a", "--metaserver-advertise: nobody is served; add "
                                             "--metaserver-port PORT");
    load_refused("--metaserver-allow 10.0.0.0/8",
                 "--metaserver-allow: nobody is served; add --metaserver-port PORT");
    load_refused("--metaserver-port 0 --metaserver-allow node-1",
                 "--metaserver-allow: expected an address or a network, as 10.0.0.7 or "
                 "10.0.0.0/24, got \"node-1\"");
    load_refused("--metaserver-port 30000",
                 "--metaserver-port: 30000 is the client port already; choose another");
    static const struct {
        const char *words, *url;
    } good[] = {
        {"--metaserver-host 10.0.0.1", "http://10.0.0.1:12000/v1/metaserver"},
        {"--metaserver-host fd00::1", "http://[fd00::1]:12000/v1/metaserver"},
        {"--metaserver-host 0.0.0.0 --metaserver-advertise gw", "http://gw:12000/v1/metaserver"},
        {"--metaserver-advertise gw.example:80", "http://gw.example:80/v1/metaserver"},
        {"--metaserver-host :: --metaserver-advertise [fd00::1]:80",
         "http://[fd00::1]:80/v1/metaserver"},
        {"--metaserver-advertise 127.0.0.1", "http://127.0.0.1:12000/v1/metaserver"},
    };
    for (unsigned i = 0; i < sizeof good / sizeof good[0]; i++) {
        char words[300];
        snprintf(words, sizeof words, DECODE "--metaserver-port 12000 %s", good[i].words);
        load_ok(&c, words);
        bt_config_metaserver_url(&c, 12000, url, sizeof url);
        assert_string_equal(url, good[i].url);
        bt_config_fini(&c);
    }
#undef DECODE
}

static void gateway_managed_workers_need_the_hub(void **state)
{
    bt_config_t c;
    load_refused(
        "--connector BatonConnector --prefill http://a:1",
        "--prefill http://a:1: connector \"BatonConnector\": the gateway opens its rooms, at "
        "agents that come to it: add --transfer-port PORT");
    refused_file("return { pools = { { workers = {\n"
                 "  { url = 'http://a:1', role = 'decode', dispatch_profile = 'baton' } } } } }",
                 "pools[1].workers[1].dispatch_profile: dispatch_profile \"baton\": the gateway "
                 "opens its rooms, at agents that come to it: add --transfer-port PORT");
    load_ok(&c, "--transfer-port 0 --connector baton --prefill http://a:1 --decode http://b:1");
    bt_config_fini(&c);
    load_refused("--transfer-port 0 --transfer-host 0.0.0.0",
                 "--transfer-host: 0.0.0.0 is beyond loopback, where everybody could pass for an "
                 "engine's agent; give --transfer-token TOKEN to both");
    load_ok(&c, "--transfer-port 0 --transfer-host 0.0.0.0 --transfer-token t");
    bt_config_fini(&c);
    char flags[300];
    snprintf(flags, sizeof flags,
             "--transfer-port 0 --transfer-host 0.0.0.0 --transfer-token-file %s",
             load_write("tokens", " sesame-sesame-11 \n\nsesame-sesame-22"));
    load_ok(&c, flags);
    assert_string_equal(c.transfer_tokens, "sesame-sesame-11\nsesame-sesame-22\n");
    bt_config_fini(&c);
    static const char *const bad[] = {"", "\n\n", "sesame-sesame-11\nshort\n",
                                      "sesame-sesame-11\nsesame\tsesame-222\n"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(flags, sizeof flags, "--transfer-token-file %s", load_write("tokens", bad[i]));
        assert_true(load_line(&c, flags) < 0);
        assert_non_null(strstr(load_err, "tokens: expected a token a line, of 16 or more"));
    }
    load_refused("--transfer-token-file no/such/file",
                 "--transfer-token-file: no/such/file: No such file or directory");
    load_refused("--transfer-token-file f --transfer-token t",
                 "--transfer-token-file: the token is given by --transfer-token; give one of them");
    load_ok(&c, "--transfer-host 0.0.0.0"); /* nobody listens */
    bt_config_fini(&c);
}

static void a_connector_that_is_not_known(void **state)
{
    bt_config_t c;
    refused_file("return { pools = { { workers = {\n"
                 "  { url = 'http://a:1', role = 'decode', connector = 'MultiConnector',\n"
                 "    connectors = { 'MultiConnector', 'NixlConnecter', 'X', 'Y' } } } } } }",
                 "pools[1].workers[1].connector: connector \"NixlConnecter\": unknown connector "
                 "(did you mean NixlConnector?)");
    refused_file(
        "return { pools = { { workers = {\n"
        "  { url = 'http://a:1', role = 'decode', connector = 'New',\n"
        "    dispatch_profile = 'nixx' } } } } }",
        "pools[1].workers[1].dispatch_profile: dispatch_profile \"nixx\": unknown "
        "dispatch_profile: say handoff, bootstrap, trigger, or a dialect (nixl, nixl_push, "
        "shared_cache, sglang, trtllm, mooncake, mooncake_layerwise, mindie, offloading_p2p, "
        "baton, p2p_nccl, moriio, or one of --dialect-dir)");
    load_ok(&c, load_write("b.lua", "return { pools = { { workers = {\n"
                                    "  { url = 'http://a:1', role = 'decode', connector = 'New',\n"
                                    "    dispatch_profile = 'nixl' } } } } }"));
    bt_config_fini(&c);
}

static void who_may_use_the_registry(void **state)
{
    bt_config_t c;
    load_refused("--registry-port 0 --registry-allow node-1",
                 "--registry-allow: expected an address or a network, as 10.0.0.7 or 10.0.0.0/24, "
                 "got \"node-1\"");
    load_refused("--registry-port 0 --registry-allow 10.0.0.0/33",
                 "--registry-allow: expected an address or a network, as 10.0.0.7 or 10.0.0.0/24, "
                 "got \"10.0.0.0/33\"");
    load_refused("--registry-port 0 --registry-allow 10.0.0.7 --registry-token t",
                 "--registry-allow: with --registry-token everybody has to show it; leave out one "
                 "of the two");
    load_refused("--registry-token t", "--registry-token: nobody is served by a registry; add "
                                       "--registry-port PORT");
    load_refused("--registry-allow 10.0.0.7", "--registry-allow: nobody is served by a registry; "
                                              "add --registry-port PORT");
    load_ok(&c, "--registry-port 0 --registry-allow 10.0.0.7 --registry-allow [fd00::]/8");
    bt_config_fini(&c);
}

static void defaults_of_workers(void **state)
{
    bt_config_t c;
    load_ok(&c,
            load_write(
                "b.lua",
                "return { connector = 'NixlConnector', lease_ms = 7000, pools = { { workers = {\n"
                "  { url = 'http://a:1', role = 'prefill' },\n"
                "  { url = 'http://b:1', role = 'decode', connector = 'ExampleConnector', lease_ms "
                "= 9000 },\n"
                "  { url = 'http://c:1', role = 'decode', dispatch_profile = 'handoff' },\n"
                "} } } }"));
    const bt_worker_spec_t *w = c.pools[0].workers;
    assert_string_equal(w[0].connector, "NixlConnector");
    assert_int_equal(w[0].engine, BT_ENGINE_VLLM);
    assert_int_equal(w[0].lease_ms, 7000);
    assert_string_equal(w[1].connector, "ExampleConnector");
    assert_int_equal(w[1].lease_ms, 9000);
    assert_null(w[2].connector); /* the profile says it */
    bt_config_fini(&c);
}

static void assert_sample(const char *line, double sample)
{
    bt_config_t c;
    load_ok(&c, line);
    assert_float_equal(c.record.sample, sample, 1e-9);
    bt_config_fini(&c);
}

static void records(void **state)
{
    bt_config_t c;
    assert_sample("--port 0", 0);
    assert_sample("--record-file r.jsonl", 0.01);
    assert_sample("--record-file r.jsonl --record-sample 0", 0);
    assert_sample("--record-sample 0.25", 0.25);
    assert_sample("--record-sample 1", 1);
    load_refused("--record-sample 1.5",
                 "--record-sample: expected a number from 0 to 1, got \"1.5\"");
    load_ok(&c, load_write("r.lua", "return { record_file = 'r.jsonl', record_max_bytes = 4096,\n"
                                    "  record_header = { 'X-Tier', 'x-b' } }"));
    assert_non_null(strstr(c.record.file, load_folder())); /* relative to the file */
    assert_int_equal(c.record.max_bytes, 4096);
    assert_string_equal(c.record.headers[0], "x-tier");
    assert_string_equal(c.record.headers[1], "x-b");
    assert_null(c.record.headers[2]);
    bt_config_fini(&c);
    load_ok(&c, "--port 0");
    assert_null(c.record.file);
    assert_null(c.record.headers);
    assert_int_equal(c.record.max_bytes, 268435456);
    bt_config_fini(&c);
    load_refused("--record-header X:Y", "--record-header: expected a header's name, got \"x:y\"");
    load_refused(
        "--record-header X-Tier --record-header Cookie",
        "--record-header: cookie holds keys, which do not belong in records; leave it out");
}

static void missing_keys_file(void **state)
{
    load_refused("--client-api-keys-file /nonexistent/k",
                 "--client-api-keys-file: /nonexistent/k: No such file or directory");
    load_refused("--client-api-keys-in-store",
                 "--client-api-keys-in-store: there is no --redis-url to read them from");
    load_refused(
        "--redis-url redis://h:1 --client-api-keys-in-store --client-api-keys-file k",
        "--client-api-keys-in-store: beside --client-api-keys-file: keys are in a file or in "
        "the store, leave one out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback),
        cmocka_unit_test(workers_that_cannot_pair),
        cmocka_unit_test(urls),
        cmocka_unit_test(paths_and_ports),
        cmocka_unit_test(decodes_can_call_the_metaserver),
        cmocka_unit_test(who_shows_no_key),
        cmocka_unit_test(engines_that_register_need_a_port),
        cmocka_unit_test(gateway_managed_workers_need_the_hub),
        cmocka_unit_test(a_connector_that_is_not_known),
        cmocka_unit_test(who_may_use_the_registry),
        cmocka_unit_test(defaults_of_workers),
        cmocka_unit_test(records),
        cmocka_unit_test(missing_keys_file),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
