/* kube_access.h - where an API server is, and what it has to be shown.
 *
 * Owner: the source; the pool thread while it reads.
 * Life:  open -> read before every call -> fini.
 * Flow:  options, or what a pod finds in its environment -> URL and paths -> token and CA as they are now, then the address.
 * Cost:  read looks at two small files; it may block, so it is a pool thread's. The name, where the URL has one, is its owner's to look up
 *        (loop/resolve.h): a pool thread would hold up the end of the process for as long as DNS is silent.
 */
#ifndef BT_DISCOVERY_KUBE_ACCESS_H
#define BT_DISCOVERY_KUBE_ACCESS_H

#include "base/text.h"
#include "discovery/kube_options.h"

#include <sys/socket.h>

typedef struct bt_kube_access {
    char *url;  /* "https://10.0.0.1:443" */
    char *host; /* of it, where that is a name that has to be looked up; else NULL */
    char *token_file, *ca_file; /* NULL = none */
    char *namespace;            /* "*" = all */
    /* as read last */
    char *token, *ca;
    size_t ca_size;
    char address[64]; /* "" where host is NULL */
    char why[256];    /* why it could not be read; "" = it could */
} bt_kube_access_t;

/* BT_E_CONFIG with a line in err. */
int bt_kube_access_open(bt_kube_access_t *a, const bt_kube_options_t *options, char *err,
                        size_t err_size);
void bt_kube_access_read(bt_kube_access_t *a); /* renewed tokens count from the next call on */
/* What host is now; NULL: nobody knows. */
void bt_kube_access_set_address(bt_kube_access_t *a, const struct sockaddr_storage *address);
/* URLs. selector: NULL = all; page: NULL = the first. */
void bt_kube_access_put_list(const bt_kube_access_t *a, const char *selector, const char *page,
                             bt_text_t *out);
void bt_kube_access_put_watch(const bt_kube_access_t *a, const char *selector, const char *version,
                              unsigned secs, bt_text_t *out);
void bt_kube_access_fini(bt_kube_access_t *a);

#endif
