#include "base/clock.h"
#include "base/rand.h"
#include "script_fixture.h"

#define DONE " return { prefill = 1, decode = view.decode[1] }"

static void most_and_least(void **state)
{
    static const int64_t tokens[] = {30, 10, 50, 50}, requests[] = {0, 2, 1, 4};
    struct fleet f;
    (void) state;

    fleet_init(&f, 4, 1, 0);
    for (int i = 0; i < 4; i++) {
        f.prefill.items[i]->tokens[BT_PHASE_PREFILL] = tokens[i];
        f.prefill.items[i]->requests[BT_PHASE_PREFILL] = requests[i];
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
    (void) state;

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
    (void) state;

    bt_rand_seed(7);
    fleet_init(&f, 6, 1, 0);
    for (int i = 0; i < 6; i++)
        f.prefill.items[i]->tokens[BT_PHASE_PREFILL] = i;
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

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *body, *word;
    } cases[] = {
        {"baton.power_of_k(view.prefill, 0, 'id')", "1 to 16"},
        {"baton.power_of_k(view.prefill, 2)", "one to eight fields"},
        {"baton.range(view.prefill, 'zone')", "field 'zone' is not a number"},
        {"baton.argmax_sum(view.prefill, 'id')", "pairs of field and weight"},
        {"baton.x = 1", "baton cannot be written"},
    };
    struct fleet f;
    (void) state;

    fleet_init(&f, 1, 1, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];
        snprintf(text, sizeof(text), POLICY("%s"), cases[i].body);
        assert_plan_fails(&f, text, cases[i].word);
    }
    fleet_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_and_least),
        cmocka_unit_test(unknown_is_worst),
        cmocka_unit_test(power_of_k),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
