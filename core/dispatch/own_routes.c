/* own_routes.c - what the gateway answers itself: health, readiness, abort by rid, and the peers' worker paths. */
#include "base/text.h"
#include "dispatch/answer/answer.h"
#include "dispatch/dispatcher.h"
#include "dispatch/intake/identify.h"
#include "dispatch/models.h"

#include <stdio.h>

static void respond_json(bt_exchange_t *x, unsigned status, bt_str_t body)
{
    static const bt_header_t retry[] = {{BT_STR("Retry-After"), BT_STR("1")}};

    bt_exchange_respond(x, status, "application/json", body, retry, status == 503 ? 1 : 0);
}

/* What serves, but with less than it should: no reason to send requests elsewhere. */
static void describe_degraded(const bt_dispatch_shared_t *shared, bt_text_t *out)
{
    static const char *const words[] = {"", "not reached yet", "degraded", "unavailable"};
    char why[256] = "", line[320];
    enum bt_store_health health =
        shared->store != NULL ? bt_store_health(shared->store, why, sizeof(why)) : BT_STORE_UP;

    bt_text_puts(out, "\"degraded\":[");
    if (health != BT_STORE_UP) {
        snprintf(line, sizeof(line), "shared state: %s: %s", words[health], why);
        bt_text_json_str(out, bt_str(line));
    }
    bt_text_puts(out, "],");
}

/* Ready = one usable topology exists and we are not draining; /health only says that the process serves. */
bool bt_readiness_describe(const bt_workers_t *workers, const bt_dispatch_shared_t *shared,
                           bt_text_t *out)
{
    /* A connection that is still ours must not tell of ports that another process has. */
    const bool draining = atomic_load_explicit(&shared->draining, memory_order_relaxed) &&
                          !atomic_load_explicit(&shared->replaced, memory_order_relaxed);
    bool ready = false;

    bt_text_puts(out, "{\"pools\":[");
    for (unsigned i = 0; workers != NULL && i < workers->pool_count; i++) {
        const bt_worker_pool_t *pool = &workers->pools[i];
        static const char *const names[] = {"none", "pair", "single", "degraded"};
        char why[512] = "";
        enum bt_topology topology = bt_workers_topology(pool, bt_clock_ms(), why, sizeof(why));
        ready = ready || topology != BT_TOPOLOGY_NONE;
        bt_text_puts(out, i != 0 ? ",{\"name\":" : "{\"name\":");
        bt_text_json_str(out, bt_str(pool->spec.name));
        bt_text_printf(out, ",\"topology\":\"%s\",\"reason\":", names[topology]);
        if (topology == BT_TOPOLOGY_NONE)
            bt_text_json_str(out, bt_str(why));
        else
            bt_text_puts(out, "null");
        if (shared->config.warm_pairs)
            bt_text_printf(out, ",\"pairs\":%u,\"warm_pairs\":%u",
                           atomic_load_explicit(&pool->stat->pairs, memory_order_relaxed),
                           atomic_load_explicit(&pool->stat->warm_pairs, memory_order_relaxed));
        bt_text_puts(out, "}");
    }
    ready = ready && !draining;
    bt_text_puts(out, "],");
    describe_degraded(shared, out);
    bt_text_printf(out, "\"draining\":%s,\"ready\":%s}\n", draining ? "true" : "false",
                   ready ? "true" : "false");
    return ready;
}

static void readiness(bt_dispatcher_t *d, bt_exchange_t *x)
{
    bt_text_t t;

    bt_text_init(&t);
    bool ready = bt_readiness_describe(d->workers, d->shared, &t);
    respond_json(x, ready ? 200 : 503, bt_text_str(&t));
    bt_text_fini(&t);
}

#define ABORT_BODY_MAX 65536 /* a rid is short; what is longer isn't read */

static void abort_request(bt_dispatcher_t *d, bt_exchange_t *x, const bt_identity_t *identity)
{
    bt_json_item_t rid;
    char id[BT_REQUEST_ID_MAX];
    long n = -1;

    if (x->body.n <= ABORT_BODY_MAX && bt_json_get(x->body, BT_STR("rid"), &rid) == 0 &&
        rid.type == BT_JSON_STRING)
        n = bt_json_unescape(rid.value, id, sizeof(id));
    if (n <= 0) {
        bt_answer_exchange(x, 400,
                           "abort_request needs \"rid\": a request's rid or X-Request-Id "
                           "(abort_all is not a client's to ask)");
        return;
    }
    bt_dispatch_shared_cancel(d->shared, (bt_str_t){id, (size_t) n}, bt_client_owner(identity, x));
    bt_exchange_respond(x, 200, NULL, BT_STR(""), NULL,
                        0); /* as the engine does: it says only that the call arrived */
}

/* Traffic theft and SSRF in the wrong hands: with the admin key, or where there is none and a flag opens them. */
/* *who_p: it was not the admin key. */
static bool may_manage_workers(bt_dispatcher_t *d, bt_exchange_t *x, bt_identity_t *identity,
                               const bt_identity_t **who_p)
{
    const bt_dispatch_config_t *config = &d->shared->config;
    const enum bt_scope_bit scope = x->head.method == BT_GET || x->head.method == BT_HEAD
                                        ? BT_MAY_READ_ADMIN
                                        : BT_MAY_CHANGE_ADMIN;

    if (d->shared->worker_paths == NULL)
        return false;
    if (config->admin_key == NULL)
        return config->client_worker_api;
    if (bt_str_is_secret(bt_str(config->admin_key), bt_client_key_given(&x->head)))
        return true;
    *who_p = identity;
    return d->checker != NULL && bt_identify(d, x, scope, identity) == BT_AUTH_OK;
}

bool bt_own_routes_handle(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route)
{
    const bool keyed = route == BT_ROUTE_MODELS || route == BT_ROUTE_ABORT;
    const enum bt_scope_bit scope = bt_identify_scope(route, &x->head);
    enum bt_auth_refusal refusal = BT_AUTH_OK;
    const bt_identity_t *who = NULL;
    bt_identity_t identity;

    if (keyed && (refusal = bt_identify(d, x, scope, &identity)) != BT_AUTH_OK) {
        bt_identify_refuse_exchange(d, x, refusal, scope);
        return true;
    }
    switch (route) {
    case BT_ROUTE_HEALTH:
    case BT_ROUTE_LIVENESS:
        bt_exchange_respond(x, 200, "text/plain", BT_STR("ok\n"), NULL, 0);
        return true;
    case BT_ROUTE_READINESS:
        readiness(d, x);
        return true;
    case BT_ROUTE_ABORT:
        abort_request(d, x, &identity);
        return true;
    case BT_ROUTE_MODELS:
        bt_models_answer(d, x);
        return true;
    case BT_ROUTE_WORKERS:
        if (!may_manage_workers(d, x, &identity, &who))
            return false; /* an ordinary 404 */
        d->shared->worker_paths(d->shared->worker_paths_user, x, who);
        return true;
    default:
        return false;
    }
}
