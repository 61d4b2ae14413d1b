/* session.h - who has logged in at the page: ids that a browser keeps in a cookie. Private to core/admin.
 *
 * Owner: the admin listener; control loop only.
 * Life:  bt_sessions_open (the admin key was shown) -> BT_SESSION_SECS, or close -> forgotten.
 * Flow:  a random id of 128 bits in a table of BT_SESSIONS_MAX; one more takes the place of the oldest.
 * Cost:  a walk over the table, and a comparison in constant time with each.
 */
#ifndef BT_ADMIN_SESSION_H
#define BT_ADMIN_SESSION_H

#include "base/str.h"

#define BT_SESSIONS_MAX 32
#define BT_SESSION_SECS 3600
#define BT_SESSION_ID_CHARS 32

typedef struct bt_sessions bt_sessions_t;

bt_sessions_t *bt_sessions_new(void); /* NULL: no memory */
void bt_sessions_free(bt_sessions_t *s);

/* out: the value of Set-Cookie. is_tls: it is for https alone. */
void bt_sessions_open(bt_sessions_t *s, bool is_tls, char *out, size_t size);
/* The same that takes it back. */
void bt_sessions_close(bt_sessions_t *s, bt_str_t id, char *out, size_t size);
/* The id in this Cookie header, a slice of it, where it is one of ours; else empty. */
bt_str_t bt_sessions_find(bt_sessions_t *s, bt_str_t cookies);
bool bt_sessions_is_open(bt_sessions_t *s, bt_str_t id);

#endif
