/* A request from beginning to end: who may end it, what its end leaves, what the client hears
 * meanwhile. */
#include "dispatch/attempt_rig.h"

static void start_pair(void)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask();
    take(P0);
}

static void a_client_that_leaves(void **state)
{
    start_pair();
    client_leaves();
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    recorded("client_gone");
    assert_int_equal(atomic_load(&rig.d->stats.client_gone), 1);
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(engines[P1].requests, 0);
}

static unsigned said_elsewhere;

static void cancel_elsewhere(void *user, bt_str_t id, uint64_t owner)
{
    (void) user;
    (void) id;
    (void) owner;
    said_elsewhere++;
}

/* From another connection, or by an operator. */
static void a_request_that_is_cancelled(void **state)
{
    start_pair();
    rig.shared.cancel_elsewhere = cancel_elsewhere;
    said_elsewhere = 0;
    bt_dispatch_shared_cancel(&rig.shared, BT_STR("req-2"), 0);
    TURN_UNTIL(&rig.loop, said_elsewhere == 1);
    bt_dispatch_shared_cancel(&rig.shared, BT_STR("req-1"), 0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    assert_int_equal(legs_of(P0, BT_BLAME_CANCELLED), 1);
    assert_int_equal(said_elsewhere, 1);
    bt_dispatch_shared_cancel(&rig.shared, BT_STR("req-1"), 0);
    TURN_UNTIL(&rig.loop, said_elsewhere == 2);
}

#define MANY 20000
#define A_TURN 1024

/* Others' tokens wait while a loop looks for the one that is to be cancelled. */
static void one_of_many_is_cancelled(void **state)
{
    bt_request_t *all = calloc(MANY, sizeof *all);

    assert_non_null(all);
    start_pair();
    for (unsigned i = 0; i < MANY; i++) {
        all[i].id = "another";
        bt_list_push_front(&rig.d->live, &all[i].link);
    }
    bt_dispatch_shared_cancel(&rig.shared, BT_STR("req-1"), 0);
    for (unsigned i = 0; i < MANY / A_TURN; i++) {
        turn_once(&rig.loop);
        assert_int_equal(rig.d->live_count, 1);
        if (i == 2) /* who is next goes meanwhile */
            bt_request_unlink(rig.d,
                              bt_container_of(rig.d->walks.next, bt_request_walk_t, link)->at);
    }
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    assert_int_equal(rig.d->live_count, 0);
    TURN_UNTIL(&rig.loop, bt_list_empty(&rig.d->walks));
    for (unsigned i = 0; i < MANY; i++)
        bt_list_remove(&all[i].link);
    free(all);
}

/* The leg that was waited for is the one that is named. */
static void the_total_deadline_names_a_leg(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .deadlines = {.total_ms = 60}});
    ask();
    take(P0);
    answered("x-baton-leg: prefill\r\n");
    assert_true(client_got("x-baton-error: total_timeout\r\n"));
    assert_int_equal(atomic_load(&rig.d->stats.retries), 0);
}

static void the_total_deadline_of_decode(void **state)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector", .deadlines = {.total_ms = 300}});
    ask();
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answered("x-baton-leg: decode\r\n");
}

/* An id that lives is not given to another request. */
static void an_id_that_is_taken(void **state)
{
    start_pair();
    assert_false(bt_ids_add(rig.shared.ids, BT_STR("req-1")));
    assert_true(bt_ids_derives(rig.shared.ids, BT_STR("req-1-a2")));
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
    answer(D0, 200, REPLY);
    answered("x-request-id: req-1\r\n");
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_true(bt_ids_add(rig.shared.ids, BT_STR("req-1")));
    bt_ids_remove(rig.shared.ids, BT_STR("req-1"));
}

/* Comments keep the line open; another attempt may serve all the same, and an error is an event
 * then. */
static void a_stream_that_is_kept_alive(void **state)
{
    rig_start(
        &(struct rig_options){.connector = "NixlConnector", .config = {.stream_keepalive_ms = 20}});
    ask_body(STREAM_BODY);
    take(P0);
    TURN_UNTIL(&rig.loop, client_got(": waiting for the first token\n\n"));
    assert_true(client_got("HTTP/1.1 200"));
    reset(P0);
    take(P1);
    answer(P1, 400, "{\"error\":{\"message\":\"too long\"}}");
    answered("data: {\"error\"");
    assert_true(client_got("too long"));
    assert_true(client_got("data: [DONE]\n\n"));
}

/* What a large request holds is given back when its last leg has sent it, long before its answer
 * has come. */
static void a_large_body_goes_early(void **state)
{
    static char body[80 * 1024];
    size_t n, sent = 0;

    rig_start(&(struct rig_options){.is_single_only = true});
    n = (size_t) snprintf(body, sizeof(body), "{\"model\":\"m\",\"stream\":true,\"prompt\":\"");
    memset(body + n, 'x', 70 * 1024);
    memcpy(body + n + 70 * 1024, "\"}", 2);
    n += 70 * 1024 + 2;
    assert_true(dprintf(rig.client,
                        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Request-Id: req-1\r\n"
                        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                        n) > 0);
    while (sent < n) {
        ssize_t now = send(rig.client, body + sent, n - sent, MSG_NOSIGNAL);
        sent += now > 0 ? (size_t) now : 0;
        turn(&rig.loop, 1);
    }
    take(S0);
    stream_head(S0);
    assert_true(bt_container_of(rig.d->live.next, bt_request_t, link)->body_buf != NULL);
    event(S0, "{\"choices\":[{\"text\":\"a\"}]}");
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    assert_null(bt_container_of(rig.d->live.next, bt_request_t, link)->body_buf);
    stream_end(S0);
    answered("[DONE]");
}

/* The answer is out: what its prefill still sends is read to keep the connection, and the
 * request's memory waits for that. */
static void a_prefill_outlives_the_answer(void **state)
{
    rig_start(&(struct rig_options){.connector = "sglang"});
    ask();
    take(P0);
    take(D0);
    answer(D0, 200, REPLY);
    answered("hello");
    turn(&rig.loop, 5);
    assert_true(bt_list_empty(&rig.d->live));
    assert_false(bt_list_empty(&rig.d->draining));
    answer(P0, 200, REPLY);
    TURN_UNTIL(&rig.loop, bt_list_empty(&rig.d->draining));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(a_client_that_leaves),          CASE_OF(a_request_that_is_cancelled),
        CASE_OF(one_of_many_is_cancelled),      CASE_OF(the_total_deadline_names_a_leg),
        CASE_OF(the_total_deadline_of_decode),  CASE_OF(an_id_that_is_taken),
        CASE_OF(a_stream_that_is_kept_alive),   CASE_OF(a_large_body_goes_early),
        CASE_OF(a_prefill_outlives_the_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
