/* client.h - who a request comes from: the key it showed, or the address it came from.
 *
 * Owner: the configuration that has read them, and the gateway for those of a reload; everybody else borrows them.
 * Life:  a set is constant. SIGHUP puts another one in its place; the one before stays until the end, because requests borrow from it.
 * Flow:  --client-api-keys-file -> bt_client_keys_t -> the key of each request -> its tenant, and what it may cancel.
 * Cost:  a compare with every key a request, so that its time tells nothing about which one fits.
 */
#ifndef BT_API_CLIENT_H
#define BT_API_CLIENT_H

#include "http/server.h"

#define BT_CLIENT_TENANT_MAX 64

typedef struct bt_client_key {
    char *text;
    char tenant[BT_CLIENT_TENANT_MAX +
                1];   /* never empty: where the file names none, made of the key's hash */
    bool sets_tenant; /* x-tenant-id counts */
    uint64_t id;      /* of this key on every replica; never 0 */
} bt_client_key_t;

typedef struct bt_client_keys {
    bt_client_key_t *items;
    unsigned count;
    struct bt_client_keys *before; /* the set in whose place this one came */
} bt_client_keys_t;

/* 0, BT_E_NOMEM. tenant: BT_STR_NULL = none named. */
int bt_client_key_init(bt_client_key_t *key, bt_str_t text, bt_str_t tenant, bool sets_tenant);
/* The one that head carries (Authorization: Bearer, or x-api-key), or NULL. */
const bt_client_key_t *bt_client_key_find(const bt_client_keys_t *keys, const bt_head_t *head);
/* What head carries, without looking at whose it is; a slice without bytes when there is nothing. */
bt_str_t bt_client_key_given(const bt_head_t *head);
/* key NULL: no keys are asked for, and the header says it. */
bt_str_t bt_client_tenant(const bt_client_key_t *key, const bt_head_t *head);
/* Who may cancel what this client has sent: the same key, or, without keys, the same address. Never 0. */
uint64_t bt_client_owner(const bt_client_key_t *key, const bt_exchange_t *x);

#endif
