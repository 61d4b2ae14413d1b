/* Engines that die and come back: whose attempt fails, who serves instead, and when the gateway knows. Times can be said beforehand, as in
 * sim_test.c. */
#include "simulator/stats.h"

#include "help.h"

/* The first of each list serves. */
static void run(unsigned prefills, unsigned decodes, unsigned hybrids, const char *fail)
{
    bt_sim_failure_t list[BT_SIM_FAILURES_MAX];
    bt_sim_setup_t setup = {.policy = policy_file,
                            .model = &model,
                            .trace = &trace,
                            .prefills = prefills,
                            .decodes = decodes,
                            .hybrids = hybrids,
                            .failures = list,
                            .lease_s = 30,
                            .seed = 1};
    char err[256] = "";

    assert_int_equal(bt_sim_failures_read(fail, prefills, decodes, hybrids, list,
                                          &setup.failure_count, err, sizeof err),
                     0);
    if (bt_sim_run(&setup, out) != 0)
        fail_msg("%s", out->err);
    assert_int_equal(out->policy_errors, 0);
}

static void test_a_prompt_is_computed_elsewhere(void **state)
{
    const bt_sim_failure_result_t *f = &out->failures[0];

    ask(0, 32, 4, 1);
    run(2, 1, 0, "p0@0.02");
    near(20 + 42 + 32 + 6, (double) out->results[0].ttft_ms);
    assert_int_equal(out->results[0].attempts, 2);
    assert_true(out->results[0].is_served);
    assert_string_equal(f->name, "p0");
    assert_int_equal(f->lost, 1);
    assert_int_equal(f->retried, 1);
    assert_int_equal(f->failed, 0);
    near(5, f->known_s); /* nobody was refused: the next check is the first to know */
    near(-1, f->usable_s);
}

/* Who is sent to it before the gateway knows costs an attempt, and makes it known. */
static void test_a_refused_connection_makes_it_known(void **state)
{
    const bt_sim_failure_result_t *f = &out->failures[0];

    for (unsigned i = 0; i < 4; i++)
        ask(1 + i, 32, 4, 1 + 10 * i);
    run(2, 1, 0, "prefill@0.5-0.6,p0@0.7");
    f++; /* p1, which is back before anybody has seen that it was gone */
    assert_string_equal(f->name, "p1");
    near(-1, f->known_s);
    f++;
    assert_string_equal(f->name, "p0");
    assert_int_equal(f->refused, 1);
    near(1, f->known_s);
    for (unsigned i = 0; i < 4; i++) {
        near(42 + 32 + 6, (double) out->results[i].ttft_ms);
        assert_int_equal(out->results[i].attempts, i == 0 ? 2 : 1);
    }
}

/* Nobody is asked for a pair of p1 and no decode; run() sees that the policy has made no mistake. */
static void test_no_decode_is_left(void **state)
{
    ask(0, 32, 4, 1);
    run(2, 1, 0, "d0@0.07");
    assert_true(out->results[0].is_failed);
    assert_int_equal(out->failures[0].lost, 1);
}

static void test_an_answer_that_has_begun_fails(void **state)
{
    const bt_sim_slo_t slo = {.ttft_ms = 2000, .tpot_ms = 100};
    bt_sim_summary_t s;

    ask(0, 32, 8, 1);
    ask(1, 32, 8, 1);
    run(1, 2, 0, "d0@0.09");
    assert_false(out->results[0].is_served);
    assert_true(out->results[0].is_failed);
    assert_int_equal(out->results[0].attempts, 1);
    assert_int_equal(out->failures[0].failed, 1);
    assert_true(out->results[1].is_served);
    assert_int_equal(bt_sim_summarise(out, &trace, &model, 1, &slo, &s), 0);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.good, 1);
}

/* Prefill keeps for the dead decode what nobody will fetch, until its lease ends: 3 of 5 blocks, and the next prompt needs 4. */
static void test_kv_is_kept_until_its_lease_ends(void **state)
{
    model.kv_tokens = 80;
    ask(0, 48, 1, 1);
    ask(1, 64, 1, 11);
    run(1, 2, 0, "d0@0.08");
    model.kv_tokens = 1024;
    assert_int_equal(out->results[0].attempts, 2);
    near(80 + 26 + 48 + 6, (double) out->results[0].ttft_ms); /* its blocks were there still */
    near(30080 - 1000 + 74 + 64 + 6, (double) out->results[1].ttft_ms);
}

/* A decode that refuses has not heard of the prompt: prefill's work is for another one. */
static void test_another_decode_takes_a_finished_prefill(void **state)
{
    ask(0.1, 32, 4, 1);
    run(1, 2, 0, "d0@0.05");
    near(42 + 32 + 6, (double) out->results[0].ttft_ms);
    assert_int_equal(out->results[0].attempts, 2);
    assert_int_equal(out->engines[0].prompt_tokens, 32);
    assert_int_equal(out->failures[0].refused, 1);
}

static void test_kv_in_transit_dies_with_prefill(void **state)
{
    ask(0, 32, 1, 1);
    run(2, 2, 0, "p0@0.06");
    assert_int_equal(out->results[0].attempts,
                     3); /* of another decode p0 is asked once more, and refuses */
    near(60 + 42 + 32 + 6, (double) out->results[0].ttft_ms);
    assert_true(out->results[0].is_served);
}

/* d0 has held blocks for it, and got nothing: the same prompt's KV comes there whole. */
static void test_kv_that_never_came_is_no_prefix(void **state)
{
    (void) state;
    ask(0, 32, 1, 1);
    ask(1, 32, 1, 1);
    run(2, 2, 0, "p0@0.06-0.07");
    assert_true(out->results[0].is_served);
    near(26 + 32 + 6, (double) out->results[1].ttft_ms); /* at p1, which has its beginning */
}

static void test_it_comes_back_empty(void **state)
{
    const bt_sim_failure_result_t *f = &out->failures[0];

    ask(0, 32, 1, 1);
    ask(1, 32, 1, 1);   /* refused, and there is nobody else */
    ask(3.5, 32, 1, 1); /* it is there, and has given one good answer of two */
    ask(5, 32, 1, 1);
    ask(6, 32, 1, 1);
    run(0, 0, 1, "w0@0.5-3");
    near(1, f->known_s);
    near(4, f->usable_s);
    assert_int_equal(f->failed, 2);
    assert_true(out->results[1].is_failed);
    assert_true(out->results[2].is_failed);
    assert_int_equal(out->results[3].cached, 0);
    assert_int_equal(out->results[4].cached, 16);
}

/* Five resets open its breaker: a worker that is back the next moment gets one request, as a probe, until that one has ended. */
static void test_a_breaker_opens(void **state)
{
    model.max_seqs = 8;
    for (unsigned i = 0; i < 6; i++)
        ask(0, 16, 4, 1 + 10 * i);
    ask(1, 16, 4, 101);
    run(0, 0, 1, "w0@0.005-0.006");
    model.max_seqs = 2;
    for (unsigned i = 0; i < 6; i++)
        assert_true(out->results[i].is_failed); /* the only one was tried */
    assert_true(out->results[6].is_failed);     /* and is out for ten seconds */
    near(-1, out->failures[0].known_s);
}

/* Three checks that are not answered within 2 s, at 5, 10 and 15 s: until then requests are sent there, and wait. */
static void test_a_silent_host_is_found_by_checks(void **state)
{
    const bt_sim_failure_result_t *f = &out->failures[0];

    (void) state;
    ask(0, 32, 4, 1);
    ask(6, 32, 4, 11);
    ask(18, 32, 4, 21);
    run(2, 1, 0, "silent:p0@0.02-40");
    near(17000 + 42 + 32 + 6, (double) out->results[0].ttft_ms);
    near(11000 + 42 + 42 + 32 + 6, (double) out->results[1].ttft_ms); /* behind the first */
    near(42 + 32 + 6, (double) out->results[2].ttft_ms);
    assert_int_equal(out->results[0].attempts, 2);
    assert_int_equal(out->results[2].attempts, 1);
    assert_int_equal(f->lost, 2);
    assert_int_equal(f->refused, 0);
    near(17, f->known_s);
    near(41, f->usable_s);
}

/* An answer stands still, and so does KV that is on its way. What has begun is not begun again. */
static void test_a_silent_decode(void **state)
{
    (void) state;
    ask(0, 32, 8, 1);
    ask(0.06, 32, 8, 11);
    run(1, 2, 0, "silent:d0@0.11");
    assert_true(out->results[0].is_failed);
    assert_int_equal(out->results[0].attempts, 1);
    assert_true(out->results[1].is_served);
    assert_int_equal(out->results[1].attempts, 2);
    near(17000 - 60 + 26 + 32 + 6,
         (double) out->results[1].ttft_ms); /* prefill has its beginning */
    assert_int_equal(out->failures[0].lost, 2);
}

static void test_kv_of_a_silent_prefill_does_not_come(void **state)
{
    (void) state;
    ask(0, 32, 1, 1);
    run(2, 2, 0, "silent:p0@0.06");
    near(17000 + 42 + 32 + 6, (double) out->results[0].ttft_ms);
    assert_true(out->results[0].is_served);
}

/* Before anybody knows: what waited there hears of it then. */
static void test_a_silent_host_is_back(void **state)
{
    (void) state;
    ask(0, 32, 4, 1);
    ask(13, 32, 4, 11);
    run(2, 1, 0, "silent:p0@0.02-12");
    near(12000 + 42 + 32 + 6, (double) out->results[0].ttft_ms);
    near(42 + 32 + 6, (double) out->results[1].ttft_ms);
    near(-1, out->failures[0].known_s);
    assert_int_equal(out->failures[0].lost, 1);
}

static void test_recovery(void **state)
{
    const bt_sim_slo_t slo = {.ttft_ms = 50, .tpot_ms = 100};

    ask(1, 32, 1, 1);
    ask(11, 32, 1, 11);
    ask(21, 32, 1, 21);
    ask(31, 32, 1, 31);
    run(0, 0, 1, "w0@5-18");
    assert_true(out->results[1].is_failed);
    near(10, bt_sim_recovery_s(out, trace.count, &slo, 5)); /* from 15 to 25 s one came, in time */
    near(0, bt_sim_recovery_s(out, trace.count, &slo, 25)); /* what failed is no measure */
    near(-1, bt_sim_recovery_s(out, trace.count, &slo, 0.5));
}

static void test_what_cannot_be_is_refused(void **state)
{
    static const char *const wrong[] = {"p2@1",   "w0@1",     "x@1",     "p0",
                                        "p0@",    "p0@x",     "p0@9-3",  "p0@1-5,p0@3",
                                        "p0@inf", "p0@1-1e9", "silent:", "silent:p2@1"};
    bt_sim_failure_t list[BT_SIM_FAILURES_MAX];
    char err[256];
    unsigned count;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_true(bt_sim_failures_read(wrong[i], 2, 2, 0, list, &count, err, sizeof err) < 0);
        assert_non_null(strstr(err, "--fail: "));
    }
    assert_non_null(strstr(err, "--fail: silent:p2@1: there is no such engine"));
    assert_true(bt_sim_failures_read("decode@2", 2, 100, 0, list, &count, err, sizeof err) < 0);
    assert_int_equal(
        bt_sim_failures_read("silent:decode@2,p0@1-1.5", 2, 2, 0, list, &count, err, sizeof err),
        0);
    assert_int_equal(count, 3);
    assert_int_equal(list[0].engine, 0);
    assert_false(list[0].is_silent);
    assert_true(list[1].is_silent && list[2].is_silent);
    assert_int_equal(list[2].engine, 3);
    assert_true(isinf(list[2].until_s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_prompt_is_computed_elsewhere, begin, end),
        cmocka_unit_test_setup_teardown(test_a_refused_connection_makes_it_known, begin, end),
        cmocka_unit_test_setup_teardown(test_no_decode_is_left, begin, end),
        cmocka_unit_test_setup_teardown(test_an_answer_that_has_begun_fails, begin, end),
        cmocka_unit_test_setup_teardown(test_kv_is_kept_until_its_lease_ends, begin, end),
        cmocka_unit_test_setup_teardown(test_another_decode_takes_a_finished_prefill, begin, end),
        cmocka_unit_test_setup_teardown(test_kv_in_transit_dies_with_prefill, begin, end),
        cmocka_unit_test_setup_teardown(test_kv_that_never_came_is_no_prefix, begin, end),
        cmocka_unit_test_setup_teardown(test_it_comes_back_empty, begin, end),
        cmocka_unit_test_setup_teardown(test_a_breaker_opens, begin, end),
        cmocka_unit_test_setup_teardown(test_a_silent_host_is_found_by_checks, begin, end),
        cmocka_unit_test_setup_teardown(test_a_silent_decode, begin, end),
        cmocka_unit_test_setup_teardown(test_kv_of_a_silent_prefill_does_not_come, begin, end),
        cmocka_unit_test_setup_teardown(test_a_silent_host_is_back, begin, end),
        cmocka_unit_test_setup_teardown(test_recovery, begin, end),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_is_refused, begin, end)};

    return cmocka_run_group_tests(tests, write_policy, remove_policy);
}
