/* The exchange points to a `wait` until the reload has told; both may end first. */
#include "admin/policies/policies.h"

#include "admin/call/query.h"

#include <stdio.h>

struct wait {
    struct bt_admin_wait base;
    bt_reload_t *reload;
    bt_exchange_t *x;
    bt_audit_change_t *change;
};

bool bt_policies_name_ok(bt_str_t name)
{
    if (name.n == 0 || name.n > 64 || name.p[0] == '.')
        return false;
    for (size_t i = 0; i < name.n; i++) {
        const char c = name.p[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              c == '_' || c == '-' || c == '.'))
            return false;
    }
    return true;
}

void bt_policies_take_name(const bt_admin_call_t *c)
{
    if (!bt_policies_name_ok(c->key))
        bt_reply_error(c->reply, 400,
                       "a policy's name is at most 64 letters, digits, '_', '-', '.'");
    else
        snprintf(c->reply->name, sizeof c->reply->name, "%.*s", BT_STR_ARG(c->key));
}

static bool has_policies(const bt_admin_call_t *c)
{
    if (c->config->reload != NULL)
        return true;
    bt_reply_error(c->reply, 404, "this gateway's policies cannot be seen here");
    return false;
}

void bt_policies_list(const bt_admin_call_t *c)
{
    if (has_policies(c))
        bt_reload_describe(c->config->reload, &c->reply->body);
}

void bt_policies_rules(const bt_admin_call_t *c)
{
    if (has_policies(c))
        bt_reload_describe_rules(c->config->reload, &c->reply->body);
}

void bt_policies_show(const bt_admin_call_t *c)
{
    if (!has_policies(c))
        return;
    c->reply->type = "text/plain; charset=utf-8";
    if (!bt_reload_put_code(c->config->reload, c->key, &c->reply->body))
        bt_reply_error(c->reply, 404, "there is no policy %.*s; GET /policies lists them",
                       BT_STR_ARG(c->key));
}

/* Whoever asks for a dry run and is not understood must not get a real one. */
static bool read_query(const bt_admin_call_t *c, bool *is_dry_run_p)
{
    bt_str_t query = c->request->query, name, value;

    while (bt_query_next(&query, &name, &value)) {
        const bool is_true = bt_str_eq(value, BT_STR("true"));
        if (c->request->method != BT_PUT || !bt_str_eq(name, BT_STR("dry_run")) ||
            (!is_true && !bt_str_eq(value, BT_STR("false"))))
            return false;
        *is_dry_run_p = is_true;
    }
    return true;
}

/* The caller does it, with the name. */
void bt_policies_check(const bt_admin_call_t *c)
{
    if (!has_policies(c))
        return;
    bt_policies_take_name(c);
    if (c->reply->status == 200 && c->request->method == BT_PUT && c->request->body.n == 0)
        bt_reply_error(c->reply, 400, "the body must be the policy's Lua text");
    else if (c->reply->status == 200 && !read_query(c, &c->reply->is_dry_run))
        bt_reply_error(
            c->reply, 400,
            "?dry_run=true or false is all that a PUT takes, and a DELETE takes nothing: "
            "it has not been done");
}

static void on_done(void *arg, unsigned status, bt_str_t text)
{
    struct wait *w = arg;

    bt_admin_notify(w->x, w->change, status, text);
}

static void on_gone(struct bt_admin_wait *base)
{
    struct wait *w = bt_container_of(base, struct wait, base);

    bt_reload_cancel(w->reload, w);
    bt_admin_abandon(w->change);
}

void bt_policies_change(bt_reload_t *reload, bt_exchange_t *x, bt_audit_change_t *change,
                        bool is_put, const bt_admin_reply_t *wanted)
{
    struct wait *w = bt_arena_zalloc(&x->arena, sizeof(*w));

    *w = (struct wait){.base.gone = on_gone, .reload = reload, .x = x, .change = change};
    x->user = &w->base;
    if (is_put)
        bt_reload_put(reload, bt_str(wanted->name), x->body, wanted->is_dry_run, on_done, w);
    else
        bt_reload_remove(reload, bt_str(wanted->name), on_done, w);
}
