/* dns_known.h - the places behind one name, as far as its answers can be believed.
 *
 * Owner: the caller.
 * Life:  init -> an answer taken after each lookup -> fini.
 * Flow:  what an answer names is known at once; what it no longer names is missing, and goes by the table in dns_known.c.
 * Cost:  O(places) an answer; never more than BT_DNS_KNOWN_MAX of them.
 */
#ifndef BT_DISCOVERY_DNS_KNOWN_H
#define BT_DISCOVERY_DNS_KNOWN_H

#include "discovery/dns_lookup.h"

/* All that one answer may name, and as many again that wait for their hold time. */
#define BT_DNS_KNOWN_MAX (2 * BT_DNS_PLACES_MAX)

typedef struct bt_dns_known_place {
    bt_dns_place_t place; /* has a host and a port */
    uint64_t missing_ms; /* since then no answer that names others has named it; 0 = the last did */
    bool is_named;       /* by the answer that is taken */
    bool has_other_name; /* its worker's: somebody else keeps a worker of its name (dns.c) */
} bt_dns_known_place_t;

typedef struct bt_dns_known {
    const char *name;  /* for the log; borrowed */
    unsigned port;     /* of places without a record of their own */
    uint64_t empty_ms; /* since then answers have named nobody; 0 = the last did */
    bt_dns_known_place_t *items;
    unsigned count, cap;
    bool is_full; /* some had to go before their time; said once */
} bt_dns_known_t;

typedef struct bt_dns_judge { /* how long who is missing is kept */
    uint64_t hold_ms, now_ms;
    bool (*is_down)(void *user, const bt_dns_place_t *place); /* its checks fail */
    void *user;
} bt_dns_judge_t;

void bt_dns_known_init(bt_dns_known_t *known, const char *name, unsigned port);
void bt_dns_known_fini(bt_dns_known_t *known);
/* True: other places than before, or others' weights. */
bool bt_dns_known_take(bt_dns_known_t *known, const bt_dns_answer_t *answer,
                       const bt_dns_judge_t *judge);
/* When the next answer may let somebody go; UINT64_MAX: nobody waits for it. */
uint64_t bt_dns_known_due_ms(const bt_dns_known_t *known, const bt_dns_judge_t *judge);
unsigned bt_dns_known_missing(const bt_dns_known_t *known);

#endif
