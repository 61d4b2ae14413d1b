/* POST /workers/<key>/role: 202, for a drain takes as long as its requests; GET /workers/<key> says how it goes. In a fleet it is an order to all replicas,
 * and begun only where they can be told: one that went on in the old role would send its requests to an engine in the other. */
#include "admin/call/query.h"
#include "admin/workers/workers.h"
#include "base/err.h"
#include "base/json.h"

#define ERR_BYTES 512
#define TIMEOUT_SECS_MAX 86400

typedef struct ask {
    bt_role_switch_ask_t ask;
    bool has_role;
} ask_t;

static int take_value(ask_t *a, bt_str_t name, bt_str_t value)
{
    int64_t secs;

    if (bt_str_eq(name, BT_STR("to"))) {
        a->has_role = true;
        return bt_role_parse(value, &a->ask.to);
    }
    if (bt_str_eq(name, BT_STR("force"))) {
        a->ask.is_forced = bt_str_eq(value, BT_STR("true"));
        return a->ask.is_forced || bt_str_eq(value, BT_STR("false")) ? 0 : BT_E_INVAL;
    }
    if (!bt_str_eq(name, BT_STR("timeout_secs")) || bt_json_i64(value, &secs) < 0 || secs < 1 ||
        secs > TIMEOUT_SECS_MAX)
        return BT_E_INVAL;
    a->ask.timeout_ms = (uint64_t) secs * 1000;
    return 0;
}

/* False: the answer says what is wrong. */
static bool read_ask(const bt_admin_call_t *c, ask_t *a)
{
    bt_str_t query = c->request->query, name, value;

    *a = (ask_t){.ask.timeout_ms = BT_ROLE_SWITCH_TIMEOUT_MS};
    while (bt_query_next(&query, &name, &value))
        if (take_value(a, name, value) < 0) {
            bt_reply_error(c->reply, 400,
                           "%.*s=%.*s: the query may have to=prefill, decode or hybrid, "
                           "timeout_secs=1 to %d, force=true or false",
                           BT_STR_ARG(name), BT_STR_ARG(value), TIMEOUT_SECS_MAX);
            return false;
        }
    if (!a->has_role)
        bt_reply_error(c->reply, 400, "say which role: ?to=prefill, decode or hybrid");
    return a->has_role;
}

void bt_workers_set_role(const bt_admin_call_t *c)
{
    bt_worker_t *w = bt_workers_find(bt_registry_current(c->config->registry), c->key);
    bt_fleet_t *fleet = c->config->fleet;
    char err[ERR_BYTES] = "out of memory";
    const char *untold = fleet != NULL ? bt_fleet_why_untold(fleet) : NULL;
    ask_t a;
    int rc;

    if (w == NULL) {
        bt_reply_error(c->reply, 404, "there is no worker %.*s; GET /workers lists them",
                       BT_STR_ARG(c->key));
        return;
    }
    if (c->config->role_switches == NULL) {
        bt_reply_error(c->reply, 409, "roles are fixed here");
        return;
    }
    if (!read_ask(c, &a))
        return;
    if (untold != NULL) {
        bt_reply_error(c->reply, 503, "a role is switched by all replicas or by none: %s", untold);
        return;
    }
    a.ask.settle_ms = fleet != NULL && bt_fleet_replicas(fleet) > 1 ? BT_FLEET_SETTLE_MS : 0;
    rc = bt_role_switches_begin(c->config->role_switches, w, &a.ask, err, sizeof err);
    if (rc < 0) {
        bt_reply_error(c->reply,
                       rc == BT_E_AGAIN   ? 409
                       : rc == BT_E_NOMEM ? 503
                                          : 400,
                       "worker %s: %s", w->name, err);
        return;
    }
    if (fleet != NULL)
        untold = bt_fleet_worker_role(
            fleet, bt_workers_pool_of(bt_registry_current(c->config->registry), w)->spec.name, w,
            &a.ask);
    c->reply->status = 202;
    bt_text_puts(&c->reply->body, "{\"status\":\"switching\"");
    bt_text_json_member(&c->reply->body, "worker", w->name);
    bt_text_json_member(&c->reply->body, "to", bt_role_name(a.ask.to));
    bt_workers_end_told(c, untold);
}
