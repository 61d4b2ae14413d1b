/* The limits in force: views are renewed, counters go on over reloads, nobody runs above a limit of requests at a time. */
#include "limits/limits.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <pthread.h>

static bt_limit_table_t *table_of(const char *name)
{
    bt_limit_table_t *table = bt_limit_table_new();

    bt_limit_table_add(table)->name = strdup(name);
    bt_limit_table_finish(table);
    return table;
}

static void count(void *user, const bt_limit_count_t *c)
{
    (void) c;
    ++*(unsigned *) user;
}

static unsigned names_of(bt_limits_t *limits)
{
    unsigned n = 0;

    bt_limits_each(limits, count, &n);
    return n;
}

static void test_reload(void **state)
{
    bt_limits_view_t view = {0, NULL};
    bt_limits_t *limits;
    char name[16];

    assert_int_equal(bt_limits_new(&limits), 0);
    bt_limits_set(limits, NULL);
    bt_limits_renew(limits, &view);
    assert_null(view.table);
    bt_limits_set(limits, table_of("a"));
    bt_limits_renew(limits, &view);
    assert_string_equal(view.table->items[0].name, "a");
    bt_limit_count_t *counts = view.table->items[0].counts;
    bt_limit_count_add(&counts->admitted, 7);
    bt_limits_set(limits, table_of("b"));
    bt_limits_set(limits, NULL);
    bt_limits_renew(limits, &view);
    assert_null(view.table);
    bt_limits_set(limits, table_of("a"));
    bt_limits_renew(limits, &view);
    assert_ptr_equal(view.table->items[0].counts, counts);
    assert_int_equal(counts->admitted, 7);
    assert_int_equal(names_of(limits), 2);
    for (unsigned i = 0; i < 2 * BT_LIMITS_MAX; i++) {
        snprintf(name, sizeof name, "n%u", i);
        bt_limits_set(limits, table_of(name));
    }
    assert_int_equal(names_of(limits), BT_LIMITS_MAX);
    bt_limits_renew(limits, &view);
    assert_non_null(view.table->items[0].counts);
    bt_limits_drop(&view);
    bt_limits_free(limits);
    bt_limits_free(NULL);
}

static void test_at_a_time(void **state)
{
    bt_limits_t *limits;
    int64_t now;

    assert_int_equal(bt_limits_new(&limits), 0);
    assert_false(bt_limits_enter(limits, BT_STR("k"), 0, &now));
    assert_true(bt_limits_enter(limits, BT_STR("k"), 2, &now));
    assert_true(bt_limits_enter(limits, BT_STR("k"), 2, &now));
    assert_int_equal(now, 2);
    assert_false(bt_limits_enter(limits, BT_STR("k"), 2, &now));
    assert_int_equal(now, 2);
    assert_true(bt_limits_enter(limits, BT_STR("other"), 2, &now));
    bt_limits_leave(limits, BT_STR("k"));
    assert_true(bt_limits_enter(limits, BT_STR("k"), 2, &now));
    bt_limits_leave(limits, BT_STR("nobody"));
    bt_limits_free(limits); /* what runs still is forgotten */
}

#define THREADS 4
#define ROUNDS 20000

static bt_limits_t *all;
static _Atomic int inside;

static void *run(void *unused)
{
    int64_t now;

    (void) unused;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (!bt_limits_enter(all, BT_STR("k"), 2, &now))
            continue;
        if (atomic_fetch_add(&inside, 1) >= 2)
            abort();
        atomic_fetch_sub(&inside, 1);
        bt_limits_leave(all, BT_STR("k"));
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[THREADS];
    int64_t now;

    assert_int_equal(bt_limits_new(&all), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_true(bt_limits_enter(all, BT_STR("k"), 1, &now));
    bt_limits_leave(all, BT_STR("k"));
    bt_limits_free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_at_a_time),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
