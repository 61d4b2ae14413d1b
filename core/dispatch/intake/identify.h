/* identify.h - whose request it is, and whether they may ask for this.
 *
 * Owner: the dispatcher's loop.
 * Life:  a call; the identity is borrowed from the loop's checker until its next call, or from the exchange.
 * Flow:  a key or token, if one is shown -> identity/checker.h; else a client's certificate -> scope -> the request, or 401, 403, 503 in the form of its API family, and a count by reason.
 * Cost:  as the checker's; nothing where nobody is asked.
 */
#ifndef BT_DISPATCH_INTAKE_IDENTIFY_H
#define BT_DISPATCH_INTAKE_IDENTIFY_H

#include "dispatch/state/request_state.h"

enum bt_auth_refusal bt_identify(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_scope_bit scope,
                                 bt_identity_t *identity_p);
/* Of the certificate that x's connection was verified by, whether it was sent for this session or for the one that it resumes. False: there is
 * none, or by says that certificates name nobody. Borrows from the connection and x's arena. */
bool bt_identify_certificate(bt_exchange_t *x, enum bt_certificate_tenant by,
                             bt_identity_t *identity_p);
/* The scope that a request asks for. */
enum bt_scope_bit bt_identify_scope(enum bt_route route, const bt_head_t *head);
/* Static; counts it. */
const char *bt_identify_refusal(bt_dispatcher_t *d, enum bt_auth_refusal refusal,
                                enum bt_scope_bit scope);
/* WWW-Authenticate: its value, or NULL: the status asks for none. Static. */
const char *bt_identify_challenge(enum bt_auth_refusal refusal, enum bt_scope_bit scope);
/* Answer and count. */
void bt_identify_refuse(bt_request_t *r, enum bt_auth_refusal refusal);
void bt_identify_refuse_exchange(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_auth_refusal refusal,
                                 enum bt_scope_bit scope);

#endif
