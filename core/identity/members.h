/* members.h - the members of a small JSON object whose sender may be hostile: all of them, none twice.
 *
 * Owner: the caller's stack; spans point into the text.
 * Life:  as the text.
 * Flow:  names are compared unescaped ("k\u0069d" is kid), so no second reader of the text sees another object.
 * Cost:  quadratic in the number of members, which is bounded.
 */
#ifndef BT_IDENTITY_MEMBERS_H
#define BT_IDENTITY_MEMBERS_H

#include "base/json.h"

#define BT_MEMBERS_MAX 64
#define BT_MEMBERS_NAMES 4096 /* bytes of all names */

typedef struct bt_identity_members {
    struct {
        bt_str_t name; /* unescaped */
        bt_str_t value;
        enum bt_json_type type;
    } items[BT_MEMBERS_MAX];
    unsigned count;
    char names[BT_MEMBERS_NAMES];
} bt_identity_members_t;

/* BT_E_JSON*: not one object, BT_E_JSON_DUP: a name twice, BT_E_LIMIT: too many. */
int bt_identity_members_read(bt_identity_members_t *m, bt_str_t text);
/* Its index, or -1. */
int bt_identity_members_find(const bt_identity_members_t *m, const char *name);
/* The text of a string member into out, NUL-terminated; its length. -1: it is absent, no string, empty, too long, or holds a NUL. */
long bt_identity_members_text(const bt_identity_members_t *m, const char *name, char *out,
                              size_t size);
bool bt_identity_members_has(const bt_identity_members_t *m, const char *name);

#endif
