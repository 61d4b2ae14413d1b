/* mask.c - one pattern, matched a byte at a time: an address goes as it is recognised, because what comes next may not be here
 * yet. A match that breaks begins anew at its last byte: no client writes such ids (headers.c), so none stands inside another. */
#include "api/mask.h"

#define WORD BT_STR("prefill_addr_")
#define BETWEEN BT_STR("___decode_addr_")

void bt_mask_init(bt_mask_t *m, bt_arena_t *arena, bt_str_t prefill, bt_str_t decode)
{
    const bt_str_t parts[] = {WORD, prefill, BETWEEN, decode};
    char *text = bt_arena_alloc(arena, WORD.n + prefill.n + BETWEEN.n + decode.n);
    size_t n = 0;

    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); n += parts[i].n, i++)
        memcpy(text + n, parts[i].p, parts[i].n);
    *m = (bt_mask_t){{text, n}, WORD.n + prefill.n, n - decode.n, 0};
}

static bool is_address(const bt_mask_t *m)
{
    return m->matched >= m->decode_address || (m->matched >= WORD.n && m->matched < m->prefill_end);
}

static void match(bt_mask_t *m, char *c)
{
    if (*c != m->pattern.p[m->matched]) {
        m->matched = *c == WORD.p[0];
        return;
    }
    if (is_address(m))
        *c = 'x';
    if (++m->matched == m->pattern.n)
        m->matched = 0;
}

void bt_mask_feed(bt_mask_t *m, char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (m->matched == 0) {
            const char *start = memchr(p + i, WORD.p[0], n - i);
            if (start == NULL)
                return;
            i = (size_t) (start - p);
        }
        match(m, p + i);
    }
}
