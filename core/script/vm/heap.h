/* heap.h - the memory of a Lua state: capped, and small pieces recycled. Private to core/script.
 *
 * Owner: a bt_vm_t.
 * Life:  set cap_bytes and block_max -> lua_newstate(bt_heap_alloc, heap) ... lua_close -> fini.
 * Flow:  over the cap, or a block that is too large: NULL, which Lua turns into "not enough memory".
 * Cost:  a small piece is a list operation, a table of strings that grows or shrinks again two; others are the C library's.
 */
#ifndef BT_SCRIPT_HEAP_H
#define BT_SCRIPT_HEAP_H

#include <stddef.h>

#define BT_HEAP_SIZES 16 /* small pieces are recycled by size, in steps of 16 bytes */
#define BT_HEAP_TABLES 8 /* of tables one is kept of each size, a power of two from 512 bytes on */

typedef struct bt_heap {
    size_t used_bytes, cap_bytes;
    size_t block_max;           /* largest block of memory */
    void *spare[BT_HEAP_SIZES]; /* freed pieces, linked through their first word */
    size_t spare_bytes;
    void *tables[BT_HEAP_TABLES]; /* a freed one of each size */
} bt_heap_t;

/* A lua_Alloc; user: the heap. */
void *bt_heap_alloc(void *user, void *ptr, size_t old_size, size_t new_size);
/* Gives the spare pieces back. */
void bt_heap_fini(bt_heap_t *heap);

#endif
