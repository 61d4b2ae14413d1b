/* Commas part the keys; those of a selector's "in (a,b)" stand within brackets, and a selector of several requirements is said key by key,
 * so nothing has to be quoted. */
#include "config/kubernetes.h"

#include "base/err.h"
#include "base/text.h"
#include "cluster/kv_transfer_config.h"
#include "config/config_impl.h"
#include "config/flag.h"
#include "config/suggest.h"

#include <stdio.h>
#include <stdlib.h>

#define KEY_MAX 64

static const struct own_key {
    const char *name;
    size_t offset;
} own_keys[] = {
    {"namespace", offsetof(bt_kube_options_t, namespace)},
    {"selector", offsetof(bt_kube_options_t, selector)},
    {"api", offsetof(bt_kube_options_t, api)},
    {"token-file", offsetof(bt_kube_options_t, token_file)},
    {"ca-file", offsetof(bt_kube_options_t, ca_file)},
    {"pool", offsetof(bt_kube_options_t, pool)},
    {"port", offsetof(bt_kube_options_t, port)},
    {"scheme", offsetof(bt_kube_options_t, scheme)},
};
#define OWN_KEYS (sizeof own_keys / sizeof own_keys[0])

/* ---- a worker's key ---- */

static bool is_key(const bt_worker_key_t *key, bt_str_t name)
{
    size_t i = 0;

    for (; i < name.n && key->name[i] != '\0'; i++)
        if ((name.p[i] == '-' ? '_' : name.p[i]) != key->name[i])
            return false;
    return i == name.n && key->name[i] == '\0';
}

static int set_list(const bt_worker_key_t *key, bt_worker_spec_t *spec, bt_str_t text, char *err,
                    size_t err_size)
{
    int rc = 0;

    bt_option_clear(&key->option, spec);
    while (text.n > 0 && rc == 0) {
        const char *comma = memchr(text.p, ',', text.n);
        const size_t n = comma != NULL ? (size_t) (comma - text.p) : text.n;
        rc = bt_option_set_text(&key->option, spec, (bt_str_t){text.p, n}, err, err_size);
        text.p += comma != NULL ? n + 1 : n;
        text.n -= comma != NULL ? n + 1 : n;
    }
    return rc;
}

/* bt_kube_set_key */
static int set_worker_key(bt_worker_spec_t *spec, bt_str_t name, bt_str_t text, bool *is_role_p,
                          char *err, size_t err_size)
{
    const bt_worker_key_t *key = NULL;

    for (unsigned i = 0; i < bt_worker_key_count && key == NULL; i++)
        if (is_key(&bt_worker_keys[i], name))
            key = &bt_worker_keys[i];
    if (key == NULL || strcmp(key->name, "url") == 0)
        return BT_E_INVAL;
    if (key->option.kind == BT_OPTION_NONE)
        return bt_kv_transfer_config_take(spec, text, *is_role_p, err, err_size);
    if (key->option.kind == BT_OPTION_TEXTS)
        return set_list(key, spec, text, err, err_size);
    int rc = bt_option_set_text(&key->option, spec, text, err, err_size);
    if (rc == 0 && strcmp(key->name, "role") == 0)
        *is_role_p = true;
    return rc;
}

/* ---- the whole ---- */

/* Up to the comma that stands outside of brackets. */
static bt_str_t next_part(bt_str_t *text)
{
    size_t n = 0;
    int depth = 0;

    for (; n < text->n && (text->p[n] != ',' || depth > 0); n++)
        depth += text->p[n] == '(' ? 1 : text->p[n] == ')' && depth > 0 ? -1 : 0;
    const bt_str_t part = {text->p, n};
    const size_t used = n < text->n ? n + 1 : n;
    text->p += used;
    text->n -= used;
    return part;
}

static int unknown_key(bt_str_t key, char *err, size_t err_size)
{
    bt_suggest_t s;

    bt_suggest_init(&s, key);
    for (size_t i = 0; i < OWN_KEYS; i++)
        bt_suggest_offer(&s, own_keys[i].name);
    for (unsigned i = 0; i < bt_worker_key_count; i++)
        bt_suggest_offer(&s, bt_worker_keys[i].name);
    if (bt_suggest_best(&s) != NULL)
        return bt_err_refuse(err, err_size, "unknown key \"%.*s\", did you mean \"%s\"?",
                             (int) (key.n < KEY_MAX ? key.n : KEY_MAX), key.p, bt_suggest_best(&s));
    return bt_err_refuse(
        err, err_size,
        "unknown key \"%.*s\": namespace, selector, api, token-file, ca-file, "
        "pool, port, scheme, or a worker's key as role or connector; a selector of several "
        "requirements is said so: selector=app=vllm,selector=tier=gpu",
        (int) (key.n < KEY_MAX ? key.n : KEY_MAX), key.p);
}

/* A second selector narrows the first; any other key may be said once. */
static int set_own(bt_kube_options_t *k, const struct own_key *key, bt_str_t value, char *err,
                   size_t err_size)
{
    char **to = (char **) (void *) ((char *) k + key->offset);
    bt_text_t t;

    if (*to != NULL && to != &k->selector)
        return bt_err_refuse(err, err_size, "%s is said twice", key->name);
    bt_text_init(&t);
    if (*to != NULL)
        bt_text_printf(&t, "%s,", *to);
    bt_text_put(&t, value);
    if (t.failed)
        return BT_E_NOMEM;
    free(*to);
    *to = bt_text_take(&t);
    return 0;
}

static int set_part(bt_kube_options_t *k, bt_str_t part, char *err, size_t err_size)
{
    const char *equals = memchr(part.p, '=', part.n);
    const size_t n = equals != NULL ? (size_t) (equals - part.p) : part.n;
    const bt_str_t key = {part.p, n}, value = {part.p + n + 1, equals != NULL ? part.n - n - 1 : 0};
    char why[256] = "";

    if (equals == NULL)
        return unknown_key(key, err, err_size);
    if (value.n == 0)
        return bt_err_refuse(err, err_size, "%.*s= is empty", (int) (n < KEY_MAX ? n : KEY_MAX),
                             key.p);
    for (size_t i = 0; i < OWN_KEYS; i++)
        if (bt_str_eq(key, bt_str(own_keys[i].name)))
            return set_own(k, &own_keys[i], value, err, err_size);
    if (bt_str_eq(key, BT_STR("name")))
        return bt_err_refuse(err, err_size, "name: pods are several, so it is theirs to say");
    int rc = set_worker_key(&k->worker, key, value, &k->has_role, why, sizeof why);
    if (rc == BT_E_INVAL)
        return unknown_key(key, err, err_size);
    return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "%.*s: %s", BT_STR_ARG(key), why) : rc;
}

static int check_api(const bt_kube_options_t *k, char *err, size_t err_size)
{
    const bool is_https = k->api != NULL && strncmp(k->api, "https://", 8) == 0;
    const char *host = k->api == NULL ? NULL : is_https ? k->api + 8 : k->api + 7;

    if (k->api == NULL)
        return 0;
    if ((!is_https && strncmp(k->api, "http://", 7) != 0) || host[0] == '\0' ||
        strpbrk(host, "/?#@ \t\r\n") != NULL)
        return bt_err_refuse(err, err_size,
                             "api: expected https://HOST:PORT, or http:// of a proxy on this "
                             "machine, got \"%.120s\"",
                             k->api);
    if (!is_https && k->ca_file != NULL)
        return bt_err_refuse(err, err_size, "ca-file: only with api=https://...");
    if (k->namespace == NULL)
        return bt_err_refuse(err, err_size, "namespace: missing, because api is given; * = all");
    return 0;
}

/* What a namespace may be called; it becomes part of a path. */
static int check_namespace(const bt_kube_options_t *k, char *err, size_t err_size)
{
    const char *n = k->namespace;

    if (n == NULL || strcmp(n, "*") == 0 ||
        (strlen(n) <= 63 && strspn(n, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(n)))
        return 0;
    return bt_err_refuse(err, err_size,
                         "namespace: expected lower-case letters, digits and '-', or *, got "
                         "\"%.80s\"",
                         n);
}

static int check_scheme(const bt_kube_options_t *k, char *err, size_t err_size)
{
    if (k->scheme == NULL || strcmp(k->scheme, "http") == 0 || strcmp(k->scheme, "https") == 0)
        return 0;
    return bt_err_refuse(err, err_size, "scheme: expected http or https, got \"%.80s\"", k->scheme);
}

int bt_config_kubernetes_read(bt_kube_options_t *k, bt_str_t text, char *err, size_t err_size)
{
    int rc = 0;

    *k = (bt_kube_options_t){.set_key = set_worker_key};
    bt_worker_spec_init(&k->worker);
    while (text.n > 0 && rc == 0)
        rc = set_part(k, next_part(&text), err, err_size);
    if (rc == 0)
        rc = check_namespace(k, err, err_size);
    if (rc == 0)
        rc = check_api(k, err, err_size);
    if (rc == 0)
        rc = check_scheme(k, err, err_size);
    if (rc < 0)
        bt_config_kubernetes_fini(k);
    return rc;
}

void bt_config_kubernetes_fini(bt_kube_options_t *k)
{
    for (size_t i = 0; i < OWN_KEYS; i++)
        free(*(char **) (void *) ((char *) k + own_keys[i].offset));
    bt_worker_spec_fini(&k->worker);
    *k = (bt_kube_options_t){0};
}

/* ---- those of a configuration ---- */

static int check_source(const bt_config_t *c, const char *text, char *why, size_t why_size)
{
    bt_kube_options_t k;
    int rc = bt_config_kubernetes_read(&k, bt_str(text), why, why_size);
    bool has_pool = rc == 0 && k.pool == NULL;

    for (unsigned i = 0; rc == 0 && i < c->pool_count; i++)
        has_pool = has_pool || strcmp(c->pools[i].spec.name, k.pool) == 0;
    if (rc == 0 && !has_pool)
        rc = bt_err_refuse(why, why_size, "pool: there is no pool \"%.80s\"", k.pool);
    bt_config_kubernetes_fini(&k);
    return rc;
}

int bt_config_check_kubernetes(const bt_config_t *c, char *err, size_t err_size)
{
    for (unsigned i = 0; i < c->workers_kubernetes_count; i++) {
        char why[512] = "";
        int rc = check_source(c, c->workers_kubernetes[i], why, sizeof why);
        if (rc < 0)
            return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "--workers-kubernetes: %s", why)
                                     : rc;
    }
    return 0;
}

void bt_config_describe_kubernetes(const bt_config_t *c, bt_text_t *out)
{
    for (unsigned i = 0; i < c->workers_kubernetes_count; i++)
        bt_text_printf(out, "workers by Kubernetes: %s\n", c->workers_kubernetes[i]);
}
