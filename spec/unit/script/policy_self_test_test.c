#include "script_fixture.h"

#include "script/native/hook_op_api.h"
#include "script/policy/policy_source.h"

#define ONE "view.single[1] and { worker = view.single[1] } or nil"

static char err[512];

static bt_policy_trial_t trial; /* of the tests that follow */

static int test_with(const char *members, const char *plan)
{
    bt_policy_spec_t spec = {.path = "x.lua"};
    char text[1024];
    bt_policy_t *policy;
    int rc;

    snprintf(
        text, sizeof text,
        "return { api = 2, name = 'x', version = '1', %s plan = function(req, view, ctx) %s end "
        "}",
        members, plan);
    spec.code = bt_str(text);
    assert_int_equal(bt_policy_make(&policy, &spec, err, sizeof err), 0);
    err[0] = '\0';
    rc = bt_policy_self_test(policy, &trial, err, sizeof err);
    bt_policy_free(policy);
    return rc;
}

static int test_plan(const char *plan)
{
    return test_with("", plan);
}

static void test_shipped_policies_pass(void **state)
{
    const char *const *names = bt_policy_embedded_names();

    for (unsigned i = 0; names[i] != NULL; i++) {
        bt_policy_t *policy;
        assert_int_equal(bt_policy_load(&policy, names[i], NULL, err, sizeof err), 0);
        if (bt_policy_self_test(policy, &trial, err, sizeof err) != 0)
            fail_msg("%s: %s", names[i], err);
        bt_policy_free(policy);
    }
}

/* An empty fleet is never asked about, and a policy may know pairs only, or single workers only. */
static void test_what_may_be(void **state)
{
    assert_int_equal(test_plan("return { worker = view.hybrid[1].id }"), 0);
    assert_int_equal(
        test_plan("return { prefill = view.prefill[1].id, decode = view.decode[#view.decode].id }"),
        0);
}

static void test_what_may_not_be(void **state)
{
    assert_int_equal(test_plan("error('boom')"), BT_E_POLICY);
    assert_non_null(strstr(err, "boom"));
    assert_non_null(strstr(err, "self-test: one worker of each role"));
    assert_int_equal(test_plan("return 5"), BT_E_POLICY);
    assert_int_equal(test_plan("return { worker = 4711 }"), BT_E_POLICY);
    assert_int_equal(test_plan("if #view.hybrid + #view.decode > 100 then error('many') end"),
                     BT_E_POLICY);
    assert_non_null(strstr(err, "self-test: 512 workers"));
}

/* Nobody chosen in any case is a mistake; by labels, or for another client, it may be meant. */
static void test_nobody_is_ever_chosen(void **state)
{
    assert_int_equal(test_plan("return nil"), BT_E_POLICY);
    assert_string_equal(
        err, "x.lua: plan of x never chose anybody (self-test: pairs and single workers, one "
             "of each and 512)");
    assert_int_equal(test_plan("if #view.prefill == 1 then return nil end "
                               "return { worker = view.single[1].id }"),
                     0);
    assert_string_equal(err, "");
    assert_int_equal(test_plan("for _, w in ipairs(view.decode) do if w.labels.gpu == 'h100' then "
                               "return { prefill = view.prefill[1], decode = w } end end"),
                     0);
    assert_string_equal(
        err, "x.lua: plan of x never chose anybody in the self-test, whose workers have no "
             "labels and no zone");
    assert_int_equal(test_plan("return { worker = baton.where(view.single, 'gpu', 'h100')[1] }"),
                     0);
    assert_non_null(strstr(err, "whose workers have no labels and no zone: x.lua:"));
    assert_int_equal(test_plan("return { worker = view.prefill[512] }"), BT_E_POLICY);
    assert_int_equal(test_plan("if req.tenant then return { worker = view.single[1].id } end"), 0);
    assert_non_null(strstr(err, "whose request has no headers, tenant, session or class"));
    assert_int_equal(test_plan("if view.prefill[1] and view.prefill[1].zone then end error('x')"),
                     BT_E_POLICY);
}

/* A plan that leaves decode open is tried to its end. */
static void test_late_plans(void **state)
{
    static const char late[] = "return { prefill = view.prefill[1] }";
    assert_int_equal(test_plan(late), BT_E_POLICY);
    assert_non_null(strstr(err, "plan returned no decode worker"));
    assert_int_equal(test_with("plan_decode = function(req, view) return { decode = "
                               "view.decode[#view.decode] } end,",
                               late),
                     0);
    assert_int_equal(test_with("plan_decode = function() error('boom') end,", late), BT_E_POLICY);
    assert_non_null(strstr(err, "boom"));
    assert_int_equal(test_with("plan_decode = function() end,", late), BT_E_POLICY);
    assert_non_null(strstr(err, "never chose anybody"));
    assert_int_equal(test_with("plan_prefill = function(req, view) return { prefill = "
                               "view.prefill[#view.prefill] } end,",
                               "return { decode = view.decode[1] }"),
                     0);
    assert_int_equal(test_with("plan_prefill = function() error('bang') end,",
                               "return { decode = view.decode[1] }"),
                     BT_E_POLICY);
    assert_non_null(strstr(err, "bang"));
}

static void test_one_that_never_ends(void **state)
{
    assert_int_equal(test_plan("while #view.hybrid == 0 do end return nil"), BT_E_POLICY);
    assert_non_null(strstr(err, "self-test: no workers"));
}

/* admit and route: no network, no time to lose, and what they leave in ctx.vars goes to plan. */
static void test_hooks_that_wait(void **state)
{
    static const char *const hosts[] = {"tiers:80", NULL};
    static const char vars[] = "assert(ctx.vars.tier == 'a') return " ONE;

    bt_policy_allow_hosts(hosts);
    assert_int_equal(
        test_with("admit = function(req, ctx) assert(req.model == 'self-test') baton.sleep(60000) "
                  "end, route = function(req, ctx) local answer, why = baton.http{ url = "
                  "'http://tiers/' } assert(not answer and why) ctx.vars.tier = 'a' end,",
                  vars),
        0);
    assert_int_equal(test_with("admit = function(req, ctx) ctx.vars.tier = 'a' repeat until not "
                               "baton.sleep(1) end,",
                               vars),
                     0);
    assert_int_equal(test_with("admit = function() return { status = 503 } end,", "return " ONE),
                     0);
    assert_int_equal(test_with("admit = function() while true do baton.sleep(1) end end,", ""),
                     BT_E_POLICY);
    assert_string_equal(err, "it waits without end, also when its time is over (self-test: admit)");
    assert_int_equal(test_with("route = function() local a = baton.http{ url = 'http://tiers/' } "
                               "return { pool = a.body } end,",
                               ""),
                     BT_E_POLICY);
    assert_non_null(strstr(err, "attempt to index"));
    assert_non_null(strstr(err, "(self-test: route)"));
    assert_int_equal(test_with("route = function() return { pol = 'x' } end,", ""), BT_E_POLICY);
    assert_non_null(strstr(err, "did you mean 'pool'?"));
    bt_policy_allow_hosts(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_policies_pass),
        cmocka_unit_test(test_what_may_be),
        cmocka_unit_test(test_what_may_not_be),
        cmocka_unit_test(test_nobody_is_ever_chosen),
        cmocka_unit_test(test_late_plans),
        cmocka_unit_test(test_one_that_never_ends),
        cmocka_unit_test(test_hooks_that_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
