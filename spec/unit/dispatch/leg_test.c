/* One exchange with a worker: its deadlines, what is held for it, and that it settles once. Each
 * time-out has a value of its own: the one that a spec waits for is short, the others are a minute. */
#include "dispatch/attempt_rig.h"

#define SHORT_MS 60

static void start_handoff(const bt_pool_deadlines_t *deadlines)
{
    rig_start(&(struct rig_options){
        .connector = "NixlConnector", .max_attempts = 1, .deadlines = *deadlines});
}

static void pass(uint64_t ms)
{
    const uint64_t until_ms = patience_clock_ms() + ms;

    while (patience_clock_ms() < until_ms)
        turn_once(&rig.loop);
}

static void a_prefill_that_says_nothing(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.prefill_reply_ms = SHORT_MS});
    ask();
    take(P0);
    assert_true(held(P0, BT_PHASE_PREFILL) > 0);
    assert_int_equal(held(D0, BT_PHASE_DECODE), 0);
    answered("HTTP/1.1 504");
    recorded(
        "\"failure\":\"first_byte_timeout\",\"leg\":\"prefill\",\"status\":0,\"guilty\":[\"p0\"]");
    assert_int_equal(blamed(P0), 1);
    assert_false(has_caller(&engines[D0]));
}

/* How long an answer may take is decode's: it is asked afterwards, and then held to it. */
static void an_answer_that_does_not_come(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.answer_ms = SHORT_MS});
    ask();
    take(P0);
    pass(2 * SHORT_MS);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    assert_int_equal(held(P0, BT_PHASE_PREFILL), 0);
    assert_true(held(D0, BT_PHASE_DECODE) > 0);
    answered("HTTP/1.1 504");
    recorded("\"failure\":\"first_byte_timeout\",\"leg\":\"decode\"");
}

/* Status and headers are no sign that it has begun. */
static void a_first_event_that_does_not_come(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.first_event_ms = SHORT_MS});
    ask_body(STREAM_BODY);
    take(P0);
    pass(2 * SHORT_MS);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    answered("HTTP/1.1 504");
    recorded("\"failure\":\"first_byte_timeout\",\"leg\":\"decode\"");
}

static void comments_are_no_event(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.first_event_ms = SHORT_MS});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    assert_int_equal(send(engines[D0].conn, "6\r\n: hm\n\n\r\n", 11, MSG_NOSIGNAL), 11);
    answered("HTTP/1.1 504");
}

/* The others' deadlines are over for one that has begun. */
static void a_stream_that_stands_still(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.stall_ms = SHORT_MS});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    answered("\"text\":\"a\"");
    assert_true(client_got("\"error\""));
    assert_true(client_got("data: [DONE]"));
    assert_int_equal(blamed(D0), 1);
}

static void the_first_event_ends_its_deadline(void **state)
{
    start_handoff(&(bt_pool_deadlines_t){.first_event_ms = 300});
    ask_body(STREAM_BODY);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    pass(400);
    event(D0, "{\"choices\":[{\"text\":\"b\"}]}");
    stream_end(D0);
    answered("\"text\":\"b\"");
    assert_false(client_got("error"));
    assert_int_equal(legs_of(D0, BT_BLAME_OK), 1);
}

/* Both legs of a pair that waits for each other are asked at once, and counted as such. */
static void all_that_a_request_may_take(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang", .deadlines = {.total_ms = SHORT_MS}});
    ask();
    take(P0);
    take(D0);
    answered("HTTP/1.1 504");
    recorded("total_timeout");
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(legs_of(D0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(legs_of(P0, BT_BLAME_INNOCENT) + legs_of(D0, BT_BLAME_INNOCENT), 0); /* once */
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    assert_int_equal(atomic_load(&rig.d->stats.attempts), 1);
}

/* An unsplit request loads its worker with its prompt, then with what it makes. */
static void a_single_workers_load(void **state)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    ask_body(STREAM_BODY);
    take(S0);
    assert_true(held(S0, BT_PHASE_PREFILL) > 0);
    assert_int_equal(held(S0, BT_PHASE_DECODE), 0);
    stream_head(S0);
    event(S0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    assert_int_equal(held(S0, BT_PHASE_PREFILL), 0);
    assert_true(held(S0, BT_PHASE_DECODE) > 0);
    stream_end(S0);
    answered("[DONE]");
    assert_int_equal(held(S0, BT_PHASE_DECODE), 0);
    assert_int_equal(legs_of(S0, BT_BLAME_OK), 1);
}

/* A connection of the pool that dies without a word may have been heard: decode is asked under
 * new names, by a new attempt. */
static void what_names_a_hand_off_is_said_once(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .keeps_idle = true});
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    reset(D0);
    take(P0);
    assert_true(heard(P0, "X-Request-Id: req-1-a2\r\n"));
    assert_int_equal(blamed(D0), 0);
    answer(P0, 200, HANDOFF("req-1-a2"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_prefill_that_says_nothing),        CASE_OF(an_answer_that_does_not_come),
        CASE_OF(a_first_event_that_does_not_come),   CASE_OF(comments_are_no_event),
        CASE_OF(a_stream_that_stands_still),         CASE_OF(the_first_event_ends_its_deadline),
        CASE_OF(all_that_a_request_may_take),        CASE_OF(a_single_workers_load),
        CASE_OF(what_names_a_hand_off_is_said_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
