/* Which way to copy: each is tried a few times on scattered pages that no cache holds, and the best
 * time counts, not the mean: a neighbour on the machine can only make a trial slower. It is CPU
 * time, so a core shared with others takes longer and says the same. Where the budget is over
 * before each way has had ROUNDS_LEAST trials, it is memcpy: there is no other way that has not lost
 * to it on some processor.
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
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define ROUNDS 5u
#define ROUNDS_LEAST 2u
#define SIDE_BYTES (1024u << 10)
#define TRIAL_BYTES (256u << 10)
#define TIE 32u /* a 32nd: what two rounds of one way differ by */

static const bt_kv_copy_way_t MEMCPY = {0, 1, 0};

static uint64_t rate(uint64_t bytes, uint64_t ns)
{
    return ns > 0 ? (uint64_t) ((double) bytes * 1e9 / (double) ns) : 0;
}

/* False: the time was up before each way had a trial. */
static bool run_round(const bt_kv_copy_bench_t *bench, uint32_t piece_bytes, uint64_t until_ns,
                      const bt_kv_copy_way_t *ways, uint32_t count, uint64_t *best_ns)
{
    for (uint32_t i = 0; i < count; i++) {
        if (bench->now_ns(bench->user) >= until_ns)
            return false;
        uint64_t ns = bench->run_ns(bench->user, ways[i], piece_bytes);
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

/* False: the time was up before each way had ROUNDS_LEAST trials. */
static bool measure(const bt_kv_copy_bench_t *bench, uint32_t piece_bytes, uint64_t until_ns,
                    const bt_kv_copy_way_t *ways, uint32_t count, uint64_t *best_ns)
{
    uint32_t rounds = 0;

    memset(best_ns, 0xff, count * sizeof(*best_ns));
    while (rounds < ROUNDS && run_round(bench, piece_bytes, until_ns, ways, count, best_ns))
        rounds++;
    return rounds >= ROUNDS_LEAST;
}

bt_kv_copy_choice_t bt_kv_copy_choose(const bt_kv_copy_bench_t *bench, const bt_kv_copy_way_t *ways,
                                      uint32_t count)
{
    uint64_t began_ns = bench->now_ns(bench->user), until_ns = began_ns + BT_KV_COPY_BUDGET_NS;
    uint64_t pages_ns[BT_KV_COPY_WAYS], runs_ns[BT_KV_COPY_WAYS];
    bt_kv_copy_choice_t choice = {.small = MEMCPY, .pages = MEMCPY, .runs = MEMCPY};

    if (count > 1 && measure(bench, BT_KV_COPY_PAGE, until_ns, ways, count, pages_ns)) {
        uint32_t pages = best_of(ways, count, pages_ns, is_any);
        choice.small = ways[best_of(ways, count, pages_ns, is_cached)];
        choice.pages = choice.runs = ways[pages];
        choice.bytes_per_s = rate(bench->trial_bytes, pages_ns[pages]);
        choice.memcpy_bytes_per_s = rate(bench->trial_bytes, pages_ns[0]);
        if (measure(bench, BT_KV_COPY_RUN, until_ns, ways, count, runs_ns))
            choice.runs = ways[best_of(ways, count, runs_ns, is_any)];
    }
    choice.took_us = (bench->now_ns(bench->user) - began_ns) / 1000;
    return choice;
}

/* ---- the real machine ---- */
typedef struct arena {
    char *src, *dst;
    uint32_t next; /* page of the next trial */
    bool has_clflushopt;
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

/* Takes what lies there out of all caches. */
#if defined(__x86_64__)
__attribute__((target("clflushopt"))) static void evict_at_once(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        _mm_clflushopt((char *) p + at);
}

static void evict_in_turn(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        _mm_clflush(p + at);
}

static bool has_clflushopt(void)
{
    unsigned a, b = 0, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_CLFLUSHOPT) != 0;
}

/* In turn, each line waits for the one before: on one processor the trials then outran the budget. */
static void evict(const arena_t *arena, const char *p, size_t bytes)
{
    if (arena->has_clflushopt)
        evict_at_once(p, bytes);
    else
        evict_in_turn(p, bytes);
}

static void await_eviction(void)
{
    _mm_mfence();
}
#else
static bool has_clflushopt(void)
{
    return false;
}

static void evict(const arena_t *arena, const char *p, size_t bytes)
{
    (void) arena;
    (void) p;
    (void) bytes;
}

static void await_eviction(void)
{
}
#endif

/* Pages, or runs of them, in an order that no prefetcher guesses, different on both sides. */
static uint64_t run_ns(void *user, bt_kv_copy_way_t way, uint32_t piece_bytes)
{
    arena_t *arena = user;
    bt_kv_copy_piece_t pieces[TRIAL_BYTES / BT_KV_COPY_PAGE];
    uint32_t count = TRIAL_BYTES / piece_bytes, places = SIDE_BYTES / piece_bytes;

    for (uint32_t i = 0; i < count; i++) {
        size_t k = arena->next++;
        pieces[i] = (bt_kv_copy_piece_t){.src = arena->src + k * 101 % places * piece_bytes,
                                         .dst = arena->dst + (k * 59 + 7) % places * piece_bytes,
                                         .bytes = piece_bytes,
                                         .rows = 1};
        evict(arena, pieces[i].src, piece_bytes);
        evict(arena, pieces[i].dst, piece_bytes);
    }
    await_eviction();
    uint64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    bt_kv_copy_by(way, pieces, count);
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns;
}

static bt_kv_copy_choice_t chosen;
static _Atomic bool is_chosen;

static void choose(void)
{
    bt_kv_copy_way_t ways[BT_KV_COPY_WAYS];
    uint32_t count = bt_kv_copy_ways(ways);
    size_t bytes = 2 * (size_t) SIDE_BYTES;
    arena_t arena = {.has_clflushopt = has_clflushopt()};
    bt_kv_copy_bench_t bench = {now_ns, run_ns, &arena, TRIAL_BYTES};

    arena.src = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena.src == MAP_FAILED) {
        chosen = (bt_kv_copy_choice_t){.small = MEMCPY, .pages = MEMCPY, .runs = MEMCPY};
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
