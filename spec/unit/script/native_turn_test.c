#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void weigh(struct fleet *f, unsigned i, const char *labels)
{
    free(f->prefill.items[i]->spec.labels);
    f->prefill.items[i]->spec.labels = strdup(labels);
}

static void smooth(void **state)
{
    struct fleet f;

    fleet_init(&f, 4, 1, 0);
    weigh(&f, 0, "gpu=x, weight=5");
    weigh(&f, 1, "weight=no");
    weigh(&f, 2, "heavyweight=7,weight=1");
    weigh(&f, 3, "weight=0,own=1");
    plan_once(
        &f,
        POLICY("local function turns(name, list, label)\n"
               "  local t = {} for i = 1, 7 do t[i] = baton.smooth(list, name, label).id end\n"
               "  return table.concat(t) end\n"
               "local p = view.prefill\n"
               "assert(turns('a', p) == '1121311' and turns('a', p) == '1121311')\n"
               "baton.smooth(p, 'b') assert(turns('b', p) == '1213111')\n" /* a wheel of its own */
               "assert(turns('c', p, 'own') == '1234123')\n"
               "assert(turns('d', { p[1], p[3] }) == '1113111', turns('d', { p[1], p[3] }))\n"
               "assert(baton.smooth({}, 'e') == nil and baton.smooth({ p[4] }, 'f') == nil)" DONE));
    assert_plan_fails(&f, POLICY("baton.smooth(view.prefill)"), "string expected");
    assert_plan_fails(&f, POLICY("for i = 1, 300 do baton.smooth(view.prefill, 'n' .. i) end"),
                      "more than 256 names");
    fleet_fini(&f);
}

/* Who stays keeps its number: nobody is served twice in a row because somebody left. */
static void members_may_change(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    unsigned seen[5] = {0};

    fleet_init(&f, 4, 1, 0);
    policy = policy_of(
        POLICY("return { prefill = baton.smooth(view.prefill, 'm'), decode = view.decode[1] }"));
    for (int i = 0; i < 6; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_int_equal(choice.first.prefill->id, 2); /* 1 2 3 4 1 2 */
    f.prefill.count = 3;
    f.view.key++;
    for (int i = 0; i < 300; i++) {
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
        if (i == 0)
            assert_int_equal(choice.first.prefill->id, 3);
        seen[choice.first.prefill->id]++;
    }
    for (int id = 1; id <= 3; id++)
        assert_in_range(seen[id], 99, 101);
    bt_policy_free(policy);
    f.prefill.count = 4;
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smooth),
        cmocka_unit_test(members_may_change),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
