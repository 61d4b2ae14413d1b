/* config.h - everything that one run of the gateway is told, from defaults, the file and the flags.
 *
 * Owner: the caller; all strings are the config's own. What dispatch, monitor and server borrow lives as long as it.
 * Life:  load (init, file, flags, finish) -> read -> fini.
 * Flow:  defaults < file < flags. A value that is wrong is a line that names file and key path, or the flag.
 * Cost:  start-up and SIGHUP only.
 */
#ifndef BT_CONFIG_CONFIG_H
#define BT_CONFIG_CONFIG_H

#include "base/log.h"
#include "base/text.h"
#include "cluster/checks/monitor.h"
#include "cluster/roles/advisor.h"
#include "cluster/workers.h"
#include "discovery/dns.h"
#include "dispatch/dispatcher.h"
#include "http/server.h"
#include "identity/identities.h"
#include "limits/limit.h"
#include "store/store.h"
#include "tls/client.h"
#include "tls/server.h"

#define BT_CONFIG_PROXY_PATHS_MAX 16
#define BT_CONFIG_RECORD_HEADERS_MAX 16
#define BT_CONFIG_REGISTRY_ALLOW_MAX 64
#define BT_CONFIG_METASERVER_ALLOW_MAX 64
#define BT_CONFIG_REGISTRATION_ALLOW_MAX 64
#define BT_CONFIG_HTTP_HOSTS_MAX 32
#define BT_CONFIG_ADMIN_HOSTS_MAX 16
#define BT_CONFIG_CLIENT_HOSTS_MAX 64
#define BT_CONFIG_CORS_ORIGINS_MAX 64
#define BT_CONFIG_KUBERNETES_MAX 16
#define BT_CONFIG_JWT_CLAIMS_MAX 16
#define BT_CONFIG_TLS_ALLOW_MAX 64
#define BT_CONFIG_PEER_PARAMS_MAX 16
#define BT_CONFIG_ERR_BYTES 4096 /* a line for each mistake */

/* --sandbox: AUTO where the kernel has it, STRICT or not at all. */
enum bt_sandbox_mode { BT_SANDBOX_OFF, BT_SANDBOX_AUTO, BT_SANDBOX_STRICT };

enum bt_log_format { BT_LOG_FORMAT_TEXT, BT_LOG_FORMAT_JSON };
/* What --pd-disaggregation and --vllm-pd-disaggregation say about workers that name no connector. */
enum bt_pd_mode { BT_PD_NONE, BT_PD_SGLANG, BT_PD_VLLM };

typedef struct bt_config_pool {
    bt_pool_spec_t spec;
    char *connector;       /* of workers that name none */
    enum bt_engine engine; /* likewise */
    uint64_t lease_ms;     /* likewise; 0 = by engine and version */
    bt_worker_spec_t *workers;
    char **origins; /* "pools[1].workers[2]" or "--prefill", by worker */
    unsigned worker_count, worker_cap;
    bt_value_t *params[BT_SLOT_COUNT];  /* of the policy, prefill's, decode's; NULL = defaults */
    char *params_places[BT_SLOT_COUNT]; /* "pools[1].params" or "--policy-param" */
} bt_config_pool_t;

/* TLS of a listener. */
typedef struct bt_config_tls {
    char *certs[BT_TLS_PAIRS_MAX + 1], *keys[BT_TLS_PAIRS_MAX + 1]; /* each ends with NULL */
    unsigned cert_count, key_count;
    char *client_ca;
    char *client_allow[BT_CONFIG_TLS_ALLOW_MAX + 1]; /* ends with NULL */
    unsigned client_allow_count;
} bt_config_tls_t;

typedef struct bt_config_found { /* what --workers-file names */
    bt_config_pool_t *pools;     /* by the configuration's pools; only their workers count */
    unsigned count;
} bt_config_found_t;

typedef struct bt_config {
    char *file;         /* the configuration file, NULL = none */
    bt_text_t warnings; /* lines: what was accepted, but not as it was said */
    /* listeners */
    char *host, *admin_host, *transfer_host, *registry_host, *metaserver_host;
    unsigned port, admin_port;                              /* 0 = any */
    unsigned transfer_port, registry_port, metaserver_port; /* likewise; UINT_MAX = not said: off */
    char
        *metaserver_advertise; /* HOST[:PORT] as decode workers reach it; NULL = where it listens */
    char *metaserver_allow[BT_CONFIG_METASERVER_ALLOW_MAX + 1];
    unsigned metaserver_allow_count;
    char *transfer_token, *transfer_token_file, *registry_token;
    char *transfer_tokens; /* derived: one or several, one a line; NULL = none */
    char *registry_allow[BT_CONFIG_REGISTRY_ALLOW_MAX + 1];
    unsigned registry_allow_count;
    char *registration_host;
    unsigned p2p_nccl_port, moriio_port; /* as transfer_port */
    char *registration_allow[BT_CONFIG_REGISTRATION_ALLOW_MAX + 1];
    unsigned registration_allow_count;
    bool registration_new_workers;
    int registration_scheme; /* of these: 1 = https */
    char *admin_api_key;
    bool admin_metrics_only;              /* derived: beyond loopback without a key */
    bt_config_tls_t tls, admin_tls;       /* without certificates: plain */
    int tls_min_version, tls_client_auth; /* 1 = 1.3; 1 = optional */
    int tls_client_tenant;                /* enum bt_certificate_tenant */
    int admin_tls_client_scope; /* scope bits that a certificate has there without a key */
    char *tls_ciphers;
    char *worker_tls_ca, *worker_tls_cert, *worker_tls_key;
    bt_tls_client_config_t worker_tls; /* derived: the same */
    /* process */
    unsigned loops; /* after load: at least 1 */
    uint64_t drain_ms, startup_timeout_ms;
    char *ready_file;
    char *crash_file; /* NULL = stderr only */
    bool core_dumps;
    enum bt_sandbox_mode sandbox;
    enum bt_log_level log_level;
    enum bt_log_format log_format;
    bool dev; /* --dev: for authors of policies, on this machine only */
    uint64_t policy_probation_ms;
    unsigned policy_rollback_errors;
    char *log_file;  /* NULL = stderr */
    char *audit_log; /* a file, or "stderr"; NULL = none */
    bool metrics_gen_ai;
    char *trace_endpoint, *trace_service_name, *trace_headers_file, *trace_ca_file;
    unsigned trace_sample_ppm;
    uint64_t trace_slow_ms; /* 0 = none are slow */
    char *record_file;
    unsigned record_sample_ppm; /* parts per million; UINT_MAX = not said */
    char *record_headers[BT_CONFIG_RECORD_HEADERS_MAX + 1];
    unsigned record_header_count;
    /* requests */
    char *api_key, *client_keys_file;
    bool client_keys_in_store;
    bt_key_table_t *client_keys; /* read from client_keys_file; a reference; NULL = none */
    char *anonymous_scopes, *anonymous_models; /* of who shows no key where others do */
    char *jwt_jwks_file, *jwt_jwks_url, *jwt_issuer, *jwt_audience, *jwt_tenant_claim,
        *jwt_scope_claim, *jwt_jwks_ca_file;
    char *jwt_claims[BT_CONFIG_JWT_CLAIMS_MAX + 1]; /* NULL-terminated */
    unsigned jwt_claim_count;
    uint64_t jwt_skew_ms, jwt_jwks_ttl_ms;
    bt_jwt_rules_t jwt;       /* derived: borrows from above; issuer NULL = no tokens */
    bt_limit_table_t *limits; /* a reference; NULL = none */
    bt_jwks_t *jwks;          /* read from jwt_jwks_file; a reference; NULL = none */
    char *admin_allowed_hosts[BT_CONFIG_ADMIN_HOSTS_MAX + 1]; /* NULL-terminated */
    unsigned admin_allowed_host_count;
    char *client_allowed_hosts[BT_CONFIG_CLIENT_HOSTS_MAX + 1]; /* likewise */
    unsigned client_allowed_host_count;
    char *cors_origins[BT_CONFIG_CORS_ORIGINS_MAX + 1]; /* likewise */
    unsigned cors_origin_count;
    char *trusted_proxies[BT_EDGE_PROXIES_MAX + 1];
    unsigned trusted_proxy_count;
    char *dialect_dir, *policy_dir, *rules_file;
    char *policy_http_hosts[BT_CONFIG_HTTP_HOSTS_MAX + 1]; /* NULL-terminated */
    unsigned policy_http_host_count;
    char *proxy_paths[BT_CONFIG_PROXY_PATHS_MAX + 1];
    unsigned proxy_path_count;
    char *queue_weights;               /* TENANT=N,...; NULL = all are 1 */
    unsigned max_connections;          /* of clients; 0 = what the limit of open files holds */
    unsigned max_connections_per_peer; /* 0 = no limit */
    /* shared state */
    char *redis_url, *redis_username, *redis_password_file;
    char *redis_tls_ca, *redis_tls_cert, *redis_tls_key;
    char *redis_password; /* derived: of the file, or of the environment */
    char *fleet_name, *replica_name;
    uint64_t kv_index_blocks; /* 0 = the index's default */
    char *kv_snapshot;        /* NULL = none */
    uint64_t kv_snapshot_ms;  /* 0 = only at the end; without a word UINT64_MAX until finish */
    uint64_t fleet_heartbeat_ms, fleet_expiry_ms;
    bt_store_config_t store; /* derived; borrows from above */
    /* parts that are handed on as they are */
    bt_server_config_t server;
    bt_edge_t edge; /* of server; derived, but for header and proxy_protocol */
    bt_monitor_config_t monitor;
    char *health_path; /* of monitor */
    bt_breaker_config_t breaker;
    bt_advisor_config_t advisor;
    bool role_switch_auto;
    uint64_t role_check_ms;        /* 0 = off */
    bt_dispatch_config_t dispatch; /* its strings are borrowed from above */
    bt_record_config_t record;     /* likewise */
    /* fleet */
    enum bt_pd_mode pd_mode;
    int bootstrap_port;        /* of prefill workers that name none; 0 = not said */
    bt_config_pool_t defaults; /* what pools start from */
    bt_config_pool_t *pools;   /* at least one after load */
    unsigned pool_count;
    char *workers_kubernetes[BT_CONFIG_KUBERNETES_MAX + 1]; /* config/kubernetes.h */
    unsigned workers_kubernetes_count;
    char *workers_file;
    bt_config_found_t found; /* as it was when this configuration was loaded */
    bt_dns_config_t dns;     /* its names are: */
    bt_dns_name_t *dns_names;
    bt_config_pool_t dns_workers; /* what each name's workers are; only workers and origins */
    char *dns_servers;
    struct {
        const struct bt_peer_flag *flag;
        double number;
    } peer_params[BT_CONFIG_PEER_PARAMS_MAX]; /* until finish knows the policies */
    unsigned peer_param_count;
} bt_config_t;

/* c is filled in place (parts borrow from others). argv after the command word: [file] [flags].
 * err: ready to print, a line for each mistake of the command line. Nothing to free after an
 * error. */
int bt_config_load(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size);
void bt_config_fini(bt_config_t *c);

/* What the pool (NULL: the first) says about a worker that says nothing: connector, engine,
 * bootstrap port, lease. */
int bt_config_complete_worker(const bt_config_t *c, const char *pool, bt_worker_spec_t *spec,
                              char *err, size_t err_size);
/* Of one that a source has found: completed and checked as the configuration's own. origin: a flag, for err. */
int bt_config_check_found(const bt_config_t *c, const char *pool, const char *origin,
                          bt_worker_spec_t *spec, char *err, size_t err_size);
/* The tree of a workers file, completed and checked as the configuration's own workers are. */
int bt_config_read_found(const bt_config_t *c, const char *path, const bt_value_t *root,
                         bt_config_found_t *found_p, char *err, size_t err_size);
void bt_config_found_fini(bt_config_found_t *found);
bool bt_host_is_loopback(const char *host);
/* Is there a port for transfer agents, for SGLang's registry, for decode's calls? */
bool bt_config_has_transfer(const bt_config_t *c);
bool bt_config_has_registry(const bt_config_t *c);
bool bt_config_has_metaserver(const bt_config_t *c);
/* Of its path, as decode workers reach it; port: as bound. */
void bt_config_metaserver_url(const bt_config_t *c, unsigned port, char *url, size_t url_size);
/* What a listener's context is made of; borrows from both. */
bt_tls_server_config_t bt_config_tls_of(const bt_config_t *c, const bt_config_tls_t *tls);
/* One where engines register by ZeroMQ? */
bool bt_config_has_registration(const bt_config_t *c);

#endif
