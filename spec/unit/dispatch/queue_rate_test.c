/* How long somebody will stand in line, by numbers for a clock. */
#include "dispatch/queue/queue_rate.h"

#include "base/str.h"
#include "dispatch/queue/tenant_weights.h"
#include "unit.h"

#define S UINT64_C(1000000)

/* 100 tokens each 2 s. */
static uint64_t steady(bt_queue_rate_t *rate, uint64_t now_us, unsigned calls)
{
    bt_queue_rate_begin(rate, now_us);
    for (unsigned i = 0; i < calls; i++)
        bt_queue_rate_note(rate, 100, now_us += 2 * S);
    return now_us;
}

static void nothing_is_known_of_few(void **state)
{
    bt_queue_rate_t rate = {0};

    steady(&rate, S, 3);
    assert_int_equal(bt_queue_rate_predict_ms(&rate, 1000), 0);
    steady(&rate, 100 * S, 1);
    assert_true(bt_queue_rate_predict_ms(&rate, 1000) != 0);
}

static void what_is_steady_is_predicted(void **state)
{
    bt_queue_rate_t rate = {0};
    uint64_t ms;

    steady(&rate, S, 50);
    assert_true(bt_queue_rate_tokens(&rate) > 49 && bt_queue_rate_tokens(&rate) < 51);
    ms = bt_queue_rate_predict_ms(&rate, 1000); /* ten before it, and its own turn */
    assert_true(ms > 21900 && ms < 22100);
}

static void a_change_is_followed_and_idle_time_says_nothing(void **state)
{
    bt_queue_rate_t rate = {0};
    uint64_t now_us = steady(&rate, S, 50);

    now_us += 3600 * S; /* nobody waits */
    bt_queue_rate_begin(&rate, now_us);
    assert_true(bt_queue_rate_tokens(&rate) > 49);
    for (unsigned i = 0; i < 120; i++) /* a minute of twice as fast */
        bt_queue_rate_note(&rate, 50, now_us += S / 2);
    assert_true(bt_queue_rate_tokens(&rate) > 90 && bt_queue_rate_tokens(&rate) < 100);
}

static void no_number_is_too_large(void **state)
{
    bt_queue_rate_t rate = {0};

    steady(&rate, S, 5);
    assert_int_equal(bt_queue_rate_predict_ms(&rate, UINT64_MAX), 1000000000);
    rate = (bt_queue_rate_t){0};
    bt_queue_rate_begin(&rate, S);
    for (unsigned i = 0; i < 9; i++)
        bt_queue_rate_note(&rate, 100, S - i); /* no time, or less, has passed */
    assert_int_equal(bt_queue_rate_predict_ms(&rate, 1000), 0);
}

static void weights_by_name(void **state)
{
    static const char *const wrong[] = {"a",      "a=",    "=3",   "a=0",
                                        "a=1001", "a=1.5", "a=-1", "b=2,,a=3"};
    bt_tenant_weights_t w;
    bt_str_t part;

    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(bt_tenant_weights_check(bt_str(wrong[i]), &part));
    assert_false(bt_tenant_weights_check(BT_STR("a=1,bad,c=2"), &part));
    assert_true(bt_str_eq(part, BT_STR("bad")));
    assert_true(bt_tenant_weights_check(BT_STR("gold=4,team-b=1000"), &part));
    assert_int_equal(bt_tenant_weights_read(&w, BT_STR("gold=4,team-b=1000")), 0);
    assert_int_equal(bt_tenant_weight(&w, BT_STR("gold")), 4);
    assert_int_equal(bt_tenant_weight(&w, BT_STR("team-b")), 1000);
    assert_int_equal(bt_tenant_weight(&w, BT_STR("golden")), 1);
    bt_tenant_weights_fini(&w);
    assert_int_equal(bt_tenant_weights_read(&w, BT_STR("")), 0);
    assert_int_equal(bt_tenant_weight(&w, BT_STR("")), 1);
    bt_tenant_weights_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_of_few),
        cmocka_unit_test(what_is_steady_is_predicted),
        cmocka_unit_test(a_change_is_followed_and_idle_time_says_nothing),
        cmocka_unit_test(no_number_is_too_large),
        cmocka_unit_test(weights_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
