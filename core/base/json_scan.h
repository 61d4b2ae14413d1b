/* json_scan.h - the JSON grammar over raw bytes, for json.c and json_text.c only.
 *
 * Owner: the caller; internal to base.
 * Life:  a scan lives on the stack and borrows the text.
 * Flow:  each bt_json_scan_* call starts at `at` and leaves it after what it read, or at the byte in error.
 * Cost:  one pass, no recursion, no allocation; plain ASCII runs 8 or 16 bytes at a time, long strings and lists
 *        of integers 64 where the processor can.
 */
#ifndef BT_BASE_JSON_SCAN_H
#define BT_BASE_JSON_SCAN_H

#include "base/str.h"

#define BT_JSON_DEPTH_MAX 512
#if defined(__x86_64__)
#define BT_JSON_X86 1
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BT_JSON_NEON 1
#endif

typedef struct bt_json_scan {
    const char *at, *end;
    unsigned depth; /* open brackets, those of the caller included */
    bool escaped;   /* some string since init had a backslash; never set back */
    /* one bit per bracket opened here, the rest undefined */
    uint64_t is_object[BT_JSON_DEPTH_MAX / 64];
} bt_json_scan_t;

void bt_json_scan_init(bt_json_scan_t *s, const char *at, const char *end, unsigned depth);
void bt_json_scan_space(bt_json_scan_t *s);
/* `at` is on the opening quote. 0 or BT_E_JSON, BT_E_JSON_UTF8. */
int bt_json_scan_string(bt_json_scan_t *s);
/* A number by RFC 8259 section 6. 0 or BT_E_JSON. */
int bt_json_scan_number(bt_json_scan_t *s);
/* One whole value; `at` is on its first byte. 0 or BT_E_JSON*. */
int bt_json_scan_value(bt_json_scan_t *s);

/* Of the escape at `at`, a backslash: 2 or 6 bytes; 0 when it is none. Any four hex digits are
 * grammatical; lone surrogates are the unescaper's affair. */
unsigned bt_json_escape_len(const char *at, const char *end);
/* What a processor can do 64 bytes at a time. */
typedef struct bt_json_wide {
    /* What follows the closing quote of a string, `at` behind its opening one. NULL: it is not right,
     * or has no end. escaped_p is set when it has a backslash. */
    const char *(*string_end)(const char *at, const char *end, bool *escaped_p);
    /* Goes from one element of a list to another, behind the comma of some integer: all before it
     * are integers. How many is added to *count_p. Not all that there are: the last ones are left. */
    const char *(*integers_end)(const char *at, const char *end, size_t *count_p);
    /* Integers below 10^8 with white space and commas between them, appended to numbers, which has *count_p and takes cap.
     * Returns the end of the last one's digits. Not all that there are, nor what stands far apart. */
    const char *(*read_integers)(const char *at, const char *end, uint32_t *numbers, unsigned cap,
                                 unsigned *count_p);
} bt_json_wide_t;
extern const bt_json_wide_t bt_json_avx512, bt_json_avx2, bt_json_neon;
/* The nth of those that this processor can do, the best one first; NULL: it has no more. */
const bt_json_wide_t *bt_json_wide(unsigned nth);
/* By the best one there is; `at` where there is none. */
const char *bt_json_integers_end(const char *at, const char *end, size_t *count_p);
const char *bt_json_read_integers(const char *at, const char *end, uint32_t *numbers, unsigned cap,
                                  unsigned *count_p);

/* First byte that is a quote, a backslash, a control character or not ASCII; `end` when there is
 * none. */
const char *bt_json_plain_end(const char *at, const char *end);
/* Length of the UTF-8 sequence at `at` (RFC 3629: no overlong forms, no surrogates), 0 when it is
 * not one. */
size_t bt_json_utf8_len(const char *at, const char *end);

#endif
