/* Large blocks: given out again where they fit, few, and not for long. */
#include "base/blocks.h"
#include "base/buf.h"
#include "base/sanitize.h"
#include "unit.h"

#include <malloc.h>
#include <string.h>

#define MIB ((size_t) 1 << 20)

static int setup(void **state)
{
    bt_blocks_thread_fini();
    return 0;
}

static void *taken(size_t bytes)
{
    void *p = bt_blocks_take(bytes);

    assert_non_null(p);
    assert_true(malloc_usable_size(p) >= bytes);
    memset(p, 1, bytes);
    return p;
}

static void test_a_block_is_given_out_again_where_it_fits(void **state)
{
    void *p = taken(MIB);

    assert_false(bt_blocks_has(MIB));
    bt_blocks_give(p);
    assert_false(bt_blocks_has(MIB + 8192));
    assert_false(bt_blocks_has(MIB / 2));
    assert_true(bt_blocks_has(MIB / 4 * 3));
    assert_ptr_equal(taken(MIB / 4 * 3), p);
    assert_false(bt_blocks_has(MIB / 4 * 3));
    bt_blocks_give(p);
    assert_ptr_equal(taken(MIB), p); /* it is still as large as it was */
    bt_blocks_give(p);
}

static void test_small_and_very_large_ones_are_not_kept(void **state)
{
    bt_blocks_give(taken(200000));
    assert_false(bt_blocks_has(200000));
    bt_blocks_give(taken(5 * MIB));
    assert_false(bt_blocks_has(5 * MIB));
}

static void test_the_newest_is_taken_and_the_oldest_makes_room(void **state)
{
    void *p[20];

    for (unsigned i = 0; i < 20; i++)
        p[i] = taken(MIB - 8192); /* with malloc's own bytes not quite a MiB */
    for (unsigned i = 0; i < 20; i++)
        bt_blocks_give(p[i]);
    for (unsigned i = 20; i-- > 4;)
        assert_ptr_equal(taken(MIB - 8192), p[i]);
    assert_false(bt_blocks_has(MIB - 8192));
    for (unsigned i = 4; i < 20; i++)
        bt_blocks_give(p[i]);
}

static void test_what_is_not_needed_is_freed(void **state)
{
    void *p[20], *needed;

    for (unsigned i = 0; i < 20; i++)
        p[i] = taken(300000);
    for (unsigned i = 0; i < 20; i++)
        bt_blocks_give(p[i]);
    assert_false(bt_blocks_tidy()); /* they have just been needed */
    assert_true(bt_blocks_has(300000));
    needed = taken(300000);
    bt_blocks_give(needed);
    assert_true(bt_blocks_tidy()); /* 8 at once */
    assert_true(bt_blocks_tidy());
    assert_false(bt_blocks_tidy());
    assert_ptr_equal(taken(300000), needed);
    assert_false(bt_blocks_has(300000));
    bt_blocks_give(needed);
    bt_blocks_thread_fini();
    assert_false(bt_blocks_has(300000));
}

static void test_a_large_buffer_is_the_next_ones(void **state)
{
    bt_buf_t *buf = bt_buf_new(600000);
    char *data = buf->data;

    bt_buf_unref(buf);
    assert_true(bt_buf_is_there(500000));
    buf = bt_buf_new(500000);
    assert_ptr_equal(buf->data, data);
    assert_int_equal(buf->cap, 500000); /* what it was asked for is what is counted */
    bt_buf_unref(buf);
    buf = bt_buf_new(300000);
    memcpy(buf->data, "begin", 5);
    buf->len = 5;
    assert_int_equal(bt_buf_grow(&buf, 600000),
                     0); /* its bytes move rather than that fresh pages come */
    assert_ptr_equal(buf->data, data);
    assert_memory_equal(buf->data, "begin", 5);
    bt_buf_unref(buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_block_is_given_out_again_where_it_fits, setup),
        cmocka_unit_test_setup(test_small_and_very_large_ones_are_not_kept, setup),
        cmocka_unit_test_setup(test_the_newest_is_taken_and_the_oldest_makes_room, setup),
        cmocka_unit_test_setup(test_what_is_not_needed_is_freed, setup),
        cmocka_unit_test_setup(test_a_large_buffer_is_the_next_ones, setup),
    };
    return BT_ASAN ? 0 : cmocka_run_group_tests(tests, NULL, NULL); /* there none is kept */
}
