#include "dispatch/intake/identify.h"

#include "dispatch/answer/answer.h"
#include "tls/server.h"

enum bt_scope_bit bt_identify_scope(enum bt_route route, const bt_head_t *head)
{
    switch (route) {
    case BT_ROUTE_MODEL: /* goes to an engine as it came */
        return head->method == BT_GET || head->method == BT_HEAD ? BT_MAY_LIST_MODELS
                                                                 : BT_MAY_INFER;
    case BT_ROUTE_MODELS:
        return BT_MAY_LIST_MODELS;
    case BT_ROUTE_ABORT:
        return BT_MAY_CANCEL;
    default:
        return BT_MAY_INFER;
    }
}

bool bt_identify_certificate(bt_exchange_t *x, enum bt_certificate_tenant by,
                             bt_identity_t *identity_p)
{
    const char *name;
    bt_tls_info_t info;

    if (by == BT_TENANT_BY_NO_CERT || !bt_exchange_tls(x, &info) || info.peer == NULL)
        return false;
    const char *id = bt_tls_peer_id(info.peer);
    name = by == BT_TENANT_BY_ORGANIZATION ? bt_tls_peer_organization(info.peer)
                                           : bt_tls_peer_name(info.peer);
    if (name == NULL) /* of no organization: not of one that is called as the client is */
        name = id;
    char *tenant = bt_arena_alloc(&x->arena, BT_TENANT_MAX + 1);
    *identity_p = bt_identity_of_subject(bt_str(id), bt_tenant_of(bt_str(name), tenant));
    return true;
}

/* A key that is shown has to be right, whatever the certificate says. Where nobody has keys of ours, those that clients send are the
 * workers' business. The certificate of a listed proxy is not its clients'. Who shows nothing may be let in for less; for the rest he is asked for a key. */
enum bt_auth_refusal bt_identify(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_scope_bit scope,
                                 bt_identity_t *identity_p)
{
    const bool asks = d->checker != NULL;
    enum bt_auth_refusal refusal = BT_AUTH_OK;

    *identity_p = bt_identity_anonymous;
    const bool is_certified =
        (!asks || !bt_client_shows_key(&x->head)) && x->proxy == NULL &&
        bt_identify_certificate(x, d->shared->config.certificate_tenant, identity_p);
    if (asks && !is_certified)
        refusal = bt_checker_check(d->checker, bt_client_key_given(&x->head), bt_clock_wall_ms(),
                                   identity_p);
    if (refusal == BT_AUTH_MISSING && (d->shared->config.anonymous.scopes & scope) != 0 &&
        !bt_client_shows_key(&x->head)) {
        *identity_p = d->shared->config.anonymous;
        refusal = BT_AUTH_OK;
    }
    if (refusal == BT_AUTH_OK && (identity_p->scopes & scope) == 0)
        refusal = BT_AUTH_SCOPE;
    return refusal;
}

#define SCOPES_MAP(X)                                                                              \
    X(BT_MAY_INFER, "inference")                                                                   \
    X(BT_MAY_LIST_MODELS, "models")                                                                \
    X(BT_MAY_CANCEL, "cancel")                                                                     \
    X(BT_MAY_READ_ADMIN, "admin-read")                                                             \
    X(BT_MAY_CHANGE_ADMIN, "admin-write")                                                          \
    X(BT_MAY_GIVE_KV_HINTS, "kv-hints")

static const char *scope_text(enum bt_scope_bit scope)
{
    switch (scope) {
#define SCOPE_TEXT(bit, name)                                                                      \
    case bit:                                                                                      \
        return "this key or token lacks the scope \"" name "\"";
        SCOPES_MAP(SCOPE_TEXT)
#undef SCOPE_TEXT
    }
    return "this key or token lacks a scope";
}

static const char *scope_challenge(enum bt_scope_bit scope)
{
    switch (scope) {
#define SCOPE_CHALLENGE(bit, name)                                                                 \
    case bit:                                                                                      \
        return "Bearer realm=\"baton\", error=\"insufficient_scope\", scope=\"" name "\"";
        SCOPES_MAP(SCOPE_CHALLENGE)
#undef SCOPE_CHALLENGE
    }
    return "Bearer realm=\"baton\", error=\"insufficient_scope\"";
}

const char *bt_identify_refusal(bt_dispatcher_t *d, enum bt_auth_refusal refusal,
                                enum bt_scope_bit scope)
{
    bt_stats_inc(&d->stats, refused[refusal]);
    if (refusal == BT_AUTH_SCOPE)
        return scope_text(scope);
    if (refusal == BT_AUTH_MODEL)
        return "this key may not use this model, or the request names none";
    return bt_auth_text(refusal);
}

/* RFC 6750, section 3. */
const char *bt_identify_challenge(enum bt_auth_refusal refusal, enum bt_scope_bit scope)
{
    if (refusal == BT_AUTH_SCOPE)
        return scope_challenge(scope);
    if (bt_auth_status(refusal) != 401)
        return NULL;
    return refusal == BT_AUTH_MISSING ? "Bearer realm=\"baton\""
                                      : "Bearer realm=\"baton\", error=\"invalid_token\"";
}

void bt_identify_refuse(bt_request_t *r, enum bt_auth_refusal refusal)
{
    const enum bt_scope_bit scope = bt_identify_scope(r->route, &r->x->head);
    const char *challenge = bt_identify_challenge(refusal, scope);
    const bt_header_t header = {BT_STR("WWW-Authenticate"), bt_str(challenge)};

    r->fail_name = "auth";
    bt_answer_error_with(r, bt_auth_status(refusal), bt_identify_refusal(r->d, refusal, scope),
                         refusal == BT_AUTH_KEYS_UNKNOWN ? 1 : 0, &header, challenge != NULL);
}

void bt_identify_refuse_exchange(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_auth_refusal refusal,
                                 enum bt_scope_bit scope)
{
    const char *challenge = bt_identify_challenge(refusal, scope);
    const bt_header_t header = {BT_STR("WWW-Authenticate"), bt_str(challenge)};

    bt_answer_exchange_with(x, bt_auth_status(refusal), bt_identify_refusal(d, refusal, scope),
                            &header, challenge != NULL);
}
