/* reservation_state.h - what a request has taken of limits: data. Private to dispatch.
 *
 * Owner: reservation.c; in the request's arena.
 * Life:  from the request's station to its end.
 * Flow:  taken and given back by reservation.c; the client is told of it in headers (ratelimit.h).
 * Cost:  a hold for each count of each limit that fits.
 */
#ifndef BT_DISPATCH_STATE_RESERVATION_STATE_H
#define BT_DISPATCH_STATE_RESERVATION_STATE_H

#include "dispatch/state/request_state.h"
#include "fleet/quota.h"

struct bt_limit_hold {
    const bt_limit_t *limit;
    enum bt_limit_what what;
    bool is_held;
    bt_str_t key;
    int64_t most, amount;
    uint64_t window; /* of which it was granted */
    int64_t rest;
    uint64_t reset_ms;
};

struct bt_reservation {
    bt_request_t *request;
    bt_limit_table_t *table;
    bt_quota_take_t take;
    bool is_waiting, is_crowded; /* crowded: it is counted with all that find no room */
    const struct bt_limit_hold *refused;
    int64_t input, output; /* reserved */
    unsigned at, count;
    struct bt_limit_hold holds[];
};

/* Which limit has refused it; NULL = none has. */
static inline const char *bt_reservation_refused_by(const bt_request_t *r)
{
    return r->reservation != NULL && r->reservation->refused != NULL
               ? r->reservation->refused->limit->name
               : NULL;
}

#endif
