/* Nothing is repaired: a broken escape is the caller's 400. */
#include "admin/call/query.h"

#include "base/err.h"

int bt_query_decode(bt_text_t *out, bt_str_t raw, bool plus)
{
    for (size_t i = 0; i < raw.n; i++) {
        char c = raw.p[i];
        if (c == '%') {
            const int byte = bt_str_escaped_byte(raw, i);
            if (byte < 0)
                return BT_E_INVAL;
            c = (char) byte;
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0')
            return BT_E_INVAL;
        bt_text_put(out, (bt_str_t){&c, 1});
    }
    return out->failed ? BT_E_NOMEM : 0;
}

/* Up to the separator, which is dropped; all of it when there is none. */
static bt_str_t cut(bt_str_t *rest, char separator)
{
    const char *at = rest->n > 0 ? memchr(rest->p, separator, rest->n) : NULL;
    bt_str_t head = *rest;

    if (at == NULL) {
        *rest = (bt_str_t){rest->p + rest->n, 0};
        return head;
    }
    head.n = (size_t) (at - rest->p);
    *rest = (bt_str_t){at + 1, rest->n - head.n - 1};
    return head;
}

bool bt_query_next(bt_str_t *rest_p, bt_str_t *name_p, bt_str_t *value_p)
{
    while (rest_p->n > 0) {
        bt_str_t pair = cut(rest_p, '&');
        if (pair.n == 0)
            continue;
        *name_p = cut(&pair, '=');
        *value_p = pair;
        return true;
    }
    return false;
}
