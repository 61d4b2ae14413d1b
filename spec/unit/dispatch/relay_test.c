/* What comes back of a leg: nothing reaches the client before it has been looked into, then all
 * of it, as fast as the client reads. */
#include "dispatch/attempt_rig.h"

#define A "{\"choices\":[{\"text\":\"a\"}]}"
#define BOOM "{\"error\":{\"message\":\"boom\",\"code\":500}}"

static void start_single(const char *body)
{
    rig_start(&(struct rig_options){.is_single_only = true});
    ask_body(body);
    take(S0);
}

static void start_pair(const char *body)
{
    rig_start(&(struct rig_options){.connector = "NixlConnector"});
    ask_body(body);
    take(P0);
    answer(P0, 200, HANDOFF("req-1"));
    take(D0);
}

/* By another pair, as if nothing had been. */
static void served_by_another(void)
{
    take(P0); /* nobody knows whose fault it was: decode's turn first */
    answer(P0, 200, HANDOFF("req-1-a2"));
    take(D1);
    answer(D1, 200, REPLY);
    answered("HTTP/1.1 200");
    assert_true(client_got("hello"));
    assert_false(client_got("boom"));
}

static void no_status_before_the_first_event(void **state)
{
    start_single(STREAM_BODY);
    stream_head(S0);
    assert_int_equal(send(engines[S0].conn, "6\r\n: hm\n\n\r\n", 11, MSG_NOSIGNAL), 11);
    TURN_UNTIL(&rig.loop, live_attempt()->legs[1].reply.text.n > 0);
    turn(&rig.loop, 5);
    assert_false(client_got("HTTP"));
    event(S0, A);
    stream_end(S0);
    answered("\"text\":\"a\"");
    assert_true(client_got(": hm\n\n")); /* what was held back comes as it was */
}

static void a_first_event_that_is_an_error(void **state)
{
    start_pair(STREAM_BODY);
    stream_head(D0);
    event(D0, BOOM);
    served_by_another();
}

static void a_200_that_is_an_error(void **state)
{
    start_pair(BODY);
    answer(D0, 200, BOOM);
    served_by_another();
}

/* An error that is the client's own: said once, in the engine's words. */
static void a_200_that_is_the_clients_error(void **state)
{
    start_single(BODY);
    answer(S0, 200, "{\"object\":\"error\",\"message\":\"too long\",\"code\":400}");
    answered("HTTP/1.1 400");
    assert_true(client_got("too long"));
    assert_int_equal(blamed(S0), 0);
}

static void a_later_event_is_not_looked_into(void **state)
{
    start_single(STREAM_BODY);
    stream_head(S0);
    event(S0, A);
    event(S0, BOOM);
    stream_end(S0);
    answered("boom");
    assert_int_equal(legs_of(S0, BT_BLAME_OK), 1);
}

static void a_stream_without_an_event(void **state)
{
    start_single(STREAM_BODY);
    stream_head(S0);
    assert_int_equal(send(engines[S0].conn, "0\r\n\r\n", 5, MSG_NOSIGNAL), 5);
    answered("HTTP/1.1 502");
    assert_true(client_got("before the first event"));
    assert_int_equal(blamed(S0), 1);
}

static void a_redirection_is_no_answer(void **state)
{
    start_single(BODY);
    answer_with(S0, 307, "Location: /elsewhere\r\n", "");
    answered("HTTP/1.1 502");
    assert_false(client_got("elsewhere"));
    assert_int_equal(blamed(S0), 1);
}

/* The engine's own words, with their status and headers. */
static void an_error_of_the_engine(void **state)
{
    start_single(BODY);
    answer_with(S0, 422, "X-Engine: kept\r\n", "{\"detail\":\"unknown field\"}");
    answered("HTTP/1.1 422");
    assert_true(client_got("X-Engine: kept\r\n"));
    assert_true(client_got("{\"detail\":\"unknown field\"}"));
    assert_int_equal(blamed(S0), 0);
}

/* Between two events: an event of ours ends the stream. */
static void a_break_between_events(void **state)
{
    start_single(STREAM_BODY);
    stream_head(S0);
    event(S0, A);
    TURN_UNTIL(&rig.loop, client_got("\"text\":\"a\""));
    reset(S0);
    answered("data: {\"error\"");
    assert_true(client_got("data: [DONE]\n\n"));
    assert_int_equal(atomic_load(&rig.d->stats.stream_errors), 1);
}

/* In the middle of one: half an event followed by ours would be neither. */
static void a_break_within_an_event(void **state)
{
    start_single(STREAM_BODY);
    stream_head(S0);
    event(S0, A);
    assert_int_equal(send(engines[S0].conn, "8\r\ndata: {\"\r\n", 13, MSG_NOSIGNAL), 13);
    TURN_UNTIL(&rig.loop, client_got("data: {\"\r\n"));
    reset(S0);
    TURN_UNTIL(&rig.loop, client_got("HTTP") && rig.has_hung_up);
    assert_false(client_got("error"));
    assert_false(client_got("\r\n0\r\n\r\n"));
}

#define LARGE_BYTES ((size_t) 4 << 20)

static bool send_some(size_t *left)
{
    static char spaces[65536];
    size_t n = *left < sizeof(spaces) ? *left : sizeof(spaces);
    ssize_t sent;

    memset(spaces, ' ', sizeof(spaces));
    sent = n > 0 ? send(engines[S0].conn, spaces, n, MSG_NOSIGNAL) : 0;
    if (sent > 0)
        *left -= (size_t) sent;
    return *left == 0;
}

static bool read_some(size_t *got)
{
    char scratch[65536];
    ssize_t n = read(rig.client, scratch, sizeof(scratch));

    if (n > 0)
        *got += (size_t) n;
    return *got > LARGE_BYTES;
}

/* A client that does not read stops the engine; what it reads then is all there. */
static void a_client_that_does_not_read(void **state)
{
    size_t left = LARGE_BYTES - (sizeof(REPLY) - 1), got = 0;
    const bt_call_t *call;

    start_single(BODY);
    call = &live_attempt()->legs[1].call;
    assert_true(dprintf(engines[S0].conn,
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                        "%zu\r\n\r\n" REPLY,
                        LARGE_BYTES) > 0);
    TURN_UNTIL(&rig.loop, !send_some(&left) && call->paused);
    assert_true(left > 0);
    TURN_UNTIL(&rig.loop, send_some(&left) & (int) read_some(&got));
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    assert_int_equal(legs_of(S0, BT_BLAME_OK), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE_OF(no_status_before_the_first_event), CASE_OF(a_first_event_that_is_an_error),
        CASE_OF(a_200_that_is_an_error),           CASE_OF(a_200_that_is_the_clients_error),
        CASE_OF(a_later_event_is_not_looked_into), CASE_OF(a_stream_without_an_event),
        CASE_OF(a_redirection_is_no_answer),       CASE_OF(an_error_of_the_engine),
        CASE_OF(a_break_between_events),           CASE_OF(a_break_within_an_event),
        CASE_OF(a_client_that_does_not_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
