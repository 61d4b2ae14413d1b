/* slab.h - free list of equal-sized objects.
 *
 * Owner: one loop; not thread safe.
 * Life:  init -> get/put* -> fini (frees what lies in the free list; objects still out are the owner's bug).
 * Flow:  put objects keep their memory; get hands out zeroed memory, but for what the owner fills itself (raw_bytes).
 * Cost:  O(1); malloc only while warming up. Under ASan objects are really freed, so use-after-put is found.
 */
#ifndef BT_BASE_SLAB_H
#define BT_BASE_SLAB_H

#include <stddef.h>

typedef struct bt_slab {
    size_t object_bytes;
    size_t raw_bytes;  /* of them, the last, that get does not zero; 0 unless the owner says so */
    unsigned keep_max; /* free objects kept */
    unsigned free_count;
    unsigned out_count; /* objects handed out now */
    void *free_head;
} bt_slab_t;

void bt_slab_init(bt_slab_t *pool, size_t object_bytes, unsigned keep_max);
void bt_slab_fini(bt_slab_t *pool);
void *bt_slab_get(bt_slab_t *pool); /* NULL when out of memory */
void bt_slab_put(bt_slab_t *pool, void *object);

#endif
