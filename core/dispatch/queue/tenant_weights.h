/* tenant_weights.h - whose share of a line is larger: --queue-weights.
 *
 * Owner: whoever reads them; each tenant is known by a hash of its name.
 * Life:  read -> weight* -> fini.
 * Flow:  "TENANT=N,TENANT=N"; who is not named has 1.
 * Cost:  a search of the named ones.
 */
#ifndef BT_DISPATCH_QUEUE_TENANT_WEIGHTS_H
#define BT_DISPATCH_QUEUE_TENANT_WEIGHTS_H

#include "base/str.h"

typedef struct bt_tenant_weights {
    struct bt_tenant_weight_row *rows;
    unsigned count;
} bt_tenant_weights_t;

/* False, and *wrong_p is the first part of the text that is none: N is from 1 to BT_FAIR_WEIGHT_MAX. */
bool bt_tenant_weights_check(bt_str_t text, bt_str_t *wrong_p);
/* Of a text that was checked. 0 or BT_E_NOMEM. */
int bt_tenant_weights_read(bt_tenant_weights_t *w, bt_str_t text);
void bt_tenant_weights_fini(bt_tenant_weights_t *w);
unsigned bt_tenant_weight(const bt_tenant_weights_t *w, bt_str_t tenant);

#endif
