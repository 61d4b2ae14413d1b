/* How it works: a hook makes a handful of small tables and strings that the collector soon gives back: small pieces are kept by
 * size, so after warm-up a request costs no call of malloc. The collector also halves the table of all strings when it finds it
 * too empty, and the next strings double it: one block of each such size is kept. ASan sees every piece, so there nothing is. */
#include "script/vm/heap.h"

#include "base/sanitize.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_STEP ((size_t) 16)
#define TABLE_MIN_BYTES ((size_t) 512)
#define SPARE_MAX_BYTES ((size_t) 256 * 1024) /* more than that goes back to the C library */

static bool is_small(size_t size)
{
    return !BT_ASAN && size != 0 && size <= BT_HEAP_SIZES * PIECE_STEP;
}

static size_t class_of(size_t size)
{
    return (size - 1) / PIECE_STEP;
}

/* Where a block of exactly this size is kept; NULL = nowhere. */
static void **table_at(bt_heap_t *heap, size_t size)
{
    for (unsigned i = 0; !BT_ASAN && i < BT_HEAP_TABLES; i++)
        if (size == TABLE_MIN_BYTES << i)
            return &heap->tables[i];
    return NULL;
}

static void *take_large(bt_heap_t *heap, size_t size)
{
    void **kept = table_at(heap, size), *piece;

    if (kept == NULL || *kept == NULL)
        return malloc(size);
    piece = *kept;
    *kept = NULL;
    return piece;
}

static void give_large(bt_heap_t *heap, void *piece, size_t size)
{
    void **kept = table_at(heap, size);

    if (kept != NULL && *kept == NULL)
        *kept = piece;
    else
        free(piece);
}

static void *take_piece(bt_heap_t *heap, size_t size)
{
    void *piece;

    if (!is_small(size))
        return take_large(heap, size);
    piece = heap->spare[class_of(size)];
    if (piece == NULL)
        return malloc((class_of(size) + 1) * PIECE_STEP);
    memcpy(&heap->spare[class_of(size)], piece, sizeof(void *));
    heap->spare_bytes -= (class_of(size) + 1) * PIECE_STEP;
    return piece;
}

static void give_piece(bt_heap_t *heap, void *piece, size_t size)
{
    if (!is_small(size)) {
        give_large(heap, piece, size);
        return;
    }
    if (heap->spare_bytes >= SPARE_MAX_BYTES) {
        free(piece);
        return;
    }
    memcpy(piece, &heap->spare[class_of(size)], sizeof(void *));
    heap->spare[class_of(size)] = piece;
    heap->spare_bytes += (class_of(size) + 1) * PIECE_STEP;
}

void bt_heap_fini(bt_heap_t *heap)
{
    for (unsigned i = 0; i < BT_HEAP_SIZES; i++)
        while (heap->spare[i] != NULL) {
            void *piece = heap->spare[i];
            memcpy(&heap->spare[i], piece, sizeof(void *));
            free(piece);
        }
    heap->spare_bytes = 0;
    for (unsigned i = 0; i < BT_HEAP_TABLES; i++) {
        free(heap->tables[i]);
        heap->tables[i] = NULL;
    }
}

static void *change_piece(bt_heap_t *heap, void *piece, size_t old_size, size_t new_size)
{
    void *fresh;

    if (!is_small(old_size) && !is_small(new_size))
        return realloc(piece, new_size);
    if (is_small(old_size) && is_small(new_size) && class_of(old_size) == class_of(new_size))
        return piece;
    fresh = take_piece(heap, new_size);
    if (fresh == NULL)
        return NULL;
    memcpy(fresh, piece, old_size < new_size ? old_size : new_size);
    give_piece(heap, piece, old_size);
    return fresh;
}

void *bt_heap_alloc(void *user, void *ptr, size_t old_size, size_t new_size)
{
    bt_heap_t *heap = user;
    void *fresh;

    if (ptr == NULL)
        old_size = 0;
    if (new_size == 0) {
        heap->used_bytes -= old_size;
        if (ptr != NULL)
            give_piece(heap, ptr, old_size);
        return NULL;
    }
    if (new_size > old_size &&
        (new_size > heap->block_max || heap->used_bytes + (new_size - old_size) > heap->cap_bytes))
        return NULL;
    fresh = ptr != NULL ? change_piece(heap, ptr, old_size, new_size) : take_piece(heap, new_size);
    if (fresh != NULL)
        heap->used_bytes += new_size - old_size;
    return fresh;
}
