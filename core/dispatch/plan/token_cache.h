/* token_cache.h - prompts that an engine has tokenized lately.
 *
 * Owner: a loop.
 * Life:  new -> put, get -> free.
 * Flow:  what an engine is asked, hashed by the caller with a seed that no client knows -> the ids, as JSON. The longest unused go first.
 * Cost:  O(1); at most BYTES_MAX of ids, in buffers that others may hold longer.
 */
#ifndef BT_DISPATCH_PLAN_TOKEN_CACHE_H
#define BT_DISPATCH_PLAN_TOKEN_CACHE_H

#include "base/buf.h"

#define BT_TOKEN_CACHE_BYTES_MAX ((size_t) 8 << 20)
#define BT_TOKEN_CACHE_ENTRIES_MAX 1024u

typedef struct bt_token_cache bt_token_cache_t;

bt_token_cache_t *bt_token_cache_new(void); /* NULL: out of memory */
void bt_token_cache_free(bt_token_cache_t *c);
/* Borrowed. NULL: it is not there. */
bt_buf_t *bt_token_cache_get(bt_token_cache_t *c, uint64_t key);
/* Refs ids. What does not fit is left out. */
void bt_token_cache_put(bt_token_cache_t *c, uint64_t key, bt_buf_t *ids);

#endif
