/* Pieces of pages: each its own, and without memory once nobody needs them. */
#include "base/pages.h"
#include "base/sanitize.h"
#include "unit.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define COUNT 300 /* more than a region has */

static void *pieces[COUNT];

static void take_all(size_t bytes)
{
    for (unsigned i = 0; i < COUNT; i++) {
        pieces[i] = bt_pages_take(bytes);
        assert_non_null(pieces[i]);
        assert_true(BT_ASAN || (uintptr_t) pieces[i] % BT_PAGES_SMALL == 0);
        memset(pieces[i], (int) (1 + i % 255), bytes);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        const unsigned char *p = pieces[i];
        assert_int_equal(p[0], 1 + i % 255);
        assert_int_equal(p[bytes - 1], 1 + i % 255);
    }
}

static void test_no_two_share_a_byte(void **state)
{
    take_all(BT_PAGES_SMALL);
    for (unsigned i = 0; i < COUNT; i++)
        bt_pages_give(pieces[i], BT_PAGES_SMALL);
    take_all(BT_PAGES_LARGE);
    for (unsigned i = 0; i < COUNT; i++)
        bt_pages_give(pieces[i], BT_PAGES_LARGE);
}

static unsigned count_resident(void)
{
    unsigned char resident[BT_PAGES_LARGE / BT_PAGES_SMALL];
    unsigned count = 0;

    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(mincore(pieces[i], BT_PAGES_LARGE, resident), 0);
        count += (resident[0] & 1) != 0;
    }
    return count;
}

static void test_what_is_not_needed_has_no_memory(void **state)
{
    if (BT_ASAN)
        skip();
    take_all(BT_PAGES_LARGE);
    for (unsigned i = 0; i < COUNT; i++)
        bt_pages_give(pieces[i], BT_PAGES_LARGE);
    assert_int_equal(count_resident(), COUNT);
    (void) bt_pages_tidy(); /* sees that all of them were needed */
    take_all(BT_PAGES_LARGE);
    for (unsigned i = 0; i < COUNT; i++)
        bt_pages_give(pieces[i], BT_PAGES_LARGE);
    (void) bt_pages_tidy(); /* again */
    assert_int_equal(count_resident(), COUNT);
    while (bt_pages_tidy())
        continue;
    assert_in_range(count_resident(), 1, COUNT / 4); /* some are kept */
    bt_pages_thread_fini();
    assert_int_equal(count_resident(), 0);
}

static void *give_all(void *arg)
{
    (void) arg;
    for (unsigned i = 0; i < COUNT; i++)
        bt_pages_give(pieces[i], BT_PAGES_SMALL);
    bt_pages_thread_fini();
    return NULL;
}

static void test_another_thread_may_give(void **state)
{
    pthread_t thread;

    take_all(BT_PAGES_SMALL);
    assert_int_equal(pthread_create(&thread, NULL, give_all, NULL), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        void *p = bt_pages_take(BT_PAGES_SMALL);
        assert_non_null(p);
        *(volatile char *) p = 1;
        bt_pages_give(p, BT_PAGES_SMALL);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_two_share_a_byte),
        cmocka_unit_test(test_what_is_not_needed_has_no_memory),
        cmocka_unit_test(test_another_thread_may_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
