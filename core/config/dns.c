/* --workers-dns: a DNS name, and what each worker behind it is: keys of a worker, and some of the name's own. In the file it is a list
 * of tables, workers_dns = { { name = "prefill.ns.svc", port = 8000, role = "prefill" } }; a flag says one, "name=...,port=...". */
#include "config/config_impl.h"

#include "base/err.h"
#include "config/flag.h"
#include "config/flag_values.h"
#include "config/suggest.h"

#include <stdio.h>
#include <stdlib.h>

#define AT(member) offsetof(bt_dns_name_t, member)

static const bt_word_t families[] = {
    {"auto", BT_DNS_AUTO, false},
    {"ipv4", BT_DNS_IPV4, false},
    {"ipv6", BT_DNS_IPV6, false},
    {NULL, 0, false},
};

static const bt_worker_key_t own_keys[] = {
    {"name", {.kind = BT_OPTION_TEXT, .offset = AT(name)}, "its A or AAAA records are workers"},
    {"srv", {.kind = BT_OPTION_TEXT, .offset = AT(srv)}, "or the targets of its SRV records are"},
    {"port",
     {.kind = BT_OPTION_UINT, .offset = AT(port), .min = 1, .max = 65535},
     "where those of name listen; SRV records say it themselves"},
    {"family",
     {.kind = BT_OPTION_WORD, .offset = AT(family), .words = families},
     "auto (default: AAAA only where there is no A), ipv4 or ipv6"},
    {"scheme",
     {.kind = BT_OPTION_WORD, .offset = AT(has_tls), .words = bt_url_schemes},
     "https: they speak TLS, with a certificate for tls_name (the name looked up); http"},
    {"pool", {.kind = BT_OPTION_TEXT, .offset = AT(pool)}, "theirs; the first"},
};
#define OWN_COUNT (sizeof own_keys / sizeof own_keys[0])

/* The worker's keys, but for those that a name stands for. */
static const bt_worker_key_t *find_key(bt_str_t key, bool *is_own_p)
{
    for (size_t i = 0; i < OWN_COUNT; i++)
        if (bt_str_eq(key, bt_str(own_keys[i].name))) {
            *is_own_p = true;
            return &own_keys[i];
        }
    *is_own_p = false;
    for (unsigned i = 0; i < bt_worker_key_count; i++)
        if (bt_str_eq(key, bt_str(bt_worker_keys[i].name)) &&
            strcmp(bt_worker_keys[i].name, "url") != 0)
            return &bt_worker_keys[i];
    return NULL;
}

const bt_option_t *bt_config_dns_option(bt_str_t key, const bt_dns_name_t *name,
                                        const bt_worker_spec_t *worker, void **base_p)
{
    bool is_own;
    const bt_worker_key_t *found = find_key(key, &is_own);

    *base_p = (void *) (uintptr_t) (is_own ? (const void *) name : (const void *) worker);
    return found != NULL ? &found->option : NULL;
}

const char *bt_config_dns_nearest(bt_str_t key)
{
    bt_suggest_t s;

    if (bt_str_eq(key, BT_STR("url")))
        return "name";
    bt_suggest_init(&s, key);
    for (size_t i = 0; i < OWN_COUNT; i++)
        bt_suggest_offer(&s, own_keys[i].name);
    for (unsigned i = 0; i < bt_worker_key_count; i++)
        if (strcmp(bt_worker_keys[i].name, "url") != 0)
            bt_suggest_offer(&s, bt_worker_keys[i].name);
    return bt_suggest_best(&s);
}

int bt_config_add_dns(bt_config_t *c, const char *origin, bt_dns_name_t **name_p,
                      bt_worker_spec_t **worker_p)
{
    bt_dns_name_t *names = realloc(c->dns_names, (c->dns.count + 1) * sizeof *names);

    if (names == NULL)
        return BT_E_NOMEM;
    c->dns_names = names;
    if (bt_config_add_worker(&c->dns_workers, origin, worker_p) < 0)
        return BT_E_NOMEM;
    *name_p = &names[c->dns.count++];
    **name_p = (bt_dns_name_t){0};
    return 0;
}

void bt_config_dns_fini(bt_config_t *c)
{
    for (unsigned i = 0; i < c->dns.count; i++)
        for (size_t k = 0; k < OWN_COUNT; k++)
            bt_option_clear(&own_keys[k].option, &c->dns_names[i]);
    free(c->dns_names);
    bt_config_workers_fini(&c->dns_workers);
}

/* ---- the flag ---- */

static int set_pair(bt_dns_name_t *name, bt_worker_spec_t *worker, bt_str_t pair, char *err,
                    size_t err_size)
{
    char why[BT_CONFIG_ERR_BYTES];
    const ptrdiff_t equals = bt_str_find(pair, BT_STR("="));
    const bt_str_t key = {pair.p, equals > 0 ? (size_t) equals : pair.n};
    void *base;

    if (equals <= 0)
        return bt_err_refuse(err, err_size, "expected KEY=VALUE, got \"%.*s\"",
                             BT_STR_ARG(bt_str_cut(pair, 120)));
    const bt_option_t *option = bt_config_dns_option(key, name, worker, &base);
    const char *nearest = option == NULL ? bt_config_dns_nearest(key) : NULL;
    if (option == NULL)
        return bt_err_refuse(err, err_size, "unknown key \"%.*s\"%s%s%s",
                             BT_STR_ARG(bt_str_cut(key, 80)),
                             nearest != NULL ? ", did you mean \"" : "",
                             nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
    if (option->kind == BT_OPTION_NONE)
        return bt_err_refuse(err, err_size,
                             "%.*s: has commas of its own; write it in the file, "
                             "workers_dns = { { ... } }",
                             BT_STR_ARG(key));
    const int rc = bt_option_set_text(option, base,
                                      (bt_str_t){pair.p + equals + 1, pair.n - (size_t) equals - 1},
                                      why, sizeof why);
    return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "%.*s: %s", BT_STR_ARG(key), why) : rc;
}

int bt_config_take_dns(bt_config_t *c, const char *text, char *err, size_t err_size)
{
    bt_worker_spec_t *worker;
    bt_dns_name_t *name;
    int rc = bt_config_add_dns(c, "--workers-dns", &name, &worker);

    for (size_t n; rc == 0 && *text != '\0'; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        rc = set_pair(name, worker, bt_str_trim((bt_str_t){text, n}), err, err_size);
    }
    return rc;
}

/* ---- the whole ---- */

static int refuse(const bt_config_t *c, unsigned i, const char *key, const char *why, char *err,
                  size_t err_size)
{
    const char *origin = c->dns_workers.origins[i];

    if (origin[0] == '-')
        return bt_err_refuse(err, err_size, "%s: %s: %s", origin, key, why);
    return bt_err_refuse(err, err_size, "%s: %s.%s: %s", c->file, origin, key, why);
}

static bool is_domain(const char *name)
{
    const size_t n = strlen(name);

    return n <= BT_DNS_NAME_MAX && name[0] != '.' && strstr(name, "..") == NULL &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static int check_name(const bt_config_t *c, unsigned i, char *err, size_t err_size)
{
    const bt_dns_name_t *d = &c->dns_names[i];
    const char *key = d->srv != NULL ? "srv" : "name";

    if ((d->name == NULL) == (d->srv == NULL))
        return refuse(c, i, key,
                      d->name == NULL
                          ? "missing: which name is looked up? give name and port, or srv"
                          : "give either name and port, or srv",
                      err, err_size);
    if (!is_domain(d->srv != NULL ? d->srv : d->name))
        return refuse(c, i, key, "expected a DNS name, as prefill.llm.svc.cluster.local", err,
                      err_size);
    if ((d->srv == NULL) == (d->port == 0))
        return refuse(c, i, "port",
                      d->port == 0 ? "missing: where do the workers listen?"
                                   : "SRV records say it themselves; leave it out",
                      err, err_size);
    return 0;
}

static int find_pool(const bt_config_t *c, unsigned i, unsigned *pool_p, char *err, size_t err_size)
{
    char why[160];

    for (*pool_p = 0; *pool_p < c->pool_count; ++*pool_p)
        if (c->dns_names[i].pool == NULL ||
            strcmp(c->dns_names[i].pool, c->pools[*pool_p].spec.name) == 0)
            return 0;
    snprintf(why, sizeof why, "there is no pool \"%.80s\" in the configuration",
             c->dns_names[i].pool);
    return refuse(c, i, "pool", why, err, err_size);
}

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcasecmp(a, b) == 0);
}

static int check_once(const bt_config_t *c, unsigned i, char *err, size_t err_size)
{
    const bt_dns_name_t *a = &c->dns_names[i], *b = c->dns_names;

    for (; b < a; b++)
        if (is_same_text(a->name, b->name) && is_same_text(a->srv, b->srv) && a->port == b->port &&
            strcmp(a->pool, b->pool) == 0)
            return refuse(c, i, a->srv != NULL ? "srv" : "name",
                          "is given twice for one pool; leave out one", err, err_size);
    return 0;
}

/* A certificate is for the name that was asked for, not for what answers lead to: those could be anybody's. Of SRV it is the domain (RFC 6125, 6.2.1). */
static char *tls_name_of(const bt_dns_name_t *d)
{
    const char *name = d->srv != NULL ? d->srv : d->name, *dot;

    while (d->srv != NULL && name[0] == '_' && (dot = strchr(name, '.')) != NULL)
        name = dot + 1;
    const size_t n = strlen(name);
    return bt_str_dup((bt_str_t){name, n > 0 && name[n - 1] == '.' ? n - 1 : n});
}

/* The template stands for all its workers: what is wrong with it is told at the start. */
static int finish_name(bt_config_t *c, unsigned i, char *err, size_t err_size)
{
    bt_worker_spec_t *worker = &c->dns_workers.workers[i];
    bt_dns_name_t *d = &c->dns_names[i];
    char url[BT_DNS_NAME_MAX + 32];
    unsigned pool = 0;
    int rc = check_name(c, i, err, err_size);

    if (rc == 0)
        rc = find_pool(c, i, &pool, err, err_size);
    if (rc < 0)
        return rc;
    if (d->pool == NULL && (d->pool = bt_str_dup(bt_str(c->pools[pool].spec.name))) == NULL)
        return BT_E_NOMEM;
    snprintf(url, sizeof url, d->srv != NULL ? "%s://%s" : "%s://%s:%u",
             d->has_tls ? "https" : "http", d->srv != NULL ? d->srv : d->name, d->port);
    if ((worker->url = bt_str_dup(bt_str(url))) == NULL)
        return BT_E_NOMEM;
    if (d->has_tls && worker->tls_name == NULL && (worker->tls_name = tls_name_of(d)) == NULL)
        return BT_E_NOMEM;
    d->worker = worker;
    rc = check_once(c, i, err, err_size);
    return rc == 0 ? bt_config_finish_worker(c, &c->pools[pool], &c->dns_workers, i, err, err_size)
                   : rc;
}

int bt_config_finish_dns(bt_config_t *c, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < c->dns.count && rc == 0; i++)
        rc = finish_name(c, i, err, err_size);
    if (rc < 0)
        return rc;
    c->dns.names = c->dns_names;
    c->dns.servers = c->dns_servers;
    if (c->dns.min_ms > c->dns.max_ms)
        return bt_err_refuse(err, err_size, "--dns-min-secs: is above --dns-max-secs (%g)",
                             (double) c->dns.max_ms / 1000);
    if (c->dns_servers != NULL && !bt_dns_servers_are_valid(c->dns_servers))
        return bt_err_refuse(err, err_size,
                             "--dns-servers: expected addresses, as 10.0.0.10 or "
                             "127.0.0.1:5353,[::1]:5353, got \"%.120s\"",
                             c->dns_servers);
    return 0;
}

void bt_config_describe_dns(const bt_config_t *c, bt_text_t *out)
{
    for (unsigned i = 0; i < c->dns.count; i++) {
        const bt_dns_name_t *d = &c->dns_names[i];
        bt_text_printf(out, "pool %s: %s workers by DNS: %s %s", d->pool,
                       bt_role_name(d->worker->role), d->srv != NULL ? "SRV" : "A or AAAA of",
                       d->srv != NULL ? d->srv : d->name);
        if (d->srv == NULL)
            bt_text_printf(out, ", port %u", d->port);
        bt_text_puts(out, "\n");
    }
}
