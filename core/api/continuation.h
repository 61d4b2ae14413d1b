/* continuation.h - which requests another worker can take up by their token ids, and what is left for it to make.
 *
 * Owner: nobody; values.
 * Life:  static.
 * Flow:  intent -> NULL or why not, asked once, before anything is spent; ids made so far -> the rest.
 * Cost:  the body's index is looked through once for each name of a list of about 30.
 */
#ifndef BT_API_CONTINUATION_H
#define BT_API_CONTINUATION_H

#include "api/intent.h"

/* More than so many ids are not kept for a request. */
#define BT_CONTINUATION_IDS_MAX ((size_t) 1 << 20)
#define BT_CONTINUATION_UNLIMITED UINT64_MAX

/* NULL: prompt ids and output ids say all of its state. Else a static sentence. */
const char *bt_continuation_refusal(const bt_intent_t *intent);
/* NULL: what is made of a token is its text and nothing else, and needs no other one. Else a static sentence. */
const char *bt_continuation_beyond_text(const bt_intent_t *intent);
/* What the client allows; BT_CONTINUATION_UNLIMITED: as much as the model has room for. */
uint64_t bt_continuation_limit(const bt_intent_t *intent);
/* The member of this name as a number, 0 where it is none. */
uint64_t bt_continuation_number(const bt_intent_t *intent, const char *name);
/* max_tokens of the rest, at least 1. produced: all ids of all rounds. again: those of them that the client has not got and
 * that are produced once more, which is a recomputed answer's last one, where its event brings it. */
uint64_t bt_continuation_budget(uint64_t limit, uint64_t produced, uint64_t again);

#endif
