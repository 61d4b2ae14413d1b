/* unfinished.h - requests of which bytes are still to come: who sends them, what they hold, and which one goes when memory is short.
 *
 * Owner: the process; each loop has a seat in it (bt_unfinished_loop_t), an entry belongs to its connection's loop.
 * Life:  new -> loops join -> entries open, grow and close -> free, after the loops.
 * Flow:  bytes are asked for as they arrive, never as they are promised. When the limit is reached, the sender who holds most in
 *        unfinished requests loses the largest of them: its loop is told by mail, answers it 503 and frees what it held. So many small
 *        promises, or one large one, cost others nothing; and who holds little is served.
 * Cost:  a mutex and a few list operations where a request needs more than its connection's read buffer; nothing for others. Choosing
 *        who goes is a walk over BUCKETS and over one sender's entries, once for each that goes.
 */
#ifndef BT_HTTP_UNFINISHED_H
#define BT_HTTP_UNFINISHED_H

#include "base/list.h"
#include "loop/loop.h"

typedef struct bt_unfinished bt_unfinished_t;
typedef struct bt_unfinished_loop bt_unfinished_loop_t;

typedef struct bt_unfinished_entry {
    bt_list_t link; /* in its bucket, or among its loop's victims */
    bt_unfinished_loop_t *at;
    uint64_t sender; /* key or peer */
    size_t bytes;    /* charged to it */
    bool is_open, is_victim, is_complete;
} bt_unfinished_entry_t;

/* On its loop: the entry must be closed before this returns, and what it holds be freed. */
typedef void (*bt_unfinished_evict_cb)(bt_unfinished_entry_t *e);

/* limit_bytes: of all memory that requests and answers hold (base/mem.h). */
int bt_unfinished_new(bt_unfinished_t **u_p, size_t limit_bytes, bt_unfinished_evict_cb evict);
void bt_unfinished_free(bt_unfinished_t *u); /* NULL is fine */
/* Before the loop runs. */
int bt_unfinished_join(bt_unfinished_t *u, bt_loop_t *loop, bt_unfinished_loop_t **at_p);

/* May this request hold `more` bytes than it does? An entry that is not open is opened. BT_E_LIMIT: no, it is the one that has to go, or
 * all that is held belongs to requests that are complete. e NULL: asks for a request that comes in one piece and is not listed. */
int bt_unfinished_reserve(bt_unfinished_loop_t *at, bt_unfinished_entry_t *e, uint64_t sender,
                          size_t more);
/* Lists what is held already, where memory begins to be scarce: more than half of the limit. Elsewhere it costs nothing. */
void bt_unfinished_note(bt_unfinished_loop_t *at, bt_unfinished_entry_t *e, uint64_t sender,
                        size_t bytes);
/* All of it has come. It stays charged to its sender, and nobody takes it away any more. BT_E_LIMIT: with this one the sender would have
 * more than half of the limit in complete requests, and it has another one. */
int bt_unfinished_complete(bt_unfinished_entry_t *e);
/* It is refused or gone, or its bytes are. */
void bt_unfinished_close(bt_unfinished_entry_t *e);
/* Do that many more bytes, for whatever, stay within the limit? Any thread. */
bool bt_unfinished_fits(const bt_unfinished_t *u, size_t more);
uint64_t bt_unfinished_evicted(const bt_unfinished_t *u); /* since the start; any thread */

#endif
