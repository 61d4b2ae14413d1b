#include "base/clock.h"
#include "base/rand.h"
#include "script/shared/prefix_index.h"
#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void most_and_least(void **state)
{
    static const int64_t tokens[] = {30, 10, 50, 50}, requests[] = {0, 2, 1, 4};
    struct fleet f;

    fleet_init(&f, 4, 1, 0);
    for (int i = 0; i < 4; i++) {
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = tokens[i];
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->requests = requests[i];
    }
    plan_once(
        &f,
        POLICY("local p = view.prefill\n"
               "assert(baton.argmax(p, 'prefill_tokens', 'requests').name == 'p4')\n"
               "assert(baton.argmax_sum(p, 'prefill_tokens', 1, 'requests', -10).name == 'p3')\n"
               "assert(baton.argmax({}, 'id') == nil and baton.argmax({ p[1], p[2] }, 'id').name "
               "== 'p2')\n"
               "local low, high, mean = baton.range(p, 'prefill_tokens')\n"
               "assert(low == 10 and high == 50 and mean == 35)\n"
               "assert(baton.range({}, 'id') == nil and baton.range(p, 'waiting') == nil)" DONE));
    fleet_fini(&f);
}

/* For the most as for the least: who has no report is worst. */
static void unknown_is_worst(void **state)
{
    struct fleet f;

    fleet_init(&f, 3, 1, 0);
    f.prefill.items[1]->load.at_ms = bt_clock_ms();
    f.prefill.items[1]->load.waiting = 3;
    plan_once(
        &f,
        POLICY(
            "for _ = 1, 20 do\n"
            "  assert(baton.argmax(view.prefill, 'waiting').name == 'p2')\n"
            "  assert(baton.argmin(view.prefill, 'waiting').name == 'p2')\n"
            "  assert(baton.argmax_sum(view.prefill, 'waiting', -9, 'kv_free', 1).name == 'p2')\n"
            "end\n"
            "local low, high, mean = baton.range(view.prefill, 'waiting')\n"
            "assert(low == 3 and high == 3 and mean == 3)" DONE));
    fleet_fini(&f);
}

static void power_of_k(void **state)
{
    struct fleet f;

    bt_rand_seed(7);
    fleet_init(&f, 6, 1, 0);
    for (int i = 0; i < 6; i++)
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = i;
    plan_times(
        &f, 40,
        POLICY(
            "local s = ctx.state s.n = (s.n or 0) + 1 s.seen = s.seen or { 0, 0, 0, 0, 0, 0 }\n"
            "local seen = s.seen\n"
            "for _ = 1, 50 do\n"
            "  local w = baton.power_of_k(view.prefill, 3, 'prefill_tokens') seen[w.id] = "
            "seen[w.id] + 1\n"
            "end\n"
            "assert(s.n < 40 or seen[1] > 900 and seen[1] < 1100, seen[1])\n" /* in half of the draws */
            "assert(s.n < 40 or seen[4] > 50 and seen[4] < 150, seen[4])\n"
            "assert(seen[5] == 0 and seen[6] == 0)\n"
            "assert(baton.power_of_k(view.prefill, 16, 'prefill_tokens').id == 1)\n"
            "assert(baton.power_of_k({}, 2, 'id') == nil)" DONE));
    fleet_fini(&f);
}

/* So it is with the index, which the others fill between two reports. */
static void index_is_near(struct fleet *f)
{
    static const unsigned blocks[] = {1, 20, 200};
    uint64_t hashes[200];

    for (unsigned i = 0; i < 3; i++) {
        for (unsigned k = 0; k < blocks[i]; k++)
            hashes[k] = (uint64_t) (i * 1000 + k + 1) * 0x9e3779b97f4a7c15ULL;
        bt_prefix_insert(hashes, blocks[i], (uint32_t) f->prefill.items[i]->id, 1);
    }
    plan_once(f, POLICY("for _ = 1, 40 do\n"
                        "  assert(baton.argmin(view.prefill, 'prefix_cached').name == 'p1')\n"
                        "end" DONE));
    for (int i = 0; i < 100; i++)
        bt_prefix_note_inflow(50);
    assert_true(bt_prefix_inflow() > 40 && bt_prefix_inflow() <= 50);
    plan_once(f, POLICY("local seen = { p1 = 0, p2 = 0, p3 = 0 }\n"
                        "for _ = 1, 40 do\n"
                        "  local w = baton.argmin(view.prefill, 'prefix_cached')\n"
                        "  seen[w.name] = seen[w.name] + 1\n"
                        "end\n"
                        "assert(seen.p1 > 5 and seen.p2 > 5 and seen.p3 == 0)" DONE));
    for (int i = 0; i < 100; i++)
        bt_prefix_note_inflow(0);
    assert_int_equal(bt_prefix_inflow(), 0);
    bt_prefix_clear();
}

/* Others' loads are a moment old and all gateways see the same: near-equals share the chance, which alone they do not. */
static void near_equals_share_the_chance_where_others_are(void **state)
{
    struct fleet f;

    bt_rand_seed(3);
    fleet_init(&f, 3, 1, 0);
    for (int i = 0; i < 3; i++) {
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = i < 2 ? i : 500;
        bt_worker_set_others(f.prefill.items[i], BT_PHASE_PREFILL, 100, 0);
    }
    plan_once(&f, POLICY("for _ = 1, 40 do\n"
                         "  local w = baton.argmin(view.prefill, 'prefill_tokens')\n"
                         "  assert(w.name == 'p1' and w.prefill_tokens == 100)\n"
                         "end" DONE));
    atomic_store(&bt_worker_has_others, true);
    plan_once(&f, POLICY("local seen = { p1 = 0, p2 = 0, p3 = 0 }\n"
                         "local function note(w) seen[w.name] = seen[w.name] + 1 end\n"
                         "for _ = 1, 40 do\n"
                         "  note(baton.argmin(view.prefill, 'prefill_tokens', 'requests'))\n"
                         "  note(baton.argmin_sum(view.prefill, 'prefill_tokens', 2, 'id', 0.1))\n"
                         "end\n"
                         "assert(seen.p1 > 10 and seen.p2 > 10 and seen.p3 == 0)\n"
                         "assert(baton.argmin(view.prefill, 'id').name == 'p1')" DONE));
    for (int i = 0; i < 3; i++)
        bt_worker_set_others(f.prefill.items[i], BT_PHASE_PREFILL, 0, 0);
    plan_once(&f, POLICY("for _ = 1, 40 do\n"
                         "  assert(baton.argmin(view.prefill, 'prefill_tokens').name == 'p1')\n"
                         "end" DONE));
    index_is_near(&f);
    atomic_store(&bt_worker_has_others, false);
    fleet_fini(&f);
}

static void mistakes_are_named(void **state)
{
    static const struct mistake cases[] = {
        {"baton.power_of_k(view.prefill, 0, 'id')", "1 to 16"},
        {"baton.power_of_k(view.prefill, 2)", "one to eight fields"},
        {"baton.range(view.prefill, 'zone')", "field 'zone' is not a number"},
        {"baton.argmax_sum(view.prefill, 'id')", "pairs of field and weight"},
        {"baton.x = 1", "baton cannot be written"},
    };
    assert_mistakes(cases, sizeof(cases) / sizeof(cases[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_and_least),
        cmocka_unit_test(unknown_is_worst),
        cmocka_unit_test(power_of_k),
        cmocka_unit_test(near_equals_share_the_chance_where_others_are),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
