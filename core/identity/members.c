#include "identity/members.h"

#include "base/err.h"

static bool has_name(const bt_identity_members_t *m, bt_str_t name)
{
    for (unsigned i = 0; i < m->count; i++)
        if (bt_str_eq(m->items[i].name, name))
            return true;
    return false;
}

int bt_identity_members_read(bt_identity_members_t *m, bt_str_t text)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    size_t used = 0;
    int rc = bt_json_object(&cursor, text);

    m->count = 0;
    while (rc == 0 && (rc = bt_json_next(&cursor, &item)) == 1) {
        const long n = bt_json_unescape_raw(item.key, m->names + used, sizeof m->names - used);
        if (n < 0 || m->count == BT_MEMBERS_MAX)
            return BT_E_LIMIT;
        const bt_str_t name = {m->names + used, (size_t) n};
        if (has_name(m, name))
            return BT_E_JSON_DUP;
        m->items[m->count].name = name;
        m->items[m->count].value = item.value;
        m->items[m->count++].type = item.type;
        used += (size_t) n;
        rc = 0;
    }
    return rc;
}

int bt_identity_members_find(const bt_identity_members_t *m, const char *name)
{
    for (unsigned i = 0; i < m->count; i++)
        if (bt_str_eq(m->items[i].name, bt_str(name)))
            return (int) i;
    return -1;
}

bool bt_identity_members_has(const bt_identity_members_t *m, const char *name)
{
    return bt_identity_members_find(m, name) >= 0;
}

long bt_identity_members_text(const bt_identity_members_t *m, const char *name, char *out,
                              size_t size)
{
    const int at = bt_identity_members_find(m, name);
    long n;

    if (at < 0 || m->items[at].type != BT_JSON_STRING)
        return -1;
    n = bt_json_unescape(m->items[at].value, out, size - 1);
    if (n <= 0 || memchr(out, '\0', (size_t) n) != NULL)
        return -1;
    out[n] = '\0';
    return n;
}
