#include "base/line.h"

#include "base/json.h"
#include "base/json_scan.h"

#include <stdio.h>

static size_t room_of(const bt_line_t *l)
{
    return (size_t) (l->end - l->at);
}

void bt_line_put(bt_line_t *l, bt_str_t s)
{
    const size_t n = s.n < room_of(l) ? s.n : room_of(l);

    if (n > 0)
        memcpy(l->at, s.p, n);
    l->at += n;
}

void bt_line_u64(bt_line_t *l, uint64_t value)
{
    char z[BT_STR_U64_MAX], *end = z + sizeof(z), *at = bt_str_digits(end, value, 1);

    bt_line_put(l, (bt_str_t){at, (size_t) (end - at)});
}

void bt_line_decimal(bt_line_t *l, uint64_t value, unsigned places)
{
    uint64_t unit = 1;
    char z[2 * BT_STR_U64_MAX], *end = z + sizeof(z), *at;

    for (unsigned i = 0; i < places; i++)
        unit *= 10;
    at = bt_str_digits(end, value % unit, places);
    *--at = '.';
    at = bt_str_digits(at, value / unit, 1);
    bt_line_put(l, (bt_str_t){at, (size_t) (end - at)});
}

/* ---- text that others wrote ---- */

static bool is_control(const char *p, size_t n)
{
    const unsigned char c = (unsigned char) p[0];

    return c < 0x20 || c == 0x7f || (n == 2 && c == 0xc2 && (unsigned char) p[1] < 0xa0);
}

static void put_spelled(bt_line_t *l, const char *p, size_t n)
{
    for (size_t i = 0; i < n && room_of(l) >= 4; i++)
        l->at += sprintf(l->at, "\\x%02x", (unsigned char) p[i]);
}

/* Bytes at p that can be shown as they are. */
static size_t run_of(const char *p, const char *end)
{
    const char *at = p;

    while (at < end) {
        const size_t n = (unsigned char) *at < 0x80 ? 1 : bt_json_utf8_len(at, end);
        if (n == 0 || is_control(at, n))
            break;
        at += n;
    }
    return (size_t) (at - p);
}

void bt_line_plain(bt_line_t *l, bt_str_t s, size_t max)
{
    const bt_str_t shown = bt_str_cut(s, max);
    const char *at = shown.p, *end = shown.n > 0 ? at + shown.n : at;

    while (at < end) {
        const size_t run = run_of(at, end);
        bt_line_put(l, (bt_str_t){at, run});
        at += run;
        if (at == end)
            break;
        const size_t n = bt_json_utf8_len(at, end);
        put_spelled(l, at, n > 0 ? n : 1);
        at += n > 0 ? n : 1;
    }
    if (shown.n < s.n)
        bt_line_lit(l, "...");
}

/* A character takes 6 bytes at most, so each cut leaves no more room than needed. */
void bt_line_quoted(bt_line_t *l, bt_str_t s, size_t max)
{
    bt_str_t shown = bt_str_cut(s, max);
    const size_t mark = shown.n < s.n ? 3 : 0, room = room_of(l);
    size_t size;

    while ((size = bt_json_quoted_size(shown) + mark) > room && shown.n > 0) {
        const size_t excess = (size - room + 5) / 6;
        shown = bt_str_cut(shown, shown.n > excess ? shown.n - excess : 0);
    }
    if (size > room)
        return;
    l->at += bt_json_quote(shown, l->at);
    if (mark > 0) {
        memcpy(l->at - 1, "...\"", 4); /* over its last quote */
        l->at += 3;
    }
}
