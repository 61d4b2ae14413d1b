#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void hash_is_a_whole_number_below_2_53(void **state)
{
    struct fleet f;

    fleet_init(&f, 1, 1, 0);
    plan_once(
        &f,
        POLICY(
            "local h = baton.hash('')\n"
            "assert(h == math.floor(0x2D068005 * 2 ^ 21 + 0x38D394C2 / 2 ^ 11), h)\n" /* its upper 53 bits */
            "assert(baton.hash('a') ~= baton.hash('a', 1) and baton.hash(7) == baton.hash('7'))\n"
            "assert(baton.hash('a') % 1 == 0 and baton.hash('a') < 2 ^ 53)" DONE));
    fleet_fini(&f);
}

/* The same answer for a list of the view, its copy in another order, and one that lacks others. */
static void the_order_of_a_key_is_its_own(void **state)
{
    struct fleet f;

    fleet_init(&f, 8, 1, 0);
    plan_times(
        &f, 40,
        POLICY(
            "local p, s = view.prefill, ctx.state s.seen = s.seen or {} s.key = s.key or 0\n"
            "local turned = {} for i = 1, #p do turned[i] = p[#p + 1 - i] end\n"
            "for key = s.key + 1, s.key + 10 do\n"
            "  local order = baton.rendezvous(p, key, 8)\n"
            "  local best = baton.rendezvous(p, key)\n"
            "  assert(#order == 8 and best == order[1] and best == baton.rendezvous(turned, key))\n"
            "  for k = 2, 8 do assert(order[k] ~= order[k - 1]) end\n"
            "  local without = {} for i = 1, #p do if p[i] ~= best then without[#without + 1] = "
            "p[i] end end\n"
            "  assert(baton.rendezvous(without, key) == order[2])\n"
            "  s.seen[best.id] = (s.seen[best.id] or 0) + 1\n"
            "end\n"
            "s.key = s.key + 10\n"
            "for id = 1, s.key < 400 and 0 or 8 do assert(s.seen[id] > 25 and s.seen[id] < 80, "
            "s.seen[id]) end\n"
            "assert(baton.rendezvous({}, 'x') == nil and #baton.rendezvous({}, 'x', 3) == 0)\n"
            "assert(#baton.rendezvous(p, 'x', 3) == 3)" DONE));
    fleet_fini(&f);
}

static void the_bound_holds(void **state)
{
    struct fleet f;

    fleet_init(&f, 4, 1, 0);
    plan_once(&f, POLICY("local p = view.prefill\n"
                         "for key = 1, 50 do assert(baton.bounded_hash(p, key, 1.25) == "
                         "baton.rendezvous(p, key)) end" DONE));
    bt_worker_total(f.prefill.items[1], BT_PHASE_PREFILL)->requests =
        9; /* the mean with one more is 2.5, the bound ceil(3.125) = 4 */
    bt_worker_total(f.prefill.items[2], BT_PHASE_PREFILL)->tokens = 100;
    plan_times(
        &f, 10,
        POLICY("local p, s = view.prefill, ctx.state s.ids = s.ids or {} s.key = s.key or 0\n"
               "for key = s.key + 1, s.key + 20 do\n"
               "  local order = baton.rendezvous(p, key, 4)\n"
               "  local expected = order[1].id == 2 and order[2] or order[1]\n"
               "  assert(baton.bounded_hash(p, key, 1.25) == expected)\n"
               "  s.ids[baton.bounded_hash(p, key, 2, 'prefill_tokens').id] = true\n"
               "end\n"
               "s.key = s.key + 20\n"
               "assert(not s.ids[3] and (s.key < 200 or s.ids[1] and s.ids[2] and s.ids[4]))\n"
               "assert(baton.bounded_hash({}, 'x', 1) == nil)" DONE));
    fleet_fini(&f);
}

static void the_ring_moves_only_what_it_must(void **state)
{
    struct fleet f;
    bt_policy_t *policy;
    bt_choice_t before[400], now;
    unsigned seen[9] = {0}, moved = 0;
    char session[16];

    fleet_init(&f, 8, 1, 0);
    policy = policy_of(POLICY(
        "return { prefill = baton.ring(view.prefill, req.session), decode = view.decode[1] }"));
    for (int i = 0; i < 400; i++) {
        snprintf(session, sizeof(session), "s%d", i);
        f.req.session = bt_str(session);
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &before[i]), 0);
        seen[before[i].first.prefill->id]++;
    }
    for (int id = 1; id <= 8; id++)
        assert_in_range(seen[id], 20, 90);
    f.prefill.count = 7; /* the eighth goes */
    f.view.key++;
    for (int i = 0; i < 400; i++) {
        snprintf(session, sizeof(session), "s%d", i);
        f.req.session = bt_str(session);
        assert_int_equal(bt_policy_plan(policy, BT_POLICY_BOTH, &f.req, &f.view, &now), 0);
        if (before[i].first.prefill->id != 8)
            moved += now.first.prefill != before[i].first.prefill;
    }
    assert_int_equal(moved, 0);
    bt_policy_free(policy);
    f.prefill.count = 8;
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    static const struct mistake cases[] = {
        {"baton.hash()", "string expected"},
        {"baton.hash('x', -1)", "below 2^53"},
        {"baton.rendezvous(view.prefill)", "string expected"},
        {"baton.rendezvous(view.prefill, 'x', 65)", "1 to 64"},
        {"baton.bounded_hash(view.prefill, 'x', 0.5)", "at least 1"},
        {"baton.bounded_hash(view.prefill, 'x', 2, 'name')", "field 'name' is not a number"},
        {"baton.ring({ view.prefill[1] }, 'x')", "a list of the view"},
        {"baton.ring(view.prefill, 'x', 0)", "1 to 1024"},
    };
    assert_mistakes(cases, sizeof(cases) / sizeof(cases[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_is_a_whole_number_below_2_53),
        cmocka_unit_test(the_order_of_a_key_is_its_own),
        cmocka_unit_test(the_bound_holds),
        cmocka_unit_test(the_ring_moves_only_what_it_must),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
