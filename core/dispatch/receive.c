/* receive.c - from an HTTP exchange to a request whose body has been read: path, identity, limits, body.
 *
 * Whatever goes on to a worker has passed here, on every path: its path is canonical, and if its body is, or could be taken for, a JSON
 * object, it has been read as one and freed of what a client may not say.
 */
#include "api/path.h"
#include "dispatch/answer/answer.h"
#include "dispatch/dispatcher.h"
#include "dispatch/intake/identify.h"
#include "dispatch/intake/scan.h"
#include "dispatch/request.h"

/* ---- the body ---- */

#define LEAD_MAX 4096 /* bytes before the first brace; who sends more of them means JSON */

/* Does it begin as a JSON object does? Python's json reads UTF-16 and UTF-32 too, and skips a BOM: an engine could find an object
 * where we would see bytes. bt_intent_read then refuses what is not plain UTF-8. */
static bool is_like_json(bt_str_t body)
{
    static const char lead[] = " \t\r\n\xef\xbb\xbf\xfe\xff"; /* and NUL, which strchr finds, too */

    for (size_t i = 0; i < body.n && i < LEAD_MAX; i++)
        if (strchr(lead, body.p[i]) == NULL)
            return body.p[i] == '{';
    return body.n > LEAD_MAX;
}

static bool is_form(const bt_request_t *r)
{
    const bt_str_t type = BT_STR("multipart/form-data"),
                   given = bt_head_get(&r->x->head, BT_STR("content-type"));

    return given.n >= type.n && bt_str_ieq((bt_str_t){given.p, type.n}, type);
}

static bool refuse_body(bt_request_t *r, unsigned status, const char *why)
{
    bt_answer_error(r, status, why, 0);
    return false;
}

/* True: it is to be read as JSON. False: it goes on as it came, or has been refused (r->finished). */
static bool is_json_wanted(bt_request_t *r)
{
    const bt_str_t body = r->x->body;

    switch (bt_route_info(r->route)->body) {
    case BT_BODY_JSON:
        if (r->x->head.method == BT_POST)
            return true;
        return refuse_body(r, 405, "this route takes POST");
    case BT_BODY_FORM:
        if (body.n == 0 || is_like_json(body) || is_form(r))
            return is_like_json(body);
        return refuse_body(r, 415, "this route takes multipart/form-data");
    case BT_BODY_OPTIONAL:
        if (body.n == 0 || is_like_json(body))
            return body.n != 0;
        return refuse_body(r, is_form(r) ? 415 : 400, "this route takes a JSON object");
    default:
        return is_like_json(body);
    }
}

static void name_model(bt_request_t *r)
{
    const bt_str_t name =
        r->route == BT_ROUTE_MODEL ? bt_route_name(r->route, r->path) : BT_STR_NULL;
    char *text;

    if (name.n == 0)
        return;
    text = bt_arena_alloc(&r->arena, name.n);
    r->intent.model = (bt_str_t){text, bt_path_decode(name, text, name.n)};
}

/* Nothing it is freed of is left in it now, and it is known what it asks for. */
/* What is told of a request when its body's index is gone. */
static void keep_names(bt_intent_t *intent, bt_arena_t *arena)
{
    bt_str_t *const names[] = {&intent->model, &intent->session, &intent->previous_response,
                               &intent->client_rid};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i]->n != 0)
            *names[i] = bt_arena_str(arena, *names[i]);
}

static void on_read(bt_request_t *r, int rc, const char *why)
{
    if (rc < 0) {
        bt_answer_error(r, 400, why, 0);
        return;
    }
    keep_names(&r->intent, &r->arena);
    name_model(r);
    if (!bt_identity_may_use(r->identity, r->intent.model)) {
        bt_identify_refuse(r, BT_AUTH_MODEL);
        return;
    }
    r->workers = bt_workers_ref(r->d->workers);
    bt_request_start(r);
}

static bool is_coded(const bt_head_t *head)
{
    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_ieq(head->headers[i].name, BT_STR("content-encoding")) &&
            !bt_str_ieq(head->headers[i].value, BT_STR("identity")))
            return true;
    return false;
}

void bt_request_read_body(bt_request_t *r)
{
    const bt_str_t body = r->x->body;
    const char *why = NULL;
    int rc = 0;

    if (is_coded(&r->x->head)) {
        bt_answer_error(
            r, 415, "a coded request body (Content-Encoding) is not supported: send it plain", 0);
        return;
    }
    r->intent.n = 1;
    r->intent.route = r->route;
    bt_edits_init(&r->intent.strip, &r->send_arena);
    r->intent.body.text = body;
    const bool is_json = is_json_wanted(r);
    if (r->finished)
        return;
    if (is_json && body.n > BT_SCAN_MIN_BYTES) {
        bt_scan_start(r, on_read);
        return;
    }
    if (is_json)
        rc = bt_intent_read(&r->intent, &r->send_arena, r->route, body, &why);
    on_read(r, rc, why);
}

/* ---- the request ---- */

/* With a queue it is the pools that are full, and that is known later. */
static unsigned limit_of(const bt_dispatch_shared_t *shared)
{
    return shared->queues == NULL ? shared->config.max_concurrent : 0;
}

static bool admit(bt_request_t *r)
{
    bt_dispatch_shared_t *shared = r->d->shared;
    unsigned now = atomic_fetch_add_explicit(&shared->concurrent, 1, memory_order_relaxed);

    r->counted = true;
    if (limit_of(shared) == 0 || now < limit_of(shared))
        return true;
    bt_answer_error(r, 503, "too many concurrent requests (--max-concurrent-requests)", 1);
    return false;
}

#define SMALL_BODY_BYTES 65536

/* What the admin side answers keeps its path as it came: a worker's url is part of it, slashes and all. */
static const char *settle_path(bt_exchange_t *x)
{
    return bt_str_starts(x->head.path, BT_STR("/workers/")) ? NULL
                                                            : bt_path_settle(&x->head, &x->arena);
}

static bool asks_for_websocket(const bt_head_t *head)
{
    return head->method == BT_GET &&
           bt_head_has_token(head, BT_STR("upgrade"), BT_STR("websocket"));
}

/* What is refused anyway is refused before a large body is read. Small ones are read, so that the refusal has the client's own
 * form, a request id and an access-log line. */
static unsigned on_head(bt_exchange_t *x, const char **reason_p)
{
    bt_dispatcher_t *d = bt_server_user(x->server);
    const bt_dispatch_shared_t *shared = d->shared;
    enum bt_auth_refusal refusal;
    bt_identity_t identity;

    if (!x->head.chunked && (!x->head.has_length || x->head.length <= SMALL_BODY_BYTES))
        return 0;
    refusal = bt_identify(d, x, BT_MAY_INFER, &identity);
    if (refusal != BT_AUTH_OK) {
        *reason_p = bt_identify_refusal(d, refusal, BT_MAY_INFER);
        return bt_auth_status(refusal);
    }
    x->sender = identity.owner;
    *reason_p = settle_path(x);
    if (*reason_p != NULL)
        return 400;
    if (bt_route_of(x->head.path, shared->config.proxy_paths) == BT_ROUTE_NONE) {
        *reason_p = "no such route on this gateway";
        return 404;
    }
    if (limit_of(shared) != 0 &&
        atomic_load_explicit(&shared->concurrent, memory_order_relaxed) >= limit_of(shared)) {
        *reason_p = "too many concurrent requests (--max-concurrent-requests)";
        return 503;
    }
    return 0;
}

/* True: it has been answered. What the gateway answers itself has been answered before, where this port has it. */
static bool is_refused(bt_request_t *r, enum bt_auth_refusal refusal, const char *path_refusal)
{
    if (refusal != BT_AUTH_OK)
        bt_identify_refuse(r, refusal);
    else if (path_refusal != NULL)
        bt_answer_error(r, 400, path_refusal, 0);
    else if (r->route == BT_ROUTE_NONE || bt_route_info(r->route)->body == BT_BODY_NONE)
        bt_answer_error(r, 404, "no such route on this gateway", 0);
    else if (asks_for_websocket(&r->x->head))
        bt_answer_error(r, 501, "this gateway speaks no WebSocket", 0);
    else
        return false;
    return true;
}

/* A browser asks for a page whether it may ask; without a key, so that comes first. */
static bool answer_preflight(bt_exchange_t *x)
{
    const bt_edge_t *edge = bt_server_edge(x->server);
    bt_header_t headers[BT_CORS_PREFLIGHT_MAX];
    unsigned count;

    if (edge == NULL || !bt_cors_is_preflight(&edge->cors, &x->head))
        return false;
    const unsigned status = bt_cors_preflight(x->cors_origin, &x->head, headers, &count);
    if (status == 204)
        bt_exchange_respond(x, status, NULL, BT_STR(""), headers, count);
    else
        bt_answer_exchange(x, status, "pages of this origin are not served (--cors-origin)");
    return true;
}

static void on_request(bt_exchange_t *x)
{
    bt_dispatcher_t *d = bt_server_user(x->server);

    if (answer_preflight(x))
        return;
    const char *path_refusal = settle_path(x);
    enum bt_route route = path_refusal == NULL
                              ? bt_route_of(x->head.path, d->shared->config.proxy_paths)
                              : BT_ROUTE_NONE;
    enum bt_auth_refusal refusal;
    bt_identity_t identity;
    bt_request_t *r;

    x->user = NULL;
    if (bt_own_routes_handle(d, x, route))
        return;
    r = bt_request_new(d, x, route);
    if (r == NULL) {
        bt_answer_exchange(x, 503, "out of memory");
        return;
    }
    refusal = bt_identify(d, x, bt_identify_scope(route, &x->head), &identity);
    r->identity = bt_identity_copy(&identity, &r->arena);
    if (is_refused(r, refusal, path_refusal))
        return;
    r->owner = bt_client_owner(r->identity, x);
    if (!r->identity->sets_tenant) /* or workers and policies would believe it */
        bt_head_drop(&x->head, BT_STR("x-tenant-id"));
    if (admit(r))
        bt_request_read_body(r);
}

static void on_gone(bt_exchange_t *x)
{
    struct bt_handler *h = x->user;

    if (h != NULL)
        h->gone(h);
}

static void on_drain(bt_exchange_t *x)
{
    struct bt_handler *h = x->user;

    if (h != NULL && h->drain != NULL)
        h->drain(h);
}

const bt_server_ops_t bt_dispatcher_server_ops = {.on_head = on_head,
                                                  .on_request = on_request,
                                                  .on_gone = on_gone,
                                                  .on_drain = on_drain,
                                                  .put_refusal = bt_answer_put_refusal};
