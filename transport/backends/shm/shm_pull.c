/* Reading a peer's private memory: process_vm_readv, which the kernel allows as it allows ptrace. Under Yama (ptrace_scope 1) the peer must name us by
 * PR_SET_PTRACER first. It is asked only when the first probe fails, because a process has one such slot: setting it takes the grant from whomever other
 * libraries in the process gave it to. For the same reason one reader is granted at a time; the next ones get the copy window.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "transport/backends/shm/shm.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

static struct {
    pthread_mutex_t lock; /* agents of one process share the slot */
    const void *who;
    pid_t pid;
} grant = {.lock = PTHREAD_MUTEX_INITIALIZER};

int bt_shm_probe(pid_t pid, uint64_t at, uint64_t word)
{
    uint64_t seen = ~word;
    struct iovec to = {&seen, sizeof(seen)};
    struct iovec from = {(void *) (uintptr_t) at, sizeof(seen)};

    if (bt_shm_hooks.probe_failures != 0) {
        if (bt_shm_hooks.probe_failures > 0)
            bt_shm_hooks.probe_failures--;
        return EPERM;
    }
    if (pid <= 0)
        return ESRCH;
    ssize_t n = process_vm_readv(pid, &to, 1, &from, 1, 0);
    if (n != (ssize_t) sizeof(seen))
        return n < 0 ? errno : EFAULT;
    return seen == word ? 0 : EFAULT; /* EFAULT: that pid is another process in our namespace */
}

bool bt_shm_grant(const void *who, pid_t pid)
{
    pthread_mutex_lock(&grant.lock);
    bool is_free = grant.who == NULL || grant.pid == pid;
    /* Fails where there is no Yama: then something else forbids it, and the second probe will say so. */
    if (is_free && pid > 0) {
        (void) prctl(PR_SET_PTRACER, (unsigned long) pid, 0, 0, 0);
        grant.who = who;
        grant.pid = pid;
    }
    pthread_mutex_unlock(&grant.lock);
    return is_free && pid > 0;
}

void bt_shm_revoke(const void *who)
{
    pthread_mutex_lock(&grant.lock);
    if (grant.who == who) {
        (void) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
        grant.who = NULL;
        grant.pid = 0;
    }
    pthread_mutex_unlock(&grant.lock);
}

/* One more piece; a neighbour on both sides is merged with the last. */
static void add(struct iovec *to, struct iovec *from, uint32_t *count, char *dst, const char *src,
                size_t bytes)
{
    uint32_t n = *count;
    if (n > 0 && (char *) to[n - 1].iov_base + to[n - 1].iov_len == dst &&
        (char *) from[n - 1].iov_base + from[n - 1].iov_len == src) {
        to[n - 1].iov_len += bytes;
        from[n - 1].iov_len += bytes;
        return;
    }
    to[n] = (struct iovec){dst, bytes};
    from[n] = (struct iovec){(void *) (uintptr_t) src, bytes};
    *count = n + 1;
}

static void skip(struct iovec *iov, uint32_t count, uint32_t *at, size_t bytes)
{
    while (*at < count && bytes >= iov[*at].iov_len)
        bytes -= iov[(*at)++].iov_len;
    if (*at < count) {
        iov[*at].iov_base = (char *) iov[*at].iov_base + bytes;
        iov[*at].iov_len -= bytes;
    }
}

int bt_shm_pull(pid_t pid, const bt_shm_slice_t *slice)
{
    struct iovec to[BT_SHM_IOVS], from[BT_SHM_IOVS];
    uint32_t count = 0, to_at = 0, from_at = 0;

    for (uint32_t i = 0; i < slice->count; i++) {
        const bt_kv_copy_piece_t *piece = &slice->pieces[i];
        for (uint32_t row = 0; row < piece->rows; row++)
            add(to, from, &count, piece->dst + (size_t) row * piece->dst_stride,
                piece->src + (size_t) row * piece->src_stride, piece->bytes);
    }
    while (to_at < count) {
        ssize_t n =
            process_vm_readv(pid, to + to_at, count - to_at, from + from_at, count - from_at, 0);
        if (n <= 0)
            return n < 0 ? errno : EFAULT;
        skip(to, count, &to_at, (size_t) n);
        skip(from, count, &from_at, (size_t) n);
    }
    return 0;
}
