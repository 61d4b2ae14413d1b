/* The receiver's process of a cell: opens rooms as far as it may, and notes the moment when it finds each at its end. Rooms of an operation's number k carry the id
 * k + 1; the sender tells how many may be opened (bench_shared_t.may_open) and reads how many are and how many have ended.
 *
 * Its memory is checked once the sender is done: the last `ended` rooms since the poisoning brought pages that both processes can name. */
#include "tools/kv_bench.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPEN_MAX_ROOMS 256u
#define QUIET_MS 50u

uint64_t bench_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

/* Two processes left alone by the scheduler share a core whenever one wakes the other, and look faster than they are. */
void bench_pin(uint32_t which)
{
    static cpu_set_t all; /* ours, before the first pin; a child inherits it */
    static uint32_t count;
    cpu_set_t one;
    uint32_t seen = 0;

    if (count == 0 && sched_getaffinity(0, sizeof all, &all) == 0)
        count = (uint32_t) CPU_COUNT(&all);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && seen++ == which)
            CPU_SET(cpu, &one);
    if (count > 1)
        (void) sched_setaffinity(0, sizeof one, &one);
}

void bench_fill_page(char *p, uint32_t page, uint64_t seed)
{
    uint64_t x = seed ^ (page + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);

    for (size_t i = 0; i < BENCH_PAGE; i += 8) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(p + i, &x, 8);
    }
}

bool bench_page_is(const char *p, uint32_t page, uint64_t seed)
{
    char wanted[BENCH_PAGE];

    bench_fill_page(wanted, page, seed);
    return memcmp(p, wanted, BENCH_PAGE) == 0;
}

char *bench_memory(bt_kv_agent_t *agent, bool is_private, bt_kv_region_t *region_p)
{
    void *p = NULL;

    if (!is_private)
        return bt_kv_pool_alloc(agent, BENCH_BYTES, &p, region_p) == 0 ? p : NULL;
    p = mmap(NULL, BENCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    (void) madvise(p, BENCH_BYTES, MADV_HUGEPAGE);
    return bt_kv_region_add(agent, p, BENCH_BYTES, region_p) == 0 ? p : NULL;
}

bt_kv_agent_t *bench_agent(const bench_options_t *o, const bench_mode_t *mode, const char *name,
                           bt_kv_layout_t *layout_p, char **p_p)
{
    bt_kv_config_t config = {
        .name = name,
        .backends = o->backend,
        .progress = mode->is_thread ? BT_KV_PROGRESS_THREAD : BT_KV_PROGRESS_CALLER,
        .tcp_streams = o->streams,
    };
    bt_kv_buffer_t buffer = {.stride = BENCH_PAGE, .bytes = BENCH_PAGE};
    bt_kv_agent_t *agent;
    char err[300];

    if (bt_kv_agent_open(&agent, &config, err, sizeof err) != 0) {
        fprintf(stderr, "baton: kv-bench: %s\n", err);
        return NULL;
    }
    *p_p = bench_memory(agent, o->is_private, &buffer.region);
    if (*p_p == NULL || bt_kv_layout_add(agent, &buffer, 1, BENCH_PAGES, layout_p) != 0) {
        fputs("baton: kv-bench: no memory for a pool of 128 MiB\n", stderr);
        return NULL;
    }
    for (uint32_t i = 0; i < BENCH_PAGES; i++) /* all of it is there before the clock runs */
        bench_fill_page(*p_p + i * BENCH_PAGE, i, BENCH_VERIFY_SEED);
    return agent;
}

void bench_way_text(char *text, size_t size, const bt_kv_copy_way_t *way)
{
    if (way->store_bytes == 0 && way->lanes == 1)
        snprintf(text, size, "memcpy");
    else
        snprintf(text, size, way->ahead_bytes > 0 ? "%u/%u+%u" : "%u/%u", way->store_bytes,
                 way->lanes, way->ahead_bytes);
}

/* By what this shape is made of; "": it is not this program that copies. */
static void tell_copy(bt_kv_agent_t *agent, const bench_options_t *o, const bench_shape_t *shape,
                      char *text, size_t size)
{
    bool is_pulled = o->backend == BT_KV_SHM && o->is_private;
    bt_kv_agent_stats_t s;

    bt_kv_agent_stats(agent, &s);
    if (s.copy_small.lanes > 0 && !is_pulled)
        bench_way_text(text, size, shape->run == 1 ? &s.copy_pages : &s.copy_runs);
}

typedef struct receiver {
    const bench_options_t *o;
    const bench_mode_t *mode;
    const bench_shape_t *shape;
    bench_shared_t *shared;
    bt_kv_agent_t *agent;
    bt_kv_layout_t layout;
    char *p;
    bt_kv_room_t rooms[OPEN_MAX_ROOMS];
    uint32_t opened, ended;
} receiver_t;

static int open_room(receiver_t *r)
{
    uint32_t from[BENCH_PAGES], to[BENCH_PAGES];
    bt_kv_source_t source = {.host = "127.0.0.1", .port = (uint16_t) r->shared->port};
    bt_kv_recv_t recv = {.room = r->opened + UINT64_C(1),
                         .layout = r->layout,
                         .pages = to,
                         .page_count = r->shape->pages,
                         .sources = &source,
                         .source_count = 1};

    bench_pages(r->shape, r->opened, from, to);
    int rc = bt_kv_recv_open(r->agent, &recv, &r->rooms[r->opened % OPEN_MAX_ROOMS]);
    if (rc == 0)
        r->shared->opened = ++r->opened;
    return rc;
}

/* The oldest room, when it has ended. */
static int end_room(receiver_t *r)
{
    bt_kv_room_t room = r->rooms[r->ended % OPEN_MAX_ROOMS];
    enum bt_kv_state state = bt_kv_poll(r->agent, room);
    char why[300];

    if (state != BT_KV_SUCCESS && state != BT_KV_FAILED)
        return 0;
    r->shared->done_ns[r->ended % BENCH_SAMPLES] = bench_now_ns();
    if (state == BT_KV_FAILED) {
        bt_kv_room_error(r->agent, room, why, sizeof why);
        fprintf(stderr, "baton: kv-bench: room %u failed: %s\n", r->ended, why);
        return -1;
    }
    (void) bt_kv_room_release(r->agent, room);
    r->shared->rx_cpu_ns = r->o->backend == BT_KV_MEM ? 0 : bench_cpu_ns();
    r->shared->ended = ++r->ended;
    return 1;
}

/* For news: spinning, or asleep. */
static void await_news(receiver_t *r)
{
    struct pollfd fd;
    uint64_t count;

    if (!r->mode->is_thread) {
        (void) bt_kv_progress(r->agent, r->mode->is_sleep ? QUIET_MS : 0);
    } else if (r->mode->is_sleep) {
        fd = (struct pollfd){.fd = bt_kv_agent_fd(r->agent), .events = POLLIN};
        if (poll(&fd, 1, QUIET_MS) > 0)
            (void) !read(fd.fd, &count, sizeof count);
    }
}

/* Every page of the rooms from `first` on is what the sender has there. */
static uint64_t verify(const receiver_t *r, uint32_t first)
{
    uint32_t from[BENCH_PAGES], to[BENCH_PAGES];
    uint64_t bad = 0;

    for (uint32_t k = first; k < r->ended; k++) {
        bench_pages(r->shape, k, from, to);
        for (uint32_t i = 0; i < r->shape->pages; i++)
            bad += !bench_page_is(r->p + to[i] * BENCH_PAGE, from[i], BENCH_VERIFY_SEED);
    }
    return bad;
}

int bench_receive(const bench_options_t *o, bench_shared_t *shared, const bench_mode_t *mode,
                  const bench_shape_t *shape)
{
    receiver_t r = {.o = o, .mode = mode, .shape = shape, .shared = shared};
    uint32_t verify_from = 0, step = 0;

    bench_pin(1);
    r.agent = bench_agent(o, mode, "decode", &r.layout, &r.p);
    int rc = r.agent == NULL ? -1 : 0;
    if (rc == 0)
        tell_copy(r.agent, o, shape, shared->copy, sizeof shared->copy);
    shared->is_ready = 1;
    while (rc >= 0 && shared->is_over == 0) {
        if (shared->step != step) { /* the verified pass begins: poison */
            step = shared->step;
            memset(r.p, 0xa5, BENCH_BYTES);
            verify_from = r.ended;
            shared->answer = step;
        }
        rc = 0;
        while (rc == 0 && r.opened < shared->may_open && r.opened - r.ended < OPEN_MAX_ROOMS)
            rc = open_room(&r);
        if (rc == 0 && r.ended < r.opened)
            rc = end_room(&r);
        if (rc == 0)
            await_news(&r);
    }
    shared->has_failed |= rc < 0;
    shared->bad = rc < 0 ? BENCH_PAGES : verify(&r, verify_from);
    shared->answer = step + 1;
    while (shared->is_over < 2 && getppid() != 1)
        usleep(1000);
    bt_kv_agent_close(r.agent);
    return rc < 0;
}
