/* Which gateways get the admin key. A fleet's table of replicas is what the store says, and the store's words are no reason to send a secret anywhere: the key goes to
 * the gateways that the operator has named (--admin, --gateway), or, when he says so (--trust-store), to those of the table.
 *
 * Names are compared, not hosts: http://localhost:29000 and http://127.0.0.1:29000 are two. What a name stands for could be the store's word again.
 */
#include "tools/fleet.h"

#include "cluster/url.h"

#include <strings.h>

/* The part before the next comma; *rest goes on behind it, p NULL: that was the last one. */
static bt_str_t cut(bt_str_t *rest)
{
    const char *comma = rest->n > 0 ? memchr(rest->p, ',', rest->n) : NULL;
    bt_str_t head = {rest->p, comma != NULL ? (size_t) (comma - rest->p) : rest->n};

    *rest = comma != NULL ? (bt_str_t){comma + 1, rest->n - head.n - 1} : BT_STR_NULL;
    return head;
}

int fleet_check_gateways(const fleet_tool_t *t)
{
    for (unsigned i = 0; i < t->gateway_count; i++) {
        bt_str_t rest = bt_str(t->gateways[i]);
        do {
            char why[256] = "";
            bt_str_t name = cut(&rest);
            bt_url_t url;
            if (bt_url_parse(&url, name, why, sizeof why) < 0)
                return fleet_refuse("--gateway %.*s: %s", BT_STR_ARG(name), why);
            bt_url_fini(&url);
        } while (rest.p != NULL);
    }
    return 0;
}

/* Scheme, host and port: a key for https:// does not go in the clear. */
static bool is_same(const bt_url_t *url, bt_str_t name)
{
    char why[256];
    bt_url_t named;

    if (bt_url_parse(&named, name, why, sizeof why) < 0)
        return false;
    const bool is = named.has_tls == url->has_tls && named.port == url->port &&
                    strcasecmp(named.host, url->host) == 0;
    bt_url_fini(&named);
    return is;
}

static bool is_named(const fleet_tool_t *t, const bt_url_t *url)
{
    if (is_same(url, bt_str(t->admin)))
        return true;
    for (unsigned i = 0; i < t->gateway_count; i++) {
        bt_str_t rest = bt_str(t->gateways[i]);
        do {
            if (is_same(url, cut(&rest)))
                return true;
        } while (rest.p != NULL);
    }
    return false;
}

bool fleet_may_ask(const fleet_tool_t *t, const char *url_text)
{
    char why[256];
    bt_url_t url;

    if (t->key == NULL || t->does_trust_store)
        return true;
    if (bt_url_parse(&url, bt_str(url_text), why, sizeof why) < 0)
        return false;
    const bool may = is_named(t, &url);
    bt_url_fini(&url);
    return may;
}
