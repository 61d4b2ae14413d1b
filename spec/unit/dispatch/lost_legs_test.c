/* What waits on a worker that is lost: it ends soon, once, is tried elsewhere, and nobody talks to
 * the dead. */
#include "dispatch/attempt_rig.h"

static void lose(int which)
{
    bt_worker_t *w = engines[which].worker;

    bt_worker_set_health(w, BT_HEALTH_DOWN, "spec");
    bt_worker_set_lost(w, bt_clock_ms(), bt_clock_ms());
    bt_dispatch_shared_worker_lost(&rig.shared);
}

static uint64_t lost_legs(void)
{
    return atomic_load(&rig.d->stats.lost_legs);
}

static void pass(uint64_t ms)
{
    const uint64_t until_ms = patience_clock_ms() + ms;

    while (patience_clock_ms() < until_ms)
        turn_once(&rig.loop);
}

static void a_prefill_that_is_lost(void **state)
{
    uint64_t began_ms;

    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    began_ms = bt_clock_ms();
    lose(P0);
    take(P1);
    assert_true(bt_clock_ms() - began_ms >= 240);
    answer(P1, 200, HANDOFF("req-1-a2"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(engines[P0].worker->breaker.failed_count,
                     0); /* the loss itself counts there */
    assert_int_equal(lost_legs(), 1);
}

static void nobody_else_is_left(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .max_attempts = 1});
    ask();
    take(P0);
    lose(P0);
    answered("HTTP/1.1 502");
    recorded("\"failure\":\"lost\",\"leg\":\"prefill\",\"status\":0,\"guilty\":[\"p0\"]");
}

/* Between the two legs: the hand-off goes to another decode, the lost one is not even dialled. */
static void a_decode_that_was_lost_meanwhile(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    lose(D0);
    pass(300);
    answer(P0, 200, HANDOFF("req-1"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_false(has_caller(&engines[D0]));
    assert_int_equal(atomic_load(&rig.d->stats.decode_replacements), 1);
    assert_int_equal(engines[P0].requests, 1);
}

static void a_decode_before_its_first_byte(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    lose(D0);
    take(P0); /* its blocks may have been read: prefill again */
    answer(P0, 200, HANDOFF("req-1-a2"));
    take(D1);
    stream_head(D1);
    event(D1, "{\"choices\":[{\"text\":\"a\"}]}");
    stream_end(D1);
    answered("\"text\":\"a\"");
    assert_false(client_got("error"));
}

static void a_stream_that_has_begun(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    pass(5);
    lose(D0);
    answered("\"error\"");
    assert_true(client_got("is lost"));
}

/* It spoke after the evidence: what is left of it may go on. */
static void who_still_speaks_stays(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    lose(D0);
    pass(20);
    event(D0, "{\"choices\":[{\"text\":\"b\"}]}");
    pass(400);
    stream_end(D0);
    answered("\"text\":\"b\"");
    assert_false(client_got("error"));
    assert_int_equal(lost_legs(), 0);
}

/* The other half is told to stop, the lost one is not. */
static void no_abort_goes_to_the_lost(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask();
    take(P0);
    take(D0);
    lose(P0);
    take(D0);
    assert_true(heard(D0, "POST /abort_request HTTP/1.1\r\n"));
    answer(D0, 200, "");
    take(P1);
    assert_true(has_hung_up(&engines[P0]));
    assert_false(has_caller(&engines[P0]));
    assert_int_equal(atomic_load(&rig.d->stats.aborts), 1);
    client_leaves();
}

/* A prefill that outlives its answer holds a connection and a place in the ledger until then. */
static void what_drains_behind_an_answer(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask();
    take(P0);
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(held(P0, BT_PHASE_PREFILL) > 0);
    lose(P0);
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(lost_legs(), 1);
    assert_int_equal(held(P0, BT_PHASE_PREFILL), 0);
}

/* Each has its own 250 ms. */
static void two_losses_one_after_the_other(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    lose(D1);
    pass(150);
    lose(P0);
    uint64_t began_ms = bt_clock_ms();
    take(P1);
    assert_true(bt_clock_ms() - began_ms >= 240);
    client_leaves();
}

static unsigned legs_on(int which)
{
    unsigned count = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&rig.d->live, it, tmp) {
        const bt_request_t *r = bt_container_of(it, bt_request_t, link);
        for (unsigned i = 0; i < r->task_count; i++)
            count += r->tasks[i].attempt != NULL &&
                     r->tasks[i].attempt->legs[0].worker == engines[which].worker;
    }
    return count;
}

/* More than end in one turn. */
static void a_request_with_many_legs(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .max_fanout = 200});
    ask_body("{\"model\":\"m\",\"prompt\":\"hi\",\"n\":200}");
    TURN_UNTIL(&rig.loop, legs_on(P0) > 64);
    const unsigned count = legs_on(P0);
    lose(P0);
    TURN_UNTIL(&rig.loop, lost_legs() >= count);
    client_leaves();
}

#define MANY 20000
#define LOOKED_AT 4096

/* A turn looks at some of them only; who waits on the lost one behind them ends all the same. */
static void behind_many_that_are_well(void **state)
{
    bt_request_t *all = calloc(MANY, sizeof *all);
    unsigned turns = 0;

    assert_non_null(all);
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    for (unsigned i = 0; i < MANY; i++)
        bt_list_push_front(&rig.d->live, &all[i].link);
    lose(P0);
    TURN_UNTIL(&rig.loop, rig.d->lost_walk.at != NULL);
    bt_dispatch_shared_worker_lost(
        &rig.shared); /* another one meanwhile: all are looked at again */
    while (rig.d->lost_walk.at != NULL) {
        turns++;
        turn_once(&rig.loop);
    }
    assert_true(turns >= MANY / LOOKED_AT);
    assert_int_equal(lost_legs(), 1);
    assert_true(rig.d->is_lost_again && bt_timer_active(&rig.d->lost_timer));
    TURN_UNTIL(&rig.loop, !bt_timer_active(&rig.d->lost_timer));
    for (unsigned i = 0; i < MANY; i++)
        bt_list_remove(&all[i].link);
    free(all);
    take(P1);
    client_leaves();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_prefill_that_is_lost),           CASE_OF(nobody_else_is_left),
        CASE_OF(a_decode_that_was_lost_meanwhile), CASE_OF(a_decode_before_its_first_byte),
        CASE_OF(a_stream_that_has_begun),          CASE_OF(who_still_speaks_stays),
        CASE_OF(no_abort_goes_to_the_lost),        CASE_OF(what_drains_behind_an_answer),
        CASE_OF(two_losses_one_after_the_other),   CASE_OF(a_request_with_many_legs),
        CASE_OF(behind_many_that_are_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
