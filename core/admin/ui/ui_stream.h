/* ui_stream.h - GET /ui/events: once a second what has changed, to every page that is open. Private to core/admin.
 *
 * Owner: the admin listener; control loop only.
 * Life:  new -> (add -> its client leaves, its login ends, or end_all)* -> free, when no exchange is left.
 * Flow:  one question to the loops a second, however many listen (BT_UI_LISTENERS at most) -> a text a section (ui_state.h) -> to each the
 *        sections that are other than before; all to who is new, or had not read what was before.
 * Cost:  nothing while nobody listens. Else a mail a loop and a pass over workers and counters a second.
 */
#ifndef BT_ADMIN_UI_UI_STREAM_H
#define BT_ADMIN_UI_UI_STREAM_H

#include "admin/call/config.h"
#include "http/server.h"
#include "identity/checker.h"

#define BT_UI_LISTENERS 16

typedef struct bt_ui_stream bt_ui_stream_t;

/* config and checker are borrowed; checker may be NULL. NULL: no memory. */
bt_ui_stream_t *bt_ui_stream_new(bt_loop_t *control, const bt_admin_config_t *config,
                                 bt_checker_t *checker);
void bt_ui_stream_free(bt_ui_stream_t *s); /* NULL is fine */
/* Answers x: with the stream, or 503 when too many listen. session: of the page, its end is the stream's; empty: it has none. shown: the client's
 * key or token by which it may listen, checked anew each second; empty: there is none. */
void bt_ui_stream_add(bt_ui_stream_t *s, bt_exchange_t *x, bt_str_t session, bt_str_t shown);
void bt_ui_stream_end_all(bt_ui_stream_t *s);

#endif
