/* Regions and layouts of this agent. Numbers are given out lowest first and may come again, since a peer is told in order what goes and what comes.
 *
 * A pool is a memfd, so that peers on this host can map it: of huge pages where the system has reserved some, else aligned to them and advised, because
 * copies between processes are two to three times faster on huge pages.
 */
#include "transport/agent/agent.h"
#include "transport/control/link.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t) 2 << 20)
#define NUMBERS_MAX 65536u

bt_kv_mem_t *bt_kv_mem_find(bt_kv_agent_t *agent, bt_kv_region_t region)
{
    return region != 0 && region <= agent->mem_room ? agent->mems[region - 1] : NULL;
}

struct bt_kv_layout *bt_kv_layout_find(bt_kv_agent_t *agent, bt_kv_layout_t layout)
{
    return layout != 0 && layout <= agent->layout_room ? agent->layouts[layout - 1] : NULL;
}

int bt_kv_piece_check(bt_kv_agent_t *agent, const bt_kv_piece_t *piece)
{
    const bt_kv_mem_t *mem = bt_kv_mem_find(agent, piece->region);

    if (piece->bytes == 0)
        return 0;
    return mem == NULL || mem->p == NULL || piece->bytes > BT_KV_RUN_MAX ||
                   piece->offset > mem->size || piece->bytes > mem->size - piece->offset
               ? BT_E_INVAL
               : 0;
}

/* The lowest free place of a table of pointers that grows. */
static int free_place(void ***table, uint32_t *room, uint32_t *place_p)
{
    for (uint32_t i = 0; i < *room; i++)
        if ((*table)[i] == NULL) {
            *place_p = i;
            return 0;
        }
    if (*room >= NUMBERS_MAX)
        return BT_E_LIMIT;
    uint32_t more = *room == 0 ? 16 : *room * 2;
    void **grown = realloc((void *) *table, more * sizeof(void *));
    if (grown == NULL)
        return BT_E_NOMEM;
    memset((void *) (grown + *room), 0, (more - *room) * sizeof(void *));
    *table = grown;
    *place_p = *room;
    *room = more;
    return 0;
}

/* ---- regions ---- */
static void unmap(bt_kv_mem_t *mem)
{
    if (!mem->is_pool)
        return;
    munmap(mem->p, mem->mapped);
    close(mem->fd);
}

static void remove_from(bt_kv_agent_t *agent, bt_kv_mem_t *mem, unsigned end)
{
    for (unsigned i = end; i-- > 0;)
        if (agent->backends[i] != NULL && agent->backends[i]->ops->region_remove != NULL)
            agent->backends[i]->ops->region_remove(agent->backends[i], mem);
}

/* Device memory is for those that can take it; one is enough. All others must be good for all back ends, as the peer decides which. */
static int add_device(bt_kv_agent_t *agent, bt_kv_mem_t *mem)
{
    int rc = agent->is_fake ? 0 : BT_E_INVAL;

    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        if (agent->backends[i] != NULL && agent->backends[i]->ops->region_add != NULL &&
            agent->backends[i]->ops->region_add(agent->backends[i], mem) == 0)
            rc = 0;
    return rc;
}

static int add_to_backends(bt_kv_agent_t *agent, bt_kv_mem_t *mem)
{
    if (mem->p == NULL)
        return add_device(agent, mem);
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++) {
        bt_kv_backend_t *backend = agent->backends[i];
        bool has_list = backend != NULL && backend->ops->region_add != NULL;
        int rc = has_list ? backend->ops->region_add(backend, mem) : 0;
        if (rc != 0) {
            remove_from(agent, mem, i);
            return rc;
        }
    }
    return 0;
}

/* Takes over what `like` says. */
static int add_mem(bt_kv_agent_t *agent, const bt_kv_mem_t *like, bt_kv_region_t *region_p)
{
    uint32_t place = 0;
    bt_kv_mem_t *mem = malloc(sizeof(*mem));

    if (mem == NULL)
        return BT_E_NOMEM;
    *mem = *like;
    bt_kv_enter(agent);
    int rc = free_place((void ***) &agent->mems, &agent->mem_room, &place);
    mem->id = place + 1;
    if (rc == 0)
        rc = add_to_backends(agent, mem);
    if (rc == 0) {
        *region_p = mem->id;
        agent->mems[place] = mem;
        for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
            bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
            if (link->state == BT_KV_LINK_UP)
                bt_kv_link_send_region(link, mem);
        }
    } else {
        free(mem);
    }
    bt_kv_leave(agent);
    return rc;
}

int bt_kv_region_add(bt_kv_agent_t *agent, void *p, size_t size, bt_kv_region_t *region_p)
{
    if (agent == NULL || p == NULL || size == 0 || region_p == NULL)
        return BT_E_INVAL;
    return add_mem(agent, &(bt_kv_mem_t){.p = p, .size = size, .fd = -1}, region_p);
}

int bt_kv_region_add_dmabuf(bt_kv_agent_t *agent, int fd, uint64_t offset, size_t size,
                            bt_kv_region_t *region_p)
{
    if (agent == NULL || fd < 0 || size == 0 || region_p == NULL)
        return BT_E_INVAL;
    return add_mem(agent, &(bt_kv_mem_t){.size = size, .fd = fd, .fd_offset = offset}, region_p);
}

/* Places begin on a huge page, so that the system may use some. A huge-page file brings that with it. For others enough is reserved to
 * find such a place in it; a refused MAP_FIXED may have emptied the place already, and another thread may have it by now: only what is
 * around it is given back. */
static void *map_aligned(int fd, size_t length)
{
    char *at = mmap(NULL, length + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
         *begin;
    size_t before;
    void *p;

    if (at == MAP_FAILED)
        return MAP_FAILED;
    before = (HUGE_BYTES - (uintptr_t) at % HUGE_BYTES) % HUGE_BYTES;
    begin = at + before;
    p = mmap(begin, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (before > 0)
        munmap(at, before);
    munmap(begin + length, HUGE_BYTES - before);
    return p;
}

static int map_pool(bt_kv_mem_t *mem, size_t size, unsigned flags, size_t unit)
{
    size_t length = (size + unit - 1) / unit * unit;
    int fd = memfd_create("baton-kv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    void *p = MAP_FAILED;

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t) length) == 0)
        p = (flags & MFD_HUGETLB) != 0
                ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                : map_aligned(fd, length);
    if (p == MAP_FAILED) {
        close(fd);
        return BT_E_NOMEM;
    }
    *mem = (bt_kv_mem_t){.p = p, .size = size, .fd = fd, .is_pool = true, .mapped = length};
    return 0;
}

int bt_kv_pool_alloc(bt_kv_agent_t *agent, size_t size, void **p, bt_kv_region_t *region_p)
{
    bt_kv_mem_t mem;
    int rc = -1;

    if (agent == NULL || size == 0 || size > (size_t) 1 << 46 || p == NULL || region_p == NULL)
        return BT_E_INVAL;
    if (size >= HUGE_BYTES)
        rc = map_pool(&mem, size, MFD_HUGETLB, HUGE_BYTES);
    if (rc != 0)
        rc = map_pool(&mem, size, 0, size >= HUGE_BYTES ? HUGE_BYTES : 4096);
    if (rc != 0)
        return BT_E_NOMEM;
    madvise(mem.p, mem.mapped, MADV_HUGEPAGE);
    rc = add_mem(agent, &mem, region_p);
    if (rc != 0)
        unmap(&mem);
    else
        *p = mem.p;
    return rc;
}

static void notify_gone(bt_kv_agent_t *agent, enum bt_kv_frame_type type, uint32_t id)
{
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        if (link->state != BT_KV_LINK_UP)
            continue;
        bt_kv_put_id(&link->out, type, id);
        bt_kv_link_send(link);
    }
}

int bt_kv_region_remove(bt_kv_agent_t *agent, bt_kv_region_t region)
{
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    bt_kv_mem_t *mem = bt_kv_mem_find(agent, region);
    int rc = mem == NULL ? BT_E_INVAL : mem->refs > 0 ? BT_E_AGAIN : 0;
    if (rc == 0) {
        notify_gone(agent, BT_KV_REGION_GONE, region);
        remove_from(agent, mem, BT_KV_BACKENDS);
        agent->mems[region - 1] = NULL;
    }
    bt_kv_leave(agent);
    if (rc == 0) {
        unmap(mem);
        free(mem);
    }
    return rc;
}

/* ---- layouts ---- */
static uint64_t size_of(void *user, bt_kv_region_t region)
{
    const bt_kv_mem_t *mem = bt_kv_mem_find(user, region);
    return mem != NULL ? mem->size : 0;
}

static int add_layout(bt_kv_agent_t *agent, const bt_kv_buffer_t *buffers, uint32_t count,
                      uint32_t pages, struct bt_kv_layout **layout_p)
{
    const char *why;
    uint32_t place;
    int rc = bt_kv_layout_make(layout_p, buffers, count, pages, size_of, agent, &why);

    if (rc != 0)
        return rc;
    struct bt_kv_layout *layout = *layout_p;
    layout->mems = calloc(count, sizeof(bt_kv_mem_t *));
    rc = layout->mems == NULL ? BT_E_NOMEM
                              : free_place((void ***) &agent->layouts, &agent->layout_room, &place);
    if (rc != 0) {
        bt_kv_layout_free(layout);
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        layout->mems[i] = bt_kv_mem_find(agent, buffers[i].region);
        layout->mems[i]->refs++;
        layout->is_opaque |= layout->mems[i]->p == NULL;
    }
    layout->id = place + 1;
    agent->layouts[place] = layout;
    return 0;
}

int bt_kv_layout_add(bt_kv_agent_t *agent, const bt_kv_buffer_t *buffers, uint32_t count,
                     uint32_t pages, bt_kv_layout_t *layout_p)
{
    struct bt_kv_layout *layout;

    if (agent == NULL || buffers == NULL || layout_p == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    int rc = add_layout(agent, buffers, count, pages, &layout);
    if (rc == 0) {
        *layout_p = layout->id;
        for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
            bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
            if (link->state != BT_KV_LINK_UP)
                continue;
            bt_kv_put_layout(&link->out, layout->id, buffers, count, pages);
            bt_kv_link_send(link);
        }
    }
    bt_kv_leave(agent);
    return rc;
}

static void free_layout(bt_kv_agent_t *agent, struct bt_kv_layout *layout)
{
    for (uint32_t i = 0; i < layout->count; i++)
        layout->mems[i]->refs--;
    agent->layouts[layout->id - 1] = NULL;
    bt_kv_layout_free(layout);
}

int bt_kv_layout_remove(bt_kv_agent_t *agent, bt_kv_layout_t id)
{
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    struct bt_kv_layout *layout = bt_kv_layout_find(agent, id);
    int rc = layout == NULL ? BT_E_INVAL : layout->refs > 0 ? BT_E_AGAIN : 0;
    if (rc == 0) {
        notify_gone(agent, BT_KV_LAYOUT_GONE, id);
        free_layout(agent, layout);
    }
    bt_kv_leave(agent);
    return rc;
}

void bt_kv_memory_fini(bt_kv_agent_t *agent)
{
    for (uint32_t i = 0; i < agent->layout_room; i++)
        if (agent->layouts[i] != NULL)
            free_layout(agent, agent->layouts[i]);
    for (uint32_t i = 0; i < agent->mem_room; i++) {
        bt_kv_mem_t *mem = agent->mems[i];
        if (mem == NULL)
            continue;
        remove_from(agent, mem, BT_KV_BACKENDS);
        unmap(mem);
        free(mem);
    }
    free((void *) agent->mems);
    free((void *) agent->layouts);
}
