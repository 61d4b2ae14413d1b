/* The shipped policies on small fleets: what they promise in their first lines. */
#include "base/rand.h"
#include "script_fixture.h"

static const char *const names[] = {"least_load", "power_of_two", "random", "round_robin"};

static bt_policy_t *load(const char *name)
{
    bt_policy_t *policy = NULL;
    char err[512] = "";

    if (bt_policy_load(&policy, name, NULL, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    return policy;
}

static bt_choice_t plan(bt_policy_t *policy, struct fleet *f)
{
    bt_choice_t choice;

    if (bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, &choice) != 0)
        fail_msg("%s: %s", bt_policy_name(policy), bt_policy_error(policy));
    return choice;
}

static void all_serve_pairs_and_singles(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        bt_policy_t *policy = load(names[i]);
        struct fleet pair, single, one;

        fleet_init(&pair, 3, 2, 0);
        assert_non_null(plan(policy, &pair).first.prefill);
        fleet_init_after(&single, 100, 0, 0, 2);
        assert_int_equal(plan(policy, &single).first.kind, BT_PLAN_SINGLE);
        fleet_init_after(&one, 200, 1, 1, 0);
        assert_ptr_equal(plan(policy, &one).first.decode, one.decode.items[0]);
        bt_policy_free(policy);
        fleet_fini(&pair);
        fleet_fini(&single);
        fleet_fini(&one);
    }
}

/* Prefill workers whose connectors no decode worker speaks are never chosen, and every pair fits. */
static void only_pairs_that_fit(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        bt_policy_t *policy = load(names[i]);
        struct fleet f;

        fleet_init(&f, 1, 1, 0);
        fleet_add(&f, BT_ROLE_PREFILL, "ExampleConnector");
        fleet_add(&f, BT_ROLE_DECODE, "ExampleConnector");
        fleet_add(&f, BT_ROLE_PREFILL, "NixlPushConnector");
        for (int k = 0; k < 50; k++) {
            bt_choice_t choice = plan(policy, &f); /* an ill pair would be refused here */
            assert_ptr_not_equal(choice.first.prefill, f.prefill.items[2]);
        }
        bt_policy_free(policy);
        fleet_fini(&f);
    }
}

static void no_candidates_is_an_error(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        bt_policy_t *policy = load(names[i]);
        bt_choice_t choice;
        struct fleet f;

        fleet_init(&f, 1, 0, 0);
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice),
                         BT_E_POLICY);
        bt_policy_free(policy);
        fleet_fini(&f);
    }
}

static void least_load_takes_the_least(void **state)
{
    bt_policy_t *policy = load("least_load");
    struct fleet f;
    bt_choice_t choice;

    fleet_init(&f, 3, 3, 0);
    for (int i = 0; i < 3; i++) {
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = 100 - 10 * i;
        bt_worker_total(f.decode.items[i], BT_PHASE_DECODE)->tokens = 5;
        bt_worker_total(f.decode.items[i], BT_PHASE_DECODE)->requests = i == 1 ? 1 : 2;
    }
    choice = plan(policy, &f);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[2]);
    assert_ptr_equal(choice.first.decode, f.decode.items[1]);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void power_of_two_never_takes_the_worst(void **state)
{
    bt_policy_t *policy = load("power_of_two");
    struct fleet f;
    unsigned seen[3] = {0};

    bt_rand_seed(3);
    fleet_init(&f, 3, 3, 0);
    for (int i = 0; i < 3; i++) {
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = i;
        bt_worker_total(f.decode.items[i], BT_PHASE_DECODE)->tokens = 2 - i;
    }
    for (int k = 0; k < 300; k++) {
        bt_choice_t choice = plan(policy, &f);
        for (int i = 0; i < 3; i++)
            seen[i] += choice.first.prefill == f.prefill.items[i];
        assert_ptr_not_equal(choice.first.decode, f.decode.items[0]);
    }
    assert_true(seen[0] > seen[1] && seen[1] > 0);
    assert_int_equal(seen[2], 0);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void random_reaches_all(void **state)
{
    bt_policy_t *policy = load("random");
    struct fleet f;
    unsigned seen[6] = {0};

    bt_rand_seed(3);
    fleet_init(&f, 3, 3, 0);
    for (int k = 0; k < 600; k++) {
        bt_choice_t choice = plan(policy, &f);
        seen[choice.first.prefill->id - 1]++;
        seen[choice.first.decode->id - 1]++;
    }
    for (int i = 0; i < 6; i++)
        assert_in_range(seen[i], 140, 260);
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* Two VMs stand for two loops; a second pool in between does not disturb the first one's turns. */
static void round_robin_is_exact_over_loops(void **state)
{
    bt_policy_t *loops[2] = {load("round_robin"), load("round_robin")};
    unsigned seen[5] = {0};
    struct fleet f, other;

    fleet_init(&f, 3, 2, 0);
    f.view.pool = BT_STR("exact");
    fleet_init_after(&other, 100, 2, 1, 0);
    other.view.pool = BT_STR("other");
    for (int k = 0; k < 600; k++) {
        bt_choice_t choice = plan(loops[bt_rand_below(2)], &f);
        seen[choice.first.prefill->id - 1]++;
        seen[choice.first.decode->id - 1]++;
        if (k % 5 == 0)
            plan(loops[0], &other);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(seen[i], i < 3 ? 200 : 300);
    bt_policy_free(loops[0]);
    bt_policy_free(loops[1]);
    fleet_fini(&f);
    fleet_fini(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_serve_pairs_and_singles),
        cmocka_unit_test(only_pairs_that_fit),
        cmocka_unit_test(no_candidates_is_an_error),
        cmocka_unit_test(least_load_takes_the_least),
        cmocka_unit_test(power_of_two_never_takes_the_worst),
        cmocka_unit_test(random_reaches_all),
        cmocka_unit_test(round_robin_is_exact_over_loops),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
