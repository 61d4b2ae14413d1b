#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

/* What a policy takes out or puts in counts for native functions at once; the next call has the list whole again. */
static void changed_lists_are_read_as_they_are(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 3, 1, 0);
    policy = policy_of(
        POLICY("local p = view.prefill assert(#p == 3 and baton.argmin(p, 'id').id == 1)\n"
               "table.remove(p, 1) assert(baton.argmin(p, 'id').id == 2)\n"
               "assert(baton.rendezvous(p, 'x').id ~= 1)" DONE));
    for (int i = 0; i < 3; i++)
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* Members that were swapped in place are not seen by native functions, but nothing dangles when rows are collected. */
static void exchanged_members_do_no_harm(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 8, 1, 0);
    policy =
        policy_of(POLICY("local p, junk = view.prefill, {}\n"
                         "for i = 2, 8 do p[i] = p[1] end\n"
                         "for i = 1, 100 do junk[i] = { i } end\n" /* makes the collector run */
                         "assert(baton.argmax(p, 'id').id == 8 and baton.rendezvous(p, 'x').name)\n"
                         "return { prefill = p[1], decode = view.decode[1] }"));
    for (int i = 0; i < 300; i++)
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void the_memory_is_out_of_reach(void **state)
{
    struct fleet f;

    fleet_init(&f, 2, 1, 0);
    plan_once(&f,
              POLICY("assert(getmetatable(view.prefill) == false)\n"
                     "assert(not pcall(setmetatable, view.prefill, {}))\n"
                     "local own = setmetatable({ view.prefill[2] }, { [0] = view.prefill[1] })\n"
                     "assert(baton.argmin(own, 'id').id == 2)" DONE));
    fleet_fini(&f);
}

/* Lists of a policy's own may grow: scratch space follows. */
static void own_lists_of_any_length(void **state)
{
    struct fleet f;

    fleet_init(&f, 3, 1, 0);
    plan_once(&f, POLICY("local own = {}\n"
                         "for i = 1, 400 do own[i] = view.prefill[i % 3 + 1]\n"
                         "  if i % 100 == 1 then assert(baton.argmax(own, 'id').id == (i == 1 and "
                         "2 or 3)) end end" DONE));
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_lists_are_read_as_they_are),
        cmocka_unit_test(exchanged_members_do_no_harm),
        cmocka_unit_test(the_memory_is_out_of_reach),
        cmocka_unit_test(own_lists_of_any_length),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
