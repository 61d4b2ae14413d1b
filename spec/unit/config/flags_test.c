/* Every flag that is honoured, and what it changes. The last line of the big test makes sure that no row of the table has
 * been forgotten here. */
#include "config/flag.h"
#include "config/kubernetes.h"
#include "zmq/sockets.h"

#include "load.h"

#include <limits.h>

static bool seen[256];

static void note_seen(const char *line)
{
    char copy[1024];
    const char *argv[LOAD_ARGS_MAX];
    int argc = load_split(line, copy, sizeof copy, argv);
    for (int i = 0; i < argc; i++)
        for (unsigned f = 0; argv[i][0] == '-' && f < bt_flag_count; f++) {
            size_t n = strcspn(argv[i] + 2, "=");
            if (bt_str_eq((bt_str_t){argv[i] + 2, n}, bt_str(bt_flags[f].name)))
                seen[f] = true;
        }
}

#define EXPECT(line, condition)                                                                    \
    do {                                                                                           \
        bt_config_t c;                                                                             \
        load_ok(&c, line);                                                                         \
        note_seen(line);                                                                           \
        if (!(condition))                                                                          \
            fail_msg("%s: %s does not hold", line, #condition);                                    \
        bt_config_fini(&c);                                                                        \
    } while (0)

#define IS(a, b) ((a) != NULL && strcmp((a), (b)) == 0)
#define POOL (c.pools[0])
#define SPEC (c.pools[0].spec)
#define W(i) (c.pools[0].workers[i])

#define PARAM(name) bt_value_get(POOL.params[BT_SLOT_BOTH], name)

static double number_of(const bt_value_t *v)
{
    return v != NULL && v->type == BT_VALUE_NUMBER ? v->number : 0;
}

static bool is_flag(const bt_value_t *v, bool wanted)
{
    return v != NULL && v->type == BT_VALUE_BOOL && v->boolean == wanted;
}

static void workers(void **state)
{
    EXPECT("--pd-disaggregation --prefill http://a:1 8998 --decode http://b:2",
           POOL.worker_count == 2 && W(0).role == BT_ROLE_PREFILL && IS(W(0).url, "http://a:1") &&
               W(0).bootstrap_port == 8998 && W(1).role == BT_ROLE_DECODE &&
               IS(W(1).url, "http://b:2") && IS(W(0).connector, "sglang") &&
               W(0).engine == BT_ENGINE_SGLANG && IS(W(1).connector, "sglang"));
    EXPECT("--pd-disaggregation --prefill http://a:1 none --prefill=http://b:1 7000 --prefill "
           "http://c:1",
           POOL.worker_count == 3 && W(0).bootstrap_port == -1 && W(1).bootstrap_port == 7000 &&
               W(2).bootstrap_port == 8998 /* SGLang's own */);
    EXPECT("--vllm-pd-disaggregation --encode http://e:1 --encode http://e:2",
           c.pools[0].worker_count == 2 && c.pools[0].workers[1].role == BT_ROLE_ENCODE &&
               c.pools[0].workers[1].connector == NULL);
    EXPECT("--vllm-pd-disaggregation --prefill http://a:1 --decode http://b:2",
           IS(W(0).connector, "nixl") && W(0).engine == BT_ENGINE_VLLM && W(0).bootstrap_port == 0);
    EXPECT("--vllm-pd-disaggregation --prefill http://a:1 --kv-connector NIXLpushConnector",
           IS(W(0).connector, "NIXLpushConnector"));
    EXPECT("--connector MooncakeConnectorV1 --prefill http://a:1",
           IS(W(0).connector, "MooncakeConnectorV1") && W(0).engine == BT_ENGINE_VLLM_ASCEND);
    EXPECT("--worker-urls http://a:1 http://b:2@3 c:4 --port 1",
           POOL.worker_count == 3 && W(2).role == BT_ROLE_HYBRID && IS(W(2).url, "c:4") &&
               c.port == 1);
    EXPECT("--engine mindie --worker-urls http://a:1", W(0).engine == BT_ENGINE_MINDIE);
    EXPECT("--engine sglang --prefill http://a:1", IS(W(0).connector, "sglang"));
    EXPECT("--bootstrap-port 7777 --pd-disaggregation --prefill http://a:1 --prefill http://b:1 9",
           W(0).bootstrap_port == 7777 && W(1).bootstrap_port == 9);
    EXPECT("--lease-ms 20000 --vllm-pd-disaggregation --prefill http://a:1",
           W(0).lease_ms == 20000);
}

static void workers_file(void **state)
{
    char line[256];
    snprintf(line, sizeof line, "--pd-disaggregation --workers-file %s",
             load_write("workers.lua", "return { { url = 'http://a:1', role = 'prefill' } }"));
    EXPECT(line, c.workers_file != NULL && c.pools[0].worker_count == 0 && c.found.count == 1 &&
                     c.found.pools[0].worker_count == 1 &&
                     c.found.pools[0].workers[0].role == BT_ROLE_PREFILL &&
                     c.found.pools[0].workers[0].engine == BT_ENGINE_SGLANG);
}

static void workers_dns(void **state)
{
    EXPECT("", c.dns.count == 0 && c.dns.hold_ms == 15000 && c.dns.min_ms == 1000 &&
                   c.dns.max_ms == 60000 && c.dns.servers == NULL);
    EXPECT("--workers-dns name=p.svc,port=80 --dns-hold-secs 0 --dns-min-secs 0.5 --dns-max-secs 9 "
           "--dns-servers 10.0.0.10",
           c.dns.count == 1 && c.dns.names[0].port == 80 && c.dns.hold_ms == 0 &&
               c.dns.min_ms == 500 && c.dns.max_ms == 9000 && IS(c.dns.servers, "10.0.0.10"));
}

static void workers_kubernetes(void **state)
{
    bt_kube_options_t k;
    char why[300];
    EXPECT("--workers-kubernetes namespace=a --workers-kubernetes "
           "namespace=b,api=https://h:1,pool=default",
           c.workers_kubernetes_count == 2 && IS(c.workers_kubernetes[0], "namespace=a"));
    assert_int_equal(bt_config_kubernetes_read(
                         &k,
                         BT_STR("namespace=*,selector=a=b,selector=c in (d,e),role=prefill,"
                                "tp-size=4,port=http,api=http://127.0.0.1:8001"),
                         why, sizeof why),
                     0);
    assert_true(IS(k.namespace, "*") && IS(k.selector, "a=b,c in (d,e)") && IS(k.port, "http") &&
                k.has_role && k.worker.role == BT_ROLE_PREFILL && k.worker.tp_size == 4);
    bt_config_kubernetes_fini(&k);
    static const char *const bad[][2] = {
        {"a", "unknown key \"a\""},
        {"namespace=", "namespace= is empty"},
        {"namespace=a/b", "namespace: expected lower-case"},
        {"namespace=a,name=b", "name: pods are several"},
        {"namespace=a,url=b", "unknown key \"url\""},
        {"namespace=a,api=https://h:1/path", "api: expected https://HOST:PORT"},
        {"namespace=a,api=http://h,ca-file=x", "ca-file: only with api=https"},
        {"namespace=a,tp-size=x", "tp-size: expected a whole number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(bt_config_kubernetes_read(&k, bt_str(bad[i][0]), why, sizeof why),
                         BT_E_CONFIG);
        assert_non_null(strstr(why, bad[i][1]));
    }
}

static void listening(void **state)
{
    EXPECT("", IS(c.host, "127.0.0.1") && c.port == 30000 && IS(c.admin_host, "127.0.0.1") &&
                   c.admin_port == 29000 && c.pool_count == 1 && IS(SPEC.name, "default") &&
                   POOL.worker_count == 0);
    EXPECT("--host 0.0.0.0 --port 0",
           IS(c.host, "0.0.0.0") && c.port == 0 && !c.dispatch.client_worker_api);
    EXPECT("", c.server.has_http2);
    EXPECT("--http2 --no-http2", !c.server.has_http2);
    EXPECT("--client-worker-api", c.dispatch.client_worker_api);
    EXPECT("--client-worker-api --host 0.0.0.0 --admin-api-key k", c.dispatch.client_worker_api);
    EXPECT("--admin-allowed-host a.example --admin-allowed-host b.example",
           c.admin_allowed_host_count == 2 && IS(c.admin_allowed_hosts[1], "b.example") &&
               c.admin_allowed_hosts[2] == NULL);
    EXPECT("", c.server.edge == &c.edge && c.edge.hosts == NULL && c.edge.proxy_count == 0);
    EXPECT("--client-allowed-host a.example --client-allowed-host b.example --host 0.0.0.0",
           c.edge.hosts == (const char *const *) c.client_allowed_hosts &&
               IS(c.edge.hosts[1], "b.example") && c.edge.hosts[2] == NULL &&
               IS(c.edge.listener, "0.0.0.0"));
    EXPECT("", c.edge.cors.origins == NULL && !c.edge.cors.has_credentials);
    EXPECT("--cors-origin https://a.example --cors-origin http://localhost:8080 --cors-credentials",
           IS(c.edge.cors.origins[1], "http://localhost:8080") && c.edge.cors.has_credentials);
    EXPECT("--trusted-proxies 10.0.0.0/8 --trusted-proxies ::1",
           c.edge.proxy_count == 2 && c.edge.proxies[0].bits == 104 &&
               c.edge.proxies[1].bits == 128 && c.edge.header == BT_EDGE_X_FORWARDED_FOR);
    EXPECT("--trusted-proxies 10.0.0.1 --client-address-header forwarded",
           c.edge.header == BT_EDGE_FORWARDED);
    EXPECT("--trusted-proxies 10.0.0.1 --proxy-protocol", c.edge.proxy_protocol);
    EXPECT("--trusted-proxies 10.0.0.1 --client-address-header x-real-ip",
           c.edge.header == BT_EDGE_X_REAL_IP);
    EXPECT("--admin-host ::1 --admin-port 0",
           IS(c.admin_host, "::1") && c.admin_port == 0 && !c.admin_metrics_only);
    EXPECT("--prometheus-host 0.0.0.0 --prometheus-port 29001",
           IS(c.admin_host, "0.0.0.0") && c.admin_port == 29001 && c.admin_metrics_only);
    EXPECT("", IS(c.transfer_host, "127.0.0.1") && !bt_config_has_transfer(&c) &&
                   c.transfer_token == NULL && !bt_config_has_registry(&c));
    note_seen("--transfer-token-file f");
    EXPECT("--sandbox strict", c.sandbox == BT_SANDBOX_STRICT);
    EXPECT("--sandbox auto", c.sandbox == BT_SANDBOX_AUTO);
    EXPECT("", c.sandbox == BT_SANDBOX_OFF);
    EXPECT("--transfer-host 0.0.0.0 --transfer-port 0 --transfer-token secret",
           IS(c.transfer_host, "0.0.0.0") && c.transfer_port == 0 && bt_config_has_transfer(&c) &&
               IS(c.transfer_token, "secret"));
    EXPECT("--registry-host ::1 --registry-port 8998",
           IS(c.registry_host, "::1") && c.registry_port == 8998 && bt_config_has_registry(&c) &&
               c.registry_token == NULL && c.registry_allow_count == 0);
    EXPECT("--registry-port 8998 --registry-token secret", IS(c.registry_token, "secret"));
    EXPECT("--registry-port 8998 --registry-allow 10.0.0.7 --registry-allow fd00::/8",
           c.registry_allow_count == 2 && IS(c.registry_allow[0], "10.0.0.7") &&
               IS(c.registry_allow[1], "fd00::/8"));
    note_seen("--anonymous-scopes inference --anonymous-models m"); /* finish_test.c */
    EXPECT("", IS(c.metaserver_host, "127.0.0.1") && !bt_config_has_metaserver(&c) &&
                   c.metaserver_advertise == NULL);
    EXPECT("--metaserver-host ::1 --metaserver-port 12000 --metaserver-advertise gw:80",
           IS(c.metaserver_host, "::1") && c.metaserver_port == 12000 &&
               bt_config_has_metaserver(&c) && IS(c.metaserver_advertise, "gw:80"));
    EXPECT("--metaserver-port 0 --metaserver-allow 10.0.0.7 --metaserver-allow fd00::/8",
           c.metaserver_allow_count == 2 && IS(c.metaserver_allow[1], "fd00::/8"));
    EXPECT("", IS(c.registration_host, "127.0.0.1") && !bt_config_has_registration(&c) &&
                   !c.registration_new_workers && c.registration_scheme == 0);
    const char *registers = "--registration-host 0.0.0.0 --p2p-nccl-port 30001 --moriio-port 36367 "
                            "--registration-allow 10.0.0.0/8 --registration-new-workers "
                            "--registration-scheme https";
    if (!bt_zmq_is_built())
        note_seen(registers); /* refused there: finish_test.c */
    else
        EXPECT(registers, IS(c.registration_host, "0.0.0.0") && c.p2p_nccl_port == 30001 &&
                              c.moriio_port == 36367 && bt_config_has_registration(&c) &&
                              c.registration_allow_count == 1 && c.registration_new_workers &&
                              c.registration_scheme == 1);
    EXPECT("--transfer-port 7000 --connector BatonConnector --prefill http://a:1",
           IS(W(0).connector, "BatonConnector") && W(0).engine == BT_ENGINE_VLLM);
    EXPECT("--proxy-path /x --proxy-path /y/z",
           c.dispatch.proxy_paths != NULL && IS(c.dispatch.proxy_paths[0], "/x") &&
               IS(c.dispatch.proxy_paths[1], "/y/z") && c.dispatch.proxy_paths[2] == NULL);
    EXPECT("--request-id-headers X-Request-Id", c.dispatch.proxy_paths == NULL);
}

static void refuses(const char *line, const char *begin)
{
    bt_config_t c;
    if (load_line(&c, line) == 0)
        fail_msg("%s: accepted", line);
    if (strncmp(load_err, begin, strlen(begin)) != 0)
        fail_msg("%s: %s", line, load_err);
}

static void shared_state(void **state)
{
    char line[256];
    EXPECT("", c.store.url == NULL && c.fleet_name == NULL && c.replica_name == NULL &&
                   c.fleet_heartbeat_ms == 100 && c.fleet_expiry_ms == 2000);
    snprintf(line, sizeof line,
             "--redis-url redis://r:1/2 --redis-username u --redis-password-file %s",
             load_write("password", "a word\nmore\n"));
    EXPECT(line, IS(c.store.url, "redis://r:1/2") && IS(c.store.username, "u") &&
                     IS(c.store.password, "a word"));
    EXPECT("--fleet-name f --replica-name r:1 --fleet-heartbeat-ms 20 --fleet-expiry-ms 900",
           IS(c.fleet_name, "f") && IS(c.replica_name, "r:1") && c.fleet_heartbeat_ms == 20 &&
               c.fleet_expiry_ms == 900);
    setenv("BATON_REDIS_PASSWORD", "of the environment", 1);
    EXPECT("--redis-url redis://r:1", IS(c.store.password, "of the environment"));
    EXPECT("", c.store.password == NULL);
    unsetenv("BATON_REDIS_PASSWORD");
    refuses("--redis-url rediss://r:1 --redis-tls-ca no/such.pem",
            "--redis-url: no/such.pem: holds no certificate");
    refuses("--redis-url rediss://r:1 --redis-tls-cert c.pem --redis-tls-key k.pem",
            "--redis-url: c.pem: cannot be read: ");
    refuses("--redis-url rediss-cluster://r:1,s:1 --redis-tls-ca no/such.pem",
            "--redis-url: no/such.pem: holds no certificate");
    refuses("--redis-url redis-cluster://r:1,s:1 --redis-tls-ca f", "--redis-tls-ca: only with ");
    refuses("--redis-url redis-cluster://r:1,s:1/3", "--redis-url: a cluster has one database");
    note_seen("--redis-tls-ca f --redis-tls-cert f --redis-tls-key f");
    refuses("--redis-url nonsense", "--redis-url: ");
    refuses("--redis-url redis://:70000", "--redis-url: ");
    refuses("--redis-username u", "--redis-username: there is no --redis-url");
    refuses("--redis-url redis://r:1 --redis-tls-ca f", "--redis-tls-ca: only with ");
    refuses("--redis-tls-ca f", "--redis-tls-ca: there is no --redis-url");
    refuses("--redis-url redis://r:1 --redis-password-file no/such/file",
            "--redis-password-file: ");
    refuses("--sandbox on", "--sandbox: expected one of off, auto, strict, got \"on\"");
    refuses("--fleet-name a{b", "--fleet-name: ");
    refuses("--replica-name a#b", "--replica-name: ");
    refuses("--fleet-heartbeat-ms 1000 --fleet-expiry-ms 2000", "--fleet-expiry-ms: ");
}

static void tls(void **state)
{
    EXPECT("", c.tls.cert_count == 0 && c.admin_tls.cert_count == 0 && c.tls_min_version == 0 &&
                   c.tls_client_auth == 0 && c.server.tls_handshake_ms == 10000);
    EXPECT("--tls-cert a.pem --tls-cert b.pem --tls-key a.key --tls-key b.key "
           "--tls-min-version 1.3 --tls-ciphers C --tls-handshake-timeout-secs 2.5",
           c.tls.cert_count == 2 && IS(c.tls.certs[0], "a.pem") && IS(c.tls.certs[1], "b.pem") &&
               c.tls.certs[2] == NULL && IS(c.tls.keys[1], "b.key") && c.tls_min_version == 1 &&
               IS(c.tls_ciphers, "C") && c.server.tls_handshake_ms == 2500);
    EXPECT("--tls-cert a --tls-key a --tls-client-ca ca --tls-client-allow CN:x --tls-client-allow "
           "DNS:y --tls-client-auth optional",
           IS(c.tls.client_ca, "ca") && c.tls.client_allow_count == 2 &&
               IS(c.tls.client_allow[1], "DNS:y") && c.tls_client_auth == 1);
    EXPECT("--admin-tls-cert a --admin-tls-key k --admin-tls-client-ca ca "
           "--admin-tls-client-allow URI:u",
           IS(c.admin_tls.certs[0], "a") && IS(c.admin_tls.keys[0], "k") &&
               IS(c.admin_tls.client_ca, "ca") && IS(c.admin_tls.client_allow[0], "URI:u"));
    EXPECT("", c.tls_client_tenant == BT_TENANT_BY_NAME && c.admin_tls_client_scope == 0 &&
                   !c.admin_metrics_only);
    EXPECT("--tls-cert a --tls-key a --tls-client-ca ca --tls-client-tenant organization",
           c.dispatch.certificate_tenant == BT_TENANT_BY_ORGANIZATION);
    EXPECT("--tls-cert a --tls-key a --tls-client-ca ca --tls-client-tenant none",
           c.dispatch.certificate_tenant == BT_TENANT_BY_NO_CERT);
    /* beyond loopback there is a key, or a certificate that counts */
    EXPECT("--admin-tls-cert a --admin-tls-key k --admin-tls-client-ca ca --admin-host 0.0.0.0",
           c.admin_metrics_only);
    EXPECT("--admin-tls-cert a --admin-tls-key k --admin-tls-client-ca ca --admin-host 0.0.0.0 "
           "--admin-tls-client-scope admin-write",
           !c.admin_metrics_only &&
               c.admin_tls_client_scope == (BT_MAY_READ_ADMIN | BT_MAY_CHANGE_ADMIN));
    EXPECT("--tls-cert-path a --tls-key-path k", IS(c.tls.certs[0], "a") && IS(c.tls.keys[0], "k"));
    EXPECT("--server-cert-path a --server-key-path k",
           IS(c.tls.certs[0], "a") && IS(c.tls.keys[0], "k"));
    EXPECT("--worker-tls-ca ca --worker-tls-cert a --worker-tls-key k",
           IS(c.worker_tls.ca, "ca") && IS(c.worker_tls.cert, "a") && IS(c.worker_tls.key, "k"));
    EXPECT("--ca-cert-path ca --client-cert-path a --client-key-path k",
           IS(c.worker_tls.ca, "ca") && IS(c.worker_tls.cert, "a") && IS(c.worker_tls.key, "k"));
    refuses("--worker-tls-cert a", "--worker-tls-cert: only with --worker-tls-key");
    refuses("--tls-cert a", "--tls-cert: there are 1 of them and 0 of --tls-key");
    refuses("--admin-tls-key a", "--admin-tls-cert: there are 0 of them and 1 of --admin-tls-key");
    refuses("--tls-client-ca f", "--tls-client-ca: only with --tls-cert");
    refuses("--tls-cert a --tls-key k --tls-client-allow CN:x", "--tls-client-allow: only with ");
    refuses("--tls-cert a --tls-key k --tls-client-auth optional", "--tls-client-auth: only with ");
    refuses("--tls-client-tenant none", "--tls-client-tenant: only with --tls-client-ca");
    refuses("--admin-tls-cert a --admin-tls-key k --admin-tls-client-scope admin-read",
            "--admin-tls-client-scope: only with --admin-tls-client-ca");
    refuses("--tls-cert a --tls-key k --tls-client-ca f --tls-client-allow web",
            "--tls-client-allow: \"web\" begins with none of ");
}

static void decisions(void **state)
{
    EXPECT("--policy random --prefill-policy a.lua --decode-policy round_robin",
           IS(SPEC.policy, "random") && IS(SPEC.prefill_policy, "a.lua") &&
               IS(SPEC.decode_policy, "round_robin"));
    EXPECT("--policy-dir p --dialect-dir /",
           IS(c.dispatch.policy_dir, "p") && IS(c.dispatch.dialect_dir, "/"));
    EXPECT("", c.rules_file == NULL && c.dispatch.policy_wait_ms == 1000 &&
                   c.policy_http_host_count == 0 && POOL.params[BT_SLOT_BOTH] == NULL);
    EXPECT("--rules-file r.lua --policy-wait-ms 250",
           IS(c.rules_file, "r.lua") && c.dispatch.policy_wait_ms == 250);
    EXPECT("--policy-http-host a:80 --policy-http-host 127.0.0.1:8080",
           c.policy_http_host_count == 2 && IS(c.policy_http_hosts[0], "a:80") &&
               IS(c.policy_http_hosts[1], "127.0.0.1:8080") && c.policy_http_hosts[2] == NULL);
    EXPECT("--policy-param w=1.5 --policy-param on=true --policy-param off=false --policy-param "
           "word=12x --policy-param w=-2 --policy-param empty= --policy-param eq=a=b",
           POOL.params[BT_SLOT_BOTH]->count == 6 && number_of(PARAM("w")) == -2 &&
               is_flag(PARAM("on"), true) && is_flag(PARAM("off"), false) &&
               IS(PARAM("word")->string, "12x") && IS(PARAM("empty")->string, "") &&
               IS(PARAM("eq")->string, "a=b") &&
               IS(POOL.params_places[BT_SLOT_BOTH], "--policy-param"));
    EXPECT("", !SPEC.refuse_recompute && SPEC.max_fanout == 64 && SPEC.max_attempts == 3 &&
                   SPEC.retry_budget_percent == 0 && !c.dispatch.disable_retries);
    EXPECT("--refuse-recompute --max-fanout 8 --max-attempts 5 --retry-budget-percent 20 "
           "--engine-request-limit 40",
           SPEC.refuse_recompute && SPEC.max_fanout == 8 && SPEC.max_attempts == 5 &&
               SPEC.retry_budget_percent == 20 && SPEC.engine_request_limit == 40);
    EXPECT("--retry-max-retries 4 --disable-retries",
           SPEC.max_attempts == 4 && c.dispatch.disable_retries);
    EXPECT("--refuse-recompute --no-refuse-recompute", !SPEC.refuse_recompute);
    EXPECT("", SPEC.replay_recomputed && !SPEC.replay_lost_decode && SPEC.max_replays == 3);
    EXPECT("--no-replay-recomputed --replay-recomputed", SPEC.replay_recomputed);
    EXPECT("--no-replay-recomputed --replay-lost-decode --max-replays 5",
           !SPEC.replay_recomputed && SPEC.replay_lost_decode && SPEC.max_replays == 5);
    EXPECT("", SPEC.relay_first_token == BT_RELAY_FIRST_TOKEN_OFF);
    EXPECT("--relay-first-token completions",
           SPEC.relay_first_token == BT_RELAY_FIRST_TOKEN_COMPLETIONS);
    EXPECT("--relay-first-token all", SPEC.relay_first_token == BT_RELAY_FIRST_TOKEN_ALL);
    EXPECT("", !c.dispatch.warm_pairs);
    EXPECT("--warm-pairs", c.dispatch.warm_pairs);
}

static void deadlines(void **state)
{
    EXPECT("", SPEC.deadlines.total_ms == 1800000 && SPEC.deadlines.connect_ms == 3000 &&
                   SPEC.deadlines.prefill_reply_ms == 300000 &&
                   SPEC.deadlines.first_event_ms == 300000 && SPEC.deadlines.stall_ms == 60000 &&
                   SPEC.deadlines.answer_ms == 0 && SPEC.deadlines.callback_ms == 60000 &&
                   SPEC.deadlines.room_start_ms == 300000 &&
                   SPEC.deadlines.room_stall_ms == 60000 && SPEC.deadlines.room_repair_ms == 5000);
    EXPECT("--callback-timeout-secs 2.5", SPEC.deadlines.callback_ms == 2500);
    EXPECT("", SPEC.deadlines.tokenize_ms == 0);
    EXPECT("--tokenize-timeout-ms 50", SPEC.deadlines.tokenize_ms == 50);
    EXPECT("--room-start-ms 20000 --room-stall-ms 3000 --room-repair-ms 700",
           SPEC.deadlines.room_start_ms == 20000 && SPEC.deadlines.room_stall_ms == 3000 &&
               SPEC.deadlines.room_repair_ms == 700);
    EXPECT("--request-timeout-secs 7 --connect-timeout-ms 50 --prefill-timeout-secs 1.5",
           SPEC.deadlines.total_ms == 7000 && SPEC.deadlines.connect_ms == 50 &&
               SPEC.deadlines.prefill_reply_ms == 1500);
    EXPECT("--first-event-timeout-secs 2 --answer-timeout-secs 3 --stall-timeout-secs 0.25",
           SPEC.deadlines.first_event_ms == 2000 && SPEC.deadlines.answer_ms == 3000 &&
               SPEC.deadlines.stall_ms == 250);
    EXPECT("--stream-keepalive-secs 15 --worker-idle-secs 2 --worker-idle-max 9",
           c.dispatch.stream_keepalive_ms == 15000 && c.dispatch.upstream.idle_timeout_ms == 2000 &&
               c.dispatch.upstream.idle_max == 9);
    EXPECT("--client-head-timeout-secs 1 --client-body-stall-secs 2 --client-idle-secs 3 "
           "--client-write-stall-secs 4",
           c.server.head_timeout_ms == 1000 && c.server.body_stall_ms == 2000 &&
               c.server.idle_timeout_ms == 3000 && c.server.write_stall_ms == 4000);
}

static void health(void **state)
{
    EXPECT("", c.monitor.health.interval_ms == 5000 && c.monitor.timeout_ms == 2000 &&
                   c.monitor.health.failures == 3 && c.monitor.health.successes == 2 &&
                   IS(c.monitor.path, "/health") && !c.monitor.disabled &&
                   c.startup_timeout_ms == 0);
    EXPECT("--health-check-endpoint /ping --health-check-interval-secs 9 "
           "--health-check-timeout-secs 4",
           IS(c.monitor.path, "/ping") && c.monitor.health.interval_ms == 9000 &&
               c.monitor.timeout_ms == 4000);
    EXPECT("--health-failure-threshold 7 --health-success-threshold 1 --disable-health-check",
           c.monitor.health.failures == 7 && c.monitor.health.successes == 1 && c.monitor.disabled);
    EXPECT("--worker-startup-check-interval 3 --worker-startup-timeout-secs 600",
           c.monitor.startup_interval_ms == 3000 && c.startup_timeout_ms == 600000);
    EXPECT("--load-interval-secs 2 --load-timeout-secs 0.5 --resolve-interval-secs 60",
           c.monitor.load_interval_ms == 2000 && c.monitor.load_timeout_ms == 500 &&
               c.monitor.resolve_interval_ms == 60000);
    EXPECT("--load-monitor-interval 5", c.monitor.load_interval_ms == 5000);
    EXPECT("", c.breaker.failures == 5 && c.breaker.window_ms == 10000 &&
                   c.breaker.open_ms == 10000 && c.breaker.open_max_ms == 120000 &&
                   c.breaker.max_open_percent == 50 && !c.breaker.disabled);
    EXPECT("--breaker-failures 9 --breaker-window-secs 30 --breaker-open-secs 20 "
           "--breaker-open-max-secs 40 --breaker-max-open-percent 100",
           c.breaker.failures == 9 && c.breaker.window_ms == 30000 && c.breaker.open_ms == 20000 &&
               c.breaker.open_max_ms == 40000 && c.breaker.max_open_percent == 100);
    EXPECT("--cb-failure-threshold 10 --cb-window-duration-secs 120 --cb-timeout-duration-secs 60",
           c.breaker.failures == 10 && c.breaker.window_ms == 120000 && c.breaker.open_ms == 60000);
    EXPECT("--disable-circuit-breaker", c.breaker.disabled);
    EXPECT("", c.advisor.window_ms == 60000 && c.advisor.tpot_ms == 0 && !c.role_switch_auto);
    EXPECT("--role-switch-auto", c.role_switch_auto && c.role_check_ms == 10000);
    EXPECT("--role-check-secs 0", c.role_check_ms == 0);
    EXPECT("--advice-window-secs 10 --advice-tpot-ms 50",
           c.advisor.window_ms == 10000 && c.advisor.tpot_ms == 50);
}

static void limits_and_keys(void **state)
{
    char line[256];
    EXPECT("", c.server.max_body_bytes == (size_t) 64 << 20 &&
                   c.server.max_buffered_bytes == (size_t) 1 << 30 &&
                   c.dispatch.max_concurrent == 0);
    EXPECT("--kv-index-blocks 5000", c.kv_index_blocks == 5000);
    EXPECT("", c.kv_snapshot == NULL && c.kv_snapshot_ms == 300000);
    EXPECT("--kv-snapshot /tmp/kv --kv-snapshot-secs 60",
           strcmp(c.kv_snapshot, "/tmp/kv") == 0 && c.kv_snapshot_ms == 60000);
    EXPECT("--max-payload-size 1000 --max-buffered-bytes 2000000 --max-concurrent-requests 77",
           c.server.max_body_bytes == 1000 && c.server.max_buffered_bytes == 2000000 &&
               c.dispatch.max_concurrent == 77);
    EXPECT("--max-concurrent-requests -1", c.dispatch.max_concurrent == 0);
    EXPECT("", c.dispatch.queue_size == UINT_MAX && c.dispatch.queue_timeout_ms == 60000);
    EXPECT("--queue-size 100 --queue-timeout-secs 5",
           c.dispatch.queue_size == 100 && c.dispatch.queue_timeout_ms == 5000);
    EXPECT("", c.dispatch.queue_max_bytes == 256U << 20 && c.dispatch.queue_aging_ms == 30000 &&
                   c.dispatch.queue_weights == NULL);
    EXPECT("--queue-max-bytes 5000 --queue-weights gold=4,b=1 --queue-aging-secs 0.5",
           c.dispatch.queue_max_bytes == 5000 && IS(c.dispatch.queue_weights, "gold=4,b=1") &&
               c.dispatch.queue_aging_ms == 500);
    snprintf(line, sizeof line, "%s",
             load_write("weights.lua", "return { queue_weights = { gold = 4 } }"));
    EXPECT(line, IS(c.dispatch.queue_weights, "gold=4"));
    EXPECT("--client-body-timeout-secs 60 --client-body-min-rate 4096",
           c.server.body_timeout_ms == 60000 && c.server.body_min_rate == 4096);
    EXPECT("", c.max_connections == 0 && c.max_connections_per_peer == 0);
    EXPECT("--max-connections 500 --max-connections-per-peer 20",
           c.max_connections == 500 && c.max_connections_per_peer == 20);
    EXPECT("--api-key sk-1 --admin-api-key adm --admin-host 0.0.0.0",
           IS(c.dispatch.worker_api_key, "sk-1") && IS(c.monitor.api_key, "sk-1") &&
               IS(c.dispatch.admin_key, "adm") && !c.admin_metrics_only);
    snprintf(line, sizeof line, "--client-api-keys-file %s",
             load_write("keys", "# ours\nalpha\n\n beta \n"));
    EXPECT(line, c.dispatch.asks_identity && bt_key_table_count(c.client_keys) == 2);
    snprintf(line, sizeof line,
             "--jwt-jwks-file %s --jwt-issuer https://i --jwt-audience baton --jwt-claim plan "
             "--jwt-claim groups --jwt-clock-skew-secs 5 --jwt-tenant-claim org "
             "--jwt-scope-claim scp",
             load_write("jwks", "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":"
                                "\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}"));
    EXPECT(line, c.dispatch.asks_identity && c.jwks->count == 1 && IS(c.jwt.issuer, "https://i") &&
                     IS(c.jwt.audience, "baton") && IS(c.jwt.claims[0], "plan") &&
                     IS(c.jwt.claims[1], "groups") && c.jwt.claims[2] == NULL &&
                     c.jwt.skew_ms == 5000 && IS(c.jwt.tenant_claim, "org") &&
                     IS(c.jwt.scope_claim, "scp"));
    EXPECT("--jwt-jwks-url https://i/keys --jwt-jwks-ca-file ca.pem --jwt-jwks-refresh-secs 60 "
           "--jwt-issuer i --jwt-audience a",
           IS(c.jwt_jwks_url, "https://i/keys") && IS(c.jwt_jwks_ca_file, "ca.pem") &&
               c.jwt_jwks_ttl_ms == 60000 && c.jwt.skew_ms == 60000 && c.jwks == NULL &&
               IS(c.jwt.tenant_claim, "tenant") && IS(c.jwt.scope_claim, "scope"));
    EXPECT("", c.dispatch.policy_on_error == BT_ON_ERROR_FIRST);
    EXPECT("--policy-on-error default", c.dispatch.policy_on_error == BT_ON_ERROR_DEFAULT);
    EXPECT("--policy-on-error end", c.dispatch.policy_on_error == BT_ON_ERROR_END);
    EXPECT("", c.dispatch.debug_headers && !c.dispatch.asks_identity &&
                   c.dispatch.worker_api_key == NULL);
    EXPECT("--no-debug-headers", !c.dispatch.debug_headers);
    EXPECT("--debug-headers=false", !c.dispatch.debug_headers);
    EXPECT("--no-debug-headers --debug-headers", c.dispatch.debug_headers);
}

static void logs_and_process(void **state)
{
    EXPECT("", c.log_level == BT_LOG_INFO && c.dispatch.access_log && !c.dispatch.access_log_json &&
                   c.loops >= 1 && c.drain_ms == 180000);
    EXPECT("--log-level debug --log-format json --no-access-log",
           c.log_level == BT_LOG_DEBUG && c.dispatch.access_log_json && !c.dispatch.access_log);
    EXPECT("", c.policy_probation_ms == 10000 && c.policy_rollback_errors == 10);
    EXPECT("--policy-probation-secs 60 --policy-rollback-errors 3",
           c.policy_probation_ms == 60000 && c.policy_rollback_errors == 3);
    EXPECT("--log-file b.log", IS(c.log_file, "b.log"));
    EXPECT("", c.audit_log == NULL);
    EXPECT("--audit-log a.jsonl", IS(c.audit_log, "a.jsonl"));
    EXPECT("--audit-log stderr", IS(c.audit_log, "stderr"));
    EXPECT("--log-level warning --access-log", c.log_level == BT_LOG_WARN && c.dispatch.access_log);
    EXPECT("--record-file r.jsonl --record-sample 0.5 --record-max-bytes 5000 --record-header X-A "
           "--record-header x-b",
           IS(c.record.file, "r.jsonl") && c.record.sample == 0.5 && c.record.max_bytes == 5000 &&
               IS(c.record.headers[0], "x-a") && IS(c.record.headers[1], "x-b") &&
               c.record.headers[2] == NULL);
    EXPECT("", !c.metrics_gen_ai);
    EXPECT("--metrics-gen-ai", c.metrics_gen_ai);
    EXPECT("--trace-endpoint http://[::1]:4318 --trace-sample 0.5 --trace-slow-ms 250",
           IS(c.trace_endpoint, "http://[::1]:4318") && c.trace_sample_ppm == 500000 &&
               c.trace_slow_ms == 250);
    EXPECT("--trace-endpoint https://c/v1/traces --trace-service-name edge --trace-headers-file h "
           "--trace-ca-file ca",
           IS(c.trace_service_name, "edge") && IS(c.trace_headers_file, "h") &&
               IS(c.trace_ca_file, "ca") && c.trace_sample_ppm == 10000 &&
               c.trace_slow_ms == 10000);
    EXPECT("--ttft-target-ms 500 --itl-target-ms 40",
           SPEC.ttft_target_ms == 500 && SPEC.itl_target_ms == 40);
    EXPECT("--crash-file crash.txt", IS(c.crash_file, "crash.txt"));
    EXPECT("--redis-url redis://h:1 --client-api-keys-in-store",
           c.client_keys_in_store && c.dispatch.asks_identity);
    EXPECT("--core-dumps", c.core_dumps);
    EXPECT("--no-core-dumps", !c.core_dumps);
    EXPECT("--loops 3 --drain-timeout-secs 5 --ready-file r.json",
           c.loops == 3 && c.drain_ms == 5000 && IS(c.ready_file, "r.json"));
    EXPECT("--shutdown-grace-period-secs 6", c.drain_ms == 6000);
    EXPECT("--dev", c.dev && IS(c.policy_dir, ".") && c.log_level == BT_LOG_DEBUG &&
                        c.record.sample == 1.0 && c.record.file == NULL && c.dispatch.access_log);
    EXPECT("--log-level warn --policy-dir p --dev --record-sample 0.5 --no-access-log",
           c.dev && IS(c.policy_dir, "p") && c.log_level == BT_LOG_WARN && c.record.sample == 0.5 &&
               !c.dispatch.access_log);
}

static void no_flag_is_left_out(void **state)
{
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (!seen[i])
            fail_msg("--%s has no case in this file", bt_flags[i].name);
}

static void wrong_flags_are_refused(void **state)
{
    load_refused("--prot 1", "--prot: unknown flag, did you mean --port?");
    load_refused("--polcy=random", "--polcy: unknown flag, did you mean --policy?");
    load_refused("--frobnicate", "--frobnicate: unknown flag; baton run --help lists all");
    load_refused("--no-port", "--no-port: unknown flag; baton run --help lists all");
    load_refused("-p 1", "-p: flags begin with two dashes; baton run --help lists them");
    load_refused("--port", "--port: needs a value: --port PORT");
    load_refused("--port --host x", "--port: needs a value: --port PORT");
    load_refused("--port 65536", "--port: expected a whole number from 0 to 65535, got \"65536\"");
    load_refused("--port 80.5", "--port: expected a whole number from 0 to 65535, got \"80.5\"");
    load_refused("--prometheus-port=x",
                 "--prometheus-port: expected a whole number from 0 to 65535, got \"x\"");
    load_refused("--port= ", "--port: expected a whole number from 0 to 65535, got \"\"");
    load_refused("--log-level loud",
                 "--log-level: expected one of error, warn, info, debug, got \"loud\"");
    load_refused("--access-log=maybe", "--access-log: expected true or false, got \"maybe\"");
    load_refused("--no-access-log=true", "--no-access-log: takes no value");
    load_refused("--dev --host 0.0.0.0",
                 "--dev: it shows too much for a listener that others reach, and --host is "
                 "0.0.0.0; leave out --dev, or listen on 127.0.0.1");
    load_refused("--pd-disaggregation=1", "--pd-disaggregation: takes no value");
    load_refused("a.lua b.lua",
                 "unexpected argument \"b.lua\": the configuration file is a.lua already");
    load_refused("--decode http://a:1 8998", "8998: cannot read: No such file or directory");
    load_refused("--prefill http://a:1 99999 --pd-disaggregation",
                 "--prefill: expected a port from 1 to 65535, or none, got \"99999\"");
    load_refused("--worker-urls", "--worker-urls: needs a value: --worker-urls URL...");
    load_refused("--pd-disaggregation --vllm-pd-disaggregation",
                 "--vllm-pd-disaggregation: --pd-disaggregation (SGLang) and "
                 "--vllm-pd-disaggregation exclude each "
                 "other; for a mixed fleet name the engines in baton.lua");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers),
        cmocka_unit_test(workers_file),
        cmocka_unit_test(workers_dns),
        cmocka_unit_test(workers_kubernetes),
        cmocka_unit_test(listening),
        cmocka_unit_test(shared_state),
        cmocka_unit_test(tls),
        cmocka_unit_test(decisions),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(health),
        cmocka_unit_test(limits_and_keys),
        cmocka_unit_test(logs_and_process),
        cmocka_unit_test(no_flag_is_left_out),
        cmocka_unit_test(wrong_flags_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
