/* What users of other routers type: nothing of it may be silently ignored or called unknown. */
#include "config/flag.h"

#include "load.h"

/* Spellings of sglang-router, SMG and vllm-router, typed from their documentation. */
static const char *const spellings[] = {
    "cache-threshold",
    "balance-abs-threshold",
    "balance-rel-threshold",
    "eviction-interval",
    "eviction-interval-secs",
    "max-tree-size",
    "block-size",
    "balance-token-usage-threshold",
    "overload-token-usage-threshold",
    "load-monitor-interval",
    "least-load-kv-pressure-weight",
    "least-load-default-throughput",
    "least-load-mean-prefill-tokens",
    "prefix-token-count",
    "prefix-hash-load-factor",
    "assignment-mode",
    "max-idle-secs",
    "routing-key-override",
    "cache-prefix-provider",
    "kv-indexer-endpoint",
    "kv-indexer-query-timeout-ms",
    "kv-indexer-query-max-inflight",
    "pd-disaggregation",
    "prefill",
    "decode",
    "epd-disaggregation",
    "encode",
    "vllm-pd-disaggregation",
    "vllm-discovery-address",
    "kv-connector",
    "prefill-policy",
    "decode-policy",
    "transfer-group-label",
    "dp-aware",
    "dp-minimum-tokens-scheduler",
    "intra-node-data-parallel-size",
    "prefill-data-parallel-size",
    "decode-data-parallel-size",
    "disable-retries",
    "retry-max-retries",
    "retry-initial-backoff-ms",
    "retry-max-backoff-ms",
    "retry-backoff-multiplier",
    "retry-jitter-factor",
    "cb-failure-threshold",
    "cb-success-threshold",
    "cb-timeout-duration-secs",
    "cb-window-duration-secs",
    "disable-circuit-breaker",
    "health-failure-threshold",
    "health-success-threshold",
    "health-check-timeout-secs",
    "health-check-interval-secs",
    "health-check-endpoint",
    "disable-health-check",
    "remove-unhealthy-workers",
    "health-check-port",
    "max-concurrent-requests",
    "queue-size",
    "queue-timeout-secs",
    "rate-limit-tokens-per-second",
    "priority-scheduler-enabled",
    "tenant-rate-limit-enabled",
    "drain-settle-secs",
    "service-discovery",
    "selector",
    "prefill-selector",
    "decode-selector",
    "encode-selector",
    "router-selector",
    "service-discovery-port",
    "service-discovery-namespace",
    "model-id-from",
    "model-alias",
    "api-key",
    "tenant-api-key",
    "control-plane-api-keys",
    "jwt-issuer",
    "jwt-audience",
    "jwt-jwks-uri",
    "jwt-role-claim",
    "jwt-role-mapping",
    "api-key-validation-urls",
    "tls-cert-path",
    "tls-key-path",
    "client-cert-path",
    "client-key-path",
    "ca-cert-path",
    "enable-mesh",
    "mesh-port",
    "request-id-headers",
    "enable-trace",
    "otlp-traces-endpoint",
    "otel-sampling-ratio",
    "otel-excluded-paths",
    "enable-wasm",
    "wasm-middleware",
    "wasm-middleware-sha256",
    "wasm-middleware-route",
    "engine-metrics",
    "max-payload-size",
    "host",
    "port",
    "policy",
    "request-timeout-secs",
    "worker-startup-timeout-secs",
    "worker-startup-check-interval",
    "shutdown-grace-period-secs",
    "log-level",
    "log-dir",
    "prometheus-port",
    "prometheus-host",
    "history-backend",
    "worker-urls",
    "mini-lb",
    "model-path",
    "tokenizer-path",
    "reasoning-parser",
    "tool-call-parser",
    "chat-template",
    "mcp-config-path",
    "cors-allowed-origins",
    "enable-igw",
    "backend",
};

static void each_spelling_is_ours_or_explained(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        bt_str_t name = bt_str(spellings[i]);
        if (bt_flag_find(name) == NULL && bt_flag_find_peer(name) == NULL)
            fail_msg("--%s is unknown", spellings[i]);
    }
}

static void each_refusal_reaches_the_user(void **state)
{
    char line[128], want[512];
    (void) state;
    for (unsigned i = 0; i < bt_peer_flag_count; i++) {
        const bt_peer_flag_t *peer = &bt_peer_flags[i];
        char name[64];
        if (peer->alias != NULL)
            continue;
        snprintf(name, sizeof name, "%.*s%s", (int) strcspn(peer->name, "*"), peer->name,
                 strchr(peer->name, '*') != NULL ? "anything" : "");
        snprintf(line, sizeof line, "--%s value", name);
        snprintf(want, sizeof want, "--%s: %s", name, peer->use);
        load_refused(line, want);
    }
}

static void each_alias_names_a_flag_of_ours(void **state)
{
    (void) state;
    for (unsigned i = 0; i < bt_peer_flag_count; i++)
        if (bt_peer_flags[i].alias != NULL) {
            assert_non_null(bt_flag_find(bt_str(bt_peer_flags[i].alias)));
            assert_null(
                bt_flag_find(bt_str(bt_peer_flags[i].name))); /* or the alias would never be seen */
        }
}

/* Refusals typed once more, so that the table cannot drift from what was promised. */
static void refusals_say_what_to_use(void **state)
{
    (void) state;
    load_refused(
        "--service-discovery",
        "--service-discovery: service discovery is not built: list workers in baton.lua or "
        "POST /workers on the admin port");
    load_refused("--mini-lb", "--mini-lb: Baton is the load balancer: leave it out");
    load_refused("--log-dir=/var/log", "--log-dir: the log goes to stderr: redirect it (2>>FILE)");
    load_refused(
        "--queue-size 5",
        "--queue-size: requests are not queued here: --max-concurrent-requests N answers 503 "
        "with Retry-After above it");
    load_refused(
        "--encode http://a:1",
        "--encode: encode workers are not built: multimodal requests go to workers that do "
        "both (--worker-urls)");
    load_refused("--retry-jitter-factor 0.2",
                 "--retry-jitter-factor: a retry goes to another worker at once, without a "
                 "back-off: use --max-attempts N");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_spelling_is_ours_or_explained),
        cmocka_unit_test(each_refusal_reaches_the_user),
        cmocka_unit_test(each_alias_names_a_flag_of_ours),
        cmocka_unit_test(refusals_say_what_to_use),
    };
    return cmocka_run_group_tests(tests, NULL, load_cleanup);
}
