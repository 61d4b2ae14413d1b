/* Pages by number: every length around the place where the way of sorting changes, every width of number, and pages that are there twice. */
#include "transport/agent/pages.h"

#include "base/rand.h"
#include "unit.h"

#include <stdlib.h>

static uint32_t *make(uint32_t n, uint32_t step)
{
    uint32_t *pages = malloc((size_t) n * sizeof(*pages) + 1);

    for (uint32_t i = 0; i < n; i++)
        pages[i] = i * step;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t) bt_rand_below(i), was = pages[i - 1];
        pages[i - 1] = pages[j];
        pages[j] = was;
    }
    return pages;
}

static const uint32_t lengths[] = {0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 2000, 70000};
static const uint32_t steps[] = {1, 3, 257, 61000};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static void test_any_order_is_sorted(void **state)
{
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t s = 0; s < COUNT(steps); s++) {
            uint32_t n = lengths[l], *pages = make(n, steps[s]), *spare = make(n, 1);
            assert_true(bt_kv_pages_sort(pages, spare, n));
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(pages[i], i * steps[s]);
            assert_true(bt_kv_pages_sort(pages, spare, n)); /* sorted as it is */
            free(pages);
            free(spare);
        }
}

static void test_the_highest_number(void **state)
{
    uint32_t pages[40], spare[40];

    for (uint32_t i = 0; i < 40; i++)
        pages[i] = UINT32_MAX - i;
    assert_true(bt_kv_pages_sort(pages, spare, 40));
    assert_int_equal(pages[0], UINT32_MAX - 39);
    assert_int_equal(pages[39], UINT32_MAX);
}

static void test_a_page_twice_is_found(void **state)
{
    for (size_t l = 2; l < COUNT(lengths); l++) {
        uint32_t n = lengths[l], *pages = make(n, 257), *spare = make(n, 1);
        pages[bt_rand_below(n / 2)] = pages[n - 1];
        assert_false(bt_kv_pages_sort(pages, spare, n));
        free(pages);
        free(spare);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order_is_sorted),
        cmocka_unit_test(test_the_highest_number),
        cmocka_unit_test(test_a_page_twice_is_found),
    };

    bt_rand_seed(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
