/* Hits that never come cost an engine's events their trust, and nothing else does. */
#include "cluster/kv_trust.h"
#include "unit.h"

static bt_worker_t w;

static int setup(void **state)
{
    w = (bt_worker_t){.name = (char *) "w0"};
    return 0;
}

static void miss(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        bt_kv_trust_note(&w, 60, 100, false, 0);
}

static void test_misses_in_a_row(void **state)
{
    bt_kv_trust_note(&w, 0, 100, true, 30);
    miss(BT_KV_MISSES_MAX - 1);
    assert_true(bt_kv_trust_has(&w));
    bt_kv_trust_note(&w, 60, 100, true, 1); /* a hit begins them anew */
    miss(BT_KV_MISSES_MAX - 1);
    assert_true(bt_kv_trust_has(&w));
    bt_kv_trust_note(&w, 50, 100, true, 0); /* no more than half was predicted */
    assert_true(bt_kv_trust_has(&w));
    bt_kv_trust_note(&w, 60, 100, true, 0);
    assert_false(bt_kv_trust_has(&w));
}

static void test_who_tells_nothing(void **state)
{
    miss(3 * BT_KV_MISSES_MAX);
    assert_true(bt_kv_trust_has(&w));
    bt_kv_trust_note(&w, 0, 100, true, 0); /* it does, from here on */
    miss(BT_KV_MISSES_MAX);
    assert_false(bt_kv_trust_has(&w));
}

/* Any of its ranks may have had what another one computed. */
static void test_several_ranks(void **state)
{
    w.dp_size = 2;
    w.spec.dp_rank = -1;
    bt_kv_trust_note(&w, 0, 100, true, 30);
    miss(3 * BT_KV_MISSES_MAX);
    assert_true(bt_kv_trust_has(&w));
    w.spec.dp_rank = 1; /* one of them is the worker */
    miss(BT_KV_MISSES_MAX);
    assert_false(bt_kv_trust_has(&w));
}

static void test_it_comes_back(void **state)
{
    bt_kv_trust_note(&w, 0, 100, true, 0);
    miss(BT_KV_MISSES_MAX);
    assert_false(bt_kv_trust_has(&w));
    bt_kv_trust_note(&w, 60, 100, true, 60); /* by chance */
    assert_false(bt_kv_trust_has(&w));
    bt_kv_trust_renew(&w);
    assert_true(bt_kv_trust_has(&w));
    miss(BT_KV_MISSES_MAX - 1);
    assert_true(bt_kv_trust_has(&w));
    miss(1);
    assert_false(bt_kv_trust_has(&w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_misses_in_a_row, setup),
                                       cmocka_unit_test_setup(test_who_tells_nothing, setup),
                                       cmocka_unit_test_setup(test_several_ranks, setup),
                                       cmocka_unit_test_setup(test_it_comes_back, setup)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
