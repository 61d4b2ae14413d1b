#include "script/shared/rate.h"
#include "script_fixture.h"

#include <math.h>
#include <pthread.h>

#define S 1000000u /* us */

static void close_to(double value, double expected)
{
    if (fabs(value - expected) > 1e-6 * (1 + fabs(expected)))
        fail_msg("%.9g is not %.9g", value, expected);
}

static void ewma(void **state)
{
    double value = -1;

    assert_false(bt_rate_ewma_get(bt_rates_process(), BT_STR("e"), &value, 1));
    close_to(bt_rate_ewma(bt_rates_process(), BT_STR("e"), 0, 0.5, 1), 0);
    close_to(bt_rate_ewma(bt_rates_process(), BT_STR("e"), 8, 0.25, 1), 2);
    assert_true(bt_rate_ewma_get(bt_rates_process(), BT_STR("e"), &value, 1));
    close_to(value, 2);
    close_to(bt_rate_window(bt_rates_process(), BT_STR("e"), 5, S, 1),
             5); /* another kind, another cell */
}

/* 10 a second, 5 at once. */
static void bucket(void **state)
{
    const bt_str_t name = BT_STR("b");

    for (int i = 0; i < 5; i++)
        close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 1, 100 * S), 0);
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 1, 100 * S), 0.1);
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 1, 100 * S + S / 20), 0.05);
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 1, 100 * S + S / 10), 0);
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 3, 100 * S + S / 10), 0.3);
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 5, 200 * S),
             0); /* never more than full */
    close_to(bt_rate_take(bt_rates_process(), name, 10, 5, 1, 200 * S), 0.1);
    assert_true(isinf(bt_rate_take(bt_rates_process(), name, 10, 5, 6, 300 * S)));
}

static void window(void **state)
{
    const bt_str_t name = BT_STR("w");

    close_to(bt_rate_window(bt_rates_process(), name, 10, 10 * S, 100 * S), 10);
    close_to(bt_rate_window(bt_rates_process(), name, 30, 10 * S, 109 * S), 40);
    close_to(bt_rate_window(bt_rates_process(), name, 0, 10 * S, 110 * S), 40);
    close_to(bt_rate_window(bt_rates_process(), name, 1, 10 * S, 115 * S),
             21); /* half of the one before */
    close_to(bt_rate_window(bt_rates_process(), name, 0, 10 * S, 120 * S), 1);
    close_to(bt_rate_window(bt_rates_process(), name, 0, 10 * S, 500 * S), 0);
}

/* Names from requests cannot fill the memory; the busiest stays. */
static void names_are_bounded(void **state)
{
    double value;
    unsigned left = 0;

    for (unsigned i = 0; i < 100000; i++) {
        char name[32];
        int n = snprintf(name, sizeof(name), "tenant-%u", i);
        bt_rate_ewma(bt_rates_process(), (bt_str_t){name, (size_t) n}, 1, 0.5, 1000 + i);
        bt_rate_ewma(bt_rates_process(), BT_STR("busy"), 1, 0.5, 1000 + i);
    }
    for (unsigned i = 0; i < 100000; i++) {
        char name[32];
        int n = snprintf(name, sizeof(name), "tenant-%u", i);
        left += bt_rate_ewma_get(bt_rates_process(), (bt_str_t){name, (size_t) n}, &value, 200000);
    }
    assert_in_range(left, 12000, 16384);
    assert_true(bt_rate_ewma_get(bt_rates_process(), BT_STR("busy"), &value, 200000));
}

static void *hammer(void *arg)
{
    long *taken = arg;

    for (int i = 0; i < 20000; i++) {
        bt_rate_window(bt_rates_process(), BT_STR("sum"), 1, 1000 * (uint64_t) S, 5 * (uint64_t) S);
        if (bt_rate_take(bt_rates_process(), BT_STR("shared"), 1, 1000, 1, 5 * (uint64_t) S) == 0)
            ++*taken;
        bt_rate_ewma(bt_rates_process(), BT_STR("mean"), 3, 0.1, 5 * (uint64_t) S);
    }
    return NULL;
}

static void threads_lose_nothing(void **state)
{
    long taken[4] = {0};
    pthread_t threads[4];
    double mean = 0;

    bt_rate_window(bt_rates_process(), BT_STR("sum"), 0, 1000 * (uint64_t) S,
                   5 * (uint64_t) S); /* the cells are there */
    bt_rate_take(bt_rates_process(), BT_STR("shared"), 1, 1000, 0, 5 * (uint64_t) S);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &taken[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_to(
        bt_rate_window(bt_rates_process(), BT_STR("sum"), 0, 1000 * (uint64_t) S, 5 * (uint64_t) S),
        80000);
    assert_int_equal(taken[0] + taken[1] + taken[2] + taken[3], 1000);
    assert_true(bt_rate_ewma_get(bt_rates_process(), BT_STR("mean"), &mean, 5 * (uint64_t) S));
    close_to(mean, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ewma),
        cmocka_unit_test(bucket),
        cmocka_unit_test(window),
        cmocka_unit_test(names_are_bounded),
        cmocka_unit_test(threads_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
