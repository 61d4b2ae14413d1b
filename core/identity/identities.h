/* identities.h - who may ask this process: the keys and issuers that count now, for all its loops.
 *
 * Owner: the gateway; loops have a checker each (checker.h).
 * Life:  new -> set_* whenever a file has changed -> free, when no checker is left.
 * Flow:  set_* swaps a table under a lock and moves the version; a checker that sees another version takes references anew. So nothing is
 *        mailed, and a loop that nobody asks keeps an old table until somebody does.
 * Cost:  an atomic read a request.
 */
#ifndef BT_IDENTITY_IDENTITIES_H
#define BT_IDENTITY_IDENTITIES_H

#include "base/text.h"
#include "identity/jwt.h"
#include "identity/key_table.h"

typedef struct bt_identities bt_identities_t;

/* rules: NULL = no tokens; borrowed. */
int bt_identities_new(bt_identities_t **all_p, const bt_jwt_rules_t *rules);
void bt_identities_free(bt_identities_t *all); /* NULL is fine */
/* Both take the reference. From any thread. The same key set again changes nothing: false. */
void bt_identities_set_keys(bt_identities_t *all, bt_key_table_t *keys);
bool bt_identities_set_jwks(bt_identities_t *all, bt_jwks_t *jwks);
/* What counts now, a line each, without anything that keys could be made of: for a digest. */
void bt_identities_describe(bt_identities_t *all, bt_text_t *out);
/* Keys of a store: it has told all of them, or that they are the same; rows that were no keys. */
void bt_identities_note_store(bt_identities_t *all, uint64_t now_ms, unsigned left_out);
void bt_identities_confirm_store(bt_identities_t *all, uint64_t now_ms);

typedef struct bt_identities_facts {
    unsigned keys;     /* that count */
    unsigned left_out; /* rows of the store */
    uint64_t
        store_heard_ms; /* event time of its last word; 0 = keys are of no store, or it has said nothing */
} bt_identities_facts_t;
void bt_identities_look(bt_identities_t *all, bt_identities_facts_t *facts_p); /* any thread */
/* Has a token named a key that no set has had since the last call? Whoever follows the issuer asks. */
bool bt_identities_was_kid_missed(bt_identities_t *all);

/* ---- for checkers ---- */
typedef struct bt_identities_view {
    uint64_t version;
    bt_key_table_t *keys; /* references; NULL = none */
    bt_jwks_t *jwks;
} bt_identities_view_t;
/* True: the view is another one now. */
bool bt_identities_renew(bt_identities_t *all, bt_identities_view_t *view);
void bt_identities_drop(bt_identities_view_t *view);
const bt_jwt_rules_t *bt_identities_rules(const bt_identities_t *all);
void bt_identities_miss_kid(bt_identities_t *all);

#endif
