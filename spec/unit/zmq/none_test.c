/* A build without libzmq: everything answers, and says what is missing. */
#include "zmq/msgpack.h"
#include "zmq/sender.h"
#include "zmq/sockets.h"

#include "base/err.h"
#include "loop/util.h"

static void on_closed(void *user)
{
    *(bool *) user = true;
}

static void test_all_is_refused(void **state)
{
    bt_zmq_sender_t *sender = NULL;
    bt_zmq_t *zmq = NULL;
    bt_msgpack_t m;
    unsigned port;
    bool is_closed = false;

    assert_false(bt_zmq_is_built());
    assert_non_null(strstr(bt_zmq_not_built, "libzmq3-dev"));
    assert_int_equal(bt_zmq_new(&zmq, NULL), BT_E_CONFIG);
    assert_int_equal(bt_zmq_bind(zmq, NULL, &port), BT_E_CONFIG);
    assert_int_equal(bt_zmq_start(zmq), BT_E_CONFIG);
    assert_int_equal(bt_zmq_set_allowed(zmq, NULL, 0), BT_E_CONFIG);
    assert_int_equal(bt_zmq_stats(zmq).messages, 0);
    bt_zmq_close(zmq, 1, on_closed, &is_closed);
    assert_true(is_closed);
    assert_int_equal(bt_zmq_sender_new(&sender, BT_ZMQ_DEALER, "tcp://127.0.0.1:1", BT_STR("")),
                     BT_E_CONFIG);
    assert_int_equal(bt_zmq_sender_send(sender, NULL, 0), BT_E_CONFIG);
    bt_zmq_sender_free(sender);
    assert_int_equal(bt_msgpack_open(&m, BT_STR("\x80")), BT_E_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_is_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
