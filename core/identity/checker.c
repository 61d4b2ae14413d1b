#include "identity/checker.h"

#include "base/err.h"
#include "base/map.h"

#include <stdlib.h>

struct token {
    bt_map_entry_t entry;
    bt_list_t age;
    unsigned char digest[BT_SHA256_BYTES];
    bt_jwt_t jwt;
};

struct bt_checker {
    bt_identities_t *all;
    bt_identities_view_t view;
    bt_map_t tokens;
    bt_list_t ages; /* the one that was not seen the longest first */
    unsigned count;
    uint64_t verified;
};

static uint64_t first_of(const unsigned char *digest)
{
    uint64_t first;

    memcpy(&first, digest, sizeof first);
    return first;
}

/* ---- tokens ---- */

static void forget(bt_checker_t *c, struct token *t)
{
    bt_map_remove(&c->tokens, &t->entry);
    bt_list_remove(&t->age);
    bt_jwt_fini(&t->jwt);
    free(t);
    c->count--;
}

static void forget_all(bt_checker_t *c)
{
    while (!bt_list_empty(&c->ages))
        forget(c, bt_container_of(c->ages.next, struct token, age));
}

static struct token *find(const bt_checker_t *c, const unsigned char *digest)
{
    bt_list_t *bucket = bt_map_bucket(&c->tokens, first_of(digest)), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        struct token *t = bt_container_of(it, struct token, entry.link);
        if (bt_sha256_same(t->digest, digest, BT_SHA256_BYTES))
            return t;
    }
    return NULL;
}

static struct token *remember(bt_checker_t *c, const unsigned char *digest, bt_jwt_t *jwt)
{
    struct token *t = calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    while (c->count >= BT_CHECKER_TOKENS_MAX)
        forget(c, bt_container_of(c->ages.next, struct token, age));
    memcpy(t->digest, digest, sizeof t->digest);
    t->jwt = *jwt;
    bt_map_put(&c->tokens, &t->entry, first_of(digest));
    bt_list_push(&c->ages, &t->age);
    c->count++;
    return t;
}

static enum bt_auth_refusal verify(bt_checker_t *c, bt_str_t token, const unsigned char *digest,
                                   uint64_t wall_ms, struct token **token_p)
{
    bt_jwt_t jwt;
    enum bt_auth_refusal refusal;

    if (c->view.jwks == NULL)
        return BT_AUTH_KEYS_UNKNOWN;
    c->verified++;
    refusal = bt_jwt_verify(bt_identities_rules(c->all), c->view.jwks, token, wall_ms, &jwt);
    if (refusal == BT_AUTH_TOKEN_KEY)
        bt_identities_miss_kid(c->all);
    if (refusal != BT_AUTH_OK)
        return refusal;
    *token_p = remember(c, digest, &jwt);
    if (*token_p != NULL)
        return BT_AUTH_OK;
    bt_jwt_fini(&jwt);
    return BT_AUTH_KEYS_UNKNOWN; /* out of memory: try again */
}

static enum bt_auth_refusal check_token(bt_checker_t *c, bt_str_t token, uint64_t wall_ms,
                                        bt_identity_t *identity)
{
    unsigned char digest[BT_SHA256_BYTES];
    enum bt_auth_refusal refusal;
    struct token *t;

    if (token.n > BT_JWT_BYTES_MAX)
        return BT_AUTH_TOKEN_MALFORMED;
    bt_sha256_of(token, BT_STR(""), digest);
    t = find(c, digest);
    if (t != NULL && wall_ms >= t->jwt.expires_ms) {
        forget(c, t);
        return BT_AUTH_TOKEN_EXPIRED;
    }
    if (t == NULL && (refusal = verify(c, token, digest, wall_ms, &t)) != BT_AUTH_OK)
        return refusal;
    bt_list_remove(&t->age);
    bt_list_push(&c->ages, &t->age);
    *identity = t->jwt.identity;
    return BT_AUTH_OK;
}

/* ---- a request ---- */

enum bt_auth_refusal bt_checker_check(bt_checker_t *c, bt_str_t given, uint64_t wall_ms,
                                      bt_identity_t *identity)
{
    if (bt_identities_renew(c->all, &c->view))
        forget_all(c);
    if (given.n == 0)
        return BT_AUTH_MISSING;
    if (bt_identities_rules(c->all) != NULL && bt_jwt_is_like(given))
        return check_token(c, given, wall_ms, identity);
    return c->view.keys != NULL ? bt_key_table_find(c->view.keys, given, wall_ms, identity)
                                : BT_AUTH_KEY_WRONG;
}

uint64_t bt_checker_verified(const bt_checker_t *c)
{
    return c->verified;
}

/* ---- life ---- */

int bt_checker_new(bt_checker_t **checker_p, bt_identities_t *all)
{
    bt_checker_t *c = calloc(1, sizeof *c);
    int rc = c != NULL ? bt_map_init(&c->tokens, 256) : BT_E_NOMEM;

    if (rc < 0) {
        free(c);
        return rc;
    }
    c->all = all;
    bt_list_init(&c->ages);
    *checker_p = c;
    return 0;
}

void bt_checker_free(bt_checker_t *c)
{
    if (c == NULL)
        return;
    forget_all(c);
    bt_identities_drop(&c->view);
    free(c->tokens.buckets);
    free(c);
}
