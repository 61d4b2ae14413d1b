/* identity.h - who asks: what is known of a client once it has shown a key, a token or a certificate.
 *
 * Owner: a value; its texts are borrowed from whoever made it (the table of keys, the cache of tokens), until the same loop checks the next
 *        client. Who keeps one longer copies it (bt_identity_copy).
 * Life:  a check -> the request, in its arena -> policies, records, limits.
 * Flow:  no text of an identity leads back to the key or token that was shown.
 * Cost:  a few words.
 */
#ifndef BT_IDENTITY_IDENTITY_H
#define BT_IDENTITY_IDENTITY_H

#include "base/arena.h"

enum bt_identity_source {
    BT_IDENTITY_ANONYMOUS,
    BT_IDENTITY_KEY,
    BT_IDENTITY_JWT,
    BT_IDENTITY_MTLS
};
/* The words that policies and records have for them. */
const char *bt_identity_source_name(enum bt_identity_source source);

/* What an identity may ask for. */
enum bt_scope_bit {
    BT_MAY_INFER = 1,
    BT_MAY_LIST_MODELS = 2,
    BT_MAY_CANCEL = 4,
    BT_MAY_READ_ADMIN = 8,
    BT_MAY_CHANGE_ADMIN = 16, /* and read */
    BT_MAY_GIVE_KV_HINTS = 32 /* its body's kv_hints goes to the engine */
};
#define BT_MAY_AS_CLIENT (BT_MAY_INFER | BT_MAY_LIST_MODELS | BT_MAY_CANCEL)
#define BT_SCOPES_CLIENT "inference,models,cancel"

/* What the scope of that name grants, 0 = there is none such. */
unsigned bt_scope_of(bt_str_t name);
/* Names parted by commas or blanks. unknown_p: the first that is none, or BT_STR_NULL; it may be NULL. */
unsigned bt_scopes_read(bt_str_t names, bt_str_t *unknown_p);
/* The next name of such a list; false: there is no more. */
bool bt_scopes_next(bt_str_t *names, bt_str_t *name_p);

#define BT_IDENTITY_ID_MAX 512 /* bytes of an id, at most */
#define BT_TENANT_MAX 64
#define BT_TENANT_ANONYMOUS "anonymous"
/* 1 to BT_TENANT_MAX letters, digits, '_', '-', '.'. */
bool bt_tenant_is_name(bt_str_t name);
/* The tenant of whom others have named: that name, where a tenant can have it, else what a tenant can have of it and 63 bits of its hash, so
 * that two names are never one tenant. Empty: none. out: of BT_TENANT_MAX + 1 bytes. */
bt_str_t bt_tenant_of(bt_str_t name, char *out);

typedef struct bt_identity {
    enum bt_identity_source source;
    unsigned scopes;  /* bits */
    bool sets_tenant; /* its x-tenant-id counts */
    uint64_t owner;   /* the same on every replica; never 0, but anonymous */
    bt_str_t id;      /* of the key, the token's sub, the certificate's subject; empty: anonymous */
    bt_str_t tenant;  /* never empty, but where nobody is asked */
    bt_str_t scope_names; /* as they were given; for policies */
    bt_str_t models;      /* patterns parted by commas; empty = all */
    bt_str_t claims;      /* a JSON object of the claims that --jwt-claims names, or empty */
} bt_identity_t;

extern const bt_identity_t bt_identity_anonymous;

/* Its texts go into the arena. */
const bt_identity_t *bt_identity_copy(const bt_identity_t *from, bt_arena_t *arena);
/* May it use this model? One that is not named is none of those that a list names. */
bool bt_identity_may_use(const bt_identity_t *identity, bt_str_t model);
/* Of a verified client certificate: the name that tells it from others (bt_tls_peer_id; above BT_IDENTITY_ID_MAX its id is cut), and its
 * tenant, or BT_STR_NULL. It may what a client may, and never what an operator may. Borrows both. */
bt_identity_t bt_identity_of_subject(bt_str_t subject, bt_str_t tenant);
/* 63 bits of a hash of kind and name: what owners are. Never 0. */
uint64_t bt_identity_owner(bt_str_t kind, bt_str_t name);

#endif
