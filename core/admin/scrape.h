/* scrape.h - one answer of GET /metrics. Private to core/admin.
 *
 * Owner: whoever sends its rows.
 * Life:  new -> written by pieces (rows.h) -> free.
 * Flow:  what the loops have told and all that is not about one worker, in the first piece; workers, a family after the other, as they were
 *        when it began; then the rest.
 * Cost:  as metrics.h, a piece a turn.
 */
#ifndef BT_ADMIN_SCRAPE_H
#define BT_ADMIN_SCRAPE_H

#include "admin/call/config.h"
#include "admin/call/live.h"
#include "admin/call/rows.h"

/* Writes its beginning to first; facts are borrowed for the call, config for its life. NULL: no memory. */
bt_rows_t *bt_scrape_new(const bt_admin_config_t *config, const bt_loop_facts_t *facts,
                         unsigned count, bool is_open, bt_text_t *first);

#endif
