#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"
#define NAMES                                                                                      \
    "local function names(list) local t = {} for i, w in ipairs(list) do t[i] = w.name end "       \
    "return table.concat(t, ' ') end\n"

/* Every worker of the fixture has gpu=h100 and the word fast; odd ids are west, even ones east. */
static void where_and_without(void **state)
{
    struct fleet f;
    (void) state;

    fleet_init(&f, 4, 1, 0);
    plan_once(
        &f,
        POLICY(
            NAMES
            "local p = view.prefill\n"
            "for _ = 1, 2 do\n" /* the second time from memory */
            "  assert(names(baton.where(p, 'zone', 'east')) == 'p2 p4')\n"
            "  assert(baton.where(p, 'zone', 'east') == baton.where(p, 'zone', 'east'))\n"
            "  assert(names(baton.without(p, 'zone', 'east')) == 'p1 p3')\n"
            "  assert(baton.where(p, 'gpu', 'h100') == p and baton.where(p, 'gpu') == p)\n"
            "  assert(baton.where(p, 'fast', 'true') == p and #baton.without(p, 'fast') == 0)\n"
            "  assert(#baton.where(p, 'gp') == 0 and #baton.where(p, 'gpu', 'h1') == 0)\n"
            "  assert(names(baton.where(p, 'name', 'p3')) == 'p3')\n"
            "  assert(names(baton.where({ p[4], p[1] }, 'zone', 'east')) == 'p4')\n"
            "  assert(names(baton.where(baton.where(p, 'zone', 'west'), 'name', 'p3')) == 'p3')\n"
            "  assert(baton.argmin(baton.where(p, 'zone', 'east'), 'id').name == 'p2')\n"
            "end" DONE));
    fleet_fini(&f);
}

/* Values that come from requests do not fill the memory. */
static void cuts_are_forgotten(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    (void) state;

    fleet_init(&f, 4, 1, 0);
    policy =
        policy_of(POLICY("ctx.state.n = (ctx.state.n or 0) + 1\n"
                         "assert(#baton.where(view.prefill, 'zone', 'no' .. ctx.state.n) == 0)\n"
                         "assert(#baton.where(view.prefill, 'zone', 'west') == 2)" DONE));
    for (int i = 0; i < 20000; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    struct fleet f;
    (void) state;

    fleet_init(&f, 1, 1, 0);
    assert_plan_fails(&f, POLICY("baton.where(1, 'zone')"), "table expected");
    assert_plan_fails(&f, POLICY("baton.where(view.prefill)"), "string expected");
    assert_plan_fails(&f, POLICY("baton.where(view.prefill, 'zone', {})"), "string expected");
    assert_plan_fails(&f, POLICY("baton.where({ 1 }, 'zone')"), "a worker is expected here");
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_without),
        cmocka_unit_test(cuts_are_forgotten),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
