/* sse.c - finds the ends of events in a text/event-stream.
 *
 * One walker serves counting and splitting, so that they cannot disagree. It keeps, from read to read, how much of the
 * word "data" the open line has matched:
 *
 *   START -> 'd' -> 'a' -> 't' -> 'a' -> ':' or end of line: the block has data, it is an event
 *      \-------- anything else -------> REST -> end of line -> START
 *   end of line in START = blank line = end of the block
 *
 * CR ends a line at once (waiting for the LF that may follow would hold back an event until the next one comes); the
 * LF of a CRLF that comes in the next read is then skipped.
 */
#include "http/sse.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    LINE_START = 0, /* 1..3: matched "d", "da", "dat" */
    LINE_DATA = 4,  /* matched "data" */
    LINE_REST = 5,
    LINE_MASK = 0x0f,
    AFTER_CR = 0x40, /* the last byte was a CR that ended a line */
    LENT = 0x80      /* the carry was handed out as an event: forget it on the next call */
};

enum block { BLOCK_OPEN, BLOCK_SILENT, BLOCK_EVENT };

/* A line is looked at in windows: two memchr over all of a piece would cost its square when lines end in CR only. */
#define WINDOW_BYTES ((size_t) 256)
#define PLAIN_MAX ((size_t) 1024)

void bt_sse_init(bt_sse_t *sse, size_t limit_bytes)
{
    *sse = (bt_sse_t){.limit_bytes = limit_bytes};
}

void bt_sse_fini(bt_sse_t *sse)
{
    if (sse->carry != NULL)
        bt_mem_resize(BT_MEM_TEXTS, sse->carry, sse->carry_cap, 0);
    *sse = (bt_sse_t){.limit_bytes = sse->limit_bytes};
}

static unsigned line_of(const bt_sse_t *sse)
{
    return sse->state & LINE_MASK;
}

static void set_line(bt_sse_t *sse, unsigned line)
{
    sse->state = (unsigned char) ((sse->state & (AFTER_CR | LENT)) | line);
}

/* First CR or LF, or n. */
static size_t find_line_end(const char *p, size_t n)
{
    for (size_t at = 0; at < n; at += WINDOW_BYTES) {
        size_t window = n - at < WINDOW_BYTES ? n - at : WINDOW_BYTES;
        const char *lf = memchr(p + at, '\n', window);
        const char *cr = memchr(p + at, '\r', lf != NULL ? (size_t) (lf - (p + at)) : window);
        if (cr != NULL || lf != NULL)
            return (size_t) ((cr != NULL ? cr : lf) - p);
    }
    return n;
}

/* Bytes of the line's start that say whether it is a data line; returns how many were used. */
static size_t match_field(bt_sse_t *sse, const char *p, size_t n)
{
    unsigned line = line_of(sse);
    size_t used = 0;

    while (line < LINE_DATA && used < n && p[used] == "data"[line]) {
        line++;
        used++;
    }
    if (used < n && p[used] != '\n' && p[used] != '\r') {
        if (line == LINE_DATA && p[used] == ':')
            sse->has_data = true;
        line = LINE_REST;
    }
    set_line(sse, line);
    return used;
}

/* The line has ended. */
static enum block end_line(bt_sse_t *sse)
{
    unsigned line = line_of(sse);

    set_line(sse, LINE_START);
    if (line == LINE_DATA) /* "data" alone is a data line without a value */
        sse->has_data = true;
    if (line != LINE_START)
        return BLOCK_OPEN;
    if (!sse->has_data)
        return BLOCK_SILENT;
    sse->has_data = false;
    sse->events++;
    return BLOCK_EVENT;
}

/* The LF of a CRLF cut by a read belongs to the line before it. */
static size_t skip_lf(bt_sse_t *sse, const char *p, size_t n)
{
    if ((sse->state & AFTER_CR) == 0 || n == 0)
        return 0;
    sse->state &= (unsigned char) ~AFTER_CR;
    return *p == '\n';
}

/* Goes on until a block ends or the bytes are used up; *used_p counts what it took. */
static enum block walk(bt_sse_t *sse, const char *p, size_t n, size_t *used_p)
{
    size_t at = skip_lf(sse, p, n);
    enum block block = BLOCK_OPEN;

    while (block == BLOCK_OPEN && at < n) {
        if (line_of(sse) != LINE_REST)
            at += match_field(sse, p + at, n - at);
        if (line_of(sse) == LINE_REST)
            at += find_line_end(p + at, n - at);
        if (at == n)
            break;
        bool is_cr = p[at++] == '\r';
        block = end_line(sse);
        if (is_cr) {
            sse->state |= AFTER_CR;
            at += skip_lf(sse, p + at, n - at);
        }
    }
    *used_p = at;
    return block;
}

/* Of an event as engines mostly send it, one data line that ends in LF: its bytes, if it stands there whole, else 0. Walking it takes
 * three times as long. */
static size_t plain_event(const bt_sse_t *sse, const char *p, size_t n)
{
    const char *lf;

    if (sse->state != LINE_START || sse->has_data || n < 7 || memcmp(p, "data:", 5) != 0)
        return 0;
    lf = memchr(p, '\n', n - 1 < PLAIN_MAX ? n - 1 : PLAIN_MAX);
    if (lf == NULL || lf[1] != '\n' || memchr(p, '\r', (size_t) (lf - p)) != NULL)
        return 0;
    return (size_t) (lf + 2 - p);
}

unsigned bt_sse_count(bt_sse_t *sse, const char *p, size_t n)
{
    unsigned count = 0;
    size_t used;

    sse->carry_len = 0;
    for (size_t at = 0; at < n; at += used) {
        used = plain_event(sse, p + at, n - at);
        sse->events += used != 0;
        count += used != 0 || walk(sse, p + at, n - at, &used) == BLOCK_EVENT;
    }
    return count;
}

static int carry_append(bt_sse_t *sse, const char *p, size_t n)
{
    if (n > sse->limit_bytes || sse->carry_len > sse->limit_bytes - n)
        return BT_E_LIMIT;
    size_t need = sse->carry_len + n;
    if (need > sse->carry_cap) {
        size_t cap = sse->carry_cap > 0 ? sse->carry_cap : 512;
        while (cap < need)
            cap *= 2;
        char *grown = bt_mem_resize(BT_MEM_TEXTS, sse->carry, sse->carry_cap, cap);
        if (grown == NULL)
            return BT_E_NOMEM;
        sse->carry = grown;
        sse->carry_cap = cap;
    }
    if (n > 0)
        memcpy(sse->carry + sse->carry_len, p, n);
    sse->carry_len = need;
    return 0;
}

/* The event's last bytes are at p: it is either these or what was carried plus these. */
static int give_event(bt_sse_t *sse, const char *p, size_t n, bt_str_t *event_p)
{
    if (sse->carry_len == 0) {
        *event_p = (bt_str_t){p, n};
        return 1;
    }
    int rc = carry_append(sse, p, n);
    if (rc < 0) {
        sse->carry_len = 0;
        return rc;
    }
    sse->state |= LENT;
    *event_p = (bt_str_t){sse->carry, sse->carry_len};
    return 1;
}

static int keep_rest(bt_sse_t *sse, const char *p, size_t n)
{
    int rc = carry_append(sse, p, n);

    if (rc < 0)
        sse->carry_len = 0;
    return rc;
}

int bt_sse_next(bt_sse_t *sse, bt_str_t piece, size_t *at_p, bt_str_t *event_p)
{
    if ((sse->state & LENT) != 0) {
        sse->state &= (unsigned char) ~LENT;
        sse->carry_len = 0;
    }
    /* A block that has not begun does not begin with the second half of the last one's CRLF. */
    if (sse->carry_len == 0 && *at_p < piece.n)
        *at_p += skip_lf(sse, piece.p + *at_p, piece.n - *at_p);
    while (*at_p < piece.n) {
        const char *start = piece.p + *at_p;
        size_t used;
        enum block block = walk(sse, start, piece.n - *at_p, &used);
        *at_p += used;
        if (block == BLOCK_EVENT)
            return give_event(sse, start, used, event_p);
        if (block == BLOCK_OPEN)
            return keep_rest(sse, start, used);
        sse->carry_len = 0; /* comments and the like end here and are nobody's */
    }
    return 0;
}

/* One line off the front of *rest_p, without its end. */
static bt_str_t take_line(bt_str_t *rest_p)
{
    size_t n = find_line_end(rest_p->p, rest_p->n);
    bt_str_t line = {rest_p->p, n};

    if (n + 1 < rest_p->n && line.p[n] == '\r' && line.p[n + 1] == '\n')
        n++;
    if (n < rest_p->n)
        n++;
    rest_p->p += n;
    rest_p->n -= n;
    return line;
}

static bool is_data_line(bt_str_t line, bt_str_t *value_p)
{
    if (!bt_str_starts(line, BT_STR("data")) || (line.n > 4 && line.p[4] != ':'))
        return false;
    size_t skip = line.n > 4 ? 5 : 4;
    if (line.n > skip && line.p[skip] == ' ')
        skip++;
    *value_p = (bt_str_t){line.p + skip, line.n - skip};
    return true;
}

static size_t append_cut(char *out, size_t size, size_t at, const char *p, size_t n)
{
    if (n > size - at)
        n = size - at;
    if (n > 0)
        memcpy(out + at, p, n);
    return at + n;
}

bt_str_t bt_sse_data(bt_str_t event, char *out, size_t size)
{
    bt_str_t first = BT_STR_NULL, value;
    unsigned lines = 0;
    size_t len = 0;

    while (event.n > 0) {
        bt_str_t line = take_line(&event);
        if (!is_data_line(line, &value))
            continue;
        if (lines++ == 0) {
            first = value;
            continue;
        }
        if (lines == 2)
            len = append_cut(out, size, 0, first.p, first.n);
        len = append_cut(out, size, len, "\n", 1);
        len = append_cut(out, size, len, value.p, value.n);
    }
    return lines < 2 ? first : (bt_str_t){out, len};
}
