/* Bytes per token: what is known at first, a mean for each model, by how much it was off, and what is no lesson. */
#include "limits/estimate.h"
#include "unit.h"

#include <stdio.h>

#include <pthread.h>

static bt_estimate_t e;

static int init(void **state)
{
    memset(&e, 0, sizeof e);
    bt_estimate_init(&e);
    return 0;
}

static void teach(const char *model, uint64_t bytes, uint64_t tokens, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        bt_estimate_learn(&e, bt_str(model), bytes, tokens);
}

static uint64_t milli_of(const char *model)
{
    return bt_estimate_milli(&e, bt_str(model));
}

static void test_one_model(void **state)
{
    assert_int_equal(milli_of("a"), 4000);
    teach("a", 300, 100, 1);
    assert_int_equal(milli_of("a"), 4000 - 500 + 375);
    assert_int_equal(e.models[0].said, 100);
    assert_int_equal(e.models[0].off, 25); /* 75 were expected */
    teach("a", 300, 100, 60);
    assert_in_range(milli_of("a"), 2990, 3010);
    const uint64_t off = e.models[0].off;
    teach("a", 3000, 1000, 10); /* by now it is right */
    assert_in_range(e.models[0].off - off, 0, 50);
    assert_string_equal(e.models[0].name, "a");
}

static void test_each_has_its_own(void **state)
{
    teach("english", 450, 100, 40);
    teach("chinese", 150, 100, 40);
    assert_in_range(milli_of("english"), 4480, 4520);
    assert_in_range(milli_of("chinese"), 1490, 1510);
    /* A model of which nothing is known yet: as the pool. */
    assert_int_equal(milli_of("new"), e.milli);
    assert_in_range(e.milli, 1500, 4500);
}

static void test_no_lessons(void **state)
{
    teach("a", 0, 10, 5);
    teach("a", 10, 0, 5);
    teach("a", 1 << 20, 300, 5); /* a picture */
    assert_int_equal(e.count, 0);
    assert_int_equal(milli_of("a"), 4000);
    teach("a", 1, 1000000, 50); /* never nothing: it is divided by */
    assert_true(milli_of("a") > 0);
}

static void test_no_more_than_there_is_room_for(void **state)
{
    char name[200];

    for (unsigned i = 0; i < 3 * BT_ESTIMATE_MODELS; i++) {
        snprintf(name, sizeof name, "%0150u", i); /* longer than what is kept */
        teach(name, 400, 100, 1);
    }
    assert_int_equal(e.count, BT_ESTIMATE_MODELS);
    assert_int_equal(strlen(e.models[31].name), BT_ESTIMATE_NAME_MAX);
    teach("late", 100, 100, 60);
    assert_in_range(milli_of("late"), 1000, 1100); /* as the pool, which has learned it */
}

#define THREADS 4

static void *learn(void *name)
{
    for (unsigned i = 0; i < 5000; i++) {
        bt_estimate_learn(&e, bt_str(name), 300, 100);
        if (bt_estimate_milli(&e, bt_str(name)) == 0)
            return name;
    }
    return NULL;
}

static void test_threads(void **state)
{
    static char names[THREADS][8] = {"a", "b", "a", "b"};
    pthread_t threads[THREADS];
    void *bad;

    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, learn, names[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    assert_int_equal(e.count, 2);
    assert_in_range(milli_of("a"), 2990, 3010);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_one_model, init),
        cmocka_unit_test_setup(test_each_has_its_own, init),
        cmocka_unit_test_setup(test_no_lessons, init),
        cmocka_unit_test_setup(test_no_more_than_there_is_room_for, init),
        cmocka_unit_test_setup(test_threads, init),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
