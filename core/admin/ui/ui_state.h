/* ui_state.h - what the dashboard follows, as JSON on one line each: sums, workers, live requests. Private to core/admin.
 *
 * Owner: the caller owns the text.
 * Life:  a call.
 * Flow:  counters and the set of workers where they lie, live requests as the loops have told (live.h) -> text.
 * Cost:  control loop: a pass over workers and counters, at most BT_UI_WORKERS and BT_UI_REQUESTS rows, however many there are.
 */
#ifndef BT_ADMIN_UI_UI_STATE_H
#define BT_ADMIN_UI_UI_STATE_H

#include "admin/call/config.h"
#include "admin/call/live.h"

#define BT_UI_WORKERS 200  /* those that are in trouble first, then some of the others */
#define BT_UI_REQUESTS 200 /* the oldest, over all loops */

enum bt_ui_section { BT_UI_NOW, BT_UI_WORKER_ROWS, BT_UI_REQUEST_ROWS, BT_UI_SECTIONS };

/* The name of its events. */
const char *bt_ui_section_name(enum bt_ui_section section);
/* What the loops are asked; a loop's share of BT_UI_REQUESTS. */
bt_gather_ask_t bt_ui_ask(const bt_dispatch_shared_t *shared);
/* {"now":{..},"workers":{..},"requests":{..}} */
void bt_ui_write_all(const bt_admin_config_t *config, const bt_loop_facts_t *facts, unsigned count,
                     bt_text_t *out);
void bt_ui_write(enum bt_ui_section section, const bt_admin_config_t *config,
                 const bt_loop_facts_t *facts, unsigned count, bt_text_t *out);

#endif
