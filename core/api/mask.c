/* mask.c - a byte at a time: an address goes as it comes, because what comes next may not be here yet.
 *
 *   NONE --"prefill_addr_", "decode_addr_"--> HOST --":"--> COLON --digit--> PORT --"_"--> NONE
 *                                              ^ \--"_"--> UNDERSCORE --"_"--> NONE
 *                                              '-- any other byte of an address
 *
 * A name may have an underscore in it, and so one ends an address only after its port, or where a second one follows. */
#include "api/mask.h"

static bool has_passed(const bt_mask_t *m, bt_str_t word)
{
    for (size_t i = 0; i < word.n; i++)
        if (m->last[(m->count - word.n + i) % sizeof(m->last)] != word.p[i])
            return false;
    return true;
}

/* Of a name, an IPv4 or IPv6 address with a scope, or MoRIIO's list of fields. */
static bool is_of_address(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && strchr(".:,-[]%", c) != NULL);
}

static enum bt_mask_at part_after(enum bt_mask_at at, char c)
{
    if (c == ':')
        return BT_MASK_COLON;
    if (c >= '0' && c <= '9' && (at == BT_MASK_COLON || at == BT_MASK_PORT))
        return BT_MASK_PORT;
    return BT_MASK_HOST;
}

static void pass_underscore(bt_mask_t *m)
{
    if (has_passed(m, BT_STR("prefill_addr_")) || has_passed(m, BT_STR("decode_addr_")))
        m->at = BT_MASK_HOST;
    else if (m->at == BT_MASK_HOST || m->at == BT_MASK_COLON)
        m->at = BT_MASK_UNDERSCORE;
    else
        m->at = BT_MASK_NONE;
}

static void pass(bt_mask_t *m, char *c)
{
    m->last[m->count++ % sizeof(m->last)] = *c;
    if (*c == '_') {
        pass_underscore(m);
    } else if (m->at != BT_MASK_NONE && is_of_address(*c)) {
        m->at = part_after(m->at, *c);
        *c = 'x';
    } else {
        m->at = BT_MASK_NONE;
    }
}

void bt_mask_feed(bt_mask_t *m, char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pass(m, p + i);
}
