/* help.h - texts of the command line that are made from the flag table.
 *
 * Owner: the caller.
 * Life:  static.
 * Flow:  table -> text.
 * Cost:  for people.
 */
#ifndef BT_CONFIG_HELP_H
#define BT_CONFIG_HELP_H

#include "base/text.h"

void bt_help_overview(bt_text_t *out); /* baton --help */
void bt_help_run(bt_text_t *out);      /* baton run --help */
void bt_help_file(bt_text_t *out);     /* baton help file: the keys of baton.lua */
void bt_help_peers(bt_text_t *out);    /* baton help peers: flags of other routers */
/* baton help table: flags and keys for programs, a row a line, its cells parted by tabs. A row begins
 * with its kind:
 *   flag  group  name  hint  words  text      hint "": a switch; words of a choice, parted by '|'
 *   key   place  name  type  text             place: top, pool or worker; type "": a table */
void bt_help_table(bt_text_t *out);

#endif
