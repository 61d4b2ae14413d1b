#include "cluster/retry_budget.h"
#include "help.h"

static bt_retry_budget_t b;

static int setup(void **state)
{
    b = (bt_retry_budget_t){0};
    return 0;
}

static void count(unsigned n, uint64_t now_ms)
{
    for (unsigned i = 0; i < n; i++)
        bt_retry_budget_count(&b, now_ms);
}

static unsigned taken(unsigned percent, uint64_t now_ms)
{
    unsigned n = 0;

    while (n < 1000 && bt_retry_budget_take(&b, percent, now_ms))
        n++;
    return n;
}

static void ten_are_free(void **state)
{
    assert_int_equal(taken(20, 100000), 10);
    count(50, 100000); /* 20 % of them are ten too */
    assert_int_equal(taken(20, 100999), 0);
}

static void more_requests_may_have_more(void **state)
{
    count(300, 100000);
    count(200, 105000);
    assert_int_equal(taken(20, 105000), 100);
    assert_int_equal(taken(30, 105000), 50);
}

/* Requests and retries count for ten seconds, each for its own. */
static void what_is_older_counts_no_more(void **state)
{
    count(100, 100999);
    assert_int_equal(taken(50, 109000), 50);
    assert_int_equal(taken(50, 109999), 0);
    count(60, 110000);
    assert_int_equal(taken(50, 110000), 0); /* 30, and 50 were taken in second 109 */
    assert_int_equal(taken(50, 118999), 0);
    assert_int_equal(taken(50, 119000), 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ten_are_free, setup),
        cmocka_unit_test_setup(more_requests_may_have_more, setup),
        cmocka_unit_test_setup(what_is_older_counts_no_more, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
