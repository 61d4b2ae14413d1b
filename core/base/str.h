/* str.h - borrowed byte slices.
 *
 * Owner: the bytes belong to somebody else (a buffer, an arena, a literal); a slice never frees.
 * Life:  as long as the bytes it points to.
 * Flow:  values, passed by copy.
 * Cost:  O(n) compares; no allocation.
 */
#ifndef BT_BASE_STR_H
#define BT_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

typedef struct bt_str {
    const char *p;
    size_t n;
} bt_str_t;

#define BT_STR(lit) ((bt_str_t){("" lit), sizeof(lit) - 1})
#define BT_STR_NULL ((bt_str_t){NULL, 0})
/* For printf("%.*s", BT_STR_ARG(s)). */
#define BT_STR_ARG(s) (int) (s).n, ((s).p != NULL ? (s).p : "")

static inline bt_str_t bt_str(const char *z)
{
    return (bt_str_t){z, z != NULL ? strlen(z) : 0};
}

/* Most of one length differ in their first byte already: no call for those. */
static inline bool bt_str_eq(bt_str_t a, bt_str_t b)
{
    return a.n == b.n && (a.n == 0 || (a.p[0] == b.p[0] && memcmp(a.p, b.p, a.n) == 0));
}

/* ASCII case-insensitive. Most names of one length differ in their first byte by more than the bit of the case. */
static inline bool bt_str_ieq(bt_str_t a, bt_str_t b)
{
    return a.n == b.n &&
           (a.n == 0 || (((a.p[0] ^ b.p[0]) & ~0x20) == 0 && strncasecmp(a.p, b.p, a.n) == 0));
}

static inline bool bt_str_starts(bt_str_t s, bt_str_t prefix)
{
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

static inline bool bt_str_ends(bt_str_t s, bt_str_t suffix)
{
    return s.n >= suffix.n &&
           (suffix.n == 0 || (s.p[s.n - 1] == suffix.p[suffix.n - 1] &&
                              memcmp(s.p + s.n - suffix.n, suffix.p, suffix.n) == 0));
}

/* FNV-1a, 64 bit: for tables whose keys nobody can choose to collide at scale (bounded tables). */
static inline uint64_t bt_str_hash(bt_str_t s)
{
    uint64_t h = 14695981039346656037ULL;

    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char) s.p[i]) * 1099511628211ULL;
    return h;
}

/* JSON's white space, and what stands around words. */
static inline bool bt_str_is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* How many of its first bytes, in eights, surely hold no byte below 0x20; the rest is to be looked at. */
static inline size_t bt_str_without_controls(bt_str_t s)
{
    const uint64_t every = UINT64_C(0x0101010101010101);
    uint64_t eight;
    size_t n = 0;

    for (; s.n - n >= sizeof(eight); n += sizeof(eight)) {
        memcpy(&eight, s.p + n, sizeof(eight));
        if (((eight - every * 0x20) & ~eight & every * 0x80) != 0)
            break;
    }
    return n;
}

/* What a hex digit stands for; -1: it is none. */
static inline int bt_str_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* 16 hex digits in lower case at the beginning of *text, which then begins behind them. */
bool bt_str_take_hex64(bt_str_t *text, uint64_t *value_p);
/* The byte that the escape of a URL ("%2F") at s.p[at] stands for; -1: there is none. */
int bt_str_escaped_byte(bt_str_t s, size_t at);
bt_str_t bt_str_trim(bt_str_t s);
/* Its first max bytes, or less: cut before a UTF-8 character that does not fit as a whole. */
bt_str_t bt_str_cut(bt_str_t s, size_t max);
/* For keys and tokens: the time taken depends on the lengths only. */
bool bt_str_is_secret(bt_str_t secret, bt_str_t given);
/* For terminals: control characters (those of UTF-8's second page too) become '?'. */
void bt_str_tame(char *p, size_t n);
/* First occurrence of needle in s, or -1. */
ptrdiff_t bt_str_find(bt_str_t s, bt_str_t needle);
/* Newlines in s. */
size_t bt_str_lines(bt_str_t s);
/* Its whole lines that fit into max bytes; one line at least. s ends in a newline. */
bt_str_t bt_str_cut_lines(bt_str_t s, size_t max);
/* Whole slice as a decimal number; BT_E_INVAL on anything else, BT_E_LIMIT on overflow. */
int bt_str_u64(bt_str_t s, uint64_t *value_p);
/* Copies z into out, cut to fit, always NUL-terminated (size > 0). */
static inline void bt_str_copy(char *out, size_t size, const char *z)
{
    size_t n = strnlen(z, size - 1);

    memcpy(out, z, n);
    out[n] = '\0';
}
/* Copies s to *at, which moves behind the copy: many slices into one block. */
static inline bt_str_t bt_str_put(char **at, bt_str_t s)
{
    const bt_str_t copy = {*at, s.n};

    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    *at += s.n;
    return copy;
}
/* Numbers as text without printf, which costs a few hundred instructions each. */
#define BT_STR_U64_MAX 20 /* digits */
/* At least `least` decimal digits, so that they end before `end`; returns where they begin. */
static inline char *bt_str_digits(char *end, uint64_t value, unsigned least)
{
    const char *const short_enough = end - least;

    for (; value != 0 || end > short_enough; value /= 10)
        *--end = (char) ('0' + value % 10);
    return end;
}
/* Decimal digits at *at, which moves behind them. */
void bt_str_put_u64(char **at, uint64_t value);
/* The same with 16 hex digits in lower case. */
void bt_str_put_hex64(char **at, uint64_t value);
/* malloc'ed NUL-terminated copy; the caller frees. NULL when out of memory. */
char *bt_str_dup(bt_str_t s);
/* Edit distance (for "did you mean"), case-insensitive, capped at 64 characters a side. */
unsigned bt_str_distance(bt_str_t a, bt_str_t b);

#endif
