/* path.h - the one form in which a request's path is matched, told to policies and sent to workers.
 *
 * Owner: nobody; the caller owns the head and the arena.
 * Life:  the result lives as long as the head's bytes and the arena.
 * Flow:  raw path -> percent-decoded once -> printed again with every byte either plain or escaped, never both. Whoever decodes it
 *        once more (an engine, a proxy before it) reads the same path as we did.
 * Cost:  one pass; a copy only where something has to change, which no usual client sends.
 */
#ifndef BT_API_PATH_H
#define BT_API_PATH_H

#include "base/arena.h"
#include "http/message.h"

/* Refused are what two readers could read as two paths: encoded slashes (but in /v1/models/<name>: names of models have some),
 * encoded percent signs, backslashes and control characters however they are written, ';' parameters, empty segments, "." and "..",
 * broken escapes. RFC 3986 2.1, 3.3, 6.2.2. NULL: *path_p is the canonical form; else a sentence for the client. */
const char *bt_path_canonical(bt_str_t raw, bt_arena_t *arena, bt_str_t *path_p);
/* Gives the head its canonical path, and a target made of it and the query as it came. */
const char *bt_path_settle(bt_head_t *head, bt_arena_t *arena);
/* n bytes at most of canonical text, decoded; returns the length. For names inside of a path. */
size_t bt_path_decode(bt_str_t text, char *out, size_t size);

#endif
