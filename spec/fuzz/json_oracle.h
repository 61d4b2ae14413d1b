/* json_oracle.h - base/json held against jansson, an independent parser.
 *
 * Owner: nobody; each call stands alone.
 * Life:  used by the JSON fuzz target and by spec/unit/base/json_diff_test.c.
 * Flow:  one text in; aborts with the text printed where the two disagree.
 * Cost:  several parses of the text.
 */
#ifndef BT_SPEC_JSON_ORACLE_H
#define BT_SPEC_JSON_ORACLE_H

#include "base/str.h"

enum json_verdict {
    JSON_BOTH_ACCEPT, /* and rebuilt from spans it has the same value */
    JSON_BOTH_REFUSE,
    JSON_NOT_COMPARED /* one of jansson's known limits, see json_oracle.c */
};

enum json_verdict json_oracle_check(bt_str_t text);

#endif
