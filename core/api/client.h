/* client.h - what a request's head says about who sends it.
 *
 * Owner: nobody; slices of the head, or of the identity.
 * Life:  as the head.
 * Flow:  what is shown -> identity/checker.h -> an identity -> its tenant, and what it may cancel.
 * Cost:  a search of the headers.
 */
#ifndef BT_API_CLIENT_H
#define BT_API_CLIENT_H

#include "http/server.h"
#include "identity/identity.h"

/* The key or token that head carries (Authorization: Bearer, or x-api-key), whosever it is; a slice without bytes when there is none. */
bt_str_t bt_client_key_given(const bt_head_t *head);
/* Does it carry anything of that sort, though it be empty or of a form that we cannot read? */
bool bt_client_shows_key(const bt_head_t *head);
/* x-tenant-id where it counts, else the identity's; empty: anonymous, and the header does not say. */
bt_str_t bt_client_tenant(const bt_identity_t *identity, const bt_head_t *head);
/* Who may cancel what this client has sent: the same identity, or, where nobody is asked, the same address. Never 0. */
uint64_t bt_client_owner(const bt_identity_t *identity, const bt_exchange_t *x);

#endif
