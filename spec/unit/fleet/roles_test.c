/* Another role for a worker by one replica's API: what the others begin, and when an order ends. Switches end by hand. */
#include "rig.h"

static const unsigned one[] = {8001, 0};

static bt_worker_t *worker(const replica_t *r)
{
    return rig_worker(r, 8001);
}

/* As the admin API does it. */
static void order(replica_t *r, enum bt_role to)
{
    const bt_role_switch_ask_t ask = {.to = to, .timeout_ms = 7000};
    char err[256];

    assert_int_equal(rig_on_role(r, worker(r), &ask, err, sizeof(err)), 0);
    assert_null(bt_fleet_worker_role(r->fleet, "default", worker(r), &ask));
}

/* Its switch has come to an end. */
static void finish(replica_t *r)
{
    bt_worker_spec_t spec;
    char err[256];

    assert_int_equal(bt_worker_spec_copy(&spec, &worker(r)->spec), 0);
    spec.role = worker(r)->switch_to;
    assert_int_equal(bt_registry_replace(r->registry, worker(r), &spec, err, sizeof(err)), 0);
    bt_worker_spec_fini(&spec);
}

static void give_up(replica_t *r, bool is_unclear)
{
    bt_worker_t *w = worker(r);

    atomic_store(&w->switching, is_unclear ? BT_SWITCH_UNKNOWN : BT_SWITCH_NONE);
    bt_fleet_role_failed(r->fleet, w, w->switch_to, is_unclear);
}

/* What it knows of the table is what stands there now. */
static void look(const replica_t *r)
{
    bt_fleet_rows_read(r->fleet);
    rig_heartbeat(r, 3);
}

static const char *described(const replica_t *r)
{
    static char text[400];
    bt_text_t out;

    bt_text_init(&out);
    bt_fleet_roles_describe(r->fleet, &out);
    snprintf(text, sizeof(text), "%.*s", (int) out.len, out.data != NULL ? out.data : "");
    bt_text_fini(&out);
    return text;
}

static void ordered_on_one_switched_on_all(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 2 && bt_fleet_replicas(b.fleet) == 2);
    order(&a, BT_ROLE_DECODE);
    TURN_UNTIL(&rig_loop, b.begun == 1);
    assert_int_equal(b.asked.to, BT_ROLE_DECODE);
    assert_int_equal(b.asked.timeout_ms, 7000);
    assert_true(b.asked.is_forced);
    assert_true(b.asked.settle_ms > 0); /* who is there may not have heard yet */
    assert_int_equal(a.begun, 1);
    finish(&a);
    finish(&b);
    look(&a);
    look(&b);
    assert_int_equal(a.begun + b.begun, 2);
    assert_string_equal(described(&b), "{\"pool\":\"default\",\"worker\":\"127.0.0.1:8001\","
                                       "\"here\":true,\"role\":\"decode\"}");
    rig_start(&late, "late", one, NULL);
    TURN_UNTIL(&rig_loop, late.begun == 1);
    finish(&late);

    order(&b, BT_ROLE_HYBRID); /* what the configuration says: taken back */
    TURN_UNTIL(&rig_loop, a.begun == 2 && late.begun == 2);
    assert_int_equal(a.asked.to, BT_ROLE_HYBRID);
    finish(&a);
    finish(&b);
    finish(&late);
    look(&a);
    assert_int_equal(a.begun, 2);
    assert_string_equal(described(&a), "");
    rig_stop(&late);
    rig_stop(&b);
    rig_stop(&a);
}

static void who_cannot_ends_it_for_all(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    order(&a, BT_ROLE_DECODE);
    TURN_UNTIL(&rig_loop, b.begun == 1);
    finish(&a);
    give_up(&b, false);
    TURN_UNTIL(&rig_loop, a.begun == 2);
    assert_int_equal(a.asked.to, BT_ROLE_HYBRID);
    finish(&a);
    look(&b);
    assert_int_equal(b.begun, 1);
    assert_string_equal(described(&b), "");
    rig_stop(&b);
    rig_stop(&a);
}

/* An engine that was not reached may be reached later: the order stays. */
static void an_unclear_end_ends_nothing(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    order(&a, BT_ROLE_DECODE);
    TURN_UNTIL(&rig_loop, b.begun == 1);
    finish(&a);
    give_up(&b, true);
    look(&a);
    look(&b);
    assert_int_equal(a.begun, 1);
    assert_int_equal(worker(&a)->spec.role, BT_ROLE_DECODE);
    assert_string_not_equal(described(&b), "");
    rig_stop(&b);
    rig_stop(&a);
}

static void who_adds_it_says_its_role(void **state)
{
    static const unsigned none[] = {0};
    bt_worker_spec_t spec;
    char err[256] = "";
    replica_t a, b;

    rig_start(&a, "a", none, NULL);
    rig_start(&b, "b", none, NULL);
    make_spec(&spec, BT_ROLE_HYBRID, "http://127.0.0.1:8001", NULL);
    assert_int_equal(bt_registry_add(a.registry, "default", &spec, err, sizeof(err)), 0);
    bt_fleet_worker_added(a.fleet, "default", worker(&a));
    TURN_UNTIL(&rig_loop, worker(&b) != NULL);
    order(&a, BT_ROLE_DECODE);
    TURN_UNTIL(&rig_loop, b.begun == 1);
    finish(&a);
    finish(&b);
    bt_worker_t *w = bt_worker_ref(worker(&a));
    assert_int_equal(bt_registry_remove(a.registry, bt_str(w->name)), 0);
    bt_fleet_worker_removed(a.fleet, "default", w);
    bt_worker_unref(w);
    TURN_UNTIL(&rig_loop, worker(&b) == NULL);
    assert_int_equal(bt_registry_add(b.registry, "default", &spec, err, sizeof(err)), 0);
    bt_fleet_worker_added(b.fleet, "default", worker(&b));
    TURN_UNTIL(&rig_loop, worker(&a) != NULL);
    look(&a);
    look(&b);
    assert_int_equal(worker(&a)->spec.role, BT_ROLE_HYBRID);
    assert_int_equal(a.begun + b.begun, 2);
    assert_string_equal(described(&a), "");
    bt_worker_spec_fini(&spec);
    rig_stop(&b);
    rig_stop(&a);
}

static void what_cannot_be_read_changes_nothing(void **state)
{
    static const char *const values[] = {
        "{\"stamp\":%llu,\"pool\":\"default\"}",
        "{\"stamp\":%llu,\"pool\":\"default\",\"role\":\"boss\",\"timeout_ms\":1}",
        "{\"stamp\":%llu,\"pool\":\"default\",\"role\":7,\"timeout_ms\":1}",
        "{\"stamp\":%llu,\"pool\":\"default\",\"role\":\"decode\",\"timeout_ms\":-5}",
        "{\"stamp\":%llu,\"pool\":\"other\",\"role\":\"decode\",\"timeout_ms\":5}",
    };
    replica_t a;

    rig_start(&a, "a", one, NULL);
    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char value[160];
        snprintf(value, sizeof(value), values[i], (unsigned long long) bt_clock_wall_ms());
        rig_put("workers", "default 127.0.0.1:8001@-1 role", value, 0);
        look(&a);
    }
    assert_int_equal(a.begun, 0);
    assert_string_equal(described(&a), "");
    rig_stop(&a);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        CASE(ordered_on_one_switched_on_all),      CASE(who_cannot_ends_it_for_all),
        CASE(an_unclear_end_ends_nothing),         CASE(who_adds_it_says_its_role),
        CASE(what_cannot_be_read_changes_nothing),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
