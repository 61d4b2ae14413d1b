/* Cut from the left: scheme, user info (up to the last @), hosts, path. What is wrong is said with the part that is wrong, never with the whole text: it may
 * hold a password. User and password may be %-coded, as everywhere in urls. */
#include "store/store_url.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define FORMS                                                                                      \
    "redis://[user:password@]host:port[/db], rediss://..., unix:///path[?db=n], "                  \
    "sentinel://[user:password@]host:port,host:port/master[/db] or "                               \
    "redis-cluster://[user:password@]host:port,host:port (rediss-cluster://...)"

typedef struct parse {
    bt_store_url_t *url;
    char *err;
    size_t err_size;
} parse_t;

static int fail(parse_t *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(parse_t *p, const char *fmt, ...)
{
    va_list args;
    int n = snprintf(p->err, p->err_size, "store url: ");

    va_start(args, fmt);
    if (n > 0 && (size_t) n < p->err_size)
        vsnprintf(p->err + n, p->err_size - (size_t) n, fmt, args);
    va_end(args);
    if (p->err_size > 0)
        bt_str_tame(p->err, strlen(p->err));
    return BT_E_CONFIG;
}

/* What stands before the first `at`; s becomes the rest, or is left whole. */
static bool cut(bt_str_t *s, char at, bt_str_t *head_p)
{
    const char *p = s->n > 0 ? memchr(s->p, at, s->n) : NULL;

    if (p == NULL)
        return false;
    *head_p = (bt_str_t){s->p, (size_t) (p - s->p)};
    *s = (bt_str_t){p + 1, s->n - head_p->n - 1};
    return true;
}

static int decode(parse_t *p, bt_str_t s, const char *what, char **out_p)
{
    char *out = bt_str_dup(s);
    size_t n = 0;

    if (out == NULL)
        return BT_E_NOMEM;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '%') {
            out[n++] = s.p[i];
            continue;
        }
        const int byte = bt_str_escaped_byte(s, i);
        if (byte <= 0) {
            free(out);
            return fail(p, "%s has a %% that begins no code; write %%25 for a %%", what);
        }
        out[n++] = (char) byte;
        i += 2;
    }
    out[n] = '\0';
    *out_p = out;
    return 0;
}

static int parse_user(parse_t *p, bt_str_t info)
{
    bt_str_t user = BT_STR_NULL;
    bool has_user = cut(&info, ':', &user);
    int rc = 0;

    if (!has_user)
        return fail(p, "write user:password@, or :password@ for a password alone");
    if (user.n > 0)
        rc = decode(p, user, "the user", &p->url->username);
    if (rc == 0 && info.n > 0)
        rc = decode(p, info, "the password", &p->url->password);
    if (rc == 0 && user.n > 0 && info.n == 0)
        return fail(p, "a user without a password; write user:password@");
    return rc;
}

static int parse_port(parse_t *p, bt_str_t text, unsigned *port_p)
{
    uint64_t port;

    if (bt_str_u64(text, &port) != 0 || port < 1 || port > 65535)
        return fail(p, "the port \"%.*s\" is not a number from 1 to 65535", BT_STR_ARG(text));
    *port_p = (unsigned) port;
    return 0;
}

/* "host", "host:port", "[::1]", "[::1]:port". */
static int parse_host(parse_t *p, bt_str_t text, unsigned port)
{
    bt_store_url_t *url = p->url;
    bt_str_t host = text, rest = text;
    int rc = 0;

    if (url->host_count == BT_STORE_HOSTS_MAX)
        return fail(p, "more than %d %s", BT_STORE_HOSTS_MAX,
                    url->scheme == BT_STORE_URL_SENTINEL ? "sentinels" : "nodes of the cluster");
    if (text.n > 0 && text.p[0] == '[') {
        rest = (bt_str_t){text.p + 1, text.n - 1};
        if (!cut(&rest, ']', &host))
            return fail(p, "\"%.*s\" has no ]", BT_STR_ARG(text));
        if (rest.n > 0 && rest.p[0] != ':')
            return fail(p, "\"%.*s\" has something else than :port after ]", BT_STR_ARG(text));
        if (rest.n > 0)
            rc = parse_port(p, (bt_str_t){rest.p + 1, rest.n - 1}, &port);
    } else if (cut(&rest, ':', &host)) {
        if (rest.n > 0 && memchr(rest.p, ':', rest.n) != NULL)
            return fail(p, "write the address \"%.*s\" in brackets: [::1]:6379", BT_STR_ARG(text));
        rc = parse_port(p, rest, &port);
    }
    if (rc != 0)
        return rc;
    if (host.n == 0 || host.n > 255)
        return fail(p, "no host; write %s", FORMS);
    char *copy = bt_str_dup(host);
    if (copy == NULL)
        return BT_E_NOMEM;
    url->hosts[url->host_count++] = (bt_store_host_t){copy, port};
    return 0;
}

static int parse_db(parse_t *p, bt_str_t text)
{
    uint64_t db;

    if (bt_str_u64(text, &db) != 0 || db > 1000000)
        return fail(p, "the database \"%.*s\" is not a number; write /0", BT_STR_ARG(text));
    p->url->db = (unsigned) db;
    return 0;
}

static int parse_unix(parse_t *p, bt_str_t rest)
{
    bt_str_t path = rest;
    bool has_query = cut(&rest, '?', &path);

    if (path.n < 2 || path.p[0] != '/' || path.n > 107)
        return fail(p, "a socket's path begins with / and has at most 107 characters; write "
                       "unix:///run/redis.sock");
    p->url->path = bt_str_dup(path);
    if (p->url->path == NULL)
        return BT_E_NOMEM;
    if (!has_query)
        return 0;
    if (!bt_str_starts(rest, BT_STR("db=")))
        return fail(p, "\"?%.*s\" is unknown; only ?db=n may follow a socket's path",
                    BT_STR_ARG(rest));
    return parse_db(p, (bt_str_t){rest.p + 3, rest.n - 3});
}

static int parse_hosts(parse_t *p, bt_str_t hosts, unsigned port)
{
    bt_str_t one;
    int rc = 0;

    while (rc == 0 && cut(&hosts, ',', &one))
        rc = parse_host(p, one, port);
    return rc == 0 ? parse_host(p, hosts, port) : rc;
}

static int parse_cluster(parse_t *p, bt_str_t hosts, bt_str_t path)
{
    int rc = parse_hosts(p, hosts, 6379);

    if (rc == 0 && path.n > 0)
        rc = parse_db(p, path);
    if (rc == 0 && p->url->db != 0)
        return fail(p, "a cluster has one database; leave /%u out", p->url->db);
    return rc;
}

static int parse_sentinel(parse_t *p, bt_str_t hosts, bt_str_t path)
{
    bt_str_t master = path;
    int rc = parse_hosts(p, hosts, 26379);

    bool has_db = rc == 0 && cut(&path, '/', &master);
    if (rc == 0 && has_db && path.n > 0)
        rc = parse_db(p, path);
    if (rc != 0)
        return rc;
    if (master.n == 0)
        return fail(p, "the name of the master is missing; write sentinel://host:port/mymaster");
    p->url->master = bt_str_dup(master);
    return p->url->master != NULL ? 0 : BT_E_NOMEM;
}

static int parse_network(parse_t *p, bt_str_t rest)
{
    const char *at = rest.n > 0 ? memrchr(rest.p, '@', rest.n) : NULL;
    bt_str_t hosts, query;
    int rc = 0;

    if (at != NULL) {
        rc = parse_user(p, (bt_str_t){rest.p, (size_t) (at - rest.p)});
        rest = (bt_str_t){at + 1, rest.n - (size_t) (at - rest.p) - 1};
    }
    if (rc != 0)
        return rc;
    if (cut(&rest, '?', &query))
        return fail(p, "\"?%.*s\" is unknown; nothing may follow the database", BT_STR_ARG(rest));
    hosts = rest;
    if (!cut(&rest, '/', &hosts))
        rest = BT_STR_NULL;
    if (p->url->scheme == BT_STORE_URL_SENTINEL)
        return parse_sentinel(p, hosts, rest);
    if (p->url->scheme >= BT_STORE_URL_CLUSTER)
        return parse_cluster(p, hosts, rest);
    if (hosts.n > 0 && memchr(hosts.p, ',', hosts.n) != NULL)
        return fail(p, "several hosts are for sentinel:// and redis-cluster:// only");
    rc = parse_host(p, hosts, 6379);
    return rc == 0 && rest.n > 0 ? parse_db(p, rest) : rc;
}

static void show_host(bt_store_url_t *url, unsigned i)
{
    size_t n = strlen(url->shown);
    const bt_store_host_t *host = &url->hosts[i];
    const char *fmt = strchr(host->host, ':') != NULL ? "%s[%s]:%u" : "%s%s:%u";
    char one[300];

    snprintf(one, sizeof(one), fmt, i > 0 ? "," : "", host->host, host->port);
    bt_str_copy(url->shown + n, sizeof(url->shown) - n, one);
}

static void show(bt_store_url_t *url)
{
    static const char *const names[] = {
        "local",       "redis://",         "rediss://",        "unix://",
        "sentinel://", "redis-cluster://", "rediss-cluster://"};
    size_t n;

    bt_str_copy(url->shown, sizeof(url->shown), names[url->scheme]);
    n = strlen(url->shown);
    if (url->path != NULL)
        bt_str_copy(url->shown + n, sizeof(url->shown) - n, url->path);
    for (unsigned i = 0; i < url->host_count; i++)
        show_host(url, i);
    n = strlen(url->shown);
    if (url->master != NULL)
        snprintf(url->shown + n, sizeof(url->shown) - n, "/%s", url->master);
    bt_str_tame(url->shown, strlen(url->shown));
}

static int parse_scheme(parse_t *p, bt_str_t text)
{
    static const struct {
        bt_str_t head;
        enum bt_store_scheme scheme;
    } schemes[] = {{{"redis://", 8}, BT_STORE_URL_TCP},
                   {{"rediss://", 9}, BT_STORE_URL_TLS},
                   {{"unix://", 7}, BT_STORE_URL_UNIX},
                   {{"sentinel://", 11}, BT_STORE_URL_SENTINEL},
                   {{"redis-cluster://", 16}, BT_STORE_URL_CLUSTER},
                   {{"rediss-cluster://", 17}, BT_STORE_URL_CLUSTER_TLS}};

    for (unsigned i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        bt_str_t head = schemes[i].head;
        if (!bt_str_starts(text, head))
            continue;
        p->url->scheme = schemes[i].scheme;
        bt_str_t rest = {text.p + head.n, text.n - head.n};
        return p->url->scheme == BT_STORE_URL_UNIX ? parse_unix(p, rest) : parse_network(p, rest);
    }
    return fail(p, "unknown beginning; write %s", FORMS);
}

int bt_store_url_parse(bt_store_url_t *url_p, const char *text, char *err, size_t err_size)
{
    bt_store_url_t url;
    parse_t p = {&url, err, err_size};
    int rc = 0;

    memset(&url, 0, sizeof(url));
    if (text != NULL && strcmp(text, "local") != 0)
        rc = parse_scheme(&p, bt_str(text));
    if (rc != 0) {
        bt_store_url_fini(&url);
        return rc;
    }
    show(&url);
    *url_p = url;
    return 0;
}

void bt_store_url_fini(bt_store_url_t *url)
{
    for (unsigned i = 0; i < url->host_count; i++)
        free(url->hosts[i].host);
    free(url->username);
    free(url->password);
    free(url->path);
    free(url->master);
    memset(url, 0, sizeof(*url));
}
