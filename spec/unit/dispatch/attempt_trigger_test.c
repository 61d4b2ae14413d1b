/* Decode first: who is asked when, what each call of its engine is answered, and whose fault it is when one of the three
 * does not do its part. */
#include "dispatch/attempt_rig.h"

#define BROKEN "{\"error\":{\"message\":\"broken\"}}"
/* What decode's engine says; id: as in its X-Request-Id. */
#define CALL(id)                                                                                   \
    "{\"token_ids\":[],\"request_id\":\"cmpl-" id "-0\",\"do_remote_prefill\":false,"              \
    "\"do_remote_decode\":true,\"remote_block_ids\":[[1,2]],\"remote_block_size\":[16],"           \
    "\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,"               \
    "\"remote_tp_size\":1,\"remote_pcp_size\":1,\"remote_dcp_size\":1,"                            \
    "\"remote_cached_tokens\":0}"

static uint64_t room; /* of the attempt that `begin_with` has begun */

static void begin_with(struct rig_options options)
{
    options.connector = "MooncakeLayerwiseConnector";
    rig_start(&options);
    ask();
    take(D0);
    room = called_room(D0);
}

static void begin_one(void)
{
    begin_with((struct rig_options){0});
}

/* One attempt, and what is waited for is short. */
#define ONE_TRY(deadline) ((struct rig_options){.max_attempts = 1, .deadlines = {.deadline = 60}})

static void begin_called(void)
{
    begin_one();
    call_metaserver(room, CALL("req-1"));
    take(P0);
}

static void assert_answers(unsigned count, unsigned last_status)
{
    TURN_UNTIL(&rig.loop, metaserver.count == count);
    assert_int_equal(metaserver.status[count - 1], last_status);
}

/* The second attempt, from its beginning. */
static void again(int prefill, int decode)
{
    take(decode);
    assert_true(heard(decode, "X-Request-Id: req-1-a2\r\n"));
    assert_int_not_equal(called_room(decode), room);
    call_metaserver(called_room(decode), CALL("req-1-a2"));
    take(prefill);
    answer(prefill, 200, REPLY);
    answer(decode, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
}

/* ---- as it should be ---- */

static void decode_then_prefill(void **state)
{
    begin_one();
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[P0]));
    assert_true(held(P0, BT_PHASE_PREFILL) > 0); /* others are planned meanwhile */
    call_metaserver(room, CALL("req-1"));
    take(P0);
    assert_true(heard(P0, "X-Request-Id: req-1\r\n"));
    assert_true(heard(D0, "X-Request-Id: req-1\r\n"));
    assert_true(heard(P0, "\"kv_transfer_params\":" CALL("req-1")));
    assert_int_equal(metaserver.count, 0);
    answer(P0, 200, REPLY);
    assert_answers(1, 200);
    assert_int_equal(held(P0, BT_PHASE_PREFILL), 0);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-plan: trigger\r\n"));
    assert_int_equal(legs_of(P0, BT_BLAME_OK), 1);
    assert_int_equal(legs_of(D0, BT_BLAME_OK), 1);
    assert_int_equal(atomic_load(&rig.d->stats.callbacks), 1);
    recorded("\"kind\":\"trigger\",\"prefill\":\"p0\",\"decode\":\"d0\"");
    recorded("\"callback_ms\":");
}

/* The first event may come before prefill's reply: its layers are there. */
static void decode_answers_before_prefill(void **state)
{
    begin_called();
    answer(D0, 200, REPLY);
    answered("hello");
    assert_false(has_hung_up(&engines[P0]));
    answer(P0, 200, REPLY);
    assert_answers(1, 200);
    assert_int_equal(legs_of(P0, BT_BLAME_OK), 1);
}

/* MultiConnector calls for each of its own, and a broken connection is tried again. */
static void a_call_that_repeats_another(void **state)
{
    begin_called();
    call_metaserver(room, CALL("req-1"));
    assert_int_equal(metaserver.count, 0);
    answer(P0, 200, REPLY);
    assert_answers(2, 200);
    assert_int_equal(metaserver.status[0], 200);
    call_metaserver(room, CALL("req-1"));
    assert_answers(3, 200);
    assert_int_equal(engines[P0].requests, 1);
    assert_int_equal(atomic_load(&rig.d->stats.callbacks), 1);
    assert_int_equal(atomic_load(&rig.d->stats.callbacks_repeated), 2);
    answer(D0, 200, REPLY);
    answered("hello");
}

/* Its own prefix cache had the prompt, or it gave up on remote KV: it says so by answering. */
static void decode_that_needs_no_prefill(void **state)
{
    begin_with(ONE_TRY(callback_ms));
    stream_head(D0); /* an answer of an engine to what was no stream, whatever it is: bytes */
    event(D0, "{\"choices\":[{\"text\":\"hello\"}]}");
    TURN_UNTIL(&rig.loop, client_got("hello"));
    call_metaserver(room, CALL("req-1"));
    assert_answers(1, 409);
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[P0]));
    assert_int_equal(held(P0, BT_PHASE_PREFILL), 0);
    stream_end(D0);
    answered("hello");
    assert_int_equal(atomic_load(&rig.d->stats.recomputes), 1);
    assert_int_equal(blamed(P0) + blamed(D0), 0);
}

/* ---- calls that find nobody ---- */

static void calls_for_nobody(void **state)
{
    begin_one();
    call_metaserver(room ^ 1, CALL("req-1"));
    assert_answers(1, 404);
    call_metaserver(room ^ ((uint64_t) 1 << 53), CALL("req-1")); /* a loop that is not there */
    assert_answers(2, 404);
    call_metaserver(0, CALL("req-1"));
    assert_answers(3, 404);
    call_metaserver(UINT64_MAX, CALL("req-1"));
    assert_answers(4, 404);
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[P0]));
    client_leaves();
}

static void calls_for_an_attempt_that_is_over(void **state)
{
    begin_one();
    reset(D0);
    take(D1);
    call_metaserver(room, CALL("req-1"));
    assert_answers(1, 409);
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[P0]));
    assert_int_equal(atomic_load(&rig.d->stats.callbacks_late), 1);
    call_metaserver(called_room(D1), CALL("req-1-a2"));
    take(P0);
    answer(P0, 200, REPLY);
    assert_answers(2, 200);
    answer(D1, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
    turn(&rig.loop, 20);
    call_metaserver(room, CALL("req-1"));
    assert_answers(3, 404);
}

/* ---- decode's faults ---- */

static void decode_that_never_calls(void **state)
{
    begin_with(ONE_TRY(callback_ms));
    answered("HTTP/1.1 504");
    assert_true(client_got("decode did not call for prefill in time"));
    assert_true(has_hung_up(&engines[D0]));
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(legs_of(P0, BT_BLAME_GUILTY), 0);
    assert_int_equal(engines[P0].requests, 0);
    recorded(
        "\"failure\":\"callback_timeout\",\"leg\":\"decode\",\"status\":0,\"guilty\":[\"d0\"]");
}

static void another_decode_is_tried(void **state)
{
    begin_with((struct rig_options){.deadlines = {.callback_ms = 60}});
    again(P0, D1);
    assert_int_equal(blamed(D0), 1);
}

static void decode_that_says_nonsense(void **state)
{
    static const char *const calls[] = {
        "",
        "{",
        "[]",
        "{}",
        "null",
        CALL("somebody-else"),
        "{\"request_id\":\"cmpl-req-1-0\",\"do_remote_decode\":true,\"remote_engine_id\":\"e\","
        "\"remote_host\":\"h\",\"remote_block_ids\":[]}",
        "{\"request_id\":\"cmpl-req-1-0\",\"do_remote_decode\":true,\"remote_engine_id\":\"e\","
        "\"remote_host\":\"h\",\"remote_port\":1}",
        "{\"request_id\":\"cmpl-req-1-0\",\"do_remote_decode\":false,\"remote_engine_id\":\"e\","
        "\"remote_host\":\"h\",\"remote_port\":1,\"remote_block_ids\":[]}",
    };

    for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        begin_with((struct rig_options){.max_attempts = 1});
        call_metaserver(room, calls[i]);
        assert_answers(1, 400);
        assert_non_null(strstr(metaserver.words, "decode's call: "));
        answered("HTTP/1.1 502");
        TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
        assert_int_equal(blamed(D0), 1);
        assert_int_equal(blamed(P0), 0);
        assert_int_equal(engines[P0].requests, 0);
        recorded("\"failure\":\"callback\",\"leg\":\"decode\"");
        if (i + 1 < sizeof(calls) / sizeof(calls[0]))
            teardown(NULL);
    }
}

/* The same answer, and nothing else happens. */
static void nonsense_that_is_repeated(void **state)
{
    begin_one();
    call_metaserver(room, "{}");
    assert_answers(1, 400);
    call_metaserver(room, CALL("req-1"));
    assert_answers(2, 400);
    again(P0, D1);
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(engines[P0].requests, 1);
}

static void decode_that_dies_before_its_call(void **state)
{
    begin_one();
    reset(D0);
    again(P0, D1);
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(blamed(P0), 0);
    assert_int_equal(engines[P0].requests, 1);
}

static void decode_that_dies_after_its_call(void **state)
{
    begin_called();
    reset(D0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    assert_answers(1, 409);
    again(P0, D1);
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(blamed(P0), 0);
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
}

/* An error of its own, as it has asked nobody yet; afterwards it may be that KV did not come. */
static void an_error_of_decode(void **state)
{
    begin_one();
    answer(D0, 500, BROKEN);
    again(P0, D1);
    assert_int_equal(blamed(D0), 1);
    teardown(NULL);
    begin_called();
    answer(P0, 200, REPLY);
    assert_answers(1, 200);
    answer(D0, 500, BROKEN);
    again(P0, D1);
    assert_int_equal(blamed(D0) + blamed(P0), 0);
}

/* ---- prefill's faults ---- */

static void a_prefill_that_breaks(void **state)
{
    begin_called();
    answer(P0, 500, BROKEN);
    assert_answers(1, 502);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
    recorded("\"leg\":\"prefill\",\"status\":500,\"guilty\":[\"p0\"]");
}

static void a_prefill_that_dies(void **state)
{
    begin_called();
    reset(P0);
    assert_answers(1, 502);
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
}

/* Decode waits, and takes its KV from whoever has its call. */
static void a_prefill_that_cannot_be_reached(void **state)
{
    begin_one();
    refuse(P0);
    call_metaserver(room, CALL("req-1"));
    take(P1);
    assert_true(heard(P1, "X-Request-Id: req-1\r\n"));
    assert_true(heard(P1, "\"request_id\":\"cmpl-req-1-0\""));
    answer(P1, 200, REPLY);
    assert_answers(1, 200);
    answer(D0, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(P1) + blamed(D0), 0);
}

static void prefills_that_cannot_be_reached(void **state)
{
    begin_with((struct rig_options){.max_attempts = 2});
    refuse(P0);
    refuse(P1);
    call_metaserver(room, CALL("req-1"));
    assert_answers(1, 502);
    answered("HTTP/1.1 502 ");
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(P1), 1);
    assert_int_equal(blamed(D0), 0);
}

/* The client's own mistake: prefill's words, and nobody's fault. */
static void a_request_that_prefill_refuses(void **state)
{
    begin_called();
    answer(P0, 422, "{\"error\":{\"message\":\"too long\"}}");
    assert_answers(1, 502);
    answered("HTTP/1.1 422");
    assert_true(client_got("too long"));
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    assert_int_equal(blamed(P0) + blamed(D0), 0);
}

static void an_error_inside_prefills_200(void **state)
{
    begin_called();
    answer(P0, 200, "{\"object\":\"error\",\"message\":\"no\",\"code\":500}");
    assert_answers(1, 502);
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
}

/* By its own deadline, or by decode's, which waits for it. */
static void a_prefill_that_hangs(void **state)
{
    begin_with(ONE_TRY(prefill_reply_ms));
    call_metaserver(room, CALL("req-1"));
    take(P0);
    answered("HTTP/1.1 504");
    assert_answers(1, 502);
    assert_true(has_hung_up(&engines[P0]) && has_hung_up(&engines[D0]));
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
    teardown(NULL);
    begin_with((struct rig_options){.max_attempts = 1, .deadlines = {.answer_ms = 300}});
    call_metaserver(room, CALL("req-1"));
    take(P0);
    answered("HTTP/1.1 504");
    assert_answers(1, 409);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]) && has_hung_up(&engines[D0]));
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
}

/* Decode has called when its time was nearly over: either's, for prefill has hardly begun. */
static void a_prefill_that_is_asked_late(void **state)
{
    const uint64_t start_ms = bt_clock_ms();
    begin_with((struct rig_options){.max_attempts = 1, .deadlines = {.answer_ms = 2000}});
    TURN_UNTIL(&rig.loop, bt_clock_ms() - start_ms >= 1500);
    call_metaserver(room, CALL("req-1"));
    take(P0);
    answered("HTTP/1.1 504");
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]) && has_hung_up(&engines[D0]));
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    assert_int_equal(atomic_load(&engines[P0].worker->suspect_partner), engines[D0].worker->id);
}

/* The dialect's own mistake, made when decode has called: nobody's, and decode is told that it is not its. */
static void a_dialect_that_breaks_at_the_call(void **state)
{
    char folder[] = "/tmp/baton-dialects-XXXXXX", path[80];

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/mooncake_layerwise.lua", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("local trigger, legs = require('baton.trigger'), require('baton.legs')\n"
          "return { name = 'mooncake_layerwise', kind = 'trigger', room = true,\n"
          "  routes = legs.VLLM_ROUTES, decode = trigger.ask,\n"
          "  prefill = function(leg) return leg.no_such.thing end }\n",
          file);
    fclose(file);
    begin_with((struct rig_options){.max_attempts = 1, .config = {.dialect_dir = folder}});
    call_metaserver(room, CALL("req-1"));
    assert_answers(1, 502);
    answered("HTTP/1.1 50");
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    recorded("\"failure\":\"dialect\",\"leg\":\"prefill\"");
    unlink(path);
    rmdir(folder);
}

/* Prefill has done its part: it could be either's. */
static void a_decode_that_hangs(void **state)
{
    begin_with(ONE_TRY(answer_ms));
    call_metaserver(room, CALL("req-1"));
    take(P0);
    answer(P0, 200, REPLY);
    assert_answers(1, 200);
    answered("HTTP/1.1 504");
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    assert_int_equal(atomic_load(&engines[D0].worker->suspect_partner), engines[P0].worker->id);
}

/* The answer has begun: prefill's late end changes nothing for the client. */
static void a_late_failure_of_prefill(void **state)
{
    rig_start(&(struct rig_options){.connector = "MooncakeLayerwiseConnector"});
    ask_body(STREAM_BODY);
    take(D0);
    call_metaserver(called_room(D0), CALL("req-1"));
    take(P0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    reset(P0);
    assert_answers(1, 502);
    event(D0, "{\"choices\":[{\"text\":\"b\"}]}");
    stream_end(D0);
    answered("\"text\":\"b\"");
    assert_false(client_got("error"));
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(engines[P1].requests, 0);
}

/* ---- the client ---- */

static void a_client_that_leaves_before_the_call(void **state)
{
    begin_one();
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    call_metaserver(room, CALL("req-1"));
    assert_answers(1, 404);
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[P0]));
    assert_int_equal(blamed(D0) + blamed(P0), 0);
}

static void a_client_that_leaves_after_the_call(void **state)
{
    begin_called();
    client_leaves();
    assert_answers(1, 409);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]) && has_hung_up(&engines[P0]));
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(legs_of(D0, BT_BLAME_CANCELLED), 1);
}

static void a_request_that_takes_too_long(void **state)
{
    begin_with(ONE_TRY(total_ms));
    answered("HTTP/1.1 504");
    assert_true(client_got("x-baton-leg: decode\r\n"));
    teardown(NULL);
    begin_with(ONE_TRY(total_ms));
    call_metaserver(room, CALL("req-1"));
    take(P0);
    answered("HTTP/1.1 504");
    assert_true(client_got("x-baton-leg: prefill\r\n"));
    assert_answers(1, 409);
}

static void no_metaserver(void **state)
{
    rig_start(&(struct rig_options){.connector = "MooncakeLayerwiseConnector"});
    atomic_store(&bt_worker_has_metaserver, false);
    ask();
    answered("HTTP/1.1 503");
    assert_true(client_got("no_metaserver"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(decode_then_prefill),
        CASE_OF(decode_answers_before_prefill),
        CASE_OF(a_call_that_repeats_another),
        CASE_OF(decode_that_needs_no_prefill),
        CASE_OF(calls_for_nobody),
        CASE_OF(calls_for_an_attempt_that_is_over),
        CASE_OF(decode_that_never_calls),
        CASE_OF(another_decode_is_tried),
        CASE_OF(decode_that_says_nonsense),
        CASE_OF(nonsense_that_is_repeated),
        CASE_OF(decode_that_dies_before_its_call),
        CASE_OF(decode_that_dies_after_its_call),
        CASE_OF(an_error_of_decode),
        CASE_OF(a_prefill_that_breaks),
        CASE_OF(a_prefill_that_dies),
        CASE_OF(a_prefill_that_cannot_be_reached),
        CASE_OF(prefills_that_cannot_be_reached),
        CASE_OF(a_request_that_prefill_refuses),
        CASE_OF(an_error_inside_prefills_200),
        CASE_OF(a_prefill_that_hangs),
        CASE_OF(a_prefill_that_is_asked_late),
        CASE_OF(a_dialect_that_breaks_at_the_call),
        CASE_OF(a_decode_that_hangs),
        CASE_OF(a_late_failure_of_prefill),
        CASE_OF(a_client_that_leaves_before_the_call),
        CASE_OF(a_client_that_leaves_after_the_call),
        CASE_OF(a_request_that_takes_too_long),
        CASE_OF(no_metaserver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
