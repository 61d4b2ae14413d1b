/* dns_lookup.h - one question to DNS and all that follows from it: the addresses behind a name, or the targets of an SRV name and
 * the address of each.
 *
 * Owner: whoever starts it, until its callback has run or it is cancelled.
 * Life:  start -> callback once, from the loop, never from start -> gone; or cancel: no callback.
 * Flow:  c-ares asks over UDP, over TCP where an answer is cut; A first, AAAA only where a name, or what it is an alias of, has no A.
 * Cost:  a c-ares channel each, so that /etc/resolv.conf is read anew; nothing blocks but that read. Ends within 10 s.
 */
#ifndef BT_DISCOVERY_DNS_LOOKUP_H
#define BT_DISCOVERY_DNS_LOOKUP_H

#include "loop/loop.h"

#include <stddef.h>

#define BT_DNS_NAME_MAX 253
#define BT_DNS_HOST_BYTES 46    /* an address as text */
#define BT_DNS_PLACES_MAX 1024U /* behind one name */

/* AUTO: IPv4 where there is any. A host of both families is one worker, and engines listen on IPv4 unless told otherwise. */
enum bt_dns_family { BT_DNS_AUTO, BT_DNS_IPV4, BT_DNS_IPV6 };

typedef struct bt_dns_query {
    const char *name;
    bool is_srv;
    enum bt_dns_family family;
    const char *servers; /* "127.0.0.1:5353,[::1]"; NULL = the system's */
} bt_dns_query_t;

/* EMPTY: the name is there and has no such record. Up to NXDOMAIN these are answers, the others say nothing. */
enum bt_dns_result {
    BT_DNS_OK,
    BT_DNS_EMPTY,
    BT_DNS_NXDOMAIN,
    BT_DNS_TIMEOUT,
    BT_DNS_MALFORMED,
    BT_DNS_FAILED, /* SERVFAIL or refused by all servers, none reached, no memory */
    BT_DNS_TOO_MANY, /* more than BT_DNS_PLACES_MAX: some of them would be another part with every answer */
    BT_DNS_RESULTS
};
const char *bt_dns_result_name(enum bt_dns_result result);
const char *bt_dns_result_text(enum bt_dns_result result);

typedef struct bt_dns_place {
    char host[BT_DNS_HOST_BYTES];     /* "" = an SRV target whose own lookup said nothing */
    char target[BT_DNS_NAME_MAX + 1]; /* of an SRV record, in lower case; "" = of an A or AAAA */
    unsigned port, priority, weight;  /* of an SRV record */
} bt_dns_place_t;

typedef struct bt_dns_answer { /* borrowed for the callback */
    enum bt_dns_result result;
    const bt_dns_place_t *places; /* of BT_DNS_OK, at least one */
    unsigned count;
    uint64_t ttl_ms; /* of BT_DNS_OK: the shortest */
} bt_dns_answer_t;

typedef struct bt_dns_lookup bt_dns_lookup_t;
typedef void (*bt_dns_lookup_cb)(void *user, const bt_dns_answer_t *answer);

int bt_dns_lookup_start(bt_dns_lookup_t **lookup_p, bt_loop_t *loop, const bt_dns_query_t *query,
                        bt_dns_lookup_cb cb, void *user);
void bt_dns_lookup_cancel(bt_dns_lookup_t *lookup);
bool bt_dns_servers_are_valid(const char *servers);

#endif
