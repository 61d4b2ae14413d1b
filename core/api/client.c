/* client.c - see client.h. */
#include "api/client.h"

#define PEERS (UINT64_C(1) << 63) /* owners that are identities are below, addresses above */

bt_str_t bt_client_key_given(const bt_head_t *head)
{
    bt_str_t given = bt_head_get(head, BT_STR("authorization"));

    if (given.n > 7 && strncasecmp(given.p, "bearer ", 7) == 0)
        return bt_str_trim((bt_str_t){given.p + 7, given.n - 7});
    return bt_head_get(head, BT_STR("x-api-key"));
}

bool bt_client_shows_key(const bt_head_t *head)
{
    return bt_head_find(head, BT_STR("authorization")) != NULL ||
           bt_head_find(head, BT_STR("x-api-key")) != NULL;
}

bt_str_t bt_client_tenant(const bt_identity_t *identity, const bt_head_t *head)
{
    const bt_str_t given =
        identity->sets_tenant ? bt_head_get(head, BT_STR("x-tenant-id")) : BT_STR_NULL;

    return given.n > 0 ? given : identity->tenant;
}

uint64_t bt_client_owner(const bt_identity_t *identity, const bt_exchange_t *x)
{
    return identity->owner != 0 ? identity->owner : bt_str_hash(bt_str(x->peer)) | PEERS;
}
