/* dns.h - workers by DNS: names that are looked up again and again, and whose addresses the registry hears of as its source "dns".
 *
 * Owner: the control loop.
 * Life:  new -> configure (at the start and at each reload) -> stop -> free. The configuration is borrowed until the next one.
 * Flow:  timer -> dns_lookup -> dns_known -> all that all names have come to, as one set -> the registry.
 * Cost:  a few packets a name and TTL; a change costs what a change of the registry costs.
 */
#ifndef BT_DISCOVERY_DNS_H
#define BT_DISCOVERY_DNS_H

#include "cluster/workers.h"
#include "discovery/dns_lookup.h"

typedef struct bt_dns_name { /* one --workers-dns; strings are the configuration's */
    char *name;              /* NULL: srv */
    char *srv;
    char *pool;                     /* set once the configuration is finished */
    unsigned port;                  /* of name */
    int family;                     /* enum bt_dns_family */
    int has_tls;                    /* https:// */
    const bt_worker_spec_t *worker; /* what each of them is; its url and name do not count */
} bt_dns_name_t;

typedef struct bt_dns_config {
    const bt_dns_name_t *names;
    unsigned count;
    const char *servers; /* NULL = the system's */
    uint64_t hold_ms, min_ms, max_ms;
    uint64_t
        absent_max_ms; /* instead of max_ms for a name that says that it has nobody, or of which nobody is known yet; 5 s */
} bt_dns_config_t;

typedef struct bt_dns bt_dns_t;

int bt_dns_new(bt_dns_t **dns_p, bt_loop_t *loop, bt_registry_t *registry);
/* What is known of names that stay is kept; workers of others lose this source. BT_E_NOMEM: workers stay, no name is followed. */
int bt_dns_configure(bt_dns_t *dns, const bt_dns_config_t *config);
void bt_dns_stop(bt_dns_t *dns); /* nothing is asked or changed any more; NULL is fine, as below */
void bt_dns_free(bt_dns_t *dns); /* stopped or not */

typedef struct bt_dns_stats {
    const char *name, *pool;
    unsigned port;           /* 0: an SRV name */
    unsigned known, missing; /* places; those that the last answers did not name */
    uint64_t lookups[BT_DNS_RESULTS];
    uint64_t
        age_ms; /* of the last answer that named somebody; of the source where there was none */
} bt_dns_stats_t;
unsigned bt_dns_count(const bt_dns_t *dns);
void bt_dns_stats(const bt_dns_t *dns, unsigned i, bt_dns_stats_t *stats_p);

#endif
