/* blocks.h - large blocks of malloc's, recycled: what a long body leaves is the next one's.
 *
 * Owner: the thread that gives a block keeps it, for itself.
 * Life:  usable from the first instruction; bt_blocks_tidy frees what was not taken since its last call, bt_blocks_thread_fini all.
 * Flow:  malloc gets such blocks from the system and gives them back at once, so each of their pages is a fault and is cleared, a third of
 *        what a request of 700 KB costs. A block is given out again for as much as it has, or two thirds of that.
 * Cost:  a look at KEEP_BYTES / LEAST entries at most (blocks.c), no lock, no system call while a free one fits. ASan builds: none is kept.
 */
#ifndef BT_BASE_BLOCKS_H
#define BT_BASE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

/* Is there a free block for so many bytes? */
bool bt_blocks_has(size_t bytes);
/* Like malloc and free, for any size. */
void *bt_blocks_take(size_t bytes);
void bt_blocks_give(void *p);
/* Of this thread's free blocks; true = there is more to do. */
bool bt_blocks_tidy(void);
void bt_blocks_thread_fini(void);

#endif
