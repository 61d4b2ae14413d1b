/* Tries: when there is another, by whom, and what the client hears when there is none. */
#include "dispatch/attempt_rig.h"

#define WORDS "{\"error\":{\"message\":\"the engine's words\"}}"

static void start(const struct rig_options *options)
{
    struct rig_options own = *options;

    own.connector = "NixlConnector";
    rig_start(&own);
    ask();
    take(P0);
}

static void down(int which)
{
    bt_worker_set_health(engines[which].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
}

static void no_more_than_allowed(void **state)
{
    start(&(struct rig_options){.max_attempts = 2});
    reset(P0);
    take(P1);
    reset(P1);
    answered("HTTP/1.1 502");
    assert_true(client_got("x-baton-attempts: 2\r\n"));
    assert_int_equal(atomic_load(&rig.d->stats.retries), 1);
    assert_false(has_caller(&engines[P2]));
}

static void a_clients_own_error_is_not_tried_again(void **state)
{
    start(&(struct rig_options){0});
    answer(P0, 400, WORDS);
    answered("HTTP/1.1 400");
    assert_true(client_got("the engine's words"));
    assert_int_equal(atomic_load(&rig.d->stats.retries), 0);
    assert_int_equal(blamed(P0), 0);
}

/* What an engine has said tells more than that another one died. */
static void the_most_telling_failure(void **state)
{
    start(&(struct rig_options){.max_attempts = 2});
    answer(P0, 500, WORDS);
    take(P1);
    reset(P1);
    answered("HTTP/1.1 500");
    assert_true(client_got("the engine's words"));
}

static void the_last_of_two_that_say_nothing(void **state)
{
    start(&(struct rig_options){.max_attempts = 2});
    reset(P0);
    take(P1);
    answer(P1, 500, WORDS);
    answered("HTTP/1.1 500");
}

static void retries_are_forbidden(void **state)
{
    start(&(struct rig_options){.config = {.disable_retries = true}});
    reset(P0);
    answered("HTTP/1.1 502");
    assert_false(has_caller(&engines[P1]));
}

/* The pool's budget is spent by others: what failed is told, and why nobody else was asked. */
static void a_pool_that_retries_too_much(void **state)
{
    start(&(struct rig_options){.retry_budget_percent = 20});
    while (bt_retry_budget_take(&rig.d->workers->pools[0].stat->retry_budget, 20, bt_clock_ms()))
        ;
    reset(P0);
    answered("HTTP/1.1 502");
    assert_false(has_caller(&engines[P1]));
    assert_int_equal(atomic_load(&rig.d->stats.retries_over_budget), 1);
}

/* The pair is not asked as that pair again, but where there is nobody else one of them is. */
static void half_of_a_pair_that_failed(void **state)
{
    start(&(struct rig_options){0});
    down(D1);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 500, WORDS);
    take(P1);
    answer(P1, 200, HANDOFF("req-1-a2"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
}

static void never_both_halves(void **state)
{
    start(&(struct rig_options){0});
    down(D1);
    down(P1);
    down(P2);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 500, WORDS);
    answered("HTTP/1.1 500");
    assert_int_equal(engines[P0].requests, 1);
}

/* A probe is under way at every worker: nobody may be asked. */
static void every_breaker_waits(void **state)
{
    bool probe;

    rig_start(&(struct rig_options){.is_single_only = true});
    for (int i = 0; i < 5; i++)
        bt_breaker_failure(&engines[S0].worker->breaker, false, bt_clock_ms());
    bt_breaker_recovered(&engines[S0].worker->breaker);
    bt_workers_changed();
    assert_true(bt_breaker_enter(&engines[S0].worker->breaker, bt_clock_ms(), &probe));
    assert_true(probe);
    ask();
    answered("HTTP/1.1 503");
    assert_false(has_caller(&engines[S0]));
    bt_breaker_innocent(&engines[S0].worker->breaker, probe);
}

/* The request that is let in as a probe closes the breaker when it does well. */
static void a_probe(void **state)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    for (int i = 0; i < 5; i++)
        bt_breaker_failure(&engines[S0].worker->breaker, false, bt_clock_ms());
    bt_breaker_recovered(&engines[S0].worker->breaker);
    bt_workers_changed();
    ask();
    take(S0);
    assert_int_equal(bt_breaker_state(&engines[S0].worker->breaker, bt_clock_ms()),
                     BT_BREAKER_HALF_OPEN);
    answer(S0, 200, REPLY);
    answered("hello");
    assert_int_equal(bt_breaker_state(&engines[S0].worker->breaker, bt_clock_ms()),
                     BT_BREAKER_CLOSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(no_more_than_allowed),       CASE_OF(a_clients_own_error_is_not_tried_again),
        CASE_OF(the_most_telling_failure),   CASE_OF(the_last_of_two_that_say_nothing),
        CASE_OF(retries_are_forbidden),      CASE_OF(a_pool_that_retries_too_much),
        CASE_OF(half_of_a_pair_that_failed), CASE_OF(never_both_halves),
        CASE_OF(every_breaker_waits),        CASE_OF(a_probe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
