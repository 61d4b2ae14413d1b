/* session.h - who has logged in at the page: ids that a browser keeps in a cookie. Private to core/admin.
 *
 * Owner: the admin listener; control loop only.
 * Life:  bt_sessions_open (a key was shown) -> BT_SESSION_SECS, or close -> forgotten.
 * Flow:  a random id of 128 bits in a table of BT_SESSIONS_MAX; one more takes the place of the oldest. A cookie stands for what was
 *        shown, no more: what is revoked, expires or loses a scope is worth nothing at once, and so is its cookie.
 * Cost:  a walk over the table, and a comparison in constant time with each.
 */
#ifndef BT_ADMIN_UI_SESSION_H
#define BT_ADMIN_UI_SESSION_H

#include "base/str.h"

#define BT_SESSIONS_MAX 32
#define BT_SESSION_SECS 3600
#define BT_SESSION_ID_CHARS 32

typedef struct bt_sessions bt_sessions_t;

bt_sessions_t *bt_sessions_new(void); /* NULL: no memory */
void bt_sessions_free(bt_sessions_t *s);

/* out: the value of Set-Cookie. is_tls: it is for https alone. shown: the client's key or token that was shown, copied, and checked anew with each
 * request; empty = the admin key. False: no memory. */
bool bt_sessions_open(bt_sessions_t *s, bool is_tls, bt_str_t shown, char *out, size_t size);
bt_str_t bt_sessions_shown(bt_sessions_t *s, bt_str_t id);
/* The same that takes it back. */
void bt_sessions_close(bt_sessions_t *s, bt_str_t id, char *out, size_t size);
/* The id in this Cookie header, a slice of it, where it is one of ours; else empty. */
bt_str_t bt_sessions_find(bt_sessions_t *s, bt_str_t cookies);
bool bt_sessions_is_open(bt_sessions_t *s, bt_str_t id);

#endif
