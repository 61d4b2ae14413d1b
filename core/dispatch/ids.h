/* ids.h - live request ids that clients chose. Private to dispatch.
 *
 * Owner: the process.
 * Life:  as long as the request lives.
 * Flow:  request -> add -> remove.
 * Cost:  one lock of a shard, and only for clients that bring an id.
 */
#ifndef BT_DISPATCH_IDS_H
#define BT_DISPATCH_IDS_H

#include "base/str.h"

#include <stdbool.h>

struct bt_id_table;

bool bt_ids_add(struct bt_id_table *t, bt_str_t id);
void bt_ids_remove(struct bt_id_table *t, bt_str_t id);
bool bt_ids_has(struct bt_id_table *t, bt_str_t id);
/* Could the live request of another client send this id on a retry (-a2) or for a child (-1)? */
bool bt_ids_derives(struct bt_id_table *t, bt_str_t id);
struct bt_id_table *bt_ids_new(void);
void bt_ids_free(struct bt_id_table *t);

#endif
