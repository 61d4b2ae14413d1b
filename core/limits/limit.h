/* limit.h - what may be used of the gateway in a window, and by whom: one row of the configuration's `limits`, and the list of them.
 *
 * Owner: the list has a count of references; rows and their texts are its own.
 * Life:  new -> add -> (shared by loops, and by requests that hold something by its rows) -> unref.
 * Flow:  immutable once it is shared. Of several rows with one name the first that fits a request counts.
 * Cost:  a few compares of texts a row.
 */
#ifndef BT_LIMITS_LIMIT_H
#define BT_LIMITS_LIMIT_H

#include "base/str.h"

#include <stdatomic.h>

/* What is counted; in this order it is taken. */
enum bt_limit_what {
    BT_LIMIT_CONCURRENT, /* requests at a time */
    BT_LIMIT_REQUESTS,   /* the rest: in a window */
    BT_LIMIT_TOKENS,     /* input and output */
    BT_LIMIT_INPUT_TOKENS,
    BT_LIMIT_OUTPUT_TOKENS
};
#define BT_LIMIT_WHATS 5
const char *bt_limit_what_name(enum bt_limit_what what); /* "input_tokens" */

/* Whose uses are added up: each different text of these has a count of its own. */
enum bt_limit_part { BT_LIMIT_ADDRESS, BT_LIMIT_KEY, BT_LIMIT_TENANT, BT_LIMIT_MODEL };
#define BT_LIMIT_PARTS 4
const char *bt_limit_part_name(enum bt_limit_part part);

#define BT_LIMITS_MAX 64 /* rows, and names */
#define BT_LIMIT_NAME_MAX 64
#define BT_LIMIT_AMOUNT_MAX (INT64_C(1) << 50)
#define BT_LIMIT_KEY_MAX 448 /* of a name and parts of the longest kind: 400 */

struct bt_limit_count; /* limits.h */

typedef struct bt_limit {
    char *name;
    unsigned per;                 /* bits 1 << enum bt_limit_part; 0 = all requests together */
    char *match[BT_LIMIT_PARTS];  /* only those of this text; NULL = of any */
    int64_t most[BT_LIMIT_WHATS]; /* -1 = no limit */
    int64_t answer_tokens;        /* reserved where the client does not say how long it may get */
    uint64_t window_ms;
    unsigned first;                /* row of the first of this name */
    struct bt_limit_count *counts; /* set by bt_limits_set */
} bt_limit_t;

typedef struct bt_limit_table {
    _Atomic unsigned refs;
    unsigned count;
    bt_limit_t items[BT_LIMITS_MAX];
} bt_limit_table_t;

bt_limit_table_t *bt_limit_table_new(void); /* NULL: no memory */
bt_limit_table_t *bt_limit_table_ref(bt_limit_table_t *table);
void bt_limit_table_unref(bt_limit_table_t *table); /* NULL is fine */
/* A row that limits nothing yet, within a minute; NULL: there are BT_LIMITS_MAX. */
bt_limit_t *bt_limit_table_add(bt_limit_table_t *table);
/* All rows are there: which have one name. */
void bt_limit_table_finish(bt_limit_table_t *table);

/* Who asks for what; "" = unknown, which is a subject of its own. */
typedef struct bt_limit_subject {
    bt_str_t parts[BT_LIMIT_PARTS];
} bt_limit_subject_t;

bool bt_limit_fits(const bt_limit_t *limit, const bt_limit_subject_t *subject);
/* By what these uses are counted. Returns its length. subject NULL: of all that find no room of their own. */
size_t bt_limit_key(const bt_limit_t *limit, enum bt_limit_what what,
                    const bt_limit_subject_t *subject, char out[BT_LIMIT_KEY_MAX]);

#define BT_LIMIT_ADDRESS_MAX 64
/* What one client has of addresses: IPv4's whole, of IPv6 its /64. What is none stays. out: of BT_LIMIT_ADDRESS_MAX bytes. */
bt_str_t bt_limit_address(bt_str_t peer, char *out);

#endif
