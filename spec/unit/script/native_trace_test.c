/* Scores that native functions leave for decision records, and baton.note_score. */
#include "script_fixture.h"

#include <math.h>

static struct fleet f;
static struct bt_policy_score scores[8];
static bt_policy_trace_t trace;

static int open_fleet(void **state)
{
    fleet_init(&f, 3, 2, 0);
    for (int i = 0; i < 3; i++)
        bt_worker_total(f.prefill.items[i], BT_PHASE_PREFILL)->tokens = 10 * i;
    trace = (bt_policy_trace_t){.scores = scores, .cap = 8};
    f.req.trace = &trace;
    return 0;
}

static int close_fleet(void **state)
{
    fleet_fini(&f);
    return 0;
}

#define DONE " return { prefill = view.prefill[1], decode = view.decode[1] }"

static double score_of(uint64_t worker)
{
    for (unsigned i = 0; i < trace.count; i++)
        if (trace.scores[i].worker == worker)
            return trace.scores[i].score;
    return NAN;
}

static void test_least_and_most(void **state)
{
    plan_once(&f, POLICY("baton.argmin(view.prefill, 'prefill_tokens', 'requests')" DONE));
    assert_int_equal(trace.count, 3);
    assert_true(score_of(1) == 0 && score_of(2) == 10 && score_of(3) == 20);
    plan_once(&f, POLICY("baton.argmax(view.prefill, 'prefill_tokens')" DONE));
    assert_int_equal(trace.count, 3); /* the last one counts, once */
    assert_true(score_of(1) == 0 && !signbit(score_of(1)) && score_of(3) == 20);
}

static void test_sums(void **state)
{
    plan_once(&f, POLICY("baton.argmin_sum(view.prefill, 'prefill_tokens', 2, 'id', 1)" DONE));
    assert_true(score_of(1) == 1 && score_of(2) == 22 && score_of(3) == 43);
    plan_once(&f, POLICY("baton.argmax_sum(view.prefill, 'prefill_tokens', 1, 'id', -1)" DONE));
    assert_true(score_of(1) == -1 && score_of(2) == 8 && score_of(3) == 17);
}

static void test_what_is_not_known_has_no_score(void **state)
{
    plan_once(&f, POLICY("baton.argmin(view.prefill, 'waiting')" DONE));
    assert_int_equal(trace.count, 0);
}

static void test_only_the_drawn_ones(void **state)
{
    plan_once(&f, POLICY("baton.power_of_k(view.prefill, 2, 'prefill_tokens')" DONE));
    assert_int_equal(trace.count, 2);
}

static void test_hashes(void **state)
{
    plan_once(&f, POLICY("local w = baton.rendezvous(view.prefill, 'k')\n"
                         "ctx.state.id = w.id"
                         " return { prefill = w, decode = view.decode[1] }"));
    assert_int_equal(trace.count, 3);
    for (uint64_t id = 1; id <= 3; id++)
        assert_true(score_of(id) >= 0 && score_of(id) < 1);
    const bt_choice_t choice =
        plan_once(&f, POLICY("return { prefill = baton.bounded_hash(view.prefill, 'k', 99),"
                             " decode = view.decode[1] }"));
    for (uint64_t id = 1; id <= 3; id++)
        assert_true(score_of(id) <= score_of(choice.first.prefill->id));
}

static void test_by_hand(void **state)
{
    plan_once(&f, POLICY("assert(baton.note_score(view.decode[2], 7) == nil)"
                         " baton.note_score(view.decode[2], 8.5)"
                         " baton.note_score(view.decode[1], 0/0)"
                         " baton.note_score(view.decode[1], 1/0)" DONE));
    assert_int_equal(trace.count, 1);
    assert_true(score_of(5) == 8.5);
}

static void test_no_more_than_there_is_room(void **state)
{
    trace.cap = 2;
    plan_once(&f, POLICY("baton.argmin(view.prefill, 'id') baton.argmin(view.decode, 'id')"
                         " baton.note_score(view.prefill[2], 99)" DONE));
    assert_int_equal(trace.count, 2);
    assert_true(score_of(1) == 1 && score_of(2) == 99);
    trace.cap = trace.count = 0;
    trace.scores = NULL;
    plan_once(&f,
              POLICY("baton.argmin(view.prefill, 'id') baton.note_score(view.prefill[1], 1)" DONE));
    assert_int_equal(trace.count, 0);
}

static void test_nobody_traces(void **state)
{
    f.req.trace = NULL;
    plan_once(&f, POLICY("baton.argmin(view.prefill, 'id') baton.note_score(view.prefill[1], 1)"
                         " baton.rendezvous(view.prefill, 'k')" DONE));
    assert_int_equal(trace.count, 0);
    assert_plan_fails(&f, POLICY("baton.note_score(1, 2)"), "a worker is expected");
    assert_plan_fails(&f, POLICY("baton.note_score(view.prefill[1])"), "number expected");
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, open_fleet, close_fleet)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_least_and_most),
        CASE(test_sums),
        CASE(test_what_is_not_known_has_no_score),
        CASE(test_only_the_drawn_ones),
        CASE(test_hashes),
        CASE(test_by_hand),
        CASE(test_no_more_than_there_is_room),
        CASE(test_nobody_traces),
    };
    return cmocka_run_group_tests(tests, set_wide_budgets, NULL);
}
