#include "script_fixture.h"

/* 2 prefill (ids 1, 2), 2 decode (3, 4), 1 hybrid (5). */
static void start(struct fleet *f)
{
    fleet_init(f, 2, 2, 1);
}

static void pairs_by_id_and_by_row(void **state)
{
    struct fleet f;
    bt_choice_t choice;

    start(&f);
    choice = plan_once(&f, POLICY("return { prefill = 2, decode = 3 }"));
    assert_int_equal(choice.first.kind, BT_PLAN_NONE);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[1]);
    assert_ptr_equal(choice.first.decode, f.decode.items[0]);
    assert_int_equal(choice.first.prefill_rank, -1);
    assert_int_equal(choice.first.decode_rank, -1);
    assert_int_equal(choice.alternate_count, 0);
    choice = plan_once(
        &f,
        POLICY(
            "return { kind = 'handoff', prefill = view.prefill[1], decode = view.decode[2].id }"));
    assert_int_equal(choice.first.kind, BT_PLAN_HANDOFF);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[0]);
    assert_ptr_equal(choice.first.decode, f.decode.items[1]);
    fleet_fini(&f);
}

static void singles(void **state)
{
    struct fleet f;
    bt_choice_t choice;

    start(&f);
    choice = plan_once(&f, POLICY("return { worker = 5 }"));
    assert_int_equal(choice.first.kind, BT_PLAN_SINGLE);
    assert_null(choice.first.prefill);
    assert_ptr_equal(choice.first.decode, f.hybrid.items[0]);
    choice = plan_once(&f, POLICY("return { kind = 'single', worker = view.hybrid[1] }"));
    assert_int_equal(choice.first.kind, BT_PLAN_SINGLE);
    fleet_fini(&f);
}

static void alternates_and_ranks(void **state)
{
    struct fleet f;
    bt_choice_t choice;

    start(&f);
    f.prefill.items[0]->dp_size = 4;
    choice = plan_once(
        &f, POLICY("return { prefill = 1, decode = 3, prefill_rank = 3, decode_rank = 0,\n"
                   "alternates = { { prefill = 2, decode = 4 }, { worker = 5 } } }"));
    assert_int_equal(choice.first.prefill_rank, 3);
    assert_int_equal(choice.first.decode_rank, 0);
    assert_int_equal(choice.alternate_count, 2);
    assert_ptr_equal(choice.alternates[0].prefill, f.prefill.items[1]);
    assert_int_equal(choice.alternates[0].prefill_rank, -1);
    f.prefill.items[0]->spec.dp_rank = 2;
    assert_int_equal(plan_once(&f, POLICY("return { prefill = 1, decode = 3, prefill_rank = 2 }"))
                         .first.prefill_rank,
                     2);
    assert_plan_fails(&f, POLICY("return { prefill = 1, decode = 3, prefill_rank = 3 }"),
                      "prefill_rank = 3, but worker p1 is rank 2 by its URL");
    assert_null(choice.alternates[1].prefill);
    assert_ptr_equal(choice.alternates[1].decode, f.hybrid.items[0]);
    fleet_fini(&f);
}

#define HINTS(text) POLICY("return { prefill = 1, decode = 3, hints = " text " }")
#define ACTION                                                                                     \
    "{ action_id = 'a', action_type = 't', action_version = '1', payload = { x = { 1, 'y' } } }"

static void hints(void **state)
{
    struct fleet f;
    bt_choice_t choice;
    (void) state;

    start(&f);
    choice = plan_once(&f, HINTS("{}"));
    assert_true(bt_hints_are_empty(&choice.hints));
    choice = plan_once(&f, HINTS("{ priority = -2147483648 }"));
    assert_true(choice.hints.has_priority);
    assert_int_equal(choice.hints.priority, INT32_MIN);
    assert_int_equal(choice.hints.kv_actions.n, 0);
    fleet_fini(&f);
}

static void wrong_hints(void **state)
{
    static const struct {
        const char *body, *word;
    } cases[] = {
        {HINTS("7"), "plan returned hints = a number value; it must be a table"},
        {HINTS("{ priorty = 1 }"), "unknown member of hints 'priorty' (did you mean 'priority'?)"},
        {HINTS("{ priority = 1.5 }"), "hints.priority which is no whole number"},
        {HINTS("{ priority = 2147483648 }"), "hints.priority which is no whole number"},
        {HINTS("{ priority = '1' }"), "hints.priority which is no whole number"},
        {HINTS("{ priority = 0/0 }"), "hints.priority which is no whole number"},
        {HINTS("{ kv_hints = 1 }"), "hints.kv_hints which is no list of 1 to 8 actions"},
        {HINTS("{ kv_hints = {} }"), "hints.kv_hints which is no list of 1 to 8 actions"},
        {HINTS("{ kv_hints = { 1 } }"), "with a number value; an action is a table"},
        {HINTS("{ kv_hints = { " ACTION ", x = 1 } }"), "hints.kv_hints"},
        {HINTS("{ kv_hints = { { action_id = 'a' } } }"), "an action's action_type must be a"},
        {HINTS("{ kv_hints = { { action_id = '', action_type = 't', action_version = '1', payload "
               "= {} } } }"),
         "an action's action_id must be a string that is not empty"},
        {HINTS("{ kv_hints = { { action_id = 'a', action_type = 't', action_version = '1', "
               "payload = { 1 } } } }"),
         "an action's payload must be a table of named members"},
        {HINTS("{ kv_hints = { { action_id = 'a', action_type = 't', action_version = '1', "
               "payload = {}, ttl = 1 } } }"),
         "unknown member of an action of kv_hints 'ttl'"},
        {HINTS("{ kv_hints = { { action_id = 'a', action_type = 't', action_version = '1', "
               "payload = { x = ('a'):rep(5000) } } } }"),
         "hints.kv_hints[1].payload.x: too many bytes of strings in all (more than 4 KiB)"},
        {HINTS("{ kv_hints = { { action_id = 'a', action_type = 't', action_version = '1', "
               "payload = { x = baton.log } } } }"),
         "hints.kv_hints"},
        {POLICY("return { prefill = 1, decode = 3, alternates = { { worker = 5, hints = {} } } }"),
         "hints inside alternates"},
    };
    struct fleet f;
    (void) state;

    start(&f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_plan_fails(&f, cases[i].body, cases[i].word);
    fleet_fini(&f);
}

static void nil_is_nobody(void **state)
{
    struct fleet f;

    start(&f);
    assert_null(plan_once(&f, POLICY("return nil")).first.decode);
    fleet_fini(&f);
}

static void wrong_answers(void **state)
{
    static const struct {
        const char *body, *word;
    } cases[] = {
        {"return 7", "a number value"},
        {"return {}", "plan returned no prefill worker"},
        {"return { decode = 3 }", "no prefill worker"},
        {"return { prefill = 1 }", "no decode worker"},
        {"return { prefill = 99, decode = 3 }", "prefill = 99, which is no worker's id"},
        {"return { prefill = 3, decode = 3 }",
         "prefill = worker d3, which is no candidate for that"},
        {"return { prefill = 1, decode = 2 }", "decode = worker p2, which is no candidate"},
        {"return { worker = 1 }", "worker = worker p1, which is no candidate"},
        {"return { prefill = 'p1', decode = 3 }",
         "prefill = a string value; it must be a worker or its id"},
        {"return { prefill = req, decode = 3 }", "prefill = a userdata value"},
        {"return { worker = 5, prefill = 1 }", "both a worker and a pair"},
        {"return { kind = 'single', prefill = 1, decode = 3 }", "kind \"single\" with no worker"},
        {"return { kind = 'handoff', worker = 5 }", "kind \"handoff\" with a worker"},
        {"return { kind = 'both', prefill = 1, decode = 3 }", "kind 'both'; it must be"},
        {"return { kind = 'trigger', prefill = 1, decode = 3 }", "which can only be"},
        {"return { prefil = 1, decode = 3 }",
         "unknown member of a plan 'prefil' (did you mean 'prefill'?)"},
        {"return { prefill = 1, decode = 3, [1] = 2 }", "unknown member of a plan (a number)"},
        {"return { prefill = 1, decode = 3, prefill_rank = 1 }",
         "prefill_rank = 1, but worker p1 has 1 ranks"},
        {"return { prefill = 1, decode = 3, decode_rank = -1 }", "a decode_rank which is no rank"},
        {"return { prefill = 1, decode = 3, decode_rank = 0.5 }", "a decode_rank which is no rank"},
        {"return { prefill = 1, decode = 3, alternates = 1 }", "alternates = a number value"},
        {"return { prefill = 1, decode = 3, alternates = { {} } }", "no prefill worker"},
        {"return { prefill = 1, decode = 3, alternates = { { worker = 5, alternates = {} } } }",
         "alternates inside"},
        {"local a = {} for i = 1, 9 do a[i] = { worker = 5 } end return { worker = 5, alternates = "
         "a }",
         "more than 8 alternates"},
    };
    struct fleet f;

    start(&f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), POLICY("%s"), cases[i].body);
        assert_plan_fails(&f, text, cases[i].word);
    }
    fleet_fini(&f);
}

static void pairs_must_fit(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    fleet_add(&f, BT_ROLE_DECODE, "ExampleConnector");
    assert_plan_fails(&f, POLICY("return { prefill = 1, decode = 3 }"),
                      "workers p1 and d3, which cannot be a pair: no common");
    fleet_fini(&f);
}

/* What a pair cannot serve is the policy's mistake, and says what it can. */
static void kinds_are_obeyed(void **state)
{
    static const char bootstrap[] = "return { kind = 'bootstrap', prefill = 1, decode = 2 }";
    static const char handoff[] = "return { kind = 'handoff', prefill = 1, decode = 2 }";
    char text[256];
    struct fleet f;
    bt_worker_t *w;

    fleet_init(&f, 1, 1, 0);
    snprintf(text, sizeof(text), POLICY("%s"), bootstrap);
    assert_plan_fails(&f, text,
                      "kind \"bootstrap\" for workers p1 and d2, which can only be \"handoff\"");
    assert_plan_fails(&f,
                      POLICY("return { prefill = 1, decode = 2, alternates = {\n"
                             "{ kind = 'bootstrap', prefill = 1, decode = 2 } } }"),
                      "kind \"bootstrap\" for workers p1");
    fleet_fini(&f);
    fleet_init_after(&f, 0, 0, 0, 0);
    w = fleet_add(&f, BT_ROLE_PREFILL, "NixlPushConnector");
    fleet_add(&f, BT_ROLE_DECODE, "NixlPushConnector");
    assert_plan_fails(&f, text, "which can only be \"handoff\"");
    w->has_learned = true;
    assert_int_equal(plan_once(&f, text).first.kind, BT_PLAN_BOOTSTRAP);
    snprintf(text, sizeof(text), POLICY("%s"), handoff);
    assert_int_equal(plan_once(&f, text).first.kind, BT_PLAN_HANDOFF);
    fleet_fini(&f);
    fleet_init_after(&f, 0, 0, 0, 0);
    fleet_add(&f, BT_ROLE_PREFILL, "sglang");
    fleet_add(&f, BT_ROLE_DECODE, "sglang");
    assert_plan_fails(&f, text, "which can only be \"bootstrap\"");
    fleet_fini(&f);
    fleet_init_after(&f, 0, 0, 0, 0);
    fleet_add(&f, BT_ROLE_PREFILL, "MooncakeLayerwiseConnector");
    fleet_add(&f, BT_ROLE_DECODE, "MooncakeLayerwiseConnector");
    assert_plan_fails(&f, text, "which can only be \"trigger\"");
    assert_int_equal(plan_once(&f, POLICY("assert(view.prefill[1].kinds.trigger); return { "
                                          "kind = 'trigger', prefill = 1, decode = 2 }"))
                         .first.kind,
                     BT_PLAN_TRIGGER);
    fleet_fini(&f);
}

/* row.kinds tells what a worker can do now. */
static void kinds_change_with_what_is_learned(void **state)
{
    static const char text[] = POLICY(
        "local p = view.prefill[1]; "
        "if p.kinds.bootstrap then return { kind = 'bootstrap', prefill = p, decode = 2 } end; "
        "assert(p.kinds.handoff and p.kinds[1] == 'handoff'); "
        "return { kind = 'handoff', prefill = p, decode = 2 }");
    bt_policy_t *policy = policy_of(text);
    bt_choice_t choice;
    struct fleet f;
    bt_worker_t *w;

    fleet_init_after(&f, 0, 0, 0, 0);
    w = fleet_add(&f, BT_ROLE_PREFILL, "NixlPushConnector");
    fleet_add(&f, BT_ROLE_DECODE, "NixlPushConnector");
    for (unsigned i = 0; i < 4; i++) {
        w->has_learned = i % 2 == 1;
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
        assert_int_equal(choice.first.kind, i % 2 == 1 ? BT_PLAN_BOOTSTRAP : BT_PLAN_HANDOFF);
    }
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* A worker that the VM still knows, but that is no candidate any more. */
static void a_worker_that_has_gone(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;
    bt_worker_t *gone;

    start(&f);
    policy = policy_of(POLICY("return { prefill = 2, decode = 3 }"));
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    gone = f.prefill.items[--f.prefill.count];
    f.view.key++;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), BT_E_POLICY);
    assert_non_null(strstr(bt_policy_error(policy), "p2, which is no candidate"));
    f.prefill.count++;
    bt_worker_unref(f.prefill.items[0]);
    f.prefill.items[0] = gone; /* now at another place than when its row was made */
    f.prefill.items[1] = make_worker(77, BT_ROLE_PREFILL, "NixlConnector");
    f.view.key++;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.prefill, gone);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void parts(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    start(&f);
    policy = policy_of(POLICY("return req.stream and { prefill = 1 } or { decode = 4 }"));
    f.req.stream = true;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_PREFILL, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[0]);
    assert_null(choice.first.decode);
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_DECODE, &f.req, &f.view, &choice),
                     BT_E_POLICY);
    f.req.stream = false;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_DECODE, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.decode, f.decode.items[1]);
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), BT_E_POLICY);
    bt_policy_free(policy);
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_by_id_and_by_row),
        cmocka_unit_test(singles),
        cmocka_unit_test(alternates_and_ranks),
        cmocka_unit_test(nil_is_nobody),
        cmocka_unit_test(hints),
        cmocka_unit_test(wrong_hints),
        cmocka_unit_test(wrong_answers),
        cmocka_unit_test(pairs_must_fit),
        cmocka_unit_test(kinds_are_obeyed),
        cmocka_unit_test(kinds_change_with_what_is_learned),
        cmocka_unit_test(a_worker_that_has_gone),
        cmocka_unit_test(parts),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
