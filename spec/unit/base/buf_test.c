/* Buffers: references, copies, recycling, and the process-wide count under threads. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/pages.h"
#include "base/sanitize.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>

static void test_standard_buffer(void **state)
{
    size_t before = bt_mem_bytes(BT_MEM_BUFFERS);
    bt_buf_t *buf = bt_buf_new(1);
    assert_int_equal(buf->cap, BT_BUF_STD_BYTES);
    assert_int_equal(buf->len, 0);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before + BT_BUF_STD_BYTES);
    memset(buf->data, 'x', buf->cap);
    assert_ptr_equal(bt_buf_ref(buf), buf);
    bt_buf_unref(buf);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before + BT_BUF_STD_BYTES);
    bt_buf_unref(buf);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before);
    bt_buf_unref(NULL);
}

static void test_standard_buffers_are_recycled(void **state)
{
    bt_buf_t *first = bt_buf_new(BT_BUF_STD_BYTES);
    first->len = 9;
    bt_buf_unref(first);
    bt_buf_t *second = bt_buf_new(10);
    if (!BT_ASAN)
        assert_ptr_equal(first, second);
    assert_int_equal(second->len, 0);
    assert_int_equal(second->refs, 1);
    bt_buf_unref(second);
}

static void test_sized_and_copy(void **state)
{
    size_t before = bt_mem_bytes(BT_MEM_BUFFERS);
    bt_buf_t *big = bt_buf_new(BT_BUF_STD_BYTES + 1);
    assert_int_equal(big->cap, BT_BUF_STD_BYTES + 1);
    big->data[BT_BUF_STD_BYTES] = 1;
    bt_buf_t *copy = bt_buf_copy("hello", 5);
    assert_int_equal(copy->len, 5);
    assert_memory_equal(copy->data, "hello", 5);
    bt_buf_t *empty = bt_buf_copy(NULL, 0);
    assert_int_equal(empty->len, 0);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before + BT_BUF_STD_BYTES + 6);
    bt_buf_unref(big);
    bt_buf_unref(copy);
    bt_buf_unref(empty);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), before);
    assert_null(bt_buf_new(SIZE_MAX));
}

static void test_free_list_is_bounded(void **state)
{
    bt_buf_t *bufs[400];
    for (int i = 0; i < 400; i++)
        bufs[i] = bt_buf_new(1);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 400 * BT_BUF_STD_BYTES);
    for (int i = 0; i < 400; i++)
        bt_buf_unref(bufs[i]); /* a leak checker sees those beyond the bound when they are lost */
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
}

static void *churn(void *arg)
{
    bt_buf_t *held[8] = {NULL};
    for (int i = 0; i < 5000; i++) {
        bt_buf_unref(held[i % 8]);
        held[i % 8] = i % 3 == 0 ? bt_buf_copy(arg, 3) : bt_buf_new(100);
        if (i % 64 == 0)
            (void) bt_mem_bytes(BT_MEM_BUFFERS);
    }
    for (int i = 0; i < 8; i++)
        bt_buf_unref(held[i]);
    bt_pages_thread_fini();
    return NULL;
}

static void test_count_over_threads(void **state)
{
    pthread_t threads[20]; /* more than there are counter slots */
    bt_buf_t *mine = bt_buf_new(1);
    for (int i = 0; i < 20; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, (void *) (uintptr_t) "abc"), 0);
    for (int i = 0; i < 20; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), BT_BUF_STD_BYTES);
    bt_buf_unref(mine);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
}

static int teardown(void **state)
{
    bt_pages_thread_fini();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standard_buffer),
        cmocka_unit_test(test_standard_buffers_are_recycled),
        cmocka_unit_test(test_sized_and_copy),
        cmocka_unit_test(test_free_list_is_bounded),
        cmocka_unit_test(test_count_over_threads),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
