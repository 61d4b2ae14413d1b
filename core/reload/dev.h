/* dev.h - what --dev shows the author of a policy beyond the log.
 *
 * Owner: the control loop.
 * Life:  static.
 * Flow:  refusal, reload -> some lines on stderr.
 * Cost:  nothing without --dev.
 */
#ifndef BT_RELOAD_DEV_H
#define BT_RELOAD_DEV_H

#include "base/text.h"
#include "config/config.h"
#include "script/policy/policy_source.h"

/* "path:3: message": line 3 of the source, with a caret under what the message quotes; the message too, unless the log has it. */
void bt_dev_refused(const bt_config_t *config, const bt_policy_source_t *source, const char *error,
                    bool is_logged);
/* It serves now: which workers it is not written for. */
void bt_dev_taken(const bt_config_t *config, const bt_policy_source_t *source);
/* The text of bt_dev_refused, nothing when the message names no line of the source. */
void bt_dev_excerpt(bt_text_t *out, const bt_policy_source_t *source, const char *error);

#endif
