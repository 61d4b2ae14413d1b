/* Threads count for themselves and hand over what has added up (FLUSH_BYTES): what one request takes and gives back touches nothing
 * shared. The sum is off by that much a thread and kind at most. A block may be counted by one thread and released by another, so
 * single threads' counts go below zero and only sums mean anything.
 *
 * The reserve is there because Linux counts address space against RLIMIT_DATA and RLIMIT_AS: malloc then fails while the machine has
 * memory left, and it fails for 4 KiB as well as for a body. Who finds it used stops taking requests in, so that those which
 * run end and give theirs back.
 */
#include "base/mem.h"

#include "base/err.h"
#include "base/sanitize.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#define FLUSH_BYTES ((int64_t) 64 << 10)
#define RESERVE_BYTES ((size_t) 4 << 20)
#define MMAP_BYTES                                                                                 \
    (512 << 10) /* from here on blocks are the system's own, and go back to it at once */
#define TRIM_BYTES (8 << 20)

static struct {
    _Alignas(64) _Atomic int64_t bytes;
} totals[BT_MEM_KINDS];
static _Thread_local int64_t pending[BT_MEM_KINDS];

static _Atomic(void *) reserve;
static atomic_bool is_open;

const char *bt_mem_kind_name(enum bt_mem_kind kind)
{
    static const char *const names[BT_MEM_KINDS] = {"buffers", "arenas", "texts", "objects"};
    return names[kind];
}

static void flush(enum bt_mem_kind kind)
{
    atomic_fetch_add_explicit(&totals[kind].bytes, pending[kind], memory_order_relaxed);
    pending[kind] = 0;
}

void bt_mem_count(enum bt_mem_kind kind, int64_t bytes)
{
    pending[kind] += bytes;
    if (pending[kind] >= FLUSH_BYTES || pending[kind] <= -FLUSH_BYTES)
        flush(kind);
}

void bt_mem_hand_over(void)
{
    for (unsigned kind = 0; kind < BT_MEM_KINDS; kind++)
        flush((enum bt_mem_kind) kind);
}

static int64_t sum_of(enum bt_mem_kind kind)
{
    return atomic_load_explicit(&totals[kind].bytes, memory_order_relaxed) + pending[kind];
}

size_t bt_mem_bytes(enum bt_mem_kind kind)
{
    int64_t sum = sum_of(kind);
    return sum > 0 ? (size_t) sum : 0;
}

size_t bt_mem_total_bytes(void)
{
    int64_t sum = 0;
    for (unsigned kind = 0; kind < BT_MEM_KINDS; kind++)
        sum += sum_of((enum bt_mem_kind) kind);
    return sum > 0 ? (size_t) sum : 0;
}

void *bt_mem_resize(enum bt_mem_kind kind, void *p, size_t old_size, size_t size)
{
    if (size == 0) {
        free(p);
        bt_mem_count(kind, -(int64_t) old_size);
        return NULL;
    }
    void *grown = size <= PTRDIFF_MAX ? realloc(p, size) : NULL;
    if (grown != NULL)
        bt_mem_count(kind, (int64_t) size - (int64_t) old_size);
    return grown;
}

void bt_mem_open(void)
{
    if (atomic_exchange(&is_open, true))
        return;
#if !BT_ASAN
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
#endif
    bt_mem_settle(); /* or large blocks would lie where the check of the configuration has been, and cost what that took */
    atomic_store(&reserve, malloc(RESERVE_BYTES));
}

void bt_mem_settle(void)
{
#if !BT_ASAN
    (void) malloc_trim(0);
#endif
}

void *bt_mem_must(size_t size)
{
    void *p = malloc(size);

    if (p == NULL) {
        free(atomic_exchange(&reserve, NULL));
        p = malloc(size);
    }
    BT_BUG_ON(p == NULL);
    return p;
}

bool bt_mem_is_short(void)
{
    void *none = NULL, *block;

    if (!atomic_load_explicit(&is_open, memory_order_relaxed) ||
        atomic_load_explicit(&reserve, memory_order_relaxed) != NULL)
        return false;
    block = malloc(RESERVE_BYTES);
    if (block != NULL && !atomic_compare_exchange_strong(&reserve, &none, block))
        free(block);
    return block == NULL;
}
