#include "sse_oracle.h"

#include "base/err.h"
#include "http/sse.h"

#include <stdlib.h>
#include <string.h>

static size_t normalise(char *out, const char *p, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n' && i > 0 && p[i - 1] == '\r')
            continue;
        out[len++] = p[i] == '\r' ? '\n' : p[i];
    }
    return len;
}

/* Appends the value of a data line to text; 0 when the line is another one. */
static int add_line(char *text, size_t *len_p, const char *line, size_t n)
{
    if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':'))
        return 0;
    size_t skip = n == 4 ? 4 : n > 5 && line[5] == ' ' ? 6 : 5;
    memcpy(text + *len_p, line + skip, n - skip);
    *len_p += n - skip;
    text[(*len_p)++] = '\n';
    return 1;
}

void sse_oracle_init(sse_oracle_t *oracle, const char *p, size_t n)
{
    char *flat = malloc(n + 1);
    size_t len = normalise(flat, p, n), at = 0, line = 0;
    int has_data = 0;

    *oracle = (sse_oracle_t){.text = malloc(n + 1), .ends = malloc((n + 1) * sizeof(size_t))};
    for (size_t i = 0; i < len; i++) {
        if (flat[i] != '\n')
            continue;
        if (i > line) {
            has_data |= add_line(oracle->text, &at, flat + line, i - line);
        } else if (has_data) {
            oracle->ends[oracle->count++] =
                --at; /* the last line feed is not part of the payload */
            has_data = 0;
        }
        line = i + 1;
    }
    free(flat);
}

void sse_oracle_fini(sse_oracle_t *oracle)
{
    free(oracle->text);
    free(oracle->ends);
}

static void check_event(const sse_oracle_t *oracle, size_t index, bt_str_t event, char *room,
                        size_t size)
{
    BT_BUG_ON(index >= oracle->count);
    size_t start = index > 0 ? oracle->ends[index - 1] : 0;
    bt_str_t want = {oracle->text + start, oracle->ends[index] - start};
    bt_str_t got = bt_sse_data(event, room, size);
    BT_BUG_ON(got.p == NULL);
    BT_BUG_ON(!bt_str_eq(got, want));
}

void sse_oracle_check(const sse_oracle_t *oracle, const char *p, size_t n,
                      size_t (*cut)(size_t at, void *arg), void *arg)
{
    bt_sse_t next, count;
    size_t events = 0, counted = 0, size;
    char *room = malloc(n + 1);
    bt_str_t event;

    bt_sse_init(&next, n);
    bt_sse_init(&count, 0);
    for (size_t start = 0; start < n; start += size) {
        size = cut(start, arg);
        size = size < n - start ? size : n - start;
        bt_str_t piece = {malloc(size), size}; /* so that reading beyond it is seen */
        memcpy((char *) (uintptr_t) piece.p, p + start, size);
        size_t at = 0;
        int rc;
        while ((rc = bt_sse_next(&next, piece, &at, &event)) == 1)
            check_event(oracle, events++, event, room, n + 1);
        BT_BUG_ON(rc != 0);
        BT_BUG_ON(at != size);
        counted += bt_sse_count(&count, piece.p, size);
        BT_BUG_ON(counted != events);
        free((char *) (uintptr_t) piece.p);
    }
    BT_BUG_ON(events != oracle->count);
    BT_BUG_ON(next.events != events || count.events != events);
    bt_sse_fini(&next);
    bt_sse_fini(&count);
    free(room);
}
