/* The count of memory by kind, over threads; and the reserve. */
#include "base/mem.h"

#include "base/sanitize.h"
#include "unit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MIB ((size_t) 1 << 20)

static void test_kinds_are_counted_apart(void **state)
{
    bt_mem_count(BT_MEM_ARENAS, 1000);
    bt_mem_count(BT_MEM_TEXTS, 20);
    assert_int_equal(bt_mem_bytes(BT_MEM_ARENAS), 1000);
    assert_int_equal(bt_mem_bytes(BT_MEM_TEXTS), 20);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    assert_int_equal(bt_mem_total_bytes(), 1020);
    bt_mem_count(BT_MEM_ARENAS, -1000);
    bt_mem_count(BT_MEM_TEXTS, -20);
    assert_int_equal(bt_mem_total_bytes(), 0);
}

static void *count_a_lot(void *arg)
{
    for (unsigned i = 0; i < 1000; i++)
        bt_mem_count(BT_MEM_OBJECTS, 10000);
    for (unsigned i = 0; i < 999; i++)
        bt_mem_count(BT_MEM_OBJECTS, -10000);
    bt_mem_hand_over();
    return arg;
}

/* Others see it to 64 KiB while it runs (here: it has ended), and exactly after bt_mem_hand_over. */
static void test_threads_add_up(void **state)
{
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_a_lot, NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(bt_mem_bytes(BT_MEM_OBJECTS), 40000);
    bt_mem_count(BT_MEM_OBJECTS, -40000); /* given back by another thread than took it */
    assert_int_equal(bt_mem_total_bytes(), 0);
}

static void test_resize_counts_what_it_gives(void **state)
{
    char *p = bt_mem_resize(BT_MEM_TEXTS, NULL, 0, 100);

    memset(p, 'x', 100);
    p = bt_mem_resize(BT_MEM_TEXTS, p, 100, 10 * MIB);
    assert_int_equal(p[99], 'x');
    assert_int_equal(bt_mem_bytes(BT_MEM_TEXTS), 10 * MIB);
    assert_null(
        bt_mem_resize(BT_MEM_TEXTS, p, 10 * MIB, SIZE_MAX / 2 + 2)); /* nothing has changed */
    assert_int_equal(p[99], 'x');
    assert_int_equal(bt_mem_bytes(BT_MEM_TEXTS), 10 * MIB);
    assert_null(bt_mem_resize(BT_MEM_TEXTS, p, 10 * MIB, 0));
    assert_int_equal(bt_mem_total_bytes(), 0);
}

static void limit_data(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_DATA, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_DATA, &limit), 0);
}

static size_t data_bytes(void)
{
    unsigned long size, resident, shared, text, lib, data = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(
        fscanf(f, "%lu %lu %lu %lu %lu %lu", &size, &resident, &shared, &text, &lib, &data), 6);
    fclose(f);
    return data * 4096;
}

/* Where malloc says no, small pieces still come, out of the reserve; everybody can see that it is short, until it is not. */
static void test_the_reserve_serves_what_must_not_fail(void **state)
{
    void *must[16];

    if (BT_ASAN || BT_TSAN)
        skip();
    bt_mem_open();
    assert_false(bt_mem_is_short());
    limit_data(data_bytes());
    while (malloc(MIB) != NULL) /* what the limit still lets through; kept until exit */
        ;
    unsigned n = 0;
    while (n < 16 && !bt_mem_is_short())
        memset(must[n++] = bt_mem_must(MIB / 2), 'm', MIB / 2);
    assert_in_range(n, 1, 15);
    assert_true(bt_mem_is_short());
    limit_data(RLIM_INFINITY);
    assert_false(bt_mem_is_short()); /* set aside again */
    while (n > 0)
        free(must[--n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_are_counted_apart),
        cmocka_unit_test(test_threads_add_up),
        cmocka_unit_test(test_resize_counts_what_it_gives),
        cmocka_unit_test(test_the_reserve_serves_what_must_not_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
