/* A table of addresses under one lock, which is taken when a connection comes and when it goes. Who has a whole /64 of IPv6 has
 * 2^64 addresses, so those are one peer; an IPv4 address within IPv6 is an IPv4 address. */
#include "base/rand.h"
#include "http/budget_impl.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHAINS 4096 /* a power of two */

struct bt_peers {
    pthread_mutex_t lock;
    unsigned set_count;
    uint64_t seed; /* nobody chooses addresses that share a chain */
    struct bt_peer *chains[CHAINS];
};

bt_peers_t *bt_peers_new(unsigned set_count)
{
    bt_peers_t *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->set_count = set_count;
    t->seed = bt_rand_u64() | 1;
    return t;
}

static void free_peer(struct bt_peer *peer)
{
    free(peer->group.sets);
    free(peer);
}

void bt_peers_free(bt_peers_t *t)
{
    if (t == NULL)
        return;
    for (unsigned i = 0; i < CHAINS; i++)
        while (t->chains[i] != NULL) {
            struct bt_peer *peer = t->chains[i];
            t->chains[i] = peer->next;
            free_peer(peer);
        }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static bool key_of(const struct sockaddr_storage *addr, uint64_t key[2])
{
    key[0] = key[1] = 0;
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *) addr;
        key[1] = ntohl(v4->sin_addr.s_addr) | UINT64_C(1) << 32;
        return true;
    }
    if (addr->ss_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *) (const void *) addr)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(v6)) {
        uint32_t v4;
        memcpy(&v4, &v6->s6_addr[12], sizeof(v4));
        key[1] = ntohl(v4) | UINT64_C(1) << 32;
    } else {
        memcpy(&key[0], v6->s6_addr, sizeof(key[0]));
    }
    return true;
}

static struct bt_peer **chain_of(bt_peers_t *t, const uint64_t key[2])
{
    uint64_t h = (key[0] ^ t->seed) * UINT64_C(0x9e3779b97f4a7c15);

    h = (h ^ (h >> 32) ^ key[1]) * t->seed;
    return &t->chains[(h >> 40) % CHAINS];
}

static struct bt_peer *new_peer(const bt_peers_t *t, const uint64_t key[2])
{
    struct bt_peer *peer = calloc(1, sizeof(*peer));
    struct bt_idle_set *sets = bt_idle_sets_new(t->set_count);

    if (peer == NULL || sets == NULL) {
        free(peer);
        free(sets);
        return NULL;
    }
    memcpy(peer->key, key, sizeof(peer->key));
    bt_group_init(&peer->group, BT_GROUP_PEER, sets, t->set_count);
    return peer;
}

static struct bt_peer *find(bt_peers_t *t, const uint64_t key[2])
{
    struct bt_peer **chain = chain_of(t, key), *peer = *chain;

    while (peer != NULL && memcmp(peer->key, key, sizeof(peer->key)) != 0)
        peer = peer->next;
    if (peer == NULL && (peer = new_peer(t, key)) != NULL) {
        peer->next = *chain;
        *chain = peer;
    }
    return peer;
}

struct bt_peer *bt_peers_enter(bt_peers_t *t, const struct sockaddr_storage *from, unsigned *open_p)
{
    struct bt_peer *peer;
    uint64_t key[2];

    if (!key_of(from, key))
        return NULL;
    pthread_mutex_lock(&t->lock);
    peer = find(t, key);
    if (peer != NULL) {
        peer->refs++;
        *open_p = atomic_fetch_add_explicit(&peer->group.open, 1, memory_order_relaxed) + 1;
    }
    pthread_mutex_unlock(&t->lock);
    return peer;
}

void bt_peers_leave(bt_peers_t *t, struct bt_peer *peer)
{
    atomic_fetch_sub_explicit(&peer->group.open, 1, memory_order_relaxed);
    bt_peers_unref(t, peer);
}

void bt_peers_ref(bt_peers_t *t, struct bt_peer *peer)
{
    pthread_mutex_lock(&t->lock);
    peer->refs++;
    pthread_mutex_unlock(&t->lock);
}

void bt_peers_unref(bt_peers_t *t, struct bt_peer *peer)
{
    pthread_mutex_lock(&t->lock);
    const bool is_last = --peer->refs == 0;
    struct bt_peer **link = chain_of(t, peer->key);
    while (is_last && *link != peer)
        link = &(*link)->next;
    if (is_last)
        *link = peer->next;
    pthread_mutex_unlock(&t->lock);
    if (is_last)
        free_peer(peer);
}
