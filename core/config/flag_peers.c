/* Flags that users of sglang-router, SMG and vllm-router carry in their fingers, and what becomes of
 * each. First match wins, so a name stands before the pattern that would swallow it. An unused flag
 * takes all words up to the next flag, so the table need not know how many it has. */
#include "config/flag.h"

#define ALIAS(ours) BT_PEER_ALIAS, ours, 0
#define PARAM(ours, divisor) BT_PEER_PARAM, ours, divisor
#define UNUSED(why) BT_PEER_UNUSED, why, 0
#define REFUSED(use) BT_PEER_REFUSED, use, 0

#define NO_DISCOVERY                                                                               \
    "pods are watched by --workers-kubernetes namespace=NS,selector=LABELS,role=ROLE, once for "   \
    "each role, or without role= where llm-d.ai/role says it"
#define OTHER_TLS                                                                                  \
    "of clients' certificates Baton has --tls-client-ca FILE and --tls-client-allow NAME"
#define NO_JWT_ROLES "roles are scopes here: see --jwt-scope-claim"
#define NO_KEYS "clients' keys are in a file: baton key new FILE, then --client-api-keys-file FILE"
#define NO_WASM "there is no WASM; what it does a policy in Lua can do (--policy FILE)"
#define NO_TOKENIZER "the engines tokenise and parse, Baton does neither"
#define NO_TRACE "traces go to --trace-endpoint http://HOST:4318: OTLP over HTTP, not gRPC"
#define NO_MESH "there is no mesh: gateways with the same --redis-url act as one"
#define NO_BACKOFF "a retry goes to another worker at once; --retry-budget-percent bounds them"
#define NO_HISTORY                                                                                 \
    "answers are kept by the engines, and a follow-up goes to the worker that made them; "         \
    "--redis-url, if given, is the store that gateways share"
#define NO_TREE "prefixes are kept in an index of fixed size, the oldest leave first"
#define NO_INDEX "there is no KV index; policies see prefixes that this fleet has served"
#define NO_CLASSES "there are no priorities; see the policy tenant_fair and the hook admit"
#define NO_RANKS "the engine chooses ranks, or name them: http://host:port@RANK"
#define NO_ENCODE "encode workers are named with --encode URL, and chosen by --policy"
#define NO_MEDIA "media go to the engines as they come"
#define NO_STICKY "session_affinity places a session by a hash of its id"
#define NO_LOAD_MODEL "least_load counts the tokens it knows and has no weights"
#define NO_OVERLOAD "see --engine-request-limit, and the policy slo_admission"
#define NO_MODELS "name models in baton.lua (pools[].models); the engine makes aliases"
#define NO_PROGRAMS "requests are scheduled one by one; see the policy session_affinity"

const bt_peer_flag_t bt_peer_flags[] = {
    /* another name, the same meaning */
    {"kv-connector", ALIAS("connector")},
    {"backend", ALIAS("engine")},
    {"runtime", ALIAS("engine")},
    {"prometheus-host", ALIAS("admin-host")},
    {"prometheus-port", ALIAS("admin-port")},
    {"shutdown-grace-period-secs", ALIAS("drain-timeout-secs")},
    {"retry-max-retries", ALIAS("max-attempts")},
    {"cb-failure-threshold", ALIAS("breaker-failures")},
    {"cb-window-duration-secs", ALIAS("breaker-window-secs")},
    {"cb-timeout-duration-secs", ALIAS("breaker-open-secs")},
    {"load-monitor-interval", ALIAS("load-interval-secs")},
    {"request-id-header", ALIAS("request-id-headers")},
    {"log-json", BT_PEER_MEANS, "log-format=json", 0},
    {"json-log", BT_PEER_MEANS, "log-format=json", 0},

    /* parameters of shipped policies */
    {"cache-threshold", PARAM("sglang_cache_aware.cache_threshold", 0)},
    {"cache-match-threshold", PARAM("sglang_cache_aware.cache_threshold", 0)},
    {"balance-abs-threshold", PARAM("sglang_cache_aware.balance_abs_threshold", 0)},
    {"spill-abs-threshold", PARAM("sglang_cache_aware.balance_abs_threshold", 0)},
    {"balance-rel-threshold", PARAM("sglang_cache_aware.balance_rel_threshold", 0)},
    {"spill-rel-threshold", PARAM("sglang_cache_aware.balance_rel_threshold", 0)},
    {"prefix-token-count", PARAM("consistent_hash.prefix_blocks", 64)},
    {"prefix-hash-load-factor", PARAM("consistent_hash.factor", 0)},
    {"max-idle-secs", PARAM("session_affinity.ttl_s", 0)},
    {"sticky-key-idle-secs", PARAM("session_affinity.ttl_s", 0)},

    /* prefill and decode */
    {"mini-lb", UNUSED("Baton is the load balancer")},
    {"encode-policy", UNUSED(NO_ENCODE)},
    {"epd-disaggregation", UNUSED(NO_ENCODE)},
    {"vllm-discovery-address", UNUSED("say --p2p-nccl-port PORT, with --registration-host and "
                                      "--registration-new-workers, where vLLM's engines register")},
    {"transfer-group-label", UNUSED("give workers transfer_group in baton.lua")},
    {"dp-aware", UNUSED(NO_RANKS)},
    {"dp-minimum-tokens-scheduler", UNUSED(NO_RANKS)},
    {"test-external-dp-routing", UNUSED(NO_RANKS)},
    {"intra-node-data-parallel-size", UNUSED(NO_RANKS)},
    {"prefill-data-parallel-size", UNUSED(NO_RANKS)},
    {"decode-data-parallel-size", UNUSED(NO_RANKS)},
    {"zmq-engine-count", UNUSED(NO_RANKS)},
    {"pd-admission-wait-secs", UNUSED("see --engine-request-limit, which caps what a worker runs")},
    {"connection-mode", UNUSED("workers are spoken to by HTTP/1.1")},
    {"upstream-http2", UNUSED("workers are spoken to by HTTP/1.1")},
    {"upstream-pool-idle-timeout-secs", UNUSED("see --worker-idle-secs")},
    {"enable-igw", UNUSED("pools serve several models: give them models in baton.lua")},
    {"model-id-from", UNUSED(NO_MODELS)},
    {"model-alias", UNUSED(NO_MODELS)},
    {"served-model-name", UNUSED(NO_MODELS)},
    {"profile", UNUSED("ask the engines for profiles")},

    /* policies */
    {"eviction-interval", UNUSED(NO_TREE)},
    {"eviction-interval-secs", UNUSED(NO_TREE)},
    {"max-tree-size", UNUSED(NO_TREE)},
    {"block-size", UNUSED(NO_TREE)},
    {"cache-boundaries", UNUSED(NO_TREE)},
    {"cache-index", UNUSED(NO_TREE)},
    {"cache-ttl-secs", UNUSED(NO_TREE)},
    {"overlap-decay", UNUSED(NO_TREE)},
    {"selection-temperature", UNUSED(NO_TREE)},
    {"prefix-hash-balance-abs-threshold", UNUSED("consistent_hash bounds load by its factor only")},
    {"balance-token-usage-threshold", UNUSED(NO_OVERLOAD)},
    {"overload-token-usage-threshold", UNUSED(NO_OVERLOAD)},
    {"worker-overload-*", UNUSED(NO_OVERLOAD)},
    {"bucket-*", UNUSED("the buckets of length_buckets are its params short and medium")},
    {"assignment-mode", UNUSED(NO_STICKY)},
    {"routing-key-override", UNUSED(NO_STICKY)},
    {"sticky-sessions", UNUSED(NO_STICKY)},
    {"routing-key-headers", UNUSED(NO_STICKY)},
    {"least-load-*", UNUSED(NO_LOAD_MODEL)},
    {"cache-prefix-provider", UNUSED(NO_INDEX)},
    {"kv-indexer-*", UNUSED(NO_INDEX)},
    {"kv-events-*", UNUSED(NO_INDEX)},
    {"program-*", UNUSED(NO_PROGRAMS)},
    {"enable-program-scheduling", UNUSED(NO_PROGRAMS)},

    /* retries, breaker, health */
    {"retry-*", UNUSED(NO_BACKOFF)},
    {"cb-success-threshold", UNUSED("one good probe closes a breaker")},
    {"remove-unhealthy-workers",
     UNUSED("unhealthy workers get no requests and come back by themselves")},
    {"no-remove-unhealthy-workers", UNUSED("unhealthy workers stay, and come back by themselves")},
    {"worker-auto-recovery",
     UNUSED("unhealthy workers get no requests and come back by themselves")},
    {"no-worker-auto-recovery", UNUSED("unhealthy workers stay, and come back by themselves")},
    {"worker-startup-delay", UNUSED("see --worker-startup-check-interval")},
    {"health-check-port", UNUSED("probe /liveness and /readiness on the client port")},
    {"drain-settle-secs",
     UNUSED("draining waits for running requests; --drain-timeout-secs is the limit")},
    {"disable-load-monitoring", UNUSED("see --load-interval-secs 0")},
    {"job-queue-*", UNUSED("workers are added and removed at once")},

    /* admission */
    {"rate-limit-tokens-per-second",
     UNUSED("what starts is not limited: --max-concurrent-requests bounds what runs")},
    {"max-buffered-request-bytes",
     UNUSED("requests can always be tried again; see --max-buffered-bytes")},
    {"stream-body-stall-timeout-secs", UNUSED("see --client-body-stall-secs")},
    {"priority-scheduler-*", UNUSED(NO_CLASSES)},
    {"tenant-rate-limit-*", UNUSED(NO_CLASSES)},

    /* keys and TLS */
    {"tenant-api-key", REFUSED(NO_KEYS)},
    {"api-key-validation-urls", REFUSED(NO_KEYS)},
    {"jwt-jwks-uri", ALIAS("jwt-jwks-url")},
    {"jwt-*", REFUSED(NO_JWT_ROLES)},
    {"control-plane-api-keys", REFUSED("use --admin-api-key KEY")},
    {"control-plane-audit-enabled", UNUSED("the audit log is --audit-log FILE")},
    {"disable-audit-logging", UNUSED("there is no audit log without --audit-log")},
    {"cors-allowed-origins",
     UNUSED("name them with --cors-origin ORIGIN, one each; browsers stay with their own else")},
    {"tls-cert-path", ALIAS("tls-cert")},
    {"tls-key-path", ALIAS("tls-key")},
    {"server-cert-path", ALIAS("tls-cert")},
    {"server-key-path", ALIAS("tls-key")},
    {"tls-*", REFUSED(OTHER_TLS)},
    {"client-cert-path", ALIAS("worker-tls-cert")},
    {"client-key-path", ALIAS("worker-tls-key")},
    {"ca-cert-path", ALIAS("worker-tls-ca")},
    {"ca-cert-paths", ALIAS("worker-tls-ca")},
    {"mtls-*", REFUSED(OTHER_TLS)},

    /* discovery */
    {"service-discovery", UNUSED(NO_DISCOVERY)},
    {"service-discovery-*", UNUSED(NO_DISCOVERY)},
    {"selector", UNUSED(NO_DISCOVERY)},
    {"prefill-selector", UNUSED(NO_DISCOVERY)},
    {"decode-selector", UNUSED(NO_DISCOVERY)},
    {"encode-selector", UNUSED(NO_DISCOVERY)},
    {"router-selector", UNUSED(NO_MESH)},
    {"bootstrap-port-annotation", UNUSED(NO_DISCOVERY)},
    {"kv-connector-annotation", UNUSED(NO_DISCOVERY)},
    {"kv-engine-id-annotation", UNUSED(NO_DISCOVERY)},
    {"router-mesh-*", UNUSED(NO_MESH)},
    {"enable-mesh", UNUSED(NO_MESH)},
    {"mesh-*", UNUSED(NO_MESH)},

    /* the rest */
    {"log-dir", UNUSED("see --log-file FILE")},
    {"wasm-*",
     REFUSED(
         "middleware may refuse requests, and there is none: write a policy in Lua with admit")},
    {"enable-wasm", UNUSED(NO_WASM)},
    {"enable-trace", UNUSED(NO_TRACE)},
    {"otlp-*", UNUSED(NO_TRACE)},
    {"otel-*", UNUSED(NO_TRACE)},
    {"engine-metrics", UNUSED("/metrics of the admin port has the engines' load (baton_worker_*)")},
    {"prometheus-duration-buckets", UNUSED("histograms have buckets of their own")},
    {"history-backend", UNUSED(NO_HISTORY)},
    {"oracle-*", UNUSED(NO_HISTORY)},
    {"postgres-*", UNUSED(NO_HISTORY)},
    {"redis-pool-*", UNUSED(NO_HISTORY)},
    {"redis-retention-days", UNUSED(NO_HISTORY)},
    {"storage-*", UNUSED(NO_HISTORY)},
    {"schema-config", UNUSED(NO_HISTORY)},
    {"mcp-config-path", UNUSED("there is no MCP: tools run in the client")},
    {"model-path", UNUSED(NO_TOKENIZER)},
    {"model", UNUSED(NO_TOKENIZER)},
    {"tokenizer-*", UNUSED(NO_TOKENIZER)},
    {"disable-tokenizer-autoload", UNUSED(NO_TOKENIZER)},
    {"chat-template", UNUSED(NO_TOKENIZER)},
    {"reasoning-parser", UNUSED(NO_TOKENIZER)},
    {"tool-call-parser", UNUSED(NO_TOKENIZER)},
    {"multimodal-*", UNUSED(NO_MEDIA)},
    {"mm-*", UNUSED(NO_MEDIA)},
    {"rdma-*", UNUSED(NO_MEDIA)},
    {"log-mm-timing", UNUSED(NO_MEDIA)},
    {"enable-rl", UNUSED("engines are controlled directly")},
    {"rl-*", UNUSED("engines are controlled directly")},
    {"config",
     REFUSED(
         "another router's file cannot be read; ours stands without a flag: baton run baton.lua")},
};
const unsigned bt_peer_flag_count = sizeof bt_peer_flags / sizeof bt_peer_flags[0];

const bt_peer_policy_t bt_peer_policies[] = {
    {"cache_aware", "sglang_cache_aware", "prefixes are compared by blocks"},
    {"bucket", "length_buckets", "workers without the label bucket serve prompts of all lengths"},
    {"consistent_hashing", "consistent_hash", "the key is the session, the tenant or the prefix"},
    {"rendezvous_hash", "consistent_hash", "the key is the session, the tenant or the prefix"},
    {"prefix_hash", "consistent_hash", "sessions and tenants go before the prefix"},
    {"manual", "session_affinity", "a hash of the session's id places it"},
    {"sticky_least_loaded", "session_affinity", "a hash of the session's id places it"},
    {"sticky_round_robin", "session_affinity", "a hash of the session's id places it"},
    {"precise_cache_aware", "sglang_cache_aware", NULL},
    {"cache_aware_zmq", "sglang_cache_aware", NULL},
    {"passthrough", "fallback_chain", NULL},
    {"program", "least_load", NULL},
    {NULL, NULL, NULL},
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
