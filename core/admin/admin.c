/* Most routes answer in the same turn. /metrics, /requests, /explain and /rooms/<room> wait for facts of the request loops: the exchange points to a
 * `wait`, which hears of the facts, or of the client that left first.
 *
 * The memory guard of the data plane (max_buffered_bytes) does not apply here: an operator must get through when the gateway
 * is full. Bodies are small instead.
 */
#include "admin/admin_impl.h"

#include "admin/call/origin.h"
#include "admin/policies/policies.h"
#include "admin/policies/rollout.h"
#include "admin/routes.h"
#include "admin/scrape.h"
#include "admin/status/explain.h"
#include "admin/status/rooms.h"
#include "admin/ui/session.h"
#include "admin/ui/ui_state.h"
#include "admin/ui/ui_stream.h"
#include "api/client.h"
#include "base/err.h"
#include "dispatch/intake/identify.h"

#include <stdlib.h>

struct bt_admin {
    bt_loop_t *loop;
    bt_admin_config_t config;
    bt_server_config_t server_config;
    bt_server_t *server;
    bt_checker_t *checker; /* NULL = there are no keys but the admin key */
    bt_listener_t *listener;
    bt_ui_stream_t *stream; /* to open pages */
    _Atomic unsigned refs;  /* itself, and mail of the client port */
    bool closing;
    void (*done)(void *arg);
    void *done_arg;
};

typedef struct wait {
    struct bt_admin_wait base;
    bt_admin_t *admin;
    bt_exchange_t *x;
    bt_gather_t *gather; /* NULL once it has told */
    enum bt_answer_state state;
    bt_str_t id;  /* BT_WANTS_RECORD: in the exchange's arena */
    bool as_text; /* likewise */
    bool is_open; /* BT_WANTS_METRICS: in OpenMetrics' format */
    uint64_t
        number; /* BT_WANTS_ROOM: which; BT_WANTS_RECORD without an id, BT_WANTS_REQUESTS: how many */
} wait_t;

/* ---- answers that wait for the loops ---- */

static void on_facts(void *user, const bt_loop_facts_t *facts, unsigned count)
{
    wait_t *w = user;
    const bt_admin_config_t *config = &w->admin->config;
    bt_admin_reply_t reply;

    w->gather = NULL;
    bt_reply_init(&reply);
    if (w->state == BT_WANTS_METRICS) {
        reply.type = w->is_open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                : "text/plain; version=0.0.4; charset=utf-8";
        reply.rows = bt_scrape_new(config, facts, count, w->is_open, &reply.body);
        if (reply.rows == NULL)
            bt_reply_error(&reply, 503, "%s", bt_err_text(BT_E_NOMEM));
    } else if (w->state == BT_WANTS_RECORD && w->id.n == 0) {
        bt_explain_list(&reply, (unsigned) w->number, w->as_text, facts, count);
    } else if (w->state == BT_WANTS_RECORD) {
        bt_explain_answer(&reply, w->id, w->as_text, facts, count);
    } else if (w->state == BT_WANTS_ROOM) {
        bt_admin_room_answer(config, w->number, facts, count, &reply);
    } else if (w->state == BT_WANTS_UI_STATE) {
        bt_ui_write_all(config, facts, count, &reply.body);
    } else {
        bt_live_requests(&reply.body, facts, count);
    }
    w->x->user = NULL;
    bt_admin_send(w->x, &reply);
    bt_reply_fini(&reply);
}

static void on_asker_gone(struct bt_admin_wait *base)
{
    wait_t *w = bt_container_of(base, wait_t, base);

    if (w->gather != NULL)
        bt_gather_cancel(w->gather);
}

static int gather(wait_t *w)
{
    bt_gather_ask_t ask = {
        .what = BT_GATHER_COUNTS, .id = w->id, .room = w->number, .limit = (unsigned) w->number};

    if (w->state == BT_WANTS_REQUESTS)
        ask = (bt_gather_ask_t){.what = BT_GATHER_REQUESTS,
                                .limit = bt_gather_share(w->admin->config.shared, ask.limit)};
    else if (w->state == BT_WANTS_UI_STATE)
        ask = bt_ui_ask(w->admin->config.shared);
    else if (w->state == BT_WANTS_RECORD)
        ask.what = w->id.n > 0 ? BT_GATHER_RECORD : BT_GATHER_RECENT;
    else if (w->state == BT_WANTS_ROOM)
        ask.what = BT_GATHER_ROOM;
    return bt_gather_start(&w->gather, w->admin->loop, w->admin->config.shared, &ask,
                           BT_LIVE_DEADLINE_MS, on_facts, w);
}

static void ask_loops(bt_admin_t *admin, bt_exchange_t *x, enum bt_answer_state state,
                      const bt_admin_reply_t *reply)
{
    wait_t *w = bt_arena_zalloc(&x->arena, sizeof(*w));

    *w = (wait_t){.base.gone = on_asker_gone, .admin = admin, .x = x, .state = state};
    w->id = bt_arena_str(&x->arena, bt_str(reply->name));
    w->as_text = reply->as_text;
    w->is_open = bt_str_find(bt_head_get(&x->head, BT_STR("accept")),
                             BT_STR("application/openmetrics-text")) >= 0;
    w->number = reply->number;
    x->user = &w->base;
    if (gather(w) == 0)
        return;
    bt_admin_notify(x, NULL, 503, bt_str(bt_err_text(BT_E_NOMEM)));
}

/* ---- who asks ---- */

static bool is_change(const bt_head_t *head)
{
    return head->method != BT_GET && head->method != BT_HEAD;
}

static void name_who(bt_exchange_t *x, const bt_identity_t *who, bt_admin_request_t *request)
{
    request->by = bt_arena_printf(&x->arena, "%s:%.*s", bt_identity_source_name(who->source),
                                  BT_STR_ARG(who->id))
                      .p;
}

/* One that is known but may not do this is told which scope it lacks. */
static void check_scope(const bt_head_t *head, unsigned scopes, bt_admin_request_t *request)
{
    const bool changes = is_change(head);

    request->authorized = true;
    if ((scopes & (changes ? BT_MAY_CHANGE_ADMIN : BT_MAY_READ_ADMIN)) != 0 ||
        request->refusal != NULL)
        return;
    request->refusal_status = 403;
    request->refusal = changes ? "this key, token or certificate lacks the scope \"admin-write\""
                               : "this key, token or certificate lacks the scope \"admin-read\"";
}

/* It says who asks in any case, and opens doors only where the operator has said which. */
static void check_certificate(const bt_admin_t *admin, bt_exchange_t *x,
                              bt_admin_request_t *request)
{
    bt_identity_t who;

    if (!bt_identify_certificate(x, BT_TENANT_BY_NAME, &who))
        return;
    name_who(x, &who, request);
    if (admin->config.certificate_scopes != 0)
        check_scope(&x->head, admin->config.certificate_scopes, request);
}

/* The page's cookie. Another port of this host is the same site to a browser, so its pages may send the cookie, too; but they cannot
 * hide where they come from. */
static void check_session(const bt_admin_t *admin, const bt_head_t *head,
                          bt_admin_request_t *request)
{
    if (bt_head_find(head, BT_STR("authorization")) != NULL)
        return;
    request->session =
        bt_sessions_find(admin->config.sessions, bt_head_get(head, BT_STR("cookie")));
    request->authorized = request->session.n > 0;
    if (!request->authorized || !is_change(head) || request->refusal != NULL ||
        bt_head_find(head, BT_STR("origin")) != NULL)
        return;
    request->refusal_status = 403;
    request->refusal = "a change in the name of the page's cookie must say its Origin";
}

/* A client's key or token. */
static bool check_identity(const bt_admin_t *admin, bt_exchange_t *x, bt_str_t shown,
                           bt_admin_request_t *request)
{
    bt_identity_t who;

    if (admin->checker == NULL ||
        bt_checker_check(admin->checker, shown, bt_clock_wall_ms(), &who) != BT_AUTH_OK)
        return false;
    name_who(x, &who, request);
    check_scope(&x->head, who.scopes, request);
    return true;
}

/* Its cookie stands for a client's key or token, which may count no longer. */
static void check_session_shown(const bt_admin_t *admin, bt_exchange_t *x,
                                bt_admin_request_t *request)
{
    const bt_str_t shown = bt_sessions_shown(admin->config.sessions, request->session);
    char cookie[160];

    if (shown.n == 0 || check_identity(admin, x, shown, request))
        return;
    bt_sessions_close(admin->config.sessions, request->session, cookie, sizeof cookie);
    request->session = BT_STR("");
    request->authorized = false;
}

/* The admin key, or a key or token whose scopes say so, or a certificate. */
static void check_key(const bt_admin_t *admin, bt_exchange_t *x, bt_admin_request_t *request)
{
    bt_str_t given = bt_head_get(&x->head, BT_STR("authorization"));

    const bool is_asked = admin->config.api_key != NULL;
    request->authorized = !is_asked && admin->config.certificate_scopes == 0;
    if (!is_asked || !bt_client_shows_key(&x->head))
        check_certificate(admin, x, request);
    if (!request->authorized && is_asked)
        check_session(admin, &x->head, request);
    if (request->session.n > 0)
        check_session_shown(admin, x, request);
    if (request->authorized || !is_asked || given.n < 7 || strncasecmp(given.p, "bearer ", 7) != 0)
        return;
    given = bt_str_trim((bt_str_t){given.p + 7, given.n - 7});
    request->authorized = bt_str_is_secret(bt_str(admin->config.api_key), given);
    if (!request->authorized && check_identity(admin, x, given, request))
        request->shown = given;
}

void bt_admin_check_origin(const bt_admin_t *admin, const bt_head_t *head,
                           bt_admin_request_t *request)
{
    /* A browser shows its user's certificate for any page, as it does not a key. */
    const bt_origin_rules_t rules = {.has_key = admin->config.api_key != NULL &&
                                                admin->config.certificate_scopes == 0,
                                     .listener = admin->config.listener,
                                     .names = admin->config.allowed_hosts};

    request->refusal = bt_origin_refusal(&rules, head, is_change(head), &request->refusal_status);
}

/* ---- server callbacks ---- */

static void ask_rollout(bt_admin_t *admin, bt_exchange_t *x, bt_audit_change_t *change,
                        enum bt_answer_state state, const bt_admin_reply_t *reply)
{
    const bt_rollout_request_t ask = {.what = state,
                                      .name = reply->name,
                                      .by = reply->by,
                                      .number = reply->number,
                                      .is_dry_run = reply->is_dry_run,
                                      .change = change};

    bt_rollout_answer(admin->config.rollout, x, &ask);
}

static void on_request(bt_exchange_t *x)
{
    bt_admin_t *admin = bt_server_user(x->server);
    bt_admin_request_t request = {
        .method = x->head.method, .path = x->head.path, .query = x->head.query, .body = x->body};
    bt_admin_reply_t reply;

    request.address = bt_str(x->peer);
    request.is_tls = x->tls_version != NULL;
    request.change = bt_arena_zalloc(&x->arena, sizeof *request.change);
    bt_admin_check_origin(admin, &x->head, &request);
    check_key(admin, x, &request);
    x->user = NULL;
    bt_reply_init(&reply);
    enum bt_answer_state state = bt_routes_answer(&admin->config, &request, &reply);
    if (state == BT_ANSWERED)
        bt_admin_send(x, &reply);
    else if (state == BT_WANTS_EVENTS)
        bt_ui_stream_add(admin->stream, x, request.session,
                         request.session.n > 0
                             ? bt_sessions_shown(admin->config.sessions, request.session)
                             : request.shown);
    else if (state == BT_WANTS_POLICY_PUT || state == BT_WANTS_POLICY_DELETE)
        bt_policies_change(admin->config.reload, x, request.change, state == BT_WANTS_POLICY_PUT,
                           &reply);
    else if (state >= BT_WANTS_FLEET_PUT)
        ask_rollout(admin, x, request.change, state, &reply);
    else
        ask_loops(admin, x, state, &reply);
    bt_reply_fini(&reply);
}

static void on_gone(bt_exchange_t *x)
{
    struct bt_admin_wait *w = x->user;

    if (w != NULL)
        w->gone(w);
}

static void on_drain(bt_exchange_t *x)
{
    struct bt_admin_wait *w = x->user;

    if (w != NULL && w->drain != NULL)
        w->drain(w);
}

static const bt_server_ops_t server_ops = {
    .on_request = on_request, .on_gone = on_gone, .on_drain = on_drain};

static void on_accept(bt_loop_t *loop, int fd, void *user)
{
    (void) loop;
    bt_admin_accept(user, fd);
}

/* ---- life ---- */

static void free_parts(bt_admin_t *admin)
{
    bt_checker_free(admin->checker);
    admin->checker = NULL;
    bt_ui_stream_free(admin->stream);
    admin->stream = NULL;
    bt_sessions_free(admin->config.sessions);
    admin->config.sessions = NULL;
}

int bt_admin_new(bt_admin_t **admin_p, bt_loop_t *control, const bt_admin_config_t *config)
{
    bt_admin_t *admin = calloc(1, sizeof(*admin));

    if (admin == NULL)
        return BT_E_NOMEM;
    admin->loop = control;
    admin->config = *config;
    if (admin->config.version == NULL)
        admin->config.version = BT_VERSION;
    admin->refs = 1;
    bt_server_config_defaults(&admin->server_config);
    admin->server_config.max_body_bytes = BT_ADMIN_BODY_MAX;
    admin->server_config.max_buffered_bytes = SIZE_MAX;
    admin->server_config.budget = admin->config.budget;
    admin->server_config.tls = admin->config.admin_tls;
    admin->config.sessions = bt_sessions_new();
    int rc = admin->config.sessions == NULL ? BT_E_NOMEM : 0;
    if (rc == 0 && config->shared != NULL && config->shared->identities != NULL)
        rc = bt_checker_new(&admin->checker, config->shared->identities);
    if (rc == 0) {
        admin->stream = bt_ui_stream_new(control, &admin->config, admin->checker);
        rc = admin->stream == NULL ? BT_E_NOMEM : 0;
    }
    if (rc == 0)
        rc = bt_server_new(&admin->server, control, &server_ops, &admin->server_config, admin);
    if (rc < 0) {
        free_parts(admin);
        free(admin);
        return rc;
    }
    *admin_p = admin;
    return 0;
}

/* There is a reserve for the operator's connections; should somebody have used it up, clients' idle ones go. */
static int on_full(bt_loop_t *loop, void *user)
{
    const bt_admin_t *admin = user;

    return bt_budget_free_one(admin->config.shared->config.upstream.budget, loop);
}

int bt_admin_listen(bt_admin_t *admin, int fd)
{
    int rc = bt_listener_start(&admin->listener, admin->loop, fd, NULL, on_accept, admin);

    if (rc == 0)
        bt_listener_on_full(admin->listener, on_full, admin);
    return rc;
}

static void stop_listening(bt_admin_t *admin)
{
    if (admin->listener != NULL)
        bt_listener_close(admin->listener);
    admin->listener = NULL;
}

void bt_admin_drain(bt_admin_t *admin)
{
    stop_listening(admin);
    bt_ui_stream_end_all(admin->stream); /* they would never end by themselves */
    bt_server_drain(admin->server, true);
}

void bt_admin_accept(bt_admin_t *admin, int fd)
{
    bt_server_accept(admin->server, fd, NULL);
}

void bt_admin_ref(bt_admin_t *admin)
{
    atomic_fetch_add_explicit(&admin->refs, 1, memory_order_relaxed);
}

void bt_admin_unref(bt_admin_t *admin)
{
    void (*done)(void *arg) = admin->done;
    void *arg = admin->done_arg;

    if (atomic_fetch_sub_explicit(&admin->refs, 1, memory_order_acq_rel) > 1)
        return;
    free(admin);
    if (done != NULL)
        done(arg);
}

const bt_admin_config_t *bt_admin_config_of(bt_admin_t *admin)
{
    return admin->closing ? NULL : &admin->config;
}

bt_loop_t *bt_admin_loop_of(bt_admin_t *admin)
{
    return admin->loop;
}

static void on_server_closed(void *arg)
{
    bt_admin_t *admin = arg;

    free_parts(admin);
    bt_admin_unref(admin);
}

void bt_admin_close(bt_admin_t *admin, void (*done)(void *arg), void *arg)
{
    admin->closing = true;
    admin->done = done;
    admin->done_arg = arg;
    stop_listening(admin);
    bt_server_close(admin->server, on_server_closed, admin);
}
