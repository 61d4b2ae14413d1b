/* url.h - where a worker listens: the parts of "http[s]://host:port[/prefix][@rank]".
 *
 * Owner: the caller; strings are malloc'ed, freed by bt_url_fini.
 * Life:  parse -> read or take members -> fini.
 * Flow:  what the configuration, a flag or the admin API gave -> parts, or one line that says what is wrong.
 * Cost:  start-up and admin calls only.
 */
#ifndef BT_CLUSTER_URL_H
#define BT_CLUSTER_URL_H

#include "base/str.h"

typedef struct bt_url {
    char *host;      /* without brackets */
    bool has_tls;    /* https:// */
    unsigned port;   /* 80, or 443, when not given */
    char *base_path; /* "" or "/prefix", never with a slash at its end */
    int rank;        /* "@3", or -1 */
} bt_url_t;

/* BT_E_CONFIG with the reason in err (no prefix, no url in it), or BT_E_NOMEM. "host:port" without a scheme is http. */
int bt_url_parse(bt_url_t *url_p, bt_str_t text, char *err, size_t err_size);
void bt_url_fini(bt_url_t *url);
/* Same host (any case), port, path and rank: who speaks TLS there is the same. */
bool bt_url_eq(const bt_url_t *a, const bt_url_t *b);

/* Text of such a URL without its scheme: what a place is compared by where it is not parsed. */
const char *bt_url_place(const char *url);

#endif
