/* What was put is there until there is no room: then what was used last stays longest. */
#include "dispatch/plan/token_cache.h"

#include "base/mem.h"
#include "base/pages.h"
#include "unit.h"

static bt_token_cache_t *cache;

static int setup(void **state)
{
    cache = bt_token_cache_new();
    return cache != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    bt_token_cache_free(cache);
    bt_pages_thread_fini();
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    return 0;
}

static void put(uint64_t key, size_t bytes)
{
    bt_buf_t *ids = bt_buf_new(bytes);

    assert_non_null(ids);
    bt_token_cache_put(cache, key, ids);
    bt_buf_unref(ids);
}

static void test_keys(void **state)
{
    assert_null(bt_token_cache_get(cache, 1));
    for (uint64_t key = 0; key < 3; key++) /* in one chain */
        put(1 + key * BT_TOKEN_CACHE_ENTRIES_MAX, 20000 + key);
    put(1, 30000); /* it is there */
    for (uint64_t key = 0; key < 3; key++)
        assert_int_equal(bt_token_cache_get(cache, 1 + key * BT_TOKEN_CACHE_ENTRIES_MAX)->cap,
                         20000 + key);
    assert_null(bt_token_cache_get(cache, 2));
}

static void test_the_count_is_bounded(void **state)
{
    bt_buf_t *ids = bt_buf_new(BT_BUF_STD_BYTES + 1);

    ids->cap = 1; /* so many of them would be too many bytes */
    for (uint64_t key = 0; key < BT_TOKEN_CACHE_ENTRIES_MAX; key++)
        bt_token_cache_put(cache, key, ids);
    assert_non_null(bt_token_cache_get(cache, 0));
    bt_token_cache_put(cache, BT_TOKEN_CACHE_ENTRIES_MAX, ids);
    assert_non_null(bt_token_cache_get(cache, 0));
    assert_null(bt_token_cache_get(cache, 1));
    assert_non_null(bt_token_cache_get(cache, BT_TOKEN_CACHE_ENTRIES_MAX));
    for (uint64_t key = 2; key < BT_TOKEN_CACHE_ENTRIES_MAX; key++)
        assert_non_null(bt_token_cache_get(cache, key));
    bt_token_cache_free(cache);
    cache = NULL;
    ids->cap = BT_BUF_STD_BYTES + 1;
    bt_buf_unref(ids);
}

static void test_the_bytes_are_bounded(void **state)
{
    put(1, BT_TOKEN_CACHE_BYTES_MAX / 4 + 1); /* it would put out too much */
    assert_null(bt_token_cache_get(cache, 1));
    for (uint64_t key = 1; key <= 4; key++)
        put(key, BT_TOKEN_CACHE_BYTES_MAX / 4);
    assert_non_null(bt_token_cache_get(cache, 1));
    put(5, BT_TOKEN_CACHE_BYTES_MAX / 4);
    assert_non_null(bt_token_cache_get(cache, 1));
    assert_null(bt_token_cache_get(cache, 2));
    assert_non_null(bt_token_cache_get(cache, 3));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {T(keys), T(the_count_is_bounded), T(the_bytes_are_bounded)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
