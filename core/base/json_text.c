/* Between JSON's spelling and values: strings, keys, numbers. Works on spans whose grammar was
 * checked by a cursor, yet never trusts that: bad spelling ends in BT_E_INVAL, never in a read
 * outside of the span.
 */
#include "base/json.h"

#include "base/err.h"
#include "base/json_scan.h"

#include <math.h>
#include <stdlib.h>

#define REPLACEMENT UINT32_C(0xfffd)
#define EXACT_DIGITS 15 /* a double holds them all */
#define NUMBER_BYTES 64 /* longer numbers are copied to the heap */

/* ---- unescape ---- */

/* The four digits after "\u"; -1 when they are not there. */
static int32_t read_unit(const char *at, const char *end)
{
    int32_t unit = 0;

    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (unsigned i = 2; i < 6; i++) {
        int digit = bt_str_hex(at[i]);
        if (digit < 0)
            return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static size_t put_utf8(uint32_t point, char out[4])
{
    if (point < 0x80) {
        out[0] = (char) point;
        return 1;
    }
    size_t n = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, point >>= 6)
        out[i] = (char) (0x80 | (point & 0x3f));
    out[0] = (char) (lead[n] | point);
    return n;
}

/* "\uXXXX", two of them for a surrogate pair. Returns the bytes written, 0 on bad spelling. */
static size_t decode_unit(const char **at_p, const char *end, char out[4])
{
    int32_t unit = read_unit(*at_p, end);
    if (unit < 0)
        return 0;
    *at_p += 6;
    uint32_t point = (uint32_t) unit;
    if (unit >= 0xd800 && unit <= 0xdfff) {
        int32_t low = unit < 0xdc00 ? read_unit(*at_p, end) : -1;
        point = REPLACEMENT;
        if (low >= 0xdc00 && low <= 0xdfff) {
            point = 0x10000 + (((uint32_t) unit - 0xd800) << 10) + ((uint32_t) low - 0xdc00);
            *at_p += 6;
        }
    }
    return put_utf8(point, out);
}

/* One escape, `*at_p` on its backslash. Returns the bytes written, 0 on bad spelling. */
static size_t decode_escape(const char **at_p, const char *end, char out[4])
{
    static const char meant[256] = {
        ['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
        ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t',
    };

    if (end - *at_p < 2)
        return 0;
    char c = (*at_p)[1];
    if (c == 'u')
        return decode_unit(at_p, end, out);
    out[0] = meant[(unsigned char) c];
    if (out[0] == '\0')
        return 0;
    *at_p += 2;
    return 1;
}

/* The next run of unescaped bytes: either a stretch of the input, or one decoded escape in `small`.
 */
static int next_run(const char **at_p, const char *end, char small[4], bt_str_t *run_p)
{
    const char *at = *at_p;
    const char *backslash = memchr(at, '\\', (size_t) (end - at));

    if (backslash != at) {
        *at_p = backslash != NULL ? backslash : end;
        *run_p = (bt_str_t){at, (size_t) (*at_p - at)};
        return 0;
    }
    size_t n = decode_escape(at_p, end, small);
    if (n == 0)
        return BT_E_INVAL;
    *run_p = (bt_str_t){small, n};
    return 0;
}

long bt_json_unescape_raw(bt_str_t raw, char *out, size_t size)
{
    const char *at = raw.p, *end = raw.n > 0 ? raw.p + raw.n : raw.p;
    size_t len = 0;
    char small[4];
    bt_str_t run;

    while (at < end) {
        int rc = next_run(&at, end, small, &run);
        if (rc < 0)
            return rc;
        if (run.n > size - len)
            return BT_E_LIMIT;
        memcpy(out + len, run.p, run.n);
        len += run.n;
    }
    return (long) len;
}

long bt_json_unescape(bt_str_t value, char *out, size_t size)
{
    if (value.n < 2 || value.p[0] != '"' || value.p[value.n - 1] != '"')
        return BT_E_INVAL;
    return bt_json_unescape_raw((bt_str_t){value.p + 1, value.n - 2}, out, size);
}

#define LONGEST_SPELLING 6 /* \u0061 for a byte */

bool bt_json_escaped_key_eq(bt_str_t key, bt_str_t name)
{
    if (key.n > LONGEST_SPELLING * name.n)
        return false; /* at once, however long it is */
    const char *at = key.p, *end = at + key.n;
    char small[4];
    bt_str_t run;

    while (at < end) {
        if (next_run(&at, end, small, &run) < 0 || !bt_str_starts(name, run))
            return false;
        name = (bt_str_t){name.p + run.n, name.n - run.n};
    }
    return name.n == 0;
}

/* ---- quote ---- */

/* How one byte that is not plain is written: an escape, a UTF-8 sequence as it is, or U+FFFD for a
 * byte that belongs to none. Returns the number of input bytes used.
 */
static size_t spell_special(const char *at, const char *end, char small[8], bt_str_t *out_p)
{
    static const char hex[] = "0123456789abcdef";
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    static const char unicode[] = {'\\', 'u', '0', '0'};
    unsigned char c = (unsigned char) *at;
    size_t n = bt_json_utf8_len(at, end);

    if (c >= 0x80) {
        *out_p = n > 0 ? (bt_str_t){at, n} : BT_STR("\xef\xbf\xbd");
        return n > 0 ? n : 1;
    }
    const char *hit = c != 0 ? strchr(from, c) : NULL;
    memcpy(small, unicode, sizeof(unicode));
    small[4] = hex[c >> 4];
    small[5] = hex[c & 15];
    if (hit != NULL)
        small[1] = to[hit - from];
    *out_p = (bt_str_t){small, hit != NULL ? 2 : 6};
    return 1;
}

/* Writes when out is not NULL; counts always. */
static size_t quote(bt_str_t s, char *out)
{
    const char *at = s.p, *end = s.n > 0 ? s.p + s.n : s.p;
    size_t len = 1;
    char small[8];

    if (out != NULL)
        out[0] = '"';
    while (at < end) {
        const char *stop = bt_json_plain_end(at, end);
        bt_str_t run = {at, (size_t) (stop - at)};
        if (run.n > 0)
            at = stop;
        else
            at += spell_special(at, end, small, &run);
        if (out != NULL)
            memcpy(out + len, run.p, run.n);
        len += run.n;
    }
    if (out != NULL)
        out[len] = '"';
    return len + 1;
}

size_t bt_json_quoted_size(bt_str_t s)
{
    return quote(s, NULL);
}

size_t bt_json_quote(bt_str_t s, char *out)
{
    return quote(s, out);
}

/* ---- numbers ---- */

static bool is_number(bt_str_t value)
{
    bt_json_scan_t s;

    if (value.n == 0)
        return false;
    bt_json_scan_init(&s, value.p, value.p + value.n, 0);
    return bt_json_scan_number(&s) == 0 && s.at == s.end;
}

int bt_json_i64(bt_str_t value, int64_t *value_p)
{
    bool is_negative = value.n > 0 && value.p[0] == '-';
    int64_t number = 0;

    if (!is_number(value))
        return BT_E_INVAL;
    for (size_t i = is_negative ? 1 : 0; i < value.n; i++) {
        if (value.p[i] < '0' || value.p[i] > '9') /* fraction or exponent */
            return BT_E_INVAL;
        int64_t digit = is_negative ? '0' - value.p[i] : value.p[i] - '0';
        if (__builtin_mul_overflow(number, (int64_t) 10, &number) ||
            __builtin_add_overflow(number, digit, &number))
            return BT_E_INVAL;
    }
    *value_p = number;
    return 0;
}

/* strtod needs a NUL, and the C locale: nobody here calls setlocale. */
int bt_json_double(bt_str_t value, double *value_p)
{
    char small[NUMBER_BYTES];
    int64_t integer;

    if (value.n <= EXACT_DIGITS && bt_json_i64(value, &integer) == 0 && integer != 0) {
        *value_p = (double) integer; /* 0 may be -0 */
        return 0;
    }
    if (!is_number(value))
        return BT_E_INVAL;
    char *copy = value.n < sizeof(small) ? small : malloc(value.n + 1);
    if (copy == NULL)
        return BT_E_NOMEM;
    memcpy(copy, value.p, value.n);
    copy[value.n] = '\0';
    double number = strtod(copy, NULL);
    if (copy != small)
        free(copy);
    if (!isfinite(number))
        return BT_E_INVAL;
    *value_p = number;
    return 0;
}
