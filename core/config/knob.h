/* knob.h - one typed value in a configuration struct: how it is read, checked, compared and described.
 *
 * Owner: constant rows of the tables in flag_table.c and worker_table.c; the struct that holds the value owns its strings.
 * Life:  static.
 * Flow:  text of a flag or value of the configuration file -> checked and converted -> stored at base + offset.
 * Cost:  start-up and reload only.
 */
#ifndef BT_CONFIG_KNOB_H
#define BT_CONFIG_KNOB_H

#include "script/luatable.h"

#include <stddef.h>

enum bt_knob_kind {
    BT_KNOB_NONE,
    BT_KNOB_BOOL, /* bool */
    BT_KNOB_UINT, /* unsigned; a negative number (where min allows one) is stored as 0 */
    BT_KNOB_INT,  /* int */
    BT_KNOB_U64,  /* uint64_t */
    BT_KNOB_SIZE, /* size_t */
    BT_KNOB_PORT, /* int: 1..65535, or the word none = -1 */
    BT_KNOB_TEXT, /* char *, malloc'ed, not empty */
    BT_KNOB_PATH, /* as TEXT; in the file it is relative to the file */
    BT_KNOB_NAME, /* as TEXT; in the file it is a path (relative to it) when it holds a / or ends in .lua */
    BT_KNOB_WORD,  /* an enum, one of words */
    BT_KNOB_TEXTS, /* char *[list_max] and an unsigned count */
    BT_KNOB_LABELS /* char *: "k=v,k=v"; in the file also a table */
};

typedef struct bt_word {
    const char *word; /* NULL ends the list */
    int value;
    bool hidden; /* understood, but not offered */
} bt_word_t;

typedef struct bt_knob {
    enum bt_knob_kind kind;
    size_t offset;
    double min, max; /* in the unit that users write */
    double scale;    /* stored = written * scale; 0 = 1 and whole numbers only */
    const bt_word_t *words;
    size_t count_offset;
    unsigned list_max;
} bt_knob_t;

/* err gets `expected ..., got ...` without any prefix. BT_E_CONFIG or BT_E_NOMEM. */
int bt_knob_set_text(const bt_knob_t *knob, void *base, bt_str_t text, char *err, size_t err_size);
/* dir: where relative paths of the file start; "" = leave them. */
int bt_knob_set_value(const bt_knob_t *knob, void *base, const bt_value_t *value, const char *dir,
                      char *err, size_t err_size);
bool bt_knob_same(const bt_knob_t *knob, const void *a, const void *b);
void bt_knob_clear(const bt_knob_t *knob, void *base); /* frees strings */
/* "a whole number from 0 to 65535", "true or false", "one of text, json" ... */
void bt_knob_expected(const bt_knob_t *knob, char *out, size_t size);

#endif
