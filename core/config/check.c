/* The check goes through the same code that will run: a scratch registry takes the fleet, a scratch VM each script. What it
 * accepts is then accepted at start. */
#include "config/check.h"

#include "base/err.h"
#include "config/config_impl.h"
#include "config/flag.h"
#include "generation/generation.h"
#include "loop/listener.h"
#include "script/dialect/dialect.h"
#include "script/native/hook_op_api.h"
#include "script/policy/policy.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- policies and dialects ---- */

static const char *ours_for(const char *theirs)
{
    for (const bt_peer_policy_t *p = bt_peer_policies; p->theirs != NULL; p++)
        if (strcmp(p->theirs, theirs) == 0)
            return p->ours;
    return NULL;
}

/* What all parts of the check go by. */
struct check {
    const bt_config_t *c;
    bt_text_t *warnings; /* or NULL */
};

/* Once each, however many pools have it. */
static void warn(const struct check *check, const char *text)
{
    if (check->warnings != NULL &&
        (check->warnings->len == 0 || strstr(check->warnings->data, text) == NULL))
        bt_text_printf(check->warnings, "warning: %s\n", text);
}

/* Makes it as the gateway will: with its parameters, and its start may wait. */
static int try_policy(const struct check *check, const char *name, const bt_value_t *params,
                      enum bt_policy_slot slot, bool *has_route_p, char *why, size_t why_size)
{
    const bt_config_t *c = check->c;
    bt_policy_source_t *source;
    bt_built_t *made;
    const bt_policy_trial_t trial = {.part = (enum bt_policy_part) slot};
    int rc = bt_policy_source_open(&source, name, c->policy_dir, why, why_size);
    if (rc < 0)
        return BT_E_POLICY;
    const bt_build_spec_t spec = {.source = source, .params = params, .is_dry_run = true};
    rc = bt_built_tried(&made, &spec, &trial, NULL, why, why_size);
    if (rc == 0 && why[0] != '\0')
        warn(check, why);
    if (rc == 0) {
        *has_route_p = bt_policy_has_hook(bt_built_policy(made), "route");
        bt_built_free(made);
    }
    bt_policy_source_unref(source);
    return rc;
}

/* "baton.lua: pools[1].params.weight: 12 is above max 10" */
static int refuse_params(const bt_config_t *c, const char *place, const char *why, char *err,
                         size_t err_size)
{
    const char *values = strstr(why, "params.");
    if (place[0] == '-')
        return bt_err_refuse(err, err_size, "%s: %s", place, values);
    return bt_err_refuse(err, err_size, "%s: %s%s", c->file != NULL ? c->file : "config", place,
                         values + sizeof "params" - 1);
}

/* route_p: the pool's policy that has a route hook, NULL as yet. */
static int check_policy(const struct check *check, const bt_config_pool_t *pool,
                        enum bt_policy_slot slot, const char **route_p, char *err, size_t err_size)
{
    const bt_config_t *c = check->c;
    static const char *const keys[BT_SLOT_COUNT] = {"policy", "prefill-policy", "decode-policy"};
    const char *const names[BT_SLOT_COUNT] = {
        pool->spec.policy != NULL || pool->params[slot] == NULL ? pool->spec.policy : "least_load",
        pool->spec.prefill_policy, pool->spec.decode_policy};
    const char *name = names[slot];
    char why[BT_CONFIG_ERR_BYTES] = "";
    bool has_route = false;
    if (name == NULL)
        return 0;
    int rc = try_policy(check, name, pool->params[slot], slot, &has_route, why, sizeof why);
    if (rc == 0 && has_route && *route_p != NULL && strcmp(*route_p, name) != 0)
        return bt_err_refuse(err, err_size, BT_TWO_ROUTES, pool->spec.name, *route_p, name);
    if (rc == 0 && has_route)
        *route_p = name;
    if (rc == 0)
        return 0;
    if (rc == BT_E_CONFIG && pool->params_places[slot] != NULL && strstr(why, "params.") != NULL)
        return refuse_params(c, pool->params_places[slot], why, err, err_size);
    if (ours_for(name) != NULL) /* another router's policy gets a better answer than "unknown" */
        snprintf(why, sizeof why, "%s is another router's name: use %s, or a Lua file of yours",
                 name, ours_for(name));
    if (c->file != NULL)
        return bt_err_refuse(err, err_size, "pool %s: %s: %s", pool->spec.name, keys[slot], why);
    return bt_err_refuse(err, err_size, "--%s: %s", keys[slot], why);
}

static int check_policies(const struct check *check, char *err, size_t err_size)
{
    const bt_config_t *c = check->c;
    int rc = 0;
    for (unsigned i = 0; i < c->pool_count && rc == 0; i++) {
        const char *route = NULL;
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++)
            rc = check_policy(check, &c->pools[i], (enum bt_policy_slot) s, &route, err, err_size);
    }
    return rc;
}

static const char *policy_of(const bt_config_t *c, const bt_rule_target_t *target)
{
    for (unsigned i = 0; target->policy == NULL && i < c->pool_count; i++)
        if (strcmp(c->pools[i].spec.name, target->pool) == 0 && c->pools[i].spec.policy != NULL)
            return c->pools[i].spec.policy;
    return target->policy != NULL ? target->policy : "least_load";
}

/* A shadow that cannot be made is no reason not to serve: the gateway says so and leaves it out. */
static int check_variants(const struct check *check, const bt_rules_t *rules, char *err,
                          size_t err_size)
{
    const bt_config_t *c = check->c;
    char why[BT_CONFIG_ERR_BYTES], place[64];
    const bt_rule_target_t *t;
    const char *name;
    bool is_shadow, has_route;
    for (unsigned i = 0; (t = bt_rules_variant(rules, i, &name, &is_shadow)) != NULL; i++) {
        int rc = is_shadow ? 0
                           : try_policy(check, policy_of(c, t), t->params, BT_SLOT_BOTH, &has_route,
                                        why, sizeof why);
        const char *values = rc == BT_E_CONFIG ? strstr(why, "params.") : NULL;
        if (rc == 0)
            continue;
        bt_rules_variant_place(rules, i, place, sizeof place);
        return bt_err_refuse(err, err_size, "%s: %s.%s%s", c->rules_file, place,
                             values != NULL ? "" : "policy: ", values != NULL ? values : why);
    }
    return 0;
}

static int check_rules(const struct check *check, char *err, size_t err_size)
{
    const bt_config_t *c = check->c;
    const char **names = calloc(c->pool_count + 1, sizeof *names);
    bt_rules_t *rules = NULL;
    int rc = names != NULL ? 0 : BT_E_NOMEM;
    for (unsigned i = 0; rc == 0 && i < c->pool_count; i++)
        names[i] = c->pools[i].spec.name;
    if (rc == 0 && c->rules_file != NULL && access(c->rules_file, R_OK) != 0)
        rc = bt_err_refuse(err, err_size, "--rules-file: %s: %s", c->rules_file, strerror(errno));
    if (rc == 0 && c->rules_file != NULL)
        rc = bt_rules_load(&rules, c->rules_file, err, err_size);
    if (rc == 0)
        rc = bt_rules_check_pools(rules, names, err, err_size);
    if (rc == 0)
        rc = check_variants(check, rules, err, err_size);
    bt_rules_unref(rules);
    free(names);
    return rc;
}

/* ---- the fleet ---- */

/* A scratch registry that holds this configuration's fleet. */
static int build_workers(const bt_config_t *c, bt_registry_t **registry_p, char *err,
                         size_t err_size)
{
    bt_registry_t *r = NULL;
    int rc = bt_registry_new(&r, &c->breaker, NULL, NULL);
    if (rc < 0)
        return rc;
    rc = bt_config_apply_workers(c, r, err, err_size);
    if (rc == 0)
        rc = bt_config_apply_found(c, c->workers_file, &c->found, r, err, err_size);
    if (rc < 0)
        bt_registry_free(r);
    else
        *registry_p = r;
    return rc;
}

/* NULL when at least one prefill and one decode worker fit (or one of the roles is missing). */
static const char *pool_refusal(const bt_worker_pool_t *pool, const bt_worker_t **p_p,
                                const bt_worker_t **d_p)
{
    const char *first = NULL;
    for (unsigned i = 0; i < pool->prefill.count; i++)
        for (unsigned j = 0; j < pool->decode.count; j++) {
            const char *why =
                bt_workers_pair_refusal(pool->prefill.items[i], pool->decode.items[j]);
            if (why == NULL)
                return NULL;
            if (first != NULL)
                continue;
            first = why;
            *p_p = pool->prefill.items[i];
            *d_p = pool->decode.items[j];
        }
    return first;
}

static int check_pairs(const bt_workers_t *workers, char *err, size_t err_size)
{
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_worker_t *p = NULL, *d = NULL;
        const char *why = pool_refusal(&workers->pools[i], &p, &d);
        if (why != NULL)
            return bt_err_refuse(
                err, err_size,
                "pool %s: no prefill and decode worker fit together: %s (%s) and %s (%s): %s",
                workers->pools[i].spec.name, p->name, p->spec.url, d->name, d->spec.url, why);
    }
    return 0;
}

/* What the client would get early is not what decode's stream begins with. */
static int refuse_relay(const bt_worker_pool_t *pool, const bt_worker_t *w,
                        const bt_dialect_t *dialect, char *err, size_t err_size)
{
    return bt_err_refuse(
        err, err_size,
        "pool %s: relay_first_token: worker %s with connector %s (dialect %s) cannot: %s. Leave it "
        "off for this pool",
        pool->spec.name, w->spec.url,
        w->spec.connector != NULL ? w->spec.connector : bt_engine_name(w->engine), dialect->name,
        dialect->kind == BT_PLAN_HANDOFF
            ? "its decode draws the first token anew, which may be another one than prefill's"
            : "its decode is asked before prefill has replied, and sends the first token itself");
}

static int check_dialects(const bt_dialects_t *dialects, const bt_workers_t *workers, char *err,
                          size_t err_size)
{
    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++) {
            const bt_worker_pool_t *pool = &workers->pools[i];
            const bt_worker_t *w = pool->all.items[k];
            const bt_dialect_t *dialect;
            if (!bt_role_is_of_pair(w->spec.role) || w->dialect == NULL)
                continue;
            dialect = bt_dialects_find(dialects, w->dialect);
            if (dialect == NULL)
                return bt_err_refuse(err, err_size,
                                     "worker %s: there is no dialect %s for its connector",
                                     w->spec.url, w->dialect);
            if (pool->spec.relay_first_token != BT_RELAY_FIRST_TOKEN_OFF &&
                !dialect->has_first_token)
                return refuse_relay(pool, w, dialect, err, err_size);
        }
    return 0;
}

int bt_config_apply_workers(const bt_config_t *c, bt_registry_t *registry, char *err,
                            size_t err_size)
{
    bt_pool_spec_t *specs = calloc(c->pool_count, sizeof *specs);
    const bt_worker_spec_t **workers = calloc(c->pool_count, sizeof(bt_worker_spec_t *));
    unsigned *counts = calloc(c->pool_count, sizeof *counts);
    int rc = BT_E_NOMEM;
    if (specs == NULL || workers == NULL || counts == NULL) {
        snprintf(err, err_size, "%s", bt_err_text(rc));
        goto out;
    }
    for (unsigned i = 0; i < c->pool_count; i++) {
        specs[i] = c->pools[i].spec; /* borrowed for the call */
        workers[i] = c->pools[i].workers;
        counts[i] = c->pools[i].worker_count;
    }
    rc = bt_registry_apply(registry, specs, c->pool_count, workers, counts, err, err_size);
out:
    free(specs);
    free(workers);
    free(counts);
    return rc;
}

int bt_config_apply_found(const bt_config_t *c, const char *file, const bt_config_found_t *found,
                          bt_registry_t *registry, char *err, size_t err_size)
{
    char why[BT_CONFIG_ERR_BYTES];
    unsigned count = 0;

    if (file == NULL)
        return 0;
    for (unsigned i = 0; i < found->count; i++)
        count += found->pools[i].worker_count;
    bt_found_t *all = calloc(count + 1, sizeof *all);
    if (all == NULL)
        return BT_E_NOMEM;
    count = 0;
    for (unsigned i = 0; i < found->count; i++)
        for (unsigned k = 0; k < found->pools[i].worker_count; k++)
            all[count++] = (bt_found_t){.pool = c->pools[i].spec.name,
                                        .spec = found->pools[i].workers[k]}; /* borrowed */
    int rc = bt_registry_set_found(registry, BT_NAMED_FILE, all, count, why, sizeof why);
    free(all);
    return rc < 0 ? bt_err_refuse(err, err_size, "%s: %s", file, why) : 0;
}

int bt_config_check_workers(const bt_config_t *c, char *err, size_t err_size)
{
    char why[BT_CONFIG_ERR_BYTES] = "";
    bt_registry_t *registry;
    bt_dialects_t *dialects;
    if (bt_dialects_new(&dialects, c->dialect_dir, why, sizeof why) < 0)
        return bt_err_refuse(err, err_size, "--dialect-dir: %s", why);
    int rc = build_workers(c, &registry, err, err_size);
    if (rc == 0) {
        const bt_workers_t *workers = bt_registry_current(registry);
        rc = check_dialects(dialects, workers, err, err_size);
        if (rc == 0)
            rc = check_pairs(workers, err, err_size);
        bt_registry_free(registry);
    }
    bt_dialects_free(dialects);
    return rc;
}

int bt_config_check(const bt_config_t *c, bt_text_t *warnings, char *err, size_t err_size)
{
    const struct check check = {c, warnings};
    bt_policy_allow_hosts(c->policy_http_host_count > 0 ? (const char *const *) c->policy_http_hosts
                                                        : NULL);
    int rc = check_policies(&check, err, err_size);
    if (rc == 0)
        rc = check_rules(&check, err, err_size);
    bt_policy_allow_hosts(NULL); /* they are borrowed, and the configuration may go */
    if (rc == 0)
        rc = bt_config_check_tls_files(c, err, err_size);
    bt_tls_client_set_default(&c->worker_tls);
    if (rc == 0)
        rc = bt_config_check_workers(c, err, err_size);
    bt_tls_client_set_default(NULL); /* it is borrowed likewise */
    return rc;
}

/* ---- ports ---- */

int bt_config_bind(const char *flag, const char *host, unsigned port, bool reuse_port,
                   unsigned *port_p, char *err, size_t err_size)
{
    int fd = bt_listener_bind(host, port, reuse_port, port_p);
    if (fd < 0)
        bt_err_refuse(err, err_size, "--%s: cannot listen on %s:%u: %s", flag, host, port,
                      bt_err_text(fd));
    return fd;
}

int bt_config_check_ports(const bt_config_t *c, bt_text_t *warnings, char *err, size_t err_size)
{
    const struct {
        const char *flag, *host;
        unsigned port;
    } all[] = {{"port", c->host, c->port},
               {"admin-port", c->admin_host, c->admin_port},
               {"transfer-port", c->transfer_host, c->transfer_port},
               {"registry-port", c->registry_host, c->registry_port},
               {"metaserver-port", c->metaserver_host, c->metaserver_port},
               {"p2p-nccl-port", c->registration_host, c->p2p_nccl_port},
               {"moriio-port", c->registration_host, c->moriio_port}};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].port == UINT_MAX)
            continue;
        int fd = bt_config_bind(all[i].flag, all[i].host, all[i].port, false, NULL, err, err_size);
        if (fd >= 0)
            close(fd);
        else if (fd != UV_EADDRINUSE)
            return fd;
        else
            bt_text_printf(warnings, "warning: %s (by the gateway that serves this, maybe)\n", err);
    }
    return 0;
}

/* ---- describing ---- */

static void describe_worker(const bt_worker_t *w, bt_text_t *out)
{
    bt_text_printf(out, "  %-8s %-8s %s", w->name, bt_role_name(w->spec.role), w->spec.url);
    bt_text_printf(out, "  engine %s", bt_engine_name(w->engine));
    if (bt_role_is_of_pair(w->spec.role))
        bt_text_printf(out, ", connector %s, %s, dialect %s",
                       w->spec.connector != NULL ? w->spec.connector : w->spec.dispatch_profile,
                       bt_capability_name(w->capability), w->dialect != NULL ? w->dialect : "none");
    bt_text_puts(out, "\n");
}

static const char *mode_of(const bt_worker_pool_t *pool)
{
    bool has_pair = pool->prefill.count > 0 && pool->decode.count > 0;
    if (has_pair)
        return pool->hybrid.count > 0 ? "pairs and single workers" : "pairs";
    if (pool->hybrid.count > 0)
        return "single workers";
    if (pool->prefill.count > 0 &&
        bt_capability_prefill_serves_alone(pool->prefill.items[0]->engine,
                                           pool->prefill.items[0]->dialect))
        return "prefill workers alone (degraded)";
    return "nothing yet: requests get 503 until workers are there";
}

static void describe_pool(const bt_worker_pool_t *pool, bt_text_t *out)
{
    const bt_pool_spec_t *spec = &pool->spec;
    const char *policy = spec->policy != NULL ? spec->policy : "least_load";
    bt_text_printf(out, "pool %s: models ", spec->name);
    for (unsigned i = 0; i < spec->model_count; i++)
        bt_text_printf(out, "%s%s", i > 0 ? ", " : "", spec->models[i]);
    bt_text_printf(out, "%s; policy %s", spec->model_count == 0 ? "any" : "", policy);
    if (spec->prefill_policy != NULL || spec->decode_policy != NULL)
        bt_text_printf(out, " (prefill %s, decode %s)",
                       spec->prefill_policy != NULL ? spec->prefill_policy : policy,
                       spec->decode_policy != NULL ? spec->decode_policy : policy);
    bt_text_printf(out, "; serves by %s\n", mode_of(pool));
    for (unsigned i = 0; i < pool->all.count; i++)
        describe_worker(pool->all.items[i], out);
}

static void describe_registration(const bt_config_t *c, bt_text_t *out)
{
    const struct {
        const char *connector;
        unsigned port;
    } all[] = {{"P2pNcclConnector", c->p2p_nccl_port}, {"MoRIIOConnector", c->moriio_port}};

    for (unsigned i = 0; i < 2; i++)
        if (all[i].port != UINT_MAX)
            bt_text_printf(out, "%s registers at %s:%u%s\n", all[i].connector, c->registration_host,
                           all[i].port, c->registration_new_workers ? ", new workers too" : "");
}

void bt_config_describe(const bt_config_t *c, bt_text_t *out)
{
    char err[BT_CONFIG_ERR_BYTES];
    bt_registry_t *registry;
    bt_text_printf(out, "ok\nclients %s:%u, admin %s:%u%s, %u loops\n", c->host, c->port,
                   c->admin_host, c->admin_port,
                   c->admin_metrics_only ? " (only /metrics: no --admin-api-key)" : "", c->loops);
    if (c->sandbox != BT_SANDBOX_OFF)
        bt_text_printf(out, "sandbox %s\n",
                       c->sandbox == BT_SANDBOX_STRICT ? "strict" : "where the kernel has it");
    if (bt_config_has_transfer(c))
        bt_text_printf(out, "transfer agents %s:%u%s\n", c->transfer_host, c->transfer_port,
                       c->transfer_tokens != NULL ? ", with a token" : "");
    if (bt_config_has_registry(c))
        bt_text_printf(out, "SGLang's registry %s:%u, %s%s\n", c->registry_host, c->registry_port,
                       c->registry_token != NULL ? "with a token"
                                                 : "for this host and the workers' hosts",
                       c->registry_allow_count > 0 ? " and --registry-allow" : "");
    if (bt_config_has_metaserver(c)) {
        char url[320];
        bt_config_metaserver_url(c, c->metaserver_port, url, sizeof url);
        bt_text_printf(out, "metaserver %s:%u, decodes call %s\n", c->metaserver_host,
                       c->metaserver_port, url);
    }
    describe_registration(c, out);
    bt_config_describe_tls(c, out);
    bt_config_describe_shared(c, out);
    bt_config_describe_dns(c, out);
    bt_config_describe_kubernetes(c, out);
    bt_config_describe_limits(c, out);
    if (build_workers(c, &registry, err, sizeof err) < 0)
        return;
    const bt_workers_t *workers = bt_registry_current(registry);
    for (unsigned i = 0; i < workers->pool_count; i++)
        describe_pool(&workers->pools[i], out);
    bt_registry_free(registry);
}
