/* mem.h - how much memory the process holds for requests, and a last reserve for what must not fail.
 *
 * Owner: the process; safe from every thread.
 * Life:  usable from the first instruction; bt_mem_open at start sets the reserve aside.
 * Flow:  whatever grows with requests is counted here by its kind; the server compares the sum with its limit before it takes more in.
 *        Sizes that a client chooses are asked for with bt_mem_resize, which may fail, and then only that request does. Small pieces of
 *        bounded size come from bt_mem_must, which uses the reserve up before it aborts.
 * Cost:  an add to this thread's own counter; the sum is read in a few loads, and may be off by 64 KiB a thread and kind
 *        until that thread hands over (bt_pages_tidy does).
 */
#ifndef BT_BASE_MEM_H
#define BT_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bt_mem_kind {
    BT_MEM_BUFFERS, /* capacity of live buffers, free lists excluded */
    BT_MEM_ARENAS,  /* blocks of live arenas, likewise */
    BT_MEM_TEXTS,   /* answers that are put together, events that came in pieces */
    BT_MEM_OBJECTS, /* requests, connections */
    BT_MEM_KINDS
};
const char *bt_mem_kind_name(enum bt_mem_kind kind);

void bt_mem_count(enum bt_mem_kind kind, int64_t bytes);
void bt_mem_hand_over(void); /* then what this thread has counted is in the sum */
/* Snapshots of no single instant; exact where one thread has counted all. */
size_t bt_mem_bytes(enum bt_mem_kind kind);
size_t bt_mem_total_bytes(void);

/* realloc that counts; size 0 frees. NULL (for size > 0): nothing has changed. */
void *bt_mem_resize(enum bt_mem_kind kind, void *p, size_t old_size, size_t size);
/* malloc for pieces of bounded size whose callers have no other way on. Not counted. Never NULL. */
void *bt_mem_must(size_t size);

/* Once, before threads: sets the reserve aside and tells malloc to give large blocks back to the system. */
void bt_mem_open(void);
/* The start is over: what it took and gave back is the system's again. Not beside traffic: it holds up every thread that allocates. */
void bt_mem_settle(void);
/* The reserve has been used: take nothing in that can be refused. Tries to set it aside again. */
bool bt_mem_is_short(void);

#endif
