/* shared_cache.c - how it works: four ways a set, a lock for every 32 sets. Readers copy under the lock, because what they do with it may raise. */
#include "script/shared/shared_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define WAYS 4
#define SETS 2048U
#define LOCKS 64U
#define BYTES_MAX ((size_t) 32 << 20)

struct item {
    uint64_t hash, put_us;
    enum bt_shared_kind kind;
    double number;
    size_t key_n, bytes_n;
    char text[]; /* key, bytes */
};

static struct item *sets[SETS][WAYS];
static pthread_mutex_t locks[LOCKS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic size_t bytes;

static void init_locks(void)
{
    for (unsigned i = 0; i < LOCKS; i++)
        pthread_mutex_init(&locks[i], NULL);
}

static unsigned lock_set(uint64_t hash)
{
    const unsigned set = (unsigned) (hash % SETS);

    pthread_once(&once, init_locks);
    pthread_mutex_lock(&locks[set % LOCKS]);
    return set;
}

static void unlock_set(unsigned set)
{
    pthread_mutex_unlock(&locks[set % LOCKS]);
}

static size_t size_of(const struct item *item)
{
    return sizeof(*item) + item->key_n + item->bytes_n;
}

static void drop_item(struct item **at)
{
    if (*at == NULL)
        return;
    atomic_fetch_sub_explicit(&bytes, size_of(*at), memory_order_relaxed);
    free(*at);
    *at = NULL;
}

/* The key's own place, or NULL. */
static struct item **find(unsigned set, uint64_t hash, bt_str_t key)
{
    for (unsigned i = 0; i < WAYS; i++) {
        const struct item *item = sets[set][i];
        if (item != NULL && item->hash == hash &&
            bt_str_eq((bt_str_t){item->text, item->key_n}, key))
            return &sets[set][i];
    }
    return NULL;
}

/* Empty, or the oldest. */
static struct item **worst(unsigned set)
{
    struct item **at = &sets[set][0];

    for (unsigned i = 0; i < WAYS; i++) {
        if (sets[set][i] == NULL)
            return &sets[set][i];
        if (sets[set][i]->put_us < (*at)->put_us)
            at = &sets[set][i];
    }
    return at;
}

static struct item *new_item(uint64_t hash, bt_str_t key, bt_str_t value)
{
    struct item *item = malloc(sizeof(*item) + key.n + value.n);

    if (item == NULL)
        return NULL;
    item->hash = hash;
    item->key_n = key.n;
    item->bytes_n = value.n;
    memcpy(item->text, key.p, key.n);
    if (value.n > 0)
        memcpy(item->text + key.n, value.p, value.n);
    return item;
}

void bt_shared_cache_put(bt_str_t key, enum bt_shared_kind kind, double number, bt_str_t value,
                         uint64_t now_us)
{
    const uint64_t hash = bt_str_hash(key);
    struct item *item = value.n <= BT_SHARED_CACHE_VALUE_MAX ? new_item(hash, key, value) : NULL;
    const unsigned set = lock_set(hash);
    struct item **at = find(set, hash, key);

    if (at == NULL)
        at = worst(set);
    else if (item == NULL)
        drop_item(at); /* the old one would be wrong */
    if (item != NULL) {
        item->put_us = now_us;
        item->kind = kind;
        item->number = number;
        drop_item(at);
        if (atomic_fetch_add_explicit(&bytes, size_of(item), memory_order_relaxed) < BYTES_MAX) {
            *at = item;
        } else {
            atomic_fetch_sub_explicit(&bytes, size_of(item), memory_order_relaxed);
            free(item);
        }
    }
    unlock_set(set);
}

void bt_shared_cache_drop(bt_str_t key)
{
    const uint64_t hash = bt_str_hash(key);
    const unsigned set = lock_set(hash);
    struct item **at = find(set, hash, key);

    if (at != NULL)
        drop_item(at);
    unlock_set(set);
}

bool bt_shared_cache_get(bt_str_t key, enum bt_shared_kind *kind_p, double *number_p,
                         bt_text_t *bytes_p, uint64_t *put_us_p)
{
    const uint64_t hash = bt_str_hash(key);
    const unsigned set = lock_set(hash);
    struct item **at = find(set, hash, key);

    bytes_p->len = 0;
    bytes_p->failed = false;
    if (at != NULL) {
        const struct item *item = *at;
        *kind_p = item->kind;
        *number_p = item->number;
        *put_us_p = item->put_us;
        bt_text_put(bytes_p, (bt_str_t){item->text + item->key_n, item->bytes_n});
    }
    unlock_set(set);
    return at != NULL && !bytes_p->failed;
}

void bt_shared_cache_clear(void)
{
    for (unsigned set = 0; set < SETS; set++) {
        (void) lock_set(set);
        for (unsigned i = 0; i < WAYS; i++)
            drop_item(&sets[set][i]);
        unlock_set(set);
    }
}
