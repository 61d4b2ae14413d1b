/* What users of other routers type: nothing of it may be called unknown, and what is not used is said. */
#include "config/check.h"
#include "config/flag.h"

#include "load.h"

/* All flags of each, typed from its parsers (launcher and binary) and its documentation. */
static const char sglang_router[] =
    "host port worker-urls policy prefill-policy decode-policy cache-threshold "
    "balance-abs-threshold balance-rel-threshold bucket-adjust-interval-secs "
    "eviction-interval-secs max-tree-size max-idle-secs assignment-mode max-payload-size "
    "dp-aware enable-igw mini-lb pd-disaggregation prefill decode worker-startup-timeout-secs "
    "worker-startup-check-interval log-dir log-level service-discovery selector "
    "service-discovery-port service-discovery-namespace prefill-selector decode-selector "
    "bootstrap-port-annotation prometheus-port prometheus-host prometheus-duration-buckets "
    "request-id-headers request-timeout-secs shutdown-grace-period-secs max-concurrent-requests "
    "queue-size queue-timeout-secs rate-limit-tokens-per-second cors-allowed-origins "
    "retry-max-retries retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier "
    "retry-jitter-factor disable-retries health-failure-threshold health-success-threshold "
    "health-check-timeout-secs health-check-interval-secs health-check-endpoint "
    "disable-health-check cb-failure-threshold cb-success-threshold cb-timeout-duration-secs "
    "cb-window-duration-secs disable-circuit-breaker model-path tokenizer-path chat-template "
    "tokenizer-cache-enable-l0 tokenizer-cache-l0-max-entries tokenizer-cache-enable-l1 "
    "tokenizer-cache-l1-max-memory reasoning-parser tool-call-parser mcp-config-path backend "
    "history-backend oracle-wallet-path oracle-tns-alias oracle-connect-descriptor "
    "oracle-username oracle-password oracle-pool-min oracle-pool-max oracle-pool-timeout-secs "
    "postgres-db-url postgres-pool-max redis-url redis-pool-max redis-retention-days "
    "client-cert-path client-key-path ca-cert-paths tls-cert-path tls-key-path server-cert-path "
    "server-key-path enable-trace otlp-traces-endpoint api-key control-plane-api-keys "
    "control-plane-audit-enabled jwt-issuer jwt-audience jwt-jwks-uri jwt-role-mapping runtime "
    "eviction-interval prefix-token-count prefix-hash-load-factor enable-wasm oracle-dsn "
    "oracle-user postgres-pool-max-size jwt-role-claim disable-audit-logging "
    "cache-prefix-provider kv-indexer-endpoint kv-indexer-query-timeout-ms "
    "kv-indexer-query-max-inflight transfer-group-label";

static const char smg[] =
    "host port worker-urls upstream-http2 upstream-pool-idle-timeout-secs health-check-port "
    "policy encode-policy prefill-policy decode-policy cache-threshold cache-match-threshold "
    "prefix-token-count prefix-hash-load-factor prefix-hash-balance-abs-threshold "
    "least-load-kv-pressure-weight least-load-default-throughput least-load-mean-prefill-tokens "
    "least-load-max-waiting-requests balance-abs-threshold spill-abs-threshold "
    "balance-rel-threshold spill-rel-threshold balance-token-usage-threshold "
    "overload-token-usage-threshold worker-overload-waiting-requests "
    "worker-overload-token-usage worker-overload-protection overlap-decay selection-temperature "
    "bucket-adjust-interval-secs eviction-interval-secs max-tree-size block-size "
    "cache-boundaries cache-index cache-ttl-secs max-idle-secs sticky-key-idle-secs "
    "assignment-mode max-payload-size max-buffered-request-bytes pd-admission-wait-secs "
    "stream-body-stall-timeout-secs dp-aware routing-key-override sticky-sessions "
    "routing-key-headers dp-minimum-tokens-scheduler enable-igw enable-rl "
    "rl-control-timeout-secs rl-fanout-concurrency pd-disaggregation epd-disaggregation encode "
    "prefill decode worker-startup-timeout-secs worker-startup-delay "
    "worker-startup-check-interval job-queue-capacity job-queue-concurrency "
    "load-monitor-interval disable-load-monitoring multimodal-tensor-transport "
    "multimodal-shm-min-bytes multimodal-max-inflight-bytes mm-per-request-image-limit "
    "mm-processing mm-pixel-cache-mb mm-pixel-rdma rdma-listen-ip rdma-slot-ttl-s log-mm-timing "
    "log-dir log-level log-json service-discovery selector service-discovery-port "
    "service-discovery-namespace kv-connector-annotation kv-engine-id-annotation "
    "encode-selector prefill-selector decode-selector router-selector model-id-from model-alias "
    "prometheus-port prometheus-host prometheus-duration-buckets request-id-headers "
    "storage-context-headers request-timeout-secs shutdown-grace-period-secs "
    "cors-allowed-origins max-concurrent-requests queue-size queue-timeout-secs "
    "rate-limit-tokens-per-second retry-max-retries retry-initial-backoff-ms "
    "retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor disable-retries "
    "cb-failure-threshold cb-success-threshold cb-timeout-duration-secs cb-window-duration-secs "
    "disable-circuit-breaker health-failure-threshold health-success-threshold "
    "health-check-timeout-secs health-check-interval-secs health-check-endpoint "
    "disable-health-check remove-unhealthy-workers no-remove-unhealthy-workers "
    "worker-auto-recovery no-worker-auto-recovery model-path model tokenizer-path chat-template "
    "disable-tokenizer-autoload tokenizer-cache-enable-l0 tokenizer-cache-l0-max-entries "
    "tokenizer-cache-enable-l1 tokenizer-cache-l1-max-memory reasoning-parser tool-call-parser "
    "mcp-config-path backend zmq-engine-count enable-wasm storage-hook-wasm-path "
    "history-backend oracle-wallet-path oracle-tns-alias oracle-connect-descriptor "
    "oracle-username oracle-password oracle-external-auth oracle-pool-min oracle-pool-max "
    "oracle-pool-timeout-secs postgres-db-url postgres-pool-max redis-url redis-pool-max "
    "redis-retention-days schema-config client-cert-path client-key-path ca-cert-paths "
    "tls-cert-path tls-key-path enable-trace otlp-traces-endpoint api-key "
    "control-plane-api-keys control-plane-audit-enabled jwt-issuer jwt-audience jwt-jwks-uri "
    "jwt-role-mapping enable-mesh mesh-server-name mesh-host mesh-advertise-host mesh-port "
    "mesh-peer-urls runtime eviction-interval served-model-name oracle-dsn oracle-user "
    "postgres-pool-max-size redis-pool-max-size jwt-role-claim disable-audit-logging "
    "drain-settle-secs tenant-api-key priority-scheduler-enabled priority-scheduler-config "
    "tenant-rate-limit-enabled tenant-rate-limit-config engine-metrics connection-mode "
    "test-external-dp-routing";

static const char vllm_router[] =
    "host port max-payload-size request-timeout-secs max-concurrent-requests queue-size "
    "queue-timeout-secs rate-limit-tokens-per-second cors-allowed-origins worker-urls "
    "worker-startup-timeout-secs worker-startup-check-interval intra-node-data-parallel-size "
    "prefill-data-parallel-size decode-data-parallel-size backend runtime mini-lb enable-igw "
    "history-backend profile policy prefill-policy decode-policy cache-threshold "
    "balance-abs-threshold balance-rel-threshold eviction-interval eviction-interval-secs "
    "max-tree-size vllm-pd-disaggregation prefill decode vllm-discovery-address kv-connector "
    "enable-program-scheduling program-scheduling-config-json service-discovery selector "
    "service-discovery-port service-discovery-namespace prefill-selector decode-selector "
    "retry-max-retries retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier "
    "retry-jitter-factor disable-retries cb-failure-threshold cb-success-threshold "
    "cb-timeout-duration-secs cb-window-duration-secs disable-circuit-breaker "
    "health-failure-threshold health-success-threshold health-check-timeout-secs "
    "health-check-interval-secs health-check-endpoint log-dir log-level prometheus-port "
    "prometheus-host request-id-headers api-key api-key-validation-urls enable-trace "
    "otlp-traces-endpoint otel-sampling-ratio otel-excluded-paths wasm-middleware "
    "wasm-middleware-sha256 wasm-middleware-route";

static void each_flag_is_classified(void **state)
{
    const char *const peers[] = {sglang_router, smg, vllm_router};
    for (size_t i = 0; i < 3; i++)
        for (const char *p = peers[i]; *p != '\0';) {
            const bt_str_t name = {p, strcspn(p, " ")};
            if (bt_flag_find(name) == NULL && bt_flag_find_peer(name) == NULL)
                fail_msg("--%.*s is unknown", BT_STR_ARG(name));
            p += name.n + (p[name.n] == ' ');
        }
}

/* A name of the table as users write it, so long as it is no pattern. */
static void spell(const bt_peer_flag_t *peer, char *name, size_t size)
{
    snprintf(name, size, "%.*s%s", (int) strcspn(peer->name, "*"), peer->name,
             strchr(peer->name, '*') != NULL ? "anything" : "");
}

/* Whatever stands behind it, and as --flag=value, and as the last word. */
static void each_unused_flag_warns(void **state)
{
    static const char *const values[] = {"", " value", "=value", " -1", " a b c", " a --port 0"};
    char name[64], line[128], want[400];
    for (unsigned i = 0; i < bt_peer_flag_count; i++) {
        if (bt_peer_flags[i].kind != BT_PEER_UNUSED)
            continue;
        spell(&bt_peer_flags[i], name, sizeof name);
        snprintf(want, sizeof want, "--%s: not used: %s\n", name, bt_peer_flags[i].text);
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            bt_config_t c;
            snprintf(line, sizeof line, "--%s%s", name, values[k]);
            load_ok(&c, line);
            assert_string_equal(c.warnings.data, want);
            bt_config_fini(&c);
        }
    }
}

static void each_refusal_reaches_the_user(void **state)
{
    char name[64], line[128], want[400];
    for (unsigned i = 0; i < bt_peer_flag_count; i++) {
        if (bt_peer_flags[i].kind != BT_PEER_REFUSED)
            continue;
        spell(&bt_peer_flags[i], name, sizeof name);
        snprintf(line, sizeof line, "--%s value", name);
        snprintf(want, sizeof want, "--%s: %s", name, bt_peer_flags[i].text);
        load_refused(line, want);
    }
}

/* Who would be served without what keeps others out must hear of it. */
static void only_what_protects_is_refused(void **state)
{
    static const char *const safe[] = {
        "jwt-issuer", "tenant-api-key",  "control-plane-api-keys", "api-key-validation-urls",
        "mtls-cert",  "wasm-middleware", "tls-terminate",
    };
    for (size_t i = 0; i < sizeof safe / sizeof safe[0]; i++)
        assert_int_equal(bt_flag_find_peer(bt_str(safe[i]))->kind, BT_PEER_REFUSED);
    assert_int_equal(bt_flag_find_peer(BT_STR("service-discovery"))->kind, BT_PEER_UNUSED);
    assert_int_equal(bt_flag_find_peer(BT_STR("enable-wasm"))->kind, BT_PEER_UNUSED);
}

static void each_alias_names_a_flag_of_ours(void **state)
{
    for (unsigned i = 0; i < bt_peer_flag_count; i++) {
        const bt_peer_flag_t *peer = &bt_peer_flags[i];
        assert_null(bt_flag_find(bt_str(peer->name))); /* or it would never be seen */
        if (peer->kind == BT_PEER_ALIAS || peer->kind == BT_PEER_MEANS)
            assert_non_null(bt_flag_find((bt_str_t){peer->text, strcspn(peer->text, "=")}));
    }
}

/* Loads and tries it as baton check does; c is for the caller to end. */
static void started(bt_config_t *c, const char *line)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    load_ok(c, line);
    if (bt_config_check(c, NULL, err, sizeof err) < 0)
        fail_msg("%s: %s", line, err);
}

static void warned(const bt_config_t *c, const char *lines)
{
    assert_string_equal(c->warnings.data != NULL ? c->warnings.data : "", lines);
}

static double param(const bt_config_t *c, enum bt_policy_slot slot, const char *key)
{
    const bt_value_t *params = c->pools[0].params[slot];
    for (unsigned i = 0; params != NULL && i < params->count; i++)
        if (strcmp(params->items[i].key, key) == 0)
            return params->items[i].number;
    fail_msg("no parameter %s", key);
    return 0;
}

static void parameters_go_where_their_policy_is(void **state)
{
    bt_config_t c;
    started(&c, "--cache-threshold 0.7 --prefill-policy cache_aware --decode-policy power_of_two "
                "--spill-abs-threshold 5 --balance-rel-threshold 2.5");
    assert_float_equal((float) param(&c, BT_SLOT_PREFILL, "cache_threshold"), 0.7, 1e-6);
    assert_float_equal((float) param(&c, BT_SLOT_PREFILL, "balance_abs_threshold"), 5, 1e-6);
    assert_float_equal((float) param(&c, BT_SLOT_PREFILL, "balance_rel_threshold"), 2.5, 1e-6);
    assert_null(c.pools[0].params[BT_SLOT_BOTH]);
    assert_null(c.pools[0].params[BT_SLOT_DECODE]);
    bt_config_fini(&c);
    started(&c, "--policy prefix_hash --prefix-token-count 640 --prefix-hash-load-factor 2");
    assert_string_equal(c.pools[0].spec.policy, "consistent_hash");
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "prefix_blocks"), 10, 1e-6);
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "factor"), 2, 1e-6);
    bt_config_fini(&c);
    started(&c, "--policy prefix_hash --prefix-token-count 7 --policy-param factor=3 "
                "--prefix-hash-load-factor 2");
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "prefix_blocks"), 1, 1e-6);
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "factor"), 3,
                       1e-6); /* said in our own words */
    bt_config_fini(&c);
    started(&c, "--policy random --cache-threshold 0.5");
    warned(&c, "--cache-threshold: not used: it is sglang_cache_aware.cache_threshold, and no pool "
               "has this policy\n");
    bt_config_fini(&c);
    load_refused("--cache-threshold many", "--cache-threshold: expected a number, got \"many\"");
    load_refused("--cache-threshold", "--cache-threshold: needs a number");
    load_refused("--cache-threshold nan", "--cache-threshold: expected a number, got \"nan\"");
}

/* A unit of ours is many of theirs; what is out of range stays so. */
static void parameters_in_another_unit(void **state)
{
    static const struct {
        const char *line;
        double blocks;
    } rows[] = {{"0", 1}, {"63", 1}, {"64", 1}, {"129", 2}, {"-5", -1}, {"1e300", 1e300 / 64}};
    char line[128];
    bt_config_t c;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "--policy prefix_hash --prefix-token-count %s", rows[i].line);
        load_ok(&c, line);
        assert_true(param(&c, BT_SLOT_BOTH, "prefix_blocks") == rows[i].blocks);
        bt_config_fini(&c);
    }
}

/* A file of one's own goes before another router's name. */
static void own_policies_keep_their_names(void **state)
{
    char line[256];
    bt_config_t c;
    load_write("cache_aware.lua", "return {}");
    snprintf(line, sizeof line, "--policy cache_aware --policy-dir %s", load_folder());
    load_ok(&c, line);
    assert_string_equal(c.pools[0].spec.policy, "cache_aware");
    warned(&c, "");
    bt_config_fini(&c);
}

static void numbers_become_the_nearest(void **state)
{
    bt_config_t c;
    load_ok(&c, "--cb-failure-threshold 100 --retry-max-retries 0");
    assert_int_equal(c.breaker.failures, 16);
    assert_int_equal(c.pools[0].spec.max_attempts, 1);
    warned(&c, "--cb-failure-threshold: --breaker-failures takes 1 to 16: 16 it is\n"
               "--retry-max-retries: --max-attempts takes 1 to 16: 1 it is\n");
    bt_config_fini(&c);
    load_refused("--max-attempts 17", "--max-attempts: expected a whole number from 1 to 16, got "
                                      "\"17\"");
    load_refused("--retry-max-retries x",
                 "--retry-max-retries: expected a whole number from 1 to 16, got \"x\"");
    load_refused("--retry-max-retries nan",
                 "--retry-max-retries: expected a whole number from 1 to 16, got \"nan\"");
}

static void all_findings_are_told_at_once(void **state)
{
    load_refused("--prot 1 --mtls-cert a.pem --mini-lb --port abc nofile.lua --polcy x",
                 "--prot: unknown flag, did you mean --port?\n"
                 "--mtls-cert: of clients' certificates Baton has --tls-client-ca FILE and "
                 "--tls-client-allow NAME\n"
                 "--port: expected a whole number from 0 to 65535, got \"abc\"\n"
                 "--polcy: unknown flag, did you mean --policy?\n"
                 "--mini-lb: not used: Baton is the load balancer");
}

static const bt_worker_spec_t *worker(const bt_config_t *c, unsigned i)
{
    assert_true(c->pools[0].worker_count > i);
    return &c->pools[0].workers[i];
}

static void lines_of_sglang_router(void **state)
{
    bt_config_t c;
    started(&c, "--worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy cache_aware "
                "--cache-threshold 0.5 --balance-abs-threshold 32 --balance-rel-threshold 1.1 "
                "--eviction-interval-secs 30 --host 0.0.0.0 --port 30000");
    assert_int_equal(c.pools[0].worker_count, 2);
    assert_string_equal(c.pools[0].spec.policy, "sglang_cache_aware");
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "balance_rel_threshold"), 1.1, 1e-6);
    warned(&c, "--eviction-interval-secs: not used: prefixes are kept in an index of fixed size, "
               "the oldest leave first\n"
               "--policy cache_aware: sglang_cache_aware serves it: prefixes are compared by "
               "blocks\n");
    bt_config_fini(&c);
    started(&c, "--pd-disaggregation --prefill http://10.0.0.1:30001 9001 --prefill "
                "http://10.0.0.2:30002 none --decode http://10.0.0.3:30003 --decode "
                "http://10.0.0.4:30004 --prefill-policy cache_aware --decode-policy power_of_two "
                "--worker-startup-timeout-secs 1800 --prometheus-port 29001");
    assert_int_equal(worker(&c, 0)->bootstrap_port, 9001);
    assert_int_equal(worker(&c, 1)->bootstrap_port, -1);
    assert_string_equal(worker(&c, 3)->connector, "sglang");
    assert_int_equal(worker(&c, 3)->engine, BT_ENGINE_SGLANG);
    assert_string_equal(c.pools[0].spec.prefill_policy, "sglang_cache_aware");
    assert_string_equal(c.pools[0].spec.decode_policy, "power_of_two");
    assert_int_equal(c.admin_port, 29001);
    bt_config_fini(&c);
    started(&c, "--pd-disaggregation --connector nixl --prefill http://10.0.0.1:1 NONE --decode "
                "http://10.0.0.2:1 --retry-max-retries 2 --disable-circuit-breaker --mini-lb");
    assert_string_equal(worker(&c, 0)->connector, "sglang");
    assert_int_equal(worker(&c, 0)->engine, BT_ENGINE_SGLANG);
    assert_int_equal(c.pools[0].spec.max_attempts, 2);
    assert_true(c.breaker.disabled);
    warned(&c, "--mini-lb: not used: Baton is the load balancer\n");
    bt_config_fini(&c);
}

static void lines_of_smg(void **state)
{
    bt_config_t c;
    started(&c, "--worker-urls http://10.0.0.1:8000 --policy manual --max-idle-secs 7200 "
                "--assignment-mode min_load --log-json --shutdown-grace-period-secs 60");
    assert_string_equal(c.pools[0].spec.policy, "session_affinity");
    assert_float_equal((float) param(&c, BT_SLOT_BOTH, "ttl_s"), 7200, 1e-6);
    assert_int_equal(c.log_format, BT_LOG_FORMAT_JSON);
    assert_int_equal(c.drain_ms, 60000);
    bt_config_fini(&c);
    started(&c, "--backend vllm --pd-disaggregation --prefill http://10.0.0.1:8000 --decode "
                "http://10.0.0.2:8000 --prefill-policy bucket --bucket-adjust-interval-secs 5 "
                "--decode-policy consistent_hashing");
    assert_int_equal(worker(&c, 0)->engine, BT_ENGINE_VLLM);
    assert_string_equal(worker(&c, 0)->connector, "nixl");
    assert_string_equal(c.pools[0].spec.prefill_policy, "length_buckets");
    assert_string_equal(c.pools[0].spec.decode_policy, "consistent_hash");
    bt_config_fini(&c);
    started(&c, "--worker-urls http://10.0.0.1:8000 --redis-url redis://10.0.0.9:6379 "
                "--history-backend redis --redis-retention-days -1 --enable-igw");
    assert_string_equal(c.redis_url, "redis://10.0.0.9:6379");
    assert_non_null(strstr(c.warnings.data, "--history-backend: not used"));
    assert_non_null(strstr(c.warnings.data, "--redis-url, if given, is the store that gateways"));
    bt_config_fini(&c);
}

static void lines_of_vllm_router(void **state)
{
    bt_config_t c;
    started(&c, "--worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy consistent_hash "
                "--intra-node-data-parallel-size 2 --log-level critical");
    assert_string_equal(c.pools[0].spec.policy, "consistent_hash");
    assert_int_equal(c.log_level, BT_LOG_ERROR);
    warned(&c, "--intra-node-data-parallel-size: not used: the engine chooses ranks, or name them: "
               "http://host:port@RANK\n");
    bt_config_fini(&c);
    started(&c, "--vllm-pd-disaggregation --prefill http://10.0.0.1:8000 --prefill "
                "http://10.0.0.2:8000 --decode http://10.0.0.3:8000 --kv-connector nixl "
                "--prefill-policy round_robin --decode-policy random --backend vllm");
    assert_int_equal(c.pools[0].worker_count, 3);
    assert_string_equal(worker(&c, 0)->connector, "nixl");
    assert_int_equal(worker(&c, 2)->engine, BT_ENGINE_VLLM);
    warned(&c, "");
    bt_config_fini(&c);
    started(&c, "--service-discovery --selector app=vllm role=worker --service-discovery-port 8000 "
                "--request-id-headers x-request-id x-trace-id --cb-failure-threshold 3 "
                "--cb-timeout-duration-secs 30 --retry-backoff-multiplier 1.5");
    assert_int_equal(c.breaker.failures, 3);
    assert_int_equal(c.breaker.open_ms, 30000);
    assert_non_null(strstr(c.warnings.data, "x-trace-id is not read"));
    bt_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_flag_is_classified),
        cmocka_unit_test(each_unused_flag_warns),
        cmocka_unit_test(each_refusal_reaches_the_user),
        cmocka_unit_test(only_what_protects_is_refused),
        cmocka_unit_test(each_alias_names_a_flag_of_ours),
        cmocka_unit_test(parameters_go_where_their_policy_is),
        cmocka_unit_test(parameters_in_another_unit),
        cmocka_unit_test(own_policies_keep_their_names),
        cmocka_unit_test(numbers_become_the_nearest),
        cmocka_unit_test(all_findings_are_told_at_once),
        cmocka_unit_test(lines_of_sglang_router),
        cmocka_unit_test(lines_of_smg),
        cmocka_unit_test(lines_of_vllm_router),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
