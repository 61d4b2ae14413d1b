#include "script/shared/shared_local.h"
#include "script_fixture.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS 20000

static int64_t add(bt_str_t name, int64_t delta)
{
    _Atomic int64_t *cell = bt_shared_local_cell(bt_shared_local_process(), name);

    return cell != NULL ? atomic_fetch_add(cell, delta) + delta : 0;
}

static void *add_many(void *arg)
{
    (void) arg;
    for (int i = 0; i < ROUNDS; i++) {
        char name[32];

        add(BT_STR("hot"), 1);
        snprintf(name, sizeof(name), "cold/%d", i % 50);
        add(bt_str(name), 2);
    }
    return NULL;
}

static void counts_exactly_over_threads(void **state)
{
    pthread_t threads[THREADS];
    int64_t cold = 0;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(add(BT_STR("hot"), 0), THREADS * ROUNDS);
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof(name), "cold/%d", i);
        cold += add(bt_str(name), 0);
    }
    assert_int_equal(cold, THREADS * ROUNDS * 2);
}

static void values(void **state)
{
    assert_int_equal(add(BT_STR("v"), 0), 0);
    atomic_store(bt_shared_local_cell(bt_shared_local_process(), BT_STR("v")), -5);
    assert_int_equal(add(BT_STR("v"), 7), 2);
    assert_int_equal(add(BT_STR("v"), 0), 2);
}

static void limits(void **state)
{
    char name[BT_SHARED_LOCAL_NAME_MAX + 2];
    unsigned made = 0;

    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_null(bt_shared_local_cell(bt_shared_local_process(), bt_str(name)));
    assert_null(bt_shared_local_cell(bt_shared_local_process(), BT_STR("")));
    name[BT_SHARED_LOCAL_NAME_MAX] = '\0';
    assert_non_null(bt_shared_local_cell(bt_shared_local_process(), bt_str(name)));
    for (unsigned i = 0; i < 2 * BT_SHARED_LOCAL_MAX; i++) {
        snprintf(name, sizeof(name), "fill/%u", i);
        made += bt_shared_local_cell(bt_shared_local_process(), bt_str(name)) != NULL;
    }
    assert_true(made > BT_SHARED_LOCAL_MAX - 100 && made <= BT_SHARED_LOCAL_MAX);
    assert_int_equal(add(BT_STR("one too many"), 1), 0);
    assert_non_null(bt_shared_local_cell(bt_shared_local_process(),
                                         BT_STR("fill/0"))); /* old names still work */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_exactly_over_threads),
        cmocka_unit_test(values),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
