/* origin.h - could a page in somebody's browser be behind this request? Private to core/admin.
 *
 * Owner: nobody; a question about one head.
 * Life:  a call.
 * Flow:  head -> NULL, or why it is not served.
 * Cost:  a few header look-ups.
 *
 * A listener on loopback without a key is reachable by every page that its operator's browser shows. What stops them:
 *   rebinding  the page's own name is made to resolve to 127.0.0.1, so to the browser it is the same origin; but Host is still that
 *              name. Served are addresses, localhost, and names that the operator has listed.
 *   cross-site another origin's page may send what a form can: then Origin says so, or, from old browsers, the content type of a form.
 */
#ifndef BT_ADMIN_CALL_ORIGIN_H
#define BT_ADMIN_CALL_ORIGIN_H

#include "http/message.h"

typedef struct bt_origin_rules {
    bool has_key;         /* a page can't show it: only Origin is looked at */
    const char *listener; /* the name or address that the operator has bound it to; may be NULL */
    const char *const *names; /* NULL-terminated, or NULL: names beside addresses and localhost */
} bt_origin_rules_t;

/* is_change: not a GET or HEAD. *status_p: 403, or 415 for the content type. */
const char *bt_origin_refusal(const bt_origin_rules_t *rules, const bt_head_t *head, bool is_change,
                              unsigned *status_p);

#endif
