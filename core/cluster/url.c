#include "cluster/url.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

/* Cut from both ends: the scheme and the rank first, then the path, then what is left is host and port. Nothing is
 * unescaped and nothing is guessed: user names, queries and fragments have no meaning for a worker and are refused. */

static int refuse(char *err, size_t err_size, const char *why)
{
    snprintf(err, err_size, "%s", why);
    return BT_E_CONFIG;
}

static bool has_scheme(bt_str_t s, bt_str_t scheme)
{
    return s.n >= scheme.n && strncasecmp(s.p, scheme.p, scheme.n) == 0;
}

static bt_str_t from(bt_str_t s, size_t at)
{
    return (bt_str_t){s.p + at, s.n - at};
}

static int cut_scheme(bt_str_t *s, bool *has_tls, char *err, size_t err_size)
{
    if (has_scheme(*s, BT_STR("http://"))) {
        *s = from(*s, 7);
        return 0;
    }
    if (has_scheme(*s, BT_STR("https://"))) {
        *s = from(*s, 8);
        *has_tls = true;
        return 0;
    }
    return bt_str_find(*s, BT_STR("://")) < 0
               ? 0
               : refuse(err, err_size, "only http:// and https:// URLs are supported");
}

/* "@rank" at the very end; anything else with an '@' would be a user name. */
static int cut_rank(bt_str_t *s, int *rank, char *err, size_t err_size)
{
    const char *at = memchr(s->p, '@', s->n);
    uint64_t value;
    *rank = -1;
    if (at == NULL)
        return 0;
    size_t n = (size_t) (at - s->p);
    if (bt_str_u64(from(*s, n + 1), &value) < 0 || value > 65535)
        return refuse(err, err_size, "what follows @ must be a DP rank, as in http://host:port@3");
    *rank = (int) value;
    s->n = n;
    return 0;
}

static int parse_port(bt_str_t s, unsigned *port, char *err, size_t err_size)
{
    uint64_t value;
    if (bt_str_u64(s, &value) < 0 || value == 0 || value > 65535)
        return refuse(err, err_size, "the port must be a number from 1 to 65535");
    *port = (unsigned) value;
    return 0;
}

/* authority -> host without brackets, port. */
static int split_host(bt_str_t s, bt_str_t *host, unsigned *port, char *err, size_t err_size)
{
    const char *colon;
    if (s.n > 0 && s.p[0] == '[') {
        const char *end = memchr(s.p, ']', s.n);
        if (end == NULL)
            return refuse(err, err_size, "the IPv6 address has no closing bracket");
        *host = (bt_str_t){s.p + 1, (size_t) (end - s.p) - 1};
        s = from(s, (size_t) (end - s.p) + 1);
        if (s.n > 0 && s.p[0] != ':')
            return refuse(err, err_size, "only :port may follow the bracket");
        colon = s.n > 0 ? s.p : NULL;
    } else {
        colon = memchr(s.p, ':', s.n);
        *host = (bt_str_t){s.p, colon != NULL ? (size_t) (colon - s.p) : s.n};
        if (colon != NULL && memchr(colon + 1, ':', s.n - host->n - 1) != NULL)
            return refuse(err, err_size, "an IPv6 address needs brackets, as in http://[::1]:8000");
    }
    if (host->n == 0)
        return refuse(err, err_size, "the host is missing");
    if (colon == NULL)
        return 0;
    return parse_port((bt_str_t){colon + 1, (size_t) (s.p + s.n - colon) - 1}, port, err, err_size);
}

static int check_bytes(bt_str_t s, char *err, size_t err_size)
{
    if (s.n == 0)
        return refuse(err, err_size, "the URL is empty");
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char) s.p[i];
        if (c <= ' ' || c >= 0x7f || c == '"' || c == '\\')
            return refuse(err, err_size,
                          "the URL holds a space or a character that is not allowed");
        if (c == '?' || c == '#')
            return refuse(err, err_size, "a worker's URL has no query and no fragment");
    }
    return 0;
}

int bt_url_parse(bt_url_t *url_p, bt_str_t text, char *err, size_t err_size)
{
    bt_str_t s = bt_str_trim(text), host, path = BT_STR("");
    bt_url_t url = {0};
    int rc;
    if ((rc = check_bytes(s, err, err_size)) < 0 ||
        (rc = cut_scheme(&s, &url.has_tls, err, err_size)) < 0 ||
        (rc = cut_rank(&s, &url.rank, err, err_size)) < 0)
        return rc;
    const char *slash = memchr(s.p, '/', s.n);
    if (slash != NULL) {
        path = from(s, (size_t) (slash - s.p));
        s.n = (size_t) (slash - s.p);
        while (path.n > 0 && path.p[path.n - 1] == '/')
            path.n--;
    }
    url.port = url.has_tls ? 443 : 80;
    if ((rc = split_host(s, &host, &url.port, err, err_size)) < 0)
        return rc;
    url.host = bt_str_dup(host);
    url.base_path = bt_str_dup(path);
    if (url.host == NULL || url.base_path == NULL) {
        bt_url_fini(&url);
        return BT_E_NOMEM;
    }
    *url_p = url;
    return 0;
}

void bt_url_fini(bt_url_t *url)
{
    free(url->host);
    free(url->base_path);
    *url = (bt_url_t){.rank = -1};
}

bool bt_url_eq(const bt_url_t *a, const bt_url_t *b)
{
    return a->port == b->port && a->rank == b->rank && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->base_path, b->base_path) == 0;
}

const char *bt_url_place(const char *url)
{
    const char *sep = strstr(url, "://");

    return sep != NULL ? sep + 3 : url;
}
