/* What may be mapped of a peer: a memfd (tmpfs) of the size it says, sealed against shrinking. Without the seal the peer could cut the file under us and
 * each load would be a SIGBUS. F_SEAL_FUTURE_WRITE, where the kernel has it, lets nobody but the maker write, and forbids punching holes, so that a read
 * never has to allocate. On hugetlbfs, where a hole can fault for want of a huge page, that seal is asked for; mmap reserves what is not there yet.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "transport/backends/shm/shm.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define TMPFS 0x01021994
#define HUGETLBFS 0x958458f6
#define HUGE_BYTES ((size_t) 2 << 20)

bool bt_shm_seal(int fd)
{
    int size = F_SEAL_SHRINK | F_SEAL_GROW;
    if (bt_shm_hooks.no_seal)
        return true; /* as a peer that lies */
    if (fcntl(fd, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        (void) fcntl(fd, F_ADD_SEALS, size | F_SEAL_SEAL); /* before Linux 5.1; or sealed already */
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

int bt_shm_area_make(bt_shm_area_t **area_p, int *fd_p)
{
    int fd = memfd_create("baton-kv-path", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *p = MAP_FAILED;

    if (fd < 0 || ftruncate(fd, (off_t) sizeof(bt_shm_area_t)) != 0)
        goto err_fd;
    p = mmap(NULL, sizeof(bt_shm_area_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        goto err_fd;
    if (!bt_shm_seal(fd))
        goto err_map;
    *area_p = p;
    *fd_p = fd;
    return 0;
err_map:
    munmap(p, sizeof(bt_shm_area_t));
err_fd:
    if (fd >= 0)
        close(fd);
    return BT_E_NOMEM;
}

int bt_shm_map_fd(int fd, size_t size, bt_shm_view_t *view_p, const char **why_p)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);

    *why_p = "it is not a memfd";
    if (seals < 0 || fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0 ||
        (fs.f_type != TMPFS && fs.f_type != HUGETLBFS))
        return BT_E_INVAL;
    bool is_huge = fs.f_type == HUGETLBFS;
    int needed = F_SEAL_SHRINK | (is_huge ? F_SEAL_FUTURE_WRITE : 0);
    *why_p = "it is not sealed against shrinking";
    if ((seals & needed) != needed)
        return BT_E_INVAL;
    *why_p = "it is smaller than the peer says";
    if (size == 0 || st.st_size < 0 || (uint64_t) st.st_size < size)
        return BT_E_INVAL;
    *why_p = "there is no address space for it";
    size_t unit = is_huge ? (size_t) st.st_blksize : 1; /* munmap takes whole pages there */
    size_t length = (size + unit - 1) / unit * unit;
    void *p = bt_shm_hooks.no_map ? MAP_FAILED : mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return BT_E_NOMEM;
    (void) madvise(p, length, MADV_HUGEPAGE); /* a wish: slower without it, and right */
    *view_p = (bt_shm_view_t){p, length};
    return 0;
}

static bool is_resident(void *p, size_t bytes)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE);
    unsigned char pages[HUGE_BYTES / 4096];
    memset(pages, 0, sizeof(pages));
    if (mincore(p, bytes, pages) != 0)
        return false;
    for (size_t i = 0; i < (bytes + page - 1) / page; i++)
        if ((pages[i] & 1) == 0)
            return false;
    return true;
}

/* Only what the pool's owner has touched: reading a hole would allocate memory of the peer's at our expense. */
void bt_shm_populate(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += HUGE_BYTES) {
        void *block = (void *) (uintptr_t) (p + at);
        size_t size = bytes - at < HUGE_BYTES ? bytes - at : HUGE_BYTES;
        /* Before Linux 5.14 there is no such advice; then the first copy faults the pages in. */
        if (is_resident(block, size))
            (void) madvise(block, size, MADV_POPULATE_READ);
    }
}

/* ---- the peer's regions, sorted by id ---- */
static uint32_t lower_bound(const bt_shm_maps_t *maps, bt_kv_region_t id)
{
    uint32_t low = 0, high = maps->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (maps->all[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void bt_shm_unmap(const bt_shm_view_t *view)
{
    if (view->p != NULL)
        munmap((void *) (uintptr_t) view->p, view->length);
}

int bt_shm_maps_add(bt_shm_maps_t *maps, const bt_shm_map_t *map)
{
    uint32_t at = lower_bound(maps, map->id);

    if (at < maps->count && maps->all[at].id == map->id)
        return BT_E_INVAL;
    if (maps->count == maps->room) {
        uint32_t room = maps->room == 0 ? 16 : maps->room * 2;
        if (room > BT_SHM_REGIONS_MAX)
            return BT_E_LIMIT;
        bt_shm_map_t *all = realloc(maps->all, room * sizeof(*all));
        if (all == NULL)
            return BT_E_NOMEM;
        maps->all = all;
        maps->room = room;
    }
    memmove(&maps->all[at + 1], &maps->all[at], (maps->count - at) * sizeof(*maps->all));
    maps->all[at] = *map;
    maps->count++;
    return 0;
}

const bt_shm_map_t *bt_shm_maps_find(bt_shm_maps_t *maps, bt_kv_region_t id)
{
    if (maps->last < maps->count && maps->all[maps->last].id == id)
        return &maps->all[maps->last];
    uint32_t at = lower_bound(maps, id);
    if (at == maps->count || maps->all[at].id != id)
        return NULL;
    maps->last = at;
    return &maps->all[at];
}

void bt_shm_maps_remove(bt_shm_maps_t *maps, bt_kv_region_t id)
{
    const bt_shm_map_t *map = bt_shm_maps_find(maps, id);
    if (map == NULL)
        return;
    uint32_t at = (uint32_t) (map - maps->all);
    bt_shm_unmap(&map->view);
    maps->count--;
    memmove(&maps->all[at], &maps->all[at + 1], (maps->count - at) * sizeof(*maps->all));
}

void bt_shm_maps_free(bt_shm_maps_t *maps)
{
    for (uint32_t i = 0; i < maps->count; i++)
        bt_shm_unmap(&maps->all[i].view);
    free(maps->all);
    *maps = (bt_shm_maps_t){0};
}

const char *bt_shm_maps_populate_next(bt_shm_maps_t *maps, size_t *bytes_p)
{
    for (uint32_t i = 0; i < maps->count; i++) {
        bt_shm_map_t *map = &maps->all[i];
        size_t at = map->populated_bytes;
        if (map->view.p == NULL || at >= map->size)
            continue;
        size_t left = map->size - at;
        *bytes_p = left < BT_SHM_POPULATE_BYTES ? left : BT_SHM_POPULATE_BYTES;
        map->populated_bytes += *bytes_p;
        return map->view.p + at;
    }
    return NULL;
}
