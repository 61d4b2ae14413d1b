/* option.h - one typed value in a configuration struct: how it is read, checked, compared and described.
 *
 * Owner: constant rows of the tables in flag_table.c and worker_table.c; the struct that holds the value owns its strings.
 * Life:  static.
 * Flow:  text of a flag or value of the configuration file -> checked and converted -> stored at base + offset.
 * Cost:  start-up and reload only.
 */
#ifndef BT_CONFIG_OPTION_H
#define BT_CONFIG_OPTION_H

#include "script/value/value.h"

#include <stddef.h>

enum bt_option_kind {
    BT_OPTION_NONE,
    BT_OPTION_BOOL, /* bool */
    BT_OPTION_UINT, /* unsigned; a negative number (where min allows one) is stored as 0 */
    BT_OPTION_INT,  /* int */
    BT_OPTION_U64,  /* uint64_t or size_t */
    BT_OPTION_PORT, /* int: 1..65535, or the word none = -1 */
    BT_OPTION_TEXT, /* char *, malloc'ed, not empty */
    BT_OPTION_PATH, /* as TEXT; in the file it is relative to the file */
    BT_OPTION_NAME, /* as TEXT; in the file it is a path (relative to it) when it holds a / or ends in .lua */
    BT_OPTION_WORD,  /* an enum, one of words */
    BT_OPTION_TEXTS, /* char *[list_max] and an unsigned count */
    BT_OPTION_PATHS, /* as TEXTS; in the file each is relative to the file */
    BT_OPTION_LABELS /* char *: "k=v,k=v"; in the file also a table */
};

typedef struct bt_word {
    const char *word; /* NULL ends the list */
    int value;
    bool hidden; /* understood, but not offered */
} bt_word_t;

typedef struct bt_option {
    enum bt_option_kind kind;
    size_t offset;
    double min, max; /* in the unit that users write */
    double scale;    /* stored = written * scale; 0 = 1 and whole numbers only */
    const bt_word_t *words;
    size_t count_offset;
    unsigned list_max;
} bt_option_t;

/* err gets `expected ..., got ...` without any prefix. BT_E_CONFIG or BT_E_NOMEM. */
int bt_option_set_text(const bt_option_t *option, void *base, bt_str_t text, char *err,
                       size_t err_size);
/* dir: where relative paths of the file start; "" = leave them. */
int bt_option_set_value(const bt_option_t *option, void *base, const bt_value_t *value,
                        const char *dir, char *err, size_t err_size);
bool bt_option_takes_number(const bt_option_t *option); /* with a range */
bool bt_option_same(const bt_option_t *option, const void *a, const void *b);
void bt_option_clear(const bt_option_t *option, void *base); /* frees strings */
/* "a whole number from 0 to 65535", "true or false", "one of text, json" ... */
void bt_option_expected(const bt_option_t *option, char *out, size_t size);

#endif
