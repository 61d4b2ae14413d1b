/* Rows are ordered as --help prints them. A row's option says where its value lives and what is allowed; nothing else in the
 * program knows the name of a setting. Numbers are written in the unit that the name carries; scale turns seconds into the
 * milliseconds that the core counts in. */
#include "config/flag.h"

#include "base/err.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

#define DAY_SECS 86400.0
#define AT(member) offsetof(bt_config_t, member)
#define POOL_AT(member) offsetof(bt_config_pool_t, member)

/* clang-format off */
#define SECS_OPTION(at_, min_) {.kind = BT_OPTION_U64, .offset = (at_), .min = (min_), .max = DAY_SECS, .scale = 1000}
#define MS_OPTION(at_, min_, max_) {.kind = BT_OPTION_U64, .offset = (at_), .min = (min_), .max = (max_)}
#define UINT_OPTION(at_, min_, max_) {.kind = BT_OPTION_UINT, .offset = (at_), .min = (min_), .max = (max_)}
#define SIZE_OPTION(at_, min_, max_) {.kind = BT_OPTION_SIZE, .offset = (at_), .min = (min_), .max = (max_)}
#define BOOL_OPTION(at_) {.kind = BT_OPTION_BOOL, .offset = (at_)}
#define TEXT_OPTION(at_) {.kind = BT_OPTION_TEXT, .offset = (at_)}
#define PATH_OPTION(at_) {.kind = BT_OPTION_PATH, .offset = (at_)}
#define NAME_OPTION(at_) {.kind = BT_OPTION_NAME, .offset = (at_)}
#define WORD_OPTION(at_, words_) {.kind = BT_OPTION_WORD, .offset = (at_), .words = (words_)}
/* clang-format on */

static const bt_word_t log_levels[] = {
    {"error", BT_LOG_ERROR, false}, {"warn", BT_LOG_WARN, false},   {"warning", BT_LOG_WARN, true},
    {"info", BT_LOG_INFO, false},   {"debug", BT_LOG_DEBUG, false}, {NULL, 0, false},
};
static const bt_word_t log_formats[] = {
    {"text", BT_LOG_FORMAT_TEXT, false},
    {"json", BT_LOG_FORMAT_JSON, false},
    {NULL, 0, false},
};
const bt_word_t bt_engine_words[] = {
    {"sglang", BT_ENGINE_SGLANG, false},           {"vllm", BT_ENGINE_VLLM, false},
    {"vllm_ascend", BT_ENGINE_VLLM_ASCEND, false}, {"vllm-ascend", BT_ENGINE_VLLM_ASCEND, true},
    {"mindie", BT_ENGINE_MINDIE, false},           {NULL, 0, false},
};

/* ---- actions ---- */

/* Workers of the command line go into the only pool there is. */
static int flag_pool(bt_config_t *c, bt_config_pool_t **pool_p, char *err, size_t err_size)
{
    if (c->pool_count > 1) {
        snprintf(err, err_size, "%s has %u pools: list this worker in one of them", c->file,
                 c->pool_count);
        return BT_E_CONFIG;
    }
    if (c->pool_count == 0)
        return bt_config_add_pool(c, pool_p);
    *pool_p = c->pools;
    return 0;
}

static int add_worker(bt_config_t *c, enum bt_role role, const char *flag, const char *url,
                      bt_worker_spec_t **spec_p, char *err, size_t err_size)
{
    bt_config_pool_t *pool;
    int rc = flag_pool(c, &pool, err, err_size);
    if (rc == 0)
        rc = bt_config_add_worker(pool, flag, spec_p);
    if (rc < 0)
        return rc;
    (*spec_p)->role = role;
    (*spec_p)->url = bt_str_dup(bt_str(url));
    return (*spec_p)->url != NULL ? 0 : BT_E_NOMEM;
}

static int apply_prefill(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size)
{
    static const bt_option_t port = {.kind = BT_OPTION_PORT,
                                     .offset = offsetof(bt_worker_spec_t, bootstrap_port)};
    bt_worker_spec_t *spec;
    int rc = add_worker(c, BT_ROLE_PREFILL, "--prefill", values[0], &spec, err, err_size);
    if (rc < 0 || count < 2)
        return rc;
    return bt_option_set_text(&port, spec, bt_str(values[1]), err, err_size);
}

static int apply_decode(bt_config_t *c, const char *const *values, unsigned count, char *err,
                        size_t err_size)
{
    bt_worker_spec_t *spec;
    (void) count;
    return add_worker(c, BT_ROLE_DECODE, "--decode", values[0], &spec, err, err_size);
}

static int apply_worker_urls(bt_config_t *c, const char *const *values, unsigned count, char *err,
                             size_t err_size)
{
    bt_worker_spec_t *spec;
    int rc = 0;
    for (unsigned i = 0; i < count && rc == 0; i++)
        rc = add_worker(c, BT_ROLE_HYBRID, "--worker-urls", values[i], &spec, err, err_size);
    return rc;
}

static int set_pd_mode(bt_config_t *c, enum bt_pd_mode mode, char *err, size_t err_size)
{
    if (c->pd_mode != BT_PD_NONE && c->pd_mode != mode) {
        snprintf(err, err_size,
                 "--pd-disaggregation (SGLang) and --vllm-pd-disaggregation exclude each other; "
                 "for a mixed fleet "
                 "name the engines in baton.lua");
        return BT_E_CONFIG;
    }
    c->pd_mode = mode;
    return 0;
}

static int apply_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                    size_t err_size)
{
    (void) values;
    (void) count;
    return set_pd_mode(c, BT_PD_SGLANG, err, err_size);
}

static int apply_vllm_pd(bt_config_t *c, const char *const *values, unsigned count, char *err,
                         size_t err_size)
{
    (void) values;
    (void) count;
    return set_pd_mode(c, BT_PD_VLLM, err, err_size);
}

/* 12, true, false; anything else is a string. */
static bt_value_t value_of(const char *text)
{
    char *end;
    bt_value_t v = {.type = BT_VALUE_STRING, .string = (char *) (uintptr_t) text};
    v.number = strtod(text, &end);
    if (text[0] != '\0' && *end == '\0' && strspn(text, "0123456789.eE+-") == strlen(text))
        v.type = BT_VALUE_NUMBER;
    v.boolean = strcmp(text, "true") == 0;
    if (v.boolean || strcmp(text, "false") == 0)
        v.type = BT_VALUE_BOOL;
    if (v.type != BT_VALUE_STRING)
        v.string = NULL;
    return v;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

/* What the file says stays, but for this one. The members are borrowed: set_params copies. */
static int set_param(bt_config_pool_t *pool, bt_value_t param)
{
    const bt_value_t *now = pool->params[BT_SLOT_BOTH];
    const unsigned count = now != NULL ? now->count : 0;
    bt_value_t table = {.type = BT_VALUE_TABLE};
    int rc;
    table.items = calloc(count + 1, sizeof *table.items);
    if (table.items == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(now->items[i].key, param.key) != 0)
            table.items[table.count++] = now->items[i];
    table.items[table.count++] = param;
    qsort(table.items, table.count, sizeof *table.items, compare_keys);
    rc = bt_config_set_params(pool, BT_SLOT_BOTH, &table, "--policy-param");
    free(table.items);
    return rc;
}

static int apply_policy_param(bt_config_t *c, const char *const *values, unsigned count, char *err,
                              size_t err_size)
{
    const char *equals = strchr(values[0], '=');
    bt_config_pool_t *pool = c->pools;
    int rc = 0;
    (void) count;
    if (equals == NULL || equals == values[0]) {
        snprintf(err, err_size, "expected NAME=VALUE, got \"%.120s\"", values[0]);
        return BT_E_CONFIG;
    }
    if (c->pool_count > 1) {
        snprintf(err, err_size, "%s has %u pools: write params = { ... } in one of them", c->file,
                 c->pool_count);
        return BT_E_CONFIG;
    }
    bt_value_t param = value_of(equals + 1);
    if (c->pool_count == 0)
        rc = bt_config_add_pool(c, &pool);
    param.key = bt_str_dup((bt_str_t){values[0], (size_t) (equals - values[0])});
    if (rc == 0)
        rc = param.key != NULL ? set_param(pool, param) : BT_E_NOMEM;
    free(param.key);
    return rc;
}

/* One list is what peers have; X-Request-Id is what is read here. Anything else would be silently ignored. */
static int apply_request_id_headers(bt_config_t *c, const char *const *values, unsigned count,
                                    char *err, size_t err_size)
{
    (void) c;
    for (unsigned i = 0; i < count; i++)
        if (!bt_str_ieq(bt_str(values[i]), BT_STR("x-request-id"))) {
            snprintf(
                err, err_size,
                "only x-request-id is read; rename \"%.120s\" in the client or in the proxy before",
                values[i]);
            return BT_E_CONFIG;
        }
    return 0;
}

/* What it implies was set before any flag was applied (bt_config_imply_dev), so that other flags win wherever they stand. */
static int apply_dev(bt_config_t *c, const char *const *values, unsigned count, char *err,
                     size_t err_size)
{
    (void) values;
    (void) count;
    (void) err;
    (void) err_size;
    c->dev = true;
    return 0;
}

/* ---- the table ---- */

const bt_flag_t bt_flags[] = {
    /* fleet */
    {"prefill",
     "URL [PORT|none]",
     BT_GROUP_WORKERS,
     BT_FLAG_ACTION,
     BT_ARITY_ONE_AND_PORT,
     true,
     {0},
     apply_prefill,
     "a prefill worker; PORT is SGLang's bootstrap port or NIXL's side channel; may be repeated"},
    {"decode",
     "URL",
     BT_GROUP_WORKERS,
     BT_FLAG_ACTION,
     BT_ARITY_ONE,
     true,
     {0},
     apply_decode,
     "a decode worker; may be repeated"},
    {"worker-urls",
     "URL...",
     BT_GROUP_WORKERS,
     BT_FLAG_ACTION,
     BT_ARITY_MANY,
     true,
     {0},
     apply_worker_urls,
     "workers that do both; http://host:port@RANK pins a data-parallel rank"},
    {"pd-disaggregation",
     NULL,
     BT_GROUP_WORKERS,
     BT_FLAG_ACTION,
     BT_ARITY_NONE,
     true,
     {0},
     apply_pd,
     "prefill and decode workers are SGLang (connector sglang unless one is named)"},
    {"vllm-pd-disaggregation",
     NULL,
     BT_GROUP_WORKERS,
     BT_FLAG_ACTION,
     BT_ARITY_NONE,
     true,
     {0},
     apply_vllm_pd,
     "prefill and decode workers are vLLM (connector nixl unless one is named)"},
    {"connector", "NAME", BT_GROUP_WORKERS, BT_FLAG_POOL, BT_ARITY_ONE, true,
     TEXT_OPTION(POOL_AT(connector)), NULL,
     "how the engines move KV: sglang, nixl, nixl_push, shared_cache, baton, or the engine's class "
     "name "
     "in any case; "
     "also --kv-connector"},
    {"engine", "NAME", BT_GROUP_WORKERS, BT_FLAG_POOL, BT_ARITY_ONE, true,
     WORD_OPTION(POOL_AT(engine), bt_engine_words), NULL,
     "sglang, vllm, vllm_ascend or mindie; said by the connector where it is one engine's"},
    {"bootstrap-port",
     "PORT",
     BT_GROUP_WORKERS,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     true,
     {.kind = BT_OPTION_PORT, .offset = AT(bootstrap_port)},
     NULL,
     "of prefill workers that name none (SGLang's own default is 8998)"},
    {"lease-ms", "MS", BT_GROUP_WORKERS, BT_FLAG_POOL, BT_ARITY_ONE, true,
     MS_OPTION(POOL_AT(lease_ms), 1000, 86400000), NULL,
     "how long prefill keeps KV for decode (30000; 480000 for vLLM-Ascend and vLLM before 0.22)"},

    /* listeners */
    {"host", "ADDR", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false, TEXT_OPTION(AT(host)),
     NULL, "clients are served here (127.0.0.1)"},
    {"port", "PORT", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(port), 0, 65535), NULL, "(30000; 0 = any free one)"},
    {"admin-host", "ADDR", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(admin_host)), NULL,
     "admin API and /metrics (127.0.0.1); also --prometheus-host"},
    {"admin-port", "PORT", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(admin_port), 0, 65535), NULL,
     "(29000; 0 = any free one); also --prometheus-port"},
    {"transfer-host", "ADDR", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(transfer_host)), NULL,
     "transfer agents of BatonConnector's workers come here (127.0.0.1)"},
    {"transfer-port", "PORT", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(transfer_port), 0, 65535), NULL,
     "(none: no worker with BatonConnector; 0 = any free one)"},
    {"registry-host", "ADDR", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(registry_host)), NULL, "SGLang's bootstrap routes are served here (127.0.0.1)"},
    {"registry-port", "PORT", BT_GROUP_LISTEN, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(registry_port), 0, 65535), NULL, "(none: not served; 0 = any free one)"},
    {"proxy-path",
     "PREFIX",
     BT_GROUP_LISTEN,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(proxy_paths),
      .count_offset = AT(proxy_path_count),
      .list_max = BT_CONFIG_PROXY_PATHS_MAX},
     NULL,
     "one more path that goes through to a worker as it is; may be repeated"},
    {"request-id-headers",
     "NAME...",
     BT_GROUP_LISTEN,
     BT_FLAG_ACTION,
     BT_ARITY_MANY,
     false,
     {0},
     apply_request_id_headers,
     "x-request-id, the one that is read"},

    /* decisions */
    {"policy", "NAME|FILE", BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     NAME_OPTION(POOL_AT(spec.policy)), NULL,
     "least_load (default), power_of_two, round_robin, random, or a Lua file of yours"},
    {"prefill-policy", "NAME|FILE", BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     NAME_OPTION(POOL_AT(spec.prefill_policy)), NULL,
     "chooses prefill workers instead of --policy"},
    {"decode-policy", "NAME|FILE", BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     NAME_OPTION(POOL_AT(spec.decode_policy)), NULL, "chooses decode workers instead of --policy"},
    {"policy-param",
     "NAME=VALUE",
     BT_GROUP_DECIDE,
     BT_FLAG_ACTION,
     BT_ARITY_ONE,
     true,
     {0},
     apply_policy_param,
     "one parameter of --policy (baton policy params lists them); may be repeated; in the file: "
     "params "
     "= { ... }, of a pool or of all; also prefill_params, decode_params"},
    {"rules-file", "FILE", BT_GROUP_DECIDE, BT_FLAG_SETTING, BT_ARITY_ONE, true,
     PATH_OPTION(AT(rules_file)), NULL,
     "which pool, policy and parameters a request gets, by what it is; followed as it changes"},
    {"policy-http-host",
     "HOST:PORT",
     BT_GROUP_DECIDE,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(policy_http_hosts),
      .count_offset = AT(policy_http_host_count),
      .list_max = BT_CONFIG_HTTP_HOSTS_MAX},
     NULL,
     "policies may call it (baton.http); may be repeated; in the file: policy_http_hosts = { ... "
     "}"},
    {"policy-wait-ms", "MS", BT_GROUP_DECIDE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     MS_OPTION(AT(policy_wait_ms), 1, 600000), NULL,
     "what each of admit, route and tick may wait for calls and sleeps, in all (1000)"},
    {"policy-dir", "DIR", BT_GROUP_DECIDE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(policy_dir)), NULL, "more policies, by file name"},
    {"dev",
     NULL,
     BT_GROUP_DECIDE,
     BT_FLAG_ACTION,
     BT_ARITY_NONE,
     false,
     {0},
     apply_dev,
     "for authors of policies, on loopback only: --policy-dir . --log-level debug --log-format "
     "text --access-log --debug-headers --record-sample 1, where no other flag says otherwise; "
     "errors are shown with the source line"},
    {"dialect-dir", "DIR", BT_GROUP_DECIDE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(dialect_dir)), NULL,
     "more dialects; one of the same name replaces a shipped one"},
    {"refuse-recompute", NULL, BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     BOOL_OPTION(POOL_AT(spec.refuse_recompute)), NULL,
     "a prefill reply without hand-off parameters is an error, not a reason to let decode compute "
     "the prompt"},
    {"max-fanout", "N", BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     UINT_OPTION(POOL_AT(spec.max_fanout), 1, 4096), NULL,
     "children that a list of prompts or n > 1 may be split into (64)"},
    {"max-attempts", "N", BT_GROUP_DECIDE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     UINT_OPTION(POOL_AT(spec.max_attempts), 1, 16), NULL,
     "attempts a request, the first included (3); also --retry-max-retries"},
    {"disable-retries", NULL, BT_GROUP_DECIDE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(disable_retries)), NULL, "one attempt a request"},

    /* deadlines */
    {"request-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     SECS_OPTION(POOL_AT(spec.deadlines.total_ms), 0.001), NULL, "a whole request (1800)"},
    {"connect-timeout-ms", "MS", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     MS_OPTION(POOL_AT(spec.deadlines.connect_ms), 1, 600000), NULL,
     "connecting to a worker (3000)"},
    {"prefill-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     SECS_OPTION(POOL_AT(spec.deadlines.prefill_reply_ms), 0.001), NULL,
     "prefill's reply in a hand-off (300)"},
    {"first-event-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     SECS_OPTION(POOL_AT(spec.deadlines.first_event_ms), 0.001), NULL,
     "first event of a stream (300)"},
    {"answer-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     SECS_OPTION(POOL_AT(spec.deadlines.answer_ms), 0), NULL,
     "first byte of an answer that is not streamed (0 = no limit of its own)"},
    {"stall-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     SECS_OPTION(POOL_AT(spec.deadlines.stall_ms), 0.001), NULL, "silence within an answer (60)"},
    {"room-start-ms", "MS", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     MS_OPTION(POOL_AT(spec.deadlines.room_start_ms), 1, 86400000), NULL,
     "from opening a room of BatonConnector to its first byte (300000)"},
    {"room-stall-ms", "MS", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     MS_OPTION(POOL_AT(spec.deadlines.room_stall_ms), 2000, 86400000), NULL,
     "no byte of it for so long, of which agents tell once a second (60000)"},
    {"room-repair-ms", "MS", BT_GROUP_DEADLINE, BT_FLAG_POOL, BT_ARITY_ONE, true,
     MS_OPTION(POOL_AT(spec.deadlines.room_repair_ms), 1, 86400000), NULL,
     "its prefill died before the first byte: how long decode waits for another one (5000)"},
    {"stream-keepalive-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(stream_keepalive_ms), 0), NULL,
     "no first event for so long: 200 and an SSE comment (0 = off)"},
    {"worker-idle-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(upstream.idle_timeout_ms), 0.001), NULL,
     "idle connections to workers are closed (4; engines close at 5)"},
    {"worker-idle-max", "N", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(upstream.idle_max), 0, 65536), NULL,
     "idle connections kept, per worker and loop (256)"},
    {"client-head-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(server.head_timeout_ms), 0.001), NULL, "a client's request head (10)"},
    {"client-body-stall-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(server.body_stall_ms), 0.001), NULL, "silence within a client's body (30)"},
    {"client-body-timeout-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(server.body_timeout_ms), 0.001), NULL, "a client's whole body (600)"},
    {"client-body-min-rate", "BYTES", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     MS_OPTION(AT(server.body_min_rate), 0, 1e12), NULL,
     "bytes a second that a client's body must bring on average, after 10 s (1024; 0 = any)"},
    {"client-idle-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(server.idle_timeout_ms), 0.001), NULL, "a client's idle connection (75)"},
    {"client-write-stall-secs", "S", BT_GROUP_DEADLINE, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(server.write_stall_ms), 0.001), NULL,
     "a client that reads nothing of its answer (60)"},

    /* health */
    {"health-check-endpoint", "PATH", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(health_path)), NULL, "(/health)"},
    {"health-check-interval-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.interval_ms), 0.01), NULL, "between two checks of a worker (5)"},
    {"health-check-timeout-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.timeout_ms), 0.01), NULL, "for one check (2)"},
    {"health-failure-threshold", "N", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(monitor.failures), 1, 1000), NULL, "failed checks in a row: down (3)"},
    {"health-success-threshold", "N", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(monitor.successes), 1, 1000), NULL,
     "good checks in a row: up (2; the first one ever counts at once)"},
    {"disable-health-check", NULL, BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(monitor.disabled)), NULL,
     "every worker counts as up; only failed requests tell"},
    {"worker-startup-check-interval", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.startup_interval_ms), 0.01), NULL,
     "between two checks of a worker that is not up yet (1)"},
    {"worker-startup-timeout-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(startup_timeout_ms), 0), NULL,
     "no usable workers for so long after the start: exit 1 (0 = wait on)"},
    {"load-interval-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.load_interval_ms), 0), NULL,
     "between two looks at an engine's load (1; 0 = off)"},
    {"load-timeout-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.load_timeout_ms), 0.01), NULL, "for one look (1)"},
    {"resolve-interval-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(monitor.resolve_interval_ms), 0.1), NULL,
     "host names of workers are looked up again (30)"},
    {"breaker-failures", "N", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(breaker.failures), 1, BT_BREAKER_RING), NULL,
     "failures of its own that open a worker's breaker (5); also --cb-failure-threshold"},
    {"breaker-window-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(breaker.window_ms), 0.01), NULL,
     "in which they must fall (10); also --cb-window-duration-secs"},
    {"breaker-open-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(breaker.open_ms), 0.01), NULL,
     "first time out, doubling (10); also --cb-timeout-duration-secs"},
    {"breaker-open-max-secs", "S", BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(breaker.open_max_ms), 0.01), NULL, "longest time out (120)"},
    {"disable-circuit-breaker", NULL, BT_GROUP_HEALTH, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(breaker.disabled)), NULL, "failures never take a worker out"},

    /* shared state */
    {"redis-url", "URL", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(redis_url)), NULL,
     "gateways with the same one act as one: redis://HOST:PORT[/DB], rediss://... (TLS), "
     "unix:///PATH[?db=N] or sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]; Redis or Valkey"},
    {"redis-username", "NAME", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(redis_username)), NULL, "of an ACL"},
    {"redis-password-file", "FILE", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(redis_password_file)), NULL,
     "its first line; or the environment's BATON_REDIS_PASSWORD"},
    {"redis-tls-ca", "FILE", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(redis_tls_ca)), NULL, "who may sign the server's certificate (the system's)"},
    {"redis-tls-cert", "FILE", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(redis_tls_cert)), NULL, "our own certificate, where the server asks for one"},
    {"redis-tls-key", "FILE", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(redis_tls_key)), NULL, "and its key"},
    {"fleet-name", "NAME", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(fleet_name)), NULL, "fleets of one Redis are told apart by it (fleet)"},
    {"replica-name", "NAME", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(replica_name)), NULL,
     "this gateway's, unique in its fleet (host name:admin port)"},
    {"fleet-heartbeat-ms", "MS", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     MS_OPTION(AT(fleet_heartbeat_ms), 10, 60000), NULL,
     "loads and prefixes are told so often (100)"},
    {"fleet-expiry-ms", "MS", BT_GROUP_FLEET, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     MS_OPTION(AT(fleet_expiry_ms), 100, 3600000), NULL,
     "a gateway that is silent for so long is gone, and its load with it (2000)"},

    /* limits */
    {"max-payload-size", "BYTES", BT_GROUP_LIMIT, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SIZE_OPTION(AT(server.max_body_bytes), 1, 1099511627776.0), NULL,
     "a request's body, else 413 (67108864, 64 MiB; at most --max-buffered-bytes)"},
    {"max-buffered-bytes", "BYTES", BT_GROUP_LIMIT, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SIZE_OPTION(AT(server.max_buffered_bytes), 1048576, 1099511627776.0), NULL,
     "all requests and answers in memory; then the client that holds most in unfinished requests "
     "loses the largest of them, else new ones get 503 (1073741824)"},
    {"max-concurrent-requests", "N", BT_GROUP_LIMIT, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(max_concurrent), -1, 4294967295.0), NULL,
     "running at once, else 503 with Retry-After (0 or -1 = no limit)"},
    {"max-connections", "N", BT_GROUP_LIMIT, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(max_connections), 0, 4294967295.0), NULL,
     "client connections at once; above it the one that is idle longest is closed, else 503 with "
     "Retry-After (0 = a third of what the limit of open files leaves: each may need two to "
     "workers)"},
    {"max-connections-per-peer", "N", BT_GROUP_LIMIT, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(max_connections_per_peer), 0, 4294967295.0), NULL,
     "the same for each client address, a /64 of IPv6 being one (0 = no limit; behind a proxy all "
     "clients are one)"},

    /* security */
    {"api-key", "KEY", BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(api_key)), NULL,
     "sent to workers as Authorization: Bearer KEY (else the client's header goes through)"},
    {"client-api-keys-file", "FILE", BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(client_keys_file)), NULL,
     "clients must send one of these keys, else 401; a line is KEY [tenant=NAME] [set-tenant]: the "
     "tenant is the key's, and x-tenant-id counts only from keys that may set it; read once, at "
     "the "
     "start"},
    {"admin-api-key", "KEY", BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(admin_api_key)), NULL,
     "asked for on the admin port, and by /workers, /add_worker, /remove_worker and /list_workers "
     "on the client port; without it only /metrics and /health are served beyond loopback"},
    {"admin-allowed-host",
     "NAME",
     BT_GROUP_SECURITY,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(admin_allowed_hosts),
      .count_offset = AT(admin_allowed_host_count),
      .list_max = BT_CONFIG_ADMIN_HOSTS_MAX},
     NULL,
     "without --admin-api-key the admin port is served under addresses, localhost, --admin-host "
     "and "
     "this name; may be repeated"},
    {"client-worker-api", NULL, BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(client_worker_api)), NULL,
     "/workers, /add_worker, /remove_worker and /list_workers on a loopback client port without a "
     "key (off)"},
    {"transfer-token", "TOKEN", BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(transfer_token)), NULL,
     "asked of transfer agents; needed to listen for them beyond loopback"},
    {"registry-token", "TOKEN", BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     TEXT_OPTION(AT(registry_token)), NULL,
     "asked of whoever uses the registry, as Authorization: Bearer TOKEN (SGLang's own ranks send "
     "none); without it this host and the workers' hosts are served"},
    {"registry-allow",
     "ADDR[/BITS]",
     BT_GROUP_SECURITY,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(registry_allow),
      .count_offset = AT(registry_allow_count),
      .list_max = BT_CONFIG_REGISTRY_ALLOW_MAX},
     NULL,
     "the registry also serves these hosts, as the other nodes of a prefill; may be repeated"},
    {"debug-headers", NULL, BT_GROUP_SECURITY, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(debug_headers)), NULL,
     "x-baton-* headers in answers: names of workers, attempts, times (on)"},

    /* logs */
    {"log-level", "LEVEL", BT_GROUP_LOG, BT_FLAG_SETTING, BT_ARITY_ONE, true,
     WORD_OPTION(AT(log_level), log_levels), NULL, "error, warn, info (default) or debug"},
    {"log-format", "FORMAT", BT_GROUP_LOG, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     WORD_OPTION(AT(log_format), log_formats), NULL, "text (default) or json, on stderr"},
    {"access-log", NULL, BT_GROUP_LOG, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     BOOL_OPTION(AT(access_log)), NULL, "one line a request (on)"},
    {"record-file", "FILE", BT_GROUP_LOG, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(record_file)), NULL,
     "decision records of sampled requests, a line of JSON each: who could serve, who did, how "
     "long, who was blamed; no prompts"},
    {"record-sample",
     "F",
     BT_GROUP_LOG,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_UINT,
      .offset = AT(record_sample_ppm),
      .min = 0,
      .max = 1,
      .scale = 1000000},
     NULL,
     "chance of a request to be sampled (0.01 with --record-file, else 0); /explain knows all "
     "recent requests, and the candidates of sampled ones"},
    {"record-max-bytes", "BYTES", BT_GROUP_LOG, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     MS_OPTION(AT(record_max_bytes), 4096, 1099511627776.0), NULL,
     "the file becomes FILE.1 there, and a new one begins (268435456)"},
    {"record-header",
     "NAME",
     BT_GROUP_LOG,
     BT_FLAG_SETTING,
     BT_ARITY_ONE,
     false,
     {.kind = BT_OPTION_TEXTS,
      .offset = AT(record_headers),
      .count_offset = AT(record_header_count),
      .list_max = BT_CONFIG_RECORD_HEADERS_MAX},
     NULL,
     "a request header that records keep, none else; may be repeated"},

    /* process */
    {"loops", "N", BT_GROUP_PROCESS, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     UINT_OPTION(AT(loops), 0, 1024), NULL,
     "event threads (0 = as many as CPUs may be used: affinity mask and cgroup quota)"},
    {"drain-timeout-secs", "S", BT_GROUP_PROCESS, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     SECS_OPTION(AT(drain_ms), 0), NULL,
     "after SIGTERM running requests get so long (180); also --shutdown-grace-period-secs"},
    {"ready-file", "FILE", BT_GROUP_PROCESS, BT_FLAG_SETTING, BT_ARITY_ONE, false,
     PATH_OPTION(AT(ready_file)), NULL,
     "written once serving: {\"port\":..,\"admin_port\":..,\"pid\":..}, and transfer_port, "
     "registry_port where there are"},
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
        [BT_GROUP_LOG] = "Logs",
        [BT_GROUP_PROCESS] = "Process",
    };
    return titles[group];
}
