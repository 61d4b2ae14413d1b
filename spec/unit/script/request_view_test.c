#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = 2 }"

static void all_fields(void **state)
{
    bt_header_t headers[] = {{BT_STR("X-Session-ID"), BT_STR("s1")}, {BT_STR("Empty"), BT_STR("")}};
    bt_head_t head = {.headers = headers, .header_count = 2};
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    f.req = (bt_policy_request_t){.path = BT_STR("/v1/chat/completions"),
                                  .model = BT_STR("llama"),
                                  .session = BT_STR("s"),
                                  .tenant = BT_STR("t"),
                                  .head = &head,
                                  .stream = true,
                                  .n = 2,
                                  .prompt_bytes = 5000000000u,
                                  .prompt_tokens = 12};
    plan_once(&f,
              POLICY("assert(req.path == '/v1/chat/completions' and req.model == 'llama' and "
                     "req.session == 's')\n"
                     "assert(req.tenant == 't' and req.stream == true and req.n == 2)\n"
                     "assert(req.prompt_bytes == 5000000000 and req.prompt_tokens == 12)\n"
                     "assert(req.headers['x-session-id'] == 's1' and req.headers['Empty'] == '')\n"
                     "assert(req.headers.nope == nil and req.headers[1] == nil)" DONE));
    f.req = (bt_policy_request_t){.path = BT_STR("/"), .n = 1};
    plan_once(&f, POLICY("assert(req.model == nil and req.session == nil and req.tenant == nil and "
                         "req.stream == false)\n"
                         "assert(req.headers['x-session-id'] == nil)" DONE));
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    assert_plan_fails(&f, POLICY("return req.modle"),
                      "unknown field of req 'modle' (did you mean 'model'?)");
    assert_plan_fails(&f, POLICY("req.path = '/x'"), "req cannot be written");
    assert_plan_fails(&f, POLICY("req.headers.a = 'x'"), "req cannot be written");
    fleet_fini(&f);
}

/* req is one object for the life of the VM: kept over calls, it shows the request of the running one. */
static void the_next_call_sees_the_next_request(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of(POLICY("local s = ctx.state\n"
                              "if s.req then assert(s.req == req and s.req.model == 'second') end\n"
                              "s.req = req" DONE));
    f.req.model = BT_STR("first");
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    f.req.model = BT_STR("second");
    if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) != 0)
        fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(the_next_call_sees_the_next_request),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
