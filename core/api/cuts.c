#include "api/cuts.h"

#include "base/err.h"

#include <inttypes.h>
#include <stdio.h>

void bt_cuts_replace(bt_cuts_t *cuts, bt_str_t value, bt_str_t with)
{
    unsigned i = cuts->count;

    if (value.p == NULL || with.p == NULL)
        return;
    BT_BUG_ON(cuts->count == BT_CUTS_MAX);
    for (; i > 0 && cuts->items[i - 1].value.p > value.p; i--)
        cuts->items[i] = cuts->items[i - 1];
    cuts->items[i].value = value;
    cuts->items[i].with = with;
    cuts->count++;
}

void bt_cuts_number(bt_cuts_t *cuts, bt_str_t value, uint64_t number)
{
    char *digits = cuts->numbers[cuts->number_count];
    int n;

    if (value.p == NULL)
        return;
    BT_BUG_ON(cuts->number_count == BT_CUTS_NUMBERS_MAX);
    n = snprintf(digits, sizeof(cuts->numbers[0]), "%" PRIu64, number);
    cuts->number_count++;
    bt_cuts_replace(cuts, value, (bt_str_t){digits, (size_t) n});
}

int bt_cuts_append(bt_buf_t **buf_p, bt_str_t s)
{
    if (*buf_p == NULL && (*buf_p = bt_buf_new(s.n)) == NULL)
        return BT_E_NOMEM;
    if ((*buf_p)->cap - (*buf_p)->len < s.n && bt_buf_grow(buf_p, 2 * ((*buf_p)->len + s.n)) < 0)
        return BT_E_NOMEM;
    if (s.n != 0)
        memcpy((*buf_p)->data + (*buf_p)->len, s.p, s.n);
    (*buf_p)->len += s.n;
    return 0;
}

int bt_cuts_write(const bt_cuts_t *cuts, bt_str_t text, bt_buf_t **buf_p)
{
    const char *at = text.p;
    int rc = 0;

    for (unsigned i = 0; i < cuts->count && rc == 0; i++) {
        const bt_str_t value = cuts->items[i].value;
        rc = bt_cuts_append(buf_p, (bt_str_t){at, (size_t) (value.p - at)});
        if (rc == 0)
            rc = bt_cuts_append(buf_p, cuts->items[i].with);
        at = value.p + value.n;
    }
    return rc < 0 ? rc : bt_cuts_append(buf_p, (bt_str_t){at, text.n - (size_t) (at - text.p)});
}
