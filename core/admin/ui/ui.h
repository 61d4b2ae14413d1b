/* ui.h - the dashboard's files, and how a browser logs in. Private to core/admin.
 *
 * Owner: nobody; the files are part of the program (core/admin/ui).
 * Life:  static.
 * Flow:  GET /ui -> the page, which asks the routes that everybody may ask, and follows GET /ui/events (ui_stream.h).
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_UI_UI_H
#define BT_ADMIN_UI_UI_H

#include "admin/call/call.h"

/* Paths below which nothing is told: they need no key where others do. */
bool bt_ui_is_page(bt_str_t path);
/* GET /ui, /ui/<file> */
void bt_ui_file(const bt_admin_call_t *c);
/* POST /ui/login, with the admin key as any call has it: answers with a cookie. */
void bt_ui_login(const bt_admin_call_t *c);
/* GET /ui/session: may who asks see anything? */
void bt_ui_session(const bt_admin_call_t *c);
void bt_ui_logout(const bt_admin_call_t *c);
/* GET /ui/events: the caller does it. */
void bt_ui_check_events(const bt_admin_call_t *c);

#endif
