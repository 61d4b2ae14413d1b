/* A trigger whose plan left prefill open: it is chosen when decode's engine calls, by the load of then; nobody, a policy that fails,
 * one that is gone; and a decode that never needs it. And a partner, of either role, that is no candidate any more when the other is chosen. */
#include "dispatch/attempt_rig.h"

#define CALL(id)                                                                                   \
    "{\"request_id\":\"cmpl-" id "-0\",\"do_remote_decode\":true,\"remote_block_ids\":[[1,2]],"    \
    "\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600}"

#define POLICY(plan_prefill)                                                                       \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view) return { decode "  \
    "= baton.argmin(view.decode, 'id') } end, plan_prefill = function(req, view, decode, ctx) "    \
    "assert(decode.name == 'd0') " plan_prefill " end }"
#define LEAST                                                                                      \
    POLICY("return { prefill = baton.argmin(baton.compatible(view.prefill, decode), "              \
           "'prefill_tokens', 'id') }")

static uint64_t count_of(const _Atomic uint64_t *counter)
{
    return atomic_load(counter);
}

static void begin_at(struct rig_options options)
{
    options.connector = "MooncakeLayerwiseConnector";
    rig_start(&options);
    ask();
    take(D0);
    turn(&rig.loop, 20);
    for (int i = P0; i <= P2; i++) {
        assert_false(has_caller(&engines[i]));
        assert_int_equal(held(i, BT_PHASE_PREFILL), 0);
    }
}

static void begin_with(const char *policy)
{
    begin_at((struct rig_options){.policy = policy});
}

static void call(void)
{
    call_metaserver(called_room(D0), CALL("req-1"));
}

static void assert_answer(unsigned status, const char *words)
{
    TURN_UNTIL(&rig.loop, metaserver.count == 1);
    assert_int_equal(metaserver.status[0], status);
    if (strstr(metaserver.words, words) == NULL)
        fail_msg("%s", metaserver.words);
}

static void serve(int prefill)
{
    take(prefill);
    assert_true(heard(prefill, "\"kv_transfer_params\":" CALL("req-1")));
    answer(prefill, 200, REPLY);
    assert_answer(200, "");
    answer(D0, 200, REPLY);
    answered("hello");
}

static void load(int which, int64_t tokens)
{
    atomic_fetch_add(&bt_worker_total(engines[which].worker, BT_PHASE_PREFILL)->tokens, tokens);
}

/* p0 would have been the one when decode was asked. */
static void it_is_the_least_loaded_of_then(void **state)
{
    begin_with(LEAST);
    load(P0, 1 << 20);
    load(P2, 1 << 20);
    call();
    serve(P1);
    load(P0, -(1 << 20));
    load(P2, -(1 << 20));
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    assert_true(client_got("x-baton-plan: trigger\r\n"));
    assert_true(client_got("x-baton-prefill: p1\r\n"));
    recorded("\"plan\":{\"kind\":\"trigger\",\"decode\":\"d0\"}");
    recorded("\"kind\":\"trigger\",\"prefill\":\"p1\",\"decode\":\"d0\"");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 0);
}

static void one_that_went_meanwhile_is_not_seen(void **state)
{
    begin_with(POLICY("assert(#view.prefill == 2) return { prefill = view.prefill[1] }"));
    bt_worker_set_health(engines[P0].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    call();
    serve(P1);
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

static void ends_for_want_of_prefill(const char *why)
{
    assert_answer(502, why);
    answered("HTTP/1.1 503");
    assert_true(client_got(why));
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    assert_int_equal(blamed(D0), 0);
    for (int i = P0; i <= P2; i++)
        assert_int_equal(engines[i].requests, 0);
    recorded("\"failure\":\"no_worker\",\"leg\":\"prefill\"");
}

static void nobody_shall_prefill(void **state)
{
    begin_with(POLICY("return nil"));
    call();
    ends_for_want_of_prefill("the policy chose no prefill worker");
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

static void nobody_is_left_to_prefill(void **state)
{
    begin_with(LEAST);
    for (int i = P0; i <= P2; i++)
        bt_worker_set_health(engines[i].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    call();
    ends_for_want_of_prefill("no prefill worker is left");
}

static void the_policy_fails(void **state)
{
    static const char *const texts[] = {
        POLICY("error('no idea')"), POLICY("return {}"),
        POLICY("return { prefill = view.prefill[1], decode = view.decode[2] }"),
        POLICY("return { worker = view.prefill[1] }")};

    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        begin_with(texts[i]);
        call();
        serve(P0);
        assert_true(client_got("x-baton-policy: default\r\n"));
        assert_int_equal(count_of(&rig.d->stats.policy_errors), 1);
        if (i + 1 < sizeof(texts) / sizeof(texts[0]))
            teardown(NULL);
    }
}

static void the_policy_fails_where_that_ends_it(void **state)
{
    begin_at((struct rig_options){.policy = POLICY("error('no idea')"),
                                  .config = {.policy_on_error = BT_ON_ERROR_END}});
    call();
    ends_for_want_of_prefill("the policy failed");
}

/* The plan of the second attempt leaves prefill open again: decode keeps waiting. */
static void the_chosen_one_is_gone(void **state)
{
    begin_with(
        POLICY("if ctx.attempt == 1 then return { prefill = view.prefill[3] } end\n"
               "assert(ctx.attempt == 2 and #view.prefill == 2) return { prefill = view.prefill[2] "
               "}"));
    refuse(P2);
    call();
    serve(P1);
    assert_true(client_got("x-baton-attempts: 2\r\n"));
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    assert_int_equal(engines[D0].requests, 1);
    assert_int_equal(count_of(&rig.d->stats.prefill_replacements), 1);
    assert_int_equal(blamed(P2), 1);
    recorded("\"replaced\":[{\"prefill\":\"p2\"");
}

/* Its plan is asked for a pair again, and may leave it open again. */
static void the_chosen_one_fails(void **state)
{
    begin_with("return { api = 2, name = 'mine', version = '1', plan = function(req, view, ctx) "
               "return { decode = view.decode[1] } end, plan_prefill = function(req, view, decode, "
               "ctx) return { prefill = view.prefill[1] } end }");
    call();
    take(P0);
    answer(P0, 500, "{\"error\":{\"message\":\"broken\"}}");
    assert_answer(502, "");
    take(D0);
    call_metaserver(called_room(D0), CALL("req-1-a2"));
    take(P1);
    answer(P1, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
}

static void a_decode_that_needs_none(void **state)
{
    begin_with(LEAST);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(count_of(&rig.d->stats.recomputes), 1);
    recorded("\"attempts\":[{\"n\":1,\"kind\":\"trigger\",\"decode\":\"d0\"");
}

static void a_decode_that_dies_before_its_call(void **state)
{
    begin_with("return { api = 2, name = 'mine', version = '1', plan = function(req, view) return "
               "{ decode = view.decode[1] } end, plan_prefill = function(req, view) return { "
               "prefill = view.prefill[1] } end }");
    reset(D0);
    take(D1);
    call_metaserver(called_room(D1), CALL("req-1-a2"));
    take(P0);
    answer(P0, 200, REPLY);
    answer(D1, 200, REPLY);
    answered("x-baton-attempts: 2\r\n");
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(blamed(P0), 0);
}

static void a_decode_that_never_calls(void **state)
{
    begin_at(
        (struct rig_options){.policy = LEAST, .max_attempts = 1, .deadlines = {.callback_ms = 60}});
    answered("HTTP/1.1 504");
    assert_int_equal(blamed(D0), 1);
    recorded("\"failure\":\"callback_timeout\",\"leg\":\"decode\"");
}

static void a_client_that_leaves_before_the_call(void **state)
{
    begin_with(LEAST);
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
}

/* The one place of each prefill worker: taken at the call, not before. */
static void a_place_is_taken_at_the_call(void **state)
{
    begin_at((struct rig_options){.policy = LEAST, .engine_request_limit = 1});
    for (int i = P0; i <= P2; i++)
        assert_int_equal(atomic_load(&engines[i].worker->limited_legs), 0);
    call();
    take(P0);
    assert_int_equal(atomic_load(&engines[P0].worker->limited_legs), 1);
    answer(P0, 200, REPLY);
    assert_answer(200, "");
    answer(D0, 200, REPLY);
    answered("hello");
}

/* ---- the partner is no candidate any more: it has begun, and stays ---- */

static void drain(int which)
{
    atomic_store(&engines[which].worker->draining, true);
    bt_workers_changed();
}

static void half_open(int which)
{
    for (int i = 0; i < 5; i++)
        bt_breaker_failure(&engines[which].worker->breaker, false, bt_clock_ms());
    bt_breaker_recovered(&engines[which].worker->breaker);
    bt_workers_changed();
}

static enum bt_breaker_state breaker_of(int which)
{
    return bt_breaker_state(&engines[which].worker->breaker, bt_clock_ms());
}

static void serve_by_policy(int prefill)
{
    call();
    serve(prefill);
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_errors), 0);
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 0);
}

static void the_only_decode_is_full_by_this_request(void **state)
{
    begin_at((struct rig_options){.policy = LEAST, .engine_request_limit = 1});
    assert_true(bt_worker_take_place(engines[D1].worker, 1));
    serve_by_policy(P0);
    bt_worker_give_place_back(engines[D1].worker);
}

static void the_only_decode_is_this_requests_probe(void **state)
{
    rig_start(&(struct rig_options){.connector = "MooncakeLayerwiseConnector", .policy = LEAST});
    drain(D1);
    half_open(D0);
    ask();
    take(D0);
    bt_workers_changed();
    assert_int_equal(breaker_of(D0), BT_BREAKER_HALF_OPEN);
    serve_by_policy(P0);
    assert_int_equal(breaker_of(D0), BT_BREAKER_CLOSED);
}

static void the_only_decode_is_drained_before_its_call(void **state)
{
    begin_with(LEAST);
    drain(D0);
    drain(D1);
    serve_by_policy(P0);
}

/* Nor does the second choice, beside a decode that waits, ask what has become of it. */
static void another_prefill_beside_a_decode_that_is_drained(void **state)
{
    begin_with(LEAST);
    drain(D0);
    drain(D1);
    refuse(P0);
    serve_by_policy(P1);
    assert_int_equal(count_of(&rig.d->stats.prefill_replacements), 1);
}

#define LATE_DECODE(plan_decode)                                                                   \
    "return { api = 2, name = 'mine', version = '1', plan = function(req, view) return { prefill " \
    "= baton.argmin(view.prefill, 'id') } end, plan_decode = function(req, view, prefill, ctx) "   \
    "assert(prefill.name == 'p0') " plan_decode " end }"
#define FIRST_DECODE                                                                               \
    LATE_DECODE("return { decode = baton.argmin(baton.compatible(view.decode, prefill), 'id') }")

static void only_p0_is_left(struct rig_options options)
{
    options.connector = "NixlConnector";
    rig_start(&options);
    drain(P1);
    drain(P2);
}

static void decode_late(int decode)
{
    answer(P0, 200, HANDOFF("req-1"));
    take(decode);
    assert_true(heard(decode, "\"model\":\"m\""));
    answer(decode, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-policy: mine@1\r\n"));
}

static void the_only_prefill_is_drained_while_it_computes(void **state)
{
    only_p0_is_left((struct rig_options){.policy = FIRST_DECODE});
    ask();
    take(P0);
    drain(P0);
    decode_late(D0);
}

static void the_only_prefill_is_this_requests_probe(void **state)
{
    only_p0_is_left((struct rig_options){.policy = FIRST_DECODE});
    half_open(P0);
    ask();
    take(P0);
    bt_workers_changed();
    decode_late(D0);
    assert_int_equal(breaker_of(P0), BT_BREAKER_CLOSED);
}

/* Its work stays good for another decode. */
static void another_decode_beside_a_prefill_that_is_drained(void **state)
{
    only_p0_is_left((struct rig_options){.policy = FIRST_DECODE});
    ask();
    take(P0);
    drain(P0);
    refuse(D0);
    decode_late(D1);
    assert_int_equal(count_of(&rig.d->stats.decode_replacements), 1);
}

static void the_release_is_told(const char *why)
{
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    assert_true(heard(D0, "\"model\":\"baton-release-no-such-model\""));
    answer(D0, 404, "{}");
    answered("HTTP/1.1 503");
    assert_true(client_got(why));
    assert_int_equal(count_of(&rig.d->stats.releases), 1);
}

/* Its KV would lie there until the lease ends. */
static void nobody_decodes_and_the_only_prefill_is_drained(void **state)
{
    only_p0_is_left((struct rig_options){.policy = LATE_DECODE("return nil")});
    ask();
    take(P0);
    drain(P0);
    the_release_is_told("the policy chose no decode worker");
}

/* They refuse a request of no model at once. */
static void a_release_by_a_decode_that_is_full(void **state)
{
    only_p0_is_left((struct rig_options){.policy = FIRST_DECODE, .engine_request_limit = 1});
    ask();
    take(P0);
    drain(D1);
    assert_true(bt_worker_take_place(engines[D0].worker, 1));
    the_release_is_told("no decode worker is left");
    bt_worker_give_place_back(engines[D0].worker);
}

/* A hand-off's decode cannot go first. */
static void no_such_plan_where_decode_calls_nobody(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .policy = LEAST});
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_true(client_got("x-baton-policy: default\r\n"));
    assert_int_equal(count_of(&rig.d->stats.policy_invalid), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(it_is_the_least_loaded_of_then),
        CASE_OF(one_that_went_meanwhile_is_not_seen),
        CASE_OF(nobody_shall_prefill),
        CASE_OF(nobody_is_left_to_prefill),
        CASE_OF(the_policy_fails),
        CASE_OF(the_policy_fails_where_that_ends_it),
        CASE_OF(the_chosen_one_is_gone),
        CASE_OF(the_chosen_one_fails),
        CASE_OF(a_decode_that_needs_none),
        CASE_OF(a_decode_that_dies_before_its_call),
        CASE_OF(a_decode_that_never_calls),
        CASE_OF(a_client_that_leaves_before_the_call),
        CASE_OF(a_place_is_taken_at_the_call),
        CASE_OF(the_only_decode_is_full_by_this_request),
        CASE_OF(the_only_decode_is_this_requests_probe),
        CASE_OF(the_only_decode_is_drained_before_its_call),
        CASE_OF(another_prefill_beside_a_decode_that_is_drained),
        CASE_OF(the_only_prefill_is_drained_while_it_computes),
        CASE_OF(the_only_prefill_is_this_requests_probe),
        CASE_OF(another_decode_beside_a_prefill_that_is_drained),
        CASE_OF(nobody_decodes_and_the_only_prefill_is_drained),
        CASE_OF(a_release_by_a_decode_that_is_full),
        CASE_OF(no_such_plan_where_decode_calls_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
