/* What is said about the shared store, checked as far as that goes without reaching for it: a store
 * that is unavailable is no reason not to start. */
#include "config/config_impl.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PASSWORD_ENV "BATON_REDIS_PASSWORD"
#define PASSWORD_BYTES 1024

/* The file's first line, without its end; passwords may hold spaces. */
static int read_password(const char *path, char **password_p, char *err, size_t err_size)
{
    char line[PASSWORD_BYTES + 2];
    FILE *in = fopen(path, "re");

    if (in == NULL)
        return bt_err_refuse(err, err_size, "--redis-password-file: %.200s: %s", path,
                             strerror(errno));
    const bool has_line = fgets(line, sizeof line, in) != NULL;
    fclose(in);
    size_t n = has_line ? strcspn(line, "\r\n") : 0;
    if (n == 0 || n > PASSWORD_BYTES)
        return bt_err_refuse(err, err_size,
                             "--redis-password-file: %.200s: its first line must be the password, "
                             "1 to %d bytes",
                             path, PASSWORD_BYTES);
    *password_p = bt_str_dup((bt_str_t){line, n});
    return *password_p != NULL ? 0 : BT_E_NOMEM;
}

static int find_password(bt_config_t *c, char *err, size_t err_size)
{
    const char *given = getenv(PASSWORD_ENV);

    if (c->redis_password_file != NULL)
        return read_password(c->redis_password_file, &c->redis_password, err, err_size);
    if (c->redis_url == NULL || given == NULL || given[0] == '\0')
        return 0;
    c->redis_password = bt_str_dup(bt_str(given));
    return c->redis_password != NULL ? 0 : BT_E_NOMEM;
}

/* A setting without effect is a mistake that nobody would find. */
static int check_alone(const bt_config_t *c, char *err, size_t err_size)
{
    const struct {
        const char *flag, *value;
        bool is_tls;
    } rows[] = {{"redis-username", c->redis_username, false},
                {"redis-password-file", c->redis_password_file, false},
                {"redis-tls-ca", c->redis_tls_ca, true},
                {"redis-tls-cert", c->redis_tls_cert, true},
                {"redis-tls-key", c->redis_tls_key, true}};
    const bool has_tls =
        c->redis_url != NULL && (strncmp(c->redis_url, "rediss://", 9) == 0 ||
                                 strncmp(c->redis_url, "rediss-cluster://", 17) == 0);

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value != NULL && c->redis_url == NULL)
            return bt_err_refuse(err, err_size, "--%s: there is no --redis-url", rows[i].flag);
        if (rows[i].value != NULL && rows[i].is_tls && !has_tls)
            return bt_err_refuse(err, err_size,
                                 "--%s: only with --redis-url rediss://... or rediss-cluster://...",
                                 rows[i].flag);
    }
    return 0;
}

static int check_names(const bt_config_t *c, char *err, size_t err_size)
{
    if (c->fleet_name != NULL &&
        (strlen(c->fleet_name) > 100 || strpbrk(c->fleet_name, "{}") != NULL))
        return bt_err_refuse(err, err_size, "--fleet-name: at most 100 bytes, and no brace");
    if (c->replica_name != NULL &&
        (strlen(c->replica_name) > 128 || strchr(c->replica_name, '#') != NULL))
        return bt_err_refuse(err, err_size, "--replica-name: at most 128 bytes, and no '#'");
    if (c->role_switch_auto && c->redis_url != NULL)
        return bt_err_refuse(err, err_size,
                             "--role-switch-auto: replicas that share a store (--redis-url) do not "
                             "switch roles by themselves, for each has an advice of its own; leave "
                             "one of the two out, and switch by POST /workers/NAME/role");
    if (c->fleet_expiry_ms < 3 * c->fleet_heartbeat_ms)
        return bt_err_refuse(err, err_size,
                             "--fleet-expiry-ms: at least three times --fleet-heartbeat-ms, or "
                             "gateways come and go");
    return 0;
}

/* The same code that will open it; it connects to nothing. */
static int check_store(const bt_config_t *c, char *err, size_t err_size)
{
    char text[400] = "";
    const char *why = text;
    bt_store_t *store;
    int rc = bt_store_open(&store, &c->store, text, sizeof text);

    if (strncmp(text, "store", 5) == 0 && strstr(text, ": ") != NULL)
        why = strstr(text, ": ") + 2; /* the flag says where */

    if (rc == 0)
        bt_store_close(store);
    else if (rc != BT_E_NOMEM)
        return bt_err_refuse(err, err_size, "--redis-url: %s", why);
    return rc;
}

int bt_config_finish_shared(bt_config_t *c, char *err, size_t err_size)
{
    int rc = check_alone(c, err, err_size);

    if (rc == 0)
        rc = check_names(c, err, err_size);
    if (rc == 0)
        rc = find_password(c, err, err_size);
    c->store = (bt_store_config_t){.url = c->redis_url,
                                   .username = c->redis_username,
                                   .password = c->redis_password,
                                   .space = c->fleet_name != NULL ? c->fleet_name : "fleet",
                                   .tls_ca_file = c->redis_tls_ca,
                                   .tls_cert_file = c->redis_tls_cert,
                                   .tls_key_file = c->redis_tls_key};
    return rc == 0 ? check_store(c, err, err_size) : rc;
}

void bt_config_describe_shared(const bt_config_t *c, bt_text_t *out)
{
    const char *url = c->redis_url, *scheme_end = url != NULL ? strstr(url, "://") : NULL;
    const char *host = scheme_end != NULL ? scheme_end + 3 : url;

    if (url == NULL)
        return;
    if (strrchr(host, '@') != NULL)
        host = strrchr(host, '@') + 1; /* who logs in is not shown */
    bt_text_printf(out, "shared state %.*s%s, fleet %s\n",
                   (int) (scheme_end != NULL ? scheme_end + 3 - url : 0), url, host,
                   c->fleet_name != NULL ? c->fleet_name : "fleet");
}
