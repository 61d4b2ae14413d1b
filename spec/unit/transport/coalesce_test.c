/* Runs: what is merged, what is not, and that runs move exactly the bytes that pages mean. */
#include "transport/agent/coalesce.h"

#include "base/rand.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#define MEM_BYTES (1u << 16)

static bt_kv_mem_t from_mem, to_mem;
static bt_kv_run_t space[4096];

static uint64_t size_of(void *user, bt_kv_region_t region)
{
    (void) user;
    return region == 1 ? MEM_BYTES : 0;
}

static struct bt_kv_layout *layout(const bt_kv_buffer_t *buffers, uint32_t count, uint32_t pages)
{
    struct bt_kv_layout *made;
    const char *why;

    assert_int_equal(bt_kv_layout_make(&made, buffers, count, pages, size_of, NULL, &why), 0);
    made->mems = malloc(count * sizeof(bt_kv_mem_t *));
    for (uint32_t i = 0; i < count; i++)
        made->mems[i] = &from_mem;
    return made;
}

static uint32_t runs_of(struct bt_kv_layout *src, struct bt_kv_layout *dst, const uint32_t *pages,
                        const uint32_t *to, uint32_t count, const bt_kv_slice_t *slice)
{
    static const bt_kv_slice_t whole;
    bt_kv_runs_t runs = {.at = space, .room = 4096};
    const bt_kv_slice_t *s = slice != NULL ? slice : &whole;
    bt_kv_side_t a = {src, pages, bt_kv_cut_src(s)}, b = {dst, to, bt_kv_cut_dst(s)};

    bt_kv_coalesce(&runs, &a, &b, count, 0, src->count);
    return runs.count;
}

static void test_runs_merge_across_pages_where_both_sides_go_on(void **state)
{
    bt_kv_buffer_t buffers[2] = {{1, 0, 64, 64}, {1, 8192, 64, 64}};
    struct bt_kv_layout *l = layout(buffers, 2, 64);
    const uint32_t up[6] = {3, 4, 5, 10, 11, 12}, split[6] = {3, 4, 5, 11, 12, 13},
                   down[6] = {5, 4, 3, 2, 1, 0};

    assert_int_equal(runs_of(l, l, up, up, 6, NULL), 4);    /* two a buffer */
    assert_int_equal(runs_of(l, l, up, split, 6, NULL), 4); /* the same breaks */
    assert_int_equal(runs_of(l, l, up, down, 6, NULL), 12); /* none on one side */
    assert_int_equal(runs_of(l, l, split, split, 6, NULL), 4);
    assert_int_equal(space[0].bytes, 3 * 64);
    assert_int_equal(space[0].src_offset, 3 * 64);
    bt_kv_layout_free(l);
}

static void test_gaps_break_runs(void **state)
{
    bt_kv_buffer_t gap = {1, 0, 80, 64}, tight = {1, 0, 64, 64};
    struct bt_kv_layout *a = layout(&gap, 1, 64), *b = layout(&tight, 1, 64);
    const uint32_t up[4] = {0, 1, 2, 3};

    assert_int_equal(runs_of(a, b, up, up, 4, NULL), 4);
    assert_int_equal(runs_of(b, a, up, up, 4, NULL), 4);
    assert_int_equal(runs_of(b, b, up, up, 4, NULL), 1);
    bt_kv_layout_free(a);
    bt_kv_layout_free(b);
}

/* Block-major: a page holds all layers, side by side. */
static void test_a_pages_adjoining_buffers_merge(void **state)
{
    bt_kv_buffer_t buffers[4];

    for (uint32_t i = 0; i < 4; i++)
        buffers[i] = (bt_kv_buffer_t){1, i * 32, 128, 32};
    struct bt_kv_layout *l = layout(buffers, 4, 64);
    const uint32_t scattered[3] = {9, 2, 40}, up[3] = {7, 8, 9};
    assert_int_equal(runs_of(l, l, scattered, scattered, 3, NULL), 3); /* not 12 */
    assert_int_equal(runs_of(l, l, up, up, 3, NULL), 1);
    bt_kv_layout_free(l);
}

static void test_slices(void **state)
{
    bt_kv_buffer_t narrow = {1, 0, 256, 256}, wide = {1, 0, 512, 512};
    struct bt_kv_layout *a = layout(&narrow, 1, 32), *b = layout(&wide, 1, 32);
    const uint32_t up[4] = {0, 1, 2, 3};
    bt_kv_slice_t half = {.rows = 8, .src_row = 32, .dst_row = 64, .dst_offset = 32, .bytes = 32};
    bt_kv_slice_t whole = {.rows = 8, .src_row = 32, .dst_row = 32, .bytes = 32};

    assert_int_equal(runs_of(a, b, up, up, 4, &half), 4); /* a strided run a page */
    assert_int_equal(space[1].rows, 8);
    assert_int_equal(space[1].bytes, 32);
    assert_int_equal(space[1].src_stride, 32);
    assert_int_equal(space[1].dst_stride, 64);
    assert_int_equal(space[1].dst_offset, 512 + 32);
    assert_int_equal(runs_of(a, a, up, up, 4, &whole), 1); /* rows adjoin: merged, pages too */
    bt_kv_cut_t cut = bt_kv_cut_src(&half);
    assert_true(bt_kv_cut_fits(&cut, a));
    cut.offset = 1;
    assert_false(bt_kv_cut_fits(&cut, a));
    bt_kv_layout_free(a);
    bt_kv_layout_free(b);
}

/* Whatever the layouts and pages, executing the runs equals copying page by page; and the CRC of both sides is the same. */
static void test_random_layouts_move_the_right_bytes(void **state)
{
    static char from[MEM_BYTES], to[MEM_BYTES], want[MEM_BYTES];

    bt_rand_seed(5);
    from_mem = (bt_kv_mem_t){.id = 1, .p = from, .size = MEM_BYTES};
    to_mem = (bt_kv_mem_t){.id = 1, .p = to, .size = MEM_BYTES};
    for (unsigned i = 0; i < MEM_BYTES; i++)
        from[i] = (char) bt_rand_u64();
    for (int round = 0; round < 300; round++) {
        uint32_t count = 1 + (uint32_t) bt_rand_below(4), pages = 16, n = 12;
        uint32_t bytes = 16u << bt_rand_below(4), gap = bt_rand_below(2) != 0 ? 16 : 0;
        bool is_block = bt_rand_below(2) != 0;
        bt_kv_buffer_t a[4], b[4];
        uint32_t src[16], dst[16];
        for (uint32_t i = 0; i < count; i++) {
            uint32_t stride = is_block ? count * bytes + gap : bytes + gap;
            a[i] = (bt_kv_buffer_t){1, is_block ? i * bytes : i * pages * stride, stride, bytes};
            b[i] = (bt_kv_buffer_t){1, i * pages * bytes, bytes, bytes};
        }
        struct bt_kv_layout *x = layout(a, count, pages),
                            *y = layout(bt_rand_below(2) != 0 ? a : b, count, pages);
        for (uint32_t i = 0; i < pages; i++)
            src[i] = dst[i] = i;
        for (uint32_t i = 0; i < 5; i++) { /* a few swaps leave runs */
            uint32_t k = (uint32_t) bt_rand_below(pages), m = (uint32_t) bt_rand_below(pages), t;
            t = dst[k], dst[k] = dst[m], dst[m] = t;
            k = (uint32_t) bt_rand_below(pages);
            t = src[k], src[k] = src[m], src[m] = t;
        }
        uint32_t runs = runs_of(x, y, src, dst, n, NULL);
        memset(to, 0, sizeof(to));
        memset(want, 0, sizeof(want));
        for (uint32_t i = 0; i < runs; i++)
            memcpy(to + space[i].dst_offset, from + space[i].src_offset, space[i].bytes);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t p = 0; p < n; p++)
                memcpy(want + y->buffers[i].offset + dst[p] * y->buffers[i].stride,
                       from + x->buffers[i].offset + src[p] * x->buffers[i].stride, bytes);
        assert_memory_equal(to, want, MEM_BYTES);
        assert_true(runs <= n * count);
        bt_kv_side_t left = {x, src, {0}}, right = {y, dst, {0}};
        for (uint32_t i = 0; i < count; i++)
            y->mems[i] = &to_mem;
        assert_int_equal(bt_kv_part_crc(0, &left, n, 0, count),
                         bt_kv_part_crc(0, &right, n, 0, count));
        bt_kv_layout_free(x);
        bt_kv_layout_free(y);
    }
}

static void test_layouts_are_checked(void **state)
{
    struct bt_kv_layout *l;
    const char *why = NULL;
    bt_kv_buffer_t bad[] = {
        {2, 0, 64, 64},                 /* unknown region */
        {1, 0, 63, 64},                 /* stride below bytes */
        {1, 0, 64, 0},                  /* no bytes */
        {1, MEM_BYTES - 64, 64, 64},    /* two pages do not fit */
        {1, UINT64_MAX, 64, 64},        /* wraps */
        {1, 0, UINT64_MAX / 2 + 1, 64}, /* wraps by product */
        {1, 0, UINT64_MAX, UINT64_MAX},
    };

    for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(bt_kv_layout_make(&l, &bad[i], 1, 3, size_of, NULL, &why), BT_E_INVAL);
        assert_non_null(why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_merge_across_pages_where_both_sides_go_on),
        cmocka_unit_test(test_gaps_break_runs),
        cmocka_unit_test(test_a_pages_adjoining_buffers_merge),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_random_layouts_move_the_right_bytes),
        cmocka_unit_test(test_layouts_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
