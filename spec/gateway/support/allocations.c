/* allocations.c - counts what a process asks of malloc; preloaded (LD_PRELOAD) by gateway/allocations_spec.
 *
 * BATON_SPEC_ALLOCATIONS names a file of one `struct counts`, shared with the spec. While `is_armed` is set, calls of all threads
 * but the first are counted (the control loop serves no requests, and libuv allocates each time it looks at a file), and who made the first ones is written to the file's name + ".stacks", over what stood there. What LuaJIT
 * takes by mmap for itself, before its heap is ours and for compiled code, is not seen here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define STACKS_MAX 2 /* of taking, and of freeing */
#define DEPTH_MAX 24

/* glibc's own, under the names that nobody replaces. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *p);
extern void
    *__libc_stack_end; /* of the main thread; other threads' stacks end below their pthread_t */

struct counts {
    _Atomic uint64_t is_armed, taken, freed;
};

static struct counts nobody, *counts = &nobody;
static int stacks_fd = -1;
static _Thread_local int is_inside;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("BATON_SPEC_ALLOCATIONS");
    char stacks[4096];
    void *shared;
    int fd;

    if (path == NULL || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
        return;
    snprintf(stacks, sizeof(stacks), "%s.stacks", path);
    stacks_fd = open(stacks, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    shared = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED)
        counts = shared;
    close(fd);
}

/* By frame pointers, which all of Baton's code keeps. C libraries and Lua keep none, so the walk ends there; an unwinder
 * would go on, and aborts in what LuaJIT has compiled. */
static void write_stack(uint64_t earlier)
{
    void **frame = __builtin_frame_address(0);
    const uintptr_t thread = (uintptr_t) pthread_self(), stack_end = (uintptr_t) __libc_stack_end;
    const uintptr_t end = (uintptr_t) frame < thread ? thread : stack_end;
    Dl_info at;

    if (stacks_fd < 0 || earlier >= STACKS_MAX)
        return;
    if (earlier == 0)
        (void) !ftruncate(stacks_fd, lseek(stacks_fd, 0, SEEK_SET));
    for (unsigned i = 0; i < DEPTH_MAX && dladdr(frame[1], &at) != 0; i++) {
        void **above = frame[0];
        dprintf(stacks_fd, "%s(+%#tx)\n", at.dli_fname, (char *) frame[1] - (char *) at.dli_fbase);
        if (above <= frame || (uintptr_t) above >= end || (uintptr_t) above % sizeof(void *) != 0)
            break;
        frame = above;
    }
    dprintf(stacks_fd, "--\n");
}

static void count(_Atomic uint64_t *kind)
{
    if (counts->is_armed == 0 || is_inside != 0 || gettid() == getpid())
        return;
    is_inside = 1;
    write_stack(atomic_fetch_add(kind, 1));
    is_inside = 0;
}

void *malloc(size_t size)
{
    count(&counts->taken);
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count(&counts->taken);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    count(&counts->taken);
    if (p != NULL)
        count(&counts->freed);
    return __libc_realloc(p, size);
}

void *memalign(size_t alignment, size_t size)
{
    count(&counts->taken);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **p, size_t alignment, size_t size)
{
    void *fresh = memalign(alignment, size);

    if (fresh == NULL)
        return ENOMEM;
    *p = fresh;
    return 0;
}

void free(void *p)
{
    if (p != NULL)
        count(&counts->freed);
    __libc_free(p);
}
