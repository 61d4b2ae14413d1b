/* GET /rooms and the hub's metrics; what a room looks like is spec'd in transfer/describe_test.c. */
#include "admin/help.h"

#include "admin/prom_check.h"
#include "admin/rooms.h"

static rig_t rig;
static bt_loop_t loop;
static bt_transfer_t *hub;

static int open_rig(void **state)
{
    static const bt_transfer_config_t config;

    (void) state;
    rig_open(&rig, 1);
    return bt_loop_init(&loop, BT_LOOP_CONTROL) != 0 || bt_transfer_new(&hub, &loop, &config) != 0;
}

static int close_rig(void **state)
{
    (void) state;
    rig_close(&rig);
    bt_transfer_close(hub, NULL, NULL);
    bt_loop_fini(&loop);
    return 0;
}

static void test_without_a_hub(void **state)
{
    (void) state;
    assert_int_equal(ask(&rig, "GET", "/rooms", NULL), 404);
    assert_said(&rig, "--transfer-port");
    assert_json(bt_text_str(&rig.reply.body));
}

static void test_rooms(void **state)
{
    (void) state;
    rig.config.transfer = hub;
    assert_int_equal(ask(&rig, "GET", "/admin/rooms", NULL), 200);
    assert_string_equal(said(&rig), "{\"agents\":[],\"rooms\":[],\"rooms_total\":0}\n");
    assert_int_equal(ask(&rig, "GET", "/rooms?limit=5", NULL), 200);
    static const char *const bad[] = {"/rooms?limit=", "/rooms?limit=-1", "/rooms?limit=100001",
                                      "/rooms?limit=5&x=1", "/rooms?limit=99999999999999999999"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ask(&rig, "GET", bad[i], NULL), 400);
        assert_said(&rig, "limit=N");
    }
    assert_int_equal(ask(&rig, "POST", "/rooms", ""), 405);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = false}, "GET", "/rooms", NULL),
                     401);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = true, .workers_only = true},
                            "GET", "/rooms", NULL),
                     404);
}

static void test_metrics(void **state)
{
    static const char *const lines[] = {
        "# TYPE baton_transfer_agents gauge\nbaton_transfer_agents 2\n",
        "\nbaton_transfer_agents_waiting 1\n",
        "\nbaton_transfer_agents_lost_total 3\n",
        "\nbaton_transfer_agents_refused_total 4\n",
        "\nbaton_transfer_rooms{phase=\"moving\"} 5\n",
        "\nbaton_transfer_rooms{phase=\"orphaned\"} 0\n",
        "\nbaton_transfer_rooms_total{result=\"done\"} 6\n",
        "\nbaton_transfer_rooms_total{result=\"failed\"} 7\n",
        "\nbaton_transfer_rooms_total{result=\"closed\"} 8\n",
        "\nbaton_transfer_rooms_orphaned_total 9\n",
        "\nbaton_transfer_rooms_repaired_total 10\n",
        "\nbaton_transfer_bytes_total 11\n",
        "\nbaton_transfer_wait_seconds_total 1.500000\n",
        "\nbaton_transfer_seconds_total 0.000002\n"};
    bt_transfer_stats_t stats = {.agents = 2,
                                 .agents_waiting = 1,
                                 .agents_lost = 3,
                                 .agents_refused = 4,
                                 .rooms_done = 6,
                                 .rooms_failed = 7,
                                 .rooms_closed = 8,
                                 .rooms_orphaned = 9,
                                 .rooms_repaired = 10,
                                 .bytes = 11,
                                 .wait_us = 1500000,
                                 .transfer_us = 2};
    bt_text_t out;

    (void) state;
    stats.rooms_by_phase[BT_TRANSFER_PHASE_MOVING] = 5;
    bt_text_init(&out);
    bt_metrics_transfer(&(bt_prom_t){.out = &out}, &stats);
    assert_true(prom_check(bt_text_str(&out)) > 0);
    for (unsigned i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (strstr(out.data, lines[i]) == NULL)
            fail_msg("no %s in:\n%s", lines[i], out.data);
    bt_text_fini(&out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_without_a_hub),
        TEST(test_rooms),
        TEST(test_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
