/* The last step of loading: what one setting implies for others, and the checks that need neither
 * policies nor sockets. Every refusal names the place where the user can mend it: a key path of the
 * file, or the flag. */
#include "config/config_impl.h"

#include "api/path.h"
#include "base/err.h"
#include "dispatch/queue/fair_queue.h"
#include "dispatch/queue/tenant_weights.h"
#include "loop/network.h"
#include "loop/resolve.h"
#include "script/dialect/dialect.h"
#include "zmq/sockets.h"

#include <limits.h>

#define HOST_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
#define DEFAULT_SAMPLE_PPM 10000 /* of requests with --record-file: 1 % */
#define DEFAULT_KV_SNAPSHOT_MS 300000

bool bt_host_is_loopback(const char *host)
{
    struct sockaddr_storage addr;

    return strcasecmp(host, "localhost") == 0 ||
           (bt_resolve_numeric(host, 0, &addr) == 0 && bt_network_is_loopback(&addr));
}

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

static int check_kv_snapshot(const bt_config_t *c, char *err, size_t err_size)
{
    if (c->kv_snapshot != NULL || c->kv_snapshot_ms == UINT64_MAX)
        return 0;
    return bt_err_refuse(err, err_size,
                         "--kv-snapshot-secs: nothing is written without --kv-snapshot; add "
                         "--kv-snapshot FILE, or leave it out");
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
        check_kv_snapshot,
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
    rc = bt_config_finish_pools(c, err, err_size);
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
    if (c->kv_snapshot_ms == UINT64_MAX)
        c->kv_snapshot_ms = DEFAULT_KV_SNAPSHOT_MS;
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
