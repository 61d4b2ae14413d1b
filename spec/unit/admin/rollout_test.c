#include "admin/help.h"

#include "admin/policies/rollout.h"
#include "base/err.h"

static rig_t rig;

/* A rollout that is asked for nothing: it has no turns of its loop. */
static bt_store_t *store;
static bt_store_client_t *client;
static bt_rollout_t *rollout;

static void make_rollout(void)
{
    static const bt_rollout_ops_t ops;
    const bt_store_config_t config = {0};
    char err[256];

    assert_int_equal(bt_loop_init(&rig.loops[0], 0), 0);
    assert_int_equal(bt_store_open(&store, &config, err, sizeof err), 0);
    assert_int_equal(bt_store_client_new(&client, store, &rig.loops[0], NULL, NULL), 0);
    const bt_rollout_config_t wanted = {
        .client = client, .space = "fleet", .replica = "a", .ops = &ops};
    assert_int_equal(bt_rollout_new(&rollout, &rig.loops[0], &wanted), 0);
    rig.config.rollout = rollout;
}

static void on_client_gone(void *user)
{
    (void) user;
    client = NULL;
}

static void free_rollout(void)
{
    bt_rollout_free(rollout);
    bt_store_client_free(client, on_client_gone, NULL);
    while (client != NULL)
        uv_run(&rig.loops[0].uv, UV_RUN_ONCE);
    bt_store_close(store);
    bt_loop_fini(&rig.loops[0]);
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

static void test_a_gateway_that_is_alone(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/fleet/policies", NULL), 404);
    assert_said(&rig, "--redis-url");
    assert_int_equal(ask(&rig, "PUT", "/fleet/policies/mine", "return {}"), 404);
    assert_int_equal(rig.state, BT_ANSWERED);
    assert_int_equal(ask(&rig, "POST", "/fleet/pin", NULL), 404);
}

static void expect(const char *method, const char *target, const char *body,
                   enum bt_answer_state what)
{
    assert_int_equal(ask(&rig, method, target, body), 200);
    assert_int_equal(rig.state, what);
}

static void test_routes(void **state)
{
    make_rollout();
    assert_int_equal(ask(&rig, "GET", "/admin/fleet/policies", NULL), 200);
    assert_said(&rig, "{\"fleet\":\"fleet\",\"replica\":\"a\",\"serving\":{\"number\":0,");
    expect("PUT", "/admin/fleet/policies/m%69ne?by=ann%40h", "return {}", BT_WANTS_FLEET_PUT);
    assert_string_equal(rig.reply.name, "mine");
    assert_string_equal(rig.reply.by, "ann@h");
    expect("DELETE", "/fleet/policies/mine", NULL, BT_WANTS_FLEET_DROP);
    assert_string_equal(rig.reply.by, "admin");
    expect("PUT", "/fleet/policies", "{}", BT_WANTS_FLEET_BUNDLE);
    expect("DELETE", "/fleet/policies", NULL, BT_WANTS_FLEET_CLEAR);
    expect("PUT", "/fleet/rules", "return {}", BT_WANTS_FLEET_PUT_RULES);
    expect("DELETE", "/fleet/rules", NULL, BT_WANTS_FLEET_DROP_RULES);
    expect("POST", "/fleet/rollback?to=12", NULL, BT_WANTS_FLEET_BACK);
    assert_int_equal(rig.reply.number, 12);
    expect("POST", "/fleet/rollback", NULL, BT_WANTS_FLEET_BACK);
    assert_int_equal(rig.reply.number, 0);
    expect("POST", "/fleet/pin", NULL, BT_WANTS_FLEET_PIN);
    expect("DELETE", "/fleet/pin", NULL, BT_WANTS_FLEET_UNPIN);
    free_rollout();
}

static void test_what_is_wrong_is_said_before_anybody_is_asked(void **state)
{
    static const struct {
        const char *method, *target, *body;
        unsigned status;
    } wrong[] = {
        {"PUT", "/fleet/policies/a%2Fb", "return {}", 400},
        {"PUT", "/fleet/policies/mine", NULL, 400},
        {"PUT", "/fleet/policies", NULL, 400},
        {"PUT", "/fleet/rules", NULL, 400},
        {"POST", "/fleet/rollback?to=x", NULL, 400},
        {"POST", "/fleet/rollback?to=-1", NULL, 400},
        {"POST", "/fleet/rollback?to=%zz", NULL, 400},
        {"GET", "/fleet/rollback", NULL, 405},
        {"POST", "/fleet/policies/mine", "x", 405},
    };

    make_rollout();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(ask(&rig, wrong[i].method, wrong[i].target, wrong[i].body),
                         wrong[i].status);
        assert_int_equal(rig.state, BT_ANSWERED);
    }
    free_rollout();
}

static void test_who_asks_cannot_drive_a_terminal(void **state)
{
    char by[8];
    bool is_dry_run;
    uint64_t to;

    assert_int_equal(bt_rollout_query(BT_STR("by=a%1b%0ab&x=1"), by, sizeof by, &to, &is_dry_run),
                     0);
    assert_string_equal(by, "a??b");
    assert_int_equal(bt_rollout_query(BT_STR("by=0123456789"), by, sizeof by, &to, &is_dry_run), 0);
    assert_string_equal(by, "0123456");
    assert_int_equal(bt_rollout_query(BT_STR("by="), by, sizeof by, &to, &is_dry_run), 0);
    assert_string_equal(by, "admin");
    assert_int_equal(bt_rollout_query(BT_STR("by=%00"), by, sizeof by, &to, &is_dry_run),
                     BT_E_INVAL);
    assert_false(is_dry_run);
    assert_int_equal(bt_rollout_query(BT_STR("dry_run=true"), by, sizeof by, &to, &is_dry_run), 0);
    assert_true(is_dry_run);
    assert_int_equal(bt_rollout_query(BT_STR("dry_run=yes"), by, sizeof by, &to, &is_dry_run),
                     BT_E_INVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_gateway_that_is_alone),
        TEST(test_routes),
        TEST(test_what_is_wrong_is_said_before_anybody_is_asked),
        cmocka_unit_test(test_who_asks_cannot_drive_a_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
