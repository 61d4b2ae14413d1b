/* What the admin side says of the store and the replicas: GET /fleet, and their metrics. What is in them is spec'd in share/share_test.c and share/quota_test.c. */
#include "admin/help.h"

#include "../loop/util.h"

#include "admin/metrics/metrics.h"
#include "admin/prom_check.h"

#include <stdio.h>

static rig_t rig;
static bt_loop_t loop;
static bt_store_t *store;
static bt_store_client_t *client;
static bt_fleet_t *fleet;
static bt_text_t out;

static int open_rig(void **state)
{
    char err[256] = "";
    bt_fleet_config_t config = {.space = "admin", .replica = "me", .admin_url = "http://a:1"};

    rig_open(&rig, 1);
    bt_text_init(&out);
    assert_int_equal(bt_loop_init(&loop, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_store_open(&store, &(bt_store_config_t){0}, err, sizeof err), 0);
    assert_int_equal(bt_store_client_new(&client, store, &loop, NULL, NULL), 0);
    config.store = store;
    config.registry = rig.registry;
    assert_int_equal(bt_fleet_new(&fleet, &loop, &config, err, sizeof err), 0);
    bt_fleet_set_workers(fleet, bt_registry_current(rig.registry));
    return 0;
}

static void on_gone(void *user)
{
    *(bool *) user = true;
}

static int close_rig(void **state)
{
    bool is_closed = false, is_gone = false;

    bt_fleet_close(fleet, on_gone, &is_closed);
    bt_store_client_free(client, on_gone, &is_gone);
    TURN_UNTIL(&loop, is_closed && is_gone);
    bt_store_close(store);
    bt_loop_fini(&loop);
    bt_text_fini(&out);
    rig_close(&rig);
    return 0;
}

static void test_alone(void **state)
{
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 404);
    assert_said(&rig, "this gateway is alone: --redis-url makes it one of a fleet");
    assert_json(bt_text_str(&rig.reply.body));
}

static void test_fleet(void **state)
{
    rig.config.fleet = fleet;
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_said(&rig, "{\"replica\":\"me\",");
    assert_said(&rig, "\"fleet\":\"admin\"");
    assert_said(&rig, "\"store\":{\"state\":\"up\",\"why\":null}");
    assert_said(&rig, "\"shared_workers\":0");
    assert_int_equal(ask(&rig, "GET", "/admin/fleet", NULL), 200);
    assert_int_equal(ask(&rig, "POST", "/fleet", ""), 405);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = false}, "GET", "/fleet", NULL),
                     401);
    assert_int_equal(ask_as(&rig, (bt_admin_request_t){.authorized = true, .workers_only = true},
                            "GET", "/fleet", NULL),
                     404);
    /* Once it has told: itself. */
    for (bool is_there = false; !is_there;) {
        turn_once(&loop);
        assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
        is_there = strstr(said(&rig), "\"replicas\":[{\"name\":\"me\",") != NULL;
    }
    assert_said(&rig, "\"admin\":\"http://a:1\"");
    assert_json(bt_text_str(&rig.reply.body));
}

/* One change through the API is one row that is shared, drained or not. */
static void test_workers_that_are_told(void **state)
{
    rig.config.fleet = fleet;
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:1\",\"name\":\"w\"}"), 201);
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_said(&rig, "\"shared_workers\":1");
    assert_int_equal(ask(&rig, "POST", "/workers/w/drain", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/workers/w", NULL), 200);
    assert_said(&rig, "\"draining\":true");
    assert_int_equal(ask(&rig, "DELETE", "/workers/w", NULL), 200);
    assert_int_equal(
        ask(&rig, "POST", "/workers", "{\"url\":\"http://127.0.0.1:1\",\"name\":\"w\"}"), 201);
    assert_said(&rig, "\"draining\":false");
    assert_int_equal(ask(&rig, "DELETE", "/workers/w", NULL), 200);
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_said(&rig, "\"shared_workers\":0");
}

/* Every change says whether the others hear of it; a gateway that is alone has nobody to tell. */
static void test_whether_the_others_are_told(void **state)
{
    static const char worker[] = "{\"url\":\"http://127.0.0.1:1\",\"name\":\"w\"}";

    for (unsigned i = 0; i < 2; i++) {
        const char *end = i == 0 ? "}\n" : ",\"fleet\":\"told\"}\n";
        char wanted[128];
        rig.config.fleet = i == 0 ? NULL : fleet;
        assert_int_equal(ask(&rig, "POST", "/workers", worker), 201);
        assert_json(bt_text_str(&rig.reply.body));
        assert_int_equal(strstr(said(&rig), "\"fleet\":\"told\"}\n") != NULL, i);
        assert_int_equal(ask(&rig, "POST", "/workers/w/drain", NULL), 200);
        snprintf(wanted, sizeof wanted, "{\"status\":\"draining\",\"worker\":\"w\"%s", end);
        assert_string_equal(said(&rig), wanted);
        assert_int_equal(ask(&rig, "POST", "/workers/w/undrain", NULL), 200);
        snprintf(wanted, sizeof wanted, "{\"status\":\"serving\",\"worker\":\"w\"%s", end);
        assert_string_equal(said(&rig), wanted);
        assert_int_equal(ask(&rig, "GET", "/workers/w", NULL), 200);
        assert_null(strstr(said(&rig), "\"fleet\""));
        assert_int_equal(ask(&rig, "DELETE", "/workers/w", NULL), 200);
        snprintf(wanted, sizeof wanted, "{\"status\":\"removed\",\"worker\":\"w\"%s", end);
        assert_string_equal(said(&rig), wanted);
    }
}

/* What is drained and no worker of ours: listed, and taken back by its url. */
static void test_a_drain_without_a_worker(void **state)
{
    bt_worker_t *w = rig_add(&rig, BT_ROLE_HYBRID, "w", "http://127.0.0.1:1", NULL);

    rig.config.fleet = fleet;
    (void) bt_fleet_worker_drained(fleet, "default", w, true);
    (void) bt_fleet_worker_drained(fleet, "other", w, true); /* not of this pool here */
    bt_fleet_set_workers(fleet, bt_registry_current(rig.registry));
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_json(bt_text_str(&rig.reply.body));
    assert_said(&rig, "{\"pool\":\"default\",\"worker\":\"127.0.0.1:1\",\"here\":true},"
                      "{\"pool\":\"other\",\"worker\":\"127.0.0.1:1\",\"here\":false}]");
    assert_int_equal(ask(&rig, "POST", "/workers/w/undrain", NULL), 200); /* a name: that one */
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_said(&rig, "\"drained\":[{\"pool\":\"other\",");
    assert_int_equal(bt_registry_remove(rig.registry, BT_STR("w")), 0);
    assert_int_equal(ask(&rig, "POST", "/workers/w/undrain", NULL), 404);
    assert_int_equal(ask(&rig, "POST", "/workers/127.0.0.1%3a1/drain", NULL), 404);
    assert_int_equal(ask(&rig, "POST", "/workers/http%3a%2f%2f127.0.0.1%3a1/undrain", NULL), 200);
    assert_string_equal(
        said(&rig),
        "{\"status\":\"serving\",\"worker\":\"http://127.0.0.1:1\",\"fleet\":\"told\"}\n");
    assert_int_equal(ask(&rig, "POST", "/workers/http%3a%2f%2f127.0.0.1%3a1/undrain", NULL), 404);
    assert_int_equal(ask(&rig, "GET", "/fleet", NULL), 200);
    assert_said(&rig, "\"drained\":[]");
}

/* ---- metrics ---- */

static void write_metrics(const bt_fleet_t *of, const bt_quotas_t *quotas)
{
    bt_text_fini(&out);
    bt_text_init(&out);
    bt_metrics_fleet(&(bt_prom_t){.out = &out}, store, of, quotas);
    assert_true(prom_check(bt_text_str(&out)) > 0);
}

static void assert_line(const char *line)
{
    if (strstr(out.data, line) == NULL)
        fail_msg("no %s in:\n%s", line, out.data);
}

static void test_metrics_of_what_is_there(void **state)
{
    write_metrics(NULL, NULL);
    assert_line("\nbaton_store_state{state=\"up\"} 1\n");
    assert_null(strstr(out.data, "baton_fleet_"));
    assert_null(strstr(out.data, "baton_quota_"));
    write_metrics(fleet, NULL);
    assert_line("\nbaton_fleet_replicas 1\n");
}

static bool is_told;

static void on_take(bt_quota_take_t *take)
{
    (void) take;
    is_told = true;
}

static void take(bt_quota_client_t *room, int64_t amount, bool is_granted)
{
    bt_quota_take_t t = {.key = BT_STR("k"),
                         .limit = 5,
                         .amount = amount,
                         .window_ms = UINT64_C(86400000) * 3650,
                         .cb = on_take};

    is_told = bt_quota_take(room, &t) == 0;
    TURN_UNTIL(&loop, is_told);
    assert_int_equal(t.rc, 0);
    assert_int_equal(t.is_granted, is_granted);
}

static void test_metrics_of_limits(void **state)
{
    bt_quotas_t *quotas;
    bt_quota_client_t *room;
    bt_quota_stats_t s;
    char line[80];

    assert_int_equal(bt_quotas_new(&quotas, "admin"), 0);
    assert_int_equal(bt_quota_client_new(&room, quotas, client, &loop), 0);
    write_metrics(NULL, quotas);
    assert_line("# TYPE baton_quota_live gauge\nbaton_quota_live 0\n");
    assert_line("# TYPE baton_quota_granted_total counter\nbaton_quota_granted_total 0\n");
    take(room, 2, true);
    take(room, 3, true);
    take(room, 1, false);
    write_metrics(NULL, quotas);
    assert_line("\nbaton_quota_live 1\n");
    assert_line("\nbaton_quota_granted_total 2\n");
    assert_line("\nbaton_quota_denied_total 1\n");
    assert_line("\nbaton_quota_unavailable_total 0\n");
    bt_quota_stats(quotas, &s);
    assert_true(s.leases > 0);
    snprintf(line, sizeof line, "\nbaton_quota_leases_total %llu\n", (unsigned long long) s.leases);
    assert_line(line);
    bt_quota_client_free(room);
    bt_quotas_free(quotas);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_rig, close_rig)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_alone),
        TEST(test_fleet),
        TEST(test_workers_that_are_told),
        TEST(test_whether_the_others_are_told),
        TEST(test_a_drain_without_a_worker),
        TEST(test_metrics_of_what_is_there),
        TEST(test_metrics_of_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
