/* The client is the right-most address that no listed proxy has: each proxy appends whom it was called by, so all that stands to the left of
 * the first stranger is that stranger's word. An element that is no address ends the walk, too: who comes before it is not known, and the
 * proxy that said so stands for it.
 *
 * On to workers goes what is left in the head: from a listed proxy X-Forwarded-For with the one address that was found (whichever header it
 * was found in), and its own X-Forwarded-Proto and -Host; from others nothing. Engines believe these headers of whoever is on their host,
 * and log the address.
 */
#include "http/edge.h"

#include "loop/resolve.h"

#include <arpa/inet.h>
#include <uv.h>

/* ---- Host ---- */

/* "[::1]" or "[::1]:80": what is between the brackets; "" where they do not end so. */
static bt_str_t bracketed(bt_str_t s)
{
    const char *end = memchr(s.p, ']', s.n);

    if (end == NULL || (end + 1 < s.p + s.n && end[1] != ':'))
        return BT_STR("");
    const bt_str_t inner = {s.p + 1, (size_t) (end - s.p) - 1};
    return inner.n > 0 && memchr(inner.p, ':', inner.n) != NULL ? inner : BT_STR("");
}

/* Without its port: "127.0.0.1", "::1" (out of its brackets), "localhost". */
static bt_str_t name_of(bt_str_t host)
{
    const char *colon;

    if (host.n > 0 && host.p[0] == '[')
        return bracketed(host);
    colon = host.n > 0 ? memchr(host.p, ':', host.n) : NULL;
    return colon != NULL ? (bt_str_t){host.p, (size_t) (colon - host.p)} : host;
}

static bool is_address(bt_str_t name)
{
    char text[INET6_ADDRSTRLEN];
    unsigned char address[sizeof(struct in6_addr)];

    if (name.n == 0 || name.n >= sizeof(text))
        return false;
    memcpy(text, name.p, name.n);
    text[name.n] = '\0';
    return inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1;
}

bool bt_edge_is_known_host(bt_str_t host, const char *listener, const char *const *names)
{
    const bt_str_t name = name_of(host);

    if (is_address(name) || bt_str_ieq(name, BT_STR("localhost")) ||
        (name.n > 0 && bt_str_ieq(name, bt_str(listener))))
        return true;
    for (; names != NULL && *names != NULL; names++)
        if (bt_str_ieq(name, bt_str(*names)))
            return true;
    return false;
}

/* ---- addresses ---- */

/* "1.2.3.4", "1.2.3.4:80", "::1", "[::1]", "[::1]:80". */
static bool read_address(bt_str_t s, struct sockaddr_storage *addr_p)
{
    char text[INET6_ADDRSTRLEN + 2];
    const char *end;

    if (s.n > 0 && s.p[0] == '[') {
        s = bracketed(s);
    } else if (s.n > 0 && (end = memchr(s.p, ':', s.n)) != NULL &&
               memchr(end + 1, ':', (size_t) (s.p + s.n - end - 1)) == NULL) {
        s.n = (size_t) (end - s.p);
    }
    if (!is_address(s))
        return false;
    memcpy(text, s.p, s.n);
    text[s.n] = '\0';
    return bt_resolve_numeric(text, 0, addr_p) == 0;
}

bool bt_edge_is_proxy(const bt_edge_t *edge, const struct sockaddr_storage *addr)
{
    for (unsigned i = 0; edge != NULL && i < edge->proxy_count; i++)
        if (bt_network_has(&edge->proxies[i], addr))
            return true;
    return false;
}

/* ---- chains of proxies ---- */

/* RFC 7239 4: for=..., quoted where it holds a colon; anything else ("unknown", "_hidden") is no address. */
static bt_str_t for_of(bt_str_t element)
{
    while (element.n > 0) {
        const char *semi = memchr(element.p, ';', element.n);
        const size_t n = semi != NULL ? (size_t) (semi - element.p) : element.n;
        bt_str_t pair = bt_str_trim((bt_str_t){element.p, n});
        if (pair.n > 4 && strncasecmp(pair.p, "for=", 4) == 0) {
            bt_str_t value = {pair.p + 4, pair.n - 4};
            if (value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"')
                value = (bt_str_t){value.p + 1, value.n - 2};
            return value;
        }
        element = (bt_str_t){element.p + n + (semi != NULL), element.n - n - (semi != NULL)};
    }
    return BT_STR("");
}

/* Takes the last element of a comma-separated list off. */
static bt_str_t pop(bt_str_t *list)
{
    size_t at = list->n;

    while (at > 0 && list->p[at - 1] != ',')
        at--;
    const bt_str_t last = bt_str_trim((bt_str_t){list->p + at, list->n - at});
    list->n = at > 0 ? at - 1 : 0;
    return last;
}

static bt_str_t header_name(enum bt_edge_header header)
{
    return header == BT_EDGE_FORWARDED   ? BT_STR("forwarded")
           : header == BT_EDGE_X_REAL_IP ? BT_STR("x-real-ip")
                                         : BT_STR("x-forwarded-for");
}

/* One more hop to the left. False: this one is the client. */
static bool step_back(const bt_edge_t *edge, bt_str_t element, char *peer, size_t size)
{
    struct sockaddr_storage addr;

    if (edge->header == BT_EDGE_FORWARDED)
        element = for_of(element);
    if (!read_address(element, &addr))
        return false;
    if (uv_ip_name((const struct sockaddr *) &addr, peer, size) != 0)
        return false;
    return bt_edge_is_proxy(edge, &addr);
}

/* Several headers of one name are one list (RFC 9110 5.3), the last one's elements the last. */
static void find_client(const bt_edge_t *edge, const bt_head_t *head, char *peer, size_t size)
{
    const bt_str_t name = header_name(edge->header);
    unsigned hops = 0;

    for (unsigned i = head->header_count; i-- > 0;) {
        if (!bt_str_ieq(head->headers[i].name, name))
            continue;
        bt_str_t list = head->headers[i].value;
        do {
            if (hops++ == BT_EDGE_HOPS_MAX || !step_back(edge, pop(&list), peer, size))
                return;
        } while (list.n > 0);
    }
}

/* ---- the head ---- */

/* What says of a client where it comes from, in any spelling. */
static bool is_forwarded(bt_str_t name)
{
    if (name.n < 9 || ((name.p[0] | 0x20) != 'x' && (name.p[0] | 0x20) != 'f'))
        return false;
    return (name.n >= 12 && strncasecmp(name.p, "x-forwarded-", 12) == 0) ||
           bt_str_ieq(name, BT_STR("forwarded")) || bt_str_ieq(name, BT_STR("x-real-ip")) ||
           bt_str_ieq(name, BT_STR("x-client-ip"));
}

static bool is_passed(bt_str_t name)
{
    return bt_str_ieq(name, BT_STR("x-forwarded-proto")) ||
           bt_str_ieq(name, BT_STR("x-forwarded-host"));
}

/* address: of the client, or NULL = nothing goes on. */
static void clean(bt_head_t *head, const char *address)
{
    bool is_written = false;
    unsigned kept = 0;

    for (unsigned i = 0; i < head->header_count; i++) {
        bt_header_t h = head->headers[i];
        if (is_forwarded(h.name)) {
            if (address == NULL || (!is_passed(h.name) && is_written))
                continue;
            if (!is_passed(h.name)) {
                h = (bt_header_t){BT_STR("X-Forwarded-For"), bt_str(address)};
                is_written = true;
            }
        }
        if (kept < i || h.value.p != head->headers[i].value.p)
            head->headers[kept] = h;
        kept++;
    }
    head->header_count = kept;
}

unsigned bt_edge_check(const bt_edge_t *edge, const char *proxy, bt_head_t *head, char *peer,
                       size_t size, const char **reason_p)
{
    if (edge == NULL)
        return 0;
    if (edge->hosts != NULL &&
        !bt_edge_is_known_host(bt_head_get(head, BT_STR("host")), edge->listener, edge->hosts)) {
        *reason_p = "this Host is not served here (--client-allowed-host)";
        return 421;
    }
    if (proxy != NULL) {
        bt_str_copy(peer, size, proxy);
        find_client(edge, head, peer, size);
    }
    clean(head, proxy != NULL ? peer : NULL);
    return 0;
}
