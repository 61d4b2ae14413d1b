/* Validation without recursion. A value is begun (scalars end at once, brackets are pushed) and
 * then everything that may follow a value is eaten (closing brackets, a comma and perhaps the next
 * key) until another value must come or the nesting is back where it began:
 *
 *     begin_value --scalar, empty bracket--> after_value --outermost closed--> done
 *          ^  '--bracket opened-->.               |
 *          '----------------------'<--',' (key)---'
 *
 * Strings are nearly all of a request body, so only they are vectorised.
 */
#include "base/json_scan.h"

#include "base/err.h"

#if defined(__SSE2__) && !defined(BT_JSON_PORTABLE)
#include <emmintrin.h>
#endif

enum { SCAN_DONE = 0, SCAN_VALUE_NEXT = 1 };

#define SHORT_BYTES 80
#define EVERY_BYTE UINT64_C(0x0101010101010101)
#define HIGH_BITS (EVERY_BYTE * 0x80)

void bt_json_scan_init(bt_json_scan_t *s, const char *at, const char *end, unsigned depth)
{
    s->at = at;
    s->end = end;
    s->depth = depth;
    s->escaped = false;
}

static inline void skip_space(bt_json_scan_t *s)
{
    while (s->at < s->end && bt_str_is_blank(*s->at))
        s->at++;
}

void bt_json_scan_space(bt_json_scan_t *s)
{
    skip_space(s);
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

#if defined(__SSE2__) && !defined(BT_JSON_PORTABLE)
#define STEP 16
/* Not 0 when a byte of the block is not plain; the lowest bit set is the first such byte. */
static unsigned block_hits(const char *at)
{
    __m128i v = _mm_loadu_si128((const __m128i *) (const void *) at);
    __m128i hit =
        _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    /* Compared as signed bytes, below 0x20 means control character or not ASCII. */
    hit = _mm_or_si128(hit, _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
    return (unsigned) _mm_movemask_epi8(hit);
}

static const char *first_hit(const char *at, unsigned hits)
{
    return at + __builtin_ctz(hits);
}
#else
#define STEP 8
/* Not 0 when a byte of the block is not plain. The subtractions may carry into bytes above a hit,
 * never below it or out of nowhere, so "none" is exact and the bytes are looked at singly when
 * there is one.
 */
static uint64_t block_hits(const char *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof(v));
    uint64_t quote = v ^ (EVERY_BYTE * '"'), backslash = v ^ (EVERY_BYTE * '\\');
    uint64_t hit = ((quote - EVERY_BYTE) & ~quote) | ((backslash - EVERY_BYTE) & ~backslash);
    hit |= (v - EVERY_BYTE * 0x20) & ~v;
    return (hit | v) & HIGH_BITS;
}

static const char *first_hit(const char *at, uint64_t hits)
{
    (void) hits;
    while (is_plain((unsigned char) *at))
        at++;
    return at;
}
#endif

static inline const char *plain_end(const char *at, const char *end)
{
    const char *begin = at;

    for (; end - at >= STEP; at += STEP) {
        __auto_type hits = block_hits(at);
        if (hits != 0)
            return first_hit(at, hits);
    }
    if (end - begin >= STEP && at < end) { /* the last bytes, with plain ones before them */
        __auto_type hits = block_hits(end - STEP);
        return hits != 0 ? first_hit(end - STEP, hits) : end;
    }
    while (at < end && is_plain((unsigned char) *at))
        at++;
    return at;
}

const char *bt_json_plain_end(const char *at, const char *end)
{
    return plain_end(at, end);
}

static bool is_tail(const char *at)
{
    return ((unsigned char) *at & 0xc0) == 0x80;
}

/* The second byte's range depends on the first (RFC 3629 section 4); the rest are 80..BF. */
static bool is_second(unsigned char lead, unsigned char c)
{
    switch (lead) {
    case 0xe0:
        return c >= 0xa0 && c <= 0xbf;
    case 0xed:
        return c >= 0x80 && c <= 0x9f;
    case 0xf0:
        return c >= 0x90 && c <= 0xbf;
    case 0xf4:
        return c >= 0x80 && c <= 0x8f;
    default:
        return c >= 0x80 && c <= 0xbf;
    }
}

static inline size_t utf8_len(const char *at, const char *end)
{
    unsigned char lead = (unsigned char) *at;
    size_t n = lead < 0x80   ? 1
               : lead < 0xc2 ? 0
               : lead < 0xe0 ? 2
               : lead < 0xf0 ? 3
               : lead < 0xf5 ? 4
                             : 0;

    if (n <= 1)
        return n;
    if ((size_t) (end - at) < n || !is_second(lead, (unsigned char) at[1]))
        return 0;
    if (n > 2 && !is_tail(at + 2))
        return 0;
    if (n > 3 && !is_tail(at + 3))
        return 0;
    return n;
}

size_t bt_json_utf8_len(const char *at, const char *end)
{
    return at < end ? utf8_len(at, end) : 0;
}

unsigned bt_json_escape_len(const char *at, const char *end)
{
    static const unsigned char lengths[256] = {
        ['"'] = 2, ['\\'] = 2, ['/'] = 2, ['b'] = 2, ['f'] = 2,
        ['n'] = 2, ['r'] = 2,  ['t'] = 2, ['u'] = 6,
    };
    unsigned n = end - at >= 2 ? lengths[(unsigned char) at[1]] : 0;

    if (n == 6 && (end - at < 6 || bt_str_hex(at[2]) < 0 || bt_str_hex(at[3]) < 0 ||
                   bt_str_hex(at[4]) < 0 || bt_str_hex(at[5]) < 0))
        return 0;
    return n;
}

static int scan_escape(bt_json_scan_t *s)
{
    const unsigned n = bt_json_escape_len(s->at, s->end);

    s->escaped = true;
    s->at += n > 0 ? n : 1;
    if (n == 0 && s->at < s->end && *s->at == 'u') /* on to the digit that is none */
        do
            s->at++;
        while (s->at < s->end && bt_str_hex(*s->at) >= 0);
    return n > 0 ? 0 : BT_E_JSON;
}

static int scan_foreign(bt_json_scan_t *s)
{
    while (s->at < s->end && (unsigned char) *s->at >= 0x80) {
        size_t n = utf8_len(s->at, s->end);
        if (n == 0)
            return BT_E_JSON_UTF8;
        s->at += n;
    }
    return 0;
}

#ifndef BT_JSON_PORTABLE
static const bt_json_wide_t *wide;

__attribute__((constructor)) static void look_at_processor(void)
{
    wide = bt_json_wide(0);
}

/* Most strings are short and plain: only what is not goes the wide way. True: it was right, and is
 * over. */
static bool scan_wide(bt_json_scan_t *s)
{
    const char *near = s->end - s->at > SHORT_BYTES ? s->at + SHORT_BYTES : s->end;
    const char *plain = plain_end(s->at, near), *end = NULL;

    if (plain < s->end && *plain == '"')
        end = plain + 1;
    else if (wide != NULL)
        end = wide->string_end(plain, s->end, &s->escaped);
    if (end != NULL)
        s->at = end;
    return end != NULL;
}

const char *bt_json_integers_end(const char *at, const char *end, size_t *count_p)
{
    return wide != NULL ? wide->integers_end(at, end, count_p) : at;
}

const char *bt_json_read_integers(const char *at, const char *end, uint32_t *numbers, unsigned cap,
                                  unsigned *count_p)
{
    return wide != NULL ? wide->read_integers(at, end, numbers, cap, count_p) : at;
}
#else
static bool scan_wide(bt_json_scan_t *s)
{
    (void) s;
    return false;
}

const char *bt_json_integers_end(const char *at, const char *end, size_t *count_p)
{
    (void) end;
    (void) count_p;
    return at;
}

const char *bt_json_read_integers(const char *at, const char *end, uint32_t *numbers, unsigned cap,
                                  unsigned *count_p)
{
    (void) end;
    (void) numbers;
    (void) cap;
    (void) count_p;
    return at;
}
#endif

int bt_json_scan_string(bt_json_scan_t *s)
{
    int rc = 0;

    s->at++;
    if (scan_wide(s))
        return 0;
    while (rc == 0) {
        s->at = plain_end(s->at, s->end);
        if (s->at >= s->end)
            return BT_E_JSON;
        unsigned char c = (unsigned char) *s->at;
        if (c == '"') {
            s->at++;
            return 0;
        }
        rc = c == '\\' ? scan_escape(s) : c >= 0x80 ? scan_foreign(s) : BT_E_JSON;
    }
    return rc;
}

static bool skip_digits(bt_json_scan_t *s)
{
    const char *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > from;
}

static bool skip_one(bt_json_scan_t *s, char a, char b)
{
    if (s->at >= s->end || (*s->at != a && *s->at != b))
        return false;
    s->at++;
    return true;
}

int bt_json_scan_number(bt_json_scan_t *s)
{
    skip_one(s, '-', '-');
    if (!skip_one(s, '0', '0') &&
        !skip_digits(s)) /* after a 0 another digit is left over, and refused there */
        return BT_E_JSON;
    if (skip_one(s, '.', '.') && !skip_digits(s))
        return BT_E_JSON;
    if (!skip_one(s, 'e', 'E'))
        return 0;
    skip_one(s, '+', '-');
    return skip_digits(s) ? 0 : BT_E_JSON;
}

static int scan_word(bt_json_scan_t *s, bt_str_t word)
{
    if ((size_t) (s->end - s->at) < word.n || memcmp(s->at, word.p, word.n) != 0)
        return BT_E_JSON;
    s->at += word.n;
    return 0;
}

/* A key, its colon and the space after it. */
static int scan_key(bt_json_scan_t *s)
{
    skip_space(s);
    if (s->at >= s->end || *s->at != '"')
        return BT_E_JSON;
    int rc = bt_json_scan_string(s);
    if (rc < 0)
        return rc;
    skip_space(s);
    if (!skip_one(s, ':', ':'))
        return BT_E_JSON;
    skip_space(s);
    return SCAN_VALUE_NEXT;
}

static bool in_object(const bt_json_scan_t *s)
{
    return ((s->is_object[(s->depth - 1) / 64] >> ((s->depth - 1) % 64)) & 1) != 0;
}

static int open_bracket(bt_json_scan_t *s)
{
    bool is_object = *s->at == '{';
    uint64_t bit = UINT64_C(1) << (s->depth % 64);

    if (s->depth >= BT_JSON_DEPTH_MAX)
        return BT_E_JSON_DEPTH;
    uint64_t *word = &s->is_object[s->depth / 64];
    *word = is_object ? *word | bit : *word & ~bit;
    s->at++;
    skip_space(s);
    if (skip_one(s, is_object ? '}' : ']', is_object ? '}' : ']'))
        return SCAN_DONE;
    s->depth++;
    return is_object ? scan_key(s) : SCAN_VALUE_NEXT;
}

static int begin_value(bt_json_scan_t *s)
{
    if (s->at >= s->end)
        return BT_E_JSON;
    switch (*s->at) {
    case '"':
        return bt_json_scan_string(s);
    case '{':
    case '[':
        return open_bracket(s);
    case 't':
        return scan_word(s, BT_STR("true"));
    case 'f':
        return scan_word(s, BT_STR("false"));
    case 'n':
        return scan_word(s, BT_STR("null"));
    default:
        return bt_json_scan_number(s);
    }
}

static int after_value(bt_json_scan_t *s, unsigned base)
{
    size_t count = 0;

    while (s->depth > base) {
        bool is_object = in_object(s);
        skip_space(s);
        if (s->at >= s->end)
            return BT_E_JSON;
        char c = *s->at++;
        if (c == ',') {
            if (is_object)
                return scan_key(s);
            s->at = bt_json_integers_end(s->at, s->end, &count);
            skip_space(s);
            return SCAN_VALUE_NEXT;
        }
        if (c != (is_object ? '}' : ']')) {
            s->at--;
            return BT_E_JSON;
        }
        s->depth--;
    }
    return SCAN_DONE;
}

int bt_json_scan_value(bt_json_scan_t *s)
{
    unsigned base = s->depth;
    int rc;

    do {
        rc = begin_value(s);
        if (rc == SCAN_DONE)
            rc = after_value(s, base);
    } while (rc == SCAN_VALUE_NEXT);
    return rc;
}
