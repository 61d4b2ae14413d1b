/* GET /rooms, GET /rooms/<room> and the hub's metrics; what a room looks like is spec'd in transfer/describe_test.c, whom the loops and the other replicas name in
 * admin/live_test.c and fleet/replica_test.c.
 */
#include "admin/help.h"

#include "admin/metrics/metrics.h"
#include "admin/prom_check.h"
#include "admin/status/rooms.h"
#include "loop/util.h"

static rig_t rig;
static bt_loop_t loop;
static bt_transfer_t *hub;

static int open_rig(void **state)
{
    static const bt_transfer_config_t config;

    rig_open(&rig, 1);
    return bt_loop_init(&loop, BT_LOOP_CONTROL) != 0 || bt_transfer_new(&hub, &loop, &config) != 0;
}

static int close_rig(void **state)
{
    rig_close(&rig);
    bt_transfer_free(hub, NULL, NULL);
    bt_loop_fini(&loop);
    return 0;
}

static void test_without_a_hub(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/rooms", NULL), 404);
    assert_said(&rig, "--transfer-port");
    assert_json(bt_text_str(&rig.reply.body));
}

static void test_rooms(void **state)
{
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

/* ---- one room ---- */

static void test_a_rooms_number(void **state)
{
    static const char *const bad[] = {"/rooms/0",
                                      "/rooms/x",
                                      "/rooms/-1",
                                      "/rooms/1.5",
                                      "/rooms/+5",
                                      "/rooms/5/",
                                      "/rooms/%205",
                                      "/rooms/9223372036854775808",
                                      "/rooms/99999999999999999999999"};

    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ask(&rig, "GET", bad[i], NULL), 400);
        assert_int_equal(rig.state, BT_ANSWERED);
        assert_said(&rig, "from 1 to 9223372036854775807");
    }
    assert_int_equal(ask(&rig, "GET", "/admin/rooms/9223372036854775807", NULL), 200);
    assert_int_equal(rig.state, BT_WANTS_ROOM);
    assert_true(rig.reply.number == INT64_MAX);
    assert_int_equal(ask(&rig, "HEAD", "/rooms/0000000000000000000000000012", NULL), 200);
    assert_int_equal(rig.reply.number, 12);
    assert_int_equal(ask(&rig, "DELETE", "/rooms/5", NULL), 405);
    assert_int_equal(
        ask_as(&rig, (bt_admin_request_t){.authorized = false}, "GET", "/rooms/5", NULL), 401);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = true, .workers_only = true},
                            "GET", "/rooms/5", NULL),
                     404);
}

/* Of this process, as its loop of this index mints them; of none that has so few loops. */
static uint64_t own_room(unsigned index)
{
    return ((uint64_t) (bt_rooms_word() ^ index) << 53) + 4711;
}

/* One loop, which has said this of the room (NULL: late). */
static unsigned answer(uint64_t room, const char *rows, uint64_t hub_room)
{
    bt_loop_facts_t facts = {.answered = rows != NULL, .hub_room = hub_room};

    bt_text_init(&facts.rows);
    if (rows != NULL)
        bt_text_puts(&facts.rows, rows);
    bt_reply_fini(&rig.reply);
    bt_reply_init(&rig.reply);
    bt_admin_room_answer(&rig.config, room, &facts, 1, &rig.reply);
    bt_text_fini(&facts.rows);
    assert_json(bt_text_str(&rig.reply.body));
    return rig.reply.status;
}

static void test_a_room_of_this_gateway(void **state)
{
    char wanted[200];

    assert_int_equal(answer(own_room(0), "\"request\":{\"id\":\"r\"},\"attempt\":{}", 0), 200);
    snprintf(
        wanted, sizeof wanted,
        "{\"room\":\"%llu\",\"replica\":null,\"here\":{\"request\":{\"id\":\"r\"},\"attempt\":{"
        "},\"transfer\":null},\"elsewhere\":[]}\n",
        (unsigned long long) own_room(0));
    assert_string_equal(said(&rig), wanted);
    assert_int_equal(answer(own_room(0), "", 0), 404);
    assert_said(&rig, "it has ended");
    assert_said(&rig, "GET /explain/<request id>");
    assert_int_equal(answer(own_room(0), NULL, 0), 503); /* the loop is late */
    assert_said(&rig, "loop 0");
    assert_int_equal(answer(own_room(1), "", 0), 404);
    assert_said(&rig, "it is alone: --redis-url");
    assert_int_equal(answer(own_room(1), NULL, 0), 404); /* that loop could not have it */
}

static void fill_worker(bt_worker_t **w_p, enum bt_role role, const char *name, const char *url)
{
    *w_p = rig_add(&rig, role, name, url, "BatonConnector");
}

static void on_event(void *user, const bt_transfer_event_t *event)
{
    (void) event;
    (*(unsigned *) user)++;
}

/* The hub remembers it, because it could not even be opened: nobody's agents are there. */
static void test_a_gateway_managed_room_that_has_ended(void **state)
{
    unsigned events = 0;
    bt_transfer_room_spec_t spec = {.room = own_room(0),
                                    .request_id = "req-1",
                                    .loop = &loop,
                                    .on_event = on_event,
                                    .user = &events};

    rig.config.transfer = hub;
    fill_worker(&spec.prefill, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:1");
    fill_worker(&spec.decode, BT_ROLE_DECODE, "d0", "http://127.0.0.1:2");
    assert_int_equal(answer(own_room(0), "", 0), 404);
    assert_int_equal(bt_transfer_room_open(hub, &spec), 0);
    TURN_UNTIL(&loop, events == 1);
    assert_int_equal(answer(own_room(0), "", 0), 200);
    assert_said(&rig, "\"here\":{\"request\":null,\"attempt\":null,\"transfer\":{\"room\":");
    assert_said(&rig, "\"request_id\":\"req-1\"");
    assert_said(&rig, "\"phase\":\"failed\"");
    assert_int_equal(answer(own_room(0), NULL, 0), 200); /* that much is known without the loop */
    /* An earlier prefill's number for it: the loop tells how the hub calls it. */
    assert_int_equal(answer(own_room(0) + 1, "\"request\":{},\"attempt\":{}", own_room(0)), 200);
    assert_said(&rig, "\"request\":{},\"attempt\":{},\"transfer\":{\"room\":");
    assert_int_equal(answer(own_room(0) + 1, "", 0), 404);
}

/* Two shares over a store of this process: each takes the other's rooms for its own as well, because the word is one process's. */
static void on_closed(void *user)
{
    ++*(unsigned *) user;
}

static bt_fleet_t *start_share(bt_store_t *store, const char *name)
{
    const bt_fleet_config_t config = {.store = store,
                                      .replica = name,
                                      .admin_url = "http://127.0.0.1:1",
                                      .interval_ms = 10,
                                      .loops = 2,
                                      .registry = rig.registry};
    bt_fleet_t *fleet;
    char err[256] = "";

    if (bt_fleet_new(&fleet, &loop, &config, err, sizeof err) != 0)
        fail_msg("%s", err);
    return fleet;
}

static void test_a_room_of_another_replica(void **state)
{
    bt_store_t *store;
    unsigned closed = 0;
    char err[256];

    assert_int_equal(bt_store_open(&store, &(bt_store_config_t){0}, err, sizeof err), 0);
    rig.config.fleet = start_share(store, "a");
    rig.shared.replica = "a";
    bt_fleet_t *other = start_share(store, "b");
    TURN_UNTIL(&loop, bt_fleet_replicas(rig.config.fleet) == 2);
    assert_int_equal(answer(own_room(1), "", 0), 200);
    assert_said(&rig, "\"replica\":\"a\",\"here\":null,\"elsewhere\":[{\"name\":\"b\",\"admin\":"
                      "\"http://127.0.0.1:1\"}]}");
    assert_int_equal(answer(own_room(0), NULL, 0),
                     503); /* it may be here: "elsewhere" is no answer */
    assert_int_equal(answer(own_room(2), "", 0), 404);
    assert_said(&rig, "no replica that is known now");
    bt_fleet_close(other, on_closed, &closed);
    bt_fleet_close(rig.config.fleet, on_closed, &closed);
    TURN_UNTIL(&loop, closed == 2);
    rig.config.fleet = NULL;
    bt_store_close(store);
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
        TEST(test_a_rooms_number),
        TEST(test_a_room_of_this_gateway),
        TEST(test_a_gateway_managed_room_that_has_ended),
        TEST(test_a_room_of_another_replica),
        TEST(test_metrics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
