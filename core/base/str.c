/* Slices: the few operations that are more than a compare. */
#include "base/str.h"

#include "base/err.h"

#include <ctype.h>
#include <endian.h>
#include <stdlib.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define DISTANCE_CHARS 64

int bt_str_escaped_byte(bt_str_t s, size_t at)
{
    const int high = s.n - at > 2 && s.p[at] == '%' ? bt_str_hex(s.p[at + 1]) : -1;
    const int low = high >= 0 ? bt_str_hex(s.p[at + 2]) : -1;

    return low >= 0 ? high * 16 + low : -1;
}

bool bt_str_is_secret(bt_str_t secret, bt_str_t given)
{
    volatile unsigned difference = secret.n != given.n;

    for (size_t i = 0; i < given.n; i++)
        difference |= (unsigned char) (given.p[i] ^ (secret.n > 0 ? secret.p[i % secret.n] : 0));
    return difference == 0;
}

bool bt_str_take_hex64(bt_str_t *text, uint64_t *value_p)
{
    uint64_t value = 0;

    if (text->n < 16)
        return false;
    for (unsigned i = 0; i < 16; i++) {
        const int digit = bt_str_hex(text->p[i]);
        if (digit < 0 || (text->p[i] >= 'A' && text->p[i] <= 'F'))
            return false;
        value = value << 4 | (uint64_t) digit;
    }
    *value_p = value;
    *text = (bt_str_t){text->p + 16, text->n - 16};
    return true;
}

bt_str_t bt_str_trim(bt_str_t s)
{
    while (s.n > 0 && bt_str_is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && bt_str_is_blank(s.p[s.n - 1]))
        s.n--;
    return s;
}

bt_str_t bt_str_cut(bt_str_t s, size_t max)
{
    size_t back = 0;

    if (s.n <= max)
        return s;
    while (back < 4 && back < max && ((unsigned char) s.p[max - back] & 0xc0) == 0x80)
        back++;
    s.n = back < 4 ? max - back : max; /* no character has so many bytes: it is no UTF-8 */
    return s;
}

void bt_str_tame(char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char) p[i];

        if (c < 0x20 || c == 0x7f)
            p[i] = '?';
        else if (c == 0xc2 && i + 1 < n && ((unsigned char) p[i + 1] & 0xe0) == 0x80)
            p[i] = p[i + 1] = '?'; /* U+0080 to U+009F: U+009B begins a sequence, as ESC [ does */
    }
}

#ifdef __SSE2__
#define STEP 16
#define NEEDLE_MAX 64 /* a longer one could make it look at each byte too often */

/* At which of sixteen places both bytes stand, the second one `apart` behind the first. */
static __m128i marks_of(const char *p, size_t apart, __m128i first, __m128i last)
{
    const __m128i a = _mm_loadu_si128((const __m128i *) (const void *) p);
    const __m128i b = _mm_loadu_si128((const __m128i *) (const void *) (p + apart));

    return _mm_and_si128(_mm_cmpeq_epi8(a, first), _mm_cmpeq_epi8(b, last));
}

static unsigned places_of(const char *p, size_t apart, __m128i first, __m128i last)
{
    return (unsigned) _mm_movemask_epi8(marks_of(p, apart, first, last));
}

/* The first of them from `at` on; `places`: there is none. */
static size_t next_place(const char *p, size_t at, size_t places, size_t apart, const char ends[2])
{
    const __m128i first = _mm_set1_epi8(ends[0]), last = _mm_set1_epi8(ends[1]);
    const char *here = p + at, *end = p + places;
    unsigned hits;

    for (; end - here >= 2 * STEP; here += 2 * STEP) /* most have none */
        if (_mm_movemask_epi8(_mm_or_si128(marks_of(here, apart, first, last),
                                           marks_of(here + STEP, apart, first, last))) != 0)
            break;
    for (; end - here >= STEP; here += STEP)
        if ((hits = places_of(here, apart, first, last)) != 0)
            return (size_t) (here - p) + (size_t) __builtin_ctz(hits);
    if (here == end)
        return places;
    hits = places_of(end - STEP, apart, first, last) >>
           (STEP - (end - here)); /* the others have been */
    return hits != 0 ? (size_t) (here - p) + (size_t) __builtin_ctz(hits) : places;
}

/* By the needle's first and last byte, sixteen places at once. memmem makes a table of the needle before it looks at
 * anything, which is most of its work in the few hundred bytes of an answer. */
static const char *find(bt_str_t s, bt_str_t needle)
{
    const char ends[2] = {needle.p[0], needle.p[needle.n - 1]};
    const size_t places = s.n - needle.n + 1;

    if (places < STEP || needle.n > NEEDLE_MAX)
        return memmem(s.p, s.n, needle.p, needle.n);
    for (size_t at = 0; (at = next_place(s.p, at, places, needle.n - 1, ends)) < places; at++)
        if (memcmp(s.p + at, needle.p, needle.n) == 0)
            return s.p + at;
    return NULL;
}
#else
static const char *find(bt_str_t s, bt_str_t needle)
{
    return memmem(s.p, s.n, needle.p, needle.n);
}
#endif

ptrdiff_t bt_str_find(bt_str_t s, bt_str_t needle)
{
    if (needle.n == 0)
        return 0;
    if (s.n < needle.n)
        return -1;
    const char *hit = find(s, needle);
    return hit != NULL ? hit - s.p : -1;
}

size_t bt_str_lines(bt_str_t s)
{
    const char *p = s.p, *end = s.p + s.n;
    size_t lines = 0;

    while (p < end && (p = memchr(p, '\n', (size_t) (end - p))) != NULL) {
        p++;
        lines++;
    }
    return lines;
}

bt_str_t bt_str_cut_lines(bt_str_t s, size_t max)
{
    const char *end;

    if (s.n <= max)
        return s;
    end = memrchr(s.p, '\n', max);
    if (end == NULL)
        end = memchr(s.p, '\n', s.n);
    return (bt_str_t){s.p, (size_t) (end - s.p) + 1};
}

int bt_str_u64(bt_str_t s, uint64_t *value_p)
{
    uint64_t value = 0;
    bool is_over = false;

    if (s.n == 0)
        return BT_E_INVAL;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return BT_E_INVAL;
        uint64_t digit = (uint64_t) (s.p[i] - '0');
        is_over |= __builtin_mul_overflow(value, (uint64_t) 10, &value);
        is_over |= __builtin_add_overflow(value, digit, &value);
    }
    if (is_over)
        return BT_E_LIMIT;
    *value_p = value;
    return 0;
}

void bt_str_put_u64(char **at, uint64_t value)
{
    char z[BT_STR_U64_MAX], *end = z + sizeof(z), *from = bt_str_digits(end, value, 1);

    bt_str_put(at, (bt_str_t){from, (size_t) (end - from)});
}

/* Eight digits at once: each half byte gets a byte of its own, and those from ten on go up to the letters. */
static uint64_t hex_digits(uint64_t value)
{
    const uint64_t every = UINT64_C(0x0101010101010101);

    value = (value | value << 16) & UINT64_C(0x0000ffff0000ffff);
    value = (value | value << 8) & UINT64_C(0x00ff00ff00ff00ff);
    value = (value | value << 4) & every * 0x0f;
    return htobe64(value + every * '0' + ((value + every * 6) >> 4 & every) * ('a' - '0' - 10));
}

void bt_str_put_hex64(char **at, uint64_t value)
{
    const uint64_t digits[2] = {hex_digits(value >> 32), hex_digits(value & UINT32_MAX)};

    memcpy(*at, digits, sizeof(digits));
    *at += sizeof(digits);
}

char *bt_str_dup(bt_str_t s)
{
    char *copy = malloc(s.n + 1);
    if (copy == NULL)
        return NULL;
    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    copy[s.n] = '\0';
    return copy;
}

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein with one row; row[j] is the distance of the prefixes a[0..i) and b[0..j). */
unsigned bt_str_distance(bt_str_t a, bt_str_t b)
{
    unsigned row[DISTANCE_CHARS + 1];
    unsigned an = a.n < DISTANCE_CHARS ? (unsigned) a.n : DISTANCE_CHARS;
    unsigned bn = b.n < DISTANCE_CHARS ? (unsigned) b.n : DISTANCE_CHARS;

    for (unsigned j = 0; j <= bn; j++)
        row[j] = j;
    for (unsigned i = 1; i <= an; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= bn; j++) {
            bool is_same =
                tolower((unsigned char) a.p[i - 1]) == tolower((unsigned char) b.p[j - 1]);
            unsigned next = min3(row[j] + 1, row[j - 1] + 1, diagonal + (is_same ? 0U : 1U));
            diagonal = row[j];
            row[j] = next;
        }
    }
    return row[bn];
}
