/* Workers of the configuration, of a workers file, and those that sources find: each is completed by what its pool says, then checked against
 * what its connector can do. Every refusal names the place where the user can mend it. */
#include "config/config_impl.h"

#include "base/err.h"
#include "cluster/url.h"
#include "script/value/luatable.h"
#include "zmq/sockets.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_BOOTSTRAP_PORT 8998 /* SGLang's own, and vLLM's for Mooncake */

/* ---- a worker ---- */

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
    static const char no_connector_key[] =
        "missing: how does the engine move KV? \"sglang\" (SGLang), \"nixl\" (vLLM's "
        "NixlConnector), ...: baton help run, --connector";
    const bt_worker_spec_t *spec = &pool->workers[i];
    const char *refusal = NULL;
    char why[256];
    bt_url_t url;
    int rc = bt_url_parse(&url, bt_str(spec->url), why, sizeof why);
    if (rc == BT_E_CONFIG)
        return refuse_worker(c, pool, i, "url", why, err, err_size);
    if (rc < 0)
        return rc;
    const bool has_v1 = bt_str_ends(bt_str(url.base_path), BT_STR("/v1"));
    bt_url_fini(&url);
    if (has_v1) /* of a URL as clients of OpenAI's have it */
        return refuse_worker(c, pool, i, "url",
                             "leave out /v1: clients' paths have it, and it would be sent twice",
                             err, err_size);
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
                             pool->origins[i][0] == '-' ? no_connector : no_connector_key, err,
                             err_size);
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

/* ---- pools ---- */

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

int bt_config_finish_pools(bt_config_t *c, char *err, size_t err_size)
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
    return rc == 0 ? load_found(c, err, err_size) : rc;
}
