/* headers.c - which headers go on to workers and back to clients (rules section 2).
 *
 * Everything that is neither hop-by-hop nor ours goes through as it was sent, unknown headers included.
 */
#include "dispatch/answer/headers.h"

#include "dispatch/answer/ratelimit.h"
#include "dispatch/state/encode_params.h"
#include "dispatch/state/traceparent.h"

static bool is_prefix_ours(bt_str_t name)
{
    static const bt_str_t prefixes[] = {BT_STR("x-baton-"), BT_STR("x-override-")};

    for (unsigned i = 0; i < 2; i++)
        if (name.n >= prefixes[i].n && strncasecmp(name.p, prefixes[i].p, prefixes[i].n) == 0)
            return true;
    return false;
}

/* Written by us on every leg, or never a client's to say. has_key: this leg carries a key of ours. */
static bool is_dropped(const bt_request_t *r, const bt_head_t *head, bt_str_t name, bool has_key)
{
    static const bt_str_t names[] = {BT_STR("host"),
                                     BT_STR("content-length"),
                                     BT_STR("expect"),
                                     BT_STR("x-request-id"),
                                     BT_STR("x-data-parallel-rank"),
                                     BT_STR("x-smg-target-worker"),
                                     BT_STR("accept-encoding"),
                                     BT_STR("transfer-encoding"),
                                     BT_STR("trailer")};
    const bt_dispatch_config_t *config = &r->d->shared->config;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (bt_str_ieq(name, names[i]))
            return true;
    if (r->trace != NULL && bt_traceparent_drops(r, name))
        return true;
    if (bt_str_ieq(name, BT_STR("x-api-key")))
        return config->asks_identity;
    if (bt_str_ieq(name, BT_STR("authorization")))
        return has_key || config->asks_identity;
    return is_prefix_ours(name) || bt_head_is_hop(head, name);
}

static bool is_edited(const bt_edits_t *edits, bt_str_t name)
{
    for (unsigned i = 0; i < edits->count; i++)
        if (edits->items[i].op == BT_EDIT_HEADER && bt_str_ieq(edits->items[i].key, name))
            return true;
    return false;
}

struct pen {
    char *at;
};

static void put(struct pen *pen, bt_str_t s)
{
    memcpy(pen->at, s.p, s.n);
    pen->at += s.n;
}

static void put_header(struct pen *pen, bt_str_t name, bt_str_t value)
{
    put(pen, name);
    put(pen, BT_STR(": "));
    put(pen, value);
    put(pen, BT_STR("\r\n"));
}

/* What the admin port's dashboard puts before its number (admin/ui/session.c): a browser sends a host's cookies to every port of it,
 * and whoever has this one is an operator. */
#define UI_COOKIE BT_STR("baton_ui_")

/* Without those, the others as they were sent; no header where none is left. */
static void put_cookies(struct pen *pen, const bt_header_t *h)
{
    bt_str_t rest = h->value;
    bool is_first = true;

    if (bt_str_find(rest, UI_COOKIE) < 0) {
        put_header(pen, h->name, h->value);
        return;
    }
    for (const char *end = rest.p; end != NULL;) {
        end = memchr(rest.p, ';', rest.n);
        bt_str_t one = {rest.p, end != NULL ? (size_t) (end - rest.p) : rest.n};
        rest = end != NULL ? (bt_str_t){end + 1, rest.n - one.n - 1} : BT_STR("");
        if (bt_str_starts(bt_str_trim(one), UI_COOKIE))
            continue;
        for (; is_first && one.n > 0 && (one.p[0] == ' ' || one.p[0] == '\t'); one.n--)
            one.p++;
        put(pen, is_first ? h->name : BT_STR(""));
        put(pen, is_first ? BT_STR(": ") : BT_STR(";"));
        put(pen, one);
        is_first = false;
    }
    put(pen, is_first ? BT_STR("") : BT_STR("\r\n"));
}

/* Encoders take parts of chats, whatever they are parts of. */
static bt_str_t target_of(const bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;

    return leg->role == BT_LEG_ENCODE && r->route != BT_ROUTE_CHAT ? BT_STR("/v1/chat/completions")
                                                                   : r->target;
}

static size_t bound(const bt_leg_t *leg, const bt_edits_t *edits, bt_str_t key)
{
    const bt_request_t *r = leg->attempt->task->request;
    size_t n = 512 + sizeof("traceparent: \r\n") + BT_TRACE_PARENT_CHARS + strlen(r->method) +
               strlen(leg->worker->base_path) + target_of(leg).n + strlen(leg->worker->authority) +
               key.n + strlen(leg->attempt->id);

    if (r->x != NULL)
        for (unsigned i = 0; i < r->x->head.header_count; i++)
            n += r->x->head.headers[i].name.n + r->x->head.headers[i].value.n + 4;
    for (unsigned i = 0; i < edits->count; i++)
        if (edits->items[i].op == BT_EDIT_HEADER)
            n += edits->items[i].key.n + edits->items[i].value.n + 4;
    return n;
}

bt_str_t bt_headers_request(bt_leg_t *leg, const bt_edits_t *edits, size_t body_bytes,
                            bool has_body)
{
    bt_request_t *r = leg->attempt->task->request;
    const char *own_key = leg->worker->spec.api_key;
    bt_str_t key = bt_str(own_key != NULL ? own_key : r->d->shared->config.worker_api_key);
    char *start = bt_arena_alloc(&r->send_arena, bound(leg, edits, key));
    struct pen pen = {start};

    put(&pen, bt_str(r->method));
    put(&pen, BT_STR(" "));
    put(&pen, bt_str(leg->worker->base_path));
    put(&pen, target_of(leg));
    put(&pen, BT_STR(" HTTP/1.1\r\n"));
    put_header(&pen, BT_STR("Host"), bt_str(leg->worker->authority));
    for (unsigned i = 0; r->x != NULL && i < r->x->head.header_count; i++) {
        const bt_header_t *h = &r->x->head.headers[i];
        if (is_dropped(r, &r->x->head, h->name, key.n != 0) || is_edited(edits, h->name))
            continue;
        if (bt_str_ieq(h->name, BT_STR("cookie")))
            put_cookies(&pen, h);
        else
            put_header(&pen, h->name, h->value);
    }
    for (unsigned i = 0; i < edits->count; i++)
        if (edits->items[i].op == BT_EDIT_HEADER && edits->items[i].value.p != NULL)
            put_header(&pen, edits->items[i].key, edits->items[i].value);
    if (!is_edited(edits, BT_STR("X-Request-Id")))
        put_header(&pen, BT_STR("X-Request-Id"), bt_str(leg->attempt->id));
    if (r->trace != NULL) {
        char parent[BT_TRACE_PARENT_CHARS];
        bt_traceparent_write(leg, parent);
        put_header(&pen, BT_STR("traceparent"), (bt_str_t){parent, sizeof(parent)});
    }
    if (key.n != 0) {
        put(&pen, BT_STR("Authorization: Bearer "));
        put(&pen, key);
        put(&pen, BT_STR("\r\n"));
    }
    put_header(&pen, BT_STR("Accept-Encoding"), BT_STR("identity"));
    if (has_body) {
        put(&pen, BT_STR("Content-Length: "));
        bt_str_put_u64(&pen.at, body_bytes);
        put(&pen, BT_STR("\r\n"));
    }
    put(&pen, BT_STR("\r\n"));
    return (bt_str_t){start, (size_t) (pen.at - start)};
}

bt_str_t bt_headers_own(bt_request_t *r, const bt_worker_t *w, bt_str_t path,
                        const char *request_id, size_t body_bytes)
{
    const char *own =
        w->spec.api_key != NULL ? w->spec.api_key : r->d->shared->config.worker_api_key;
    const bt_str_t key = own != NULL ? bt_str(own) : r->authorization;

    return bt_arena_printf(
        &r->arena,
        "POST %s%.*s HTTP/1.1\r\nHost: %s\r\nX-Request-Id: %s\r\n"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n%s%s%.*s%s\r\n",
        w->base_path, BT_STR_ARG(path), w->authority, request_id, body_bytes,
        key.n != 0 ? "Authorization: " : "", own != NULL ? "Bearer " : "", BT_STR_ARG(key),
        key.n != 0 ? "\r\n" : "");
}

bool bt_headers_id_ok(bt_str_t id)
{
    if (id.n == 0 || id.n > BT_REQUEST_ID_MAX)
        return false;
    for (size_t i = 0; i < id.n; i++) {
        const char c = id.p[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              strchr("._:-", c) != NULL))
            return false;
    }
    /* Some connectors read addresses out of an id: a client must not be able to write one. */
    return bt_str_find(id, BT_STR("___prefill_addr_")) < 0 &&
           bt_str_find(id, BT_STR("___decode_addr_")) < 0;
}

static void add(bt_header_t *out, unsigned *n, unsigned max, const char *name, bt_str_t value)
{
    if (*n < max && value.n != 0)
        out[(*n)++] = (bt_header_t){bt_str(name), value};
}

static bt_str_t number(bt_request_t *r, uint64_t value)
{
    char *from = bt_arena_alloc(&r->arena, BT_STR_U64_MAX), *at = from;

    bt_str_put_u64(&at, value);
    return (bt_str_t){from, (size_t) (at - from)};
}

static bt_str_t policy_at_version(bt_request_t *r)
{
    const bt_str_t name = bt_str(r->policy_name);
    const bt_str_t version = bt_str(r->policy_version != NULL ? r->policy_version : "0");
    struct pen pen = {bt_arena_alloc(&r->arena, name.n + 1 + version.n)};
    const char *from = pen.at;

    put(&pen, name);
    put(&pen, BT_STR("@"));
    put(&pen, version);
    return (bt_str_t){from, (size_t) (pen.at - from)};
}

static void add_debug(bt_request_t *r, bt_header_t *out, unsigned *n, unsigned max)
{
    if (r->is_default)
        add(out, n, max, "x-baton-policy", BT_STR("default"));
    else if (r->policy_name != NULL)
        add(out, n, max, "x-baton-policy", policy_at_version(r));
    if (r->policy_generation != 0)
        add(out, n, max, "x-baton-policy-generation", number(r, r->policy_generation));
    if (bt_request_kind(r) != BT_PLAN_NONE)
        add(out, n, max, "x-baton-plan", bt_str(bt_plan_kind_name(bt_request_kind(r))));
    add(out, n, max, "x-baton-encode", bt_encode_names(r));
    add(out, n, max, "x-baton-prefill", bt_str(bt_request_worker(r, BT_LEG_PREFILL)));
    add(out, n, max, "x-baton-decode", bt_str(bt_request_worker(r, BT_LEG_DECODE)));
    add(out, n, max, "x-baton-worker", bt_str(bt_request_worker(r, BT_LEG_SINGLE)));
    if (r->attempts > 1)
        add(out, n, max, "x-baton-attempts", number(r, r->attempts));
    if (r->degraded)
        add(out, n, max, "x-baton-degraded", BT_STR("prefill-alone"));
    if (r->fail_leg != NULL) {
        add(out, n, max, "x-baton-leg", bt_str(r->fail_leg));
        add(out, n, max, "x-baton-error", bt_str(r->fail_name));
    }
}

/* Engines let every page read their answers; which ones may is the gateway's to say (http/cors.h). */
static bool is_cors(bt_str_t name)
{
    static const bt_str_t prefix = BT_STR("access-control-");

    return name.n > prefix.n && strncasecmp(name.p, prefix.p, prefix.n) == 0;
}

/* Headers that the server writes itself or that described another connection. */
static bool is_answer_own(const bt_head_t *head, bt_str_t name)
{
    return is_cors(name) || bt_str_ieq(name, BT_STR("content-length")) ||
           bt_str_ieq(name, BT_STR("date")) || bt_str_ieq(name, BT_STR("x-request-id")) ||
           is_prefix_ours(name) || bt_head_is_hop(head, name);
}

/* An address of the worker's, where a path would do for the client. */
static bool shows_address(const bt_header_t *h)
{
    const bool is_path =
        h->value.n > 0 && h->value.p[0] == '/' && !bt_str_starts(h->value, BT_STR("//"));

    if (bt_str_ieq(h->name, BT_STR("location")) || bt_str_ieq(h->name, BT_STR("content-location")))
        return !is_path;
    return bt_str_ieq(h->name, BT_STR("refresh"));
}

unsigned bt_headers_answer(bt_request_t *r, const bt_head_t *from, bt_header_t *out, unsigned max)
{
    unsigned n = 0;

    for (unsigned i = 0; from != NULL && i < from->header_count && n < max; i++)
        if (!is_answer_own(from, from->headers[i].name) && !shows_address(&from->headers[i]))
            out[n++] = from->headers[i];
    add(out, &n, max, "x-request-id", bt_str(r->id));
    if (r->reservation != NULL)
        bt_ratelimit_headers(r, out, &n, max);
    if (r->d->shared->config.debug_headers)
        add_debug(r, out, &n, max);
    return n;
}

void bt_headers_keep(bt_arena_t *arena, bt_header_t *to, const bt_header_t *from, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        to[i] =
            (bt_header_t){bt_arena_str(arena, from[i].name), bt_arena_str(arena, from[i].value)};
}
