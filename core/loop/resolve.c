/* resolve.c - names to addresses.
 *
 * A numeric address does not go through uv's thread pool, where it could wait behind four slow lookups; it comes back
 * as mail of the loop to itself, so that the callback never runs inside start.
 * uv cannot cancel a lookup that a pool thread has begun: its answer is then replaced by UV_ECANCELED.
 */
#include "loop/resolve.h"

#include "base/err.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

static void finish(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr)
{
    if (r->cancelled)
        rc = UV_ECANCELED;
    r->cb(r, rc, rc == 0 ? addr : NULL);
}

static void on_numeric(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_resolve_t *r = bt_container_of(envelope, bt_resolve_t, envelope);

    (void) loop;
    finish(r, 0, &r->addr);
}

/* getaddrinfo has sorted them by what this host can reach (RFC 6724). */
static const struct addrinfo *nth_of(const struct addrinfo *list, unsigned turn)
{
    const struct addrinfo *at;
    unsigned count = 0;

    for (at = list; at != NULL; at = at->ai_next)
        count++;
    at = list;
    for (unsigned i = count > 0 ? turn % count : 0; i > 0; i--)
        at = at->ai_next;
    return at;
}

static void on_addrinfo(uv_getaddrinfo_t *req, int rc, struct addrinfo *list)
{
    bt_resolve_t *r = req->data;
    const struct addrinfo *found = rc == 0 ? nth_of(list, r->turn) : NULL;
    struct sockaddr_storage addr;

    memset(&addr, 0, sizeof(addr));
    if (found != NULL && found->ai_addrlen <= sizeof(addr))
        memcpy(&addr, found->ai_addr, found->ai_addrlen);
    else
        rc = rc == UV_ECANCELED || rc == UV_EAI_CANCELED ? UV_ECANCELED : BT_E_RESOLVE;
    uv_freeaddrinfo(list);
    finish(r, rc, &addr);
}

int bt_resolve_start(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                     bt_resolve_cb cb)
{
    return bt_resolve_turn(r, loop, host, port, 0, cb);
}

int bt_resolve_turn(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                    unsigned turn, bt_resolve_cb cb)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[16];

    if (port > 65535)
        return BT_E_INVAL;
    r->cb = cb;
    r->turn = turn;
    r->cancelled = false;
    r->numeric = bt_resolve_numeric(host, port, &r->addr) == 0;
    if (r->numeric) {
        bt_loop_post(loop, &r->envelope, on_numeric);
        return 0;
    }
    snprintf(service, sizeof(service), "%u", port);
    r->req.data = r;
    return uv_getaddrinfo(&loop->uv, &r->req, on_addrinfo, host, service, &hints);
}

void bt_resolve_cancel(bt_resolve_t *r)
{
    r->cancelled = true;
    if (!r->numeric)
        (void) uv_cancel((uv_req_t *) &r->req); /* too late is fine */
}

/* "[::1]" -> "::1". */
static bool strip_brackets(const char *host, char *out, size_t size)
{
    size_t n = strlen(host);

    if (n < 2 || n - 2 >= size || host[0] != '[' || host[n - 1] != ']')
        return false;
    memcpy(out, host + 1, n - 2);
    out[n - 2] = '\0';
    return true;
}

int bt_resolve_numeric(const char *host, unsigned port, struct sockaddr_storage *addr_p)
{
    struct sockaddr_storage addr;
    char inner[64];

    if (port > 65535)
        return BT_E_INVAL;
    memset(&addr, 0, sizeof(addr));
    bool bracketed = strip_brackets(host, inner, sizeof(inner));
    if (uv_ip6_addr(bracketed ? inner : host, (int) port, (struct sockaddr_in6 *) &addr) != 0 &&
        (bracketed || uv_ip4_addr(host, (int) port, (struct sockaddr_in *) &addr) != 0))
        return BT_E_INVAL;
    *addr_p = addr;
    return 0;
}
