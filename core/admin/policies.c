/* The exchange points to a `wait` until the reload has told; both may end first. */
#include "admin/policies.h"

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

/* The caller does it, with the name. */
void bt_policies_check(const bt_admin_call_t *c)
{
    if (!has_policies(c))
        return;
    bt_policies_take_name(c);
    if (c->reply->status == 200 && c->request->method == BT_PUT && c->request->body.n == 0)
        bt_reply_error(c->reply, 400, "the body must be the policy's Lua text");
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
                        bool is_put, bt_str_t name)
{
    struct wait *w = bt_arena_zalloc(&x->arena, sizeof(*w));

    *w = (struct wait){.base.gone = on_gone, .reload = reload, .x = x, .change = change};
    x->user = &w->base;
    if (is_put)
        bt_reload_put(reload, name, x->body, on_done, w);
    else
        bt_reload_remove(reload, name, on_done, w);
}
