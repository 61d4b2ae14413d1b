/* cuts.h - a text with some of its values replaced, all other bytes as they are.
 *
 * Owner: the caller; text and values are borrowed until it has been written.
 * Life:  zeroed -> replace* -> write.
 * Flow:  spans of a text, in any order, each with what stands there instead.
 * Cost:  one copy of the text.
 */
#ifndef BT_API_CUTS_H
#define BT_API_CUTS_H

#include "base/buf.h"
#include "base/str.h"

#define BT_CUTS_MAX 12
#define BT_CUTS_NUMBERS_MAX 4

typedef struct bt_cuts {
    struct {
        bt_str_t value, with;
    } items[BT_CUTS_MAX]; /* in the order in which they stand */
    unsigned count, number_count;
    char numbers[BT_CUTS_NUMBERS_MAX][24];
} bt_cuts_t;

/* Nothing, where either is not there (p NULL). Values must not overlap. */
void bt_cuts_replace(bt_cuts_t *cuts, bt_str_t value, bt_str_t with);
void bt_cuts_number(bt_cuts_t *cuts, bt_str_t value, uint64_t number);
/* At the end of *buf_p, which is made where it is NULL. BT_E_NOMEM: some of it may stand there. */
int bt_cuts_write(const bt_cuts_t *cuts, bt_str_t text, bt_buf_t **buf_p);
int bt_cuts_append(bt_buf_t **buf_p, bt_str_t s);

#endif
