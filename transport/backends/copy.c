/* Copying by this processor. Scattered pages lose to the memory's latency, not to its bandwidth:
 * the processor's own prefetching begins anew with each 4 KiB, and each cache line that is written is
 * read first. There are three remedies: stores that go around the cache; asking for what is read
 * some KiB early, across the end of a piece; and lanes, so that several 4 KiB begin at once. A way
 * (baton_kv.h) is made of them, and which of them help differs by processor (copy_choose.c). On one
 * processor, 16 KiB pages of a pool without huge pages move at 14 GB/s by the best way, at 10 by
 * stores around the cache alone, and at 7 by memcpy.
 *
 * What is less than a page stays in the cache. A page alone does not: who reads it is seldom the
 * thread that copies, and another core gets it sooner from memory than out of this one's cache
 * (spec/bench/README.md). Elsewhere than on x86-64, and where TSan should see the stores, all is
 * memcpy.
 */
#include "transport/backends/copy.h"

#include "base/sanitize.h"

#include <string.h>

#define LANE ((size_t) 4096)
#define LANES 4u
#define STEP ((size_t) 256)
#define LINE ((size_t) 64)

static const bt_kv_copy_way_t MEMCPY = {0, 1, 0};

#if defined(__x86_64__) && !BT_TSAN
#include <immintrin.h>

/* `bytes` (a multiple of STEP) in each lane. ahead: what to ask for meanwhile, 0 = nothing; any
 * address, it never faults. */
typedef void move_fn(char *dst, const char *src, size_t bytes, uint32_t lanes, uintptr_t ahead);

static inline void ask(uintptr_t ahead)
{
    for (size_t i = 0; i < STEP; i += LINE)
        _mm_prefetch((const char *) (ahead + i), _MM_HINT_NTA);
}

#define MOVE(name, isa, vector, load, store)                                                       \
    __attribute__((target(isa))) static void name(char *dst, const char *src, size_t bytes,        \
                                                  uint32_t lanes, uintptr_t ahead)                 \
    {                                                                                              \
        for (size_t at = 0; at < bytes; at += STEP) {                                              \
            if (ahead != 0)                                                                        \
                ask(ahead + at);                                                                   \
            for (size_t from = at; from < at + lanes * LANE; from += LANE)                         \
                for (size_t i = from; i < from + STEP; i += sizeof(vector))                        \
                    store((vector *) (void *) (dst + i),                                           \
                          load((const vector *) (const void *) (src + i)));                        \
        }                                                                                          \
    }
MOVE(move_cached, "sse2", __m128i, _mm_loadu_si128, _mm_storeu_si128)
MOVE(move_16, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128)
MOVE(move_32, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256)
MOVE(move_64, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512)

static move_fn *mover(uint32_t store_bytes)
{
    return store_bytes == 64   ? move_64
           : store_bytes == 32 ? move_32
           : store_bytes == 16 ? move_16
                               : move_cached;
}

static bool has_stores_of(uint32_t bytes)
{
    return bytes < 32 || (bytes == 32 && __builtin_cpu_supports("avx2")) ||
           (bytes == 64 && __builtin_cpu_supports("avx512f"));
}

/* Bytes moved, up to a rest of less than a lane. */
static size_t move_lanes(bt_kv_copy_way_t way, char *dst, const char *src, size_t bytes)
{
    move_fn *move = mover(way.store_bytes);
    size_t at = 0;

    while (bytes - at >= LANE) {
        size_t lanes = (bytes - at) / LANE;
        lanes = lanes < way.lanes ? lanes : way.lanes;
        move(dst + at, src + at, LANE, (uint32_t) lanes, 0);
        at += lanes * LANE;
    }
    return at;
}

/* next: what will be read when this row has been: what is ahead from `turn` on. */
static size_t move_line(bt_kv_copy_way_t way, char *dst, const char *src, size_t bytes,
                        const char *next)
{
    move_fn *move = mover(way.store_bytes);
    size_t end = bytes / STEP * STEP, ahead = way.ahead_bytes, turn = end;

    if (ahead > 0)
        turn = bytes > ahead ? (bytes - ahead) / STEP * STEP : 0;
    move(dst, src, turn, 1, ahead > 0 ? (uintptr_t) src + ahead : 0);
    move(dst + turn, src + turn, end - turn, 1, (uintptr_t) next + (turn + ahead - bytes));
    return end;
}

static void copy_row(bt_kv_copy_way_t way, char *dst, const char *src, size_t bytes,
                     const char *next)
{
    size_t at = (LINE - (uintptr_t) dst % LINE) % LINE;

    if (bytes < LANE + LINE) /* too short for all this */
        at = bytes < LANE || at > 0 ? bytes : 0;
    memcpy(dst, src, at);
    if (at < bytes)
        at += way.lanes > 1 ? move_lanes(way, dst + at, src + at, bytes - at)
                            : move_line(way, dst + at, src + at, bytes - at, next);
    memcpy(dst + at, src + at, bytes - at);
}

static void order_stores(void)
{
    _mm_sfence(); /* those around the cache are ordered by nothing else */
}
#else
static bool has_stores_of(uint32_t bytes)
{
    (void) bytes;
    return false;
}

static void copy_row(bt_kv_copy_way_t way, char *dst, const char *src, size_t bytes,
                     const char *next)
{
    (void) way;
    (void) next;
    memcpy(dst, src, bytes);
}

static void order_stores(void)
{
}
#endif

uint32_t bt_kv_copy_ways(bt_kv_copy_way_t ways[BT_KV_COPY_WAYS])
{
    static const uint32_t aheads[] = {0, 4096, 8192};
    uint32_t count = 0;

    ways[count++] = MEMCPY;
    if (has_stores_of(0))
        ways[count++] = (bt_kv_copy_way_t){0, LANES, 0};
    for (uint32_t bytes = 16; bytes <= 64 && has_stores_of(bytes); bytes *= 2) {
        for (uint32_t i = 0; i < sizeof(aheads) / sizeof(*aheads); i++)
            ways[count++] = (bt_kv_copy_way_t){bytes, 1, aheads[i]};
        ways[count++] = (bt_kv_copy_way_t){bytes, LANES, 0};
    }
    return count;
}

static bool is_memcpy(bt_kv_copy_way_t way)
{
    return way.store_bytes == 0 && way.lanes == 1;
}

static void copy_piece(bt_kv_copy_way_t way, const bt_kv_copy_piece_t *piece, const char *after)
{
    const char *src = piece->src;
    char *dst = piece->dst;

    for (uint32_t row = 0; row < piece->rows; row++) {
        if (is_memcpy(way))
            memcpy(dst, src, piece->bytes);
        else
            copy_row(way, dst, src, piece->bytes,
                     row + 1 < piece->rows ? src + piece->src_stride : after);
        src += piece->src_stride;
        dst += piece->dst_stride;
    }
}

bt_kv_copy_way_t bt_kv_copy_way(const bt_kv_copy_choice_t *choice, size_t bytes, size_t piece_bytes)
{
    if (choice == NULL)
        return MEMCPY;
    if (bytes < BT_KV_COPY_PAGE)
        return choice->small;
    return piece_bytes < BT_KV_COPY_RUN ? choice->pages : choice->runs;
}

void bt_kv_copy_by(bt_kv_copy_way_t way, const bt_kv_copy_piece_t *pieces, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        copy_piece(way, &pieces[i], pieces[i + 1 < count ? i + 1 : i].src);
    order_stores();
}

void bt_kv_copy(const bt_kv_copy_piece_t *pieces, uint32_t count, size_t bytes)
{
    const bt_kv_copy_choice_t *chosen = bt_kv_copy_chosen();

    for (uint32_t i = 0; i < count; i++)
        copy_piece(bt_kv_copy_way(chosen, bytes, pieces[i].bytes), &pieces[i],
                   pieces[i + 1 < count ? i + 1 : i].src);
    order_stores();
}
