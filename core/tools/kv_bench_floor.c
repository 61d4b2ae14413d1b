/* What the machine can do without us, in the same run, over the same pages (adjoining ones merged,
 * as a careful program would): memcpy in one thread; the best of all ways of stores around the
 * cache; process_vm_readv out of a child's memory; a plain blocking writev/readv stream at the
 * congestion control that the TCP back end asks for; and ways to wake another process. Memory is of
 * the kind that the measured engine uses. The child of a floor is forked before it begins and ends
 * with it. */
#include "tools/kv_bench.h"

#include "transport/backends/copy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define IOVS 1024u
#define PAIR_BYTES ((size_t) 1 << 20)
#define WAY_SAMPLES (BENCH_SAMPLES / BT_KV_COPY_WAYS)

typedef struct floor {
    const bench_options_t *o;
    bench_shared_t *shared;
    bench_rows_t *rows;
    uint32_t rep;
    uint64_t *ns; /* samples */
    uint64_t until_ns;
    char *src, *dst;
} floor_t;

static bool goes_on(const floor_t *f, uint64_t n)
{
    return n == 0 || bench_now_ns() < f->until_ns;
}

static void begin(floor_t *f)
{
    f->until_ns = bench_now_ns() + f->o->cell_ns;
}

static bench_row_t *add_row(floor_t *f, const char *engine, const bench_shape_t *shape)
{
    bench_row_t *row = bench_row(f->rows, engine, shape, f->rep);
    row->is_floor = true;
    return row;
}

static void stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* The pages of operation k as pieces on both sides; their number. */
static uint32_t pieces(const floor_t *f, const bench_shape_t *shape, uint32_t k, struct iovec *src,
                       struct iovec *dst)
{
    uint32_t from[BENCH_PAGES], to[BENCH_PAGES];

    bench_pages(shape, k, from, to);
    (void) bench_pieces(shape, from, f->src, src);
    return bench_pieces(shape, to, f->dst, dst);
}

/* ---- memory to memory ---- */
static void copy_memcpy(const floor_t *f, const struct iovec *src, const struct iovec *dst,
                        uint32_t n, pid_t pid)
{
    (void) f;
    (void) pid;
    for (uint32_t i = 0; i < n; i++)
        memcpy(dst[i].iov_base, src[i].iov_base, src[i].iov_len);
}

static void copy_vm(const floor_t *f, const struct iovec *src, const struct iovec *dst, uint32_t n,
                    pid_t pid)
{
    (void) f;
    for (uint32_t i = 0; i < n; i += IOVS) {
        uint32_t count = n - i < IOVS ? n - i : IOVS;
        (void) !process_vm_readv(pid, dst + i, count, src + i, count, 0);
    }
}

static void copies(floor_t *f, const char *engine, const bench_shape_t *shape, pid_t pid,
                   void (*copy)(const floor_t *, const struct iovec *, const struct iovec *,
                                uint32_t, pid_t))
{
    struct iovec src[BENCH_PAGES], dst[BENCH_PAGES];
    uint64_t n = 0, sum = 0, cpu;
    bench_row_t *row = add_row(f, engine, shape);

    uint32_t count = pieces(f, shape, 0, src, dst);
    copy(f, src, dst, count, pid); /* warm */
    begin(f);
    cpu = bench_cpu_ns();
    for (; goes_on(f, n); n++) {
        count = pieces(f, shape, (uint32_t) n, src, dst);
        uint64_t t = bench_now_ns();
        copy(f, src, dst, count, pid);
        t = bench_now_ns() - t;
        f->ns[n % BENCH_SAMPLES] = t;
        sum += t;
    }
    bench_row_fill(row, shape, f->ns, n, sum, bench_cpu_ns() - cpu, 0);
    bench_print_row(f->o, row);
}

static void copy_by(bt_kv_copy_way_t way, const struct iovec *src, const struct iovec *dst,
                    uint32_t n)
{
    static bt_kv_copy_piece_t all[BENCH_PAGES];

    for (uint32_t i = 0; i < n; i++)
        all[i] = (bt_kv_copy_piece_t){.dst = dst[i].iov_base,
                                      .src = src[i].iov_base,
                                      .bytes = (uint32_t) src[i].iov_len,
                                      .rows = 1};
    bt_kv_copy_by(way, all, n);
}

/* All ways of stores around the cache in turn; the row is the best one's. */
static void streams(floor_t *f, const bench_shape_t *shape)
{
    struct iovec src[BENCH_PAGES], dst[BENCH_PAGES];
    bt_kv_copy_way_t ways[BT_KV_COPY_WAYS];
    uint64_t sum[BT_KV_COPY_WAYS] = {0}, cpu[BT_KV_COPY_WAYS] = {0}, n = 0;
    uint32_t count = bt_kv_copy_ways(ways), first = 0;

    while (first < count && ways[first].store_bytes == 0)
        first++;
    if (first == count)
        return; /* this processor has none */
    begin(f);
    for (; n < WAY_SAMPLES && goes_on(f, n); n++)
        for (uint32_t w = first; w < count; w++) {
            uint32_t k = pieces(f, shape, (uint32_t) n * count + w, src, dst);
            uint64_t cpu_began = bench_cpu_ns(), began = bench_now_ns();
            copy_by(ways[w], src, dst, k);
            f->ns[w * WAY_SAMPLES + n] = bench_now_ns() - began;
            sum[w] += f->ns[w * WAY_SAMPLES + n];
            cpu[w] += bench_cpu_ns() - cpu_began;
        }
    uint32_t best = first;
    for (uint32_t w = first + 1; w < count; w++)
        best = sum[w] < sum[best] ? w : best;
    bench_row_t *row = add_row(f, "stream", shape);
    bench_way_text(row->copy, sizeof row->copy, &ways[best]);
    bench_row_fill(row, shape, f->ns + (size_t) best * WAY_SAMPLES, n, sum[best], cpu[best], 0);
    bench_print_row(f->o, row);
}

/* False: it cannot be read (yama, seccomp). */
static bool can_read(const floor_t *f, pid_t pid)
{
    struct iovec src = {f->src, 8}, dst = {f->dst, 8};
    return process_vm_readv(pid, &dst, 1, &src, 1, 0) == 8;
}

/* A child's memory, at the same place and of the same kind. What a fork leaves of private memory comes apart into small pages, on both sides, and looks slower than
 * any engine's is; so the child has its own, and gives back what it does not use. */
static void own_memory(const floor_t *f, char *p, char *unused)
{
    if (f->o->is_private) {
        munmap(unused, BENCH_BYTES);
        (void) mmap(p, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0);
        (void) madvise(p, BENCH_BYTES, MADV_HUGEPAGE);
    }
    memset(p, 1, BENCH_BYTES);
}

static void vm_floor(floor_t *f)
{
    pid_t pid = fork();

    if (pid == 0) {
        bench_pin(1);
        (void) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        own_memory(f, f->src, f->dst);
        f->shared->flag = 1;
        for (;;)
            pause();
    }
    while (f->shared->flag == 0)
        usleep(100);
    if (can_read(f, pid))
        for (uint32_t i = 0; i < BENCH_SHAPES; i++)
            if (f->o->shapes[i])
                copies(f, "process_vm_readv", &bench_shapes[i], pid, copy_vm);
    f->shared->flag = 0;
    stop(pid);
}

/* ---- the plain stream ---- */
static void tune(int fd)
{
    int on = 1, size = PAIR_BYTES;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

static bool tcp_pair(int fds[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[1] = -1;
    if (listener >= 0 && bind(listener, (struct sockaddr *) &at, n) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *) &at, &n) == 0 &&
        connect(fds[0], (struct sockaddr *) &at, n) == 0)
        fds[1] = accept(listener, NULL, NULL);
    close(listener);
    if (fds[1] < 0)
        return false;
    tune(fds[0]);
    tune(fds[1]);
    return true;
}

/* All of it, by as few calls as the kernel takes. */
static bool move(int fd, struct iovec *iov, uint32_t n, bool is_write)
{
    uint32_t i = 0;

    while (i < n) {
        int count = (int) (n - i < IOVS ? n - i : IOVS);
        ssize_t got = is_write ? writev(fd, iov + i, count) : readv(fd, iov + i, count);
        if (got <= 0)
            return false;
        size_t left = (size_t) got;
        for (; i < n && left >= iov[i].iov_len; i++)
            left -= iov[i].iov_len;
        if (left > 0) {
            iov[i].iov_base = (char *) iov[i].iov_base + left;
            iov[i].iov_len -= left;
        }
    }
    return true;
}

static void plain_receiver(floor_t *f, const bench_shape_t *shape, int fd)
{
    struct iovec src[BENCH_PAGES], dst[BENCH_PAGES];

    for (uint32_t k = 0;; k++) {
        uint32_t n = pieces(f, shape, k, src, dst);
        if (!move(fd, dst, n, false))
            _exit(0);
        f->shared->done_ns[k % BENCH_SAMPLES] = bench_now_ns();
        f->shared->rx_cpu_ns = bench_cpu_ns();
        (void) !write(fd, "+", 1);
    }
}

static void plain_tcp(floor_t *f, const bench_shape_t *shape)
{
    struct iovec src[BENCH_PAGES], dst[BENCH_PAGES];
    bench_row_t *row = add_row(f, "plain-tcp", shape);
    uint64_t n = 0, sum = 0, tx = 0, rx = 0;
    const bool is_in_turns = shape->is_flow && shape->in_flight == 1; /* the way back counts, too */
    int fds[2];
    char ack;

    if (!tcp_pair(fds))
        return;
    pid_t pid = fork();
    if (pid == 0) {
        bench_pin(1);
        close(fds[0]);
        own_memory(f, f->dst, f->src);
        plain_receiver(f, shape, fds[1]);
    }
    close(fds[1]);
    for (uint32_t k = 0; k < 3 || goes_on(f, n); k++) {
        uint32_t count = pieces(f, shape, k, src, dst);
        if (shape->pages == 1)
            bench_pause(); /* the receiver is asleep */
        uint64_t t = bench_now_ns();
        if (!move(fds[0], src, count, true) || read(fds[0], &ack, 1) != 1)
            break;
        if (k == 2) { /* warm from here on */
            begin(f);
            tx = bench_cpu_ns();
            rx = f->shared->rx_cpu_ns;
        } else if (k > 2) {
            f->ns[n % BENCH_SAMPLES] = f->shared->done_ns[k % BENCH_SAMPLES] - t;
            sum += is_in_turns ? bench_now_ns() - t : f->ns[n % BENCH_SAMPLES];
            n++;
        }
    }
    bench_row_fill(row, shape, f->ns, n, sum, bench_cpu_ns() - tx, f->shared->rx_cpu_ns - rx);
    bench_print_row(f->o, row);
    close(fds[0]);
    stop(pid);
}

/* ---- ping-pong: one way is half of a round trip ---- */
static void ping_pong(floor_t *f, const char *engine, int there, int back, bool is_spin)
{
    static const bench_shape_t shape = {.name = "pingpong", .in_flight = 1};
    bench_row_t *row = add_row(f, engine, &shape);
    _Atomic uint64_t *flag = &f->shared->flag;
    uint64_t n = 0, sum = 0, word = 1;
    const size_t size = there == back ? 1 : sizeof word; /* a socket: a byte; eventfds: a word */

    begin(f);
    for (; goes_on(f, n); n++) {
        uint64_t t = bench_now_ns();
        if (is_spin) {
            *flag = 2 * n + 1;
            while (*flag != 2 * n + 2)
                ;
        } else {
            word = 1;
            if (write(there, &word, size) != (ssize_t) size ||
                read(back, &word, size) != (ssize_t) size)
                break;
        }
        t = (bench_now_ns() - t) / 2;
        f->ns[n % BENCH_SAMPLES] = t;
        sum += t;
    }
    bench_row_fill(row, &shape, f->ns, n, sum, 0, 0);
    bench_print_row(f->o, row);
}

/* Until it is killed. */
static _Noreturn void answer_flag(_Atomic uint64_t *flag)
{
    for (uint64_t n = 0;; n++) {
        while (*flag != 2 * n + 1)
            ;
        *flag = 2 * n + 2;
    }
}

static pid_t echo(floor_t *f, int from, int to, bool is_spin)
{
    _Atomic uint64_t *flag = &f->shared->flag;
    uint64_t word;
    const size_t size = from == to ? 1 : sizeof word;
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    bench_pin(1);
    if (is_spin)
        answer_flag(flag);
    while (read(from, &word, size) == (ssize_t) size && write(to, &word, size) == (ssize_t) size)
        ;
    _exit(0);
}

/* As the shape d has it: the receiver is asleep for longer than a ping-pong lets it, and says when it is awake. */
static void paced(floor_t *f)
{
    static const bench_shape_t shape = {.name = "wake", .in_flight = 1};
    bench_row_t *row = add_row(f, "eventfd-paced", &shape);
    int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    uint64_t n = 0, sum = 0, word;
    pid_t pid = fork();

    if (pid == 0) {
        bench_pin(1);
        while (read(there, &word, sizeof word) == (ssize_t) sizeof word) {
            f->shared->done_ns[0] = bench_now_ns();
            (void) !write(back, &word, sizeof word);
        }
        _exit(0);
    }
    begin(f);
    for (; goes_on(f, n); n++) {
        bench_pause();
        uint64_t t = bench_now_ns();
        word = 1;
        if (write(there, &word, sizeof word) != (ssize_t) sizeof word ||
            read(back, &word, sizeof word) != (ssize_t) sizeof word)
            break;
        f->ns[n % BENCH_SAMPLES] = f->shared->done_ns[0] - t;
        sum += f->ns[n % BENCH_SAMPLES];
    }
    bench_row_fill(row, &shape, f->ns, n, sum, 0, 0);
    bench_print_row(f->o, row);
    stop(pid);
    close(there);
    close(back);
}

static void wakes(floor_t *f)
{
    int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC), fds[2];
    pid_t pid = echo(f, there, back, false);

    ping_pong(f, "eventfd", there, back, false);
    stop(pid);
    close(there);
    close(back);
    if (tcp_pair(fds)) {
        pid = echo(f, fds[1], fds[1], false);
        ping_pong(f, "tcp-pingpong", fds[0], fds[0], false);
        stop(pid);
        close(fds[0]);
        close(fds[1]);
    }
    paced(f);
    f->shared->flag = 0;
    pid = echo(f, -1, -1, true);
    ping_pong(f, "flag", -1, -1, true);
    stop(pid);
}

/* ---- all ---- */
void bench_floors(const bench_options_t *o, bench_shared_t *shared, bench_rows_t *rows,
                  uint32_t rep)
{
    bench_options_t fake = *o;
    bench_mode_t mode = {false, false};
    bt_kv_layout_t layout;
    floor_t f = {.o = o, .shared = shared, .rows = rows, .rep = rep};
    bt_kv_agent_t *from, *to;

    fake.backend = BT_KV_FAKE; /* for its pools alone */
    memset(shared, 0, offsetof(bench_shared_t, done_ns));
    f.ns = malloc(BENCH_SAMPLES * sizeof *f.ns);
    from = bench_agent(&fake, &mode, "floor", &layout, &f.src);
    to = bench_agent(&fake, &mode, "floor", &layout, &f.dst);
    if (f.ns != NULL && from != NULL && to != NULL) {
        for (uint32_t i = 0; i < BENCH_SHAPES; i++)
            if (o->shapes[i]) {
                copies(&f, "memcpy", &bench_shapes[i], 0, copy_memcpy);
                streams(&f, &bench_shapes[i]);
            }
        if (o->backend == BT_KV_SHM)
            vm_floor(&f);
        for (uint32_t i = 0; i < BENCH_SHAPES && o->backend == BT_KV_TCP; i++)
            if (o->shapes[i])
                plain_tcp(&f, &bench_shapes[i]);
        wakes(&f);
    }
    free(f.ns);
    bt_kv_agent_close(from);
    bt_kv_agent_close(to);
}
