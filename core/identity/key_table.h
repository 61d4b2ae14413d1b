/* key_table.h - the keys that count: a file, read as a whole or refused.
 *
 * Owner: counted references, from any thread. It never changes; another file is another table.
 * Life:  read (a pool thread, or the start) -> identities.h hands it to the loops -> the last unref.
 * Flow:  a key names its row by its id, so one row is looked at and one hash made, however many keys there are. Plain keys (the older form)
 *        are kept as hashes too, salted by the process, which are what they are found by: their text does not stay in memory.
 * Cost:  O(1); a hash a look-up.
 */
#ifndef BT_IDENTITY_KEY_TABLE_H
#define BT_IDENTITY_KEY_TABLE_H

#include "base/text.h"
#include "identity/identity.h"
#include "identity/refusal.h"
#include "identity/sha256.h"

typedef struct bt_key_table bt_key_table_t;

/* 0, BT_E_NOMEM, or BT_E_CONFIG with "FILE:LINE: what is wrong" in err. A file without keys is refused: it would lock everybody out. */
int bt_key_table_read(const char *path, bt_key_table_t **table_p, char *err, size_t err_size);
/* Of lines that many write (a store's): one that is no hashed key is left out, counted, and why has the first one's reason. 0 with at least one
 * key, else as above. */
int bt_key_table_of(bt_str_t text, unsigned *left_out_p, bt_key_table_t **table_p, char *why,
                    size_t why_size);
bt_key_table_t *bt_key_table_ref(bt_key_table_t *table);
void bt_key_table_unref(bt_key_table_t *table); /* NULL is fine */

/* Whose key it is. identity borrows from the table. */
enum bt_auth_refusal bt_key_table_find(const bt_key_table_t *table, bt_str_t key, uint64_t wall_ms,
                                       bt_identity_t *identity);
unsigned bt_key_table_count(const bt_key_table_t *table); /* revoked ones do not count */
void bt_key_table_describe(const bt_key_table_t *table,
                           bt_text_t *out); /* a line each, without digests */
/* Would anybody see a difference? */
bool bt_key_table_same(const bt_key_table_t *a, const bt_key_table_t *b);

#endif
