/* arena.h - memory that dies all at once, one arena a request.
 *
 * Owner: one request (or one start-up step); never shared between threads.
 * Life:  init -> alloc* -> fini. Nothing from an arena may be kept by Lua or by a pool.
 * Flow:  bump allocation in 4 KiB blocks, recycled (base/pages.h), after the owner's own room where it
 *        has some; larger pieces get a block of their own.
 * Cost:  O(1); no malloc after warm-up for ordinary requests.
 */
#ifndef BT_BASE_ARENA_H
#define BT_BASE_ARENA_H

#include "base/str.h"

#include <stdarg.h>
#include <stddef.h>

typedef struct bt_arena {
    struct bt_arena_block *head;
    char *at, *end;
} bt_arena_t;

void bt_arena_init(bt_arena_t *a);
/* room: the owner's, 16-byte aligned, is used up first; it stays the owner's. */
void bt_arena_init_room(bt_arena_t *a, void *room, size_t size);
void bt_arena_fini(bt_arena_t *a);
/* 16-byte aligned, not cleared. Aborts the process when memory and the reserve are used up (bt_mem_must): callers bound their sizes. */
void *bt_arena_alloc(bt_arena_t *a, size_t size);
void *bt_arena_zalloc(bt_arena_t *a, size_t size);
bt_str_t bt_arena_str(bt_arena_t *a, bt_str_t s); /* NUL-terminated copy */
bt_str_t bt_arena_printf(bt_arena_t *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
