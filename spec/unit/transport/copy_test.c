/* Every way to copy that this processor has: sizes, alignments, tails, rows and pieces; nothing beside
 * the destination is written, nothing beyond the source's end is read. */
#include "transport/backends/copy.h"

#include "base/rand.h"
#include "unit.h"

#include <string.h>
#include <sys/mman.h>

#define SPACE ((size_t) 512 << 10)
#define GUARD 256u
#define PAGE ((size_t) 4096)

static char source[SPACE], target[SPACE], wanted[SPACE];
static bt_kv_copy_way_t ways[BT_KV_COPY_WAYS];
static uint32_t way_count;

static int set_up(void **state)
{
    bt_rand_seed(7);
    for (size_t i = 0; i < SPACE; i += 8) {
        uint64_t word = bt_rand_u64();
        memcpy(source + i, &word, 8);
    }
    way_count = bt_kv_copy_ways(ways);
    return 0;
}

/* What pieces should make of the target, byte by byte. */
static void expect(const bt_kv_copy_piece_t *pieces, uint32_t count)
{
    memset(target, 0x5a, SPACE);
    memset(wanted, 0x5a, SPACE);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t row = 0; row < pieces[i].rows; row++)
            memmove(wanted + (pieces[i].dst - target) + (size_t) row * pieces[i].dst_stride,
                    pieces[i].src + (size_t) row * pieces[i].src_stride, pieces[i].bytes);
}

static void check_all_ways(const bt_kv_copy_piece_t *pieces, uint32_t count)
{
    for (uint32_t w = 0; w < way_count; w++) {
        expect(pieces, count);
        bt_kv_copy_by(ways[w], pieces, count);
        if (memcmp(target, wanted, SPACE) != 0)
            fail_msg("stores of %u, %u lanes, %u ahead: %u pieces, %u bytes to %zu from %zu",
                     ways[w].store_bytes, ways[w].lanes, ways[w].ahead_bytes, count,
                     pieces[0].bytes, (size_t) (pieces[0].dst - target),
                     (size_t) (pieces[0].src - source));
    }
}

static bt_kv_copy_piece_t piece_at(size_t to, size_t from, uint32_t bytes)
{
    return (bt_kv_copy_piece_t){
        .dst = target + to, .src = source + from, .bytes = bytes, .rows = 1};
}

static void test_the_list_begins_with_memcpy_and_names_each_way_once(void **state)
{
    static const bt_kv_copy_way_t memcpy_way = {0, 1, 0};

    assert_in_range(way_count, 1, BT_KV_COPY_WAYS);
    assert_memory_equal(&ways[0], &memcpy_way, sizeof(memcpy_way));
    for (uint32_t i = 0; i < way_count; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_memory_not_equal(&ways[i], &ways[k], sizeof(ways[i]));
}

static void test_sizes_and_tails(void **state)
{
    static const uint32_t sizes[] = {1,    63,   64,    255,   256,   4095,  4096,  4097,  4154,
                                     4155, 4159, 4160,  4351,  4352,  5000,  8191,  8192,  8193,
                                     8256, 8447, 12288, 12347, 16383, 16384, 16385, 65535, 262144};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (size_t to = GUARD; to <= GUARD + 5; to += 5) { /* aligned, and not */
            bt_kv_copy_piece_t piece = piece_at(to, GUARD + 3, sizes[i]);
            check_all_ways(&piece, 1);
        }
    }
}

static void test_alignments(void **state)
{
    for (size_t to = 0; to < 64; to += 7)
        for (size_t from = 0; from < 64; from += 9) {
            bt_kv_copy_piece_t piece = piece_at(GUARD + to, GUARD + from, 4096 + 300);
            check_all_ways(&piece, 1);
        }
}

static void test_rows_leave_the_gaps_alone(void **state)
{
    bt_kv_copy_piece_t pieces[] = {
        {target + GUARD, source + 10, 4096 + 17, 5, 9000, 4096 + 50},
        {target + 100000, source + 60000, 100, 40, 128, 104},
        {target + 200000, source + 70000, 16384, 3, 16384, 20000},
    };
    check_all_ways(pieces, 3);
}

static void test_pieces_of_all_sizes_in_one_copy(void **state)
{
    bt_kv_copy_piece_t pieces[24];
    size_t to = 11, from = 7;

    for (uint32_t i = 0; i < 24; i++) {
        uint32_t bytes = i % 3 == 0 ? 16384 : i % 3 == 1 ? 4096 + 13 * i : 1 + i;
        pieces[i] = piece_at(to, from, bytes);
        to += bytes + i % 5; /* some adjoin */
        from += bytes;
    }
    check_all_ways(pieces, 24);
}

static void test_the_last_byte_before_a_hole_can_be_read_and_written(void **state)
{
    char *map = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = map + 7 * PAGE, *from = map + 15 * PAGE;

    assert_true(map != MAP_FAILED);
    memset(map, 3, 16 * PAGE);
    assert_int_equal(mprotect(to, PAGE, PROT_NONE), 0);
    assert_int_equal(mprotect(from, PAGE, PROT_NONE), 0);
    for (uint32_t w = 0; w < way_count; w++)
        for (uint32_t bytes = 4096; bytes <= 7 * PAGE; bytes += 1000) {
            bt_kv_copy_piece_t piece = {to - bytes, from - bytes, bytes, 1, 0, 0};
            memset(piece.dst, 0, bytes);
            bt_kv_copy_by(ways[w], &piece, 1);
            assert_memory_equal(piece.dst, piece.src, bytes);
        }
    munmap(map, 16 * PAGE);
}

static void test_before_and_after_the_choice_small_and_large(void **state)
{
    for (int is_chosen = 0; is_chosen < 2; is_chosen++) {
        for (uint32_t bytes = 100; bytes < SPACE - GUARD; bytes *= 3) {
            bt_kv_copy_piece_t piece = piece_at(13, 1, bytes);
            expect(&piece, 1);
            bt_kv_copy(&piece, 1, bytes);
            assert_memory_equal(target, wanted, SPACE);
        }
        (void) bt_kv_copy_init();
    }
}

/* Only what is less than a page stays in the cache. */
static void test_a_page_alone_is_copied_as_many_are(void **state)
{
    const bt_kv_copy_choice_t choice = {
        .small = {0, 4, 0}, .pages = {32, 4, 0}, .runs = {64, 1, 4096}};

    assert_int_equal(bt_kv_copy_way(&choice, BT_KV_COPY_PAGE, BT_KV_COPY_PAGE).store_bytes, 32);
    assert_int_equal(bt_kv_copy_way(&choice, BT_KV_COPY_PAGE, 4096).store_bytes, 32);
    assert_int_equal(bt_kv_copy_way(&choice, BT_KV_COPY_PAGE - 1, 4096).store_bytes, 0);
    assert_int_equal(bt_kv_copy_way(&choice, BT_KV_COPY_RUN, BT_KV_COPY_RUN).store_bytes, 64);
    assert_int_equal(bt_kv_copy_way(&choice, BT_KV_COPY_RUN, BT_KV_COPY_RUN - 1).store_bytes, 32);
    assert_int_equal(bt_kv_copy_way(NULL, BT_KV_COPY_RUN, BT_KV_COPY_RUN).lanes, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_list_begins_with_memcpy_and_names_each_way_once),
        cmocka_unit_test(test_sizes_and_tails),
        cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_rows_leave_the_gaps_alone),
        cmocka_unit_test(test_pieces_of_all_sizes_in_one_copy),
        cmocka_unit_test(test_the_last_byte_before_a_hole_can_be_read_and_written),
        cmocka_unit_test(test_before_and_after_the_choice_small_and_large),
        cmocka_unit_test(test_a_page_alone_is_copied_as_many_are),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
