/* response_owners.h - which worker made which response, as far as this process knows. Private to dispatch.
 *
 * Owner: bt_dispatch_shared_t, for all loops.
 * Life:  as the process; a new entry may put out an old one.
 * Flow:  response_affinity.c puts and gets.
 * Cost:  a bounded table under one mutex; only /v1/responses comes here.
 */
#ifndef BT_DISPATCH_PLAN_RESPONSE_OWNERS_H
#define BT_DISPATCH_PLAN_RESPONSE_OWNERS_H

#include "base/str.h"

#include <stdint.h>

struct bt_response_owners *bt_response_owners_new(unsigned max);
void bt_response_owners_free(struct bt_response_owners *a);
void bt_response_owners_put(struct bt_response_owners *a, bt_str_t key, uint64_t worker_id);
uint64_t bt_response_owners_get(struct bt_response_owners *a, bt_str_t key); /* 0 = unknown */

#endif
