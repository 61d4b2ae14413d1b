/* call.c - see call.h. */
#include "admin/call/call.h"

#include <stdarg.h>
#include <stdio.h>

/* No script and no style but our files', no other host, nobody's frame. "data:" is the empty icon. */
#define PAGE_RULES                                                                                 \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

void bt_reply_init(bt_admin_reply_t *reply)
{
    *reply = (bt_admin_reply_t){.status = 200, .type = "application/json"};
    bt_text_init(&reply->body);
}

void bt_reply_fini(bt_admin_reply_t *reply)
{
    bt_text_fini(&reply->body);
    if (reply->rows != NULL)
        reply->rows->free(reply->rows);
    reply->rows = NULL;
}

bool bt_reply_go_on(bt_admin_reply_t *reply)
{
    if (reply->rows != NULL && !reply->rows->write(reply->rows, &reply->body))
        return false;
    if (reply->rows != NULL)
        reply->rows->free(reply->rows);
    reply->rows = NULL;
    return true;
}

void bt_reply_error(bt_admin_reply_t *reply, unsigned status, const char *fmt, ...)
{
    char message[768];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    bt_text_fini(&reply->body);
    reply->status = status;
    bt_str_copy(reply->why, sizeof reply->why, message);
    reply->type = "application/json";
    bt_text_puts(&reply->body, "{\"error\":{\"message\":");
    bt_text_json_str(&reply->body, bt_str(message));
    bt_text_printf(&reply->body, ",\"code\":%u}}\n", status);
}

/* What is whole with its first piece has a length. */
static void send_rows(bt_exchange_t *x, bt_admin_reply_t *reply)
{
    const bt_header_t headers[] = {{BT_STR("Content-Type"), bt_str(reply->type)},
                                   {BT_STR("Cache-Control"), BT_STR("no-store")}};
    bt_rows_t *rows = reply->rows;

    reply->rows = NULL;
    bt_rows_send(x, headers, 2, bt_text_str(&reply->body), rows);
}

void bt_admin_send(bt_exchange_t *x, bt_admin_reply_t *reply)
{
    bt_header_t headers[6] = {{BT_STR("Cache-Control"), BT_STR("no-store")}};
    const bool is_whole = bt_reply_go_on(reply);
    unsigned count = 1;

    if (reply->body.failed) {
        bt_exchange_respond(x, 503, "text/plain", BT_STR("out of memory\n"), NULL, 0);
        return;
    }
    if (!is_whole) {
        send_rows(x, reply);
        return;
    }
    if (reply->allow != NULL)
        headers[count++] = (bt_header_t){BT_STR("Allow"), bt_str(reply->allow)};
    if (reply->cookie[0] != '\0')
        headers[count++] = (bt_header_t){BT_STR("Set-Cookie"), bt_str(reply->cookie)};
    if (reply->is_page) {
        headers[count++] = (bt_header_t){BT_STR("Content-Security-Policy"), BT_STR(PAGE_RULES)};
        headers[count++] = (bt_header_t){BT_STR("X-Content-Type-Options"), BT_STR("nosniff")};
        headers[count++] = (bt_header_t){BT_STR("Referrer-Policy"), BT_STR("no-referrer")};
    }
    if (reply->status == 401)
        headers[count++] =
            (bt_header_t){BT_STR("WWW-Authenticate"), BT_STR("Bearer realm=\"baton admin\"")};
    bt_exchange_respond(x, reply->status, reply->type, bt_text_str(&reply->body), headers, count);
}

void bt_admin_abandon(bt_audit_change_t *change)
{
    if (change != NULL)
        bt_audit_end(change, 0, BT_STR("the client left before the end"));
}

void bt_admin_notify(bt_exchange_t *x, bt_audit_change_t *change, unsigned status, bt_str_t text)
{
    bt_admin_reply_t reply;

    if (change != NULL)
        bt_audit_end(change, status, status == 200 ? BT_STR("") : text);
    bt_reply_init(&reply);
    if (status == 200)
        bt_text_put(&reply.body, text);
    else
        bt_reply_error(&reply, status, "%.*s", BT_STR_ARG(text));
    x->user = NULL;
    bt_admin_send(x, &reply);
    bt_reply_fini(&reply);
}
