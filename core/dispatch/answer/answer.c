/* answer.c - errors: the engine's own as they came, ours in the form of the path's API family (api/error.h). */
#include "dispatch/answer/answer.h"

#include "api/error.h"
#include "api/path.h"
#include "dispatch/answer/headers.h"
#include "dispatch/state/reservation_state.h"

#include <stdio.h>

#define HEADERS_MAX (BT_HTTP_HEADERS_MAX + 28)

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
    bt_answer_error_with(r, status, message, retry_after_s, NULL, 0);
}

void bt_answer_error_with(bt_request_t *r, unsigned status, const char *message,
                          unsigned retry_after_s, const bt_header_t *more, unsigned more_count)
{
    bt_header_t headers[44];
    unsigned n = bt_headers_answer(r, NULL, headers, 40);
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put_limit(&t, bt_error_family_of(r->path), status, message,
                       bt_reservation_refused_by(r));
    headers[n++] = (bt_header_t){BT_STR("Content-Type"), BT_STR("application/json")};
    if (retry_after_s != 0)
        headers[n++] =
            (bt_header_t){BT_STR("Retry-After"), bt_arena_printf(&r->arena, "%u", retry_after_s)};
    for (unsigned i = 0; i < more_count && n < 44; i++)
        headers[n++] = more[i];
    respond(r, status, bt_text_str(&t), headers, n);
    bt_text_fini(&t);
}

void bt_answer_exchange(bt_exchange_t *x, unsigned status, const char *message)
{
    static const bt_header_t retry = {BT_STR("Retry-After"), BT_STR("1")};

    bt_answer_exchange_with(x, status, message, &retry, status == 503 ? 1 : 0);
}

void bt_answer_exchange_with(bt_exchange_t *x, unsigned status, const char *message,
                             const bt_header_t *headers, unsigned count)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put(&t, bt_error_family_of(x->head.path), status, message);
    bt_exchange_respond(x, status, "application/json", bt_text_str(&t), headers, count);
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

    if (f->status == 0 || (f->body.p == NULL && f->reason != NULL)) {
        bt_answer_error(
            r, f->status != 0 ? f->status : status_of(f->rc), sentence(r, f),
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
    const char *message = engine_message(r, f);
    bt_str_t event;
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put_event(&t, bt_error_family_of(r->path),
                       f->status != 0 ? f->status : status_of(f->rc),
                       message != NULL ? message : sentence(r, f), r->events);
    event = bt_arena_str(&r->arena, bt_text_str(&t));
    bt_text_fini(&t);
    return event;
}

/* What is refused before there is a request: its body may be too large, or too slow. The path stands as it came where nobody has
 * looked at it yet. */
void bt_answer_put_refusal(bt_exchange_t *x, unsigned status, const char *message, bt_text_t *t)
{
    (void) bt_path_settle(&x->head, &x->arena);
    bt_error_put(t, bt_error_family_of(x->head.path), status, message);
}
