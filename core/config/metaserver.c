/* Where decodes call for prefill: what they are told is an address that they can reach, or the start is refused with the remedy.
 * A call that cannot come would show as a time-out of every request. */
#include "config/config_impl.h"

#include "base/err.h"
#include "cluster/url.h"
#include "loop/network.h"
#include "transfer/metaserver.h"

#include <limits.h>
#include <stdio.h>

#define HOST_MAX 256

bool bt_config_has_metaserver(const bt_config_t *c)
{
    return c->metaserver_port != UINT_MAX;
}

static const char *advertised(const bt_config_t *c)
{
    return c->metaserver_advertise != NULL ? c->metaserver_advertise : c->metaserver_host;
}

/* The port's colon: not one of a bare IPv6 address. NULL: it names no port. */
static const char *find_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    const bool is_in_brackets = text[0] == '[';

    if (colon == NULL || (is_in_brackets && colon[-1] != ']'))
        return NULL;
    return is_in_brackets || strchr(text, ':') == colon ? colon : NULL;
}

void bt_config_metaserver_url(const bt_config_t *c, unsigned port, char *url, size_t url_size)
{
    const char *text = advertised(c);
    const bool is_bare_v6 = text[0] != '[' && find_port(text) == NULL && strchr(text, ':') != NULL;
    char more[16] = "";

    if (find_port(text) == NULL)
        snprintf(more, sizeof more, ":%u", port);
    snprintf(url, url_size, "http://%s%s%s%s" BT_METASERVER_PATH, is_bare_v6 ? "[" : "", text,
             is_bare_v6 ? "]" : "", more);
}

static bool is_wildcard(const char *host)
{
    static const uint8_t zeros[10];
    bt_network_t n;

    return bt_network_parse(&n, host) == 0 && memcmp(n.address, zeros, 10) == 0 &&
           memcmp(n.address + 12, zeros, 4) == 0;
}

static int check_advertised(const bt_config_t *c, const bt_url_t *url, char *err, size_t err_size)
{
    if (url->base_path[0] != '\0' || url->rank >= 0)
        return bt_err_refuse(err, err_size,
                             "--metaserver-advertise: expected HOST or HOST:PORT, got \"%.120s\"",
                             advertised(c));
    if (is_wildcard(url->host))
        return bt_err_refuse(
            err, err_size,
            "--metaserver-host: no decode can call %.120s; say with --metaserver-advertise "
            "HOST[:PORT] how they reach this gateway",
            advertised(c));
    return 0;
}

static bool is_trigger(const bt_worker_spec_t *spec)
{
    bt_str_t children[BT_WORKER_CHILDREN_MAX];
    enum bt_capability cap;
    const char *dialect, *why;

    for (unsigned i = 0; i < spec->child_count; i++)
        children[i] = bt_str(spec->children[i]);
    bt_capability_derive(spec->engine, bt_str(spec->connector), children, spec->child_count,
                         bt_str(spec->dispatch_profile), &cap, &dialect, &why);
    return spec->role == BT_ROLE_DECODE && why == NULL && bt_capability_is_trigger(dialect);
}

/* Whoever says an address knows why. */
static int check_reach(const bt_config_t *c, const bt_worker_spec_t *spec, char *err,
                       size_t err_size)
{
    bt_url_t url;
    int rc = bt_url_parse(&url, bt_str(spec->url), err, err_size);

    if (rc < 0)
        return rc;
    if (!bt_host_is_loopback(url.host))
        rc = bt_err_refuse(err, err_size,
                           "--metaserver-host: decode %.200s is on another host and cannot call "
                           "%.120s; listen where it can reach, or say so with "
                           "--metaserver-advertise HOST[:PORT]",
                           spec->url, c->metaserver_host);
    bt_url_fini(&url);
    return rc;
}

static int check_decodes(const bt_config_t *c, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < c->pool_count; i++)
        for (unsigned k = 0; k < c->pools[i].worker_count && rc == 0; k++)
            if (is_trigger(&c->pools[i].workers[k]))
                rc = check_reach(c, &c->pools[i].workers[k], err, err_size);
    return rc;
}

int bt_config_check_metaserver(const bt_config_t *c, char *err, size_t err_size)
{
    char text[HOST_MAX + 64], why[160];
    bt_url_t url;
    int rc;

    if (!bt_config_has_metaserver(c)) {
        const bool is_allow = c->metaserver_allow_count > 0;
        if (!is_allow && c->metaserver_advertise == NULL)
            return 0;
        return bt_err_refuse(err, err_size,
                             "--metaserver-%s: nobody is served; add --metaserver-port PORT",
                             is_allow ? "allow" : "advertise");
    }
    bt_config_metaserver_url(c, 1, text, sizeof text);
    text[strlen(text) - strlen(BT_METASERVER_PATH)] = '\0';
    if (strlen(advertised(c)) >= HOST_MAX || bt_url_parse(&url, bt_str(text), why, sizeof why) < 0)
        return bt_err_refuse(err, err_size,
                             "--metaserver-advertise: expected HOST or HOST:PORT, got \"%.120s\"",
                             advertised(c));
    rc = check_advertised(c, &url, err, err_size);
    bt_url_fini(&url);
    if (rc == 0 && c->metaserver_advertise == NULL && bt_host_is_loopback(c->metaserver_host))
        rc = check_decodes(c, err, err_size);
    return rc < 0 ? rc
                  : bt_config_check_networks("metaserver-allow", c->metaserver_allow,
                                             c->metaserver_allow_count, err, err_size);
}
