/* response_owners.c - which worker made which /v1/responses id: engines keep them in their own memory, so follow-ups must go back.
 *
 * A bounded direct-mapped table under one mutex; only the responses route comes here. A collision forgets the older entry.
 */
#include "dispatch/plan/response_owners.h"

#include "dispatch/state/dispatch_state.h"

#include <pthread.h>
#include <stdlib.h>

#define KEY_MAX 96

struct bt_response_owners {
    pthread_mutex_t lock;
    unsigned size;
    struct entry {
        uint64_t worker_id;
        unsigned n;
        char key[KEY_MAX];
    } entries[];
};

struct bt_response_owners *bt_response_owners_new(unsigned max)
{
    struct bt_response_owners *a = calloc(1, sizeof(*a) + max * sizeof(a->entries[0]));

    if (a == NULL)
        return NULL;
    pthread_mutex_init(&a->lock, NULL);
    a->size = max;
    return a;
}

void bt_response_owners_free(struct bt_response_owners *a)
{
    if (a == NULL)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static struct entry *slot(struct bt_response_owners *a, bt_str_t key)
{
    return &a->entries[bt_str_hash(key) % a->size];
}

void bt_response_owners_put(struct bt_response_owners *a, bt_str_t key, uint64_t worker_id)
{
    struct entry *e;

    if (key.n == 0 || key.n > KEY_MAX)
        return;
    e = slot(a, key);
    pthread_mutex_lock(&a->lock);
    e->worker_id = worker_id;
    e->n = (unsigned) key.n;
    memcpy(e->key, key.p, key.n);
    pthread_mutex_unlock(&a->lock);
}

uint64_t bt_response_owners_get(struct bt_response_owners *a, bt_str_t key)
{
    struct entry *e;
    uint64_t id = 0;

    if (key.n == 0 || key.n > KEY_MAX)
        return 0;
    e = slot(a, key);
    pthread_mutex_lock(&a->lock);
    if (e->n == key.n && memcmp(e->key, key.p, key.n) == 0)
        id = e->worker_id;
    pthread_mutex_unlock(&a->lock);
    return id;
}
