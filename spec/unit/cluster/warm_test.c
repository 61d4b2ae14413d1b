#include "cluster/warm.h"
#include "help.h"

static bt_worker_t *worker(enum bt_role role)
{
    bt_worker_spec_t spec;

    make_spec(&spec, role, "http://127.0.0.1:1", "NixlConnector");
    return worker_of(&spec);
}

static void warm(bt_worker_t *p, bt_worker_t *d)
{
    bt_warm_note(p, d, bt_warm_word(p, d));
}

static void a_restart_of_either_makes_it_cold(void **state)
{
    bt_worker_t *p = worker(BT_ROLE_PREFILL), *d = worker(BT_ROLE_DECODE),
                *e = worker(BT_ROLE_DECODE);

    assert_false(bt_warm_has(p, d) || bt_warm_has_any(p) || bt_warm_has_any(d));
    warm(p, d);
    assert_true(bt_warm_has(p, d) && bt_warm_has_any(p) && bt_warm_has_any(d));
    assert_false(bt_warm_has(p, e) || bt_warm_has_any(e));
    bt_worker_set_health(d, BT_HEALTH_DOWN, "no answer");
    assert_false(bt_warm_has(p, d) || bt_warm_has_any(d));
    bt_worker_set_health(d, BT_HEALTH_UP, "answers");
    assert_false(bt_warm_has(p, d));
    warm(p, d);
    warm(p, e);
    bt_worker_restarted(p);
    assert_false(bt_warm_has(p, d) || bt_warm_has(p, e) || bt_warm_has_any(p));
    bt_worker_unref(p);
    bt_worker_unref(d);
    bt_worker_unref(e);
}

/* What a warm-up has set up went with the process. */
static void a_restart_meanwhile_leaves_it_cold(void **state)
{
    bt_worker_t *p = worker(BT_ROLE_PREFILL), *d = worker(BT_ROLE_DECODE);
    const uint64_t word = bt_warm_word(p, d);

    bt_worker_restarted(d);
    bt_warm_note(p, d, word);
    assert_false(bt_warm_has(p, d) || bt_warm_has_any(p) || bt_warm_has_any(d));
    bt_worker_unref(p);
    bt_worker_unref(d);
}

static void places_are_used_again(void **state)
{
    bt_worker_t *p[BT_WARM_PARTNERS + 1], *d = worker(BT_ROLE_DECODE);
    unsigned warm_count = 0;

    for (unsigned i = 0; i <= BT_WARM_PARTNERS; i++)
        p[i] = worker(BT_ROLE_PREFILL);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < BT_WARM_PARTNERS; i++)
            warm(p[i], d);
        for (unsigned i = 0; i < BT_WARM_PARTNERS; i++)
            assert_true(bt_warm_has(p[i], d));
        bt_worker_restarted(round == 0 ? d : p[round]);
    }
    warm(p[2], d);
    warm(p[BT_WARM_PARTNERS], d); /* one too many: somebody goes */
    for (unsigned i = 0; i <= BT_WARM_PARTNERS; i++)
        warm_count += bt_warm_has(p[i], d);
    assert_int_equal(warm_count, BT_WARM_PARTNERS);
    assert_true(bt_warm_has(p[BT_WARM_PARTNERS], d));
    for (unsigned i = 0; i <= BT_WARM_PARTNERS; i++)
        bt_worker_unref(p[i]);
    bt_worker_unref(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restart_of_either_makes_it_cold),
        cmocka_unit_test(a_restart_meanwhile_leaves_it_cold),
        cmocka_unit_test(places_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
