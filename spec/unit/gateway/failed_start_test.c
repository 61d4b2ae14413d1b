/* A start that fails when threads run already: nobody is freed before they have said their last word. */
#include "base/err.h"
#include "gateway/gateway.h"
#include "loop/loop.h"
#include "unit.h"

#include <stdatomic.h>
#include <time.h>

#define NAP_NS 200000000L /* of a library that does not come back at once */

static _Atomic unsigned loops_ended;
static atomic_bool has_ended, was_waited_for;

struct bt_gateway_loop;
int __wrap_bt_gateway_loop_start(struct bt_gateway_loop *loop);
void __real_bt_loop_fini(bt_loop_t *loop);
void __wrap_bt_loop_fini(bt_loop_t *loop);
int __real_zmq_ctx_term(void *context);
int __wrap_zmq_ctx_term(void *context);

int __wrap_bt_gateway_loop_start(struct bt_gateway_loop *loop)
{
    (void) loop;
    return BT_E_LIMIT; /* no thread to be had */
}

void __wrap_bt_loop_fini(bt_loop_t *loop)
{
    if (atomic_fetch_add(&loops_ended, 1) == 1) /* the one that serves, then the control loop */
        was_waited_for = has_ended;
    __real_bt_loop_fini(loop);
}

/* The thread of the sockets has something to post afterwards. */
int __wrap_zmq_ctx_term(void *context)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    int rc;

    nanosleep(&nap, NULL);
    rc = __real_zmq_ctx_term(context);
    has_ended = true;
    return rc;
}

static void the_sockets_thread_is_waited_for(void **state)
{
    static const char *const argv[] = {"--worker-urls",   "http://127.0.0.1:1",
                                       "--port",          "0",
                                       "--admin-port",    "0",
                                       "--p2p-nccl-port", "0",
                                       "--loops",         "1"};
    const int argc = sizeof(argv) / sizeof(argv[0]);
    char err[BT_CONFIG_ERR_BYTES] = "";
    bt_gateway_t *gateway = NULL;
    bt_config_t config;

    if (bt_config_load(&config, argc, argv, err, sizeof(err)) < 0 ||
        bt_gateway_open(&gateway, &config, argc, argv, err, sizeof(err)) < 0)
        fail_msg("%s", err);
    assert_int_equal(bt_gateway_run(gateway), 1);
    bt_gateway_close(gateway);
    bt_config_fini(&config);
    assert_int_equal(loops_ended, 2);
    assert_true(was_waited_for);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_sockets_thread_is_waited_for)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
