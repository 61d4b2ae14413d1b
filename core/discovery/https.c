/* libcurl's multi interface is told of readable sockets by uv_poll and of time by a timer, and does no waiting of its own. Its resolver
 * would wait for its thread where a call is cancelled, so it gets addresses only. A call is ended from a timer's turn, never inside a callback of
 * libcurl: what it says may be followed by the next call at once.
 */
#include "discovery/https.h"

#include "base/err.h"
#include "discovery/libcurl.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 5000L
/* Of one call in one turn: a few hundred microseconds of decryption and parsing. */
#define TURN_BYTES ((size_t) 96 << 10)

struct bt_https {
    bt_loop_t *loop;
    CURLM *multi;
    bt_timer_t timer; /* libcurl's own */
    bt_timer_t reap;  /* calls that have ended */
    unsigned polls;   /* handles that the loop still holds */
    uint64_t turn_ms; /* of the loop, when turn_bytes began */
    size_t turn_bytes;
    bool is_closing;
};

typedef struct socket_poll {
    uv_poll_t poll;
    bt_https_t *https;
    curl_socket_t fd;
} socket_poll_t;

static void free_when_closed(bt_https_t *h)
{
    if (h->is_closing && h->polls == 0)
        free(h);
}

/* ---- what libcurl asks of the loop ---- */

static void act(bt_https_t *h, curl_socket_t fd, int events)
{
    int running;

    (void) curl_multi_socket_action(h->multi, fd, events, &running);
    bt_timer_start(&h->reap, 0);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    socket_poll_t *p = bt_container_of(poll, socket_poll_t, poll);
    int flags = status < 0 ? CURL_CSELECT_ERR : 0;

    if ((events & UV_READABLE) != 0)
        flags |= CURL_CSELECT_IN;
    if ((events & UV_WRITABLE) != 0)
        flags |= CURL_CSELECT_OUT;
    act(p->https, p->fd, flags);
}

static void on_poll_closed(uv_handle_t *handle)
{
    socket_poll_t *p = bt_container_of((uv_poll_t *) handle, socket_poll_t, poll);
    bt_https_t *h = p->https;

    free(p);
    h->polls--;
    free_when_closed(h);
}

static socket_poll_t *new_poll(bt_https_t *h, curl_socket_t fd)
{
    socket_poll_t *p = calloc(1, sizeof *p);

    if (p == NULL || uv_poll_init_socket(&h->loop->uv, &p->poll, fd) < 0) {
        free(p);
        return NULL;
    }
    p->https = h;
    p->fd = fd;
    h->polls++;
    curl_multi_assign(h->multi, fd, p);
    return p;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *assigned)
{
    bt_https_t *h = user;
    socket_poll_t *p = assigned;
    int events = 0;

    (void) easy;
    if (what == CURL_POLL_REMOVE) {
        if (p != NULL) {
            curl_multi_assign(h->multi, fd, NULL);
            uv_close((uv_handle_t *) &p->poll, on_poll_closed); /* stops it at once */
        }
        return 0;
    }
    if (p == NULL && (p = new_poll(h, fd)) == NULL)
        return -1;
    if (what != CURL_POLL_IN)
        events |= UV_WRITABLE;
    if (what != CURL_POLL_OUT)
        events |= UV_READABLE;
    return uv_poll_start(&p->poll, events, on_poll) < 0 ? -1 : 0;
}

static void on_timer(bt_timer_t *timer)
{
    act(bt_container_of(timer, bt_https_t, timer), CURL_SOCKET_TIMEOUT, 0);
}

static int on_timeout(CURLM *multi, long ms, void *user)
{
    bt_https_t *h = user;

    (void) multi;
    if (ms < 0)
        bt_timer_stop(&h->timer);
    else
        bt_timer_start(&h->timer, (uint64_t) ms);
    return 0;
}

/* ---- calls ---- */

static void drop(bt_https_call_t *call)
{
    bt_timer_stop(&call->resume);
    curl_multi_remove_handle(call->https->multi, call->easy);
    curl_easy_cleanup(call->easy);
    curl_slist_free_all(call->headers);
    curl_slist_free_all(call->addresses);
    call->easy = NULL;
    call->headers = call->addresses = NULL;
}

static void end_call(bt_https_call_t *call, CURLcode code)
{
    bt_https_end_t end = {.is_whole = code == CURLE_OK};
    curl_off_t retry_after = 0;
    long status = 0;

    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(call->easy, CURLINFO_RETRY_AFTER, &retry_after);
    end.status = (int) status;
    if (retry_after > 0 && retry_after < 86400)
        end.retry_after_ms = (uint64_t) retry_after * 1000;
    if (code != CURLE_OK)
        snprintf(end.why, sizeof end.why, "%s",
                 call->error[0] != '\0' ? call->error : curl_easy_strerror(code));
    drop(call);
    call->on_end(call, &end);
}

static void on_reap(bt_timer_t *timer)
{
    bt_https_t *h = bt_container_of(timer, bt_https_t, reap);
    CURLMsg *message;
    char *call;
    int left;

    while ((message = curl_multi_info_read(h->multi, &left)) != NULL) {
        const CURLcode code = message->data.result;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
        end_call((bt_https_call_t *) (void *) call, code);
    }
}

static void on_resume(bt_timer_t *timer)
{
    bt_https_call_t *call = bt_container_of(timer, bt_https_call_t, resume);
    bt_https_t *h = call->https;

    call->is_paused = false;
    (void) curl_easy_pause(call->easy, CURLPAUSE_CONT);
    bt_timer_start(&h->reap, 0);
}

/* Have this turn's bytes been used up? */
static bool is_enough(bt_https_t *h, size_t n)
{
    const uint64_t now_ms = uv_now(&h->loop->uv);

    if (now_ms != h->turn_ms) {
        h->turn_ms = now_ms;
        h->turn_bytes = 0;
    }
    h->turn_bytes += n;
    return h->turn_bytes > TURN_BYTES;
}

static size_t on_bytes(char *bytes, size_t one, size_t n, void *user)
{
    bt_https_call_t *call = user;
    long status = 0;

    (void) one;
    if (is_enough(call->https, n)) {
        call->is_paused = true;
        bt_timer_start(&call->resume, 1);
        return CURL_WRITEFUNC_PAUSE; /* they come again */
    }
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    return call->on_data(call, (int) status, (bt_str_t){bytes, n}) ? n : CURL_WRITEFUNC_ERROR;
}

static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    bt_https_call_t *call = user;
    long status = 0;

    (void) one;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (n <= 2 && line[0] != ' ' && status >= 200) /* the empty line; 1xx may stand before */
        call->on_head(call, (int) status);
    return n;
}

/* "host:port:address", where the host is a name. */
static int add_address(bt_https_call_t *call, const bt_https_request_t *request)
{
    const char *host = strstr(request->url, "://");
    char line[512];

    if (host == NULL)
        return BT_E_INVAL;
    host += 3;
    const int host_n = (int) strcspn(host, ":/");
    const char *port = host[host_n] == ':'                       ? host + host_n + 1
                       : strncmp(request->url, "https:", 6) == 0 ? "443"
                                                                 : "80";
    snprintf(line, sizeof line, "+%.*s:%.*s:%s", host_n, host, (int) strcspn(port, "/"), port,
             request->address);
    call->addresses = curl_slist_append(NULL, line);
    return call->addresses != NULL ? 0 : BT_E_NOMEM;
}

static int add_header(bt_https_call_t *call, const char *line)
{
    struct curl_slist *more = curl_slist_append(call->headers, line);

    if (more == NULL)
        return BT_E_NOMEM;
    call->headers = more;
    return 0;
}

static int add_token(bt_https_call_t *call, const char *token)
{
    const size_t size = strlen(token) + 32;
    char *line = malloc(size);

    if (line == NULL)
        return BT_E_NOMEM;
    snprintf(line, size, "Authorization: Bearer %s", token);
    const int rc = add_header(call, line);
    free(line);
    return rc;
}

/* A body is sent at once: nobody is asked first whether he wants it. */
static int set_body(bt_https_call_t *call, bt_str_t body)
{
    int rc = add_header(call, "Content-Type: application/json");

    if (rc == 0)
        rc = add_header(call, "Expect:");
    curl_easy_setopt(call->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, body.p);
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) body.n);
    return rc;
}

static int set_up(bt_https_call_t *call, const bt_https_request_t *r)
{
    struct curl_blob ca = {(void *) (uintptr_t) r->ca.p, r->ca.n, CURL_BLOB_COPY};
    CURL *e = call->easy;
    int rc = 0;

    call->error[0] = '\0';
    call->headers = curl_slist_append(NULL, "Accept: application/json");
    if (call->headers == NULL)
        return BT_E_NOMEM;
    if (r->token != NULL)
        rc = add_token(call, r->token);
    if (rc == 0 && r->address != NULL)
        rc = add_address(call, r);
    for (unsigned i = 0; rc == 0 && r->headers != NULL && r->headers[i] != NULL; i++)
        rc = add_header(call, r->headers[i]);
    if (rc < 0)
        return rc;
    bool ok = curl_easy_setopt(e, CURLOPT_URL, r->url) == CURLE_OK;
    ok = ok && (r->ca.n == 0 || curl_easy_setopt(e, CURLOPT_CAINFO_BLOB, &ca) == CURLE_OK);
    ok = ok && curl_easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK; /* whatever the environment */
    ok = ok && curl_easy_setopt(e, CURLOPT_USERAGENT, "baton") == CURLE_OK;
    curl_easy_setopt(e, CURLOPT_PRIVATE, call);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, call->error);
    curl_easy_setopt(e, CURLOPT_RESOLVE, call->addresses);
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long) r->total_ms);
    /* A peer that has gone without a word is found out within a minute. */
    curl_easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPIDLE, 15L);
    curl_easy_setopt(e, CURLOPT_TCP_KEEPINTVL, 5L);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, call);
    return ok ? 0 : BT_E_NOMEM;
}

static int start(bt_https_t *h, bt_https_call_t *call, const bt_https_request_t *request,
                 bool has_body)
{
    int rc = BT_E_NOMEM;

    call->https = h;
    call->is_paused = false;
    call->headers = call->addresses = NULL;
    bt_timer_init(h->loop, &call->resume, on_resume);
    call->easy = curl_easy_init();
    if (call->easy == NULL)
        return rc;
    rc = set_up(call, request);
    if (rc == 0 && has_body)
        rc = set_body(call, request->body);
    if (rc == 0)
        curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers);
    if (rc == 0 && curl_multi_add_handle(h->multi, call->easy) == CURLM_OK)
        return 0;
    drop(call);
    return rc < 0 ? rc : BT_E_NOMEM;
}

int bt_https_get(bt_https_t *h, bt_https_call_t *call, const bt_https_request_t *request)
{
    return start(h, call, request, false);
}

int bt_https_post(bt_https_t *h, bt_https_call_t *call, const bt_https_request_t *request)
{
    return start(h, call, request, true);
}

void bt_https_cancel(bt_https_call_t *call)
{
    if (call->easy != NULL)
        drop(call);
}

/* ---- life ---- */

int bt_https_new(bt_https_t **https_p, bt_loop_t *loop, char *err, size_t err_size)
{
    int rc = bt_libcurl_load(err, err_size);

    if (rc < 0)
        return rc;
    bt_https_t *h = calloc(1, sizeof *h);
    if (h == NULL || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(h);
        return BT_E_NOMEM;
    }
    h->loop = loop;
    h->multi = curl_multi_init();
    if (h->multi == NULL) {
        curl_global_cleanup();
        free(h);
        return BT_E_NOMEM;
    }
    bt_timer_init(loop, &h->timer, on_timer);
    bt_timer_init(loop, &h->reap, on_reap);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, on_timeout);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, 2L);
    *https_p = h;
    return 0;
}

void bt_https_close(bt_https_t *h)
{
    if (h == NULL)
        return;
    curl_multi_cleanup(h->multi); /* closes idle connections, whose sockets are given back */
    bt_timer_stop(&h->timer);
    bt_timer_stop(&h->reap);
    curl_global_cleanup();
    h->is_closing = true;
    free_when_closed(h);
}
