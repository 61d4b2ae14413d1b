/* Calls of decode engines over real HTTP: who may call, what is passed on, when it is answered. */
#include "admin/client.h"
#include "transfer/metaserver.h"

#define CALL "/v1/metaserver?attempt=4711"

static bt_loop_t loop, other; /* the one that answers */
static bt_metaserver_t *server;
static bt_metaserver_call_t *calls[4];
static unsigned port, call_count;
static bool is_closed;
static client_t client;

static void on_closed(void *user)
{
    (void) user;
    is_closed = true;
}

static void on_call(void *user, bt_metaserver_call_t *call)
{
    assert_ptr_equal(user, &client);
    assert_true(call_count < 4);
    calls[call_count++] = call;
}

static int open_with(const char *const *allowed, unsigned count)
{
    const bt_metaserver_config_t config = {
        .allowed = allowed, .allowed_count = count, .on_call = on_call, .user = &client};
    int fd = bt_listener_bind("127.0.0.1", 0, false, &port);

    assert_true(fd >= 0);
    return bt_metaserver_new(&server, &loop, fd, &config);
}

static int setup(void **state)
{
    alarm(50);
    bt_log_set(BT_LOG_ERROR, false, 2);
    client.fd = -1;
    call_count = 0;
    is_closed = false;
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_loop_init(&other, 0), 0);
    assert_int_equal(open_with(NULL, 0), 0);
    return 0;
}

static int teardown(void **state)
{
    if (!is_closed)
        bt_metaserver_close(server, on_closed, NULL);
    TURN_UNTIL(&loop, is_closed);
    assert_int_equal(atomic_load(&loop.connections), 0);
    bt_loop_fini(&other);
    bt_loop_fini(&loop);
    client_close(&client);
    return 0;
}

static void send_call(const char *method, const char *target, const char *body)
{
    client_close(&client);
    client_open(&client, port);
    client_send(&client, method, target, "", body);
}

static unsigned status_of(const char *method, const char *target, const char *body)
{
    send_call(method, target, body);
    TURN_UNTIL(&loop, client_has_answer(&client));
    return client_status(&client);
}

static void a_call_is_passed_on(void **state)
{
    send_call("POST", CALL, "{\"request_id\":\"cmpl-1-0\"}");
    TURN_UNTIL(&loop, call_count == 1);
    assert_int_equal(calls[0]->room, 4711);
    assert_true(bt_str_eq(calls[0]->body, BT_STR("{\"request_id\":\"cmpl-1-0\"}")));
    turn(&loop, 5);
    assert_false(client_has_answer(&client));
    bt_metaserver_answer(calls[0], 200, NULL);
    TURN_UNTIL(&loop, client_has_answer(&client));
    assert_int_equal(client_status(&client), 200);
    assert_string_equal(client_body(&client), "{\"status\":\"ok\"}");
}

static void a_refusal_says_why(void **state)
{
    send_call("POST", CALL, "{}");
    TURN_UNTIL(&loop, call_count == 1);
    bt_metaserver_answer(calls[0], 409, "it is \"over\"");
    TURN_UNTIL(&loop, client_has_answer(&client));
    assert_int_equal(client_status(&client), 409);
    assert_string_equal(client_body(&client),
                        "{\"error\":{\"message\":\"it is \\\"over\\\"\",\"code\":409}}");
}

static void what_is_no_call(void **state)
{
    static const char *const targets[] = {"/v1/metaserver",
                                          "/v1/metaserver?",
                                          "/v1/metaserver?attempt=",
                                          "/v1/metaserver?attempt=x",
                                          "/v1/metaserver?attempt=-1",
                                          "/v1/metaserver?room=1",
                                          "/v1/metaserver/",
                                          "/",
                                          "/v1/metaserver?attempt=1&x=1",
                                          "/v1/metaserver?attempt=18446744073709551616"};

    bt_log_set(BT_LOG_ERROR, false, 2);
    for (unsigned i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
        assert_int_equal(status_of("POST", targets[i], "{}"), 404);
    assert_int_equal(status_of("GET", CALL, ""), 405);
    assert_non_null(strcasestr(client.got, "allow: POST"));
    assert_int_equal(call_count, 0);
}

static void a_body_that_is_too_large(void **state)
{
    client_close(&client);
    client_open(&client, port);
    static const char head[] =
        "POST " CALL " HTTP/1.1\r\nHost: x\r\nContent-Length: 4194305\r\n\r\n";
    assert_true(send(client.fd, head, sizeof(head) - 1, MSG_NOSIGNAL) > 0);
    TURN_UNTIL(&loop, client_has_answer(&client));
    assert_int_equal(client_status(&client), 413);
    assert_int_equal(call_count, 0);
}

/* It is answered into the void, once. */
static void a_caller_that_leaves(void **state)
{
    send_call("POST", CALL, "{}");
    TURN_UNTIL(&loop, call_count == 1);
    client_close(&client);
    TURN_UNTIL(&loop, calls[0]->x == NULL);
    bt_metaserver_answer(calls[0], 200, NULL);
    turn(&loop, 5);
}

/* The end of the process: nobody waits any more, and the call still has its owner. */
static void closed_while_a_call_waits(void **state)
{
    send_call("POST", CALL, "{}");
    TURN_UNTIL(&loop, call_count == 1);
    bt_metaserver_close(server, on_closed, NULL);
    TURN_UNTIL(&loop, is_closed);
    bt_metaserver_answer(calls[0], 200, NULL);
    turn(&loop, 5);
}

static void bad_configurations(void **state)
{
    static const char *const bad[] = {"node-1"};
    bt_metaserver_t *first = server;

    assert_int_equal(open_with(bad, 1), BT_E_INVAL);
    server = first;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_call_is_passed_on),      CASE(a_refusal_says_why),   CASE(what_is_no_call),
        CASE(a_body_that_is_too_large), CASE(a_caller_that_leaves), CASE(closed_while_a_call_waits),
        CASE(bad_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
