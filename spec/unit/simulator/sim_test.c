/* Runs whose times can be said beforehand: steps of round lengths, one request or two. */
#include "simulator/sim.h"

#include "simulator/ceiling.h"
#include "simulator/stats.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#define REQUESTS 4

/* A prefill step: 10 ms and 1 ms a token; a decode step: 5 ms and 1 ms a running answer. A transfer: 1 ms a token. */
static bt_sim_model_t model = {.prefill_ms = {10, 1, 0},
                               .decode_ms = {5, 1, 0, 0, 0},
                               .min_step_ms = 1,
                               .max_batched_tokens = 64,
                               .max_seqs = 2,
                               .kv_tokens = 1024,
                               .kv_bytes_per_token = 1e6,
                               .link_gb_s = 1,
                               .gpus = 4,
                               .gpu_hour_cost = 1800};

static bt_sim_outcome_t *out;
static bt_sim_request_t requests[REQUESTS];
static uint64_t blocks[256];
static bt_sim_trace_t trace;

static int begin(void **state)
{
    out = calloc(1, BT_SIM_OUTCOME_BYTES(REQUESTS));
    trace = (bt_sim_trace_t){
        .requests = requests, .blocks = blocks, .block_tokens = 16, .has_prefixes = true};
    return out != NULL ? 0 : -1;
}

static int end(void **state)
{
    free(out);
    return 0;
}

/* first: of its blocks' ids, which follow one another. */
static void ask(double at_s, uint32_t input, uint32_t output, uint64_t first)
{
    bt_sim_request_t *r = &requests[trace.count++];

    *r = (bt_sim_request_t){.at_s = at_s,
                            .input = input,
                            .output = output,
                            .block_count = (input + 15) / 16,
                            .first_block = trace.block_count};
    for (uint32_t b = 0; b < r->block_count; b++)
        blocks[trace.block_count++] = first + b;
}

static bool preempts;

static void run(unsigned prefills, unsigned decodes, unsigned hybrids)
{
    const bt_sim_setup_t setup = {.policy = "round_robin",
                                  .model = &model,
                                  .trace = &trace,
                                  .prefills = prefills,
                                  .decodes = decodes,
                                  .hybrids = hybrids,
                                  .preempts = preempts,
                                  .seed = 1};

    assert_int_equal(bt_sim_run(&setup, out), 0);
    assert_int_equal(out->policy_errors, 0);
}

static void near(double expected, double got)
{
    if (fabs(expected - got) > 0.01)
        fail_msg("expected %.3f, got %.3f", expected, got);
}

static void test_alone(void **state)
{
    ask(0, 32, 4, 1);
    run(0, 0, 1);
    near(42, (double) out->results[0].ttft_ms); /* 10 + 32 */
    near(6, (double) out->results[0].tpot_ms);  /* 5 + 1 */
    near(42 + 3 * 6, (double) out->results[0].total_ms);
}

/* What has one token leaves nothing behind: neither KV nor load that makes later steps longer. */
static void test_one_token_leaves_nothing(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        ask(i, 32, 1, 1 + 10 * i);
    ask(3, 32, 3, 41);
    model.decode_ms[2] = 0.01; /* a token of KV */
    run(0, 0, 1);
    model.decode_ms[2] = 0;
    near(42, (double) out->results[0].total_ms);
    near(42 + 6.32 + 6.33, (double) out->results[3].total_ms);
    assert_true(fabs(3 + 0.05465 - out->virtual_s) < 1e-6); /* to its end, and no further */
}

static void test_a_pair(void **state)
{
    ask(0, 32, 4, 1);
    run(1, 1, 0);
    near(42 + 32 + 6, (double) out->results[0].ttft_ms); /* prefill, transfer, a step */
    near(42 + 32 + 4 * 6, (double) out->results[0].total_ms);
}

/* Four blocks, and two answers that need three each in the end. */
static void run_short_of_kv(unsigned prefills, unsigned decodes, unsigned hybrids, bool may_preempt)
{
    model.kv_tokens = 64;
    preempts = may_preempt;
    run(prefills, decodes, hybrids);
    preempts = false;
    model.kv_tokens = 1024;
}

static void test_the_youngest_is_preempted(void **state)
{
    ask(0, 16, 20, 1);
    ask(0, 16, 20, 11);
    run_short_of_kv(0, 0, 1, true);
    near(26, (double) out->results[0].ttft_ms);
    near(26 + 32, (double) out->results[1].ttft_ms); /* beside the first's first step */
    /* Both make 15 tokens more; then the first needs its third block, and makes its last three alone. */
    near(58 + 15 * 7 + 3 * 6, (double) out->results[0].total_ms);
    /* The second is computed again, prompt and 15 tokens, and has 4 left. */
    near(58 + 15 * 7 + 3 * 6 + 41 + 4 * 6, (double) out->results[1].total_ms);
    assert_int_equal(out->engines[0].preempted, 1);
    assert_int_equal(out->engines[0].recomputed_tokens, 31);
    assert_int_equal(out->engines[0].prompt_tokens, 32);
    run_short_of_kv(0, 0, 1, false); /* one after the other */
    near(26 + 19 * 6 + 26, (double) out->results[1].ttft_ms);
    assert_int_equal(out->engines[0].preempted, 0);
}

/* The same where prefill and decode are two: its KV comes once. */
static void test_a_pairs_answer_is_preempted(void **state)
{
    ask(0, 16, 20, 1);
    ask(0, 16, 20, 11);
    run_short_of_kv(1, 1, 0, true);
    assert_true(out->results[0].is_served && out->results[1].is_served);
    assert_int_equal(out->engines[0].preempted, 0);
    assert_int_equal(out->engines[0].prompt_tokens, 32);
    assert_int_equal(out->engines[1].preempted, 1);
    assert_int_equal(out->engines[1].prompt_tokens, 0);
}

/* Of a prompt that is preempted half-way only what was computed is a prefix when it is let in again. */
static void test_a_preempted_prompt_is_computed_whole(void **state)
{
    ask(0, 16, 40, 1);
    ask(0.21, 208, 1, 101);
    model.kv_tokens = 256;
    preempts = true;
    run(0, 0, 1);
    preempts = false;
    model.kv_tokens = 1024;
    /* At 212 ms a step of 63 tokens begins. Then the first needs a fourth block, and makes its last 7 alone. */
    const double end_ms = 26 + 31 * 6 + (6 + 10 + 63) + 7 * 6;
    near(end_ms, (double) out->results[0].total_ms);
    /* Three blocks of the 63 are a prefix: 160 tokens in three steps. */
    near(end_ms - 210 + 3 * 10 + 160, (double) out->results[1].total_ms);
    assert_int_equal(out->engines[0].preempted, 1);
    assert_int_equal(out->engines[0].recomputed_tokens, 15);
}

static uint64_t endless(void)
{
    uint64_t tokens = 0;

    assert_int_equal(bt_sim_ceiling_best(&trace, BT_SIM_ENDLESS, &tokens), 0);
    return tokens;
}

static void test_chunks_and_a_cached_beginning(void **state)
{
    ask(0, 100, 1, 1);  /* 64 tokens, then 36 */
    ask(10, 100, 1, 1); /* 96 are cached: 4 */
    ask(20, 96, 1, 1);  /* all are, and the block of the last token is computed again */
    run(0, 0, 1);
    near(74 + 46, (double) out->results[0].ttft_ms);
    near(14, (double) out->results[1].ttft_ms);
    near(26, (double) out->results[2].ttft_ms);
    assert_int_equal(out->results[1].cached, 96);
    assert_int_equal(out->results[2].cached, 80);
    assert_int_equal(endless(), 96 + 80);
}

/* Nobody has more than max_seqs: the second joins what the first has begun, the third waits for an end. */
static void test_a_batch_is_bounded(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        ask(0, 16, 3, 1 + 10 * i);
    run(0, 0, 1);
    near(26, (double) out->results[0].ttft_ms);              /* 10 + 16 */
    near(26 + 26 + 6, (double) out->results[1].ttft_ms);     /* beside a token of the first */
    near((32 + 7) / 2.0, (double) out->results[0].tpot_ms);  /* that step, and one of two */
    near(58 + 7 + 26 + 6, (double) out->results[2].ttft_ms); /* when the first has ended */
}

/* What goes from one prefill to two decodes goes one after the other. */
static void test_links_are_shared(void **state)
{
    ask(0, 16, 1, 1);
    ask(0.001, 16, 1, 11); /* these two are in one step, from 26 to 68 ms */
    ask(0.001, 16, 1, 21);
    run(1, 2, 0);
    near(26 + 16 + 6, (double) out->results[0].ttft_ms);
    near(68 + 16 + 6 - 1, (double) out->results[1].ttft_ms);
    near(68 + 32 + 6 - 1, (double) out->results[2].ttft_ms);
}

static void test_what_never_fits_is_refused(void **state)
{
    ask(0, 2000, 1, 1);
    requests[0].block_count = 0; /* prefixes do not matter */
    ask(0, 16, 1, 1);
    run(1, 1, 0);
    assert_false(out->results[0].is_served);
    assert_true(out->results[1].is_served);
}

static void test_summary_and_comparison(void **state)
{
    bt_sim_outcome_t *other = calloc(1, BT_SIM_OUTCOME_BYTES(REQUESTS));
    const bt_sim_slo_t slo = {.ttft_ms = 50, .tpot_ms = 10};
    bt_sim_summary_t s;
    bt_sim_difference_t d;

    assert_non_null(other);
    ask(0, 32, 4, 1);
    ask(1, 32, 4, 21);
    ask(2, 100, 1, 31);
    run(0, 0, 1);
    assert_int_equal(bt_sim_summarise(out, &trace, &model, endless(), &slo, &s), 0);
    assert_int_equal(s.good, 2);
    assert_int_equal(s.served, 3);
    near(42, s.ttft_ms.p50);
    near(120, s.ttft_ms.p99);
    near(6, s.tpot_ms.p50);
    assert_int_equal(s.wasted_prefill_tokens, 100);
    near(2.120 * 4, s.gpu_s); /* to the last answer */
    near(2.120 * 4 / 2, s.gpu_s_per_good);
    near(2.120 * 4 * 0.5, s.cost);
    memcpy(other, out, BT_SIM_OUTCOME_BYTES(REQUESTS));
    for (unsigned i = 0; i < 3; i++)
        other->results[i].ttft_ms += 5;
    assert_int_equal(bt_sim_compare(out, other, &trace, &slo, BT_SIM_TTFT, &d), 0);
    near(5, d.mean);
    near(5, d.low);
    near(5, d.high);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_one_token_leaves_nothing, begin, end),
        cmocka_unit_test_setup_teardown(test_a_pair, begin, end),
        cmocka_unit_test_setup_teardown(test_the_youngest_is_preempted, begin, end),
        cmocka_unit_test_setup_teardown(test_a_pairs_answer_is_preempted, begin, end),
        cmocka_unit_test_setup_teardown(test_a_preempted_prompt_is_computed_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_chunks_and_a_cached_beginning, begin, end),
        cmocka_unit_test_setup_teardown(test_a_batch_is_bounded, begin, end),
        cmocka_unit_test_setup_teardown(test_links_are_shared, begin, end),
        cmocka_unit_test_setup_teardown(test_what_never_fits_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_summary_and_comparison, begin, end)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
