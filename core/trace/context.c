#include "trace/context.h"

#include <endian.h>

#define KEY_MAX 256
#define TENANT_MAX 241
#define SYSTEM_MAX 14
#define VALUE_MAX 256

/* ---- traceparent ---- */

/* -1: no lower-case hexadecimal digit. */
static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* n digits, at most 16. */
static bool read_hex(const char *p, size_t n, uint64_t *value_p)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        const int d = digit(p[i]);
        if (d < 0)
            return false;
        value = value << 4 | (uint64_t) d;
    }
    *value_p = value;
    return true;
}

/* Later versions may go on behind another dash. */
static bool is_long_enough(bt_str_t s, uint64_t version)
{
    if (version == 0)
        return s.n == BT_TRACE_PARENT_CHARS;
    return s.n == BT_TRACE_PARENT_CHARS ||
           (s.n > BT_TRACE_PARENT_CHARS && s.p[BT_TRACE_PARENT_CHARS] == '-');
}

bool bt_trace_parse(bt_str_t s, bt_trace_context_t *context_p)
{
    uint64_t version, high, low, parent, flags;

    if (s.n < BT_TRACE_PARENT_CHARS || !read_hex(s.p, 2, &version) || version == 0xff ||
        !is_long_enough(s, version) || s.p[2] != '-' || s.p[35] != '-' || s.p[52] != '-')
        return false;
    if (!read_hex(s.p + 3, 16, &high) || !read_hex(s.p + 19, 16, &low) ||
        !read_hex(s.p + 36, 16, &parent) || !read_hex(s.p + 53, 2, &flags))
        return false;
    if ((high | low) == 0 || parent == 0)
        return false;
    memcpy(context_p->trace, s.p + 3, sizeof(context_p->trace));
    context_p->parent = parent;
    context_p->is_sampled = (flags & 1) != 0;
    return true;
}

/* Eight digits at once: a nibble a byte, then '0' added, and what lies between '9' and 'a' where it is above 9. */
static void print_half(char out[8], uint32_t half)
{
    const uint64_t every = UINT64_C(0x0101010101010101);
    uint64_t x = half;

    x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
    x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
    x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    x += every * '0' + ((x + 6 * every) >> 4 & every) * ('a' - '0' - 10);
    x = htobe64(x);
    memcpy(out, &x, sizeof(x));
}

void bt_trace_print_span(char out[BT_TRACE_SPAN_CHARS], uint64_t span)
{
    print_half(out, (uint32_t) (span >> 32));
    print_half(out + 8, (uint32_t) span);
}

void bt_trace_print(char out[BT_TRACE_PARENT_CHARS], const char trace[BT_TRACE_ID_CHARS],
                    uint64_t span, bool is_sampled)
{
    out[0] = out[1] = '0';
    out[2] = '-';
    memcpy(out + 3, trace, BT_TRACE_ID_CHARS);
    out[35] = '-';
    bt_trace_print_span(out + 36, span);
    out[52] = '-';
    out[53] = '0';
    out[54] = is_sampled ? '1' : '0';
}

/* ---- tracestate ---- */

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* s begins as it may, and is of letters, digits and _-* and / alone. */
static bool is_name(bt_str_t s, size_t max, bool may_begin_with_digit)
{
    if (s.n == 0 || s.n > max || !(is_lower(s.p[0]) || (may_begin_with_digit && is_digit(s.p[0]))))
        return false;
    for (size_t i = 1; i < s.n; i++)
        if (!is_lower(s.p[i]) && !is_digit(s.p[i]) && strchr("_-*/", s.p[i]) == NULL)
            return false;
    return true;
}

static bool is_key(bt_str_t s)
{
    const char *at = memchr(s.p, '@', s.n);

    if (at == NULL)
        return is_name(s, KEY_MAX, false);
    const size_t n = (size_t) (at - s.p);
    return is_name((bt_str_t){s.p, n}, TENANT_MAX, true) &&
           is_name((bt_str_t){at + 1, s.n - n - 1}, SYSTEM_MAX, false);
}

static bool is_value(bt_str_t s)
{
    if (s.n == 0 || s.n > VALUE_MAX || s.p[s.n - 1] == ' ')
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < 0x20 || s.p[i] > 0x7e || s.p[i] == '=')
            return false;
    return true;
}

/* Blanks around a member do not count; inside of a value they do. */
static bt_str_t trim(bt_str_t s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

static bool is_member(bt_str_t s)
{
    const char *eq = memchr(s.p, '=', s.n);

    if (eq == NULL)
        return false;
    const size_t n = (size_t) (eq - s.p);
    return is_key((bt_str_t){s.p, n}) && is_value((bt_str_t){eq + 1, s.n - n - 1});
}

bool bt_trace_state_ok(bt_str_t s, unsigned *members_p)
{
    while (s.n > 0) {
        const char *comma = memchr(s.p, ',', s.n);
        const size_t n = comma != NULL ? (size_t) (comma - s.p) : s.n;
        const bt_str_t member = trim((bt_str_t){s.p, n});

        if (member.n > 0 && (!is_member(member) || ++*members_p > BT_TRACE_STATE_MEMBERS))
            return false;
        s.p += n + (comma != NULL);
        s.n -= n + (comma != NULL);
    }
    return true;
}
