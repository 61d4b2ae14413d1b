/* store_url.h - where the shared store is: the parts of its url. Private to core/store.
 *
 * Owner: the caller; strings are malloc'ed, freed by bt_store_url_fini.
 * Life:  parse -> read -> fini.
 * Flow:  text -> parts, or one line that says what to change and never holds a password.
 * Cost:  start-up only.
 */
#ifndef BT_STORE_STORE_URL_H
#define BT_STORE_STORE_URL_H

#include "base/str.h"

#define BT_STORE_HOSTS_MAX 16

enum bt_store_scheme {
    BT_STORE_URL_LOCAL,
    BT_STORE_URL_TCP,
    BT_STORE_URL_TLS,
    BT_STORE_URL_UNIX,
    BT_STORE_URL_SENTINEL,
    BT_STORE_URL_CLUSTER,
    BT_STORE_URL_CLUSTER_TLS
};

typedef struct bt_store_host {
    char *host; /* without brackets */
    unsigned port;
} bt_store_host_t;

typedef struct bt_store_url {
    enum bt_store_scheme scheme;
    bt_store_host_t hosts[BT_STORE_HOSTS_MAX]; /* one, the sentinels, or nodes of a cluster */
    unsigned host_count;
    char *username, *password; /* NULL = none */
    char *path;                /* unix */
    char *master;              /* sentinel: the name that they watch */
    unsigned db;
    char shown[160]; /* for people: without user and password */
} bt_store_url_t;

/* BT_E_CONFIG with the reason in err, or BT_E_NOMEM. text NULL or "local": the local store. */
int bt_store_url_parse(bt_store_url_t *url_p, const char *text, char *err, size_t err_size);
void bt_store_url_fini(bt_store_url_t *url);

#endif
