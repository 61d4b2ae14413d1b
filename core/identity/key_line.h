/* key_line.h - one line of a file of keys.
 *
 *   bk_<id> sha256:<salt>:<hash> tenant=acme scopes=inference,models expires=2027-02-25T08:00:00Z  # whose it is
 *   KEY tenant=acme                                                 the older form: the key itself
 *
 * A key is bk_<id>_<secret>; the secret is 32 random bytes, so one round of SHA-256 over salt and secret keeps it as well as bcrypt would:
 * slow hashes make up for passwords that can be guessed, and there is nothing to guess here. They would cost a loop 100 ms a request.
 *
 * Owner: spans of the line.
 * Life:  as the line.
 * Flow:  read by the table of keys, and by baton key, which writes them.
 * Cost:  one pass.
 */
#ifndef BT_IDENTITY_KEY_LINE_H
#define BT_IDENTITY_KEY_LINE_H

#include "identity/sha256.h"

#define BT_KEY_PREFIX "bk_"
#define BT_KEY_SALT_BYTES 16
#define BT_KEY_LINE_MAX 1024U
#define BT_KEY_TEXT_MAX 512U
/* In a fleet's space of the store: a table of such lines, by name; and how often it was changed. */
#define BT_KEY_STORE_TABLE "client_keys"
#define BT_KEY_STORE_CHANGES "client_keys_changes"

typedef struct bt_key_line {
    bt_str_t name; /* bk_<id>, or the key itself; empty: the line has none */
    bool is_hashed;
    unsigned char salt[BT_KEY_SALT_BYTES], digest[BT_SHA256_BYTES];
    bool sets_tenant;
    bt_str_t tenant, scopes, models, expires, created, revoked; /* BT_STR_NULL: not said */
    bt_str_t comment;
    uint64_t expires_ms; /* unix time; UINT64_MAX = never */
} bt_key_line_t;

/* 0, or BT_E_CONFIG with why: what is wrong and what would be right, never the key. */
int bt_key_line_read(bt_str_t text, bt_key_line_t *line, char *why, size_t why_size);
/* The line of a row of the store: of one key, whose id is the row's name, so that a key has one row and `baton key revoke` writes over that one. BT_STR_NULL: it
 * is something else. */
bt_str_t bt_key_line_of_row(bt_str_t name, bt_str_t value);
/* What is shown, cut in two. False: it is not of this form. */
bool bt_key_split(bt_str_t key, bt_str_t *name_p, bt_str_t *secret_p);
/* "2027-02-25" or "2027-02-25T08:00:00Z". BT_E_INVAL */
int bt_key_time_read(bt_str_t text, uint64_t *wall_ms_p);

#endif
