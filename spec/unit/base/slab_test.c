/* The pool: zeroed objects, counts, the bound on what is kept. */
#include "base/sanitize.h"
#include "base/slab.h"
#include "unit.h"

#include <string.h>

static void test_objects_come_zeroed(void **state)
{
    bt_slab_t pool;
    bt_slab_init(&pool, 100, 4);
    for (int round = 0; round < 3; round++) {
        unsigned char *object = bt_slab_get(&pool);
        for (int i = 0; i < 100; i++)
            assert_int_equal(object[i], 0);
        memset(object, 0xaa, 100);
        assert_int_equal(pool.out_count, 1);
        bt_slab_put(&pool, object);
        assert_int_equal(pool.out_count, 0);
        assert_int_equal(pool.free_count, BT_ASAN ? 0 : 1);
    }
    bt_slab_fini(&pool);
    assert_int_equal(pool.free_count, 0);
}

static void test_zeroes_as_much_as_the_owner_wants(void **state)
{
    bt_slab_t pool;
    bt_slab_init(&pool, 100, 4);
    pool.raw_bytes = 60;
    for (int round = 0; round < 3; round++) {
        unsigned char *object = bt_slab_get(&pool);
        for (int i = 0; i < 40; i++)
            assert_int_equal(object[i], 0);
        if (round > 0 && !BT_ASAN)
            assert_int_equal(object[40], 0xaa);
        memset(object, 0xaa, 100);
        bt_slab_put(&pool, object);
    }
    bt_slab_fini(&pool);
}

static void test_keeps_at_most_keep_max(void **state)
{
    bt_slab_t pool;
    void *objects[10];
    bt_slab_init(&pool, 1, 4); /* smaller than the link it must hold while free */
    for (int i = 0; i < 10; i++)
        objects[i] = bt_slab_get(&pool);
    for (int i = 0; i < 10; i++)
        bt_slab_put(&pool, objects[i]);
    assert_int_equal(pool.free_count, BT_ASAN ? 0 : 4);
    for (int i = 0; i < 10; i++)
        objects[i] = bt_slab_get(&pool);
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(objects[i], objects[k]);
    assert_int_equal(pool.out_count, 10);
    for (int i = 0; i < 10; i++)
        bt_slab_put(&pool, objects[i]);
    bt_slab_put(&pool, NULL);
    assert_int_equal(pool.out_count, 0);
    bt_slab_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects_come_zeroed),
        cmocka_unit_test(test_zeroes_as_much_as_the_owner_wants),
        cmocka_unit_test(test_keeps_at_most_keep_max),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
