/* The line before the pool: who is called when, and who is not. One engine and one place; times can be said beforehand, as in sim_test.c: a prompt of
 * 16 tokens takes 26 ms, of 32 42 ms, of 48 58 ms. */
#include "help.h"

/* A session is a share of its own; 7 has 30 ms, 8 says what it costs. */
static const char enqueueing[] =
    "local class = { [16] = \"high\", [48] = \"low\" }\n"
    "return { api = 2, name = \"first\", version = \"1\",\n"
    "  enqueue = function(req)\n"
    "    return { class = class[req.prompt_tokens], key = req.session,\n"
    "      timeout_ms = req.session == \"s7\" and 30 or nil,\n"
    "      cost = req.session == \"s8\" and 330 or nil }\n"
    "  end,\n"
    "  plan = function(_, view) return { kind = \"single\", worker = view.hybrid[1] } end }\n";

static bt_sim_queue_setup_t line;

static int begin_line(void **state)
{
    line = (bt_sim_queue_setup_t){.places = 1, .size = 8, .timeout_ms = 60000, .aging_ms = 30000};
    return begin(state);
}

/* Answers have one token, blocks are nobody else's. */
static void come(double at_ms, uint32_t input, unsigned session)
{
    ask(at_ms / 1000, input, 1, 1 + 10 * trace.count);
    requests[trace.count - 1].session = session;
}

static void run(void)
{
    const bt_sim_setup_t setup = {.policy = policy_file,
                                  .model = &model,
                                  .trace = &trace,
                                  .hybrids = 1,
                                  .queue = line,
                                  .seed = 1};

    if (bt_sim_run(&setup, out) != 0)
        fail_msg("%s", out->err);
    assert_int_equal(out->policy_errors, 0);
}

static void ended_at(unsigned request, double ms)
{
    assert_true(out->results[request].is_served);
    near(ms,
         1000 * (double) out->results[request].came_s + (double) out->results[request].total_ms);
}

static void refused(unsigned request)
{
    assert_false(out->results[request].is_served || out->results[request].is_failed);
}

static void test_classes(void **state)
{
    const bt_sim_class_result_t *low = &out->classes[BT_FAIR_LOW];

    come(0, 32, 0);
    come(1, 48, 0);
    come(2, 32, 0);
    come(3, 16, 0);
    run();
    ended_at(0, 42);
    ended_at(3, 42 + 26);
    ended_at(2, 42 + 26 + 42);
    ended_at(1, 42 + 26 + 42 + 58);
    assert_int_equal(out->classes[BT_FAIR_NORMAL].at_once, 1);
    assert_int_equal(low->ends[BT_QUEUE_CALLED], 1);
    near(109, 1000 * low->waited_s);
    near(109, 1000 * low->most_s);
    assert_int_equal(low->predicted, 0); /* nobody had been called when it came */
}

/* After 60 ms the low one is before those that came later, though they are normal. */
static void test_ageing(void **state)
{
    line.aging_ms = 60;
    come(0, 32, 0);
    come(1, 48, 0);
    come(2, 32, 0);
    come(3, 32, 0);
    run();
    ended_at(2, 42 + 42);
    ended_at(1, 42 + 42 + 58);
    ended_at(3, 42 + 42 + 58 + 42);
}

/* Of two keys each has a turn; one that costs ten times as much has it later. */
static void test_shares(void **state)
{
    come(0, 32, 0);
    come(1, 32, 1);
    come(1, 32, 1);
    come(1, 32, 2);
    come(1, 32, 8);
    run();
    ended_at(1, 84);
    ended_at(3, 126);
    ended_at(2, 168);
    ended_at(4, 210);
}

static void test_a_full_line(void **state)
{
    line.size = 1;
    come(0, 32, 0);
    come(1, 32, 0);
    come(2, 48, 0); /* there is no room */
    come(3, 16, 0); /* takes the normal one's */
    run();
    ended_at(3, 68);
    refused(1);
    refused(2);
    assert_int_equal(out->classes[BT_FAIR_NORMAL].ends[BT_QUEUE_PUT_OUT], 1);
    assert_int_equal(out->classes[BT_FAIR_LOW].ends[BT_QUEUE_FULL], 1);
}

static void test_a_wait_ends(void **state)
{
    come(0, 32, 0);
    come(1, 32, 7); /* until 31 ms */
    come(14, 32, 7);
    run();
    refused(1);
    ended_at(2, 84);
    assert_int_equal(out->classes[BT_FAIR_NORMAL].ends[BT_QUEUE_TIMEOUT], 1);
}

/* Four have been called, 42 ms each: who would have 30 ms and stands behind another is told at once, and who is first waits. */
static void test_a_wait_that_would_be_too_long(void **state)
{
    const bt_sim_class_result_t *normal = &out->classes[BT_FAIR_NORMAL];

    for (unsigned i = 0; i < 5; i++)
        come(0, 32, 0);
    come(170, 32, 0);
    come(171, 32, 7);
    come(211, 32, 7);
    run();
    ended_at(5, 252);
    refused(6);
    assert_int_equal(normal->ends[BT_QUEUE_TOO_LONG], 1);
    assert_int_equal(normal->ends[BT_QUEUE_TIMEOUT], 1);
    assert_int_equal(normal->predicted, 1);
    near(42 - 40, 1000 * normal->error_s); /* it waited 40 ms, and 42 were predicted */
}

/* No --queue-size: whoever finds no place is refused. And where there is no limit, there is no line. */
static void test_no_line(void **state)
{
    line.size = 0;
    come(0, 32, 0);
    come(1, 16, 0);
    run();
    assert_false(out->results[1].is_served);
    assert_int_equal(out->classes[BT_FAIR_HIGH].ends[BT_QUEUE_FULL], 1);
    line.places = 0;
    run();
    assert_true(out->results[1].is_served);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_classes, begin_line, end),
        cmocka_unit_test_setup_teardown(test_ageing, begin_line, end),
        cmocka_unit_test_setup_teardown(test_shares, begin_line, end),
        cmocka_unit_test_setup_teardown(test_a_full_line, begin_line, end),
        cmocka_unit_test_setup_teardown(test_a_wait_ends, begin_line, end),
        cmocka_unit_test_setup_teardown(test_a_wait_that_would_be_too_long, begin_line, end),
        cmocka_unit_test_setup_teardown(test_no_line, begin_line, end)};

    policy_text = enqueueing;
    return cmocka_run_group_tests(tests, write_policy, remove_policy);
}
