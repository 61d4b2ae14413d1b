/* pages.h - pieces of whole pages for buffers and arenas, recycled; unneeded ones are the system's
 * again.
 *
 * Owner: a piece may be given back by another thread than took it.
 * Life:  usable from the first instruction; address space once taken is kept for pieces to come.
 * Flow:  free pieces stay with their thread, last in first out, because the one freed last is still
 *        in cache. bt_pages_tidy gives the system those that were not needed since its last call:
 *        malloc would hold them among the small pieces that thousands of streams have, and a
 *        burst's memory would be ours for good.
 * Cost:  O(1), no lock, no system call while there are free pieces. ASan builds: malloc.
 */
#ifndef BT_BASE_PAGES_H
#define BT_BASE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* bytes: BT_PAGES_SMALL or BT_PAGES_LARGE. Aligned to 4 KiB, not cleared. NULL = out of memory. */
enum { BT_PAGES_SMALL = 4096, BT_PAGES_LARGE = 16384 };
void *bt_pages_take(size_t bytes);
void bt_pages_give(void *p, size_t bytes);

/* Of this thread's free pieces, and blocks (base/blocks.h); at most some 0.5 ms of work, true = there is more to do. What it has
 * counted goes to the sum (base/mem.h). Call it now and then. */
bool bt_pages_tidy(void);
/* At a thread's end: its free pieces and blocks are the system's, and what it has counted is in the sum (base/mem.h). */
void bt_pages_thread_fini(void);

#endif
