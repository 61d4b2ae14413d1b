/* A worker whose name is not resolved yet has no address: its host is a stranger until it has one. SGLang's ranks try five times over half a minute. */
#include "transfer/registry_peers.h"

#include "base/err.h"
#include "loop/resolve.h"

#include <stdlib.h>

int bt_registry_peers_init(bt_registry_peers_t *peers, const char *const *allowed, unsigned count)
{
    *peers = (bt_registry_peers_t){.allowed_count = count};
    if (count > 0 && (peers->allowed = calloc(count, sizeof(*peers->allowed))) == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++)
        if (bt_network_parse(&peers->allowed[i], allowed[i]) < 0) {
            bt_registry_peers_fini(peers);
            return BT_E_INVAL;
        }
    return 0;
}

void bt_registry_peers_fini(bt_registry_peers_t *peers)
{
    bt_workers_unref(peers->workers);
    free(peers->allowed);
    *peers = (bt_registry_peers_t){0};
}

void bt_registry_peers_set_workers(bt_registry_peers_t *peers, bt_workers_t *workers)
{
    bt_workers_t *old = peers->workers;

    peers->workers = workers != NULL ? bt_workers_ref(workers) : NULL;
    bt_workers_unref(old);
}

static bool is_a_workers(const bt_workers_t *workers, const struct sockaddr_storage *peer)
{
    struct sockaddr_storage addr;

    for (unsigned i = 0; workers != NULL && i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++)
            if (bt_worker_get_addr(workers->pools[i].all.items[k], &addr) &&
                bt_network_same(&addr, peer))
                return true;
    return false;
}

static bool is_named(const bt_registry_peers_t *peers, const struct sockaddr_storage *addr)
{
    for (unsigned i = 0; i < peers->allowed_count; i++)
        if (bt_network_has(&peers->allowed[i], addr))
            return true;
    return false;
}

bool bt_registry_peers_is_named(const bt_registry_peers_t *peers, const char *peer)
{
    struct sockaddr_storage addr;

    return bt_resolve_numeric(peer, 0, &addr) == 0 && is_named(peers, &addr);
}

bool bt_registry_peers_has(const bt_registry_peers_t *peers, const char *peer)
{
    struct sockaddr_storage addr;

    if (bt_resolve_numeric(peer, 0, &addr) < 0)
        return false;
    return bt_network_is_loopback(&addr) || is_named(peers, &addr) ||
           is_a_workers(peers->workers, &addr);
}

int bt_registry_peers_list(const bt_registry_peers_t *peers, bt_network_t **list_p,
                           unsigned *count_p)
{
    const bt_workers_t *workers = peers->workers;
    unsigned room = peers->allowed_count + 2, count = 0;
    struct sockaddr_storage addr;

    for (unsigned i = 0; workers != NULL && i < workers->pool_count; i++)
        room += workers->pools[i].all.count;
    bt_network_t *list = calloc(room, sizeof(*list));
    if (list == NULL)
        return BT_E_NOMEM;
    (void) bt_network_parse(&list[count++], "127.0.0.0/8");
    (void) bt_network_parse(&list[count++], "::1");
    for (unsigned i = 0; i < peers->allowed_count; i++)
        list[count++] = peers->allowed[i];
    for (unsigned i = 0; workers != NULL && i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++)
            if (bt_worker_get_addr(workers->pools[i].all.items[k], &addr))
                count += bt_network_host(&list[count], &addr) == 0;
    *list_p = list;
    *count_p = count;
    return 0;
}
