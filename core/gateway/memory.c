#include "gateway/memory.h"

#include "base/err.h"
#include "base/sanitize.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define MIB (UINT64_C(1) << 20)
#define SPARE (8 * MIB)        /* policies' heaps that grow, a reload beside what serves */
#define POOL_THREADS 4U        /* of uv, which start with the first work */
#define ARENA_SPACE (64 * MIB) /* addresses that malloc takes for a thread, used or not */

int bt_memory_fits(const bt_memory_need_t *ask, char *err, size_t err_size)
{
    uint64_t base = ask->held + SPARE;
    const uint64_t buffered = ask->max_buffered + ask->max_buffered / 8;
    char can[128] = "too little for any request: ";

    if (ask->limit >= base + buffered)
        return 0;
    base += ask->jitter;
    const uint64_t most = ask->limit > base ? (ask->limit - base) / 9 * 8 / MIB : 0; /* MiB */
    if (most > 0)
        snprintf(can, sizeof(can), "which holds %llu MiB of requests: lower the flag to %llu, or ",
                 (unsigned long long) most, (unsigned long long) (most * MIB));
    snprintf(
        err, err_size, "--max-buffered-bytes %llu: %s is %llu MiB, %sraise the limit to %llu MiB",
        (unsigned long long) ask->max_buffered, ask->name, (unsigned long long) (ask->limit / MIB),
        can, (unsigned long long) ((base + buffered + MIB - 1) / MIB));
    return BT_E_CONFIG;
}

/* ---- the process ---- */

/* "VmData:	  123 kB" of /proc/self/status, in bytes; 0 = not told. */
static uint64_t read_status(const char *name)
{
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long long kib = 0;
    char line[128];

    if (file == NULL)
        return 0;
    while (kib == 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            (void) sscanf(line + strlen(name), " %llu", &kib);
    fclose(file);
    return kib * 1024;
}

static uint64_t stack_bytes(void)
{
    pthread_attr_t attr;
    size_t bytes = 8 * MIB;

    if (pthread_getattr_default_np(&attr) == 0) {
        (void) pthread_attr_getstacksize(&attr, &bytes);
        pthread_attr_destroy(&attr);
    }
    return bytes;
}

static uint64_t bytes_of(const struct rlimit *limit)
{
    return limit->rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit->rlim_cur;
}

int bt_gateway_memory_check(const bt_gateway_t *g, char *err, size_t err_size)
{
    const uint64_t threads = g->config->loops + POOL_THREADS, stacks = threads * stack_bytes();
    bt_memory_need_t data = {.name = "the limit of data (ulimit -d, LimitDATA=)",
                             .held = read_status("VmData:") + stacks,
                             .jitter = stack_bytes(),
                             .max_buffered = g->config->server.max_buffered_bytes};
    bt_memory_need_t space = {.name = "the limit of address space (ulimit -v, LimitAS=)",
                              .held = read_status("VmSize:") + stacks + threads * ARENA_SPACE,
                              .jitter = 2 * ARENA_SPACE, /* of threads that have begun or not */
                              .max_buffered = data.max_buffered};
    struct rlimit limit;
    int rc = 0;

    if (BT_ASAN || BT_TSAN)
        return 0;
    if (getrlimit(RLIMIT_DATA, &limit) == 0) {
        data.limit = bytes_of(&limit);
        rc = bt_memory_fits(&data, err, err_size);
    }
    if (rc == 0 && getrlimit(RLIMIT_AS, &limit) == 0) {
        space.limit = bytes_of(&limit);
        rc = bt_memory_fits(&space, err, err_size);
    }
    return rc;
}
