/* resolve.h - host names to addresses, off the loop.
 *
 * Owner: the caller owns the request struct until its callback has run.
 * Life:  start -> callback exactly once (also after cancel, with UV_ECANCELED).
 * Flow:  numeric addresses answer at once (callback still comes from the loop, not from start).
 * Cost:  a thread of its own, four at most; never on the request path. Cancelling ends it for the caller at once, however silent DNS is.
 */
#ifndef BT_LOOP_RESOLVE_H
#define BT_LOOP_RESOLVE_H

#include "loop/loop.h"

typedef struct bt_resolve bt_resolve_t;
/* rc: 0, BT_E_RESOLVE, UV_ECANCELED. addr is NULL unless rc is 0, and borrowed. */
typedef void (*bt_resolve_cb)(bt_resolve_t *r, int rc, const struct sockaddr_storage *addr);
struct bt_resolve {
    bt_resolve_cb cb;
    void *user;
    bt_mail_t envelope; /* brings the answer */
    struct sockaddr_storage addr;
    int rc;
    bool is_cancelled;
    struct bt_lookup *lookup; /* NULL = nobody looks any more; the lock's (loop/resolve.c) */
};
/* The address that this host reaches best. */
int bt_resolve_start(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                     bt_resolve_cb cb);
/* The one after so many others, and around: for whoever asks again because the one before was no good. */
int bt_resolve_turn(bt_resolve_t *r, bt_loop_t *loop, const char *host, unsigned port,
                    unsigned turn, bt_resolve_cb cb);
void bt_resolve_cancel(bt_resolve_t *r); /* before its callback has run; again is fine */
/* Numeric only ("::1" and "[::1]" are the same), synchronous. BT_E_INVAL when host is a name. */
int bt_resolve_numeric(const char *host, unsigned port, struct sockaddr_storage *addr_p);

#endif
