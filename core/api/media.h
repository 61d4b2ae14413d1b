/* media.h - images, audio and video in a request's body, each as the part of a chat that an encoder is asked with.
 *
 * Owner: the caller's list; its texts are borrowed from the body.
 * Life:  as the body's.
 * Flow:  messages or input -> parts in their order, the same one once.
 * Cost:  one pass over messages or input; no bytes are copied.
 */
#ifndef BT_API_MEDIA_H
#define BT_API_MEDIA_H

#include "api/intent.h"

/* before, value, after: as one text, a part of /v1/chat/completions. */
typedef struct bt_media_part {
    bt_str_t before, value, after;
} bt_media_part_t;

/* At most max of them into parts. Returns how many; BT_E_INVAL: why_p says what cannot be encoded apart. */
int bt_media_find(const bt_intent_t *intent, bt_media_part_t *parts, unsigned max,
                  const char **why_p);
size_t bt_media_size(const bt_media_part_t *part);

#endif
