/* Random numbers: repeatable sequences, bounds, ids, independence of threads. */
#include "base/rand.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

static void test_seed_repeats(void **state)
{
    uint64_t first[16];
    bt_rand_seed(42);
    for (int i = 0; i < 16; i++)
        first[i] = bt_rand_u64();
    bt_rand_seed(42);
    for (int i = 0; i < 16; i++)
        assert_true(bt_rand_u64() == first[i]);
    bt_rand_seed(43);
    assert_true(bt_rand_u64() != first[0]);
}

static void test_below_is_in_range_and_even(void **state)
{
    unsigned seen[7] = {0};
    bt_rand_seed(1);
    assert_true(bt_rand_below(0) == 0);
    assert_true(bt_rand_below(1) == 0);
    for (int i = 0; i < 70000; i++) {
        uint64_t v = bt_rand_below(7);
        assert_true(v < 7);
        seen[v]++;
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(seen[i], 9500, 10500);
    uint64_t bound = (UINT64_C(1) << 63) + 12345, upper = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t v = bt_rand_below(bound);
        assert_true(v < bound);
        upper += v >= bound / 2;
    }
    assert_in_range(upper, 400, 600);
}

static void test_unit(void **state)
{
    double sum = 0;
    bt_rand_seed(2);
    for (int i = 0; i < 10000; i++) {
        double v = bt_rand_unit();
        assert_true(v >= 0.0 && v < 1.0);
        sum += v;
    }
    assert_true(sum > 4800 && sum < 5200);
}

static void test_uuid(void **state)
{
    char a[BT_UUID_CHARS + 1], b[BT_UUID_CHARS + 1];
    for (int i = 0; i < 200; i++) {
        bt_rand_uuid(a);
        bt_rand_uuid(b);
        assert_int_equal(strlen(a), 36);
        assert_int_equal(strspn(a, "0123456789abcdef-"), 36);
        assert_true(a[8] == '-' && a[13] == '-' && a[18] == '-' && a[23] == '-');
        assert_int_equal(a[14], '4');
        assert_non_null(strchr("89ab", a[19]));
        assert_string_not_equal(a, b);
    }
}

static void test_secure_fills(void **state)
{
    unsigned char a[64] = {0}, b[64] = {0};
    bt_rand_secure(a, sizeof(a));
    bt_rand_secure(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, a + 32, 32);
}

static void *draw(void *arg)
{
    *(uint64_t *) arg = bt_rand_u64();
    return NULL;
}

static void test_threads_differ(void **state)
{
    pthread_t threads[4];
    uint64_t drawn[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, draw, &drawn[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_true(drawn[i] != drawn[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed_repeats), cmocka_unit_test(test_below_is_in_range_and_even),
        cmocka_unit_test(test_unit),         cmocka_unit_test(test_uuid),
        cmocka_unit_test(test_secure_fills), cmocka_unit_test(test_threads_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
