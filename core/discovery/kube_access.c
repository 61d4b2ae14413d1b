/* A service account's token is another file every hour, so it is read for each call, and so is the CA. What a pod finds in its environment belongs
 * to its own API server: none of it is shown to one that was named by hand. */
#include "discovery/kube_access.h"

#include "base/err.h"
#include "loop/resolve.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define ACCOUNT_DIR "/var/run/secrets/kubernetes.io/serviceaccount/"
#define TOKEN_MAX ((size_t) 64 << 10)
#define PAGE_LIMIT 500
#define CA_MAX ((size_t) 1 << 20)

/* The caller's; NULL with a reason. */
static char *read_file(const char *path, size_t max, size_t *size_p, char *why, size_t why_size)
{
    FILE *in = fopen(path, "re");
    char *text = in != NULL ? malloc(max + 1) : NULL;
    size_t n = 0;

    if (in == NULL)
        snprintf(why, why_size, "%s: %s", path, strerror(errno));
    else if (text == NULL)
        snprintf(why, why_size, "%s: %s", path, bt_err_text(BT_E_NOMEM));
    if (text != NULL && (n = fread(text, 1, max + 1, in)) > max) {
        snprintf(why, why_size, "%s: more than %zu bytes", path, max);
        free(text);
        text = NULL;
    }
    if (in != NULL)
        fclose(in);
    if (text == NULL)
        return NULL;
    text[n] = '\0';
    *size_p = n;
    return text;
}

/* Without the newline that editors leave; whatever could end a header line is no token. */
static bool trim_token(char *token, size_t n)
{
    while (n > 0 && bt_str_is_blank(token[n - 1]))
        token[--n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char) token[i] <= 0x20 || (unsigned char) token[i] >= 0x7f)
            return false;
    return n > 0;
}

static void read_token(bt_kube_access_t *a)
{
    size_t n;

    free(a->token);
    a->token = read_file(a->token_file, TOKEN_MAX, &n, a->why, sizeof a->why);
    if (a->token == NULL || trim_token(a->token, n))
        return;
    snprintf(a->why, sizeof a->why, "%s: it holds no token", a->token_file);
    free(a->token);
    a->token = NULL;
}

void bt_kube_access_read(bt_kube_access_t *a)
{
    a->why[0] = '\0';
    if (a->token_file != NULL)
        read_token(a);
    if (a->ca_file != NULL && a->why[0] == '\0') {
        free(a->ca);
        a->ca = read_file(a->ca_file, CA_MAX, &a->ca_size, a->why, sizeof a->why);
        if (a->ca != NULL && a->ca_size == 0)
            snprintf(a->why, sizeof a->why, "%s: it holds no certificate", a->ca_file);
    }
}

void bt_kube_access_set_address(bt_kube_access_t *a, const struct sockaddr_storage *address)
{
    if (address == NULL ||
        uv_ip_name((const struct sockaddr *) address, a->address, sizeof a->address) != 0)
        snprintf(a->why, sizeof a->why, "%.160s: %s", a->host, bt_err_text(BT_E_RESOLVE));
}

/* ---- opening ---- */

static int copy(char **to, const char *text)
{
    if (text == NULL)
        return 0;
    *to = bt_str_dup(bt_str(text));
    return *to != NULL ? 0 : BT_E_NOMEM;
}

/* Is the URL's host a name? The form of the URL is checked already (core/config). */
static int find_host(bt_kube_access_t *a)
{
    const char *host = strstr(a->url, "://") + 3;
    const char *colon = strrchr(host, ':');
    struct sockaddr_storage addr;

    if (host[0] == '[')
        return 0;
    a->host = bt_str_dup((bt_str_t){host, colon != NULL ? (size_t) (colon - host) : strlen(host)});
    if (a->host == NULL)
        return BT_E_NOMEM;
    if (bt_resolve_numeric(a->host, 0, &addr) == 0) {
        free(a->host);
        a->host = NULL;
    }
    return 0;
}

static int read_namespace(bt_kube_access_t *a, char *err, size_t err_size)
{
    char why[256];
    size_t n;

    a->namespace = read_file(ACCOUNT_DIR "namespace", 64, &n, why, sizeof why);
    if (a->namespace == NULL || !trim_token(a->namespace, n))
        return bt_err_refuse(err, err_size,
                             "namespace is not given, and this pod's is not known: %s",
                             a->namespace == NULL ? why : "its file is empty");
    return 0;
}

static int open_own(bt_kube_access_t *a, const bt_kube_options_t *o, char *err, size_t err_size)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    bt_text_t url;

    if (host == NULL || host[0] == '\0')
        return bt_err_refuse(err, err_size,
                             "this is no pod of a cluster (no KUBERNETES_SERVICE_HOST): give "
                             "api=https://HOST:PORT with token-file= and ca-file=, or "
                             "api=http://127.0.0.1:8001 of kubectl proxy");
    bt_text_init(&url);
    bt_text_printf(&url, strchr(host, ':') != NULL ? "https://[%s]:%s" : "https://%s:%s", host,
                   port != NULL && port[0] != '\0' ? port : "443");
    a->url = bt_text_take(&url);
    int rc = a->url != NULL ? 0 : BT_E_NOMEM;
    if (rc == 0)
        rc = copy(&a->token_file, o->token_file != NULL ? o->token_file : ACCOUNT_DIR "token");
    if (rc == 0)
        rc = copy(&a->ca_file, o->ca_file != NULL ? o->ca_file : ACCOUNT_DIR "ca.crt");
    if (rc == 0 && o->namespace == NULL)
        rc = read_namespace(a, err, err_size);
    return rc;
}

static int open_given(bt_kube_access_t *a, const bt_kube_options_t *o)
{
    int rc = copy(&a->url, o->api);

    if (rc == 0)
        rc = copy(&a->token_file, o->token_file);
    return rc == 0 ? copy(&a->ca_file, o->ca_file) : rc;
}

int bt_kube_access_open(bt_kube_access_t *a, const bt_kube_options_t *options, char *err,
                        size_t err_size)
{
    *a = (bt_kube_access_t){0};
    int rc = options->api != NULL ? open_given(a, options) : open_own(a, options, err, err_size);
    if (rc == 0 && options->namespace != NULL)
        rc = copy(&a->namespace, options->namespace);
    if (rc == 0)
        rc = find_host(a);
    if (rc < 0)
        bt_kube_access_fini(a);
    return rc;
}

/* ---- what is asked ---- */

static void put_encoded(bt_text_t *out, const char *key, const char *value)
{
    bt_text_printf(out, "&%s=", key);
    for (const char *p = value; *p != '\0'; p++) {
        const unsigned char c = (unsigned char) *p;
        bt_text_printf(out, isalnum(c) || strchr("-._~", c) != NULL ? "%c" : "%%%02X", c);
    }
}

static void put_path(const bt_kube_access_t *a, bt_text_t *out)
{
    bt_text_puts(out, a->url);
    if (strcmp(a->namespace, "*") == 0)
        bt_text_puts(out, "/api/v1/pods");
    else
        bt_text_printf(out, "/api/v1/namespaces/%s/pods", a->namespace);
}

void bt_kube_access_put_list(const bt_kube_access_t *a, const char *selector, const char *page,
                             bt_text_t *out)
{
    put_path(a, out);
    bt_text_printf(out, "?limit=%d", PAGE_LIMIT);
    if (page != NULL)
        put_encoded(out, "continue", page);
    if (selector != NULL)
        put_encoded(out, "labelSelector", selector);
}

void bt_kube_access_put_watch(const bt_kube_access_t *a, const char *selector, const char *version,
                              unsigned secs, bt_text_t *out)
{
    put_path(a, out);
    bt_text_printf(out, "?watch=1&allowWatchBookmarks=true&timeoutSeconds=%u", secs);
    put_encoded(out, "resourceVersion", version);
    if (selector != NULL)
        put_encoded(out, "labelSelector", selector);
}

void bt_kube_access_fini(bt_kube_access_t *a)
{
    free(a->url);
    free(a->host);
    free(a->token_file);
    free(a->ca_file);
    free(a->namespace);
    free(a->token);
    free(a->ca);
    *a = (bt_kube_access_t){0};
}
