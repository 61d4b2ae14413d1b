/* How the limit of open files is divided, and what is refused with which words. */
#include "base/err.h"
#include "gateway/descriptors.h"
#include "unit.h"

#include <stdio.h>

static char err[BT_CONFIG_ERR_BYTES];
static bt_descriptors_t d;

static int divide(uint64_t limit, unsigned workers, unsigned max_connections)
{
    const bt_descriptors_need_t ask = {
        .limit = limit, .open = 20, .workers = workers, .max_connections = max_connections};

    err[0] = '\0';
    d = (bt_descriptors_t){0};
    return bt_descriptors_divide(&ask, &d, err, sizeof(err));
}

/* Whatever the limit: all parts fit, a client in three has two workers' connections, the operator is there. */
static void test_everything_fits(void **state)
{
    for (uint64_t limit = 60; limit < 2000000; limit += 1 + limit / 7)
        for (unsigned workers = 0; workers < 1000; workers += 1 + workers * 3) {
            if (divide(limit, workers, 0) < 0)
                continue;
            assert_true(d.clients >= 2 && d.workers >= 2 * d.clients);
            assert_true(d.admin >= 8 && d.refusals >= 2);
            assert_true(20 + d.admin + 2 * d.refusals + d.clients + d.workers + workers < limit);
        }
    assert_int_equal(divide(1024, 10, 0), 0);
    assert_true(d.clients > 270);
    assert_int_equal(divide(1048576, 10, 0), 0);
    assert_true(d.clients > 349000);
}

static void test_what_is_asked_for(void **state)
{
    unsigned most;
    unsigned long long need;

    assert_int_equal(divide(1024, 10, 100), 0);
    assert_int_equal(d.clients, 100);
    assert_true(d.workers > 700);
    assert_int_equal(divide(1024, 10, 5000), BT_E_CONFIG);
    assert_int_equal(sscanf(err,
                            "--max-connections 5000: the limit of open files is 1024, which holds "
                            "%u: lower the flag, or raise the limit to %llu (ulimit -n, "
                            "LimitNOFILE=)",
                            &most, &need),
                     2);
    assert_non_null(strstr(err, "(ulimit -n, LimitNOFILE=)"));
    assert_int_equal(divide(1024, 10, most), 0); /* both remedies are true */
    assert_int_equal(divide(1024, 10, most + 1), BT_E_CONFIG);
    assert_int_equal(divide(need, 10, 5000), 0);
}

static void test_too_few(void **state)
{
    unsigned long long need;

    assert_int_equal(divide(40, 1, 0), BT_E_CONFIG);
    assert_int_equal(sscanf(err,
                            "the limit of open files is 40: too few to serve clients, raise it to "
                            "%llu",
                            &need),
                     1);
    assert_int_equal(divide(need, 1, 0), 0);
    assert_int_equal(divide(1024, 2000, 0), BT_E_CONFIG); /* the workers' health takes it all */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_fits),
        cmocka_unit_test(test_what_is_asked_for),
        cmocka_unit_test(test_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
