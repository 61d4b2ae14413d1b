#include "script_fixture.h"

static void assert_load_fails(const char *text, const char *word)
{
    struct temp_file file;
    bt_policy_t *policy = NULL;
    char err[512] = "";

    temp_write(&file, "own.lua", text);
    assert_int_equal(bt_policy_load(&policy, file.path, NULL, err, sizeof(err)), BT_E_POLICY);
    temp_remove(&file);
    assert_null(policy);
    if (strstr(err, word) == NULL || strstr(err, "own.lua") == NULL)
        fail_msg("\"%s\" does not hold \"%s\" and the file", err, word);
}

static void shipped_policies_load(void **state)
{
    static const char *const names[] = {"baton_kv",
                                        "budget",
                                        "canary",
                                        "conditional_disagg",
                                        "consistent_hash",
                                        "dynamo_kv",
                                        "fallback_chain",
                                        "least_load",
                                        "length_buckets",
                                        "llm_d_default",
                                        "lmetric",
                                        "mooncake_conductor",
                                        "motor_load_balance",
                                        "power_of_two",
                                        "ppd",
                                        "preble_like",
                                        "random",
                                        "round_robin",
                                        "session_affinity",
                                        "sglang_cache_aware",
                                        "slo_admission",
                                        "sticky_then_spill",
                                        "tenant_fair",
                                        "weighted",
                                        "zone_aware"};
    enum { COUNT = sizeof(names) / sizeof(names[0]) };
    const char *const *known = bt_policy_embedded_names();
    char err[512] = "";

    for (unsigned i = 0; i < COUNT; i++) {
        bt_policy_t *policy = NULL;
        if (bt_policy_load(&policy, names[i], NULL, err, sizeof(err)) != 0)
            fail_msg("%s", err);
        assert_string_equal(bt_policy_name(policy), names[i]);
        assert_memory_equal(bt_policy_version(policy), "1.", 2);
        assert_string_equal(known[i], names[i]);
        bt_policy_free(policy);
    }
    assert_null(known[COUNT]);
    bt_policy_free(NULL);
}

#define KNOWN                                                                                      \
    "baton_kv, budget, canary, conditional_disagg, consistent_hash, dynamo_kv, fallback_chain, "   \
    "least_load, length_buckets, llm_d_default, lmetric, mooncake_conductor, motor_load_balance, " \
    "power_of_two, ppd, preble_like, random, round_robin, session_affinity, sglang_cache_aware, "  \
    "slo_admission, sticky_then_spill, tenant_fair, weighted, zone_aware"

static void unknown_names_say_what_is_known(void **state)
{
    bt_policy_t *policy = NULL;
    char err[512] = "";

    assert_int_equal(bt_policy_load(&policy, "least_lod", NULL, err, sizeof(err)), BT_E_CONFIG);
    assert_string_equal(
        err, "no policy 'least_lod' (did you mean 'least_load'?); known policies: " KNOWN);
    assert_int_equal(
        bt_policy_load(&policy, "/nonexistent/round_robbin.lua", NULL, err, sizeof(err)),
        BT_E_CONFIG);
    assert_string_equal(err, "/nonexistent/round_robbin.lua: cannot read: No such file or "
                             "directory (did you mean 'round_robin'?); known policies: " KNOWN);
    assert_int_equal(bt_policy_load(&policy, "zzzzzzzz", "/nonexistent", err, sizeof(err)),
                     BT_E_CONFIG);
    assert_null(strstr(err, "did you mean"));
}

static void a_folder_comes_before_the_shipped_ones(void **state)
{
    struct temp_file file;
    bt_policy_t *policy = NULL;
    char err[512] = "";

    temp_write(&file, "least_load.lua",
               "return { api = 2, name = 'mine', version = '9', plan = function() end }");
    assert_int_equal(bt_policy_load(&policy, "least_load", file.folder, err, sizeof(err)), 0);
    assert_string_equal(bt_policy_name(policy), "mine");
    bt_policy_free(policy);
    assert_int_equal(bt_policy_load(&policy, "random", file.folder, err, sizeof(err)), 0);
    assert_string_equal(bt_policy_name(policy), "random");
    bt_policy_free(policy);
    temp_remove(&file);
}

static void mistakes_name_the_file(void **state)
{
    assert_load_fails("return {", "own.lua:1:");
    assert_load_fails("\n\nerror('no')", "own.lua:3: no");
    assert_load_fails("return 'x'", "a policy must return a table, not a string value");
    assert_load_fails("return { api = 3, name = 'x', version = '1', plan = function() end }",
                      "api must be 2");
    assert_load_fails("return { api = 1, name = 'x', version = '1', plan = function() end }",
                      "its view.single is view.hybrid now");
    assert_load_fails("return { api = 2, version = '1', plan = function() end }",
                      "name must be a string");
    assert_load_fails("return { api = 2, name = 'x', version = 1, plan = function() end }",
                      "version must be a string");
    assert_load_fails("return { api = 2, name = 'x', version = '1' }", "plan must be a function");
    assert_load_fails("return { api = 2, name = 'x', version = '1', plan = pcall }",
                      "plan must be a function");
    assert_load_fails(
        "return { api = 2, name = 'x', version = '1', plan = function() end, fallback = 1 }",
        "fallback must be a function");
    assert_load_fails("return { api = 2, name = 'x', version = '1', plann = 1 }",
                      "unknown member of a policy 'plann' (did you mean 'plan'?)");
    assert_load_fails(
        "return { api = 2, name = 'x', version = '1', plan = function() end, admit = 1 }",
        "admit must be a function");
    assert_load_fails("local x = os.time()", "own.lua:1: unknown name 'os'");
    assert_load_fails("require('ffi')", "unknown name 'require'");
}

static void errors_name_the_line(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    assert_plan_fails(&f, POLICY("\n\nlocal x = nil; return x.y"), "spec.lua:3: attempt to index");
    assert_plan_fails(&f, POLICY("error({})"), "error object is a table value");
    assert_plan_fails(&f, "local s = ('x'):rep(2 ^ 20)\n" POLICY("return s .. s .. s"),
                      "not enough memory");
    assert_plan_fails(&f, POLICY("\nwhile true do end"),
                      "spec.lua:2: plan ran over its budget of 2 ms");
    fleet_fini(&f);
}

/* A failed call leaves the policy whole. */
static void serves_on_after_an_error(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of(
        POLICY("ctx.state.n = (ctx.state.n or 0) + 1\n"
               "if ctx.state.n % 3 == 0 then local t = {} for i = 1, 1e9 do t[i] = {} end end\n"
               "if ctx.state.n % 2 == 0 then error('even') end\n"
               "return { prefill = 1, decode = 2 }"));
    for (int i = 1; i <= 12; i++) {
        int expected = i % 3 == 0 || i % 2 == 0 ? BT_E_POLICY : 0;
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice),
                         expected);
        if (expected == 0)
            assert_ptr_equal(choice.first.decode, f.decode.items[0]);
    }
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void fallback_gets_the_failure(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    bt_policy_failure_t failure = {
        .scope = BT_SCOPE_WORKER, .name = "connect", .leg = "decode", .status = 502};

    fleet_init(&f, 1, 2, 0);
    failure.tried = &f.decode.items[0];
    failure.tried_count = 1;
    policy =
        policy_of("return { api = 2, name = 'x', version = '1', plan = function() end,\n"
                  "fallback = function(req, view, failure, ctx)\n"
                  "  assert(req.path == '/v1/completions' and #view.decode == 2 and ctx.state)\n"
                  "  assert(failure.scope == 'worker' and failure.name == 'connect' and "
                  "failure.leg == 'decode')\n"
                  "  assert(failure.status == 502 and #failure.tried == 1)\n"
                  "  if req.stream then return nil end\n"
                  "  local d = req.n == 1 and 3 or failure.tried[1]\n"
                  "  return { prefill = 1, decode = d } end }");
    if (bt_policy_fallback(policy, &f.req, &f.view, &failure, &choice) != 0)
        fail_msg("%s", bt_policy_error(policy));
    assert_ptr_equal(choice.first.decode, f.decode.items[1]);
    f.req.n = 2;
    assert_int_equal(bt_policy_fallback(policy, &f.req, &f.view, &failure, &choice), BT_E_POLICY);
    assert_non_null(
        strstr(bt_policy_error(policy),
               "spec.lua:2: fallback returned decode = worker d2, which was tried already"));
    f.req.stream = true;
    assert_int_equal(bt_policy_fallback(policy, &f.req, &f.view, &failure, &choice), 0);
    assert_null(choice.first.decode);
    bt_policy_free(policy);
    policy = policy_of(POLICY(""));
    assert_int_equal(bt_policy_fallback(policy, &f.req, &f.view, &failure, &choice), BT_E_AGAIN);
    bt_policy_free(policy);
    fleet_fini(&f);
}

#define LATE(plan_decode)                                                                          \
    "return { api = 2, name = 'x', version = '1',\n"                                               \
    "plan = function() return { prefill = 1 } end,\n"                                              \
    "plan_decode = function(req, view, prefill, ctx) " plan_decode " end }"

static void plan_decode_fails(struct fleet *f, const char *text, const char *why)
{
    bt_policy_t *policy = policy_of(text);
    bt_choice_t choice;

    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_DECODE, &f->req, &f->view,
                                         f->prefill.items[0], 1, &choice),
                     BT_E_POLICY);
    if (strstr(bt_policy_error(policy), why) == NULL)
        fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
}

static void plan_decode_completes_the_plan(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 2, 2, 0);
    policy =
        policy_of(LATE("assert(prefill.name == 'p1' and #view.decode == 2 and ctx.failure == nil)\n"
                       "if req.stream then return nil end\n"
                       "return { decode = ctx.attempt == 1 and 3 or 4, decode_rank = 0 }"));
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_true(bt_pair_lacks_decode(&choice.first) && !bt_choice_is_nobody(&choice));
    for (unsigned attempt = 1; attempt <= 2; attempt++) {
        if (bt_policy_plan_late(policy, BT_POLICY_DECODE, &f.req, &f.view, f.prefill.items[0],
                                attempt, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
        assert_ptr_equal(choice.first.prefill, f.prefill.items[0]);
        assert_ptr_equal(choice.first.decode, f.decode.items[attempt - 1]);
        assert_int_equal(choice.first.decode_rank, 0);
    }
    f.req.stream = true;
    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_DECODE, &f.req, &f.view,
                                         f.prefill.items[0], 1, &choice),
                     0);
    assert_true(bt_choice_is_nobody(&choice));
    bt_policy_free(policy);
    plan_decode_fails(&f, LATE("return { prefill = 2, decode = 3 }"),
                      "prefill = worker p2, but worker p1 has the prompt");
    plan_decode_fails(&f, LATE("return {}"), "plan_decode returned no decode worker");
    plan_decode_fails(&f, LATE("return { decode = 2 }"),
                      "worker p2, which is no candidate for that");
    assert_plan_fails(&f, POLICY("return { prefill = 1 }"), "plan returned no decode worker");
    policy = policy_of(POLICY("return { prefill = 1, decode = 3 }"));
    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_DECODE, &f.req, &f.view,
                                         f.prefill.items[0], 1, &choice),
                     BT_E_AGAIN);
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* plan_decode's partner is not the next plan's. */
static void hints_are_plans_alone(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    (void) state;
    fleet_init(&f, 2, 2, 0);
    plan_decode_fails(&f, LATE("return { decode = 3, hints = { priority = 1 } }"),
                      "plan_decode returned hints; those that plan gave hold for both legs");
    policy = policy_of("return { api = 2, name = 'x', version = '1',\n"
                       "plan = function() return { prefill = 1, hints = { priority = 7 } } end,\n"
                       "plan_decode = function() return { decode = 3 } end }");
    for (int i = 0; i < 2; i++) {
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
        assert_int_equal(choice.hints.priority, 7);
        assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_DECODE, &f.req, &f.view,
                                             f.prefill.items[0], 1, &choice),
                         0);
        assert_true(bt_hints_are_empty(&choice.hints));
    }
    bt_policy_free(policy);
    fleet_fini(&f);
}

#define OPEN(plan_prefill)                                                                         \
    "return { api = 2, name = 'x', version = '1',\n"                                               \
    "plan = function() return { decode = 3 } end,\n"                                               \
    "plan_prefill = function(req, view, decode, ctx) " plan_prefill " end }"

static void plan_prefill_fails(struct fleet *f, const char *text, const char *why)
{
    bt_policy_t *policy = policy_of(text);
    bt_choice_t choice;

    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_PREFILL, &f->req, &f->view,
                                         f->decode.items[0], 1, &choice),
                     BT_E_POLICY);
    if (strstr(bt_policy_error(policy), why) == NULL)
        fail_msg("%s", bt_policy_error(policy));
    bt_policy_free(policy);
}

static void plan_prefill_completes_the_plan(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 2, 2, 0);
    policy = policy_of(OPEN("assert(decode.name == 'd3' and #view.prefill == 2)\n"
                            "if req.stream then return nil end\n"
                            "return { prefill = ctx.attempt, prefill_rank = 0 }"));
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_true(bt_pair_lacks_prefill(&choice.first) && !bt_choice_is_nobody(&choice));
    assert_false(bt_pair_is_single(&choice.first));
    for (unsigned attempt = 1; attempt <= 2; attempt++) {
        if (bt_policy_plan_late(policy, BT_POLICY_PREFILL, &f.req, &f.view, f.decode.items[0],
                                attempt, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
        assert_ptr_equal(choice.first.prefill, f.prefill.items[attempt - 1]);
        assert_ptr_equal(choice.first.decode, f.decode.items[0]);
        assert_int_equal(choice.first.prefill_rank, 0);
    }
    f.req.stream = true;
    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_PREFILL, &f.req, &f.view,
                                         f.decode.items[0], 1, &choice),
                     0);
    assert_true(bt_choice_is_nobody(&choice));
    /* by halves: nothing is left open */
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_PREFILL, &f.req, &f.view, &choice),
                     BT_E_POLICY);
    bt_policy_free(policy);
    plan_prefill_fails(&f, OPEN("return { prefill = 1, decode = 4 }"),
                       "decode = worker d4, but worker d3 calls for its prefill");
    plan_prefill_fails(&f, OPEN("return {}"), "plan_prefill returned no prefill worker");
    plan_prefill_fails(&f, OPEN("return { prefill = 3 }"),
                       "worker d3, which is no candidate for that");
    assert_plan_fails(&f, POLICY("return { decode = 3 }"), "plan returned no prefill worker");
    assert_plan_fails(&f,
                      "return { api = 2, name = 'x', version = '1', plan = function() return { "
                      "decode = 3, kind = 'handoff' } end, plan_prefill = function() end }",
                      "which only a trigger's decode calls for");
    policy = policy_of(POLICY("return { prefill = 1, decode = 3 }"));
    assert_int_equal(bt_policy_plan_late(policy, BT_POLICY_PREFILL, &f.req, &f.view,
                                         f.decode.items[0], 1, &choice),
                     BT_E_AGAIN);
    bt_policy_free(policy);
    fleet_fini(&f);
}

#define ASKED(recompute)                                                                           \
    "return { api = 2, name = 'x', version = '1', plan = function() end,\n"                        \
    "recompute = function(req, failure, ctx) " recompute " end }"

static int recompute(struct fleet *f, const char *text, bool *may_p)
{
    bt_worker_t *tried[] = {f->decode.items[0]};
    const bt_policy_failure_t failure = {.scope = BT_SCOPE_ATTEMPT,
                                         .name = "recomputed",
                                         .leg = "decode",
                                         .tried = tried,
                                         .tried_count = 1,
                                         .made = 5,
                                         .left = 7,
                                         .replays = 1};
    bt_policy_t *policy = policy_of(text);
    const int rc = bt_policy_recompute(policy, &f->req, &failure, may_p);

    bt_policy_free(policy);
    return rc;
}

static void recompute_may_say_no(void **state)
{
    struct fleet f;
    bool may = false;

    fleet_init(&f, 1, 1, 0);
    assert_int_equal(recompute(&f,
                               ASKED("assert(failure.name == 'recomputed' and failure.made == 5)\n"
                                     "assert(failure.left == 7 and failure.replays == 1)\n"
                                     "assert(#failure.tried == 1 and ctx.params and req.n)\n"
                                     "return true"),
                               &may),
                     0);
    assert_true(may);
    assert_int_equal(recompute(&f, ASKED("return false"), &may), 0);
    assert_false(may);
    assert_int_equal(recompute(&f, ASKED(""), &may), 0);
    assert_true(may); /* nothing is no word against it */
    assert_int_equal(recompute(&f, ASKED("return 'no'"), &may), BT_E_POLICY);
    assert_int_equal(recompute(&f, ASKED("error('boom')"), &may), BT_E_POLICY);
    assert_int_equal(recompute(&f, POLICY("return nil"), &may), BT_E_AGAIN);
    fleet_fini(&f);
}

#define QUEUED(enqueue)                                                                            \
    "return { api = 2, name = 'x', version = '1', plan = function() end,\n"                        \
    "enqueue = function(req, ctx) " enqueue " end }"

static int enqueue(struct fleet *f, const char *text, bt_policy_queueing_t *out)
{
    bt_policy_t *policy = policy_of(text);
    const int rc = bt_policy_enqueue(policy, &f->req, out);

    bt_policy_free(policy);
    return rc;
}

static void enqueue_says_where_it_stands(void **state)
{
    static const char *const wrong[] = {
        QUEUED("return 'high'"),
        QUEUED("return { class = 'urgent' }"),
        QUEUED("return { class = 1 }"),
        QUEUED("return { key = ('x'):rep(65) }"),
        QUEUED("return { cost = 0 }"),
        QUEUED("return { cost = 1e10 }"),
        QUEUED("return { cost = 0/0 }"),
        QUEUED("return { cost = -1 }"),
        QUEUED("return { weight = 1001 }"),
        QUEUED("return { weight = '4' }"),
        QUEUED("return { timeout_ms = 86400001 }"),
        QUEUED("return { priority = 1 }"),
        QUEUED("baton.sleep(1)"),
        QUEUED("while true do end"),
    };
    bt_policy_queueing_t out = {.weight = 9};
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    assert_int_equal(enqueue(&f, POLICY("return nil"), &out), BT_E_AGAIN);
    assert_int_equal(out.weight, 9);
    assert_int_equal(enqueue(&f, QUEUED(""), &out), 0);
    assert_true(out.klass[0] == '\0' && out.key[0] == '\0' && out.cost == 0 && out.weight == 0 &&
                out.timeout_ms == 0);
    assert_int_equal(enqueue(&f,
                             QUEUED("return { class = 'low', key = 'k', cost = 10.2, weight = 3,\n"
                                    "timeout_ms = req.n * 500 }"),
                             &out),
                     0);
    assert_string_equal(out.klass, "low");
    assert_string_equal(out.key, "k");
    assert_int_equal(out.cost, 11);
    assert_int_equal(out.weight, 3);
    assert_int_equal(out.timeout_ms, 500 * f.req.n);
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(enqueue(&f, wrong[i], &out), BT_E_POLICY);
    assert_int_equal(out.cost, 11); /* as it was */
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recompute_may_say_no),
        cmocka_unit_test(enqueue_says_where_it_stands),
        cmocka_unit_test(shipped_policies_load),
        cmocka_unit_test(unknown_names_say_what_is_known),
        cmocka_unit_test(a_folder_comes_before_the_shipped_ones),
        cmocka_unit_test(mistakes_name_the_file),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(serves_on_after_an_error),
        cmocka_unit_test(fallback_gets_the_failure),
        cmocka_unit_test(plan_decode_completes_the_plan),
        cmocka_unit_test(hints_are_plans_alone),
        cmocka_unit_test(plan_prefill_completes_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
