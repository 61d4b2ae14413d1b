#include "kvindex/names.h"

#include "base/err.h"

#include <stdlib.h>

#define SLOTS_LEAST 64u

static uint64_t key_of(uint64_t engine)
{
    return engine != 0 ? engine : UINT64_C(0x9e3779b97f4a7c15);
}

/* Engines may count their blocks instead of hashing them. */
static uint64_t place_of(const bt_kv_names_t *n, uint64_t key)
{
    return (key * UINT64_C(0x9e3779b97f4a7c15) >> 24) & n->mask;
}

void bt_kv_names_clear(bt_kv_names_t *n)
{
    free(n->slots);
    *n = (bt_kv_names_t){0};
}

size_t bt_kv_names_bytes(const bt_kv_names_t *n)
{
    return n->slots != NULL ? (n->mask + 1) * sizeof(n->slots[0]) : 0;
}

static bt_kv_name_t *find(const bt_kv_names_t *n, uint64_t key)
{
    uint64_t at = place_of(n, key);

    if (n->slots == NULL)
        return NULL;
    for (; n->slots[at].engine != 0; at = (at + 1) & n->mask)
        if (n->slots[at].engine == key)
            return &n->slots[at];
    return NULL;
}

const uint64_t *bt_kv_names_find(const bt_kv_names_t *n, uint64_t engine)
{
    const bt_kv_name_t *name = find(n, key_of(engine));

    return name != NULL ? &name->own : NULL;
}

void bt_kv_names_prefetch(const bt_kv_names_t *n, uint64_t engine)
{
    if (n->slots != NULL)
        __builtin_prefetch(&n->slots[place_of(n, key_of(engine))]);
}

static void insert(bt_kv_names_t *n, uint64_t key, uint64_t own)
{
    uint64_t at = place_of(n, key);

    while (n->slots[at].engine != 0)
        at = (at + 1) & n->mask;
    n->slots[at] = (bt_kv_name_t){key, own};
    n->count++;
}

static int resize(bt_kv_names_t *n, uint64_t count)
{
    bt_kv_names_t fresh = {.slots = calloc(count, sizeof(bt_kv_name_t)), .mask = count - 1};

    if (fresh.slots == NULL)
        return BT_E_NOMEM;
    for (uint64_t i = 0; n->slots != NULL && i <= n->mask; i++)
        if (n->slots[i].engine != 0)
            insert(&fresh, n->slots[i].engine, n->slots[i].own);
    free(n->slots);
    *n = fresh;
    return 0;
}

int bt_kv_names_put(bt_kv_names_t *n, uint64_t engine, uint64_t own)
{
    bt_kv_name_t *name = find(n, key_of(engine));

    if (name != NULL) {
        name->own = own;
        return 0;
    }
    if (n->slots == NULL || n->count >= (n->mask + 1) / 4 * 3) {
        const int rc = resize(n, n->slots != NULL ? 2 * (n->mask + 1) : SLOTS_LEAST);
        if (rc < 0)
            return rc;
    }
    insert(n, key_of(engine), own);
    return 0;
}

/* Those behind it move up, so that nothing is left to be stepped over. */
static void remove_at(bt_kv_names_t *n, uint64_t hole)
{
    for (uint64_t at = (hole + 1) & n->mask; n->slots[at].engine != 0; at = (at + 1) & n->mask) {
        const uint64_t home = place_of(n, n->slots[at].engine);

        if (((at - home) & n->mask) < ((at - hole) & n->mask))
            continue;
        n->slots[hole] = n->slots[at];
        hole = at;
    }
    n->slots[hole].engine = 0;
    n->count--;
}

void bt_kv_names_remove(bt_kv_names_t *n, uint64_t engine)
{
    const bt_kv_name_t *name = find(n, key_of(engine));

    if (name != NULL)
        remove_at(n, (uint64_t) (name - n->slots));
}

void bt_kv_names_sweep(bt_kv_names_t *n, bool (*keep)(void *user, uint64_t own), void *user)
{
    for (uint64_t i = 0; n->slots != NULL && i <= n->mask;)
        if (n->slots[i].engine != 0 && !keep(user, n->slots[i].own))
            remove_at(n, i); /* another one may have moved here */
        else
            i++;
}
