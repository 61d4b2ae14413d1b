/* Memory: ours is registered with every rail once; the peer's is known by number, address and a key per rail of its own.
 *
 * A key on the wire: base address (8 bytes), then 4 bytes of rkey per rail. The table of the peer's regions is bounded: a peer that announces
 * without end is refused.
 */
#include "transport/backends/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REGIONS_MAX 65536u
#define PAGE 4096u
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

bool bt_verbs_mem_probe_dmabuf(const bt_verbs_rail_t *rail)
{
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(rail->pd, 0, PAGE, 0, -1, ACCESS);

    if (mr != NULL) {
        ibv_dereg_mr(mr);
        return true;
    }
    return errno == EBADF;
}

/* Relaxed ordering is an optional flag: dropped in silence where the device has it not. Not where the peer's word comes by another
 * way than the data (control): it could overtake them then. */
static struct ibv_mr *reg_on(const bt_verbs_t *verbs, const bt_verbs_rail_t *rail,
                             const bt_kv_mem_t *mem)
{
    int access = ACCESS;

    if ((verbs->modes & BT_VERBS_CONTROL) == 0)
        access |= IBV_ACCESS_RELAXED_ORDERING;
    if (mem->fd >= 0 && !mem->is_pool)
        return ibv_reg_dmabuf_mr(rail->pd, mem->fd_offset, mem->size, mem->fd_offset, mem->fd,
                                 access);
    return ibv_reg_mr(rail->pd, mem->p, mem->size, (unsigned) access);
}

int bt_verbs_mem_add(bt_kv_backend_t *backend, bt_kv_mem_t *mem)
{
    bt_verbs_t *verbs = bt_verbs_of(backend);
    bool is_dmabuf = mem->fd >= 0 && !mem->is_pool;
    bt_verbs_mem_t *key;

    if (is_dmabuf && !verbs->has_dmabuf)
        return BT_E_INVAL;
    key = calloc(1, sizeof(*key));
    if (key == NULL)
        return BT_E_NOMEM;
    key->base = is_dmabuf ? mem->fd_offset : (uintptr_t) mem->p;
    mem->keys[4] = key;
    for (unsigned i = 0; i < verbs->rail_count; i++) {
        key->mr[i] = reg_on(verbs, &verbs->rails[i], mem);
        if (key->mr[i] == NULL) {
            int rc = errno == ENOMEM || errno == EAGAIN ? BT_E_NOMEM : BT_E_INVAL;
            bt_verbs_mem_remove(backend, mem);
            return rc;
        }
    }
    return 0;
}

void bt_verbs_mem_remove(bt_kv_backend_t *backend, bt_kv_mem_t *mem)
{
    (void) backend;
    bt_verbs_mem_t *key = mem->keys[4];

    if (key == NULL)
        return;
    for (unsigned i = 0; i < BT_VERBS_RAILS_MAX; i++)
        if (key->mr[i] != NULL)
            ibv_dereg_mr(key->mr[i]);
    free(key);
    mem->keys[4] = NULL;
}

size_t bt_verbs_mem_key(bt_kv_backend_t *backend, const bt_kv_mem_t *mem, uint8_t *to, size_t size)
{
    const bt_verbs_t *verbs = bt_verbs_of(backend);
    const bt_verbs_mem_t *key = mem->keys[4];
    size_t bytes = 8 + 4 * (size_t) verbs->rail_count;

    if (key == NULL || size < bytes)
        return 0;
    memcpy(to, &key->base, 8);
    for (unsigned i = 0; i < verbs->rail_count; i++)
        memcpy(to + 8 + 4 * i, &key->mr[i]->rkey, 4);
    return bytes;
}

static bt_verbs_region_t *slot_of(bt_verbs_region_t *regions, uint32_t slots, bt_kv_region_t id)
{
    uint32_t i = (id * 2654435761u) & (slots - 1);

    while (regions[i].id != 0 && regions[i].id != id)
        i = (i + 1) & (slots - 1);
    return &regions[i];
}

/* Makes room, and forgets removed regions. */
static int grow(bt_verbs_path_t *path)
{
    uint32_t slots = 16, live = 0;
    bt_verbs_region_t *regions;

    for (uint32_t i = 0; i < path->region_slots; i++)
        live += path->regions[i].size != 0;
    if (live >= REGIONS_MAX)
        return BT_E_LIMIT;
    while (slots < 4 * (live + 1))
        slots *= 2;
    regions = calloc(slots, sizeof(*regions));
    if (regions == NULL)
        return BT_E_NOMEM;
    for (uint32_t i = 0; i < path->region_slots; i++)
        if (path->regions[i].size != 0)
            *slot_of(regions, slots, path->regions[i].id) = path->regions[i];
    free(path->regions);
    path->regions = regions;
    path->region_slots = slots;
    path->region_count = live;
    path->last_region = NULL;
    return 0;
}

/* A removed region keeps its slot, with nothing in it, until the table grows. */
int bt_verbs_mem_peer(bt_kv_path_t *base, bt_kv_region_t id, uint64_t size, const uint8_t *key,
                      size_t key_size)
{
    bt_verbs_path_t *path = bt_verbs_path_of(base);

    if (id == 0 || (key != NULL && key_size != 8 + 4 * (size_t) path->peer_rails))
        return BT_E_INVAL;
    if (path->region_count * 2 >= path->region_slots) {
        int rc = grow(path);
        if (rc != 0)
            return rc;
    }
    bt_verbs_region_t *region = slot_of(path->regions, path->region_slots, id);
    path->region_count += region->id == 0;
    *region = (bt_verbs_region_t){.id = id};
    if (key == NULL)
        return 0;
    region->size = size;
    memcpy(&region->base, key, 8);
    memcpy(region->rkeys, key + 8, 4 * (size_t) path->peer_rails);
    return 0;
}

const bt_verbs_region_t *bt_verbs_mem_find(bt_verbs_path_t *path, bt_kv_region_t id)
{
    if (path->last_region != NULL && path->last_region->id == id)
        return path->last_region;
    if (path->region_slots == 0 || id == 0)
        return NULL;
    const bt_verbs_region_t *region = slot_of(path->regions, path->region_slots, id);
    if (region->size == 0)
        return NULL;
    path->last_region = region;
    return region;
}
