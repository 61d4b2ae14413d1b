/* Real ZeroMQ over loopback: what engines send comes to the control loop; garbage, floods and peers that vanish do no harm; it ends
 * while all of that goes on, and even when libzmq does not. */
#include "zmq/sockets.h"

#include "base/log.h"
#include "loop/util.h"
#include "zmq/sender.h"

#include <stdio.h>

#define MANY 1500U

static bt_loop_t loop;
static bt_zmq_t *zmq;
static bt_zmq_sender_t *sender;
static unsigned port, got, ended;
static unsigned refused;  /* peers that the socket's owner was told of */
static unsigned other_at; /* the message that was not the flood's: which it was */
static char last[4][64], last_peer[64];
static unsigned last_count;
static bool is_counted_only;
static uv_sem_t *_Atomic hung; /* what zmq_ctx_term waits for, where a spec makes it hang */
static uv_sem_t let_go;

int __real_zmq_ctx_term(void *context);
int __wrap_zmq_ctx_term(void *context);
int __wrap_zmq_ctx_term(void *context)
{
    uv_sem_t *waits_for = hung;

    if (waits_for != NULL)
        uv_sem_wait(waits_for);
    return __real_zmq_ctx_term(context);
}

static void on_message(void *user, const bt_zmq_message_t *m)
{
    assert_ptr_equal(user, &got);
    got++;
    if (m->frames[m->frame_count - 1].n > 1)
        other_at = got;
    if (is_counted_only)
        return;
    last_count = m->frame_count;
    snprintf(last_peer, sizeof(last_peer), "%s", m->peer);
    for (unsigned i = 0; i < m->frame_count; i++)
        snprintf(last[i], sizeof(last[i]), "%.*s", BT_STR_ARG(m->frames[i]));
}

static void on_refused(void *user, const char *peer)
{
    assert_ptr_equal(user, &got);
    refused++;
    snprintf(last_peer, sizeof(last_peer), "%s", peer);
}

static void allow(const char *network)
{
    bt_network_t list[1];

    assert_int_equal(bt_network_parse(list, network), 0);
    assert_int_equal(bt_zmq_set_allowed(zmq, list, 1), 0);
}

static void on_closed(void *user)
{
    assert_ptr_equal(user, &ended);
    ended++;
}

static void bind_one(enum bt_zmq_kind kind, unsigned per_second)
{
    const bt_zmq_socket_config_t config = {.kind = kind,
                                           .host = "127.0.0.1",
                                           .max_frame_bytes = 1000,
                                           .max_per_second = per_second,
                                           .on_message = on_message,
                                           .on_refused = on_refused,
                                           .user = &got};

    assert_int_equal(bt_zmq_bind(zmq, &config, &port), 0);
    assert_true(port > 0);
}

static bt_zmq_sender_t *new_sender(enum bt_zmq_sender_kind kind, const char *identity)
{
    bt_zmq_sender_t *s;
    char endpoint[64];

    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port);
    assert_int_equal(bt_zmq_sender_new(&s, kind, endpoint, bt_str(identity)), 0);
    return s;
}

static void open_with(enum bt_zmq_kind kind, unsigned per_second)
{
    assert_int_equal(bt_zmq_new(&zmq, &loop), 0);
    bind_one(kind, per_second);
    allow("127.0.0.0/8");
    assert_int_equal(bt_zmq_start(zmq), 0);
    sender = new_sender(kind == BT_ZMQ_PULL ? BT_ZMQ_PUSH : BT_ZMQ_DEALER, "10.0.0.7:14579");
}

static int setup(void **state)
{
    alarm(50);
    bt_log_set(BT_LOG_ERROR + 1, false, 2);
    got = ended = other_at = refused = 0;
    is_counted_only = false;
    return bt_loop_init(&loop, BT_LOOP_CONTROL);
}

static int teardown(void **state)
{
    if (zmq != NULL) {
        bt_zmq_close(zmq, 5000, on_closed, &ended);
        TURN_UNTIL(&loop, ended == 1);
    }
    zmq = NULL;
    bt_zmq_sender_free(sender);
    sender = NULL;
    bt_loop_fini(&loop);
    return 0;
}

static void send_frames(bt_zmq_sender_t *s, const char *const *texts, unsigned count)
{
    bt_str_t frames[8];

    for (unsigned i = 0; i < count; i++)
        frames[i] = bt_str(texts[i]);
    STEP_UNTIL(bt_zmq_sender_send(s, frames, count) == 0, turn_once(&loop));
}

static void send_one(bt_zmq_sender_t *s, const char *text)
{
    send_frames(s, &text, 1);
}

/* ---- what is right ---- */

static void test_router_tells_who_sent_it(void **state)
{
    open_with(BT_ZMQ_ROUTER, 0);
    send_one(sender, "hello");
    TURN_UNTIL(&loop, got == 1);
    assert_int_equal(last_count, 2);
    assert_string_equal(last[0], "10.0.0.7:14579");
    assert_string_equal(last[1], "hello");
    assert_non_null(strstr(last_peer, "127.0.0.1"));
}

static void test_pull_has_the_frames_only(void **state)
{
    static const char *const two[] = {"a", "bc"};

    open_with(BT_ZMQ_PULL, 0);
    send_frames(sender, two, 2);
    TURN_UNTIL(&loop, got == 1);
    assert_int_equal(last_count, 2);
    assert_string_equal(last[0], "a");
    assert_string_equal(last[1], "bc");
}

static void test_two_sockets(void **state)
{
    unsigned first;

    assert_int_equal(bt_zmq_new(&zmq, &loop), 0);
    bind_one(BT_ZMQ_ROUTER, 0);
    sender = new_sender(BT_ZMQ_DEALER, "");
    first = port;
    bind_one(BT_ZMQ_PULL, 0);
    assert_int_not_equal(port, first);
    bt_zmq_sender_t *push = new_sender(BT_ZMQ_PUSH, "");
    allow("127.0.0.1");
    assert_int_equal(bt_zmq_start(zmq), 0);
    send_one(sender, "to the first");
    TURN_UNTIL(&loop, got == 1);
    send_one(push, "to the second");
    TURN_UNTIL(&loop, got == 2);
    assert_int_equal(last_count, 1);
    bt_zmq_sender_free(push);
}

static void test_a_port_that_is_taken(void **state)
{
    struct sockaddr_storage addr;
    unsigned ignored;
    int fd = raw_listen(AF_INET, &addr);
    const bt_zmq_socket_config_t config = {.host = "127.0.0.1",
                                           .port = ntohs(((struct sockaddr_in *) &addr)->sin_port)};

    assert_int_equal(bt_zmq_new(&zmq, &loop), 0);
    assert_int_equal(bt_zmq_bind(zmq, &config, &ignored), UV_EADDRINUSE);
    assert_int_equal(bt_zmq_bind(zmq, &(bt_zmq_socket_config_t){.host = "no such host"}, &ignored),
                     UV_EADDRNOTAVAIL);
    close(fd);
}

/* ---- what is wrong ---- */

static void test_too_many_frames_are_counted(void **state)
{
    static const char *const five[] = {"1", "2", "3", "4", "5"};

    open_with(BT_ZMQ_PULL, 0);
    send_frames(sender, five, 5);
    send_one(sender, "after it");
    TURN_UNTIL(&loop, got == 1);
    assert_string_equal(last[0], "after it");
    assert_int_equal(bt_zmq_stats(zmq).malformed, 1);
    assert_int_equal(bt_zmq_stats(zmq).messages, 1);
}

static void test_a_frame_that_is_too_large(void **state)
{
    char big[1002];

    open_with(BT_ZMQ_ROUTER, 0);
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    send_one(sender, big);
    bt_zmq_sender_t *other = new_sender(BT_ZMQ_DEALER, "other");
    send_one(other, "small");
    TURN_UNTIL(&loop, got == 1);
    assert_string_equal(last[1], "small");
    send_one(sender, "back"); /* its connection was cut; it has dialled again */
    TURN_UNTIL(&loop, got == 2);
    bt_zmq_sender_free(other);
}

static int dial(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t) port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *) &addr, sizeof(addr)), 0);
    return fd;
}

/* Not ZeroMQ at all: HTTP, nothing, half a greeting, noise; then resets. */
static void test_bytes_that_are_no_zeromq(void **state)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "", "\xff\0\0\0\0\0\0\0\1\x7f",
                                        "\0\0\0\0\0\0\0\0\0\0\0\0"};
    int fds[40];

    open_with(BT_ZMQ_ROUTER, 0);
    for (unsigned i = 0; i < 40; i++) {
        fds[i] = dial();
        (void) !send(fds[i], texts[i % 4], i % 4 == 0 ? 18 : i % 4 == 1 ? 0 : 10, MSG_NOSIGNAL);
    }
    for (unsigned i = 0; i < 40; i++)
        close_with_reset(fds[i]);
    send_one(sender, "still there");
    TURN_UNTIL(&loop, got == 1);
    assert_string_equal(last[1], "still there");
}

static void test_peers_that_vanish_and_come_back(void **state)
{
    open_with(BT_ZMQ_ROUTER, 0);
    for (unsigned i = 0; i < 20; i++) {
        bt_zmq_sender_t *again = new_sender(BT_ZMQ_DEALER, "the same name");
        send_one(again, "here");
        TURN_UNTIL(&loop, got == i + 1);
        bt_zmq_sender_free(again);
    }
    assert_string_equal(last[0], "the same name");
}

/* ---- who may come ---- */

/* From another address of this host than 127.0.0.1. */
static bt_zmq_sender_t *new_sender_from(const char *host, const char *identity)
{
    bt_zmq_sender_t *s;
    char endpoint[64];

    snprintf(endpoint, sizeof(endpoint), "tcp://%s:0;127.0.0.1:%u", host, port);
    assert_int_equal(bt_zmq_sender_new(&s, BT_ZMQ_DEALER, endpoint, bt_str(identity)), 0);
    return s;
}

/* It is not heard, does not take the name of one that is, and is let in by the same connection's next try once it may. */
static void test_a_stranger_is_not_let_in(void **state)
{
    open_with(BT_ZMQ_ROUTER, 0);
    allow("127.0.0.1");
    send_one(sender, "first");
    TURN_UNTIL(&loop, got == 1);
    bt_zmq_sender_t *stranger = new_sender_from("127.0.0.2", "10.0.0.7:14579");
    send_one(stranger, "of a stranger");
    TURN_UNTIL(&loop, refused > 0);
    assert_non_null(strstr(last_peer, "127.0.0.2"));
    assert_true(bt_zmq_stats(zmq).refused > 0);
    send_one(sender, "second");
    TURN_UNTIL(&loop, got == 2);
    assert_string_equal(last[1], "second");
    allow("127.0.0.2");
    TURN_UNTIL(&loop, got == 3);
    assert_string_equal(last[1], "of a stranger");
    bt_zmq_sender_free(stranger);
}

/* Nobody before somebody is named, and those who are connected stay. */
static void test_nobody_before_the_first_list(void **state)
{
    assert_int_equal(bt_zmq_new(&zmq, &loop), 0);
    bind_one(BT_ZMQ_ROUTER, 0);
    assert_int_equal(bt_zmq_start(zmq), 0);
    sender = new_sender(BT_ZMQ_DEALER, "early");
    TURN_UNTIL(&loop, refused > 0);
    allow("127.0.0.1");
    send_one(sender, "hello");
    TURN_UNTIL(&loop, got == 1);
    allow("127.0.0.2");
    send_one(sender, "again");
    TURN_UNTIL(&loop, got == 2);
}

/* ---- too much ---- */

/* One floods; the other is heard all the same, and nothing is lost. */
static void test_a_flood_is_held_back(void **state)
{
    const bt_str_t frame = BT_STR("x");
    unsigned sent = 0;

    open_with(BT_ZMQ_PULL, 1000);
    STEP_UNTIL(bt_zmq_stats(zmq).held_back > 3, {
        while (sent < MANY && bt_zmq_sender_send(sender, &frame, 1) == 0)
            sent++;
        turn_once(&loop);
    });
    bt_zmq_sender_t *other = new_sender(BT_ZMQ_PUSH, "");
    send_one(other, "me too");
    TURN_UNTIL(&loop, got == sent + 1);
    assert_in_range(other_at, 1, sent); /* before the flood was over */
    bt_zmq_sender_free(other);
}

/* The control loop does not turn: what waits for it stays bounded. */
static void test_a_loop_that_does_not_take(void **state)
{
    unsigned sent = 0;

    open_with(BT_ZMQ_PULL, 1000000);
    is_counted_only = true;
    const bt_str_t frame = BT_STR("x");
    STEP_UNTIL(bt_zmq_stats(zmq).held_back > 0, {
        if (bt_zmq_sender_send(sender, &frame, 1) == 0)
            sent++;
    });
    assert_true(bt_zmq_stats(zmq).messages <= 1024);
    TURN_UNTIL(&loop, got == sent);
}

/* ---- the end ---- */

static void test_stops_while_it_is_flooded(void **state)
{
    unsigned after;

    open_with(BT_ZMQ_PULL, 1000000);
    is_counted_only = true;
    const bt_str_t frame = BT_STR("x");
    STEP_UNTIL(got > 100, {
        while (bt_zmq_sender_send(sender, &frame, 1) == 0)
            ;
        turn_once(&loop);
    });
    after = got;
    bt_zmq_close(zmq, 5000, on_closed, &ended);
    zmq = NULL;
    STEP_UNTIL(ended == 1, {
        (void) bt_zmq_sender_send(sender, &frame, 1);
        turn_once(&loop);
    });
    assert_int_equal(got, after); /* nobody is called after close */
}

static void test_closed_before_it_starts(void **state)
{
    assert_int_equal(bt_zmq_new(&zmq, &loop), 0);
    bind_one(BT_ZMQ_ROUTER, 0);
    bt_zmq_close(zmq, 5000, on_closed, &ended);
    zmq = NULL;
    assert_int_equal(ended, 1);
}

/* libzmq hangs: the deadline ends the wait. The thread then ends by itself, and touches nothing. */
static void test_a_deadline_ends_the_wait(void **state)
{
    uv_sem_init(&let_go, 0);
    open_with(BT_ZMQ_PULL, 0);
    hung = &let_go;
    bt_zmq_close(zmq, 20, on_closed, &ended);
    zmq = NULL;
    TURN_UNTIL(&loop, ended == 1);
    hung = NULL;
    uv_sem_post(&let_go);
    turn(&loop, 5);
    assert_int_equal(ended, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_router_tells_who_sent_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pull_has_the_frames_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_sockets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_port_that_is_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_frames_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_frame_that_is_too_large, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bytes_that_are_no_zeromq, setup, teardown),
        cmocka_unit_test_setup_teardown(test_peers_that_vanish_and_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stranger_is_not_let_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_before_the_first_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_flood_is_held_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_loop_that_does_not_take, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stops_while_it_is_flooded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_closed_before_it_starts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_deadline_ends_the_wait, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
