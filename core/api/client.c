/* client.c - see client.h. */
#include "api/client.h"

#include "base/err.h"

#include "base/sha1.h"

#include <stdio.h>
#include <stdlib.h>

#define PEERS (UINT64_C(1) << 63) /* ids of keys are below, those of addresses above */

/* No way leads back from it to the key: replicas tell it to each other, and tenants are logged. */
static uint64_t id_of_key(bt_str_t text)
{
    char digits[17], hex[BT_SHA1_HEX + 1];

    bt_sha1_hex(text, hex);
    bt_str_copy(digits, sizeof(digits), hex);
    const uint64_t id = strtoull(digits, NULL, 16) & ~PEERS;
    return id != 0 ? id : 1;
}

int bt_client_key_init(bt_client_key_t *key, bt_str_t text, bt_str_t tenant, bool sets_tenant)
{
    *key = (bt_client_key_t){.text = bt_str_dup(text), .sets_tenant = sets_tenant};
    if (key->text == NULL)
        return BT_E_NOMEM;
    key->id = id_of_key(text);
    if (tenant.n > 0)
        snprintf(key->tenant, sizeof(key->tenant), "%.*s", BT_STR_ARG(tenant));
    else
        snprintf(key->tenant, sizeof(key->tenant), "key-%08x", (unsigned) key->id);
    return 0;
}

bt_str_t bt_client_key_given(const bt_head_t *head)
{
    bt_str_t given = bt_head_get(head, BT_STR("authorization"));

    if (given.n > 7 && strncasecmp(given.p, "bearer ", 7) == 0)
        return bt_str_trim((bt_str_t){given.p + 7, given.n - 7});
    return bt_head_get(head, BT_STR("x-api-key"));
}

const bt_client_key_t *bt_client_key_find(const bt_client_keys_t *keys, const bt_head_t *head)
{
    const bt_str_t given = bt_client_key_given(head);
    const bt_client_key_t *found = NULL;

    for (unsigned i = 0; i < keys->count; i++) /* all are compared, whichever fits */
        if (bt_str_is_secret(bt_str(keys->items[i].text), given))
            found = &keys->items[i];
    return found;
}

bt_str_t bt_client_tenant(const bt_client_key_t *key, const bt_head_t *head)
{
    const bt_str_t given =
        key == NULL || key->sets_tenant ? bt_head_get(head, BT_STR("x-tenant-id")) : BT_STR_NULL;

    return given.n > 0 || key == NULL ? given : bt_str(key->tenant);
}

uint64_t bt_client_owner(const bt_client_key_t *key, const bt_exchange_t *x)
{
    return key != NULL ? key->id : bt_str_hash(bt_str(x->peer)) | PEERS;
}
