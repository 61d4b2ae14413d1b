/* answer.c - errors, told in the form the client's protocol has for them. */
#include "base/text.h"
#include "dispatch/leg.h"
#include "dispatch/sink.h"

#include <stdio.h>

#define HEADERS_MAX (BT_HTTP_HEADERS_MAX + 16)

static unsigned status_of(int rc)
{
    switch (rc) {
    case BT_E_HTTP_BODY_SIZE:
        return 413;
    case BT_E_NOMEM:
    case BT_E_NO_WORKER:
    case BT_E_LEASE:
    case BT_E_DESCRIPTORS:
        return 503;
    case BT_E_CONNECT_TIMEOUT:
    case BT_E_FIRST_BYTE_TIMEOUT:
    case BT_E_CALLBACK_TIMEOUT:
    case BT_E_STALL:
    case BT_E_TOTAL_TIMEOUT:
        return 504;
    case BT_E_CANCELLED:
        return 499;
    default:
        return 502;
    }
}

static const char *type_of(unsigned status)
{
    switch (status) {
    case 400:
    case 404:
    case 413:
    case 415:
        return "invalid_request_error";
    case 401:
        return "authentication_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return "api_error";
    }
}

static void put_error(bt_text_t *t, enum bt_error_form form, unsigned status, const char *message)
{
    const char *type = type_of(status);

    if (form == BT_FORM_ANTHROPIC)
        bt_text_printf(t, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    else
        bt_text_puts(t, "{\"error\":{\"message\":");
    bt_text_json_str(t, bt_str(message));
    if (form == BT_FORM_OPENAI)
        bt_text_printf(t, ",\"type\":\"%s\",\"param\":null", type);
    if (form != BT_FORM_ANTHROPIC)
        bt_text_printf(t, ",\"code\":%u", status);
    bt_text_puts(t, "}}");
}

static void respond(bt_request_t *r, unsigned status, bt_str_t body, bt_header_t *headers,
                    unsigned count)
{
    bt_exchange_t *x = r->x;

    bt_buf_t *buf = bt_buf_copy(body.p, body.n); /* the exchange outlives us */

    r->status = status;
    r->x = NULL;
    bt_exchange_start(x, status, headers, count, buf != NULL ? buf->len : 0);
    if (buf != NULL) {
        r->sent_bytes += buf->len;
        bt_exchange_write(x, buf, buf->data, buf->len);
    }
    bt_buf_unref(buf);
    bt_exchange_end(x);
    r->ops->finish(r);
}

void bt_answer_error(bt_request_t *r, unsigned status, const char *message, unsigned retry_after_s)
{
    bt_header_t headers[32];
    unsigned n = bt_headers_answer(r, NULL, headers, 28);
    bt_text_t t;

    bt_text_init(&t);
    put_error(&t, bt_route_info(r->route)->form, status, message);
    headers[n++] = (bt_header_t){BT_STR("Content-Type"), BT_STR("application/json")};
    if (retry_after_s != 0)
        headers[n++] =
            (bt_header_t){BT_STR("Retry-After"), bt_arena_printf(&r->arena, "%u", retry_after_s)};
    respond(r, status, bt_text_str(&t), headers, n);
    bt_text_fini(&t);
}

void bt_answer_exchange(bt_exchange_t *x, unsigned status, const char *message)
{
    static const bt_header_t retry[] = {{BT_STR("Retry-After"), BT_STR("1")}};
    bt_text_t t;

    bt_text_init(&t);
    put_error(&t, BT_FORM_OPENAI, status, message);
    bt_exchange_respond(x, status, "application/json", bt_text_str(&t), retry,
                        status == 503 ? 1 : 0);
    bt_text_fini(&t);
}

static const char *sentence(bt_request_t *r, const bt_failure_t *f)
{
    const char *what = f->reason != NULL ? f->reason : bt_err_text(f->rc);

    if (f->worker == NULL || !r->d->shared->config.debug_headers)
        return what;
    return bt_arena_printf(&r->arena, "%s (%s leg, worker %s)", what, bt_leg_role_name(f->leg),
                           f->worker)
        .p;
}

/* The engine's status, headers and body as they came, where there are some; else our own finding. */
void bt_answer_failure(bt_request_t *r, const bt_failure_t *f)
{
    bt_header_t headers[HEADERS_MAX];
    unsigned n;

    if (f->status == 0) {
        bt_answer_error(
            r, status_of(f->rc), sentence(r, f),
            f->rc == BT_E_NO_WORKER || f->rc == BT_E_DESCRIPTORS || f->rc == BT_E_NOMEM ? 1 : 0);
        return;
    }
    n = bt_headers_answer(r, f->head.header_count != 0 ? &f->head : NULL, headers, HEADERS_MAX - 1);
    if (f->head.header_count == 0)
        headers[n++] = (bt_header_t){BT_STR("Content-Type"), BT_STR("application/json")};
    respond(r, f->status, f->body, headers, n);
}

/* What the engine itself said: {"error":{"message":...}} or SGLang's {"object":"error","message":...}. NULL = neither. */
static const char *engine_message(bt_request_t *r, const bt_failure_t *f)
{
    bt_json_item_t m;
    char *text;
    long n;

    if (f->status == 0)
        return NULL;
    if ((bt_json_path(f->body, &m, "error", "message", NULL) < 0 || m.type != BT_JSON_STRING) &&
        (bt_json_get(f->body, BT_STR("message"), &m) < 0 || m.type != BT_JSON_STRING))
        return NULL;
    text = bt_arena_alloc(&r->arena, m.value.n + 1);
    n = bt_json_unescape(m.value, text, m.value.n);
    if (n < 0)
        return NULL;
    text[n] = '\0';
    return text;
}

/* The same as an event for a stream that has begun. */
bt_str_t bt_answer_event(bt_request_t *r, const bt_failure_t *f)
{
    enum bt_error_form form = bt_route_info(r->route)->form;
    unsigned status = f->status != 0 ? f->status : status_of(f->rc);
    const char *message = engine_message(r, f);
    bt_str_t event;
    bt_text_t t;

    bt_text_init(&t);
    bt_text_puts(&t, form == BT_FORM_ANTHROPIC || r->route == BT_ROUTE_RESPONSES
                         ? "event: error\ndata: "
                         : "data: ");
    put_error(&t, form, status, message != NULL ? message : sentence(r, f));
    bt_text_puts(&t, "\n\n");
    if (form != BT_FORM_ANTHROPIC && r->route != BT_ROUTE_RESPONSES)
        bt_text_puts(&t, "data: [DONE]\n\n");
    event = bt_arena_str(&r->arena, bt_text_str(&t));
    bt_text_fini(&t);
    return event;
}
