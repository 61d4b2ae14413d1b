/* Calls that no request waits for: engines that abort, prefills that let go of what they hold. */
#include "dispatch/attempt_rig.h"

/* The lease is over before decode can be asked, but not before it can be told. */
static void start_release(const char *host)
{
    char reply[1024];

    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .lease_ms = 5000, .max_attempts = 1});
    ask();
    take(P0);
    snprintf(reply, sizeof(reply),
             "{\"id\":\"cmpl-req-1\",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
             "\"remote_block_ids\":[[1,2]],\"remote_engine_id\":\"e\",\"remote_request_id\":"
             "\"cmpl-req-1-0\",%s\"remote_port\":5600}}",
             host);
    answer(P0, 200, reply);
}

static unsigned releases(void)
{
    return (unsigned) atomic_load(&rig.d->stats.releases);
}

static void a_prefill_that_will_not_be_used(void **state)
{
    start_release("\"remote_host\":\"10.1.2.3\",");
    take(D0);
    assert_true(heard(D0, "POST /v1/completions HTTP/1.1\r\n"));
    assert_true(heard(D0, "\"model\":\"baton-release-no-such-model\""));
    assert_true(heard(D0, "\"remote_block_ids\":[[1,2]]"));
    assert_true(heard(D0, "\"remote_host\":\"10.1.2.3\""));
    answered("lease");
    assert_false(bt_dispatcher_idle(rig.d)); /* it is not closed early */
    answer(D0, 404, "{}");
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(releases(), 1);
    assert_int_equal(blamed(D0), 0);
}

/* A name that means prefill's own machine is none for decode. */
static void where_prefill_is(void **state)
{
    start_release("\"remote_host\":\"localhost\",");
    take(D0);
    assert_true(heard(D0, "\"remote_host\":\"127.0.0.1\""));
    answer(D0, 404, "{}");
    answered("lease");
}

/* Half of the parameters would end decode's engine. */
static void parameters_that_are_not_whole(void **state)
{
    start_release("");
    answered("lease");
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(releases(), 0);
    assert_false(has_caller(&engines[D0]));
}

/* A decode that is down tells nobody: another one does. */
static void who_can_tell(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .lease_ms = 5000, .max_attempts = 1});
    ask();
    take(P0);
    bt_worker_set_health(engines[D0].worker, BT_HEALTH_DOWN, "spec");
    bt_workers_changed();
    answer(P0, 200, HANDOFF("req-1"));
    take(D1);
    assert_true(heard(D1, "baton-release-no-such-model"));
    answer(D1, 404, "{}");
    answered("lease");
    assert_false(has_caller(&engines[D0]));
}

static void copy_rid(int which, char *rid)
{
    const char *at = strstr(engines[which].got, "\"rid\":\"");

    assert_non_null(at);
    snprintf(rid, 33, "%s", at + strlen("\"rid\":\""));
    assert_int_equal(strlen(rid), 32);
}

/* SGLang sees a closed connection late: it is told, by the id that it knows. */
static void a_client_that_leaves(void **state)
{
    char rid[2][33];

    rig_start(&(struct rig_options){.connector = "sglang"});
    ask();
    take(P0);
    take(D0);
    copy_rid(P0, rid[0]);
    copy_rid(D0, rid[1]);
    assert_string_equal(rid[0], rid[1]);
    client_leaves();
    for (int i = P0; i <= D0; i += D0 - P0) {
        take(i);
        assert_true(heard(i, "POST /abort_request HTTP/1.1\r\n"));
        assert_true(heard(i, rid[0]));
        answer(i, 200, "");
    }
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(atomic_load(&rig.d->stats.aborts), 2);
}

/* Decode has read the hand-off, or refused it: prefill hears of it from there. */
static void a_hand_off_that_decode_has_got(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(releases(), 0);
}

static void engines_that_have_no_abort(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(atomic_load(&rig.d->stats.aborts), 0);
    assert_int_equal(releases(), 0); /* prefill has not answered: there is nothing to let go of */
}

/* An engine that does not answer is given 2 s, and nobody is blamed. */
static void an_engine_that_says_nothing(void **state)
{
    start_release("\"remote_host\":\"10.1.2.3\",");
    take(D0);
    answered("lease");
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_true(has_hung_up(&engines[D0]));
    assert_int_equal(blamed(D0), 0);
}

/* Workers have a key of ours, or the client's own goes through: here as there. */
static void with_the_workers_key(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang", .config = {.worker_api_key = "ours"}});
    ask();
    take(P0);
    take(D0);
    client_leaves();
    take(P0);
    assert_true(heard(P0, "Authorization: Bearer ours\r\n"));
    answer(P0, 200, "");
    take(D0);
    answer(D0, 200, "");
}

/* As many run and wait, of other loops, as may: one more waits, the next one is dropped. */
static void more_than_may_wait(void **state)
{
    bt_worker_t *w;

    rig_start(&(struct rig_options){.connector = "sglang"});
    w = engines[P0].worker;
    for (unsigned i = 0; i < 3; i++) {
        ask();
        take(P0);
        take(D0);
        client_leaves();
        TURN_UNTIL(&rig.loop, atomic_load(&rig.d->stats.aborts) == 2 * (i + 1));
        client_comes();
        if (i == 0) { /* a loop may always run one */
            take(P0);
            atomic_fetch_add(&w->background_running, 31);
            atomic_fetch_add(&w->background_queued, 1023);
        }
    }
    TURN_UNTIL(&rig.loop, atomic_load(&rig.d->stats.background_dropped) == 1);
    assert_int_equal(atomic_load(&w->background_running), 32);
    assert_int_equal(atomic_load(&w->background_queued), 1024);
    atomic_fetch_sub(&w->background_running, 31);
    atomic_fetch_sub(&w->background_queued, 1023);
    bt_worker_set_lost(w, bt_clock_ms(), bt_clock_ms()); /* who waits is not sent after it */
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(atomic_load(&rig.d->stats.background_dropped), 2);
    assert_int_equal(atomic_load(&w->background_queued), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_prefill_that_will_not_be_used),
        CASE_OF(where_prefill_is),
        CASE_OF(parameters_that_are_not_whole),
        CASE_OF(who_can_tell),
        CASE_OF(a_client_that_leaves),
        CASE_OF(a_hand_off_that_decode_has_got),
        CASE_OF(engines_that_have_no_abort),
        CASE_OF(an_engine_that_says_nothing),
        CASE_OF(with_the_workers_key),
        CASE_OF(more_than_may_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
