/* Flags that users of sglang-router, SMG and vllm-router carry in their fingers: another name for ours, or one sentence
 * that says what to use. First match wins, so a name stands before the pattern that would swallow it. */
#include "config/flag.h"

#define NOT_BUILT_POLICY "it tunes a policy that is not built; write yours in Lua (--policy FILE)"
#define NO_DISCOVERY                                                                               \
    "service discovery is not built: list workers in baton.lua or POST /workers on the admin port"
#define NO_TLS                                                                                     \
    "TLS is not built: put a TLS proxy before Baton, and keep workers on a private network"
#define NO_WASM "there is no WASM: write a policy in Lua and give it with --policy FILE"
#define NO_TOKENIZER "Baton does not tokenise or parse, the engines do: give it to the engine"
#define NO_TRACE                                                                                   \
    "tracing is not built: use the access log, x-baton-* headers and /metrics on the admin port"
#define NO_MESH "there is no mesh: run several gateways side by side"
#define NO_BACKOFF                                                                                 \
    "a retry goes to another worker at once, without a back-off: use --max-attempts N"
#define NO_QUEUE                                                                                   \
    "requests are not queued here: --max-concurrent-requests N answers 503 with Retry-After "      \
    "above it"
#define NO_HISTORY                                                                                 \
    "answers are kept by the engines; follow-ups by id go to the worker that made them"
#define NO_INDEX "there is no KV index; write a policy in Lua (--policy FILE)"
#define NO_PRIORITY                                                                                \
    "priorities and tenants are not built; --max-concurrent-requests N limits all requests "       \
    "together"
#define NO_JWT                                                                                     \
    "tokens and roles are not built: use --client-api-keys-file FILE and --admin-api-key KEY"
#define DP_SIZE "name ranks as http://host:port@RANK, or give the worker dp_size in baton.lua"
#define NO_ENCODE                                                                                  \
    "encode workers are not built: multimodal requests go to workers that do both (--worker-urls)"
#define LEASTLOAD                                                                                  \
    "least_load counts the tokens it knows and has no weights; write yours in Lua (--policy FILE)"

const bt_peer_flag_t bt_peer_flags[] = {
    /* the same under another name */
    {"kv-connector", "connector", NULL},
    {"prometheus-host", "admin-host", NULL},
    {"prometheus-port", "admin-port", NULL},
    {"shutdown-grace-period-secs", "drain-timeout-secs", NULL},
    {"retry-max-retries", "max-attempts", NULL},
    {"cb-failure-threshold", "breaker-failures", NULL},
    {"cb-window-duration-secs", "breaker-window-secs", NULL},
    {"cb-timeout-duration-secs", "breaker-open-secs", NULL},
    {"load-monitor-interval", "load-interval-secs", NULL},
    {"request-id-header", "request-id-headers", NULL},

    /* prefill and decode */
    {"mini-lb", NULL, "Baton is the load balancer: leave it out"},
    {"encode", NULL, NO_ENCODE},
    {"epd-disaggregation", NULL, NO_ENCODE},
    {"vllm-discovery-address", NULL,
     "workers do not register themselves: use --prefill and --decode, or POST /workers on the "
     "admin port"},
    {"transfer-group-label", NULL, "give workers transfer_group in baton.lua"},
    {"dp-aware", NULL, DP_SIZE},
    {"dp-minimum-tokens-scheduler", NULL, DP_SIZE},
    {"test-external-dp-routing", NULL, DP_SIZE},
    {"intra-node-data-parallel-size", NULL, DP_SIZE},
    {"prefill-data-parallel-size", NULL, DP_SIZE},
    {"decode-data-parallel-size", NULL, DP_SIZE},
    {"bootstrap-port-annotation", NULL, NO_DISCOVERY},
    {"backend", NULL,
     "name the engine with --engine, --vllm-pd-disaggregation or --pd-disaggregation"},
    {"connection-mode", NULL, "workers are spoken to by HTTP; gRPC is not built"},
    {"enable-igw", NULL, "several models: give pools with models = {...} in baton.lua"},
    {"model-id-from", NULL, "name models in baton.lua (pools[].models)"},
    {"model-alias", NULL,
     "name models in baton.lua (pools[].models); the engine's --served-model-name makes aliases"},

    /* policies */
    {"cache-threshold", NULL, NOT_BUILT_POLICY},
    {"balance-abs-threshold", NULL, NOT_BUILT_POLICY},
    {"balance-rel-threshold", NULL, NOT_BUILT_POLICY},
    {"balance-token-usage-threshold", NULL, NOT_BUILT_POLICY},
    {"overload-token-usage-threshold", NULL, NOT_BUILT_POLICY},
    {"eviction-interval", NULL, NOT_BUILT_POLICY},
    {"eviction-interval-secs", NULL, NOT_BUILT_POLICY},
    {"max-tree-size", NULL, NOT_BUILT_POLICY},
    {"block-size", NULL, NOT_BUILT_POLICY},
    {"bucket-*", NULL, NOT_BUILT_POLICY},
    {"prefix-token-count", NULL, NOT_BUILT_POLICY},
    {"prefix-hash-load-factor", NULL, NOT_BUILT_POLICY},
    {"assignment-mode", NULL, NOT_BUILT_POLICY},
    {"max-idle-secs", NULL, NOT_BUILT_POLICY},
    {"routing-key-override", NULL, NOT_BUILT_POLICY},
    {"least-load-*", NULL, LEASTLOAD},
    {"cache-prefix-provider", NULL, NO_INDEX},
    {"kv-indexer-*", NULL, NO_INDEX},
    {"program-*", NULL, NOT_BUILT_POLICY},

    /* retries, breaker, health */
    {"retry-*", NULL, NO_BACKOFF},
    {"cb-success-threshold", NULL, "one good probe closes a breaker: leave it out"},
    {"remove-unhealthy-workers", NULL,
     "unhealthy workers get no requests and come back by themselves: leave it out"},
    {"health-check-port", NULL,
     "ask /liveness and /readiness on the client port, or /metrics on the admin port"},
    {"drain-settle-secs", NULL,
     "draining waits for running requests, not for a time; the limit is --drain-timeout-secs"},

    /* admission */
    {"queue-size", NULL, NO_QUEUE},
    {"queue-timeout-secs", NULL, NO_QUEUE},
    {"rate-limit-tokens-per-second", NULL, NO_QUEUE},
    {"priority-scheduler-*", NULL, NO_PRIORITY},
    {"tenant-rate-limit-*", NULL, NO_PRIORITY},
    {"tenant-api-key", NULL, "use --client-api-keys-file FILE"},
    {"control-plane-*", NULL, "use --admin-api-key KEY"},
    {"disable-audit-logging", NULL, "there is no audit log: leave it out"},
    {"api-key-validation-urls", NULL, "use --client-api-keys-file FILE"},
    {"jwt-*", NULL, NO_JWT},
    {"cors-allowed-origins", NULL, "set CORS headers in the proxy before Baton"},

    /* discovery */
    {"service-discovery", NULL, NO_DISCOVERY},
    {"service-discovery-*", NULL, NO_DISCOVERY},
    {"selector", NULL, NO_DISCOVERY},
    {"prefill-selector", NULL, NO_DISCOVERY},
    {"decode-selector", NULL, NO_DISCOVERY},
    {"encode-selector", NULL, NO_DISCOVERY},
    {"router-selector", NULL, NO_DISCOVERY},
    {"router-mesh-*", NULL, NO_MESH},
    {"enable-mesh", NULL, NO_MESH},
    {"mesh-*", NULL, NO_MESH},

    /* TLS */
    {"tls-*", NULL, NO_TLS},
    {"client-cert-path", NULL, NO_TLS},
    {"client-key-path", NULL, NO_TLS},
    {"ca-cert-*", NULL, NO_TLS},
    {"mtls-*", NULL, NO_TLS},

    /* the rest */
    {"log-dir", NULL, "the log goes to stderr: redirect it (2>>FILE)"},
    {"log-json", NULL, "use --log-format json"},
    {"json-log", NULL, "use --log-format json"},
    {"enable-wasm", NULL, NO_WASM},
    {"wasm-*", NULL, NO_WASM},
    {"enable-trace", NULL, NO_TRACE},
    {"otlp-*", NULL, NO_TRACE},
    {"otel-*", NULL, NO_TRACE},
    {"engine-metrics", NULL,
     "load of engines is on /metrics of the admin port (baton_worker_*): leave it out"},
    {"history-backend", NULL, NO_HISTORY},
    {"oracle-*", NULL, NO_HISTORY},
    {"postgres-*", NULL, NO_HISTORY},
    {"redis-*", NULL, NO_HISTORY},
    {"storage-*", NULL, NO_HISTORY},
    {"mcp-config-path", NULL, "there is no MCP here: run tools in the client"},
    {"model-path", NULL, NO_TOKENIZER},
    {"tokenizer-*", NULL, NO_TOKENIZER},
    {"chat-template", NULL, NO_TOKENIZER},
    {"reasoning-parser", NULL, NO_TOKENIZER},
    {"tool-call-parser", NULL, NO_TOKENIZER},
    {"config", NULL, "name the file without a flag: baton run baton.lua"},
};
const unsigned bt_peer_flag_count = sizeof bt_peer_flags / sizeof bt_peer_flags[0];

const bt_peer_policy_t bt_peer_policies[] = {
    {"cache_aware", "sglang_cache_aware"},
    {"precise_cache_aware", "sglang_cache_aware"},
    {"cache_aware_zmq", "sglang_cache_aware"},
    {"bucket", "length_buckets"},
    {"consistent_hashing", "consistent_hash"},
    {"rendezvous_hash", "consistent_hash"},
    {"prefix_hash", "sglang_cache_aware"},
    {"manual", "session_affinity"},
    {"sticky_least_loaded", "session_affinity"},
    {"passthrough", "fallback_chain"},
    {"program", "least_load"},
    {NULL, NULL},
};

static bool matches(const char *pattern, bt_str_t name)
{
    bt_str_t p = bt_str(pattern);
    if (p.p[p.n - 1] != '*')
        return bt_str_eq(p, name);
    return bt_str_starts(name, (bt_str_t){p.p, p.n - 1}) && name.n >= p.n;
}

const bt_peer_flag_t *bt_flag_find_peer(bt_str_t name)
{
    for (unsigned i = 0; i < bt_peer_flag_count; i++)
        if (matches(bt_peer_flags[i].name, name))
            return &bt_peer_flags[i];
    return NULL;
}
