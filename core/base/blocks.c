/* The newest free block is the last one: it is looked at first, and the oldest makes room. */
#include "base/blocks.h"

#include "base/sanitize.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define LEAST ((size_t) 256 << 10) /* smaller ones stay in malloc's heap */
#define KEEP_BYTES ((size_t) 16 << 20)
#define TIDY_MAX 8U /* blocks at once */

static _Thread_local struct {
    struct {
        void *p;
        size_t bytes;
        bool is_old; /* was here at the last bt_blocks_tidy */
    } items[KEEP_BYTES / LEAST];
    unsigned count;
    size_t bytes;
} kept;

/* Out of the list. */
static void *remove_block(unsigned i)
{
    void *p = kept.items[i].p;

    kept.bytes -= kept.items[i].bytes;
    kept.count--;
    memmove(&kept.items[i], &kept.items[i + 1], (kept.count - i) * sizeof(kept.items[0]));
    return p;
}

/* The place behind the newest block that fits; 0: none does. */
static unsigned find(size_t bytes)
{
    unsigned i = bytes >= LEAST ? kept.count : 0;

    while (i > 0 && (kept.items[i - 1].bytes < bytes || kept.items[i - 1].bytes > bytes / 2 * 3))
        i--;
    return i;
}

bool bt_blocks_has(size_t bytes)
{
    return find(bytes) > 0;
}

void *bt_blocks_take(size_t bytes)
{
    const unsigned i = find(bytes);

    return i > 0 ? remove_block(i - 1) : malloc(bytes);
}

void bt_blocks_give(void *p)
{
    const size_t bytes = malloc_usable_size(p);

    if (BT_ASAN || bytes < LEAST || bytes > KEEP_BYTES / 4) {
        free(p);
        return;
    }
    while (kept.bytes + bytes > KEEP_BYTES)
        free(remove_block(0));
    kept.items[kept.count].p = p;
    kept.items[kept.count].bytes = bytes;
    kept.items[kept.count++].is_old = false;
    kept.bytes += bytes;
}

bool bt_blocks_tidy(void)
{
    for (unsigned n = 0; kept.count > 0 && kept.items[0].is_old; n++) {
        if (n == TIDY_MAX)
            return true;
        free(remove_block(0));
    }
    for (unsigned i = 0; i < kept.count; i++)
        kept.items[i].is_old = true;
    return false;
}

void bt_blocks_thread_fini(void)
{
    while (kept.count > 0)
        free(remove_block(0));
}
