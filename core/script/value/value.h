/* value.h - plain data (booleans, numbers, strings, tables of these) as a tree in C.
 *
 * Owner: whoever has the root; bt_value_free.
 * Life:  a tree holds copies: it may outlive the VM that it was read from.
 * Flow:  plain.h reads trees from Lua and pushes them back.
 * Cost:  an allocation a string and a list; linear look-up.
 */
#ifndef BT_SCRIPT_VALUE_H
#define BT_SCRIPT_VALUE_H

#include "base/text.h"

enum bt_value_type {
    BT_VALUE_BOOL,
    BT_VALUE_NUMBER,
    BT_VALUE_STRING,
    BT_VALUE_LIST,
    BT_VALUE_TABLE
};

typedef struct bt_value {
    enum bt_value_type type;
    char *key; /* inside a table */
    bool boolean;
    double number;
    char *string;
    struct bt_value *items; /* list elements or table members (sorted by key) */
    unsigned count;
} bt_value_t;

void bt_value_free(bt_value_t *root);
const bt_value_t *bt_value_get(const bt_value_t *table, const char *key);
/* NULL of NULL, and when memory is short. */
bt_value_t *bt_value_copy(const bt_value_t *value);
/* Same members, same values; NULL equals NULL only. */
bool bt_value_equal(const bt_value_t *a, const bt_value_t *b);
void bt_value_json(const bt_value_t *value, bt_text_t *out);
/* The shortest that reads back as the same number; null for what JSON has no number for. */
void bt_value_write_number(bt_text_t *out, double number);
/* The same in steps: check(user) is called before each value, and between the parts of a long string. */
void bt_value_json_checked(const bt_value_t *value, void (*check)(void *user), void *user,
                           bt_text_t *out);
/* Bytes of a text that may be gone through at once; cut where a character begins. */
size_t bt_value_part(bt_str_t text);

#endif
