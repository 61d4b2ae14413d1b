/* json.h - JSON read as spans of the original bytes; nothing is ever parsed into a tree.
 *
 * Owner: the caller owns the text; every span points into it.
 * Life:  a cursor lives on the stack and borrows the text.
 * Flow:  open(text) -> next() until it returns 0 (whole value seen and valid) or an error. Each step yields one
 *        member or element whose value has been validated to the last byte (RFC 8259 grammar, UTF-8, no BOM,
 *        depth limit), so a loop that ran to 0 has proven the whole text well-formed in one pass.
 * Cost:  one pass; strings are skipped 8 to 64 bytes at a time; no allocation.
 */
#ifndef BT_BASE_JSON_H
#define BT_BASE_JSON_H

#include "base/str.h"

enum bt_json_type {
    BT_JSON_NONE, /* absent */
    BT_JSON_NULL,
    BT_JSON_FALSE,
    BT_JSON_TRUE,
    BT_JSON_NUMBER,
    BT_JSON_STRING,
    BT_JSON_ARRAY,
    BT_JSON_OBJECT
};

/* One member of an object or element of an array. Offsets count from the start of the text given to open(). */
typedef struct bt_json_item {
    bt_str_t key;     /* raw, between the quotes; empty for elements */
    bool key_escaped; /* the key holds a backslash: compare with bt_json_key_eq */
    size_t start;     /* offset of the key's opening quote (members) or of the value (elements) */
    size_t value_off; /* offset of the value's first byte */
    bt_str_t value;   /* raw text of the value, strings with their quotes */
    enum bt_json_type type;
    /* end offset of the item before it; for the first one: just after the opening bracket */
    size_t prev_end;
    size_t ordinal; /* 0, 1, ... */
} bt_json_item_t;

/* The members of an object that was read to its end. */
typedef struct bt_json_members {
    bt_str_t text;         /* of the object, without white space around it; empty: it was none */
    bt_json_item_t *items; /* room for cap of them, the caller's; offsets count from text */
    unsigned cap, count;   /* count > cap: not all of them are here */
} bt_json_members_t;

typedef struct bt_json_cursor {
    bt_str_t text;
    size_t at;
    size_t prev_end;
    size_t count;
    size_t open_off;    /* offset of the opening bracket */
    size_t close_off;   /* offset of the closing bracket, valid after next() returned 0 */
    size_t err_off;     /* where an error was found */
    unsigned char kind; /* '{' or '[' */
    unsigned char state;
    int rc; /* of the end: 0, or what was wrong */
} bt_json_cursor_t;

/* Text must be one object / one array (white space around it allowed). 0, or BT_E_JSON* with err_off set. */
int bt_json_object(bt_json_cursor_t *c, bt_str_t text);
int bt_json_array(bt_json_cursor_t *c, bt_str_t text);
/* 1 = item_p filled; 0 = end, closing bracket and trailing white space checked; < 0 = BT_E_JSON, _DEPTH, _UTF8. */
int bt_json_next(bt_json_cursor_t *c, bt_json_item_t *item_p);

/* Validates one whole value of any type. */
int bt_json_validate(bt_str_t text, size_t *err_off_p);
enum bt_json_type bt_json_type_of(bt_str_t value);
bool bt_json_escaped_key_eq(bt_str_t key, bt_str_t name);
/* Key compared unescaped ("kv\u005ftransfer_params" is "kv_transfer_params"). */
static inline bool bt_json_key_eq(const bt_json_item_t *item, bt_str_t name)
{
    return item->key_escaped ? bt_json_escaped_key_eq(item->key, name) : bt_str_eq(item->key, name);
}
/* Finds one member of an object; BT_JSON_NONE in item_p->type when absent. First match wins. Validates all of it. */
int bt_json_get(bt_str_t object, bt_str_t name, bt_json_item_t *item_p);
/* Same along a path of names, through objects only ("a", "b", NULL); offsets count from the outermost text. */
int bt_json_path(bt_str_t object, bt_json_item_t *item_p, const char *name, ...)
    __attribute__((sentinel));
/* Number of elements / members; < 0 on malformed text. */
long bt_json_count(bt_str_t value);

/* ---- of an array or object that has been validated before, and of nothing else: several times
 * faster than reading it again ---- */
typedef struct bt_json_walk {
    const char *begin, *at, *end; /* begin: of the text */
} bt_json_walk_t;
void bt_json_walk(bt_json_walk_t *w, bt_str_t container);
/* Of an array. False: it has no more. *inner_p: how many elements or members this element has
 * itself, 0 for scalars. */
bool bt_json_walk_next(bt_json_walk_t *w, bt_str_t *element_p, size_t *inner_p);
/* Goes over most of the integers that come next in an array, at once; how many. It may find none where there are some. */
size_t bt_json_walk_integers(bt_json_walk_t *w);
/* Of an object. All but prev_end and ordinal is filled. */
bool bt_json_walk_member(bt_json_walk_t *w, bt_json_item_t *item_p);
/* The first member of this name: its value, or BT_STR_NULL. */
bt_str_t bt_json_find(bt_str_t object, bt_str_t name);
/* Number of elements or members. */
size_t bt_json_size(bt_str_t container);

/* Of an array, validated or not: the unsigned integers that come next, up to cap of them, from *at on, 1 at first, which goes
 * behind the last one. Fewer: at the end, or before what is none (a sign, a fraction, one above UINT32_MAX), or before a
 * long gap. Numbers of up to 8 digits 64 bytes at a time. */
unsigned bt_json_read_u32(bt_str_t list, size_t *at, uint32_t *numbers, unsigned cap);

/* Integer without fraction or exponent, in range; BT_E_INVAL otherwise. */
int bt_json_i64(bt_str_t value, int64_t *value_p);
/* Any JSON number. */
int bt_json_double(bt_str_t value, double *value_p);
/* Unescapes a raw string value (with its quotes) into out; returns length (no NUL added), or BT_E_INVAL when it is no
 * string, BT_E_LIMIT when it does not fit in size. Lone surrogates become U+FFFD. */
long bt_json_unescape(bt_str_t value, char *out, size_t size);
/* Same, but without quotes around the input (keys). */
long bt_json_unescape_raw(bt_str_t raw, char *out, size_t size);
/* Number of bytes that bt_json_quote would write, quotes included; and the writer. */
size_t bt_json_quoted_size(bt_str_t s);
/* Enough room for it, without a look at a short one. */
static inline size_t bt_json_quoted_max(bt_str_t s)
{
    return s.n <= 32 ? 6 * s.n + 2 : bt_json_quoted_size(s);
}
size_t bt_json_quote(bt_str_t s, char *out);

#endif
