/* How it works: open addressing over twice as many slots as there may be names; a slot goes from NULL to a cell once and
 * never back, so readers need no lock. Writers of new names take one, or two threads could make the same name twice. */
#include "script/shared/shared_local.h"

#include <pthread.h>
#include <stdlib.h>

#define SLOTS (2 * BT_SHARED_LOCAL_MAX)

struct cell {
    _Alignas(64) _Atomic int64_t value; /* a line of its own: loops hammer on these */
    size_t name_n;
    char name[BT_SHARED_LOCAL_NAME_MAX + 1];
};

struct bt_shared_local {
    struct cell *_Atomic slots[SLOTS];
    unsigned count;
    pthread_mutex_t lock;
};

static bt_shared_local_t process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned hash_of(bt_str_t name)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < name.n; i++)
        h = (h ^ (unsigned char) name.p[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The cell, or NULL with the free slot where it belongs. */
static struct cell *find(bt_shared_local_t *t, bt_str_t name, unsigned *slot_p)
{
    for (unsigned slot = hash_of(name) % SLOTS;; slot = (slot + 1) % SLOTS) {
        struct cell *cell = atomic_load_explicit(&t->slots[slot], memory_order_acquire);

        if (cell == NULL || bt_str_eq((bt_str_t){cell->name, cell->name_n}, name)) {
            *slot_p = slot;
            return cell;
        }
    }
}

static struct cell *make(bt_shared_local_t *t, bt_str_t name, unsigned slot)
{
    struct cell *cell = t->count < BT_SHARED_LOCAL_MAX ? aligned_alloc(64, sizeof(*cell)) : NULL;

    if (cell == NULL)
        return NULL;
    memset(cell, 0, sizeof(*cell));
    memcpy(cell->name, name.p, name.n);
    cell->name_n = name.n;
    t->count++;
    atomic_store_explicit(&t->slots[slot], cell, memory_order_release);
    return cell;
}

_Atomic int64_t *bt_shared_local_cell(bt_shared_local_t *t, bt_str_t name)
{
    struct cell *cell;
    unsigned slot;

    if (name.n == 0 || name.n > BT_SHARED_LOCAL_NAME_MAX)
        return NULL;
    cell = find(t, name, &slot);
    if (cell == NULL) {
        pthread_mutex_lock(&t->lock);
        cell = find(t, name, &slot);
        if (cell == NULL)
            cell = make(t, name, slot);
        pthread_mutex_unlock(&t->lock);
    }
    return cell != NULL ? &cell->value : NULL;
}

/* ---- tables ---- */

bt_shared_local_t *bt_shared_local_process(void)
{
    return &process;
}

bt_shared_local_t *bt_shared_local_new(void)
{
    bt_shared_local_t *t = calloc(1, sizeof(*t));

    if (t != NULL)
        pthread_mutex_init(&t->lock, NULL);
    return t;
}

void bt_shared_local_free(bt_shared_local_t *t)
{
    if (t == NULL)
        return;
    for (unsigned i = 0; i < SLOTS; i++)
        free(atomic_load_explicit(&t->slots[i], memory_order_relaxed));
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- the process's, for specs ---- */

void bt_shared_local_each(void (*visit)(void *user, bt_str_t name, int64_t value), void *user)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        struct cell *cell = atomic_load_explicit(&process.slots[i], memory_order_acquire);
        int64_t value = cell != NULL ? atomic_load_explicit(&cell->value, memory_order_relaxed) : 0;

        if (value != 0)
            visit(user, (bt_str_t){cell->name, cell->name_n}, value);
    }
}

void bt_shared_local_reset(void)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        struct cell *cell = atomic_load_explicit(&process.slots[i], memory_order_acquire);

        if (cell != NULL)
            atomic_store_explicit(&cell->value, 0, memory_order_relaxed);
    }
}
