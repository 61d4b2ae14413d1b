/* One table says what is served; the list at "/" is printed from it, so it cannot go stale.
 *
 * A '*' in a path is one worker or request: its text is taken percent-decoded, and may hold slashes (a url does). Who may
 * ask is decided before what is asked, so that nobody learns by probing which routes there are.
 */
#include "admin/routes.h"

#include "admin/call/query.h"
#include "admin/policies/policies.h"
#include "admin/policies/rollout.h"
#include "admin/status/advice.h"
#include "admin/status/discovery.h"
#include "admin/status/explain.h"
#include "admin/status/flight.h"
#include "admin/status/kv.h"
#include "admin/status/limits.h"
#include "admin/status/rooms.h"
#include "admin/ui/ui.h"
#include "admin/workers/workers.h"
#include "base/log.h"
#include "base/sandbox.h"

#include <stdio.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))
#define REQUESTS_MAX 1000

/* ---- handlers ---- */

static void get_health(const bt_admin_call_t *c)
{
    c->reply->type = "text/plain; charset=utf-8";
    bt_text_puts(&c->reply->body, "ok\n");
}

static void get_readiness(const bt_admin_call_t *c)
{
    const bt_workers_t *workers = bt_registry_current(c->config->registry);

    if (!bt_readiness_describe(workers, c->config->shared, &c->reply->body))
        c->reply->status = 503;
}

static void get_fleet(const bt_admin_call_t *c)
{
    if (c->config->fleet != NULL)
        bt_fleet_describe(c->config->fleet, &c->reply->body);
    else
        bt_reply_error(c->reply, 404, "this gateway is alone: --redis-url makes it one of a fleet");
}

/* What was asked for, and what came of it: auto goes on where the kernel has no Landlock. */
static void write_sandbox(bt_text_t *out, const char *mode)
{
    const bt_sandbox_state_t is = bt_sandbox_state();
    const bool is_off = mode == NULL || strcmp(mode, "off") == 0;

    bt_text_printf(out, "{\"mode\":\"%s\",\"landlock\":\"%s\"", is_off ? "off" : mode,
                   is.has_landlock ? "on"
                   : is_off        ? "off"
                                   : "unavailable");
    if (is.has_landlock)
        bt_text_printf(out, ",\"landlock_abi\":%u", is.landlock_abi);
    bt_text_printf(out, ",\"seccomp\":\"%s\"}", is.has_seccomp ? "on" : "off");
}

static void get_version(const bt_admin_call_t *c)
{
    bt_text_puts(&c->reply->body, "{\"version\":");
    bt_text_json_str(&c->reply->body, bt_str(c->config->version));
    bt_text_puts(&c->reply->body, ",\"sandbox\":");
    write_sandbox(&c->reply->body, c->config->sandbox);
    bt_text_puts(&c->reply->body, "}\n");
}

/* An event thread describes its share in one turn, while its tokens wait. */
static void check_requests(const bt_admin_call_t *c)
{
    bt_str_t query = c->request->query, name, value;

    c->reply->number = REQUESTS_MAX;
    while (bt_query_next(&query, &name, &value))
        if (!bt_str_eq(name, BT_STR("limit")) || bt_str_u64(value, &c->reply->number) < 0 ||
            c->reply->number == 0 || c->reply->number > REQUESTS_MAX)
            bt_reply_error(c->reply, 400, "?limit=N, with N from 1 to %d, is all that this takes",
                           REQUESTS_MAX);
}

/* 202: the loop that has the request hears of it by mail. */
static void cancel_request(const bt_admin_call_t *c)
{
    bt_dispatch_shared_cancel(c->config->shared, c->key, 0);
    c->reply->status = 202;
    bt_text_puts(&c->reply->body, "{\"status\":\"cancelling\",\"request\":");
    bt_text_json_str(&c->reply->body, c->key);
    bt_text_puts(&c->reply->body, "}\n");
}

static void get_index(const bt_admin_call_t *c);

/* ---- the table ---- */

static const struct route {
    enum bt_method method;
    const char *path;
    void (*handle)(const bt_admin_call_t *c); /* NULL: the caller's, see state */
    enum bt_answer_state state;
    bool open;    /* served without the key */
    bool workers; /* also on the client port */
    const char *help;
} routes[] = {
    {BT_GET, "/", get_index, BT_ANSWERED, false, false, "this list"},
    {BT_GET, "/metrics", NULL, BT_WANTS_METRICS, true, false, "Prometheus metrics"},
    {BT_GET, "/health", get_health, BT_ANSWERED, true, false, "the process serves"},
    {BT_GET, "/readiness", get_readiness, BT_ANSWERED, false, false,
     "200 when a usable set of workers is there, else why not"},
    {BT_GET, "/version", get_version, BT_ANSWERED, false, false,
     "version of the gateway, and what its sandbox (--sandbox) came to"},
    {BT_GET, "/workers", bt_workers_list, BT_ANSWERED, false, true,
     "all workers, with everything known"},
    {BT_POST, "/workers", bt_workers_add, BT_ANSWERED, false, true,
     "add one: {\"url\": ..., \"role\": ..., \"connector\": ...}"},
    {BT_POST, "/workers/*/drain", bt_workers_drain, BT_ANSWERED, false, true,
     "no new requests to it, from any replica of a fleet; \"fleet\": are they told?"},
    {BT_POST, "/workers/*/undrain", bt_workers_undrain, BT_ANSWERED, false, true,
     "requests to it again; a url that GET /fleet lists as drained needs no worker"},
    {BT_POST, "/workers/*/role", bt_workers_set_role, BT_ANSWERED, false, true,
     "?to=prefill|decode|hybrid: drain it, switch its engine, use it so; &timeout_secs=N, "
     "&force=true"},
    {BT_GET, "/workers/*", bt_workers_show, BT_ANSWERED, false, true,
     "one worker by name or url, and whom it pairs with"},
    {BT_DELETE, "/workers/*", bt_workers_remove, BT_ANSWERED, false, true,
     "remove it; its running requests finish"},
    {BT_GET, "/advice", bt_admin_advice, BT_ANSWERED, false, false,
     "which role holds each pool up, and how many workers of each would balance it; ?format=text "
     "for people"},
    {BT_GET, "/discovery", bt_admin_discovery, BT_ANSWERED, false, false,
     "sources that find workers by themselves, and why some pods are none"},
    {BT_GET, "/kv", bt_admin_kv, BT_ANSWERED, false, false,
     "engines whose KV events are followed: what is known of their caches, and whether it is "
     "believed"},
    {BT_GET, "/limits", bt_admin_limits, BT_ANSWERED, false, false,
     "what clients may use, and how many were refused"},
    {BT_GET, "/requests", check_requests, BT_WANTS_REQUESTS, false, false,
     "live requests, the oldest on each event thread, and how many there are in all; ?limit=N"},
    {BT_POST, "/requests/*/cancel", cancel_request, BT_ANSWERED, false, false,
     "cancel one by its id"},
    {BT_DELETE, "/requests/*", cancel_request, BT_ANSWERED, false, false, "the same"},
    {BT_GET, "/explain", bt_explain_check_list, BT_WANTS_RECORD, false, false,
     "the last requests that have ended, the newest first; ?limit=N, ?format=text for people"},
    {BT_GET, "/explain/*", bt_explain_check, BT_WANTS_RECORD, false, false,
     "why a request went where it did, by its id; ?format=text for people"},
    {BT_GET, "/debug/flight", bt_admin_flight, BT_ANSWERED, false, false,
     "the flight recorder: what was unusual lately on each loop, the newest last; ?secs=N"},
    {BT_GET, "/fleet", get_fleet, BT_ANSWERED, false, false,
     "the replicas that share this store, how the store is, and what is drained"},
    {BT_GET, "/fleet/policies", bt_rollouts_list, BT_ANSWERED, false, false,
     "the set of policies and rules that all replicas serve, and who serves another"},
    {BT_PUT, "/fleet/policies", bt_rollouts_check, BT_WANTS_FLEET_BUNDLE, false, false,
     "several at once, for all replicas: {\"policies\": {\"name\": \"text\"}, \"rules\": "
     "\"text\"}; ?dry_run=true here too"},
    {BT_DELETE, "/fleet/policies", bt_rollouts_check, BT_WANTS_FLEET_CLEAR, false, false,
     "withdraw all of them: every replica's own files count again"},
    {BT_PUT, "/fleet/policies/*", bt_rollouts_check, BT_WANTS_FLEET_PUT, false, false,
     "the body is the policy's text on all replicas, or, if one refuses it, on none; "
     "?dry_run=true: all try it, and nothing changes"},
    {BT_DELETE, "/fleet/policies/*", bt_rollouts_check, BT_WANTS_FLEET_DROP, false, false,
     "withdraw one"},
    {BT_PUT, "/fleet/rules", bt_rollouts_check, BT_WANTS_FLEET_PUT_RULES, false, false,
     "the body is the rules file of all replicas"},
    {BT_DELETE, "/fleet/rules", bt_rollouts_check, BT_WANTS_FLEET_DROP_RULES, false, false,
     "withdraw it: every replica's own rules count again"},
    {BT_POST, "/fleet/rollback", bt_rollouts_check, BT_WANTS_FLEET_BACK, false, false,
     "the set before, on all replicas; ?to=N: that one"},
    {BT_POST, "/fleet/pin", bt_rollouts_check, BT_WANTS_FLEET_PIN, false, false,
     "this replica stays with what it serves now"},
    {BT_DELETE, "/fleet/pin", bt_rollouts_check, BT_WANTS_FLEET_UNPIN, false, false,
     "it follows the fleet again"},
    {BT_GET, "/rooms", bt_admin_rooms_list, BT_ANSWERED, false, false,
     "KV transfer: the engines' agents, and the rooms between them; ?limit=N"},
    {BT_GET, "/rooms/*", bt_admin_room_check, BT_WANTS_ROOM, false, false,
     "whose a room is, by its number: the request here, or which replicas may have it"},
    {BT_GET, "/policies", bt_policies_list, BT_ANSWERED, false, false,
     "which policy serves each pool, and why not another"},
    {BT_GET, "/rules", bt_policies_rules, BT_ANSWERED, false, false,
     "the rules that choose pool and policy, and how often each was taken"},
    {BT_GET, "/policies/*", bt_policies_show, BT_ANSWERED, false, false,
     "the text of one: of what serves, was put, or is shipped"},
    {BT_PUT, "/policies/*", bt_policies_check, BT_WANTS_POLICY_PUT, false, false,
     "the body is the policy's text from now on, for every pool that names it; ?dry_run=true: it "
     "is "
     "tried, and nothing changes"},
    {BT_DELETE, "/policies/*", bt_policies_check, BT_WANTS_POLICY_DELETE, false, false,
     "forget a text that was put: files and shipped policies count again"},
    {BT_GET, "/ui", bt_ui_file, BT_ANSWERED, false, false,
     "the dashboard, for a browser; it asks for the admin key"},
    {BT_GET, "/ui/events", bt_ui_check_events, BT_WANTS_EVENTS, false, false,
     "what it follows: once a second sums, workers and live requests, as server-sent events"},
    {BT_GET, "/ui/state", NULL, BT_WANTS_UI_STATE, false, false,
     "the same once, as one object (baton top)"},
    {BT_POST, "/ui/login", bt_ui_login, BT_ANSWERED, false, false,
     "with the admin key, or another that may change things: a cookie for an hour, which a page "
     "can "
     "send"},
    {BT_POST, "/ui/logout", bt_ui_logout, BT_ANSWERED, false, false, "takes the cookie back"},
    {BT_GET, "/ui/session", bt_ui_session, BT_ANSWERED, false, false,
     "may who asks see anything? Answers without the key"},
    {BT_GET, "/ui/*", bt_ui_file, BT_ANSWERED, false, false, "its files"},
    {BT_POST, "/add_worker", bt_workers_peer_add, BT_ANSWERED, false, true,
     "?url=...&worker_type=...&bootstrap_port=..."},
    {BT_POST, "/remove_worker", bt_workers_peer_remove, BT_ANSWERED, false, true, "?url=..."},
    {BT_GET, "/list_workers", bt_workers_peer_list, BT_ANSWERED, false, true, "{\"urls\":[...]}"},
};

static bool is_change(enum bt_method method)
{
    return method != BT_GET && method != BT_HEAD;
}

static void get_index(const bt_admin_call_t *c)
{
    c->reply->type = "text/plain; charset=utf-8";
    bt_text_printf(&c->reply->body, "baton %s, admin routes (each also below /admin):\n\n",
                   c->config->version);
    for (size_t i = 0; i < N(routes); i++)
        bt_text_printf(&c->reply->body, "%-6s %-20s %s\n", bt_method_name(routes[i].method),
                       routes[i].path, routes[i].help);
}

/* ---- finding the row ---- */

static bool matches(const char *pattern, bt_str_t path, bt_str_t *key_p)
{
    const char *star = strchr(pattern, '*');

    if (star == NULL)
        return bt_str_eq(path, bt_str(pattern));
    bt_str_t head = {pattern, (size_t) (star - pattern)}, tail = bt_str(star + 1);
    if (path.n <= head.n + tail.n || !bt_str_starts(path, head) ||
        !bt_str_eq((bt_str_t){path.p + path.n - tail.n, tail.n}, tail))
        return false;
    *key_p = (bt_str_t){path.p + head.n, path.n - head.n - tail.n};
    return true;
}

static bt_str_t strip_prefix(bt_str_t path)
{
    const bt_str_t prefix = BT_STR("/admin");

    if (bt_str_eq(path, prefix))
        return BT_STR("/");
    if (!bt_str_starts(path, prefix) || path.p[prefix.n] != '/')
        return path;
    return (bt_str_t){path.p + prefix.n, path.n - prefix.n};
}

static const struct route *find_route(bt_str_t path, enum bt_method method, bool workers_only,
                                      bt_str_t *key_p, const char **allow_p)
{
    bool takes[BT_METHOD_OTHER] = {false};

    if (method == BT_HEAD)
        method = BT_GET;
    for (size_t i = 0; i < N(routes); i++) {
        if ((workers_only && !routes[i].workers) || !matches(routes[i].path, path, key_p))
            continue;
        if (routes[i].method == method)
            return &routes[i];
        takes[routes[i].method] = true;
    }
    *allow_p = takes[BT_PUT] && takes[BT_GET]      ? "GET, HEAD, PUT, DELETE"
               : takes[BT_PUT]                     ? "PUT, DELETE"
               : takes[BT_GET] && takes[BT_POST]   ? "GET, HEAD, POST"
               : takes[BT_GET] && takes[BT_DELETE] ? "GET, HEAD, DELETE"
               : takes[BT_GET]                     ? "GET, HEAD"
               : takes[BT_POST]                    ? "POST"
               : takes[BT_DELETE]                  ? "DELETE"
                                                   : NULL;
    return NULL;
}

/* ---- who may ---- */

static bool is_open(bt_str_t path)
{
    for (size_t i = 0; i < N(routes); i++)
        if (routes[i].open && bt_str_eq(path, bt_str(routes[i].path)))
            return true;
    return false;
}

/* Not in the audit log: whoever has no key must not fill it. */
static void log_keyless(const bt_admin_request_t *request, bt_str_t path, const char *how,
                        unsigned status)
{
    bt_log_warn("admin", "%s of %.*s by %.*s%s: %u", bt_method_name(request->method),
                BT_STR_ARG(path), BT_STR_ARG(request->address), how, status);
}

static bool is_refused(const bt_admin_config_t *config, const bt_admin_request_t *request,
                       bt_str_t path, bt_admin_reply_t *reply)
{
    if (is_open(path))
        return false;
    if (config->metrics_only && !request->workers_only)
        bt_reply_error(reply, 403,
                       "this listener is bound beyond loopback without a key, so only /metrics and "
                       "/health are "
                       "served; set --admin-api-key, or bind it to 127.0.0.1");
    else if (!request->authorized && !bt_ui_is_page(path))
        bt_reply_error(reply, 401,
                       "missing or wrong key; send it as Authorization: Bearer <admin key>");
    else if (request->refusal != NULL)
        bt_reply_error(reply, request->refusal_status, "%s", request->refusal);
    else
        return false;
    if (is_change(request->method))
        log_keyless(request, path, " is refused", reply->status);
    return true;
}

/* ---- changes are written down ---- */

/* Of a query only what cannot be a secret: /add_worker takes keys of workers. */
static void keep_args(bt_str_t query, char *out, size_t size)
{
    static const bt_str_t shown[] = {BT_STR("to"), BT_STR("by"), BT_STR("force"),
                                     BT_STR("timeout_secs"), BT_STR("dry_run")};
    bt_str_t name, value;
    size_t used = 0;

    while (used < size && bt_query_next(&query, &name, &value))
        for (unsigned i = 0; i < N(shown) && used < size; i++)
            if (bt_str_eq(name, shown[i]))
                used += (size_t) snprintf(out + used, size - used, "%s%.*s=%.*s",
                                          used > 0 ? "&" : "", BT_STR_ARG(name), BT_STR_ARG(value));
}

static void begin_change(const struct route *route, const bt_admin_call_t *c,
                         bt_audit_change_t *change)
{
    *change = (bt_audit_change_t){.audit = c->config->audit,
                                  .method = bt_method_name(route->method),
                                  .what = route->path,
                                  .by = c->request->by != NULL       ? c->request->by
                                        : c->config->api_key != NULL ? "admin_key"
                                                                     : "anyone",
                                  .via = c->request->workers_only ? "client_port" : "admin_port",
                                  .address = c->request->address};
    keep_args(c->request->query, change->args, sizeof change->args);
    snprintf(change->object, sizeof change->object, "%.*s", BT_STR_ARG(c->key));
    bt_audit_begin(change);
}

static void handle(const struct route *route, bt_admin_call_t *c)
{
    bt_audit_change_t here, *change = c->request->change != NULL ? c->request->change : &here;

    if (!is_change(route->method)) {
        route->handle(c);
        return;
    }
    if (!c->request->authorized) { /* the page's login and logout */
        route->handle(c);
        log_keyless(c->request, bt_str(route->path), ", who has shown no key", c->reply->status);
        return;
    }
    begin_change(route, c, change);
    route->handle(c);
    if (c->reply->object[0] != '\0')
        bt_str_copy(change->object, sizeof change->object, c->reply->object);
    if (route->state == BT_ANSWERED || c->reply->status != 200)
        bt_audit_end(change, c->reply->status, bt_str(c->reply->why));
}

static enum bt_answer_state run_route(const struct route *route, bt_admin_call_t *c,
                                      bt_str_t raw_key)
{
    bt_text_t key;

    bt_text_init(&key);
    if (bt_query_decode(&key, raw_key, false) < 0) {
        bt_reply_error(c->reply, 400, "a broken %%-escape in the path");
    } else if (route->handle != NULL) {
        c->key = bt_text_str(&key);
        c->state = route->state;
        handle(route, c);
    }
    bt_text_fini(&key);
    return route->handle == NULL || c->reply->status == 200 ? route->state : BT_ANSWERED;
}

enum bt_answer_state bt_routes_answer(const bt_admin_config_t *config,
                                      const bt_admin_request_t *request, bt_admin_reply_t *reply)
{
    const bt_str_t path = request->workers_only ? request->path : strip_prefix(request->path);
    bt_admin_call_t c = {.config = config, .request = request, .reply = reply};
    bt_str_t key = BT_STR("");
    const char *allow = NULL;

    if (is_refused(config, request, path, reply))
        return BT_ANSWERED;
    const struct route *route =
        find_route(path, request->method, request->workers_only, &key, &allow);
    if (route != NULL)
        return run_route(route, &c, key);
    if (allow != NULL) {
        bt_reply_error(reply, 405, "this path takes %s", allow);
        reply->allow = allow;
    } else {
        bt_reply_error(reply, 404, "no such admin route; GET / lists them");
    }
    return BT_ANSWERED;
}
