/* query.h - percent-encoding of paths and query strings.
 *
 * Owner: the caller owns the text it gets.
 * Life:  values.
 * Flow:  "a=1&b=%2F" -> pairs in order, decoded.
 * Cost:  O(bytes).
 */
#ifndef BT_ADMIN_CALL_QUERY_H
#define BT_ADMIN_CALL_QUERY_H

#include "base/text.h"

/* Appends the decoded bytes to out. plus: '+' means a space (queries, not paths). BT_E_INVAL on a broken escape
 * or a NUL. */
int bt_query_decode(bt_text_t *out, bt_str_t raw, bool plus);
/* Cuts the next pair off *rest_p, both parts still encoded. False when there is none left; empty pairs are skipped. */
bool bt_query_next(bt_str_t *rest_p, bt_str_t *name_p, bt_str_t *value_p);

#endif
