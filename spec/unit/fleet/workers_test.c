/* Workers that one replica's API has added or removed. */
#include "rig.h"

static const unsigned one[] = {8001, 0}, two[] = {8001, 8002, 0};

static void spec_of(bt_worker_spec_t *spec, unsigned port, const char *name)
{
    char url[64];

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    make_spec(spec, BT_ROLE_HYBRID, url, NULL);
    spec->name = name != NULL ? text(name) : NULL;
}

/* As the admin API does it. */
static void add(replica_t *r, const char *pool, unsigned port, const char *name)
{
    bt_worker_spec_t spec;
    char err[256] = "";

    spec_of(&spec, port, name);
    if (bt_registry_add(r->registry, pool, &spec, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    bt_fleet_worker_added(r->fleet, pool, rig_worker(r, port));
    bt_worker_spec_fini(&spec);
}

static void take_out(replica_t *r, const char *pool, unsigned port)
{
    bt_worker_t *w = rig_worker(r, port);

    bt_worker_ref(w);
    assert_int_equal(bt_registry_remove(r->registry, bt_str(w->name)), 0);
    bt_fleet_worker_removed(r->fleet, pool, w);
    bt_worker_unref(w);
}

static unsigned count(const replica_t *r)
{
    const bt_workers_t *workers = bt_registry_current(r->registry);
    unsigned n = 0;

    for (unsigned i = 0; i < workers->pool_count; i++)
        n += workers->pools[i].all.count;
    return n;
}

static void test_added_on_one_known_to_all(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    rig_heartbeat(&a, 2);
    rig_heartbeat(&b, 2);
    add(&a, "default", 8005, "five");
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8005) != NULL);
    assert_string_equal(rig_worker(&b, 8005)->name, "five");
    rig_start(&late, "late", one, NULL); /* began afterwards */
    TURN_UNTIL(&rig_loop, rig_worker(&late, 8005) != NULL);
    assert_int_equal(count(&a), 2);
    take_out(&b, "default", 8005); /* not by the one that has added it */
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) == NULL && rig_worker(&late, 8005) == NULL);
    add(&late, "default", 8005, "again");
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) != NULL && rig_worker(&b, 8005) != NULL);
    rig_stop(&a);
    rig_stop(&b);
    rig_stop(&late);
}

static void test_they_follow_within_two_heartbeats(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    rig_heartbeat(&a, 3);
    rig_heartbeat(&b, 3);
    add(&a, "default", 8005, NULL);
    for (unsigned before = 0; before == 0;) /* until it lies in the store */
        before = rig_all("workers").row_count > 1;
    rig_heartbeat(&b, 4); /* the call, the table, and one turn each to answer */
    assert_non_null(rig_worker(&b, 8005));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_the_configurations_own_stay(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", one, NULL);
    add(&b, "default", 8002, NULL);
    rig_heartbeat(&a, 20);
    rig_heartbeat(&b, 3);
    assert_int_equal(count(&a), 2); /* has it already */
    take_out(&b, "default", 8002);
    take_out(&b, "default", 8001);
    rig_heartbeat(&b, 5);
    rig_heartbeat(&a, 20);
    assert_non_null(rig_worker(&a, 8001));
    assert_non_null(rig_worker(&a, 8002));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_flushed_store_is_told_again(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    add(&a, "default", 8005, NULL);
    add(&a, "default", 8006, NULL);
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8005) != NULL && rig_worker(&b, 8006) != NULL);
    take_out(&a, "default", 8006);
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8006) == NULL);
    rig_flush("workers");
    rig_stop(&a); /* whoever knows it tells it again */
    for (bool is_back = false; !is_back;)
        is_back = rig_all("workers").row_count >= 2;
    assert_non_null(rig_worker(&b, 8005));
    rig_start(&late, "late", one, NULL);
    TURN_UNTIL(&rig_loop, rig_worker(&late, 8005) != NULL);
    rig_heartbeat(&late, 5);
    assert_null(rig_worker(&late, 8006));
    rig_stop(&b);
    rig_stop(&late);
}

static void test_a_row_taken_away_is_forgotten(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    add(&a, "default", 8005, NULL);
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8005) != NULL);
    rig_heartbeat(&a, 120); /* both have seen it in the table */
    rig_answer_t all = rig_all("workers");
    for (unsigned i = 0; i < all.row_count; i++)
        if (all.names[i][0] != '@')
            (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                           .key = BT_STR("workers"),
                                           .field = bt_str(all.names[i])});
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) == NULL && rig_worker(&b, 8005) == NULL);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_the_highest_stamp_wins(void **state)
{
    replica_t a;

    rig_start(&a, "a", one, NULL);
    rig_put("workers", "default 127.0.0.1:8005@-1",
            "{\"stamp\":5,\"pool\":\"default\",\"worker\":{\"url\":\"http://127.0.0.1:8005\"}}", 0);
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) != NULL);
    rig_put("workers", "default 127.0.0.1:8005@-1",
            "{\"stamp\":4,\"pool\":\"default\",\"removed\":true}", 0);
    for (bool is_back = false; !is_back;) { /* older than what is known: put right */
        rig_answer_t all = rig_all("workers");
        for (unsigned i = 0; i < all.row_count; i++)
            is_back |= strstr(all.values[i], "\"stamp\":5") != NULL;
    }
    assert_non_null(rig_worker(&a, 8005));
    rig_put("workers", "default 127.0.0.1:8005@-1",
            "{\"stamp\":6,\"pool\":\"default\",\"removed\":true}", 0);
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) == NULL);
    rig_stop(&a);
}

static void test_a_reload_does_not_lose_them(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    add(&a, "default", 8005, NULL);
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8005) != NULL);
    const bt_worker_t *w = rig_worker(&b, 8005);
    rig_apply(&b, one, NULL); /* the API's word is not the configuration's */
    assert_ptr_equal(rig_worker(&b, 8005), w);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_what_is_not_taken_harms_nothing(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, one);
    rig_start(&b, "b", one, NULL);
    add(&a, "more", 8005, NULL);       /* b has no such pool */
    add(&a, "default", 8006, "taken"); /* a name that b gives to another one */
    add(&b, "default", 8007, "taken");
    TURN_UNTIL(&rig_loop, rig_worker(&b, 8006) != NULL && rig_worker(&a, 8007) != NULL);
    assert_string_equal(rig_worker(&b, 8007)->name, "taken");
    assert_string_equal(rig_worker(&a, 8006)->name, "taken");
    rig_put("workers", "default x", "{\"stamp\":1,\"pool\":\"default\",\"worker\":{\"url\":3}}", 0);
    rig_put("workers", "default y",
            "{\"stamp\":1,\"pool\":\"default\",\"worker\":{\"url\":\"http://\"}}", 0);
    rig_heartbeat(&a, 120);
    assert_null(rig_worker(&b, 8005));
    assert_int_equal(count(&b), 3);
    rig_stop(&a);
    rig_stop(&b);
}

/* It would be there for ever: nothing that its address says would find the row. */
static void test_a_row_of_another_workers_field(void **state)
{
#define VALUE(url, more)                                                                           \
    "{\"stamp\":5,\"pool\":\"default\",\"worker\":{\"url\":\"" url "\"" more "}}"
    replica_t a;

    rig_start(&a, "a", one, NULL);
    rig_put("workers", "default wrong", VALUE("http://127.0.0.1:8005", ""), 0);
    rig_put("workers", "default 127.0.0.1:8006@-1", VALUE("http://127.0.0.1:8007", ""), 0);
    rig_put("workers", "default 127.0.0.1:8008@-1",
            VALUE("http://127.0.0.1:8008", ",\"dp_size\":4,\"dp_rank\":2"), 0);
    rig_put("workers", "more 127.0.0.1:8009@-1", VALUE("http://127.0.0.1:8009", ""), 0);
    rig_put("workers", "default 127.0.0.1:8010/p@1", VALUE("http://127.0.0.1:8010/p/@1", ""), 0);
    TURN_UNTIL(&rig_loop, count(&a) > 1); /* all are read at once */
    assert_int_equal(count(&a), 2);
    assert_non_null(
        bt_workers_find(bt_registry_current(a.registry), BT_STR("http://127.0.0.1:8010/p@1")));
    rig_stop(&a);
#undef VALUE
}

static void look(const replica_t *r)
{
    bt_fleet_rows_read(r->fleet);
    rig_heartbeat(r, 3);
}

static void test_a_value_that_cannot_be_read_removes_nobody(void **state)
{
    replica_t a;

    rig_start(&a, "a", one, NULL);
    rig_put("workers", "default 127.0.0.1:8005@-1",
            "{\"stamp\":5,\"pool\":\"default\",\"worker\":{\"url\":\"http://127.0.0.1:8005\"}}", 0);
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) != NULL);
    look(&a); /* knows the table by its epoch */
    rig_put("workers", "default 127.0.0.1:8005@-1", "{\"stamp\":\"x\"}", 0);
    look(&a);
    look(&a);
    assert_non_null(rig_worker(&a, 8005));
    rig_put("workers", "default 127.0.0.1:8005@-1",
            "{\"stamp\":6,\"pool\":\"default\",\"removed\":true}", 0);
    TURN_UNTIL(&rig_loop, rig_worker(&a, 8005) == NULL);
    rig_stop(&a);
}

/* Each changes the whole fleet: a thousand at once would be seconds in which the control loop does nothing else. */
static void test_many_are_taken_in_some_at_a_time(void **state)
{
    enum { MANY = 100, A_TURN = 40 };
    replica_t a, late;
    unsigned most = 0;

    rig_start(&a, "a", one, NULL);
    for (unsigned i = 0; i < MANY; i++)
        add(&a, "default", 9000 + i, NULL);
    rig_heartbeat(&a, 2);
    rig_start(&late, "late", one, NULL);
    for (unsigned before = count(&late); before < MANY + 1; before = count(&late)) {
        turn_once(&rig_loop);
        most = count(&late) - before > most ? count(&late) - before : most;
    }
    assert_in_range(most, 1, A_TURN);
    for (unsigned i = 0; i < MANY; i++)
        take_out(&a, "default", 9000 + i);
    TURN_UNTIL(&rig_loop, count(&late) == 1);
    rig_stop(&a);
    rig_stop(&late);
}

int main(void)
{
#define SPEC(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        SPEC(test_added_on_one_known_to_all),
        SPEC(test_they_follow_within_two_heartbeats),
        SPEC(test_the_configurations_own_stay),
        SPEC(test_a_flushed_store_is_told_again),
        SPEC(test_a_row_taken_away_is_forgotten),
        SPEC(test_the_highest_stamp_wins),
        SPEC(test_a_reload_does_not_lose_them),
        SPEC(test_what_is_not_taken_harms_nothing),
        SPEC(test_a_row_of_another_workers_field),
        SPEC(test_a_value_that_cannot_be_read_removes_nobody),
        SPEC(test_many_are_taken_in_some_at_a_time),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
