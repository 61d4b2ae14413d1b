/* edge_fuzz.c - what is said before a request and about it: PROXY headers, and chains of proxies in a head.
 *
 * The first byte chooses. A PROXY header: every cut of it says "more" until its last byte, and bytes behind it change nothing. A head: the client that is
 * found is an address; one that no listed proxy has, or the chain had no more; strangers' words are gone; what goes on is one address.
 */
#include "base/err.h"
#include "http/edge.h"
#include "http/head.h"
#include "http/proxy.h"
#include "loop/resolve.h"

#include <stdlib.h>

#define CHECK(cond) ((cond) ? (void) 0 : abort())

static void fuzz_proxy(const uint8_t *p, size_t n)
{
    struct sockaddr_storage addr, again;
    const char *why;
    const int rc = bt_proxy_parse(p, n, &addr, &why);

    CHECK(rc > 0 || rc == BT_E_AGAIN || rc == BT_E_HTTP);
    CHECK((rc == BT_E_HTTP) == (why != NULL));
    CHECK(rc <= (int) BT_PROXY_MAX && rc <= (int) n);
    for (size_t i = 0; rc > 0 && i < (size_t) rc; i++) {
        uint8_t *alone = malloc(i + 1);
        memcpy(alone, p, i);
        CHECK(bt_proxy_parse(alone, i, &again, &why) == BT_E_AGAIN);
        free(alone);
    }
    if (rc > 0)
        CHECK(bt_proxy_parse(p, (size_t) rc, &again, &why) == rc &&
              again.ss_family == addr.ss_family);
}

static bool is_forwarded(bt_str_t name)
{
    return (name.n >= 12 && strncasecmp(name.p, "x-forwarded-", 12) == 0) ||
           bt_str_ieq(name, BT_STR("forwarded")) || bt_str_ieq(name, BT_STR("x-real-ip"));
}

static void check_rest(const bt_head_t *head, const char *peer, bool is_proxied)
{
    unsigned addresses = 0;

    for (unsigned i = 0; i < head->header_count; i++) {
        const bt_header_t *h = &head->headers[i];
        if (!is_forwarded(h->name))
            continue;
        CHECK(is_proxied);
        if (bt_str_ieq(h->name, BT_STR("x-forwarded-for")))
            CHECK(++addresses == 1 && bt_str_eq(h->value, bt_str(peer)));
        else
            CHECK(bt_str_ieq(h->name, BT_STR("x-forwarded-proto")) ||
                  bt_str_ieq(h->name, BT_STR("x-forwarded-host")));
    }
}

static void fuzz_head(const char *p, size_t n, uint8_t how)
{
    static const char *const names[] = {"api.example", NULL};
    bt_edge_t edge = {.hosts = (how & 1) != 0 ? names : NULL,
                      .header = (enum bt_edge_header)((how >> 1) % 3),
                      .proxy_count = 1};
    const char *proxy = (how & 8) != 0 ? "10.0.0.1" : NULL, *reason = NULL;
    bt_header_t headers[BT_HTTP_HEADERS_MAX];
    char peer[48] = "192.0.2.9";
    struct sockaddr_storage addr;
    size_t seen = 0;
    bt_head_t head;
    const long length = bt_head_scan(p, n, &seen);

    CHECK(bt_network_parse(&edge.proxies[0], "10.0.0.0/8") == 0);
    if (length <= 0 || bt_head_parse_request(p, (size_t) length, headers, &head) != 0)
        return;
    const unsigned status = bt_edge_check(&edge, proxy, &head, peer, sizeof(peer), &reason);
    CHECK(status == 0 || (status == 421 && reason != NULL && edge.hosts != NULL));
    if (status != 0)
        return;
    CHECK(bt_resolve_numeric(peer, 0, &addr) == 0);
    CHECK(proxy != NULL || strcmp(peer, "192.0.2.9") == 0);
    check_rest(&head, peer, proxy != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (n < 1)
        return 0;
    if (p[0] == 'p')
        fuzz_proxy(p + 1, n - 1);
    else
        fuzz_head((const char *) p + 1, n - 1, p[0]);
    return 0;
}
