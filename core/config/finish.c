/* The last step of loading: what one setting implies for others, and the checks that need neither
 * policies nor sockets. Every refusal names the place where the user can mend it: a key path of the
 * file, or the flag. */
#include "config/config_impl.h"

#include "api/path.h"
#include "base/err.h"
#include "cluster/url.h"
#include "config/flag.h"
#include "dispatch/queue/fair_queue.h"
#include "dispatch/queue/tenant_weights.h"
#include "loop/network.h"
#include "loop/resolve.h"
#include "script/dialect/dialect.h"
#include "script/value/luatable.h"
#include "zmq/sockets.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define HOST_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
#define DEFAULT_BOOTSTRAP_PORT 8998 /* SGLang's own, and vLLM's for Mooncake */
#define DEFAULT_SAMPLE_PPM 10000    /* of requests with --record-file: 1 % */

bool bt_host_is_loopback(const char *host)
{
    struct sockaddr_storage addr;

    return strcasecmp(host, "localhost") == 0 ||
           (bt_resolve_numeric(host, 0, &addr) == 0 && bt_network_is_loopback(&addr));
}

/* ---- workers ---- */

/* Where worker i of the pool was said, for a message about its member key. */
static int refuse_worker(const bt_config_t *c, const bt_config_pool_t *pool, unsigned i,
                         const char *key, const char *why, char *err, size_t err_size)
{
    const char *origin = pool->origins[i];
    if (origin[0] == '-')
        return bt_err_refuse(err, err_size, "%s %s: %s", origin, pool->workers[i].url, why);
    return bt_err_refuse(err, err_size, "%s: %s.%s: %s", c->file != NULL ? c->file : "config",
                         origin, key, why);
}

/* SGLang's own --disaggregation-transfer-backend: its legs are the same whatever moves the KV. */
static const char *default_connector(const bt_config_t *c, const bt_config_pool_t *pool,
                                     const bt_worker_spec_t *spec)
{
    const bool is_sglang = spec->engine == BT_ENGINE_SGLANG ||
                           (spec->engine == BT_ENGINE_UNKNOWN && c->pd_mode == BT_PD_SGLANG);
    if (is_sglang &&
        (pool->connector == NULL || bt_capability_is_sglang_backend(bt_str(pool->connector))))
        return "sglang";
    if (pool->connector != NULL)
        return pool->connector;
    if (spec->engine == BT_ENGINE_TRTLLM)
        return "trtllm";
    if (spec->engine == BT_ENGINE_VLLM)
        return c->pd_mode != BT_PD_NONE ? "nixl" : NULL;
    if (spec->engine != BT_ENGINE_UNKNOWN)
        return NULL;
    return c->pd_mode == BT_PD_SGLANG ? "sglang" : c->pd_mode == BT_PD_VLLM ? "nixl" : NULL;
}

static void derive(const bt_worker_spec_t *spec, const char **dialect_p, const char **why_p)
{
    bt_str_t children[BT_WORKER_CHILDREN_MAX];
    enum bt_capability cap;
    for (unsigned i = 0; i < spec->child_count; i++)
        children[i] = bt_str(spec->children[i]);
    bt_capability_derive(spec->engine, bt_str(spec->connector), children, spec->child_count,
                         bt_str(spec->dispatch_profile), &cap, dialect_p, why_p);
}

static bool asks_bootstrap(const bt_worker_spec_t *spec)
{
    const char *dialect, *why;
    derive(spec, &dialect, &why);
    return bt_capability_asks_bootstrap(dialect);
}

static enum bt_engine default_engine(const bt_config_t *c, const bt_worker_spec_t *spec)
{
    bt_str_t connector = bt_str(spec->connector), profile = bt_str(spec->dispatch_profile),
             children[BT_WORKER_CHILDREN_MAX];
    for (unsigned i = 0; i < spec->child_count; i++)
        children[i] = bt_str(spec->children[i]);
    enum bt_engine engine = bt_capability_engine(connector, children, spec->child_count, profile);
    if (engine != BT_ENGINE_UNKNOWN)
        return engine;
    return c->pd_mode == BT_PD_SGLANG ? BT_ENGINE_SGLANG
           : c->pd_mode == BT_PD_VLLM ? BT_ENGINE_VLLM
                                      : BT_ENGINE_UNKNOWN;
}

static int fill_worker(const bt_config_t *c, const bt_config_pool_t *pool, bt_worker_spec_t *spec)
{
    if (spec->engine == BT_ENGINE_UNKNOWN)
        spec->engine = pool->engine;
    if (bt_role_is_of_pair(spec->role) && spec->connector == NULL &&
        spec->dispatch_profile == NULL) {
        const char *connector = default_connector(c, pool, spec);
        spec->connector = connector != NULL ? bt_str_dup(bt_str(connector)) : NULL;
        if (connector != NULL && spec->connector == NULL)
            return BT_E_NOMEM;
    }
    if (spec->engine == BT_ENGINE_UNKNOWN)
        spec->engine = default_engine(c, spec);
    if (spec->lease_ms == 0)
        spec->lease_ms = pool->lease_ms;
    if (spec->role == BT_ROLE_PREFILL && spec->bootstrap_port == 0)
        spec->bootstrap_port = c->bootstrap_port != 0 ? c->bootstrap_port
                               : spec->engine == BT_ENGINE_SGLANG || asks_bootstrap(spec)
                                   ? DEFAULT_BOOTSTRAP_PORT
                                   : 0;
    return 0;
}

int bt_config_complete_worker(const bt_config_t *c, const char *pool, bt_worker_spec_t *spec,
                              char *err, size_t err_size)
{
    for (unsigned i = 0; i < c->pool_count; i++)
        if (pool == NULL || strcmp(c->pools[i].spec.name, pool) == 0) {
            int rc = fill_worker(c, &c->pools[i], spec);
            if (rc < 0)
                snprintf(err, err_size, "%s", bt_err_text(rc));
            return rc;
        }
    return 0; /* the registry refuses a pool that is not there */
}

/* Its engine says by ZeroMQ where its KV is, and nobody would hear it. */
static const char *unheard(const bt_config_t *c, const bt_worker_spec_t *spec, const char *dialect)
{
    const bool is_p2p = dialect != NULL && strcmp(dialect, "p2p_nccl") == 0;

    if (spec->kv_address != NULL || !bt_capability_needs_kv_address(dialect) ||
        (is_p2p ? c->p2p_nccl_port : c->moriio_port) != UINT_MAX)
        return NULL;
    if (!bt_zmq_is_built())
        return bt_zmq_not_built;
    return is_p2p ? "its engine registers by ZeroMQ: add --p2p-nccl-port PORT, or kv_address to "
                    "each worker"
                  : "its engine registers by ZeroMQ: add --moriio-port PORT, or kv_address to "
                    "each worker";
}

/* Why this worker can't take part in a pair, or NULL. */
static const char *refusal_of(const bt_config_t *c, const bt_worker_spec_t *spec)
{
    static const char no_hub[] =
        "the gateway opens its rooms, at agents that come to it: add --transfer-port PORT";
    static const char no_metaserver[] =
        "its decode calls the gateway for prefill: add --metaserver-port PORT";
    static const char no_port[] =
        "its engine ids are asked at the bootstrap port: give bootstrap_port (vLLM's is 8998)";
    const char *dialect, *why = NULL;

    derive(spec, &dialect, &why);
    if (why == NULL && bt_capability_asks_bootstrap(dialect) && spec->role == BT_ROLE_PREFILL &&
        spec->bootstrap_port <= 0)
        why = no_port;
    if (why == NULL && bt_capability_is_gateway_managed(dialect) && !bt_config_has_transfer(c))
        why = no_hub;
    if (why == NULL && bt_capability_is_trigger(dialect) && !bt_config_has_metaserver(c))
        why = no_metaserver;
    return why != NULL ? why : unheard(c, spec, dialect);
}

/* The member that is wrong, what it says, and what to write instead. */
static int refuse_capability(const bt_config_t *c, const bt_config_pool_t *pool, unsigned i,
                             const char *refusal, char *err, size_t err_size)
{
    const bt_worker_spec_t *spec = &pool->workers[i];
    const bool is_profile =
        spec->connector == NULL || bt_str_starts(bt_str(refusal), BT_STR(BT_UNKNOWN_PROFILE));
    const bool is_unknown = !is_profile && strcmp(refusal, BT_UNKNOWN_CONNECTOR) == 0;
    const char *key = is_profile ? "dispatch_profile" : "connector", *meant = NULL;
    bt_str_t children[BT_WORKER_CHILDREN_MAX], name = bt_str(spec->dispatch_profile);
    char said[400];

    for (unsigned child = 0; child < spec->child_count; child++)
        children[child] = bt_str(spec->children[child]);
    if (!is_profile)
        name = bt_capability_leaf(bt_str(spec->connector), children, spec->child_count);
    if (is_unknown)
        meant = bt_capability_nearest(name);
    snprintf(said, sizeof said, "%s \"%.*s\": %s%s%s%s%s", key, (int) (name.n < 100 ? name.n : 100),
             name.p, refusal, meant != NULL ? " (did you mean " : "", meant != NULL ? meant : "",
             meant != NULL ? "?)" : "",
             is_unknown && meant == NULL
                 ? "; say how it is served with dispatch_profile (handoff, nixl, ...) or with a "
                   "file in --dialect-dir"
                 : "");
    return refuse_worker(c, pool, i, key, said, err, err_size);
}

static int check_worker(const bt_config_t *c, const bt_config_pool_t *pool, unsigned i, char *err,
                        size_t err_size)
{
    static const char no_connector[] =
        "how do the engines move KV? add --pd-disaggregation (SGLang), "
        "--vllm-pd-disaggregation (vLLM) or --kv-connector NAME";
    const bt_worker_spec_t *spec = &pool->workers[i];
    const char *refusal = NULL;
    char why[256];
    bt_url_t url;
    int rc = bt_url_parse(&url, bt_str(spec->url), why, sizeof why);
    if (rc == BT_E_CONFIG)
        return refuse_worker(c, pool, i, "url", why, err, err_size);
    if (rc < 0)
        return rc;
    bt_url_fini(&url);
    if (spec->role == BT_ROLE_ENCODE && spec->engine != BT_ENGINE_UNKNOWN &&
        spec->engine != BT_ENGINE_VLLM && spec->engine != BT_ENGINE_VLLM_ASCEND)
        return refuse_worker(c, pool, i, "role",
                             "role \"encode\" is for vLLM's encoders; the engine is another one",
                             err, err_size);
    if (spec->role == BT_ROLE_ENCODE && spec->connector != NULL &&
        (refusal = bt_capability_encoder_refusal(bt_str(spec->connector))) != NULL)
        return refuse_capability(c, pool, i, refusal, err, err_size);
    if (!bt_role_is_of_pair(spec->role))
        return 0;
    if (spec->connector == NULL && spec->dispatch_profile == NULL)
        return refuse_worker(c, pool, i, "connector",
                             pool->origins[i][0] == '-' ? no_connector
                                                        : "missing: name the engine's KV connector",
                             err, err_size);
    refusal = refusal_of(c, spec);
    return refusal == NULL ? 0 : refuse_capability(c, pool, i, refusal, err, err_size);
}

int bt_config_finish_worker(const bt_config_t *c, const bt_config_pool_t *pool,
                            bt_config_pool_t *list, unsigned i, char *err, size_t err_size)
{
    int rc = fill_worker(c, pool, &list->workers[i]);

    return rc == 0 ? check_worker(c, list, i, err, err_size) : rc;
}

int bt_config_check_found(const bt_config_t *c, const char *pool, const char *origin,
                          bt_worker_spec_t *spec, char *err, size_t err_size)
{
    char *origins[] = {(char *) (uintptr_t) origin}; /* borrowed */
    const bt_config_pool_t alone = {.workers = spec, .origins = origins, .worker_count = 1};
    int rc = bt_config_complete_worker(c, pool, spec, err, err_size);

    return rc == 0 ? check_worker(c, &alone, 0, err, err_size) : rc;
}

static int finish_pool(bt_config_t *c, bt_config_pool_t *pool, char *err, size_t err_size)
{
    int rc = 0;
    for (unsigned i = 0; i < pool->worker_count && rc == 0; i++)
        rc = bt_config_finish_worker(c, pool, pool, i, err, err_size);
    return rc;
}

#define POOL_NAME_MAX 63 /* what a policy's route can name */

/* "rules:..." is what the policies of rules are called by, beside the pools'. */
static int check_pool_name(const bt_config_t *c, unsigned i, char *err, size_t err_size)
{
    const char *name = c->pools[i].spec.name, *why = NULL;

    if (strlen(name) > POOL_NAME_MAX)
        why = "longer than 63 bytes";
    else if (strncmp(name, "rules:", 6) == 0)
        why = "begins with \"rules:\", which is the rules' own";
    if (why == NULL)
        return 0;
    return bt_err_refuse(err, err_size, "%s: pools[%u].name: \"%.80s\" %s; choose another name",
                         c->file != NULL ? c->file : "pool", i + 1, name, why);
}

static int finish_pools(bt_config_t *c, char *err, size_t err_size)
{
    bt_config_pool_t *pool;
    int rc = c->pool_count == 0 ? bt_config_add_pool(c, &pool) : 0;
    for (unsigned i = 0; i < c->pool_count && rc == 0; i++) {
        char **name = &c->pools[i].spec.name;
        if (*name == NULL && c->pool_count > 1)
            return bt_err_refuse(err, err_size,
                                 "%s: pools[%u].name: missing: several pools need names", c->file,
                                 i + 1);
        if (*name == NULL && (*name = bt_str_dup(BT_STR("default"))) == NULL)
            return BT_E_NOMEM;
        rc = check_pool_name(c, i, err, err_size);
        if (rc == 0)
            rc = finish_pool(c, &c->pools[i], err, err_size);
    }
    return rc;
}

/* ---- the workers file ---- */

static int finish_found(const bt_config_t *c, const bt_config_found_t *found, char *err,
                        size_t err_size)
{
    int rc = 0;
    for (unsigned i = 0; i < found->count && rc == 0; i++)
        for (unsigned k = 0; k < found->pools[i].worker_count && rc == 0; k++)
            rc = bt_config_finish_worker(c, &c->pools[i], &found->pools[i], k, err, err_size);
    return rc;
}

void bt_config_found_fini(bt_config_found_t *found)
{
    for (unsigned i = 0; i < found->count; i++)
        bt_config_workers_fini(&found->pools[i]);
    free(found->pools);
    *found = (bt_config_found_t){0};
}

int bt_config_read_found(const bt_config_t *c, const char *path, const bt_value_t *root,
                         bt_config_found_t *found_p, char *err, size_t err_size)
{
    bt_config_found_t found = {.pools = calloc(c->pool_count, sizeof *found.pools),
                               .count = c->pool_count};
    bt_config_t of_file = *c; /* borrowed: refusals name this file */
    int rc = BT_E_NOMEM;

    of_file.file = (char *) (uintptr_t) path;
    if (found.pools == NULL)
        found.count = 0;
    else
        rc = bt_config_read_worker_list(c, path, root, found.pools, err, err_size);
    if (rc == 0)
        rc = finish_found(&of_file, &found, err, err_size);
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s: %s", path, bt_err_text(rc));
    if (rc < 0)
        bt_config_found_fini(&found);
    else
        *found_p = found;
    return rc;
}

static int load_found(bt_config_t *c, char *err, size_t err_size)
{
    bt_value_t *root;
    int rc;

    if (c->workers_file == NULL)
        return 0;
    if ((rc = bt_lua_table_load(c->workers_file, &root, err, err_size)) < 0)
        return rc;
    rc = bt_config_read_found(c, c->workers_file, root, &c->found, err, err_size);
    bt_value_free(root);
    return rc;
}

/* ---- the rest ---- */

bool bt_config_has_transfer(const bt_config_t *c)
{
    return c->transfer_port != UINT_MAX;
}

bool bt_config_has_registry(const bt_config_t *c)
{
    return c->registry_port != UINT_MAX;
}

bool bt_config_has_registration(const bt_config_t *c)
{
    return c->p2p_nccl_port != UINT_MAX || c->moriio_port != UINT_MAX;
}

static int check_listeners(const bt_config_t *c, char *err, size_t err_size)
{
    const struct {
        const char *flag, *what, *others, *host;
        unsigned port;
    } all[] = {
        {"port", "client", "", c->host, c->port},
        {"admin-port", "admin", " (--admin-port, --prometheus-port)", c->admin_host, c->admin_port},
        {"transfer-port", "transfer", "", c->transfer_host, c->transfer_port},
        {"registry-port", "registry", "", c->registry_host, c->registry_port},
        {"metaserver-port", "metaserver", "", c->metaserver_host, c->metaserver_port},
        {"p2p-nccl-port", "p2p-nccl", "", c->registration_host, c->p2p_nccl_port},
        {"moriio-port", "moriio", "", c->registration_host, c->moriio_port},
    };
    for (unsigned i = 1; i < sizeof all / sizeof all[0]; i++)
        for (unsigned k = 0; k < i; k++) {
            const bool is_fixed = all[i].port != 0 && all[i].port != UINT_MAX;
            if (!is_fixed || all[i].port != all[k].port || strcmp(all[i].host, all[k].host) != 0)
                continue;
            return bt_err_refuse(err, err_size, "--%s: %u is the %s port already; choose another%s",
                                 all[i].flag, all[i].port, all[k].what, all[i].others);
        }
    return 0;
}

int bt_config_check_networks(const char *flag, char *const *all, unsigned count, char *err,
                             size_t err_size)
{
    bt_network_t network;

    for (unsigned i = 0; i < count; i++)
        if (bt_network_parse(&network, all[i]) < 0)
            return bt_err_refuse(
                err, err_size,
                "--%s: expected an address or a network, as 10.0.0.7 or 10.0.0.0/24, got "
                "\"%.120s\"",
                flag, all[i]);
    return 0;
}

static int check_registry(const bt_config_t *c, char *err, size_t err_size)
{
    const char *flag = c->registry_token != NULL ? "token" : "allow";

    if (c->registry_token == NULL && c->registry_allow_count == 0)
        return 0;
    if (!bt_config_has_registry(c))
        return bt_err_refuse(
            err, err_size,
            "--registry-%s: nobody is served by a registry; add --registry-port PORT", flag);
    if (c->registry_token != NULL && c->registry_allow_count > 0)
        return bt_err_refuse(
            err, err_size,
            "--registry-allow: with --registry-token everybody has to show it; leave out one "
            "of the two");
    return bt_config_check_networks("registry-allow", c->registry_allow, c->registry_allow_count,
                                    err, err_size);
}

static int check_queue(const bt_config_t *c, char *err, size_t err_size)
{
    const bt_str_t weights = bt_str(c->queue_weights != NULL ? c->queue_weights : "");
    bt_str_t wrong;

    if (bt_tenant_weights_check(weights, &wrong))
        return 0;
    return bt_err_refuse(err, err_size,
                         "--queue-weights: expected TENANT=N with N from 1 to %d, got \"%.*s\"",
                         BT_FAIR_WEIGHT_MAX, (int) (wrong.n < 100 ? wrong.n : 100), wrong.p);
}

static int check_registration(const bt_config_t *c, char *err, size_t err_size)
{
    const char *flag = c->p2p_nccl_port != UINT_MAX ? "p2p-nccl-port" : "moriio-port";
    bt_network_t network;

    if (bt_config_has_registration(c) && !bt_zmq_is_built())
        return bt_err_refuse(err, err_size, "--%s: %s", flag, bt_zmq_not_built);
    if (!bt_config_has_registration(c) &&
        (c->registration_allow_count > 0 || c->registration_new_workers))
        return bt_err_refuse(err, err_size,
                             "--registration-%s: nobody can register; add --p2p-nccl-port PORT or "
                             "--moriio-port PORT",
                             c->registration_allow_count > 0 ? "allow" : "new-workers");
    if (c->registration_scheme != 0 && !c->registration_new_workers)
        return bt_err_refuse(err, err_size,
                             "--registration-scheme: only with --registration-new-workers; others "
                             "say https:// in their URL");
    for (unsigned i = 0; i < c->registration_allow_count; i++)
        if (bt_network_parse(&network, c->registration_allow[i]) < 0)
            return bt_err_refuse(
                err, err_size,
                "--registration-allow: expected an address or a network, as 10.0.0.7 or "
                "10.0.0.0/24, got \"%.120s\"",
                c->registration_allow[i]);
    return 0;
}

int bt_config_imply_dev(bt_config_t *c)
{
    c->log_level = BT_LOG_DEBUG;
    c->log_format = BT_LOG_FORMAT_TEXT;
    c->dispatch.access_log = c->dispatch.debug_headers = true;
    c->record_sample_ppm = 1000000;
    if (c->policy_dir == NULL)
        c->policy_dir = bt_str_dup(BT_STR("."));
    return c->policy_dir != NULL ? 0 : BT_E_NOMEM;
}

/* Whoever may add workers gets other clients' traffic, and the workers' key. */
static int check_client_worker_api(const bt_config_t *c, char *err, size_t err_size)
{
    if (!c->dispatch.client_worker_api || c->admin_api_key != NULL || bt_host_is_loopback(c->host))
        return 0;
    return bt_err_refuse(
        err, err_size,
        "--client-worker-api: beyond loopback (--host %.120s) everybody could add workers; give "
        "--admin-api-key KEY, which these paths then ask for",
        c->host);
}

/* It shows policies' source and everything that is known of every request. */
static int check_dev(const bt_config_t *c, char *err, size_t err_size)
{
    const bool is_client = !bt_host_is_loopback(c->host);
    if (!c->dev || (!is_client && bt_host_is_loopback(c->admin_host)))
        return 0;
    return bt_err_refuse(
        err, err_size,
        "--dev: it shows too much for a listener that others reach, and %s is %.120s; leave "
        "out --dev, or listen on 127.0.0.1",
        is_client ? "--host" : "--admin-host", is_client ? c->host : c->admin_host);
}

/* What Host would say of it: no scheme, no port. */
static int check_hosts(const char *flag, char *const *names, unsigned count, char *err,
                       size_t err_size)
{
    for (unsigned i = 0; i < count; i++)
        if (names[i][0] == '\0' || names[i][strspn(names[i], HOST_CHARS)] != '\0')
            return bt_err_refuse(
                err, err_size, "--%s: expected a host name without scheme and port, got \"%.120s\"",
                flag, names[i]);
    return 0;
}

/* "https://app.example:8443", as a browser says it. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    const bool has_scheme = host != NULL && host > text &&
                            text + strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == host;
    const size_t length = strlen(text);

    return has_scheme && length <= 256 && host[3] != '\0' &&
           host[3 + strspn(host + 3, HOST_CHARS ":[]")] == '\0';
}

static int check_cors(const bt_config_t *c, char *err, size_t err_size)
{
    for (unsigned i = 0; i < c->cors_origin_count; i++) {
        const bool is_any = strcmp(c->cors_origins[i], "*") == 0;
        if (is_any && c->edge.cors.has_credentials)
            return bt_err_refuse(
                err, err_size,
                "--cors-credentials: not with --cors-origin \"*\": every page could "
                "act as whoever reads it; list the origins");
        if (is_any && c->cors_origin_count > 1)
            return bt_err_refuse(err, err_size,
                                 "--cors-origin: \"*\" is all origins, leave out the others");
        if (!is_any && !is_origin(c->cors_origins[i]))
            return bt_err_refuse(err, err_size,
                                 "--cors-origin: expected SCHEME://HOST[:PORT] in lower case and "
                                 "without a path, or *, got \"%.120s\"",
                                 c->cors_origins[i]);
    }
    if (c->cors_origin_count == 0 && c->edge.cors.has_credentials)
        return bt_err_refuse(err, err_size,
                             "--cors-credentials: no page may call; name origins "
                             "with --cors-origin");
    return 0;
}

static int check_edge(const bt_config_t *c, char *err, size_t err_size)
{
    int rc = check_hosts("admin-allowed-host", c->admin_allowed_hosts, c->admin_allowed_host_count,
                         err, err_size);

    if (rc == 0)
        rc = check_hosts("client-allowed-host", c->client_allowed_hosts,
                         c->client_allowed_host_count, err, err_size);
    if (rc == 0)
        rc = bt_config_check_networks("trusted-proxies", c->trusted_proxies, c->trusted_proxy_count,
                                      err, err_size);
    if (rc == 0 && c->trusted_proxy_count == 0 && c->edge.header != BT_EDGE_X_FORWARDED_FOR)
        rc = bt_err_refuse(err, err_size,
                           "--client-address-header: nobody is believed it; name the proxies with "
                           "--trusted-proxies ADDR[/BITS]");
    if (rc == 0 && c->trusted_proxy_count == 0 && c->edge.proxy_protocol)
        rc = bt_err_refuse(err, err_size,
                           "--proxy-protocol: nobody is believed it; name the proxies with "
                           "--trusted-proxies ADDR[/BITS]");
    return rc;
}

/* They become a line of a head. */
static int check_keys(const bt_config_t *c, char *err, size_t err_size)
{
    const struct {
        const char *flag, *key;
    } keys[] = {{"api-key", c->api_key},
                {"admin-api-key", c->admin_api_key},
                {"transfer-token", c->transfer_token},
                {"registry-token", c->registry_token}};
    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        for (const char *p = keys[i].key; p != NULL && *p != '\0'; p++)
            if ((unsigned char) *p < ' ' || *p == 0x7f)
                return bt_err_refuse(err, err_size,
                                     "--%s: a key holds no control characters, such as the end "
                                     "of a line",
                                     keys[i].flag);
    return 0;
}

/* Requests are compared with it in their canonical form. */
static const char *proxy_path_refusal(const char *text, bt_arena_t *arena)
{
    bt_str_t path = bt_str(text), canonical;
    if (path.n == 0 || path.p[0] != '/')
        return "expected a path that begins with /";
    if (path.n > 1 && path.p[path.n - 1] == '/')
        path.n--;
    const char *why = bt_path_canonical(path, arena, &canonical);
    if (why == NULL && !bt_str_eq(path, canonical))
        why = "write it without the %-escapes that it does not need, and the others in capitals";
    return why;
}

static int check_proxy_paths(const bt_config_t *c, char *err, size_t err_size)
{
    bt_arena_t arena;
    int rc = 0;
    bt_arena_init(&arena);
    for (unsigned i = 0; i < c->proxy_path_count && rc == 0; i++) {
        const char *why = proxy_path_refusal(c->proxy_paths[i], &arena);
        if (why != NULL)
            rc = bt_err_refuse(err, err_size, "--proxy-path: %s, got \"%.120s\"", why,
                               c->proxy_paths[i]);
    }
    bt_arena_fini(&arena);
    if (rc < 0 || c->health_path[0] == '/')
        return rc;
    return bt_err_refuse(
        err, err_size,
        "--health-check-endpoint: expected a path that begins with /, got \"%.120s\"",
        c->health_path);
}

/* Parameters that nobody reads are a mistake worth telling. */
static int check_params(const bt_config_t *c, char *err, size_t err_size)
{
    for (unsigned i = 0; i < c->pool_count; i++) {
        const bt_config_pool_t *pool = &c->pools[i];
        if (pool->spec.prefill_policy != NULL || pool->spec.decode_policy != NULL)
            continue;
        for (unsigned s = BT_SLOT_PREFILL; s < BT_SLOT_COUNT; s++) {
            if (pool->params[s] == NULL)
                continue;
            return bt_err_refuse(err, err_size,
                                 "%s: %s: the pool has no prefill_policy and no decode_policy",
                                 c->file, pool->params_places[s]);
        }
    }
    return 0;
}

/* An address of IPv6 stands in brackets, as it does in the urls that are compared with it. */
static bool is_host(bt_str_t s)
{
    if (s.n > 0 && s.p[0] == '[')
        return s.n > 2 && s.p[s.n - 1] == ']';
    return s.n > 0 && memchr(s.p, ':', s.n) == NULL && memchr(s.p, '/', s.n) == NULL;
}

static int check_http_hosts(const bt_config_t *c, char *err, size_t err_size)
{
    for (unsigned i = 0; i < c->policy_http_host_count; i++) {
        const char *host = c->policy_http_hosts[i], *colon = strrchr(host, ':');
        uint64_t port = 0;
        if (colon != NULL && is_host((bt_str_t){host, (size_t) (colon - host)}) &&
            bt_str_u64(bt_str(colon + 1), &port) == 0 && port >= 1 && port <= 65535)
            continue;
        return bt_err_refuse(
            err, err_size, "--policy-http-host: expected HOST:PORT, got \"%.120s\"%s", host,
            colon != NULL && strchr(host, ':') != colon && strchr(host, '/') == NULL
                ? "; an IPv6 address stands in brackets: [::1]:80"
                : "");
    }
    return 0;
}

/* Names of headers are compared in lower case. Records hold no keys. */
static int finish_record_headers(bt_config_t *c, char *err, size_t err_size)
{
    static const char *const secrets[] = {"authorization", "proxy-authorization", "cookie",
                                          "x-api-key", NULL};
    for (unsigned i = 0; i < c->record_header_count; i++) {
        char *name = c->record_headers[i];
        for (char *p = name; *p != '\0'; p++)
            *p = (char) (*p >= 'A' && *p <= 'Z' ? *p - 'A' + 'a' : *p);
        if (name[0] == '\0' ||
            name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.")] != '\0')
            return bt_err_refuse(err, err_size,
                                 "--record-header: expected a header's name, got \"%.120s\"", name);
        for (unsigned k = 0; secrets[k] != NULL; k++)
            if (strcmp(name, secrets[k]) == 0)
                return bt_err_refuse(
                    err, err_size,
                    "--record-header: %s holds keys, which do not belong in records; leave it "
                    "out",
                    name);
    }
    return 0;
}

static void derive_edge(bt_config_t *c)
{
    for (unsigned i = 0; i < c->trusted_proxy_count; i++)
        (void) bt_network_parse(&c->edge.proxies[i], c->trusted_proxies[i]); /* checked */
    c->edge.proxy_count = c->trusted_proxy_count;
    c->edge.listener = c->host;
    if (c->client_allowed_host_count > 0)
        c->edge.hosts = (const char *const *) c->client_allowed_hosts;
    if (c->cors_origin_count > 0)
        c->edge.cors.origins = (const char *const *) c->cors_origins;
    c->server.edge = &c->edge;
}

static void derive_record(bt_config_t *c)
{
    unsigned ppm = c->record_sample_ppm;
    if (ppm == UINT_MAX)
        ppm = c->record_file != NULL ? DEFAULT_SAMPLE_PPM : 0;
    c->record.file = c->record_file;
    c->record.sample = ppm / 1e6;
    if (c->record_header_count > 0)
        c->record.headers = (const char *const *) c->record_headers;
}

static void derive_dispatch(bt_config_t *c)
{
    bt_dispatch_config_t *d = &c->dispatch;
    c->admin_metrics_only = c->admin_api_key == NULL && c->admin_tls_client_scope == 0 &&
                            !bt_host_is_loopback(c->admin_host);
    d->certificate_tenant = (enum bt_certificate_tenant) c->tls_client_tenant;
    c->monitor.api_key = c->api_key;
    c->monitor.path = c->health_path;
    d->access_log_json = c->log_format == BT_LOG_FORMAT_JSON;
    d->worker_api_key = c->api_key;
    d->admin_key = c->admin_api_key;
    d->dialect_dir = c->dialect_dir;
    d->policy_dir = c->policy_dir;
    d->queue_weights = c->queue_weights;
    if (c->proxy_path_count > 0)
        d->proxy_paths = (const char *const *) c->proxy_paths;
}

int bt_config_finish(bt_config_t *c, char *err, size_t err_size)
{
    static int (*const checks[])(const bt_config_t *, char *, size_t) = {
        check_listeners,
        bt_config_check_transfer,
        check_client_worker_api,
        check_registry,
        check_registration,
        check_dev,
        check_edge,
        check_cors,
        check_keys,
        check_proxy_paths,
        check_http_hosts,
        check_params,
        check_queue,
        bt_config_check_metaserver,
        bt_config_check_tls,
        bt_config_check_kubernetes,
        bt_config_check_traces,
    };
    char why[BT_CONFIG_ERR_BYTES];
    int rc = c->dialect_dir != NULL ? bt_dialects_register(c->dialect_dir, why, sizeof why) : 0;
    if (rc < 0)
        return bt_err_refuse(err, err_size, "--dialect-dir: %s", why);
    rc = finish_pools(c, err, err_size);
    if (rc == 0)
        rc = load_found(c, err, err_size);
    if (rc == 0)
        rc = bt_config_finish_dns(c, err, err_size);
    if (rc == 0)
        rc = bt_config_finish_peers(c);
    if (rc == 0)
        rc = bt_config_finish_transfer(c, err, err_size);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && rc == 0; i++)
        rc = checks[i](c, err, err_size);
    if (rc == 0)
        rc = finish_record_headers(c, err, err_size);
    if (rc == 0)
        rc = bt_config_finish_shared(c, err, err_size);
    if (rc == 0)
        rc = bt_config_finish_identity(c, err, err_size);
    if (rc < 0)
        return rc;
    if (c->loops == 0)
        c->loops = bt_cpus_available();
    if (c->server.max_body_bytes >
        c->server.max_buffered_bytes) /* 503 would promise that it fits later */
        c->server.max_body_bytes = c->server.max_buffered_bytes;
    derive_dispatch(c);
    derive_edge(c);
    derive_record(c);
    c->worker_tls =
        (bt_tls_client_config_t){c->worker_tls_ca, c->worker_tls_cert, c->worker_tls_key};
    return 0;
}
