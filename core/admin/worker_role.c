/* POST /workers/<key>/role: 202, for a drain takes as long as its requests; GET /workers/<key> says how it goes. */
#include "admin/query.h"
#include "admin/workers.h"
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
    char err[ERR_BYTES] = "out of memory";
    ask_t a;
    int rc;

    if (w == NULL) {
        bt_reply_error(c->reply, 404, "there is no worker %.*s; GET /workers lists them",
                       BT_STR_ARG(c->key));
        return;
    }
    if (c->config->fleet != NULL || c->config->role_switches == NULL) {
        bt_reply_error(c->reply, 409,
                       "replicas that share a store do not switch roles: drain it, remove it, "
                       "switch its engine, and add it in the new role");
        return;
    }
    if (!read_ask(c, &a))
        return;
    rc = bt_role_switches_begin(c->config->role_switches, w, &a.ask, err, sizeof err);
    if (rc < 0) {
        bt_reply_error(c->reply,
                       rc == BT_E_AGAIN   ? 409
                       : rc == BT_E_NOMEM ? 503
                                          : 400,
                       "worker %s: %s", w->name, err);
        return;
    }
    c->reply->status = 202;
    bt_text_puts(&c->reply->body, "{\"status\":\"switching\",\"worker\":");
    bt_text_json_str(&c->reply->body, bt_str(w->name));
    bt_text_printf(&c->reply->body, ",\"to\":\"%s\"}\n", bt_role_name(a.ask.to));
}
