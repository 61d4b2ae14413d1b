/* line.h - a line of text that is made in memory of a fixed size: log lines.
 *
 * Owner: the caller; usually its stack.
 * Life:  init -> put* -> str.
 * Flow:  what does not fit is left out. Text that others wrote is cut at `max` bytes, never within a character, and ends
 *        in "..." then; in plain text control characters and what is not UTF-8 are spelled \xNN, so that nobody forges a
 *        line or commands a terminal.
 * Cost:  one pass; nothing is allocated.
 */
#ifndef BT_BASE_LINE_H
#define BT_BASE_LINE_H

#include "base/str.h"

#define BT_LINE_FIELD_MAX ((size_t) 256) /* bytes of one field that a client wrote */

typedef struct bt_line {
    char *start, *at, *end;
} bt_line_t;

static inline void bt_line_init(bt_line_t *l, char *memory, size_t size)
{
    *l = (bt_line_t){memory, memory, memory + size};
}

static inline bt_str_t bt_line_str(const bt_line_t *l)
{
    return (bt_str_t){l->start, (size_t) (l->at - l->start)};
}

void bt_line_put(bt_line_t *l, bt_str_t s); /* as it is */
#define bt_line_lit(l, lit) bt_line_put((l), BT_STR(lit))
static inline void bt_line_z(bt_line_t *l, const char *z)
{
    bt_line_put(l, bt_str(z));
}
void bt_line_u64(bt_line_t *l, uint64_t value);
/* value / 10^places, with that many places: (1234, 3) is 1.234. places: 1 to 9. */
void bt_line_decimal(bt_line_t *l, uint64_t value, unsigned places);
void bt_line_plain(bt_line_t *l, bt_str_t s, size_t max);
/* A JSON string. Nothing at all where not even its quotes fit. */
void bt_line_quoted(bt_line_t *l, bt_str_t s, size_t max);

#endif
