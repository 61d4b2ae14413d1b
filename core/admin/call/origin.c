/* origin.c - see origin.h. Tools send no Origin, and no content type unless they are told one. */
#include "admin/call/origin.h"

#include "http/edge.h"

/* Scheme and port are part of an origin; a proxy before us may change the scheme, so that is not compared. */
static bool is_same(bt_str_t origin, bt_str_t host)
{
    const ptrdiff_t at = bt_str_find(origin, BT_STR("://"));

    return at >= 0 && bt_str_ieq((bt_str_t){origin.p + at + 3, origin.n - (size_t) at - 3}, host);
}

static bool is_form_type(bt_str_t type)
{
    static const bt_str_t forms[] = {BT_STR("application/x-www-form-urlencoded"),
                                     BT_STR("multipart/form-data"), BT_STR("text/plain")};
    size_t n = 0;

    while (n < type.n && type.p[n] != ';' && type.p[n] != ' ' && type.p[n] != ',')
        n++;
    for (unsigned i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (bt_str_ieq((bt_str_t){type.p, n}, forms[i]))
            return true;
    return false;
}

const char *bt_origin_refusal(const bt_origin_rules_t *rules, const bt_head_t *head, bool is_change,
                              unsigned *status_p)
{
    const bt_str_t host = bt_head_get(head, BT_STR("host")),
                   origin = bt_head_get(head, BT_STR("origin"));

    *status_p = 403;
    if (origin.n > 0 && !is_same(origin, host) && (is_change || !rules->has_key))
        return "a page of another origin may not use this listener";
    if (rules->has_key)
        return NULL;
    if (bt_head_find(head, BT_STR("host")) != NULL &&
        !bt_edge_is_known_host(host, rules->listener,
                               rules->names)) /* HTTP/1.0 may leave it out; browsers don't */
        return "without a key this listener is served under addresses and localhost only, because "
               "a "
               "page in a browser can take any other name; add --admin-allowed-host NAME, or set "
               "--admin-api-key";
    *status_p = 415;
    if (is_change && is_form_type(bt_head_get(head, BT_STR("content-type"))))
        return "this Content-Type is one that any page in a browser could send, and curl -d does: "
               "send Content-Type: application/json, or none";
    return NULL;
}
