/* rollout_json.h - a fleet's sets as JSON: bundles that operators send, and what they are told.
 * Private to core/admin.
 *
 * Owner: the caller owns all.
 * Life:  of a call.
 * Flow:  {"policies": {"<name>": "<text>"}, "rules": "<text>" or null, "drop": ["<name>"],
 *        "replace": true} -> a set.
 * Cost:  a copy of the texts.
 */
#ifndef BT_ADMIN_POLICIES_ROLLOUT_JSON_H
#define BT_ADMIN_POLICIES_ROLLOUT_JSON_H

#include "admin/metrics/prom.h"
#include "rollout/rollout.h"

/* 0, or the status of a refusal, and err. */
unsigned bt_rollout_put_text(bt_rollout_set_t *set, const char *name, bt_str_t text, char *err,
                             size_t err_size);
unsigned bt_rollout_drop_text(bt_rollout_set_t *set, const char *name, char *err, size_t err_size);
unsigned bt_rollout_put_bundle(bt_rollout_set_t *set, bt_str_t json, char *err, size_t err_size);

void bt_rollout_list(const bt_rollout_t *r, bt_text_t *out);
void bt_rollout_write_outcome(const bt_rollout_t *r, const bt_rollout_outcome_t *outcome,
                              bt_text_t *out);
void bt_rollout_write_pin(const bt_rollout_t *r, bt_text_t *out);

void bt_rollout_metrics(const bt_rollout_t *r, bt_prom_t *p);

#endif
