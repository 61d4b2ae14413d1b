/* What a process knows of the fleet's state: values and their age, bounded, whoever writes at the same time. */

#include "script/shared/shared_cache.h"
#include "unit.h"

#include <pthread.h>
#include <stdio.h>

static bt_text_t bytes;
static enum bt_shared_kind kind;
static double number;
static uint64_t put_us;

static int setup(void **state)
{
    bt_shared_cache_clear();
    bt_text_init(&bytes);
    return 0;
}

static int teardown(void **state)
{
    bt_text_fini(&bytes);
    bt_shared_cache_clear();
    return 0;
}

static bool get(const char *key)
{
    return bt_shared_cache_get(bt_str(key), &kind, &number, &bytes, &put_us);
}

static void keeps_and_drops(void **state)
{
    assert_false(get("a"));
    bt_shared_cache_put(BT_STR("a"), BT_SHARED_STRING, 0, BT_STR("x\0y"), 5);
    assert_true(get("a"));
    assert_int_equal(kind, BT_SHARED_STRING);
    assert_int_equal(bytes.len, 3);
    assert_memory_equal(bytes.data, "x\0y", 3);
    assert_int_equal(put_us, 5);
    bt_shared_cache_put(BT_STR("a"), BT_SHARED_NUMBER, -2.5, BT_STR_NULL, 7);
    assert_true(get("a"));
    assert_int_equal(kind, BT_SHARED_NUMBER);
    assert_true(number == -2.5);
    assert_int_equal(bytes.len, 0);
    assert_int_equal(put_us, 7);
    bt_shared_cache_put(BT_STR("a"), BT_SHARED_NONE, 0, BT_STR_NULL, 8);
    assert_true(get("a"));
    assert_int_equal(kind, BT_SHARED_NONE);
    bt_shared_cache_drop(BT_STR("a"));
    bt_shared_cache_drop(BT_STR("b"));
    assert_false(get("a"));
}

static void a_value_that_is_too_large_is_not_known(void **state)
{
    static char large[BT_SHARED_CACHE_VALUE_MAX + 1];

    bt_shared_cache_put(BT_STR("a"), BT_SHARED_STRING, 0, (bt_str_t){large, sizeof(large) - 1}, 1);
    assert_true(get("a"));
    bt_shared_cache_put(BT_STR("a"), BT_SHARED_STRING, 0, (bt_str_t){large, sizeof(large)}, 2);
    assert_false(get("a")); /* nor is the old one, which would be wrong */
}

static void is_bounded(void **state)
{
    static char value[BT_SHARED_CACHE_VALUE_MAX];
    unsigned known = 0;
    char key[32];

    for (unsigned i = 0; i < 20000; i++) {
        snprintf(key, sizeof(key), "key-%u", i);
        bt_shared_cache_put(bt_str(key), BT_SHARED_NUMBER, i, BT_STR_NULL, i);
    }
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(key, sizeof(key), "key-%u", i);
        if (!get(key))
            continue;
        known++;
        assert_true(number == i);
    }
    assert_true(known > 7000 && known <= 8192);
    assert_true(get("key-19999"));
    bt_shared_cache_clear();
    known = 0;
    for (unsigned i = 0; i < 600; i++) { /* 64 KiB each: 32 MiB are 512, less their heads */
        snprintf(key, sizeof(key), "large-%u", i);
        bt_shared_cache_put(bt_str(key), BT_SHARED_STRING, 0, (bt_str_t){value, sizeof(value)}, i);
        known += get(key);
    }
    assert_true(known >= 500 && known <= 513);
}

static void *write_many(void *arg)
{
    const char *text = arg;

    for (unsigned i = 0; i < 20000; i++) {
        bt_shared_cache_put(BT_STR("a"), BT_SHARED_STRING, 0, bt_str(text), i);
        if (i % 100 == 0)
            bt_shared_cache_drop(BT_STR("a"));
    }
    return NULL;
}

static void readers_see_whole_values(void **state)
{
    static char one[] = "one", two[] = "two and more";
    pthread_t threads[2];

    assert_int_equal(pthread_create(&threads[0], NULL, write_many, one), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, write_many, two), 0);
    for (unsigned i = 0; i < 20000; i++)
        if (get("a"))
            assert_true(bt_str_eq(bt_text_str(&bytes), bt_str(one)) ||
                        bt_str_eq(bt_text_str(&bytes), bt_str(two)));
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keeps_and_drops),
        TEST(a_value_that_is_too_large_is_not_known),
        TEST(is_bounded),
        TEST(readers_see_whole_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
