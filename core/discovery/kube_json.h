/* kube_json.h - members of an object of the API server's, which has been validated.
 *
 * Owner: the caller's text; spans point into it.
 * Life:  that of the text.
 * Flow:  pure; whatever is of another type than expected is as if it were not there.
 * Cost:  a walk over the object.
 */
#ifndef BT_DISCOVERY_KUBE_JSON_H
#define BT_DISCOVERY_KUBE_JSON_H

#include "base/json.h"

static inline bt_str_t bt_kube_member(bt_str_t object, const char *name)
{
    return object.n > 0 && object.p[0] == '{' ? bt_json_find(object, bt_str(name)) : BT_STR_NULL;
}

static inline bool bt_kube_is_array(bt_str_t value)
{
    return value.n > 0 && value.p[0] == '[';
}

/* False: it is no string, does not fit, or holds a NUL. */
static inline bool bt_kube_text(bt_str_t value, char *out, size_t size)
{
    const long n = value.n > 0 && value.p[0] == '"' ? bt_json_unescape(value, out, size - 1) : -1;

    if (n < 0 || memchr(out, '\0', (size_t) n) != NULL)
        return false;
    out[n] = '\0';
    return true;
}

#endif
