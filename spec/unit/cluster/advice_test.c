#include "cluster/ledger.h"
#include "cluster/roles/advisor.h"
#include "help.h"

#include <math.h>
#include <stdio.h>

static void near(double wanted, double got)
{
    if (fabs(wanted - got) > 0.005 * fabs(wanted) + 1e-9)
        fail_msg("%g instead of %g", got, wanted);
}

/* A minute, 200 requests of 1,000 tokens in and 100 out: prefill workers in use for `p` seconds in all, decode for `d`. */
static bt_advice_input_t minute(unsigned prefill, unsigned decode, double p, double d)
{
    return (bt_advice_input_t){
        .window_s = 60,
        .seen_s = 60,
        .prefill = {.workers = prefill,
                    .worker_s = 60 * prefill,
                    .used_s = p,
                    .requests = 200,
                    .tokens = 200000},
        .decode = {.workers = decode,
                   .worker_s = 60 * decode,
                   .used_s = d,
                   .requests = 200,
                   .tokens = 20000,
                   .latency_ms = 20,
                   .by = BT_ADVICE_BY_KV},
    };
}

static bt_advice_t advise(bt_advice_input_t in)
{
    bt_advice_t out;

    bt_advice_make(&in, &out);
    return out;
}

/* One prefill in use for 54 s, three decodes for 18 s in all: demands 0.9 and 0.3, 3 : 1. Now it takes 1 / 0.9 of the load,
 * as 3 and 1 it takes 3.33. */
static void names_prefill_and_the_split_that_fits_its_demand(void **state)
{
    const bt_advice_t a = advise(minute(1, 3, 54, 18));

    assert_int_equal(a.bottleneck, BT_BOTTLENECK_PREFILL);
    assert_int_equal(a.confidence, BT_CONFIDENCE_HIGH);
    near(0.9, a.prefill_used);
    near(0.1, a.decode_used);
    assert_int_equal(a.prefill, 3);
    assert_int_equal(a.decode, 1);
    near(3, a.gain);
    near(200000 / 54.0, a.prefill_rate);
    near(20000 / 18.0, a.decode_rate);
    near(270, a.service_ms);
    assert_int_equal(a.prefill_needed, 2); /* 0.9 / 0.8 */
    assert_int_equal(a.decode_needed, 1);
    assert_non_null(strstr(a.why, "3 prefill and 1 decode would take 3.0 times the load"));
}

/* Demands 0.4 and 2.8 of 4: the split of most capacity is 1 : 3, where it was 2 : 2. */
static void names_decode_and_keeps_one_worker_of_each_role(void **state)
{
    bt_advice_t a = advise(minute(2, 2, 24, 110));

    assert_int_equal(a.bottleneck, BT_BOTTLENECK_DECODE);
    assert_int_equal(a.prefill, 1);
    assert_int_equal(a.decode, 3);
    near(1.5, a.gain);
    a = advise(minute(3, 1, 1, 60));
    assert_int_equal(a.prefill, 1);
    assert_int_equal(a.decode, 3);
    a = advise(minute(1, 3, 60, 1));
    assert_int_equal(a.prefill, 3);
    assert_int_equal(a.decode, 1);
}

static void keeps_a_split_that_no_other_betters_by_a_tenth(void **state)
{
    bt_advice_t a = advise(minute(2, 2, 110, 100));

    assert_int_equal(a.bottleneck, BT_BOTTLENECK_BOTH);
    assert_int_equal(a.prefill, 2);
    near(1, a.gain);
    a = advise(minute(2, 2, 20, 24));
    assert_int_equal(a.bottleneck, BT_BOTTLENECK_NONE);
    a = advise(minute(1, 1, 60, 6)); /* there is no other */
    assert_int_equal(a.bottleneck, BT_BOTTLENECK_PREFILL);
    assert_int_equal(a.prefill, 1);
    assert_int_equal(a.decode, 1);
}

/* Each candidate tried: the formula's split is the best of all. */
static void no_other_split_takes_more(void **state)
{
    for (unsigned workers = 2; workers <= 40; workers++)
        for (double p = 1; p < 2000; p *= 3)
            for (double d = 1; d < 2000; d *= 2.7) {
                const bt_advice_t a = advise(minute(1, workers - 1, p, d));
                const double took = fmin(a.prefill / p, a.decode / d);
                for (unsigned m = 1; m < workers; m++)
                    assert_true(fmin(m / p, (workers - m) / d) <= took * BT_ADVICE_GAIN_MIN);
            }
}

static void says_why_it_says_nothing(void **state)
{
    bt_advice_input_t in = minute(1, 1, 30, 30);
    bt_advice_t a;

    in.decode.requests = 9;
    a = advise(in);
    assert_int_equal(a.bottleneck, BT_BOTTLENECK_UNKNOWN);
    assert_int_equal(a.confidence, BT_CONFIDENCE_NONE);
    assert_non_null(strstr(a.why, "too little traffic: 9 requests"));
    in = minute(1, 1, 30, 30);
    in.seen_s = 20;
    assert_non_null(strstr(advise(in).why, "less than half of the window"));
    assert_non_null(strstr(advise(minute(1, 0, 30, 0)).why, "0 decode workers are usable"));
    assert_int_equal(advise((bt_advice_input_t){.window_s = 60}).confidence, BT_CONFIDENCE_NONE);
}

static void trusts_time_alone_the_least(void **state)
{
    bt_advice_input_t in = minute(1, 1, 30, 30);

    in.decode.by = BT_ADVICE_BY_TIME;
    assert_int_equal(advise(in).confidence, BT_CONFIDENCE_LOW);
    in = minute(1, 1, 30, 30);
    in.prefill.requests = 50;
    assert_int_equal(advise(in).confidence, BT_CONFIDENCE_MEDIUM);
}

/* An M/D/1 queue: D = 100 ms, 5 requests a second: 100 + 5 * 0.1 * 100 / (2 * 0.5) = 150 ms. */
static void predicts_ttft(void **state)
{
    bt_advice_input_t in = minute(2, 1, 20, 30);
    bt_advice_t a;

    near(150, bt_advice_md1_ms(5, 100));
    near(100, bt_advice_md1_ms(0, 100));
    assert_true(bt_advice_md1_ms(10, 100) < 0);
    in.prefill.inflight_tokens = 40000; /* 20,000 a worker, 10,000 a second */
    a = advise(in);
    near(2000 + 100 + 20, a.ttft_ms);
    assert_int_equal(a.prefill, 1); /* which the advised split leaves */
    near(bt_advice_md1_ms(200 / 60.0, 100) + 20, a.model_ttft_ms);
    in.prefill.tokens = 0; /* the engine does not say: by requests */
    in.prefill.inflight = 6;
    near(3 * 100 + 100 + 20, advise(in).ttft_ms);
}

/* ---- watching ---- */

static bt_registry_t *r;
static bt_advisor_t *advisor;
static bt_worker_t *p0, *d0;
static uint64_t now_ms = 1000000;

static int set_up_pool(void **state)
{
    const bt_advisor_config_t config = {.window_ms = 10000, .tpot_ms = 40};
    bt_pool_spec_t pool;
    bt_worker_spec_t specs[2];
    const bt_worker_spec_t *list = specs;
    const unsigned count = 2;
    char err[256];

    bt_pool_spec_init(&pool);
    pool.name = text("main");
    pool.engine_request_limit = 10;
    make_spec(&specs[0], BT_ROLE_PREFILL, "http://127.0.0.1:1", "NixlConnector");
    make_spec(&specs[1], BT_ROLE_DECODE, "http://127.0.0.1:2", "NixlConnector");
    assert_int_equal(bt_registry_new(&r, NULL, NULL, NULL), 0);
    assert_int_equal(bt_registry_apply(r, &pool, 1, &list, &count, err, sizeof err), 0);
    assert_int_equal(bt_advisor_new(&advisor, NULL, r, &config), 0);
    bt_pool_spec_fini(&pool);
    bt_worker_spec_fini(&specs[0]);
    bt_worker_spec_fini(&specs[1]);
    p0 = bt_registry_current(r)->pools[0].prefill.items[0];
    d0 = bt_registry_current(r)->pools[0].decode.items[0];
    set_up(p0);
    set_up(d0);
    return 0;
}

static int tear_down_pool(void **state)
{
    bt_advisor_free(advisor);
    bt_registry_free(r);
    return 0;
}

static void look_for_ms(unsigned ms)
{
    for (unsigned i = 0; i < ms / 100; i++)
        bt_advisor_look(advisor, now_ms += 100);
}

static bt_advice_input_t input(void)
{
    bt_advice_input_t in;

    assert_true(bt_advisor_input(advisor, &bt_registry_current(r)->pools[0], &in));
    return in;
}

/* A third of the time in use, 20 requests a second of 50 tokens. */
static void run(unsigned seconds)
{
    for (unsigned i = 0; i < seconds; i++) {
        bt_ledger_entry_t e = {0};
        bt_ledger_hold(&e, p0, BT_PHASE_PREFILL, 50);
        look_for_ms(300);
        bt_ledger_release(&e);
        look_for_ms(600);
        atomic_fetch_add(&p0->legs_total[0][0], 20);
        atomic_fetch_add(&p0->prompt_tokens_total, 1000);
        atomic_fetch_add(&d0->legs_total[1][0], 20);
        atomic_fetch_add(&d0->output_tokens_total, 200);
    }
    look_for_ms(100);
}

static void means_fade_and_hold_from_the_first_second_on(void **state)
{
    bt_advice_input_t in;

    look_for_ms(100);
    run(6);
    for (unsigned round = 0; round < 3; round++) {
        in = input();
        assert_true(fabs(in.prefill.used_s / in.prefill.worker_s - 1 / 3.0) < 0.03);
        assert_true(fabs(in.prefill.requests / in.seen_s - 22.2) < 2);
        assert_true(fabs(in.prefill.tokens / in.seen_s - 1111) < 100);
        assert_true(fabs(in.decode.tokens / in.seen_s - 222) < 20);
        run(20);
    }
    assert_true(fabs(in.seen_s - 10) < 0.2); /* in the long run it is the window */
    look_for_ms(100000);
    in = input();
    assert_true(in.prefill.requests < 0.1 && in.prefill.used_s < 0.01);
    assert_int_equal(atomic_load(&bt_registry_current(r)->pools[0].stat->advice.bottleneck),
                     BT_BOTTLENECK_UNKNOWN);
}

static double decode_use(enum bt_advice_by by)
{
    bt_advice_input_t in;

    look_for_ms(200000); /* what was before has faded */
    in = input();
    assert_int_equal(in.decode.by, by);
    return in.decode.used_s / in.decode.worker_s;
}

static void decode_is_as_used_as_its_nearest_limit_says(void **state)
{
    bt_ledger_entry_t e[2] = {{0}, {0}};

    bt_ledger_hold(&e[0], d0, BT_PHASE_DECODE, 10);
    bt_ledger_hold(&e[1], d0, BT_PHASE_DECODE, 10);
    near(0.2, decode_use(BT_ADVICE_BY_LIMIT));
    bt_worker_note_tpot(d0, 20000);
    near(0.5, decode_use(BT_ADVICE_BY_TPOT));
    atomic_store(&d0->load.kv_used_ppm, 750000);
    atomic_store(&d0->load.at_ms, now_ms + 250000);
    near(0.75, decode_use(BT_ADVICE_BY_KV));
    atomic_store(&d0->load.waiting, 3);
    atomic_store(&d0->load.at_ms, now_ms + 250000);
    near(0.75, decode_use(BT_ADVICE_BY_KV)); /* for KV, maybe */
    atomic_store(&d0->load.blocked, 1);
    atomic_store(&d0->load.at_ms, now_ms + 250000);
    near(1, decode_use(BT_ADVICE_BY_WAITING));
    near(3, input().decode.waiting);
    near(0.5, decode_use(BT_ADVICE_BY_TPOT)); /* the report is old */
    bt_ledger_release(&e[0]);
    bt_ledger_release(&e[1]);
}

/* Half of what is on it is another gateway's: so is half of what it did. */
static void others_requests_count(void **state)
{
    bt_ledger_entry_t e = {0};

    bt_worker_set_others(p0, BT_PHASE_PREFILL, 100, 1);
    bt_ledger_hold(&e, p0, BT_PHASE_PREFILL, 100);
    for (unsigned i = 0; i < 100; i++) {
        look_for_ms(1000);
        atomic_fetch_add(&p0->legs_total[0][0], 5);
    }
    assert_true(fabs(input().prefill.requests / input().seen_s - 10) < 1);
    near(200, input().prefill.inflight_tokens);
    bt_ledger_release(&e);
    bt_worker_set_others(p0, BT_PHASE_PREFILL, 0, 0);
}

static void who_is_out_is_not_counted(void **state)
{
    look_for_ms(1000);
    bt_worker_set_health(d0, BT_HEALTH_DOWN, "no answer");
    look_for_ms(200);
    assert_int_equal(input().decode.workers, 0);
    assert_true(input().prefill.worker_s > input().decode.worker_s + 0.15);
}

#define WATCHING(test) cmocka_unit_test_setup_teardown(test, set_up_pool, tear_down_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_prefill_and_the_split_that_fits_its_demand),
        cmocka_unit_test(names_decode_and_keeps_one_worker_of_each_role),
        cmocka_unit_test(keeps_a_split_that_no_other_betters_by_a_tenth),
        cmocka_unit_test(no_other_split_takes_more),
        cmocka_unit_test(says_why_it_says_nothing),
        cmocka_unit_test(trusts_time_alone_the_least),
        cmocka_unit_test(predicts_ttft),
        WATCHING(means_fade_and_hold_from_the_first_second_on),
        WATCHING(decode_is_as_used_as_its_nearest_limit_says),
        WATCHING(others_requests_count),
        WATCHING(who_is_out_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
