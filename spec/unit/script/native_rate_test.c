#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void rates(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    plan_once(&f, POLICY("assert(baton.ewma('k-mean') == nil)\n"
                         "assert(baton.ewma('k-mean', 8) == 8 and baton.ewma('k-mean', 0) == 7)\n"
                         "assert(baton.ewma('k-mean', 9, 0.5) == 8 and baton.ewma('k-mean') == 8)\n"
                         "assert(baton.take('k-few', 0.001, 2) and baton.take('k-few', 0.001, 2))\n"
                         "local ok, wait = baton.take('k-few', 0.001, 2)\n"
                         "assert(ok == false and wait > 900 and wait <= 1000, wait)\n"
                         "local never, none = baton.take('k-few', 1, 2, 3) assert(never == false "
                         "and none == nil)\n"
                         "assert(baton.window('k-sum', 5, 86400) == 5 and baton.window('k-sum', "
                         "2.5, 86400) == 7.5)\n"
                         "assert(baton.window('k-sum', 0, 86400) == 7.5)" DONE));
    plan_once(&f,
              POLICY("assert(baton.ewma('k-mean') == 8)" DONE)); /* another VM, the same process */
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    static const struct mistake cases[] = {
        {"baton.ewma()", "string expected"},
        {"baton.ewma('x', 0/0)", "a finite number"},
        {"baton.ewma('x', 1, 2)", "0 to 1"},
        {"baton.take('x', 0, 1)", "a rate above 0"},
        {"baton.take('x', 1)", "number expected"},
        {"baton.window('x', 1, 0)", "0.001 to 86400"},
        {"baton.shared_local.add('x', 7e159)", "2^53"},
        {"baton.shared_local.set('x', 0/0)", "2^53"},
    };
    assert_mistakes(cases, sizeof(cases) / sizeof(cases[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
