/* suggest.h - "did you mean": the nearest of a set of names.
 *
 * Owner: the caller's stack; word and names are borrowed.
 * Life:  init -> offer* -> best.
 * Flow:  the name with the smallest edit distance wins if it is near enough to be a slip of the finger.
 * Cost:  one edit distance a name; error paths only.
 */
#ifndef BT_CONFIG_SUGGEST_H
#define BT_CONFIG_SUGGEST_H

#include "base/str.h"

typedef struct bt_suggest {
    bt_str_t word;
    const char *best;
    unsigned distance;
} bt_suggest_t;

void bt_suggest_init(bt_suggest_t *s, bt_str_t word);
void bt_suggest_offer(bt_suggest_t *s, const char *name);
const char *bt_suggest_best(const bt_suggest_t *s); /* NULL: nothing is near */
/* Of a table whose rows, of row_bytes each, begin with their name. */
const char *bt_suggest_row(const char *word, const void *rows, size_t count, size_t row_bytes);

#endif
