/* sse_oracle.h - events of a text/event-stream, found the slow and obvious way.
 *
 * Owner: the caller frees the list.
 * Life:  test code only; shares nothing with core/http/sse.c.
 * Flow:  the whole stream at once: line ends to LF, lines, blocks (WHATWG HTML 9.2.6, data fields only).
 * Cost:  irrelevant.
 */
#ifndef BT_SSE_ORACLE_H
#define BT_SSE_ORACLE_H

#include <stddef.h>

typedef struct sse_oracle {
    char *text;   /* payloads, one after another */
    size_t *ends; /* where each ends in text */
    size_t count;
} sse_oracle_t;

void sse_oracle_init(sse_oracle_t *oracle, const char *p, size_t n);
void sse_oracle_fini(sse_oracle_t *oracle);

/* Feeds n bytes to bt_sse_next and bt_sse_count in pieces; cut(at, arg) gives the length of the piece that starts at
 * `at` (1 or more). Aborts when either disagrees with the oracle. */
void sse_oracle_check(const sse_oracle_t *oracle, const char *p, size_t n,
                      size_t (*cut)(size_t at, void *arg), void *arg);

#endif
