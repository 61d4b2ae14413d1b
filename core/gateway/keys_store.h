/* keys_store.h - clients' keys in the store, which all gateways of a fleet follow (--client-api-keys-in-store).
 *
 * Owner: the control loop.
 * Life:  open (waits a moment for the first answer) -> close, before its loop ends.
 * Flow:  a look at the number of changes, twice a second -> the table, where it has moved -> identity/identities.h. `baton key --store`
 *        writes both. Without an answer, and of a table without a key, those known last count on.
 * Cost:  one small answer a look; each minute, and after a change, all keys.
 */
#ifndef BT_GATEWAY_KEYS_STORE_H
#define BT_GATEWAY_KEYS_STORE_H

#include "gateway/process.h"

typedef struct bt_keys_store bt_keys_store_t;

int bt_keys_store_open(bt_keys_store_t **keys_p, bt_gateway_t *g, bt_identities_t *all);
void bt_keys_store_close(bt_keys_store_t *keys); /* NULL is fine */

#endif
