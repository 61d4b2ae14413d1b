/* exchange.c - what a handler calls, whichever protocol answers. What both protocols do in the same way is here too: limits that refuse a
 * request by its head, the body of a refusal, the headers that every answer has.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "http/server_impl.h"

#include <time.h>

void bt_exchange_start(bt_exchange_t *x, unsigned status, const bt_header_t *headers,
                       unsigned header_count, uint64_t length)
{
    x->wire->start(x, status, headers, header_count, length);
}

void bt_exchange_write(bt_exchange_t *x, bt_buf_t *owner, const char *p, size_t n)
{
    if (n > 0)
        x->wire->write(x, owner, p, n);
}

void bt_exchange_end(bt_exchange_t *x)
{
    x->wire->end(x);
}

void bt_exchange_abort(bt_exchange_t *x)
{
    x->wire->abort(x);
}

void bt_exchange_reset(bt_exchange_t *x)
{
    x->wire->reset(x);
}

void bt_exchange_flush(bt_exchange_t *x)
{
    x->wire->flush(x);
}

void bt_exchange_drop_request(bt_exchange_t *x)
{
    bt_exchange_drop_body(x);
    x->head.method_text = x->head.target = x->head.path = x->head.query = BT_STR("");
    x->head.headers = NULL;
    x->head.header_count = 0;
    bt_arena_fini(&x->arena);
    x->wire->drop_request(x);
}

size_t bt_exchange_pending(const bt_exchange_t *x)
{
    return x->wire->pending(x);
}

bool bt_exchange_blocked(const bt_exchange_t *x)
{
    return x->wire->is_blocked(x);
}

void bt_exchange_respond(bt_exchange_t *x, unsigned status, const char *content_type, bt_str_t body,
                         const bt_header_t *headers, unsigned header_count)
{
    bt_header_t *all = bt_arena_alloc(&x->arena, (header_count + 1) * sizeof(*all));
    unsigned count = 0;

    if (content_type != NULL)
        all[count++] = (bt_header_t){BT_STR("Content-Type"), bt_str(content_type)};
    for (unsigned i = 0; i < header_count; i++)
        all[count++] = headers[i];
    x->wire->start(x, status, all, count, body.n);
    if (body.n > 0)
        x->wire->write_copy(x, body.p, body.n);
    x->wire->end(x);
}

/* ---- what every answer has ---- */

static const char *date_text(bt_server_t *server)
{
    uint64_t now_s = bt_clock_wall_ms() / 1000;

    if (now_s != server->date_s) {
        time_t at = (time_t) now_s;
        struct tm tm;
        gmtime_r(&at, &tm);
        strftime(server->date_text, sizeof(server->date_text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        server->date_s = now_s;
    }
    return server->date_text;
}

unsigned bt_exchange_own_headers(bt_exchange_t *x, bt_header_t headers[BT_OWN_HEADERS_MAX])
{
    const char *name = x->server->config.server_name;
    const bt_edge_t *edge = x->server->config.edge;
    unsigned count = 0;

    headers[count++] = (bt_header_t){BT_STR("Date"), bt_str(date_text(x->server))};
    if (name != NULL)
        headers[count++] = (bt_header_t){BT_STR("Server"), bt_str(name)};
    if (edge != NULL)
        count += bt_cors_answer(&edge->cors, x->cors_origin, headers + count);
    return count;
}

/* A line end inside a header would let its author write headers of his own. */
static bool is_clean(bt_str_t s)
{
    size_t i = bt_str_without_controls(s);

    if (s.n >= 8 && s.n - i < 8 && bt_str_without_controls((bt_str_t){s.p + s.n - 8, 8}) == 8)
        return true;
    for (; i < s.n; i++)
        if (s.p[i] == '\r' || s.p[i] == '\n' || s.p[i] == '\0')
            return false;
    return true;
}

bool bt_header_is_clean(const bt_header_t *header)
{
    return !BT_SOFT(header->name.n == 0 || !is_clean(header->name) || !is_clean(header->value));
}

/* ---- refusals ---- */

unsigned bt_exchange_check_head(bt_exchange_t *x, const bt_budget_client_t *ticket,
                                const char **reason_p)
{
    const bt_server_config_t *config = &x->server->config;
    const bt_head_t *head = &x->head;
    bt_str_t expect = bt_head_get(head, BT_STR("expect"));

    *reason_p = bt_budget_refusal(config->budget, ticket);
    if (*reason_p != NULL)
        return 503;
    const unsigned status =
        bt_edge_check(config->edge, x->proxy, &x->head, x->peer, sizeof(x->peer), reason_p);
    if (config->edge != NULL)
        x->cors_origin = bt_cors_origin(&config->edge->cors, head);
    if (status != 0)
        return status;
    if (x->proxy != NULL)
        x->sender = 0; /* it was the proxy's until now */
    if (expect.n > 0 && !bt_str_ieq(expect, BT_STR("100-continue"))) {
        *reason_p = "unknown expectation";
        return 417;
    }
    if (head->length > config->max_body_bytes) {
        *reason_p = "request body is too large (--max-payload-size)";
        return 413;
    }
    if ((head->length > 0 || head->chunked) && !bt_exchange_has_room(x)) {
        *reason_p = bt_exchange_no_room;
        return 503;
    }
    if (x->server->ops->on_head != NULL)
        return x->server->ops->on_head(x, reason_p);
    return 0;
}

static void put_refusal(bt_text_t *t, unsigned status, const char *message)
{
    bt_text_puts(t, "{\"error\":{\"message\":");
    bt_text_json_str(t, bt_str(message));
    bt_text_printf(t, ",\"type\":\"%s\",\"code\":%u}}",
                   status < 500 ? "invalid_request_error" : "server_error", status);
}

void bt_exchange_put_refusal(bt_exchange_t *x, unsigned status, const char *reason)
{
    static const bt_header_t retry = {{"Retry-After", 11}, {"1", 1}},
                             bearer = {{"WWW-Authenticate", 16}, {"Bearer", 6}};
    const char *message = reason != NULL ? reason : bt_http_reason(status);
    bt_text_t body;

    if (status == 503)
        bt_log_warn("http", "a request of %s was refused before it was read: %s", x->peer, message);
    bt_log_debug("http", "refused with %u: %s", status,
                 reason != NULL ? reason : "malformed request");
    bt_text_init(&body);
    if (x->server->ops->put_refusal != NULL)
        x->server->ops->put_refusal(x, status, message, &body);
    else
        put_refusal(&body, status, message);
    bt_exchange_respond(x, status, "application/json", bt_text_str(&body),
                        status == 401 ? &bearer : &retry, status == 401 || status == 503);
    bt_text_fini(&body);
}
