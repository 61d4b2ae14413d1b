#include "base/sanitize.h"
#include "script/policy/policy_run.h"
#include "script_fixture.h"

#define FILE_WITH(members)                                                                         \
    "return { api = 2, name = 'spec', version = '1', " members                                     \
    ", plan = function(req, view, ctx) \n"                                                         \
    "return { prefill = 1, decode = 2 } end }"

static int load_old(const char *text, const bt_value_t *old, bt_policy_t **policy_p, char *err,
                    size_t err_size)
{
    const bt_policy_spec_t spec = {.path = "spec.lua", .code = bt_str(text), .old = old};

    return bt_policy_make(policy_p, &spec, err, err_size);
}

static void assert_start_fails(const char *text, const char *word)
{
    bt_policy_t *policy = NULL;
    char err[512] = "";

    assert_int_equal(load_old(text, NULL, &policy, err, sizeof(err)), BT_E_POLICY);
    assert_null(policy);
    if (strstr(err, word) == NULL || strstr(err, "spec.lua") == NULL)
        fail_msg("\"%s\" does not hold \"%s\" and the file", err, word);
}

static void plan_ok(bt_policy_t *policy, struct fleet *f)
{
    bt_choice_t choice;

    if (bt_policy_plan(policy, BT_POLICY_BOTH, &f->req, &f->view, &choice) != 0)
        fail_msg("%s", bt_policy_error(policy));
}

static void start_makes_the_state(void **state)
{
    struct fleet f;
    bt_policy_t *policy;

    fleet_init(&f, 1, 1, 0);
    policy =
        policy_of("return { api = 2, name = 'spec', version = '1', params = { n = { type = "
                  "'integer', default = 7 } },\n"
                  "start = function(params, old) assert(old == nil) return { n = params.n } end,\n"
                  "plan = function(req, view, ctx) assert(ctx.state.n == 7) return { prefill = 1, "
                  "decode = 2 } end }");
    plan_ok(policy, &f);
    bt_policy_free(policy);
    policy = policy_of("return { api = 2, name = 'spec', version = '1', start = function() end,\n"
                       "plan = function(req, view, ctx) assert(next(ctx.state) == nil) return { "
                       "prefill = 1, decode = 2 } end }");
    plan_ok(policy, &f);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void start_may_refuse_the_generation(void **state)
{
    assert_start_fails(FILE_WITH("start = function() error('no table of tenants') end"),
                       "no table of tenants");
    assert_start_fails(FILE_WITH("start = function() return 5 end"),
                       "start returned a number value");
    assert_start_fails(FILE_WITH("start = function() while true do end end"),
                       "start ran over its budget of 200 ms");
    assert_start_fails(FILE_WITH("start = function() assert(baton.sleep(1)) end"),
                       "cannot wait here");
    assert_start_fails(FILE_WITH("start = 5"), "start must be a function");
    assert_start_fails(FILE_WITH("observe = 5"), "observe must be a function");
}

static void handover_reaches_the_next_generation(void **state)
{
    struct fleet f;
    bt_policy_t *first, *second = NULL;
    bt_value_t *data = NULL;
    char err[512] = "";

    fleet_init(&f, 1, 1, 0);
    first = policy_of("return { api = 2, name = 'spec', version = '1',\n"
                      "handover = function(ctx) return { count = ctx.state.n, names = { 'a', 'b' "
                      "}, deep = { x = { y = true } } } end,\n"
                      "plan = function(req, view, ctx) ctx.state.n = (ctx.state.n or 0) + 1 return "
                      "{ prefill = 1, decode = 2 } end }");
    plan_ok(first, &f);
    plan_ok(first, &f);
    assert_int_equal(bt_policy_handover(first, &data), 0);
    bt_policy_free(first); /* the data is a copy */
    assert_int_equal(load_old("return { api = 2, name = 'spec', version = '2',\n"
                              "start = function(params, old) assert(old.names[2] == 'b' and "
                              "old.deep.x.y == true) return old end,\n"
                              "plan = function(req, view, ctx) assert(ctx.state.count == 2) return "
                              "{ prefill = 1, decode = 2 } end }",
                              data, &second, err, sizeof(err)),
                     0);
    bt_value_free(data);
    plan_ok(second, &f);
    assert_int_equal(bt_policy_handover(second, &data), BT_E_AGAIN);
    bt_policy_free(second);
    fleet_fini(&f);
}

/* On a machine that has other work its time may be over first. */
static void assert_handover_fails(const char *text, const char *word)
{
    bt_policy_t *policy = policy_of(text);
    bt_value_t *data = NULL;

    for (unsigned tries = 0;; tries++) {
        assert_int_equal(bt_policy_handover(policy, &data), BT_E_POLICY);
        assert_null(data);
        if (strstr(bt_policy_error(policy), word) != NULL)
            break;
        if (tries == 100 || strstr(bt_policy_error(policy), "ran over its budget") == NULL)
            fail_msg("\"%s\" does not hold \"%s\"", bt_policy_error(policy), word);
    }
    bt_policy_free(policy);
}

static void only_plain_data_is_handed_over(void **state)
{
    bt_policy_t *policy;
    bt_value_t *data = NULL;

    assert_handover_fails(FILE_WITH("handover = function() return { a = { f = print } } end"),
                          "unknown name 'print'");
    assert_handover_fails(
        FILE_WITH("handover = function() return { a = { f = pcall } } end"),
        "handover returned.a.f: a function value; only tables, numbers, strings and booleans");
    assert_handover_fails(FILE_WITH("handover = function() local t = {} t.t = t return t end"),
                          "handover returned.t: a table holds itself");
    assert_handover_fails(
        FILE_WITH("handover = function() local t = {} for i = 1, 8 do t = { t } end return t end"),
        "nested more than 8 deep");
    assert_handover_fails(FILE_WITH("handover = function() return { [1] = 1, [3] = 3 } end"),
                          "without a gap");
    assert_handover_fails(FILE_WITH("handover = function() return { [2.5] = 1 } end"),
                          "without a gap");
    assert_handover_fails(FILE_WITH("handover = function() return { 1, x = 2 } end"),
                          "without a gap");
    assert_handover_fails(FILE_WITH("handover = function() return 'a\\0b' end"), "NUL byte");
    /* (TSan's string functions take so long that the time is over first.) */
    assert_handover_fails(
        FILE_WITH("handover = function() local s = ('x'):rep(900000) return { s, s .. 'y' } end"),
        BT_TSAN ? "" : "more than 1 MiB");
    assert_handover_fails(FILE_WITH("handover = function() while true do end end"),
                          "handover ran over its budget of 5 ms");
    policy = policy_of(FILE_WITH("handover = function() return nil end"));
    assert_int_equal(bt_policy_handover(policy, &data), 0);
    assert_null(data);
    bt_policy_free(policy);
}

static void observe_gets_a_batch(void **state)
{
    static const bt_policy_event_t events[] = {
        {.kind = "finished",
         .at_ms = 1000,
         .prefill = 1,
         .decode = 2,
         .model = BT_STR("m"),
         .session = BT_STR("s"),
         .tenant = BT_STR("t"),
         .status = 200,
         .prompt_tokens = 10,
         .output_tokens = 20,
         .ttft_ms = 1.5,
         .total_ms = 30},
        {.kind = "failed", .at_ms = 1001, .decode = 2, .failure = "stall", .scope = "attempt"},
    };
    bt_policy_t *policy;

    policy = policy_of(FILE_WITH(
        "observe = function(events, ctx)\n"
        "  local a, b = events[1], events[2]\n"
        "  assert(#events == 2 and a.kind == 'finished' and a.at_ms == 1000 and a.prefill == 1 and "
        "a.decode == 2)\n"
        "  assert(a.model == 'm' and a.session == 's' and a.tenant == 't' and a.status == 200)\n"
        "  assert(a.prompt_tokens == 10 and a.output_tokens == 20 and a.ttft_ms == 1.5 and "
        "a.total_ms == 30)\n"
        "  assert(a.failure == nil and a.scope == nil)\n"
        "  assert(b.failure == 'stall' and b.scope == 'attempt' and b.prefill == nil and b.model "
        "== nil)\n"
        "  ctx.state.seen = (ctx.state.seen or 0) + #events\n"
        "end, handover = function(ctx) return ctx.state end"));
    for (int i = 0; i < 2; i++)
        if (bt_policy_observe(policy, events, 2) != 0)
            fail_msg("%s", bt_policy_error(policy));
    bt_value_t *data = NULL;
    assert_int_equal(bt_policy_handover(policy, &data), 0);
    assert_true(bt_value_get(data, "seen")->number == 4);
    bt_value_free(data);
    bt_policy_free(policy);
    policy = policy_of(POLICY(""));
    assert_int_equal(bt_policy_observe(policy, events, 2), BT_E_AGAIN);
    bt_policy_free(policy);
}

static void tick_sees_the_view(void **state)
{
    struct fleet f;
    bt_policy_run_t run;
    bt_policy_t *policy;

    fleet_init(&f, 1, 2, 0);
    policy = policy_of(
        FILE_WITH("tick = function(now, view, ctx)\n"
                  "  assert(now == 12345 and #view.decode == 2 and ctx.state and ctx.params)\n"
                  "  assert(baton.argmin(view.decode, 'decode_tokens'))\nend"));
    if (bt_policy_tick(policy, &run, 12345, &f.view) != 0)
        fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
    policy = policy_of(FILE_WITH("tick = function() while true do end end"));
    assert_int_equal(bt_policy_tick(policy, &run, 1, &f.view), BT_E_POLICY);
    assert_non_null(strstr(bt_policy_error(policy), "tick ran over its budget of 2 ms"));
    plan_ok(policy, &f);
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* What a hook was not given must not be reachable by what another hook kept. */
static void req_and_view_belong_to_their_hooks(void **state)
{
    static const bt_policy_event_t event = {.kind = "finished"};
    struct fleet f;
    bt_policy_run_t run;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of("local kept = {}\n"
                       "return { api = 2, name = 'spec', version = '1',\n"
                       "plan = function(req, view) kept.req, kept.view = req, view return { "
                       "prefill = 1, decode = 2 } end,\n"
                       "observe = function() return kept.req.path end, tick = function() return "
                       "kept.req.path end,\n"
                       "handover = function() return #kept.view.prefill end }");
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_int_equal(bt_policy_observe(policy, &event, 1), BT_E_POLICY);
    assert_non_null(
        strstr(bt_policy_error(policy), "req can only be used while a hook that gets it runs"));
    assert_int_equal(bt_policy_tick(policy, &run, 1, &f.view), BT_E_POLICY);
    bt_value_t *data = NULL;
    assert_int_equal(bt_policy_handover(policy, &data), BT_E_POLICY);
    assert_non_null(
        strstr(bt_policy_error(policy), "view can only be used while a hook that gets it runs"));
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* Eight runaways within ten seconds: a new VM, with a new state; requests go on meanwhile. */
static void many_runaways_make_a_new_vm(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    unsigned refused = 0;
    const char *name;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of("return { api = 2, name = 'spec', version = '1', start = function() return "
                       "{ n = 100 } end,\n"
                       "plan = function(req, view, ctx) ctx.state.n = ctx.state.n + 1\n"
                       "  if req.n == 2 then while true do end end\n"
                       "  assert(req.n ~= 3 or ctx.state.n == 101)\n"
                       "  return { prefill = view.prefill[1], decode = view.decode[1] } end }");
    name = bt_policy_name(policy);
    f.req.n = 2;
    for (int i = 0; i < 8; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice),
                         BT_E_POLICY);
    assert_int_equal(bt_policy_stats(policy)->runaways, 8);
    f.req.n = 3;
    for (; bt_policy_stats(policy)->renewals == 0; refused++) {
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) == 0)
            break;
        assert_non_null(strstr(bt_policy_error(policy), "is being made anew"));
        usleep(1000);
    }
    assert_int_equal(bt_policy_stats(policy)->renewals, 1);
    assert_ptr_equal(choice.first.decode, f.decode.items[0]);
    assert_ptr_equal(bt_policy_name(policy), name); /* dispatch keeps the pointer */
    print_message("%u plans were refused meanwhile\n", refused);
    f.req.n = 1;
    plan_ok(policy, &f);
    bt_policy_free(policy);
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_makes_the_state),
        cmocka_unit_test(start_may_refuse_the_generation),
        cmocka_unit_test(handover_reaches_the_next_generation),
        cmocka_unit_test(only_plain_data_is_handed_over),
        cmocka_unit_test(observe_gets_a_batch),
        cmocka_unit_test(tick_sees_the_view),
        cmocka_unit_test(req_and_view_belong_to_their_hooks),
        cmocka_unit_test(many_runaways_make_a_new_vm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
