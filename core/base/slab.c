/* Free objects are linked through their own first word. */
#include "base/slab.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/sanitize.h"

#include <stdlib.h>
#include <string.h>

void bt_slab_init(bt_slab_t *pool, size_t object_bytes, unsigned keep_max)
{
    memset(pool, 0, sizeof(*pool));
    pool->object_bytes = object_bytes < sizeof(void *) ? sizeof(void *) : object_bytes;
    pool->keep_max = BT_ASAN ? 0 : keep_max;
}

static void *take_free(bt_slab_t *pool)
{
    void *object = pool->free_head;
    if (object != NULL) {
        memcpy(&pool->free_head, object, sizeof(void *));
        pool->free_count--;
    }
    return object;
}

void bt_slab_fini(bt_slab_t *pool)
{
    void *object;
    while ((object = take_free(pool)) != NULL)
        free(object);
}

void *bt_slab_get(bt_slab_t *pool)
{
    void *object = take_free(pool);
    if (object != NULL)
        memset(object, 0, pool->object_bytes - pool->raw_bytes);
    else
        object = calloc(1, pool->object_bytes);
    if (object == NULL)
        return NULL;
    pool->out_count++;
    bt_mem_count(BT_MEM_OBJECTS, (int64_t) pool->object_bytes);
    return object;
}

void bt_slab_put(bt_slab_t *pool, void *object)
{
    if (object == NULL)
        return;
    BT_BUG_ON(pool->out_count == 0);
    pool->out_count--;
    bt_mem_count(BT_MEM_OBJECTS, -(int64_t) pool->object_bytes);
    if (pool->free_count >= pool->keep_max) {
        free(object);
        return;
    }
    memcpy(object, &pool->free_head, sizeof(void *));
    pool->free_head = object;
    pool->free_count++;
}
