#include "base/clock.h"
#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = 2 }"

static void all_fields_of_a_worker(void **state)
{
    struct fleet f;
    bt_worker_t *w;

    fleet_init(&f, 1, 1, 1);
    w = f.prefill.items[0];
    bt_worker_total(w, BT_PHASE_PREFILL)->tokens = 100;
    bt_worker_total(w, BT_PHASE_DECODE)->tokens = 7;
    bt_worker_total(w, BT_PHASE_PREFILL)->requests = 3;
    bt_worker_total(w, BT_PHASE_DECODE)->requests = 1;
    w->ttft_ema_us = 1500;
    w->load.at_ms = bt_clock_ms();
    w->load.running = 4;
    w->load.waiting = 5;
    w->load.started_since = 2;
    w->load.kv_used_ppm = 250000;
    w->is_gateway_managed = true;
    w->transfer_bytes = 4096;
    plan_once(
        &f,
        POLICY(
            "local w = view.prefill[1]\n"
            "assert(w.id == 1 and w.name == 'p1' and w.role == 'prefill' and w.zone == 'west')\n"
            "assert(w.labels.gpu == 'h100' and w.labels.fast == true)\n"
            "assert(w.kinds[1] == 'handoff' and w.kinds.handoff and not w.kinds.bootstrap and "
            "w.kinds.single)\n"
            "assert(w.dialects[1] == 'nixl' and w.dialects.nixl)\n"
            "assert(w.prefill_tokens == 100 and w.decode_tokens == 7 and w.requests == 4)\n"
            "assert(w.running == 4 and w.waiting == 7 and w.kv_free == 0.75 and w.age_ms < 5000)\n"
            "assert(w.transfer_bytes == 4096 and view.decode[1].transfer_bytes == nil)\n"
            "assert(w.ttft_ema_ms == 1.5 and w.tpot_ema_ms == nil)\n"
            "assert(tostring(w) == 'worker p1')\n"
            "local d, h = view.decode[1], view.hybrid[1]\n"
            "assert(d.role == 'decode' and d.kinds.single and d.age_ms == nil and d.running == "
            "nil)\n"
            "assert(h.role == 'hybrid' and h.kinds.single and not h.kinds.handoff)" DONE));
    fleet_fini(&f);
}

static void old_reports_are_unknown(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    f.prefill.items[0]->load.at_ms = bt_clock_ms() - 6000;
    f.prefill.items[0]->load.running = 4;
    plan_once(&f, POLICY("local w = view.prefill[1]\n"
                         "assert(w.running == nil and w.waiting == nil and w.kv_free == nil and "
                         "w.age_ms >= 6000)" DONE));
    fleet_fini(&f);
}

static void lists_are_arrays(void **state)
{
    struct fleet f;

    fleet_init(&f, 3, 2, 0);
    plan_once(&f,
              POLICY("assert(#view.prefill == 3 and #view.decode == 2 and #view.hybrid == 0 and "
                     "view.pool == 'default')\n"
                     "local names = {} for i, w in ipairs(view.prefill) do names[i] = w.name end\n"
                     "assert(table.concat(names, ' ') == 'p1 p2 p3')\n"
                     "for k in pairs(view.prefill) do assert(type(k) == 'number') end\n"
                     "return { prefill = 3, decode = 4 }"));
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    assert_plan_fails(&f, POLICY("return view.prefill[1].prefil_tokens"),
                      "did you mean 'prefill_tokens'?");
    assert_plan_fails(&f, POLICY("return view.prefills"),
                      "unknown field of view 'prefills' (did you mean 'prefill'?)");
    assert_plan_fails(&f, POLICY("view.prefill[1].requests = 1"), "cannot be written");
    assert_plan_fails(&f, POLICY("view.prefill = {}"), "cannot be written");
    assert_plan_fails(&f, POLICY("return view.prefill[1]:pairs_with(view)"),
                      "a worker is expected here");
    assert_plan_fails(&f, POLICY("getmetatable(view.prefill[1]).__gc(view.prefill[1])"),
                      "index a boolean");
    assert_plan_fails(&f, POLICY("setmetatable(view.prefill, nil)"), "protected metatable");
    fleet_fini(&f);
}

static void values_are_live(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 2, 1, 0);
    policy = policy_of(
        POLICY("local a, b = view.prefill[1], view.prefill[2]\n"
               "return { prefill = a.prefill_tokens <= b.prefill_tokens and a or b, decode = 3 }"));
    for (int i = 0; i < 4; i++) {
        bt_worker_total(f.prefill.items[0], BT_PHASE_PREFILL)->tokens = i % 2;
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
        assert_ptr_equal(choice.first.prefill, f.prefill.items[i % 2]);
    }
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* The same lists while the key stands, others when it changes, and no end of workers kept alive. */
static void lists_follow_the_key(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 1, 1, 0);
    policy = policy_of(
        POLICY("local s = ctx.state s.lists = s.lists or 0\n"
               "if s.list ~= view.prefill then s.list = view.prefill s.lists = s.lists + 1 end\n"
               "s.list = view.prefill\n"
               "if req.n == 2 then assert(s.lists == 1) end\n"
               "if req.n == 3 then assert(s.lists == 2 and #view.prefill == 2) end\n"
               "if req.n == 4 then s.list = nil end\n"
               "return { prefill = 1, decode = 2 }"));
    for (unsigned n = 1; n <= 3; n++) {
        f.req.n = n;
        if (n == 3)
            fleet_add(&f, BT_ROLE_PREFILL, "NixlConnector");
        if (bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice) != 0)
            fail_msg("%s", bt_policy_error(policy));
    }
    f.req.n = 4;
    for (int i = 0; i < 2000; i++) { /* a restless fleet: every worker is replaced each time */
        bt_worker_unref(f.prefill.items[1]);
        f.prefill.items[1] = make_worker(1000 + (uint64_t) i, BT_ROLE_PREFILL, "NixlConnector");
        f.view.key++;
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    }
    bt_policy_free(policy);
    fleet_fini(&f);
}

/* The first plan finds the list that was made ahead: it still has the worker that stood there then. */
static void a_warm_view_is_ready(void **state)
{
    struct fleet f;
    bt_policy_t *policy = policy_of(POLICY("return { prefill = view.prefill[1], decode = 3 }"));
    bt_choice_t choice;
    bt_worker_t *first;

    fleet_init(&f, 2, 1, 0);
    assert_int_equal(bt_policy_prewarm(policy, &f.view), 0);
    assert_int_equal(bt_policy_prewarm(policy, &f.view), 0);
    first = f.prefill.items[0];
    assert_int_equal(atomic_load(&first->refs), 2);
    f.prefill.items[0] = f.prefill.items[1];
    f.prefill.items[1] = first;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.prefill, first);
    f.view.key++;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[0]);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void a_policy_that_breaks_its_list_gets_a_new_one(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 2, 1, 0);
    policy = policy_of(POLICY("assert(#view.prefill == 2) table.remove(view.prefill, 1) return { "
                              "prefill = 1, decode = 3 }"));
    for (int i = 0; i < 3; i++)
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void key_zero_is_never_kept(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t choice;

    fleet_init(&f, 2, 1, 0);
    f.view.key = 0;
    policy = policy_of(POLICY("return { prefill = view.prefill[1], decode = view.decode[1] }"));
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    bt_worker_t *first = f.prefill.items[0];
    f.prefill.items[0] = f.prefill.items[1];
    f.prefill.items[1] = first;
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    assert_ptr_equal(choice.first.prefill, f.prefill.items[0]);
    f.view.sets[BT_LIST_HYBRID] = NULL; /* a set that is not there is empty */
    assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &choice), 0);
    f.view.sets[BT_LIST_HYBRID] = &f.hybrid;
    bt_policy_free(policy);
    fleet_fini(&f);
}

static void pairs_with(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    fleet_add(&f, BT_ROLE_PREFILL, "ExampleConnector");
    fleet_add(&f, BT_ROLE_DECODE, "ExampleConnector");
    plan_once(
        &f,
        POLICY("local p, d = view.prefill, view.decode\n"
               "assert(p[1]:pairs_with(d[1]) and d[1]:pairs_with(p[1]) and p[2]:pairs_with(d[2]))\n"
               "assert(not p[1]:pairs_with(d[2]) and not d[1]:pairs_with(p[2]))\n"
               "assert(not p[1]:pairs_with(p[1]) and not d[1]:pairs_with(d[2]))" DONE));
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields_of_a_worker),
        cmocka_unit_test(old_reports_are_unknown),
        cmocka_unit_test(lists_are_arrays),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(values_are_live),
        cmocka_unit_test(lists_follow_the_key),
        cmocka_unit_test(a_warm_view_is_ready),
        cmocka_unit_test(a_policy_that_breaks_its_list_gets_a_new_one),
        cmocka_unit_test(key_zero_is_never_kept),
        cmocka_unit_test(pairs_with),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
