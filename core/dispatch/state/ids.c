/* ids.c - live request ids that clients chose, over all loops: an id that is live already gets a fresh one of ours instead.
 *
 * Sharded by hash; each shard is a small chained table under a mutex that is held for a few compares.
 */
#include "dispatch/state/dispatch_state.h"

#include <pthread.h>
#include <stdlib.h>

#define SHARDS 64
#define BUCKETS 256
#define SUFFIX_DIGITS                                                                              \
    4 /* more than max_fanout and max_attempts are ever set to; a uuid's last group is longer */

struct id_node {
    struct id_node *next;
    size_t n;
    char text[];
};

struct bt_id_table {
    struct shard {
        pthread_mutex_t lock;
        struct id_node *buckets[BUCKETS];
    } shards[SHARDS];
};

struct bt_id_table *bt_ids_new(void)
{
    struct bt_id_table *t = calloc(1, sizeof(*t));

    for (unsigned i = 0; t != NULL && i < SHARDS; i++)
        pthread_mutex_init(&t->shards[i].lock, NULL);
    return t;
}

void bt_ids_free(struct bt_id_table *t)
{
    if (t == NULL)
        return;
    for (unsigned i = 0; i < SHARDS; i++) {
        for (unsigned b = 0; b < BUCKETS; b++)
            while (t->shards[i].buckets[b] != NULL) {
                struct id_node *node = t->shards[i].buckets[b];
                t->shards[i].buckets[b] = node->next;
                free(node);
            }
        pthread_mutex_destroy(&t->shards[i].lock);
    }
    free(t);
}

static struct id_node **find(struct shard *s, uint64_t h, bt_str_t id)
{
    struct id_node **at = &s->buckets[(h >> 8) % BUCKETS];

    while (*at != NULL && !((*at)->n == id.n && memcmp((*at)->text, id.p, id.n) == 0))
        at = &(*at)->next;
    return at;
}

bool bt_ids_add(struct bt_id_table *t, bt_str_t id)
{
    uint64_t h = bt_str_hash(id);
    struct shard *s = &t->shards[h % SHARDS];
    struct id_node **at, *node = malloc(sizeof(*node) + id.n);
    bool added;

    if (node == NULL)
        return false;
    node->n = id.n;
    node->next = NULL;
    memcpy(node->text, id.p, id.n);
    pthread_mutex_lock(&s->lock);
    at = find(s, h, id);
    added = *at == NULL;
    if (added)
        *at = node;
    pthread_mutex_unlock(&s->lock);
    if (!added)
        free(node);
    return added;
}

void bt_ids_remove(struct bt_id_table *t, bt_str_t id)
{
    uint64_t h = bt_str_hash(id);
    struct shard *s = &t->shards[h % SHARDS];
    struct id_node **at, *node;

    pthread_mutex_lock(&s->lock);
    at = find(s, h, id);
    node = *at;
    if (node != NULL)
        *at = node->next;
    pthread_mutex_unlock(&s->lock);
    free(node);
}

bool bt_ids_has(struct bt_id_table *t, bt_str_t id)
{
    uint64_t h = bt_str_hash(id);
    struct shard *s = &t->shards[h % SHARDS];
    bool has;

    pthread_mutex_lock(&s->lock);
    has = *find(s, h, id) != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

/* id without one "-<i>" or "-a<k>"; itself when it has none. */
static bt_str_t without_suffix(bt_str_t id)
{
    size_t at = id.n;

    while (at > 0 && id.n - at < SUFFIX_DIGITS && id.p[at - 1] >= '0' && id.p[at - 1] <= '9')
        at--;
    if (at == id.n)
        return id;
    if (at > 0 && id.p[at - 1] == 'a')
        at--;
    return at > 1 && id.p[at - 1] == '-' ? (bt_str_t){id.p, at - 1} : id;
}

bool bt_ids_derives(struct bt_id_table *t, bt_str_t id)
{
    for (unsigned suffixes = 0; suffixes < 2; suffixes++) { /* of a child, and of its retry */
        const bt_str_t base = without_suffix(id);
        if (base.n == id.n)
            return false;
        if (bt_ids_has(t, base))
            return true;
        id = base;
    }
    return false;
}
