/* Blocks hang in a list, the one being filled first. A piece too large to share a block gets its
 * own, put second in the list, so the half-filled block stays the current one. Under ASan every
 * piece is such a block: writing past one piece into the next is then found.
 */
#include "base/arena.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"
#include "base/sanitize.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t) BT_PAGES_SMALL) /* header included */
#define SHARED_MAX (BLOCK_BYTES / 2) /* larger pieces would waste too much of a block's end */

typedef struct bt_arena_block {
    struct bt_arena_block *next;
    size_t bytes; /* BLOCK_BYTES: of base/pages */
} block_t;

_Static_assert(sizeof(block_t) % 16 == 0, "the first piece must be 16-byte aligned");

static block_t *new_block(size_t bytes)
{
    block_t *block = bytes == BLOCK_BYTES ? bt_pages_take(bytes) : NULL;

    if (block == NULL) {
        if (bytes == BLOCK_BYTES)
            bytes += sizeof(*block); /* not of base/pages: drop_block is told by it */
        block = bt_mem_must(bytes);
    }
    bt_mem_count(BT_MEM_ARENAS, (int64_t) bytes);
    block->bytes = bytes;
    block->next = NULL;
    return block;
}

static void drop_block(block_t *block)
{
    bt_mem_count(BT_MEM_ARENAS, -(int64_t) block->bytes);
    if (block->bytes == BLOCK_BYTES)
        bt_pages_give(block, BLOCK_BYTES);
    else
        free(block);
}

void bt_arena_init(bt_arena_t *a)
{
    *a = (bt_arena_t){NULL, NULL, NULL};
}

void bt_arena_init_room(bt_arena_t *a, void *room, size_t size)
{
    BT_ASSERT((uintptr_t) room % 16 == 0);
    *a = (bt_arena_t){NULL, room, (char *) room + size};
}

void bt_arena_fini(bt_arena_t *a)
{
    block_t *next;
    for (block_t *block = a->head; block != NULL; block = next) {
        next = block->next;
        drop_block(block);
    }
    bt_arena_init(a);
}

static void *alloc_own(bt_arena_t *a, size_t size)
{
    block_t *block = new_block(sizeof(*block) + size);
    if (a->head == NULL) {
        a->head = block;
    } else {
        block->next = a->head->next;
        a->head->next = block;
    }
    return block + 1;
}

static void open_block(bt_arena_t *a)
{
    block_t *block = new_block(BLOCK_BYTES);
    block->next = a->head;
    a->head = block;
    a->at = (char *) (block + 1);
    a->end = (char *) block + BLOCK_BYTES;
}

void *bt_arena_alloc(bt_arena_t *a, size_t size)
{
    BT_BUG_ON(size > PTRDIFF_MAX - BLOCK_BYTES);
    if (BT_ASAN)
        return alloc_own(a, size);
    size = (size + 15) & ~(size_t) 15;
    if (size > SHARED_MAX)
        return alloc_own(a, size);
    if ((size_t) (a->end - a->at) < size || a->at == NULL)
        open_block(a);
    void *piece = a->at;
    a->at += size;
    return piece;
}

void *bt_arena_zalloc(bt_arena_t *a, size_t size)
{
    return memset(bt_arena_alloc(a, size), 0, size);
}

bt_str_t bt_arena_str(bt_arena_t *a, bt_str_t s)
{
    char *copy;

    if (s.n == 0)
        return BT_STR("");
    copy = bt_arena_alloc(a, s.n + 1);
    memcpy(copy, s.p, s.n);
    copy[s.n] = '\0';
    return (bt_str_t){copy, s.n};
}

bt_str_t bt_arena_printf(bt_arena_t *a, const char *fmt, ...)
{
    char small[256];
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(small, sizeof(small), fmt, args);
    va_end(args);
    BT_BUG_ON(n < 0);
    if ((size_t) n < sizeof(small))
        return bt_arena_str(a, (bt_str_t){small, (size_t) n});
    char *out = bt_arena_alloc(a, (size_t) n + 1);
    va_start(args, fmt);
    vsnprintf(out, (size_t) n + 1, fmt, args);
    va_end(args);
    return (bt_str_t){out, (size_t) n};
}
