/* Which way to copy: each is tried a few times on scattered pages that no cache holds, and the best
 * time counts, not the mean: a neighbour on the machine can only make a trial slower. It is CPU
 * time, so a core shared with others takes longer and says the same. Where the budget is over
 * before each way has had ROUNDS_LEAST trials, DEFAULT is taken, which has beaten memcpy on all
 * processors seen so far.
 *
 * Ways that differ by less than a TIE count as equal, and of those the one that looks farthest
 * ahead wins: a pool is larger than this arena, so what is read there takes longer to come. (On one
 * processor no prefetching was equal here and lost 9 % there.)
 */
#include "transport/backends/copy.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define ROUNDS 5u
#define ROUNDS_LEAST 2u
#define PAGE ((size_t) 16384)
#define PAGES 64u /* a side */
#define TRIAL_PAGES 16u
#define TRIAL_BYTES (TRIAL_PAGES * PAGE)
#define TIE 32u /* a 32nd: what two rounds of one way differ by */

static const bt_kv_copy_way_t MEMCPY = {0, 1, 0}, DEFAULT = {16, 1, 4096};

static uint64_t rate(uint64_t bytes, uint64_t ns)
{
    return ns > 0 ? (uint64_t) ((double) bytes * 1e9 / (double) ns) : 0;
}

/* False: the time was up before each way had a trial. */
static bool run_round(const bt_kv_copy_bench_t *bench, uint64_t until_ns,
                      const bt_kv_copy_way_t *ways, uint32_t count, uint64_t *best_ns)
{
    for (uint32_t i = 0; i < count; i++) {
        if (bench->now_ns(bench->user) >= until_ns)
            return false;
        uint64_t ns = bench->run_ns(bench->user, ways[i]);
        if (ns < best_ns[i])
            best_ns[i] = ns;
    }
    return true;
}

/* What a way must be, to be asked for: */
static bool is_any(bt_kv_copy_way_t way)
{
    (void) way;
    return true;
}

static bool is_cached(bt_kv_copy_way_t way)
{
    return way.store_bytes == 0;
}

static bool is_one_line(bt_kv_copy_way_t way)
{
    return way.lanes == 1;
}

static uint32_t best_of(const bt_kv_copy_way_t *ways, uint32_t count, const uint64_t *best_ns,
                        bool (*is_asked)(bt_kv_copy_way_t way))
{
    uint32_t fastest = 0; /* memcpy may serve for all */

    for (uint32_t i = 1; i < count; i++)
        if (is_asked(ways[i]) && best_ns[i] < best_ns[fastest])
            fastest = i;

    uint32_t best = fastest;
    for (uint32_t i = 0; i < count; i++)
        if (is_asked(ways[i]) && ways[i].ahead_bytes > ways[best].ahead_bytes &&
            best_ns[i] <= best_ns[fastest] + best_ns[fastest] / TIE)
            best = i;
    return best;
}

static void set_ways(bt_kv_copy_choice_t *choice, bt_kv_copy_way_t small, bt_kv_copy_way_t pages,
                     bt_kv_copy_way_t runs)
{
    choice->small = small;
    choice->pages = pages;
    choice->runs = runs;
}

bt_kv_copy_choice_t bt_kv_copy_choose(const bt_kv_copy_bench_t *bench, const bt_kv_copy_way_t *ways,
                                      uint32_t count)
{
    uint64_t began_ns = bench->now_ns(bench->user), best_ns[BT_KV_COPY_WAYS];
    uint32_t rounds = 0;
    bt_kv_copy_choice_t choice = {0};

    memset(best_ns, 0xff, sizeof(best_ns));
    while (count > 1 && rounds < ROUNDS &&
           run_round(bench, began_ns + BT_KV_COPY_BUDGET_NS, ways, count, best_ns))
        rounds++;
    if (rounds < ROUNDS_LEAST) {
        set_ways(&choice, MEMCPY, count > 1 ? DEFAULT : MEMCPY, count > 1 ? DEFAULT : MEMCPY);
    } else {
        uint32_t pages = best_of(ways, count, best_ns, is_any);
        set_ways(&choice, ways[best_of(ways, count, best_ns, is_cached)], ways[pages],
                 ways[best_of(ways, count, best_ns, is_one_line)]);
        choice.bytes_per_s = rate(bench->trial_bytes, best_ns[pages]);
        choice.memcpy_bytes_per_s = rate(bench->trial_bytes, best_ns[0]);
    }
    choice.took_us = (bench->now_ns(bench->user) - began_ns) / 1000;
    return choice;
}

/* ---- the real machine ---- */
typedef struct arena {
    char *src, *dst;
    uint32_t next; /* page of the next trial */
} arena_t;

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static uint64_t now_ns(void *user)
{
    (void) user;
    return clock_ns(CLOCK_MONOTONIC);
}

static void evict(const char *p, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_ia32_clflush(p + at);
#else
    (void) p;
    (void) bytes;
#endif
}

/* Pages in an order that no prefetcher guesses, different on both sides. */
static uint64_t run_ns(void *user, bt_kv_copy_way_t way)
{
    arena_t *arena = user;
    bt_kv_copy_piece_t pieces[TRIAL_PAGES];

    for (uint32_t i = 0; i < TRIAL_PAGES; i++) {
        uint32_t k = arena->next++;
        pieces[i] = (bt_kv_copy_piece_t){.src = arena->src + k * 101u % PAGES * PAGE,
                                         .dst = arena->dst + (k * 59u + 7) % PAGES * PAGE,
                                         .bytes = PAGE,
                                         .rows = 1};
        evict(pieces[i].src, PAGE);
        evict(pieces[i].dst, PAGE);
    }
    uint64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    bt_kv_copy_by(way, pieces, TRIAL_PAGES);
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
}

static bt_kv_copy_choice_t chosen;
static _Atomic bool is_chosen;

static void choose(void)
{
    bt_kv_copy_way_t ways[BT_KV_COPY_WAYS];
    uint32_t count = bt_kv_copy_ways(ways);
    size_t bytes = 2 * PAGES * PAGE;
    arena_t arena = {.next = 0};
    bt_kv_copy_bench_t bench = {now_ns, run_ns, &arena, TRIAL_BYTES};

    arena.src = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena.src == MAP_FAILED) {
        set_ways(&chosen, MEMCPY, MEMCPY, MEMCPY);
    } else {
        madvise(arena.src, bytes, MADV_NOHUGEPAGE); /* as a pool without huge pages is */
        memset(arena.src, 1, bytes);
        arena.dst = arena.src + bytes / 2;
        chosen = bt_kv_copy_choose(&bench, ways, count);
        munmap(arena.src, bytes);
    }
    is_chosen = true;
}

const bt_kv_copy_choice_t *bt_kv_copy_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, choose);
    return &chosen;
}

const bt_kv_copy_choice_t *bt_kv_copy_chosen(void)
{
    return is_chosen ? &chosen : NULL;
}
