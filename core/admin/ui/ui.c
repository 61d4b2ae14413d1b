/* The page is data for whoever asks: all that it shows it gets by routes which ask for the key. */
#include "admin/ui/ui.h"

#include "admin/ui/session.h"
#include "base/err.h"
#include "script/vm/embedded.h"

#include <string.h>

extern const struct bt_embedded bt_ui_files[];

bool bt_ui_is_page(bt_str_t path)
{
    return bt_str_eq(path, BT_STR("/ui")) ||
           (bt_str_starts(path, BT_STR("/ui/")) && !bt_str_eq(path, BT_STR("/ui/events")) &&
            !bt_str_eq(path, BT_STR("/ui/state")));
}

static const char *type_of(const char *path)
{
    const char *dot = strrchr(path, '.');

    return strcmp(dot, ".html") == 0  ? "text/html; charset=utf-8"
           : strcmp(dot, ".css") == 0 ? "text/css; charset=utf-8"
                                      : "text/javascript; charset=utf-8";
}

void bt_ui_file(const bt_admin_call_t *c)
{
    const bt_str_t name = c->key.n > 0 ? c->key : BT_STR("index.html");

    for (const struct bt_embedded *f = bt_ui_files; f->path != NULL; f++) {
        if (!bt_str_eq(bt_str(strrchr(f->path, '/') + 1), name))
            continue;
        c->reply->type = type_of(f->path);
        c->reply->is_page = true;
        bt_text_put(&c->reply->body, (bt_str_t){f->data, f->size});
        return;
    }
    bt_reply_error(c->reply, 404, "the page has no such file; it is at /ui");
}

/* Who has a cookie only does not get another one: it would never end. */
void bt_ui_login(const bt_admin_call_t *c)
{
    if (!c->request->authorized || c->request->session.n > 0 ||
        (c->request->by != NULL && c->request->shown.n == 0)) {
        bt_reply_error(c->reply, 401,
                       "wrong admin key; send it, or a key or token with the scope admin-write, as "
                       "Authorization: Bearer <key>");
        return;
    }
    if (c->config->api_key != NULL && c->config->sessions != NULL &&
        !bt_sessions_open(c->config->sessions, c->request->is_tls, c->request->shown,
                          c->reply->cookie, sizeof c->reply->cookie)) {
        bt_reply_error(c->reply, 503, "%s", bt_err_text(BT_E_NOMEM));
        return;
    }
    bt_text_printf(&c->reply->body, "{\"status\":\"logged_in\",\"secs\":%d}\n", BT_SESSION_SECS);
}

void bt_ui_session(const bt_admin_call_t *c)
{
    bt_text_printf(&c->reply->body, "{\"authorized\":%s,\"by_cookie\":%s}\n",
                   c->request->authorized ? "true" : "false",
                   c->request->session.n > 0 ? "true" : "false");
}

void bt_ui_logout(const bt_admin_call_t *c)
{
    if (c->config->sessions != NULL)
        bt_sessions_close(c->config->sessions, c->request->session, c->reply->cookie,
                          sizeof c->reply->cookie);
    bt_text_puts(&c->reply->body, "{\"status\":\"logged_out\"}\n");
}

void bt_ui_check_events(const bt_admin_call_t *c)
{
    if (c->request->method == BT_HEAD)
        bt_reply_error(c->reply, 405, "a stream of events has no end to be told: GET it");
}
