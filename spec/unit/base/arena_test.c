/* The arena: alignment, pieces of all sizes, strings, recycling of blocks. */
#include "base/arena.h"
#include "base/pages.h"
#include "base/sanitize.h"
#include "unit.h"

static void test_pieces_are_aligned_and_apart(void **state)
{
    bt_arena_t a;
    char *pieces[600];

    bt_arena_init(&a);
    for (unsigned i = 0; i < 600; i++) {
        pieces[i] = bt_arena_alloc(&a, i * 7);
        assert_int_equal((uintptr_t) pieces[i] % 16, 0);
        memset(pieces[i], (int) (i & 0xff), i * 7);
    }
    for (unsigned i = 0; i < 600; i++)
        for (unsigned k = 0; k < i * 7; k++)
            assert_int_equal((unsigned char) pieces[i][k], i & 0xff);
    bt_arena_fini(&a);
    assert_null(a.head);
    bt_arena_fini(&a);
}

static void test_large_piece_keeps_the_current_block(void **state)
{
    bt_arena_t a;

    bt_arena_init(&a);
    char *big_first = bt_arena_alloc(&a, 1 << 20);
    memset(big_first, 1, 1 << 20);
    char *one = bt_arena_alloc(&a, 16);
    char *big = bt_arena_alloc(&a, 100000);
    memset(big, 2, 100000);
    char *two = bt_arena_alloc(&a, 16);
    if (!BT_ASAN)
        assert_ptr_equal(two, one + 16);
    bt_arena_fini(&a);
}

static void test_zalloc_clears_recycled_memory(void **state)
{
    bt_arena_t a;

    for (int round = 0; round < 3; round++) {
        bt_arena_init(&a);
        unsigned char *p = bt_arena_zalloc(&a, 1000);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, 1000);
        bt_arena_fini(&a);
    }
}

static void test_blocks_are_recycled(void **state)
{
    bt_arena_t a;

    bt_arena_init(&a);
    void *first = bt_arena_alloc(&a, 8);
    bt_arena_fini(&a);
    bt_arena_init(&a);
    void *second = bt_arena_alloc(&a, 8);
    if (!BT_ASAN)
        assert_ptr_equal(first, second);
    assert_non_null(second);
    bt_arena_fini(&a);
}

static void test_room_of_the_owner_comes_first(void **state)
{
    bt_arena_t a;
    _Alignas(16) char room[64];

    for (int round = 0; round < 2; round++) {
        bt_arena_init_room(&a, room, sizeof(room));
        char *one = bt_arena_alloc(&a, 16);
        char *big = bt_arena_alloc(&a, 4000);
        memset(big, 1, 4000);
        char *two = bt_arena_alloc(&a, 48);
        if (!BT_ASAN) {
            assert_ptr_equal(one, room);
            assert_ptr_equal(two, room + 16);
        }
        char *beyond = bt_arena_alloc(&a, 1);
        assert_true(beyond < room || beyond >= room + sizeof(room));
        bt_arena_fini(&a);
        assert_null(a.at);
    }
}

static void test_strings(void **state)
{
    bt_arena_t a;
    char longer[1000];

    bt_arena_init(&a);
    bt_str_t s = bt_arena_str(&a, (bt_str_t){"hello world", 5});
    assert_int_equal(s.n, 5);
    assert_string_equal(s.p, "hello");
    assert_string_equal(bt_arena_str(&a, BT_STR_NULL).p, "");
    s = bt_arena_printf(&a, "%d-%s", 42, "x");
    assert_string_equal(s.p, "42-x");
    assert_int_equal(s.n, 4);
    for (int n = 250; n < 262; n++) { /* around the size of the first try */
        memset(longer, 'y', sizeof(longer));
        longer[n] = '\0';
        s = bt_arena_printf(&a, "%s", longer);
        assert_int_equal(s.n, n);
        assert_string_equal(s.p, longer);
    }
    bt_arena_fini(&a);
}

static int teardown(void **state)
{
    bt_pages_thread_fini();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_aligned_and_apart),
        cmocka_unit_test(test_large_piece_keeps_the_current_block),
        cmocka_unit_test(test_zalloc_clears_recycled_memory),
        cmocka_unit_test(test_blocks_are_recycled),
        cmocka_unit_test(test_room_of_the_owner_comes_first),
        cmocka_unit_test(test_strings),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
