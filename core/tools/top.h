/* top.h - `baton top`: what runs, live in a terminal.
 *
 * Owner: main; one command a process.
 * Life:  until q, a signal, or the end of its terminal; not on a terminal: one snapshot.
 * Flow:  GET /ui/state once a second -> lines -> the screen; keys -> the admin API's calls, each when it is confirmed.
 * Cost:  as one open dashboard.
 */
#ifndef BT_TOOLS_TOP_H
#define BT_TOOLS_TOP_H

#include "base/text.h"

int bt_top(int argc, const char *const *argv);
void bt_top_help(bt_text_t *out);

#endif
