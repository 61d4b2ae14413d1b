/* Rows are ordered as --help prints them. A row's option says where its value lives and what is
 * allowed; nothing else in the program knows the name of a setting. Numbers are written in the unit
 * that the name carries; scale turns seconds into the milliseconds that the core counts in. */
#include "config/flag.h"

#include "config/flag_values.h"

#include <stdio.h>

#define DAY_SECS 86400.0
#define AT(member) offsetof(bt_config_t, member)
#define POOL_AT(member) offsetof(bt_config_pool_t, member)

/* clang-format off */
#define SECS(at_, min_) \
    {.kind = BT_OPTION_U64, .offset = (at_), .min = (min_), .max = DAY_SECS, .scale = 1000}
#define U64(at_, min_, max_) \
    {.kind = BT_OPTION_U64, .offset = (at_), .min = (min_), .max = (max_)}
#define UINT(at_, min_, max_) \
    {.kind = BT_OPTION_UINT, .offset = (at_), .min = (min_), .max = (max_)}
#define PPM(at_) {.kind = BT_OPTION_UINT, .offset = (at_), .max = 1, .scale = 1000000}
#define BOOL(at_) {.kind = BT_OPTION_BOOL, .offset = (at_)}
#define TEXT(at_) {.kind = BT_OPTION_TEXT, .offset = (at_)}
#define PATH(at_) {.kind = BT_OPTION_PATH, .offset = (at_)}
#define NAME(at_) {.kind = BT_OPTION_NAME, .offset = (at_)}
#define PORT(at_) {.kind = BT_OPTION_PORT, .offset = (at_)}
#define LABELS(at_) {.kind = BT_OPTION_LABELS, .offset = (at_)}
#define WORD(at_, words_) {.kind = BT_OPTION_WORD, .offset = (at_), .words = (words_)}
#define TEXTS(at_, count_at_, max_) \
    {.kind = BT_OPTION_TEXTS, .offset = (at_), .count_offset = (count_at_), .list_max = (max_)}
#define PATHS(at_, count_at_, max_) \
    {.kind = BT_OPTION_PATHS, .offset = (at_), .count_offset = (count_at_), .list_max = (max_)}
/* clang-format on */

/* The columns of a row from `kind` to `apply`. */
#define SETTING(option_) BT_FLAG_SETTING, option_, BT_ARITY_ONE, NULL
#define POOL(option_) BT_FLAG_POOL, option_, BT_ARITY_ONE, NULL
#define ACTION(arity_, apply_) BT_FLAG_ACTION, {0}, arity_, apply_

/* ---- the table ---- */

const bt_flag_t bt_flags[] = {
    /* fleet */
    {"prefill", "URL [PORT|none]", BT_GROUP_WORKERS, true,
     ACTION(BT_ARITY_ONE_AND_PORT, bt_flag_apply_prefill),
     "a prefill worker; PORT is SGLang's bootstrap port or NIXL's side channel; may be repeated"},
    {"decode", "URL", BT_GROUP_WORKERS, true, ACTION(BT_ARITY_ONE, bt_flag_apply_decode),
     "a decode worker; may be repeated"},
    {"encode", "URL", BT_GROUP_WORKERS, true, ACTION(BT_ARITY_ONE, bt_flag_apply_encode),
     "a vLLM encode worker: images, audio and video of chats and /v1/responses go there before "
     "prefill (/v1/messages with images is refused: vLLM has no ec_transfer_params there). Prefill "
     "fetches their outputs (ECCPUConnector, ECExampleConnector; not ECMooncakeConnector, which "
     "pushes). May be repeated"},
    {"worker-urls", "URL...", BT_GROUP_WORKERS, true,
     ACTION(BT_ARITY_MANY, bt_flag_apply_worker_urls),
     "workers that do both; http://host:port@RANK pins a data-parallel rank"},
    {"workers-file", "FILE", BT_GROUP_WORKERS, false, SETTING(PATH(AT(workers_file))),
     "more workers, followed as the file changes: Lua that returns a list of tables as baton.lua's "
     "workers, each with its pool where there are several; a bad one changes nothing"},
    {"workers-dns", "KEY=VALUE,...", BT_GROUP_WORKERS, true,
     ACTION(BT_ARITY_ONE, bt_flag_apply_workers_dns),
     "workers behind a DNS name, looked up as its TTL says: name=HOST,port=PORT (each A or AAAA) "
     "or "
     "srv=_SERVICE._PROTO.HOST (each SRV target), and a worker's keys: role, connector, engine, "
     "...; pool=NAME, family=auto, ipv4 or ipv6; may be repeated; in the file: workers_dns = { { "
     "... } }"},
    {"dns-hold-secs", "S", BT_GROUP_WORKERS, true, SETTING(SECS(AT(dns.hold_ms), 0)),
     "a worker that DNS no longer names stays for so long while it passes its checks, then it "
     "drains (15); answers that name nobody, and errors, take none of these away"},
    {"dns-min-secs", "S", BT_GROUP_WORKERS, true, SETTING(SECS(AT(dns.min_ms), 0.1)),
     "a name is not looked up more often, whatever its TTL (1)"},
    {"dns-max-secs", "S", BT_GROUP_WORKERS, true, SETTING(SECS(AT(dns.max_ms), 0.1)),
     "nor more seldom (60); one that has no address, at least every 5 s"},
    {"dns-servers", "ADDR[:PORT],...", BT_GROUP_WORKERS, true, SETTING(TEXT(AT(dns_servers))),
     "who is asked (those of /etc/resolv.conf)"},
    {"workers-kubernetes", "KEY=VALUE,...", BT_GROUP_WORKERS, false,
     SETTING(TEXTS(AT(workers_kubernetes), AT(workers_kubernetes_count), BT_CONFIG_KUBERNETES_MAX)),
     "more workers: the pods of namespace=NS that selector=LABELS chooses, followed as they come, "
     "get ready and go; in a cluster by its service account, else api=URL, token-file=, ca-file=; "
     "pool=, port= and a worker's keys (role=decode) are for pods whose annotations baton/KEY do "
     "not say; may be repeated"},
    {"pd-disaggregation", NULL, BT_GROUP_WORKERS, true, ACTION(BT_ARITY_NONE, bt_flag_apply_pd),
     "prefill and decode workers are SGLang (connector sglang unless one is named)"},
    {"vllm-pd-disaggregation", NULL, BT_GROUP_WORKERS, true,
     ACTION(BT_ARITY_NONE, bt_flag_apply_vllm_pd),
     "prefill and decode workers are vLLM (connector nixl unless one is named)"},
    {"connector", "NAME", BT_GROUP_WORKERS, true, POOL(TEXT(POOL_AT(connector))),
     "how the engines move KV: sglang, nixl, nixl_push, shared_cache, baton, p2p_nccl, moriio, or "
     "the engine's class name in any case; also --kv-connector"},
    {"engine", "NAME", BT_GROUP_WORKERS, true, POOL(WORD(POOL_AT(engine), bt_engine_words)),
     "sglang, vllm, vllm_ascend, mindie or trtllm; said by the connector where it is one engine's"},
    {"bootstrap-port", "PORT", BT_GROUP_WORKERS, true, SETTING(PORT(AT(bootstrap_port))),
     "of prefill workers that name none (SGLang's own default is 8998)"},
    {"lease-ms", "MS", BT_GROUP_WORKERS, true, POOL(U64(POOL_AT(lease_ms), 1000, 86400000)),
     "how long prefill keeps KV for decode (30000; 480000 for vLLM-Ascend and vLLM before 0.22)"},

    /* listeners */
    {"host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(host))),
     "clients are served here (127.0.0.1); a socket that systemd passes with "
     "FileDescriptorName=client counts instead, admin for --admin-host"},
    {"port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(port), 0, 65535)),
     "(30000; 0 = any free one)"},
    {"http2", NULL, BT_GROUP_LISTEN, false, SETTING(BOOL(AT(server.has_http2))),
     "clients may speak HTTP/2 on that port: by ALPN, or in the clear with prior knowledge (on)"},
    {"admin-host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(admin_host))),
     "admin API and /metrics (127.0.0.1); also --prometheus-host"},
    {"admin-port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(admin_port), 0, 65535)),
     "(29000; 0 = any free one); also --prometheus-port"},
    {"transfer-host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(transfer_host))),
     "transfer agents of BatonConnector's workers come here (127.0.0.1)"},
    {"transfer-port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(transfer_port), 0, 65535)),
     "(none: no worker with BatonConnector; 0 = any free one)"},
    {"registry-host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(registry_host))),
     "SGLang's bootstrap routes are served here (127.0.0.1)"},
    {"registry-port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(registry_port), 0, 65535)),
     "(none: not served; 0 = any free one)"},
    {"metaserver-host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(metaserver_host))),
     "decodes of MooncakeLayerwiseConnector call for their prefill here (127.0.0.1)"},
    {"metaserver-port", "PORT", BT_GROUP_LISTEN, false,
     SETTING(UINT(AT(metaserver_port), 0, 65535)), "(none: no such worker; 0 = any free one)"},
    {"metaserver-advertise", "HOST[:PORT]", BT_GROUP_LISTEN, false,
     SETTING(TEXT(AT(metaserver_advertise))),
     "what decodes are told to call (--metaserver-host and the port)"},
    {"registration-host", "ADDR", BT_GROUP_LISTEN, false, SETTING(TEXT(AT(registration_host))),
     "engines register here by ZeroMQ (127.0.0.1)"},
    {"p2p-nccl-port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(p2p_nccl_port), 0, 65535)),
     "those with P2pNcclConnector, whose proxy_port it is (none: not served; vLLM's example has "
     "30001)"},
    {"moriio-port", "PORT", BT_GROUP_LISTEN, false, SETTING(UINT(AT(moriio_port), 0, 65535)),
     "those with MoRIIOConnector, whose proxy_ping_port it is (none: not served; vLLM's own "
     "default is 36367)"},
    {"proxy-path", "PREFIX", BT_GROUP_LISTEN, false,
     SETTING(TEXTS(AT(proxy_paths), AT(proxy_path_count), BT_CONFIG_PROXY_PATHS_MAX)),
     "one more path that goes through to a worker as it is; may be repeated"},
    {"request-id-headers", "NAME...", BT_GROUP_LISTEN, false,
     ACTION(BT_ARITY_MANY, bt_flag_apply_request_id_headers), "x-request-id, the one that is read"},

    /* decisions */
    {"policy", "NAME|FILE", BT_GROUP_DECIDE, true, POOL(NAME(POOL_AT(spec.policy))),
     "least_load (default), power_of_two, round_robin, random, or a Lua file of yours"},
    {"prefill-policy", "NAME|FILE", BT_GROUP_DECIDE, true, POOL(NAME(POOL_AT(spec.prefill_policy))),
     "chooses prefill workers instead of --policy; its admit is asked as well"},
    {"decode-policy", "NAME|FILE", BT_GROUP_DECIDE, true, POOL(NAME(POOL_AT(spec.decode_policy))),
     "chooses decode workers instead of --policy; its admit is asked as well"},
    {"policy-param", "NAME=VALUE", BT_GROUP_DECIDE, true,
     ACTION(BT_ARITY_ONE, bt_flag_apply_policy_param),
     "one parameter of --policy (baton policy params lists them); may be repeated; in the file: "
     "params = { ... }, of a pool or of all; also prefill_params, decode_params"},
    {"rules-file", "FILE", BT_GROUP_DECIDE, true, SETTING(PATH(AT(rules_file))),
     "which pool, policy and parameters a request gets, by what it is; followed as it changes"},
    {"policy-http-host", "HOST:PORT", BT_GROUP_DECIDE, false,
     SETTING(TEXTS(AT(policy_http_hosts), AT(policy_http_host_count), BT_CONFIG_HTTP_HOSTS_MAX)),
     "policies may call it (baton.http); may be repeated; in the file: policy_http_hosts = { ... "
     "}"},
    {"policy-on-error", "WHAT", BT_GROUP_DECIDE, false,
     SETTING(WORD(AT(dispatch.policy_on_error), bt_on_error_words)),
     "where a plan fails (an error, too slow, workers that cannot serve): default, the least load "
     "decides; end, the request ends (503, or what it failed of); first, default for a request's "
     "first plan and end for its later ones (first)"},
    {"policy-wait-ms", "MS", BT_GROUP_DECIDE, false,
     SETTING(U64(AT(dispatch.policy_wait_ms), 1, 600000)),
     "what each of admit, route and tick may wait for calls and sleeps, in all (1000)"},
    {"policy-probation-secs", "S", BT_GROUP_DECIDE, false,
     SETTING(SECS(AT(policy_probation_ms), 0.1)),
     "a policy that was reloaded is on probation for so long (10)"},
    {"policy-rollback-errors", "N", BT_GROUP_DECIDE, false,
     SETTING(UINT(AT(policy_rollback_errors), 1, 1000000)),
     "so many errors on probation put back what served before it (10)"},
    {"policy-dir", "DIR", BT_GROUP_DECIDE, false, SETTING(PATH(AT(policy_dir))),
     "more policies, by file name"},
    {"dev", NULL, BT_GROUP_DECIDE, false, ACTION(BT_ARITY_NONE, bt_flag_apply_dev),
     "for authors of policies, on loopback only: --policy-dir . --log-level debug --log-format "
     "text --access-log --debug-headers --record-sample 1, where no other flag says otherwise; "
     "errors are shown with the source line"},
    {"dialect-dir", "DIR", BT_GROUP_DECIDE, false, SETTING(PATH(AT(dialect_dir))),
     "more dialects, with the connectors that they serve; one of the same name replaces a shipped "
     "one"},
    {"refuse-recompute", NULL, BT_GROUP_DECIDE, true, POOL(BOOL(POOL_AT(spec.refuse_recompute))),
     "a prefill reply without hand-off parameters is an error, not a reason to let decode compute "
     "the prompt"},
    {"max-fanout", "N", BT_GROUP_DECIDE, true, POOL(UINT(POOL_AT(spec.max_fanout), 1, 4096)),
     "children that a list of prompts or n > 1 may be split into (64)"},
    {"max-attempts", "N", BT_GROUP_DECIDE, true, POOL(UINT(POOL_AT(spec.max_attempts), 1, 16)),
     "attempts a request, the first included (3); also --retry-max-retries"},
    {"replay-recomputed", NULL, BT_GROUP_DECIDE, true, POOL(BOOL(POOL_AT(spec.replay_recomputed))),
     "completions that a vLLM-Ascend decode gives up (stop_reason recomputed) go on elsewhere by "
     "their token ids (true); --no-replay-recomputed: clients get what the engine says"},
    {"replay-lost-decode", NULL, BT_GROUP_DECIDE, true,
     POOL(BOOL(POOL_AT(spec.replay_lost_decode))),
     "completions whose vLLM decode is lost in the middle go on elsewhere by their token ids "
     "(false): the same text where sampling is greedy, else one that could have come"},
    {"max-replays", "N", BT_GROUP_DECIDE, true, POOL(UINT(POOL_AT(spec.max_replays), 1, 16)),
     "times that one answer may go on so (3)"},
    {"relay-first-token", "WHAT", BT_GROUP_DECIDE, true,
     POOL(WORD(POOL_AT(spec.relay_first_token), bt_relay_words)),
     "send a stream's first token with prefill's reply, while decode still loads the KV: off, "
     "completions or all (off); all is chats too, and wants servers without reasoning parser. Only "
     "for TensorRT-LLM, whose decode goes on from that token: other connectors draw it anew"},
    {"warm-pairs", NULL, BT_GROUP_DECIDE, false, SETTING(BOOL(AT(dispatch.warm_pairs))),
     "warm every (prefill, decode) pair by a request of the gateway's own, again after a restart "
     "(false): a pair's first transfer may take a minute"},
    {"retry-budget-percent", "N", BT_GROUP_DECIDE, true,
     POOL(UINT(POOL_AT(spec.retry_budget_percent), 0, 1000)),
     "retries a pool may have, in percent of its requests of the last 10 s, and at least 10: with "
     "20, workers that are slow or lost do not get their load twice (0 = no limit)"},
    {"engine-request-limit", "N", BT_GROUP_DECIDE, true,
     POOL(UINT(POOL_AT(spec.engine_request_limit), 0, 1000000)),
     "legs that a worker of the pool may have at once from this gateway; one that has them all is "
     "no candidate, and with none left the answer is 503. A decode's counts from the plan on, each "
     "child of a list is one, --warm-pairs' own are none (0 = no limit)"},
    {"disable-retries", NULL, BT_GROUP_DECIDE, false, SETTING(BOOL(AT(dispatch.disable_retries))),
     "one attempt a request"},

    {"ttft-target-ms", "MS", BT_GROUP_DECIDE, true,
     POOL(U64(POOL_AT(spec.ttft_target_ms), 0, 86400000.0)),
     "a stream whose first byte comes within it is good: baton_slo_good_requests_total (0 = no "
     "target)"},
    {"itl-target-ms", "MS", BT_GROUP_DECIDE, true,
     POOL(U64(POOL_AT(spec.itl_target_ms), 0, 86400000.0)),
     "and whose events are so far apart at most, on average (0 = no target)"},

    /* deadlines */
    {"request-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.total_ms), 0.001)), "a whole request (1800)"},
    {"connect-timeout-ms", "MS", BT_GROUP_DEADLINE, true,
     POOL(U64(POOL_AT(spec.deadlines.connect_ms), 1, 600000)), "connecting to a worker (3000)"},
    {"prefill-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.prefill_reply_ms), 0.001)),
     "prefill's reply in a hand-off (300)"},
    {"first-event-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.first_event_ms), 0.001)), "first event of a stream (300)"},
    {"answer-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.answer_ms), 0)),
     "first byte of an answer that is not streamed (0 = no limit of its own)"},
    {"stall-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.stall_ms), 0.001)), "silence within an answer (60)"},
    {"callback-timeout-secs", "S", BT_GROUP_DEADLINE, true,
     POOL(SECS(POOL_AT(spec.deadlines.callback_ms), 0.001)),
     "from asking a decode of MooncakeLayerwiseConnector to its call for prefill (60)"},
    {"tokenize-timeout-ms", "MS", BT_GROUP_DEADLINE, true,
     POOL(U64(POOL_AT(spec.deadlines.tokenize_ms), 0, 60000)),
     "ask an engine for the token ids of a prompt that came as text, so that a policy's "
     "prefix_match "
     "knows what workers with kv_events hold of it, and plan without them after so long (0 = "
     "engines "
     "are not asked)"},
    {"room-start-ms", "MS", BT_GROUP_DEADLINE, true,
     POOL(U64(POOL_AT(spec.deadlines.room_start_ms), 1, 86400000)),
     "from opening a room of BatonConnector to its first byte (300000)"},
    {"room-stall-ms", "MS", BT_GROUP_DEADLINE, true,
     POOL(U64(POOL_AT(spec.deadlines.room_stall_ms), 2000, 86400000)),
     "no byte of it for so long, of which agents tell once a second (60000)"},
    {"room-repair-ms", "MS", BT_GROUP_DEADLINE, true,
     POOL(U64(POOL_AT(spec.deadlines.room_repair_ms), 1, 86400000)),
     "its prefill died before the first byte: how long decode waits for another one (5000)"},
    {"stream-keepalive-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(dispatch.stream_keepalive_ms), 0)),
     "no first event for so long: 200 and an SSE comment (0 = off)"},
    {"worker-idle-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(dispatch.upstream.idle_timeout_ms), 0.001)),
     "idle connections to workers are closed (4; engines close at 5)"},
    {"worker-idle-max", "N", BT_GROUP_DEADLINE, false,
     SETTING(UINT(AT(dispatch.upstream.idle_max), 0, 65536)),
     "idle connections kept, per worker and loop (256)"},
    {"client-head-timeout-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(server.head_timeout_ms), 0.001)), "a client's request head (10)"},
    {"client-body-stall-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(server.body_stall_ms), 0.001)), "silence within a client's body (30)"},
    {"client-body-timeout-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(server.body_timeout_ms), 0.001)), "a client's whole body (600)"},
    {"client-body-min-rate", "BYTES", BT_GROUP_DEADLINE, false,
     SETTING(U64(AT(server.body_min_rate), 0, 1e12)),
     "bytes a second that a client's body must bring on average, after 10 s (1024; 0 = any)"},
    {"client-idle-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(server.idle_timeout_ms), 0.001)), "a client's idle connection (75)"},
    {"client-write-stall-secs", "S", BT_GROUP_DEADLINE, false,
     SETTING(SECS(AT(server.write_stall_ms), 0.001)),
     "a client that reads nothing of its answer (60)"},

    /* health */
    {"health-check-endpoint", "PATH", BT_GROUP_HEALTH, false, SETTING(TEXT(AT(health_path))),
     "(/health)"},
    {"health-check-interval-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.health.interval_ms), 0.01)), "between two checks of a worker (5)"},
    {"health-check-timeout-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.timeout_ms), 0.01)), "for one check (2)"},
    {"health-failure-threshold", "N", BT_GROUP_HEALTH, false,
     SETTING(UINT(AT(monitor.health.failures), 1, 1000)), "failed checks in a row: down (3)"},
    {"health-success-threshold", "N", BT_GROUP_HEALTH, false,
     SETTING(UINT(AT(monitor.health.successes), 1, 1000)),
     "good checks in a row: up (2; the first one ever counts at once)"},
    {"disable-health-check", NULL, BT_GROUP_HEALTH, false, SETTING(BOOL(AT(monitor.disabled))),
     "every worker counts as up; only failed requests tell"},
    {"worker-startup-check-interval", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.startup_interval_ms), 0.01)),
     "between two checks of a worker that is not up yet (1)"},
    {"worker-startup-timeout-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(startup_timeout_ms), 0)),
     "no usable workers for so long after the start: exit 1 (0 = wait on)"},
    {"load-interval-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.load_interval_ms), 0)),
     "between two looks at an engine's load (1; 0 = off)"},
    {"load-timeout-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.load_timeout_ms), 0.01)), "for one look (1)"},
    {"resolve-interval-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(monitor.resolve_interval_ms), 0.1)),
     "host names of workers are looked up again (30)"},
    {"breaker-failures", "N", BT_GROUP_HEALTH, false,
     SETTING(UINT(AT(breaker.failures), 1, BT_BREAKER_RING)),
     "failures of its own that open a worker's breaker (5); also --cb-failure-threshold"},
    {"breaker-window-secs", "S", BT_GROUP_HEALTH, false, SETTING(SECS(AT(breaker.window_ms), 0.01)),
     "in which they must fall (10); also --cb-window-duration-secs"},
    {"breaker-open-secs", "S", BT_GROUP_HEALTH, false, SETTING(SECS(AT(breaker.open_ms), 0.01)),
     "first time out, doubling (10); also --cb-timeout-duration-secs"},
    {"breaker-open-max-secs", "S", BT_GROUP_HEALTH, false,
     SETTING(SECS(AT(breaker.open_max_ms), 0.01)), "longest time out (120)"},
    {"breaker-max-open-percent", "N", BT_GROUP_HEALTH, false,
     SETTING(UINT(AT(breaker.max_open_percent), 1, 100)),
     "of a role's usable workers in a pool, the most that breakers hold out, but at least one "
     "(50)"},
    {"disable-circuit-breaker", NULL, BT_GROUP_HEALTH, false, SETTING(BOOL(AT(breaker.disabled))),
     "failures never take a worker out, nor a pair whose transfers keep failing"},
    {"advice-window-secs", "S", BT_GROUP_HEALTH, false, SETTING(SECS(AT(advisor.window_ms), 1)),
     "over which GET /advice judges what prefill and decode have to do; older traffic fades (60)"},
    {"advice-tpot-ms", "MS", BT_GROUP_HEALTH, false, SETTING(U64(AT(advisor.tpot_ms), 0, 600000)),
     "time per output token at which a decode worker counts as fully used there (0: its KV cache, "
     "its queue and --engine-request-limit say)"},
    {"role-switch-auto", NULL, BT_GROUP_HEALTH, false, SETTING(BOOL(AT(role_switch_auto))),
     "switch the role of one worker at a time (as POST /workers/NAME/role does) while the advice "
     "is the same for three windows in a row (false): only where each engine can be both"},
    {"role-check-secs", "S", BT_GROUP_HEALTH, false, SETTING(SECS(AT(role_check_ms), 0)),
     "ask each SGLang engine so often which role it has (GET /server_info), and when it comes up "
     "(10; 0: never): a worker whose engine has the other role is switched to it"},

    /* shared state */
    {"redis-url", "URL", BT_GROUP_FLEET, false, SETTING(TEXT(AT(redis_url))),
     "gateways with the same one act as one: redis://HOST:PORT[/DB], rediss://... (TLS), "
     "unix:///PATH[?db=N], sentinel://HOST:PORT,HOST:PORT/MASTER[/DB] or "
     "redis-cluster://HOST:PORT,HOST:PORT (rediss-cluster://...: TLS); Redis or Valkey"},
    {"redis-username", "NAME", BT_GROUP_FLEET, false, SETTING(TEXT(AT(redis_username))),
     "of an ACL"},
    {"redis-password-file", "FILE", BT_GROUP_FLEET, false, SETTING(PATH(AT(redis_password_file))),
     "its first line; or the environment's BATON_REDIS_PASSWORD"},
    {"redis-tls-ca", "FILE", BT_GROUP_FLEET, false, SETTING(PATH(AT(redis_tls_ca))),
     "who may sign the server's certificate (the system's); followed as the file changes, as are "
     "the next two"},
    {"redis-tls-cert", "FILE", BT_GROUP_FLEET, false, SETTING(PATH(AT(redis_tls_cert))),
     "our own certificate, where the server asks for one"},
    {"redis-tls-key", "FILE", BT_GROUP_FLEET, false, SETTING(PATH(AT(redis_tls_key))),
     "and its key"},
    {"fleet-name", "NAME", BT_GROUP_FLEET, false, SETTING(TEXT(AT(fleet_name))),
     "fleets of one Redis are told apart by it (fleet)"},
    {"replica-name", "NAME", BT_GROUP_FLEET, false, SETTING(TEXT(AT(replica_name))),
     "this gateway's, unique in its fleet (host name:admin port)"},
    {"fleet-heartbeat-ms", "MS", BT_GROUP_FLEET, false,
     SETTING(U64(AT(fleet_heartbeat_ms), 10, 60000)), "loads and prefixes are told so often (100)"},
    {"fleet-expiry-ms", "MS", BT_GROUP_FLEET, false,
     SETTING(U64(AT(fleet_expiry_ms), 100, 3600000)),
     "a gateway that is silent for so long is gone, and its load with it (2000)"},

    /* limits */
    {"kv-index-blocks", "N", BT_GROUP_LIMIT, false,
     SETTING(U64(AT(kv_index_blocks), 1024, 4294967296.0)),
     "blocks of kv_events that are kept, counted for each worker (4194304; some 60 bytes each)"},
    {"max-payload-size", "BYTES", BT_GROUP_LIMIT, false,
     SETTING(U64(AT(server.max_body_bytes), 1, 1099511627776.0)),
     "a request's body, else 413 (67108864, 64 MiB; at most --max-buffered-bytes)"},
    {"max-buffered-bytes", "BYTES", BT_GROUP_LIMIT, false,
     SETTING(U64(AT(server.max_buffered_bytes), 1048576, 1099511627776.0)),
     "all requests and answers in memory; then the client that holds most in unfinished requests "
     "loses the largest of them, else new ones get 503 (1073741824)"},
    {"max-concurrent-requests", "N", BT_GROUP_LIMIT, false,
     SETTING(UINT(AT(dispatch.max_concurrent), -1, 4294967295.0)),
     "running at once, else 503 with Retry-After (0 or -1 = no limit); with --queue-size in each "
     "pool"},
    {"queue-size", "N", BT_GROUP_LIMIT, false, SETTING(UINT(AT(dispatch.queue_size), 0, 1000000)),
     "above --max-concurrent-requests, and above the legs that --engine-request-limit leaves, so "
     "many wait before each pool, tenants by their shares; others get 429 (0 = nobody waits, 429; "
     "none said: 503 as above)"},
    {"queue-timeout-secs", "S", BT_GROUP_LIMIT, false,
     SETTING(SECS(AT(dispatch.queue_timeout_ms), 0.001)),
     "and so long at most, then 408; 429 at once where the predicted wait is longer (60)"},
    {"queue-max-bytes", "BYTES", BT_GROUP_LIMIT, false,
     SETTING(U64(AT(dispatch.queue_max_bytes), 0, 1099511627776.0)),
     "bodies of those that wait, of each pool (268435456, 256 MiB; 0 = no limit)"},
    {"queue-weights", "TENANT=N,...", BT_GROUP_LIMIT, false, SETTING(LABELS(AT(queue_weights))),
     "a tenant's share of tokens beside others that wait, 1 to 1000 (1); anonymous is one too; in "
     "the "
     "file: queue_weights = { gold = 4 }"},
    {"queue-aging-secs", "S", BT_GROUP_LIMIT, false, SETTING(SECS(AT(dispatch.queue_aging_ms), 0)),
     "a class of the policy's enqueue whose oldest has waited so long gets a token of five from "
     "those above (30; 0 = never)"},
    {"max-connections", "N", BT_GROUP_LIMIT, false,
     SETTING(UINT(AT(max_connections), 0, 4294967295.0)),
     "client connections at once; above it the one that is idle longest is closed, else 503 with "
     "Retry-After (0 = a third of what the limit of open files leaves: each may need two to "
     "workers)"},
    {"max-connections-per-peer", "N", BT_GROUP_LIMIT, false,
     SETTING(UINT(AT(max_connections_per_peer), 0, 4294967295.0)),
     "the same for each client address, a /64 of IPv6 being one (0 = no limit; --trusted-proxies "
     "have "
     "none, another proxy's clients are one)"},

    /* security */
    {"api-key", "KEY", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(api_key))),
     "sent to workers as Authorization: Bearer KEY (else the client's header goes through)"},
    {"client-api-keys-file", "FILE", BT_GROUP_SECURITY, false, SETTING(PATH(AT(client_keys_file))),
     "clients must send one of these keys, else 401; baton key new writes a line: the key's hash, "
     "tenant, scopes and expiry; a plain KEY [tenant=NAME] [set-tenant] does, too. x-tenant-id "
     "counts only from keys with set-tenant. Followed as it changes"},
    {"client-api-keys-in-store", NULL, BT_GROUP_SECURITY, false,
     SETTING(BOOL(AT(client_keys_in_store))),
     "the same, but the keys are those that baton key new --store URL has put into the fleet's "
     "Redis (--redis-url): all its gateways follow them. Those known last count on while it is "
     "away"},
    {"anonymous-scopes", "NAMES", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(anonymous_scopes))),
     "who shows no key is let in beside those who do, as tenant anonymous, for these of inference, "
     "models and cancel (none: refused); a wrong key is refused all the same"},
    {"anonymous-models", "PATTERNS", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(anonymous_models))),
     "and with these models only, as llama-*,m2 (all)"},
    {"jwt-jwks-file", "FILE", BT_GROUP_SECURITY, false, SETTING(PATH(AT(jwt_jwks_file))),
     "public keys of the issuer whose tokens (JWT: RS256, ES256, EdDSA) clients may send instead "
     "of "
     "a key; followed as it changes"},
    {"jwt-jwks-url", "URL", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(jwt_jwks_url))),
     "the same, fetched; tokens are 503 until it has answered once, and its last answer counts "
     "while it does not"},
    {"jwt-jwks-ca-file", "FILE", BT_GROUP_SECURITY, false, SETTING(PATH(AT(jwt_jwks_ca_file))),
     "who may sign that server's certificate (the system's)"},
    {"jwt-jwks-refresh-secs", "S", BT_GROUP_SECURITY, false, SETTING(SECS(AT(jwt_jwks_ttl_ms), 1)),
     "it is fetched again so often, and sooner when a token names a key that it lacks (300)"},
    {"jwt-issuer", "TEXT", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(jwt_issuer))),
     "what a token's iss must be"},
    {"jwt-audience", "TEXT", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(jwt_audience))),
     "what a token's aud must be or hold"},
    {"jwt-tenant-claim", "NAME", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(jwt_tenant_claim))),
     "the claim that names the tenant (tenant); without it the tenant is made of sub"},
    {"jwt-scope-claim", "NAME", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(jwt_scope_claim))),
     "the claim with scopes, a list or words (scope); without it a token may do what clients do"},
    {"jwt-claim", "NAME", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(jwt_claims), AT(jwt_claim_count), BT_CONFIG_JWT_CLAIMS_MAX)),
     "a claim that policies see as req.identity.claims; may be repeated"},
    {"jwt-clock-skew-secs", "S", BT_GROUP_SECURITY, false, SETTING(SECS(AT(jwt_skew_ms), 0)),
     "how far the issuer's clock may be off, for exp and nbf (60)"},
    {"admin-api-key", "KEY", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(admin_api_key))),
     "asked for on the admin port, beside keys of --client-api-keys-file with the scope admin-read "
     "or "
     "admin-write, and by /workers, /add_worker, /remove_worker and /list_workers "
     "on the client port; without it only /metrics and /health are served beyond loopback"},
    {"admin-allowed-host", "NAME", BT_GROUP_SECURITY, false,
     SETTING(
         TEXTS(AT(admin_allowed_hosts), AT(admin_allowed_host_count), BT_CONFIG_ADMIN_HOSTS_MAX)),
     "without --admin-api-key the admin port is served under addresses, localhost, --admin-host "
     "and this name; may be repeated"},
    {"client-allowed-host", "NAME", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(client_allowed_hosts), AT(client_allowed_host_count),
                   BT_CONFIG_CLIENT_HOSTS_MAX)),
     "clients are served under this name, addresses, localhost and --host, else 421 (any name); "
     "may be repeated"},
    {"cors-origin", "ORIGIN", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(cors_origins), AT(cors_origin_count), BT_CONFIG_CORS_ORIGINS_MAX)),
     "pages of this origin may call the client port from a browser, as https://app.example; or * "
     "for all (none); may be repeated"},
    {"cors-credentials", NULL, BT_GROUP_SECURITY, false,
     SETTING(BOOL(AT(edge.cors.has_credentials))),
     "with cookies and client certificates, which a proxy before this gateway may ask for (off); a "
     "key in Authorization needs it not"},
    {"trusted-proxies", "ADDR[/BITS]", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(trusted_proxies), AT(trusted_proxy_count), BT_EDGE_PROXIES_MAX)),
     "proxies before this gateway, which are believed whom they speak for; from others "
     "X-Forwarded-*, Forwarded and X-Real-IP are taken out (nobody); may be repeated"},
    {"client-address-header", "NAME", BT_GROUP_SECURITY, false,
     SETTING(WORD(AT(edge.header), bt_edge_headers)),
     "the one header in which these proxies say it, whatever they were sent: x-forwarded-for, "
     "forwarded or x-real-ip (x-forwarded-for)"},
    {"proxy-protocol", NULL, BT_GROUP_SECURITY, false, SETTING(BOOL(AT(edge.proxy_protocol))),
     "connections of --trusted-proxies begin with a PROXY protocol header, version 2, that says "
     "whose they are (off); others' do not"},
    {"client-worker-api", NULL, BT_GROUP_SECURITY, false,
     SETTING(BOOL(AT(dispatch.client_worker_api))),
     "/workers, /add_worker, /remove_worker and /list_workers on a loopback client port without a "
     "key (off)"},
    {"transfer-token", "TOKEN", BT_GROUP_SECURITY, true, SETTING(TEXT(AT(transfer_token))),
     "transfer agents and this gateway prove to each other that they have it, and seal what they "
     "say; needed to listen for them beyond loopback"},
    {"transfer-token-file", "FILE", BT_GROUP_SECURITY, true, SETTING(PATH(AT(transfer_token_file))),
     "the same from a file, read again by SIGHUP: a token a line, each is taken, so that it can be "
     "changed without a gap"},
    {"registry-token", "TOKEN", BT_GROUP_SECURITY, false, SETTING(TEXT(AT(registry_token))),
     "asked of whoever uses the registry, as Authorization: Bearer TOKEN (SGLang's own ranks send "
     "none); without it this host and the workers' hosts are served"},
    {"registry-allow", "ADDR[/BITS]", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(registry_allow), AT(registry_allow_count), BT_CONFIG_REGISTRY_ALLOW_MAX)),
     "the registry also serves these hosts, as the other nodes of a prefill; may be repeated"},
    {"metaserver-allow", "ADDR[/BITS]", BT_GROUP_SECURITY, false,
     SETTING(
         TEXTS(AT(metaserver_allow), AT(metaserver_allow_count), BT_CONFIG_METASERVER_ALLOW_MAX)),
     "the metaserver also takes calls from these hosts, beside this one and the workers'; may be "
     "repeated"},
    {"registration-allow", "ADDR[/BITS]", BT_GROUP_SECURITY, false,
     SETTING(TEXTS(AT(registration_allow), AT(registration_allow_count),
                   BT_CONFIG_REGISTRATION_ALLOW_MAX)),
     "engines of these hosts may register, beside this host and the workers' hosts; may be "
     "repeated"},
    {"registration-new-workers", NULL, BT_GROUP_SECURITY, false,
     SETTING(BOOL(AT(registration_new_workers))),
     "an engine that registers and is no worker yet becomes one, of the first pool, until it is "
     "silent for a minute (off: it is refused)"},
    {"registration-scheme", "SCHEME", BT_GROUP_SECURITY, false,
     SETTING(WORD(AT(registration_scheme), bt_url_schemes)),
     "of these new workers, whose messages tell none: http (default) or https, with a certificate "
     "for the address that they register"},
    {"debug-headers", NULL, BT_GROUP_SECURITY, false, SETTING(BOOL(AT(dispatch.debug_headers))),
     "x-baton-* headers in answers: names of workers, attempts, times (on)"},

    /* TLS */
    {"tls-cert", "FILE", BT_GROUP_TLS, false,
     SETTING(PATHS(AT(tls.certs), AT(tls.cert_count), BT_TLS_PAIRS_MAX)),
     "the client port speaks TLS with this certificate (PEM, its chain behind it); followed as the "
     "file changes; may be repeated, each with a --tls-key: clients get the first that is for the "
     "name they ask for, else the first; also --tls-cert-path, --server-cert-path"},
    {"tls-key", "FILE", BT_GROUP_TLS, false,
     SETTING(PATHS(AT(tls.keys), AT(tls.key_count), BT_TLS_PAIRS_MAX)),
     "its private key (PEM, without a passphrase); also --tls-key-path, --server-key-path"},
    {"tls-min-version", "VERSION", BT_GROUP_TLS, false,
     SETTING(WORD(AT(tls_min_version), bt_tls_versions)),
     "what clients have to speak at least: 1.2 (default) or 1.3; of the admin port, too"},
    {"tls-ciphers", "LIST", BT_GROUP_TLS, false, SETTING(TEXT(AT(tls_ciphers))),
     "of TLS 1.2, as OpenSSL writes them (Mozilla's intermediate list)"},
    {"tls-handshake-timeout-secs", "S", BT_GROUP_TLS, false,
     SETTING(SECS(AT(server.tls_handshake_ms), 0.001)), "a client's whole handshake (10)"},
    {"tls-client-ca", "FILE", BT_GROUP_TLS, false, SETTING(PATH(AT(tls.client_ca))),
     "clients must show a certificate of these authorities (PEM); followed as the file changes"},
    {"tls-client-allow", "NAME", BT_GROUP_TLS, false,
     SETTING(TEXTS(AT(tls.client_allow), AT(tls.client_allow_count), BT_CONFIG_TLS_ALLOW_MAX)),
     "and of those, only with this name: CN:..., O:..., DNS:..., URI:..., IP:..., email:... or "
     "subject:CN=...,O=...; * at its end stands for any rest; may be repeated"},
    {"tls-client-auth", "WHAT", BT_GROUP_TLS, false,
     SETTING(WORD(AT(tls_client_auth), bt_tls_client_auth)),
     "required (default); optional: who shows no certificate is served too, a wrong one is "
     "refused"},
    {"tls-client-tenant", "WHAT", BT_GROUP_TLS, false,
     SETTING(WORD(AT(tls_client_tenant), bt_tls_client_tenants)),
     "the tenant of who shows a certificate and no key: name (default: its URI, else its CN, else "
     "another name), organization; none: a certificate is no identity, keys are asked for too"},
    {"admin-tls-cert", "FILE", BT_GROUP_TLS, false,
     SETTING(PATHS(AT(admin_tls.certs), AT(admin_tls.cert_count), BT_TLS_PAIRS_MAX)),
     "the same for the admin port"},
    {"admin-tls-key", "FILE", BT_GROUP_TLS, false,
     SETTING(PATHS(AT(admin_tls.keys), AT(admin_tls.key_count), BT_TLS_PAIRS_MAX)),
     "its private key"},
    {"admin-tls-client-ca", "FILE", BT_GROUP_TLS, false, SETTING(PATH(AT(admin_tls.client_ca))),
     "who uses the admin port must show a certificate of these authorities"},
    {"admin-tls-client-allow", "NAME", BT_GROUP_TLS, false,
     SETTING(TEXTS(AT(admin_tls.client_allow), AT(admin_tls.client_allow_count),
                   BT_CONFIG_TLS_ALLOW_MAX)),
     "as --tls-client-allow"},
    {"admin-tls-client-scope", "SCOPE", BT_GROUP_TLS, false,
     SETTING(WORD(AT(admin_tls_client_scope), bt_tls_admin_scopes)),
     "what such a certificate may without a key: none (default), admin-read, admin-write"},

    {"worker-tls-ca", "FILE", BT_GROUP_TLS, false, SETTING(PATH(AT(worker_tls_ca))),
     "certificates of workers with https:// URLs must come from these authorities (the system's); "
     "followed as the file changes; of one worker: tls_ca, tls_cert, tls_key, tls_name in the "
     "file; also "
     "--ca-cert-path"},
    {"worker-tls-cert", "FILE", BT_GROUP_TLS, false, SETTING(PATH(AT(worker_tls_cert))),
     "shown to workers that ask for a certificate; also --client-cert-path"},
    {"worker-tls-key", "FILE", BT_GROUP_TLS, false, SETTING(PATH(AT(worker_tls_key))),
     "its private key; also --client-key-path"},

    /* logs */
    {"log-level", "LEVEL", BT_GROUP_LOG, true, SETTING(WORD(AT(log_level), bt_log_levels)),
     "error, warn, info (default) or debug"},
    {"log-format", "FORMAT", BT_GROUP_LOG, false, SETTING(WORD(AT(log_format), bt_log_formats)),
     "text (default) or json, on stderr or in --log-file"},
    {"log-file", "FILE", BT_GROUP_LOG, false, SETTING(PATH(AT(log_file))),
     "log and access log are appended to it (stderr); after a rename SIGUSR1 begins a new one"},
    {"access-log", NULL, BT_GROUP_LOG, false, SETTING(BOOL(AT(dispatch.access_log))),
     "one line a request (on); in JSON also client, tenant, pool and tokens: the prompt's, "
     "estimated, and the output's, as the worker says or by events of a stream"},
    {"audit-log", "FILE|stderr", BT_GROUP_LOG, false, SETTING(PATH(AT(audit_log))),
     "a line of JSON for each change by an operator: who, what, with which result, digests of the "
     "state before and after (none); after a rename SIGUSR1 or SIGHUP begins a new file"},
    {"record-file", "FILE", BT_GROUP_LOG, false, SETTING(PATH(AT(record_file))),
     "decision records of sampled requests, a line of JSON each: who could serve, who did, how "
     "long, who was blamed; no prompts; after a rename SIGUSR1 begins a new one"},
    {"record-sample", "F", BT_GROUP_LOG, false, SETTING(PPM(AT(record_sample_ppm))),
     "chance of a request to be sampled (0.01 with --record-file, else 0); /explain knows all "
     "recent requests, and the candidates of sampled ones"},
    {"record-max-bytes", "BYTES", BT_GROUP_LOG, false,
     SETTING(U64(AT(record.max_bytes), 4096, 1099511627776.0)),
     "the file becomes FILE.1 there, and a new one begins (268435456)"},
    {"record-header", "NAME", BT_GROUP_LOG, false,
     SETTING(TEXTS(AT(record_headers), AT(record_header_count), BT_CONFIG_RECORD_HEADERS_MAX)),
     "a request header that records keep, none else; may be repeated"},

    {"metrics-gen-ai", NULL, BT_GROUP_LOG, false, SETTING(BOOL(AT(metrics_gen_ai))),
     "/metrics also has the times of each model under the names of OpenTelemetry's GenAI "
     "conventions, gen_ai_server_request_duration_seconds, ... (off)"},

    {"trace-endpoint", "URL", BT_GROUP_LOG, false, SETTING(TEXT(AT(trace_endpoint))),
     "traces of requests go to this OpenTelemetry collector, http[s]://HOST:PORT (OTLP as JSON; "
     "without "
     "a path to /v1/traces), and every leg gets a traceparent (none)"},
    {"trace-sample", "F", BT_GROUP_LOG, false, SETTING(PPM(AT(trace_sample_ppm))),
     "chance of a request's trace to be kept (0.01) where the client's traceparent does not say "
     "it; failed, retried and slow ones always are"},
    {"trace-slow-ms", "MS", BT_GROUP_LOG, false, SETTING(U64(AT(trace_slow_ms), 0, 86400000.0)),
     "a request that has no byte of its answer for so long is slow (10000; 0 = none are)"},
    {"trace-service-name", "NAME", BT_GROUP_LOG, false, SETTING(TEXT(AT(trace_service_name))),
     "service.name of the traces (baton)"},
    {"trace-headers-file", "FILE", BT_GROUP_LOG, false, SETTING(PATH(AT(trace_headers_file))),
     "lines \"name: value\" that the collector is sent as headers, such as its key (none)"},
    {"trace-ca-file", "FILE", BT_GROUP_LOG, false, SETTING(PATH(AT(trace_ca_file))),
     "an https:// collector's certificate must come from these authorities (the system's)"},

    /* process */
    {"loops", "N", BT_GROUP_PROCESS, false, SETTING(UINT(AT(loops), 0, 1024)),
     "event threads (0 = as many as CPUs may be used: affinity mask and cgroup quota)"},
    {"drain-timeout-secs", "S", BT_GROUP_PROCESS, false, SETTING(SECS(AT(drain_ms), 0)),
     "after SIGTERM running requests get so long (180); also --shutdown-grace-period-secs"},
    {"ready-file", "FILE", BT_GROUP_PROCESS, false, SETTING(PATH(AT(ready_file))),
     "written once serving: {\"port\":..,\"admin_port\":..,\"pid\":..}, and transfer_port, "
     "registry_port, metaserver_port, p2p_nccl_port, moriio_port where there are"},
    {"crash-file", "FILE", BT_GROUP_PROCESS, false, SETTING(PATH(AT(crash_file))),
     "a crash appends to it what it writes to stderr: a backtrace, and the last unusual things of "
     "each loop, as GET /debug/flight shows them (none)"},
    {"kv-snapshot", "FILE", BT_GROUP_PROCESS, false, SETTING(PATH(AT(kv_snapshot))),
     "what workers with kv_events hold is kept in it at the end, before an upgrade (SIGUSR2) and "
     "now and then, and read at the start; believed where an engine with kv_events_replay goes on "
     "from there (none)"},
    {"kv-snapshot-secs", "S", BT_GROUP_PROCESS, false, SETTING(SECS(AT(kv_snapshot_ms), 0)),
     "it is written so often (300; 0 = only at the end and before an upgrade)"},
    {"core-dumps", NULL, BT_GROUP_PROCESS, false, SETTING(BOOL(AT(core_dumps))),
     "a crash may leave a core file, as far as the limits of the process allow (off: keys and "
     "prompts would be in it)"},
    {"sandbox", "off|auto|strict", BT_GROUP_PROCESS, false,
     SETTING(WORD(AT(sandbox), bt_sandbox_modes)),
     "auto: the process reaches only files of the system and of directories that its first "
     "configuration names, and makes no calls for other processes, mounts, modules, where the "
     "kernel has Landlock; strict: or does not start (off); another directory needs a restart"},
};
const unsigned bt_flag_count = sizeof bt_flags / sizeof bt_flags[0];

const bt_flag_t *bt_flag_find(bt_str_t name)
{
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (bt_str_eq(name, bt_str(bt_flags[i].name)))
            return &bt_flags[i];
    return NULL;
}

bool bt_flag_is_switch(const bt_flag_t *flag)
{
    return flag->kind == BT_FLAG_ACTION ? flag->arity == BT_ARITY_NONE
                                        : flag->option.kind == BT_OPTION_BOOL;
}

const char *bt_flag_group_title(enum bt_flag_group group)
{
    static const char *const titles[BT_GROUP_COUNT] = {
        [BT_GROUP_WORKERS] = "Workers",
        [BT_GROUP_LISTEN] = "Listening",
        [BT_GROUP_DECIDE] = "Decisions and retries",
        [BT_GROUP_DEADLINE] = "Deadlines",
        [BT_GROUP_HEALTH] = "Health and load of workers",
        [BT_GROUP_FLEET] = "State that gateways share",
        [BT_GROUP_LIMIT] = "Limits",
        [BT_GROUP_SECURITY] = "Keys",
        [BT_GROUP_TLS] = "TLS",
        [BT_GROUP_LOG] = "Logs",
        [BT_GROUP_PROCESS] = "Process",
    };
    return titles[group];
}
