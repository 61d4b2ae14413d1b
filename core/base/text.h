/* text.h - growable text, for answers that are printed (metrics, JSON of the admin API, log lines).
 *
 * Owner: the caller.
 * Life:  init -> append* -> take or fini.
 * Flow:  sticky failure: after running out of memory or over BT_TEXT_MAX_BYTES appends do nothing and `failed` is set.
 * Cost:  amortised O(bytes). Not for the request path.
 */
#ifndef BT_BASE_TEXT_H
#define BT_BASE_TEXT_H

#include "base/str.h"

#define BT_TEXT_MAX_BYTES ((size_t) 256 << 20)

typedef struct bt_text {
    char *data; /* always NUL-terminated once anything was appended */
    size_t len, cap;
    bool failed;
} bt_text_t;

void bt_text_init(bt_text_t *t);
void bt_text_fini(bt_text_t *t);
void bt_text_put(bt_text_t *t, bt_str_t s);
void bt_text_puts(bt_text_t *t, const char *z);
void bt_text_printf(bt_text_t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with quotes; bytes that are not UTF-8 become U+FFFD. */
void bt_text_json_str(bt_text_t *t, bt_str_t s);
/* The same of text that others wrote: cut at max bytes (bt_str_cut), "..." behind it then. */
void bt_text_json_cut(bt_text_t *t, bt_str_t s, size_t max);
/* ,"name":"value", or null. */
void bt_text_json_member(bt_text_t *t, const char *name, const char *value);
bt_str_t bt_text_str(const bt_text_t *t);
/* What was written, for the caller to free(); t is empty again. NULL when nothing was. */
char *bt_text_take(bt_text_t *t);

#endif
