/* Engines that take the other role: when they may, what becomes of what is on them, and the gateway's own advice. */
#include "help.h"

static const char *policy = policy_file;

static void run(unsigned prefills, unsigned decodes, const char *switches, const char *fail)
{
    bt_sim_failure_t failures[BT_SIM_FAILURES_MAX];
    bt_sim_switch_t list[BT_SIM_SWITCHES_MAX];
    bt_sim_setup_t setup = {.policy = policy,
                            .model = &model,
                            .trace = &trace,
                            .prefills = prefills,
                            .decodes = decodes,
                            .failures = failures,
                            .switches = list,
                            .follows_advice = switches == NULL,
                            .lease_s = 30,
                            .seed = 1};
    char err[256] = "";

    assert_int_equal(bt_sim_failures_read(fail, prefills, decodes, 0, failures,
                                          &setup.failure_count, err, sizeof err),
                     0);
    if (switches != NULL)
        assert_int_equal(bt_sim_switches_read(switches, prefills, decodes, list,
                                              &setup.switch_count, err, sizeof err),
                         0);
    if (bt_sim_run(&setup, out) != 0)
        fail_msg("%s", out->err);
    assert_int_equal(out->policy_errors, 0);
}

/* p0 is emptied first: its prompt is done 42 ms after it came, and its KV has gone 32 ms later. */
static void test_what_runs_is_finished_first(void **state)
{
    const bt_sim_switch_result_t *s = &out->switches[0];

    ask(0, 32, 4, 1);
    ask(0.02, 32, 4, 11); /* is for p1 already */
    ask(2, 32, 4, 21);
    run(2, 1, "p0@0.01", "");
    assert_string_equal(s->name, "p0");
    assert_false(s->is_to_prefill);
    near(0.01, s->asked_s);
    near(1.11, s->done_s); /* looked at after 60 and 110 ms, and a second */
    near(42 + 32 + 6, (double) out->results[0].ttft_ms);
    assert_true(out->engines[1].prompt_tokens == 64); /* p1 has had the other two */
    for (unsigned i = 0; i < 3; i++)
        assert_true(out->results[i].is_served);
}

/* Nothing is on d0 when it is asked, but KV comes to it before it has changed: 600 ms long, from 704 ms on. */
static void test_what_comes_meanwhile_is_finished(void **state)
{
    ask(0, 600, 4, 1);
    ask(5, 600, 4, 101);
    run(1, 2, "d0@0.01", "p0@4");
    near(2.36, out->switches[0].done_s); /* looked at every 50 ms from 1.06 on, and a second */
    near(600 + 10 * 10 + 600 + 4 * 6, (double) out->results[0].total_ms);
    assert_true(out->results[1].is_served);
    assert_int_equal(out->engines[1].prompt_tokens, 600);
}

/* d0 is a prefill when the KV of a decode's comes that it was planned for: it has no room until its own prompt's KV has gone, at 1505 ms. */
static void test_what_awaits_room_goes_on_in_its_new_role(void **state)
{
    ask(0, 960, 4, 1);
    ask(1.065, 200, 4, 101);
    ask(5, 16, 4, 121);
    policy = "round_robin";
    run(1, 2, "d0@0.01", "");
    policy = policy_file;
    near(1.06, out->switches[0].done_s);
    near(440 + 4 * 6, (double) out->results[1].total_ms);
    near(1505 + 960 + 4 * 6, (double) out->results[0].total_ms);
}

/* d0 becomes the first prefill of the list, d1 is the only decode; what it had cached is gone, and it is there for prompts. */
static void test_it_serves_in_its_new_role(void **state)
{
    ask(0, 32, 4, 1);
    ask(3, 32, 4, 1);
    run(1, 2, "d0@1", "p0@2");
    near(2.05, out->switches[0].done_s);
    assert_true(out->switches[0].is_to_prefill);
    assert_true(out->results[1].is_served);
    assert_int_equal(out->results[1].cached, 0);
    assert_int_equal(out->engines[1].prompt_tokens, 32);
}

static void test_the_last_of_a_role_stays(void **state)
{
    ask(0, 32, 4, 1);
    ask(5, 32, 4, 1);
    run(1, 2, "p0@1,d0@2,d1@4", "");
    assert_int_equal(out->switch_count, 3);
    near(-1, out->switches[0].done_s);
    near(3.05, out->switches[1].done_s);
    near(-1, out->switches[2].done_s);
    assert_true(out->results[1].is_served);
}

static void test_a_dead_one_stays_as_it_is(void **state)
{
    ask(0, 32, 4, 1);
    ask(30, 32, 4, 1);
    run(1, 2, "d0@1", "d0@1.5-4");
    near(-1, out->switches[0].done_s);
    assert_true(out->results[1].is_served);
}

/* Prompts that two prefills could compute and one cannot, beside three decodes that are idle for the most part. */
static void test_advice_that_stays_is_followed(void **state)
{
    enum { MANY = 2400 };
    bt_sim_request_t *many = calloc(MANY, sizeof *many);
    bt_sim_outcome_t *small = out;

    out = calloc(1, BT_SIM_OUTCOME_BYTES(MANY));
    assert_true(many != NULL && out != NULL);
    for (unsigned i = 0; i < MANY; i++)
        many[i] = (bt_sim_request_t){.at_s = 0.1 * i, .input = 62, .output = 2};
    trace.requests = many;
    trace.count = MANY;
    model.link_gb_s = 1000;
    run(1, 3, NULL, "");
    model.link_gb_s = 1;
    assert_int_equal(out->switch_count, 1);
    assert_true(out->switches[0].is_to_prefill);
    assert_true(out->switches[0].asked_s > 179 && out->switches[0].asked_s < 181); /* three looks */
    assert_true(out->switches[0].done_s > 0);
    free(out);
    free(many);
    out = small;
}

static void test_what_cannot_be_is_refused(void **state)
{
    static const char *const wrong[] = {"p2@1", "w0@1",   "p0",        "p0@",
                                        "p0@x", "p0@1-2", "prefill@1", "p0@inf"};
    bt_sim_switch_t list[BT_SIM_SWITCHES_MAX];
    char err[256];
    unsigned count;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err[0] = '\0';
        assert_true(bt_sim_switches_read(wrong[i], 2, 2, list, &count, err, sizeof err) < 0);
        assert_non_null(strstr(err, "--switch: "));
    }
    assert_int_equal(bt_sim_switches_read("p1@2,d0@1.5", 2, 2, list, &count, err, sizeof err), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[1].engine, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_runs_is_finished_first, begin, end),
        cmocka_unit_test_setup_teardown(test_what_comes_meanwhile_is_finished, begin, end),
        cmocka_unit_test_setup_teardown(test_what_awaits_room_goes_on_in_its_new_role, begin, end),
        cmocka_unit_test_setup_teardown(test_it_serves_in_its_new_role, begin, end),
        cmocka_unit_test_setup_teardown(test_the_last_of_a_role_stays, begin, end),
        cmocka_unit_test_setup_teardown(test_a_dead_one_stays_as_it_is, begin, end),
        cmocka_unit_test_setup_teardown(test_advice_that_stays_is_followed, begin, end),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_is_refused, begin, end)};

    return cmocka_run_group_tests(tests, write_policy, remove_policy);
}
