/* One call at a time, on a loop of its own that runs until it is over: a command has nothing else to do. */
#include "tools/fleet.h"

#include "base/err.h"
#include "base/json.h"
#include "cluster/url.h"
#include "http/client.h"
#include "loop/resolve.h"
#include "tls/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CONNECT_MS 3000
#define ANSWER_MAX ((size_t) 64 << 20)

typedef struct call {
    bt_loop_t loop;
    bt_resolve_t resolve;
    bt_upstream_t *up;
    bt_call_t call;
    struct bt_slice slices[2];
    bt_call_timeouts_t timeouts;
    bt_timer_t deadline;
    bt_tls_client_t *tls; /* NULL: plain */
    const char *host;
    fleet_reply_t *reply;
    bool is_resolving;
    int rc;
} call_t;

/* ---- the call ---- */

static void end(call_t *c, int rc)
{
    c->rc = rc;
    bt_loop_stop(&c->loop);
}

static void on_head(bt_call_t *call)
{
    call_t *c = call->user;

    c->reply->status = call->status;
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    call_t *c = call->user;

    (void) buf;
    bt_text_put(&c->reply->body, (bt_str_t){p, n});
    if (!c->reply->body.failed && c->reply->body.len <= ANSWER_MAX)
        return;
    bt_call_cancel(call);
    end(c, BT_E_LIMIT);
}

static void on_end(bt_call_t *call)
{
    end(call->user, 0);
}

static void on_fail(bt_call_t *call, int rc)
{
    end(call->user, rc);
}

static const bt_call_ops_t ops = {on_head, on_body, on_end, on_fail};

static void on_resolved(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    call_t *c = r->user;

    const bt_upstream_config_t config = {.tls = c->tls, .tls_name = c->host};

    c->is_resolving = false;
    if (rc == 0)
        rc = bt_upstream_new(&c->up, &c->loop, (const struct sockaddr *) addr, &config);
    if (rc == 0)
        rc = bt_call_start(&c->call, c->up, &ops, c, c->slices, c->slices[1].n > 0 ? 2 : 1,
                           &c->timeouts);
    if (rc < 0)
        end(c, rc);
}

static void on_deadline(bt_timer_t *timer)
{
    call_t *c = bt_container_of(timer, call_t, deadline);

    if (c->is_resolving)
        bt_resolve_cancel(&c->resolve);
    end(c, BT_E_TOTAL_TIMEOUT);
}

static void run(call_t *c, const bt_url_t *url, uint64_t timeout_ms)
{
    c->timeouts = (bt_call_timeouts_t){
        .connect_ms = CONNECT_MS, .first_byte_ms = timeout_ms, .total_ms = timeout_ms};
    bt_timer_init(&c->loop, &c->deadline, on_deadline);
    bt_timer_start(&c->deadline, timeout_ms + 500); /* of what the call's own does not cover */
    c->host = url->host;
    c->resolve.user = c;
    c->is_resolving = true;
    c->rc = bt_resolve_start(&c->resolve, &c->loop, url->host, url->port, on_resolved);
    if (c->rc == 0)
        bt_loop_run(&c->loop);
    bt_timer_stop(&c->deadline);
    while (c->is_resolving && c->rc == BT_E_TOTAL_TIMEOUT) { /* its callback must have run */
        uv_run(&c->loop.uv, UV_RUN_ONCE);
    }
    if (c->up != NULL && bt_call_running(&c->call))
        bt_call_cancel(&c->call);
    if (c->up != NULL)
        bt_upstream_free(c->up);
}

static void write_head(const char *key, const bt_url_t *url, enum bt_method method,
                       const char *path, bt_str_t body, bt_text_t *head)
{
    const bool is_v6 = strchr(url->host, ':') != NULL;

    bt_text_printf(head, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%u\r\nUser-Agent: baton-fleet\r\n",
                   bt_method_name(method), url->base_path, path, is_v6 ? "[" : "", url->host,
                   is_v6 ? "]" : "", url->port);
    if (key != NULL)
        bt_text_printf(head, "Authorization: Bearer %s\r\n", key);
    if (body.n > 0 || method != BT_GET)
        bt_text_printf(head, "Content-Length: %zu\r\n", body.n);
    if (body.n > 0)
        bt_text_puts(head, "Content-Type: application/json\r\n");
    bt_text_puts(head, "Connection: close\r\n\r\n");
}

static int get_tls(const fleet_tool_t *t, call_t *c, char *why, size_t size)
{
    const bt_tls_client_config_t config = {.ca = t->tls_ca, .cert = t->tls_cert, .key = t->tls_key};

    return bt_tls_client_get(&c->tls, &config, why, size);
}

int fleet_call(const fleet_tool_t *t, const char *url_text, enum bt_method method, const char *path,
               bt_str_t body, uint64_t timeout_ms, fleet_reply_t *reply, char *err, size_t err_size)
{
    char why[256] = "";
    call_t *c = calloc(1, sizeof *c);
    bt_text_t head;
    bt_url_t url;
    int rc;

    *reply = (fleet_reply_t){0};
    bt_text_init(&reply->body);
    bt_text_init(&head);
    rc = c != NULL ? bt_url_parse(&url, bt_str(url_text), why, sizeof why) : BT_E_NOMEM;
    if (rc == 0 && url.has_tls && (rc = get_tls(t, c, why, sizeof why)) < 0)
        bt_url_fini(&url);
    if (rc < 0) {
        snprintf(err, err_size, "%s: %s", url_text, why[0] != '\0' ? why : bt_err_text(rc));
        free(c);
        return rc;
    }
    /* Callers look before they call; what none of them has thought of goes without. */
    write_head(fleet_may_ask(t, url_text) ? t->key : NULL, &url, method, path, body, &head);
    c->reply = reply;
    c->slices[0] = (struct bt_slice){.p = head.data, .n = head.len};
    c->slices[1] = (struct bt_slice){.p = body.p, .n = body.n};
    rc = head.failed ? BT_E_NOMEM : bt_loop_init(&c->loop, 0);
    if (rc == 0) {
        run(c, &url, timeout_ms);
        rc = c->rc;
        reply->is_cut = rc < 0 && c->call.any_byte_sent;
        bt_loop_fini(&c->loop);
    }
    if (rc < 0)
        snprintf(err, err_size, "%s does not answer: %s%s%s", url_text, bt_err_text(rc),
                 rc == BT_E_TLS && c->call.why != NULL ? ": " : "",
                 rc == BT_E_TLS && c->call.why != NULL ? c->call.why : "");
    bt_tls_client_unref(c->tls);
    bt_text_fini(&head);
    bt_url_fini(&url);
    free(c);
    return rc;
}

void fleet_reply_fini(fleet_reply_t *reply)
{
    bt_text_fini(&reply->body);
}

void fleet_why(const fleet_reply_t *reply, char *out, size_t size)
{
    bt_json_item_t item;
    char *text = NULL;
    long n = -1;

    if (bt_json_path(bt_text_str(&reply->body), &item, "error", "message", NULL) == 0 &&
        (text = malloc(item.value.n + 1)) != NULL)
        n = bt_json_unescape(item.value, text, item.value.n);
    if (n >= 0) {
        text[n] = '\0';
        bt_str_tame(text, (size_t) n);
        bt_str_copy(out, size, text);
    } else {
        snprintf(out, size, "it answered %u %s", reply->status, bt_http_reason(reply->status));
    }
    free(text);
}

int fleet_ask(const fleet_tool_t *t, enum bt_method method, const char *path, bt_str_t body,
              uint64_t timeout_ms, fleet_reply_t *reply)
{
    char err[1024];
    int rc = fleet_call(t, t->admin, method, path, body, timeout_ms, reply, err, sizeof err);

    if (rc == BT_E_CONFIG)
        return fleet_refuse("--admin %s", err);
    if (rc < 0)
        return fleet_fail("%s", err);
    if (reply->status >= 200 && reply->status < 300)
        return 0;
    fleet_why(reply, err, sizeof err);
    if (reply->status == 401)
        return fleet_fail("%s: %s (--admin-api-key, or BATON_ADMIN_API_KEY)", t->admin, err);
    return fleet_fail("%s", err);
}

/* ---- paths ---- */

void fleet_path_put(bt_text_t *path, const char *text)
{
    for (const unsigned char *p = (const unsigned char *) text; *p != '\0'; p++) {
        const bool is_plain = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') ||
                              (*p >= 'A' && *p <= 'Z') || strchr("-_.~", *p) != NULL;
        bt_text_printf(path, is_plain ? "%c" : "%%%02X", *p);
    }
}

void fleet_put_by(bt_text_t *path)
{
    const char *user = getenv("USER");
    char host[64] = "", by[160];

    if (gethostname(host, sizeof host - 1) < 0)
        host[0] = '\0';
    snprintf(by, sizeof by, "%.64s@%.64s", user != NULL ? user : "somebody", host);
    bt_text_puts(path, "by=");
    fleet_path_put(path, by);
}
