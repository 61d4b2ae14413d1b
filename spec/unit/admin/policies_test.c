#include "admin/help.h"

#include "admin/policies/policies.h"

static rig_t rig;

/* Without loops and pools: GET is answered by it, PUT and DELETE are the caller's. */
static bt_reload_t *open_reload(bt_loop_t *control, bt_config_t *const *config)
{
    bt_reload_config_t of = {.control = control, .first = *config, .current = config};
    bt_reload_t *reload;
    char err[256];

    assert_int_equal(bt_loop_init(control, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_reload_new(&reload, &of), 0);
    assert_int_equal(bt_reload_open(reload, err, sizeof(err)), 0);
    return reload;
}

static void close_reload(bt_loop_t *control, bt_reload_t *reload)
{
    bt_reload_stop(reload);
    bt_loop_fini(control);
    bt_reload_free(reload);
}

static int open_rig(void **state)
{
    rig_open(&rig, 1);
    return 0;
}

static int close_rig(void **state)
{
    rig_close(&rig);
    return 0;
}

static void test_names(void **state)
{
    char name[80];

    assert_true(bt_policies_name_ok(BT_STR("mine")));
    assert_true(bt_policies_name_ok(BT_STR("My_own-2.1")));
    assert_false(bt_policies_name_ok(BT_STR("")));
    assert_false(bt_policies_name_ok(BT_STR("..")));
    assert_false(bt_policies_name_ok(BT_STR(".hidden")));
    assert_false(bt_policies_name_ok(BT_STR("a/b")));
    assert_false(bt_policies_name_ok(BT_STR("a b")));
    assert_false(bt_policies_name_ok(BT_STR("a\"b")));
    memset(name, 'a', sizeof name);
    assert_true(bt_policies_name_ok((bt_str_t){name, 64}));
    assert_false(bt_policies_name_ok((bt_str_t){name, 65}));
}

static void test_without_policies_there_is_nothing(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/policies", NULL), 404);
    assert_int_equal(ask(&rig, "PUT", "/policies/mine", "return {}"), 404);
    assert_int_equal(rig.state, BT_ANSWERED);
}

static void test_routes(void **state)
{
    bt_config_t config = {0}, *current = &config;
    bt_loop_t control;

    rig.config.reload = open_reload(&control, &current);
    assert_int_equal(ask(&rig, "GET", "/admin/policies", NULL), 200);
    assert_said(&rig, "\"step\":\"idle\",\"pools\":[]");
    assert_int_equal(ask(&rig, "GET", "/rules", NULL), 200);
    assert_said(&rig, "\"rules\":[]");
    assert_int_equal(ask(&rig, "PUT", "/admin/policies/mine", "return {}"), 200);
    assert_int_equal(rig.state, BT_WANTS_POLICY_PUT);
    assert_string_equal(rig.reply.name, "mine");
    assert_int_equal(ask(&rig, "DELETE", "/policies/m%69ne", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_POLICY_DELETE);
    assert_string_equal(rig.reply.name, "mine");
    assert_int_equal(ask(&rig, "PUT", "/policies/a%2Fb", "return {}"), 400);
    assert_int_equal(rig.state, BT_ANSWERED);
    assert_int_equal(ask(&rig, "PUT", "/policies/mine", NULL), 400);
    assert_int_equal(rig.state, BT_ANSWERED);
    assert_int_equal(ask(&rig, "POST", "/policies/mine", "x"), 405);
    assert_string_equal(rig.reply.allow, "GET, HEAD, PUT, DELETE");
    close_reload(&control, rig.config.reload);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_without_policies_there_is_nothing, open_rig,
                                        close_rig),
        cmocka_unit_test_setup_teardown(test_routes, open_rig, close_rig),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
