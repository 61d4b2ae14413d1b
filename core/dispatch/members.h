/* members.h - the one list of body members that the gateway has a say in: what a client may not write, and of which JSON types the
 * rest must be.
 *
 * Owner: nobody; a constant table.
 * Life:  static.
 * Flow:  every object of a body through which an engine takes such members is checked here, on every path that reaches a worker.
 * Cost:  members times the length of the list, which is a compare of lengths for nearly all of them.
 */
#ifndef BT_DISPATCH_MEMBERS_H
#define BT_DISPATCH_MEMBERS_H

#include "dispatch/body.h"

#define BT_MEMBERS_NAME_MAX 1024 /* bytes of a model, a session, an id: more is no name */
#define BT_MEMBERS_OPTIONS_MAX                                                                     \
    ((size_t) 1 << 20) /* bytes of an object of options: every leg reads it once more */

/* All: 0, or a BT_E_* with a sentence for the client in *why_p (in strip's arena). */

/* The body itself. Twice the same controlled key is refused, because gateway and engine could believe different ones; forbidden ones
 * become removals in strip. has_types: the route's members are understood, so those of another type than the engines document are
 * refused: an engine may convert what we cannot ("true" to a boolean), and would then be asked something else than we planned. */
int bt_members_check(const bt_body_t *body, bool has_types, bt_edits_t *strip, const char **why_p);
/* An object within the body: *clean_p = its text without forbidden members, or the same text where there are none. */
int bt_members_clean(bt_str_t object, bt_arena_t *arena, bt_str_t *clean_p, const char **why_p);

#endif
