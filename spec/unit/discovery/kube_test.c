/* The name of an API server, where the name server is silent; what an API server says is gateway/workers_kubernetes' to show. */
#include "discovery/kube.h"

#include "loop/names.h"
#include "loop/util.h"

static int ignore(void *user, bt_found_change_t *changes, unsigned count)
{
    (void) user;
    (void) changes;
    (void) count;
    return 0;
}

static void a_silent_name_server_holds_up_no_end(void **state)
{
    bt_kube_options_t options = {.namespace = "llm", .api = "http://silent.test:1"};
    char err[256] = "";
    bt_loop_t loop;
    bt_kube_t *k;

    names_host = "silent.test";
    names_addresses[0] = "127.0.0.1";
    atomic_store(&names_are_silent, true);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    if (bt_kube_open(&k, &loop, &options, ignore, NULL, err, sizeof err) < 0) {
        print_message("%s\n", err); /* no libcurl here */
        bt_loop_fini(&loop);
        skip();
    }
    bt_kube_start(k);
    TURN_UNTIL(&loop, atomic_load(&names_waiting) == 1);
    bt_kube_close(k);
    bt_loop_fini(&loop);
    assert_int_equal(atomic_load(&names_waiting), 1); /* still */
    atomic_store(&names_are_silent, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_silent_name_server_holds_up_no_end)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
