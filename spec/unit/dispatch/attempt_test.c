/* One try with a pair: the order of its legs, one end, both legs stopped once, blame on whom it
 * belongs to. */
#include "dispatch/attempt_rig.h"

#define KV_FAILED "{\"error\":{\"message\":\"KVTransferError(bootstrap_room=7)\",\"code\":500}}"
#define BROKEN "{\"error\":{\"message\":\"broken\"}}"

static void start_handoff(void)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
}

static void start_bootstrap(void)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask();
    take(P0);
    take(D0);
}

/* The second attempt, from its beginning. */
static void again(int prefill, int decode)
{
    take(prefill);
    assert_true(heard(prefill, "X-Request-Id: req-1-a2\r\n"));
    answer(prefill, 200, HANDOFF("req-1-a2"));
    take(decode);
    assert_true(heard(decode, "X-Request-Id: req-1-a2\r\n"));
    answer(decode, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
}

static unsigned ends_of(int which)
{
    unsigned ends = 0;

    for (int how = BT_BLAME_OK; how <= BT_BLAME_CANCELLED; how++)
        ends += (unsigned) legs_of(which, (enum bt_blame) how);
    return ends;
}

static uint64_t handoff_waits(void)
{
    return atomic_load(&rig.d->stats.handoff_wait.count);
}

/* Prefill, then decode with what it has said, under one id. */
static void a_hand_off(void **state)
{
    start_handoff();
    turn(&rig.loop, 20);
    assert_false(has_caller(&engines[D0]));
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    assert_int_equal(handoff_waits(), 0); /* decode has said nothing yet */
    assert_true(heard(P0, "X-Request-Id: req-1\r\n"));
    assert_true(heard(D0, "X-Request-Id: req-1\r\n"));
    assert_true(heard(D0, "\"remote_request_id\":\"cmpl-req-1-0\""));
    assert_true(heard(D0, "\"remote_block_ids\":[[1,2]]"));
    assert_int_equal(held(P0, BT_PHASE_PREFILL), 0);
    assert_int_equal(ends_of(P0), 0); /* not good before decode has found it so */
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-plan: handoff\r\n"));
    assert_int_equal(handoff_waits(), 1);
    assert_int_equal(legs_of(P0, BT_BLAME_OK), 1);
    assert_int_equal(legs_of(D0, BT_BLAME_OK), 1);
}

/* Both at once; prefill's answer is not waited for. */
static void both_at_once(void **state)
{
    start_bootstrap();
    answer(D0, 200, REPLY);
    answered("hello");
    assert_false(has_hung_up(&engines[P0]));
    assert_int_equal(ends_of(P0), 0);
    answer(P0, 200, REPLY);
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(legs_of(P0, BT_BLAME_OK), 1);
}

/* Both legs and the record have it. */
static void a_rank_is_chosen(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang", .dp_size = 2});
    ask();
    take(P0);
    take(D0);
    assert_true(heard(P0, "\"routed_dp_rank\":0"));
    assert_true(heard(D0, "\"disagg_prefill_dp_rank\":0"));
    assert_int_equal(engines[P0].worker->rank_legs[0], 1);
    answer(P0, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    recorded("\"prefill_rank\":0,\"start_ms\"");
}

static void a_prefill_that_breaks(void **state)
{
    start_handoff();
    answer(P0, 500, BROKEN);
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(ends_of(P0), 1);
    assert_int_equal(ends_of(D0), 1); /* of the second attempt */
    recorded(
        "\"failure\":\"upstream_status\",\"leg\":\"prefill\",\"status\":500,\"guilty\":[\"p0\"]");
}

/* One that has no room is no broken one: its partner is kept. */
static void a_prefill_that_is_busy(void **state)
{
    start_handoff();
    answer(P0, 503, BROKEN);
    again(P1, D0);
    assert_int_equal(blamed(P0), 0);
    assert_int_equal(legs_of(P0, BT_BLAME_INNOCENT), 1);
}

static void a_decode_that_is_busy(void **state)
{
    start_handoff();
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 429, BROKEN);
    again(P0, D1);
    assert_int_equal(blamed(D0) + blamed(P0), 0);
}

/* The other leg is stopped, once, and told so. */
static void a_decode_that_dies_beside_its_prefill(void **state)
{
    start_bootstrap();
    reset(D0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(ends_of(P0), 1);
    assert_int_equal(ends_of(D0), 1);
    take(P0);
    if (heard(P0, "POST /abort_request"))
        take(P0); /* the second attempt may come first */
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
}

/* Could be either's: nobody is held responsible before it has failed so with two partners. */
static void an_error_of_decode(void **state)
{
    start_handoff();
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 500, BROKEN);
    again(P0, D1);
    assert_int_equal(blamed(D0) + blamed(P0), 0);
    assert_int_equal(atomic_load(&engines[D0].worker->suspect_partner), engines[P0].worker->id);
    assert_int_equal(atomic_load(&engines[P0].worker->suspect_partner), 0); /* it has done well */
}

/* A pair's failure, and no other decode: then its prefill is another. */
static void an_error_of_the_only_decode(void **state)
{
    start_handoff();
    bt_worker_set_health(engines[D1].worker, BT_HEALTH_DOWN, "spec");
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 500, BROKEN);
    again(P1, D0);
    assert_int_equal(blamed(D0) + blamed(P0), 0);
}

static void an_error_of_decode_with_another_partner(void **state)
{
    start_handoff();
    atomic_store(&engines[D0].worker->suspect_partner, engines[P2].worker->id);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 500, BROKEN);
    take(P0); /* it is not to blame, so it is the least loaded still */
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(blamed(P0), 0);
    answer(P0, 200, HANDOFF("req-1-a2"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("hello");
    assert_int_equal(atomic_load(&engines[P0].worker->suspect_partner), 0); /* it has done well */
}

/* "KV transfer failed": whose fault it was is seen when prefill's fate is. */
static void a_transfer_whose_prefill_dies(void **state)
{
    start_bootstrap();
    answer(D0, 500, KV_FAILED);
    TURN_UNTIL(&rig.loop, !bt_leg_running(&live_attempt()->legs[1]));
    assert_int_equal(blamed(D0), 0);
    reset(P0);
    take(P1);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
    client_leaves();
    recorded(
        "\"failure\":\"upstream_status\",\"leg\":\"decode\",\"status\":500,\"guilty\":[\"p0\"]");
}

static void a_transfer_that_is_the_pairs_fault(void **state)
{
    start_bootstrap();
    answer(D0, 500, KV_FAILED);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0])); /* the wait for prefill's fate is over */
    take(D1);
    take(P0);
    if (heard(P0, "POST /abort_request"))
        take(P0); /* the second attempt may come first */
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    answer(D1, 200, REPLY);
    answered("hello");
}

/* The answer has begun: prefill's late end changes nothing for the client. */
static void a_late_failure_of_prefill(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask_body(STREAM_BODY);
    take(P0);
    take(D0);
    stream_head(D0);
    event(D0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    reset(P0);
    TURN_UNTIL(&rig.loop, ends_of(P0) == 1);
    assert_int_equal(blamed(P0), 1);
    event(D0, "{\"choices\":[{\"text\":\"b\"}]}");
    stream_end(D0);
    answered("\"text\":\"b\"");
    assert_false(client_got("error"));
    assert_int_equal(engines[P1].requests, 0);
}

/* Decode could not be reached: what prefill has done is good for another. */
static void another_decode_gets_the_hand_off(void **state)
{
    start_handoff();
    refuse(D0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D1);
    assert_true(heard(D1, "\"remote_request_id\":\"cmpl-req-1-0\""));
    answer(D1, 200, REPLY);
    answered("x-baton-decode: d1\r\n");
    assert_int_equal(engines[P0].requests, 1);
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(atomic_load(&rig.d->stats.decode_replacements), 1);
    assert_int_equal(handoff_waits(), 1); /* till the one that answers */
    recorded("\"replaced\":[{\"decode\":\"d0\",\"failure\":\"connect\"}]");
}

/* It may have read the hand-off, and prefill's blocks be free: all begins anew. */
static void no_other_decode_gets_it_once_it_is_sent(void **state)
{
    start_handoff();
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    reset(D0);
    again(P0, D1);
    assert_int_equal(atomic_load(&rig.d->stats.decode_replacements), 0);
    assert_int_equal(blamed(D0), 1);
}

/* Parameters that would end decode's engine. */
static void a_hand_off_that_is_not_whole(void **state)
{
    start_handoff();
    answer(P0, 200,
           "{\"id\":\"cmpl-req-1\",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
           "\"remote_engine_id\":\"e\"}}");
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(engines[D0].requests, 1);
    assert_int_equal(atomic_load(&rig.d->stats.releases), 0);
}

static void a_reply_without_a_hand_off(void **state)
{
    start_handoff();
    answer(P0, 200, REPLY);
    take(D0);
    assert_false(heard(D0, "remote_engine_id"));
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(atomic_load(&rig.d->stats.recomputes), 1);
}

static void a_reply_without_a_hand_off_is_refused(void **state)
{
    rig_start(&(struct rig_options){
        .connector = "NixlConnector", .refuse_recompute = true, .max_attempts = 1});
    ask();
    take(P0);
    answer(P0, 200, REPLY);
    answered("HTTP/1.1 502");
    assert_int_equal(engines[D0].requests, 0);
}

static void an_error_inside_prefills_200(void **state)
{
    start_handoff();
    answer(P0, 200, "{\"object\":\"error\",\"message\":\"no\",\"code\":500}");
    again(P1, D0);
    assert_int_equal(blamed(P0), 1);
}

/* Its blocks will be gone before decode can read them: the same workers do it again. */
static void a_lease_that_is_too_short(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .lease_ms = 5000, .max_attempts = 2});
    ask();
    for (unsigned i = 1; i <= 2; i++) {
        take(P0);
        assert_int_equal(engines[P0].requests, i);
        answer(P0, 200, "{\"id\":\"cmpl-1\"}");
    }
    answered("lease on the KV cache ran out");
    assert_int_equal(atomic_load(&rig.d->stats.lease_expired), 2);
    assert_int_equal(engines[D0].requests, 0);
    assert_int_equal(blamed(P0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_hand_off),
        CASE_OF(both_at_once),
        CASE_OF(a_rank_is_chosen),
        CASE_OF(a_prefill_that_breaks),
        CASE_OF(a_prefill_that_is_busy),
        CASE_OF(a_decode_that_is_busy),
        CASE_OF(a_decode_that_dies_beside_its_prefill),
        CASE_OF(an_error_of_decode),
        CASE_OF(an_error_of_the_only_decode),
        CASE_OF(an_error_of_decode_with_another_partner),
        CASE_OF(a_transfer_whose_prefill_dies),
        CASE_OF(a_transfer_that_is_the_pairs_fault),
        CASE_OF(a_late_failure_of_prefill),
        CASE_OF(another_decode_gets_the_hand_off),
        CASE_OF(no_other_decode_gets_it_once_it_is_sent),
        CASE_OF(a_hand_off_that_is_not_whole),
        CASE_OF(a_reply_without_a_hand_off),
        CASE_OF(a_reply_without_a_hand_off_is_refused),
        CASE_OF(an_error_inside_prefills_200),
        CASE_OF(a_lease_that_is_too_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
