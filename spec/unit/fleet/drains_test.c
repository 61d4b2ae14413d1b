/* Workers that one replica's API has drained: the others follow, whoever has added them, and whenever they come. */
#include "rig.h"

#include "../store/redis_server.h"

#include "base/json.h"

static const unsigned one[] = {8001, 0}, two[] = {8001, 8002, 0};

static bt_worker_t *in_pool(const replica_t *r, unsigned pool, unsigned port)
{
    const bt_worker_set_t *all = &bt_registry_current(r->registry)->pools[pool].all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->items[i]->port == port)
            return all->items[i];
    return NULL;
}

static bool is_drained(const replica_t *r, unsigned port)
{
    bt_worker_t *w = in_pool(r, 0, port);

    assert_non_null(w);
    return atomic_load(&w->draining);
}

/* As the admin API does it, the three of them. */
static const char *untold; /* of the last order */

static void drain(replica_t *r, unsigned port, bool draining)
{
    bt_worker_t *w = in_pool(r, 0, port);

    assert_int_equal(bt_registry_drain(r->registry, bt_str(w->name), draining), 0);
    untold = bt_fleet_worker_drained(r->fleet, "default", w, draining);
}

static bt_worker_t *add(replica_t *r, unsigned port, const char *name, int rank)
{
    char err[256] = "", url[64];
    bt_worker_spec_t spec;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    make_spec(&spec, BT_ROLE_HYBRID, url, NULL);
    spec.name = text(name);
    spec.dp_rank = rank;
    if (bt_registry_add(r->registry, "default", &spec, err, sizeof(err)) != 0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
    bt_worker_t *w = bt_workers_find(bt_registry_current(r->registry), bt_str(name));
    bt_fleet_worker_added(r->fleet, "default", w);
    return w;
}

static void take_out(replica_t *r, unsigned port)
{
    bt_worker_t *w = in_pool(r, 0, port);

    bt_worker_ref(w);
    assert_int_equal(bt_registry_remove(r->registry, bt_str(w->name)), 0);
    bt_fleet_worker_removed(r->fleet, "default", w);
    bt_worker_unref(w);
}

/* The value in the table, "" when there is none. */
static const char *row_of(unsigned port)
{
    static char value[512];
    char field[64];
    rig_answer_t all = rig_all("workers");

    snprintf(field, sizeof(field), "default 127.0.0.1:%u@-1 drain", port);
    value[0] = '\0';
    for (unsigned i = 0; i < all.row_count; i++)
        if (strcmp(all.names[i], field) == 0)
            snprintf(value, sizeof(value), "%s", all.values[i]);
    return value;
}

static void wait_row(unsigned port, const char *part)
{
    STEP_UNTIL(strstr(row_of(port), part) != NULL, turn_once(&rig_loop));
}

/* Stamps are times in ms: what is ordered later has another one. */
static void wait_next_ms(void)
{
    for (uint64_t now = bt_clock_wall_ms(); bt_clock_wall_ms() == now;)
        ;
}

/* It has read the table again, and acted upon it; a second look would come by itself, but a second later. */
static void look(const replica_t *r)
{
    bt_fleet_rows_read(r->fleet);
    rig_heartbeat(r, 3);
}

static void test_drained_on_one_drained_on_all(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    drain(&a, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    assert_false(is_drained(&b, 8002));
    rig_start(&late, "late", two, NULL); /* began afterwards */
    TURN_UNTIL(&rig_loop, is_drained(&late, 8001));
    drain(&b, 8001, false); /* not by the one that has drained it */
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8001) && !is_drained(&late, 8001));
    drain(&late, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&a, 8001) && is_drained(&b, 8001));
    rig_stop(&a);
    rig_stop(&b);
    rig_stop(&late);
}

/* Before the other's word has come here. */
static void test_the_last_order_holds(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    rig_heartbeat(&b, 3);
    drain(&a, 8001, true);
    wait_next_ms();
    drain(&b, 8001, false); /* changes nothing at b */
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8001));
    look(&b);
    assert_false(is_drained(&a, 8001));
    assert_false(is_drained(&b, 8001));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_pool_at_a_time_and_a_rank_at_a_time(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, one);
    rig_start(&b, "b", one, one);
    (void) add(&a, 8005, "rank0", 0);
    bt_worker_t *rank1 = add(&a, 8005, "rank1", 1); /* of one url */
    TURN_UNTIL(&rig_loop,
               bt_workers_find(bt_registry_current(b.registry), BT_STR("rank0")) != NULL &&
                   bt_workers_find(bt_registry_current(b.registry), BT_STR("rank1")) != NULL);
    drain(&a, 8001, true);
    assert_int_equal(bt_registry_drain(a.registry, BT_STR("rank1"), true), 0);
    bt_fleet_worker_drained(a.fleet, "default", rank1, true);
    rank1 = bt_workers_find(bt_registry_current(b.registry), BT_STR("rank1"));
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001) && atomic_load(&rank1->draining));
    assert_false(atomic_load(&in_pool(&b, 1, 8001)->draining));
    assert_false(
        atomic_load(&bt_workers_find(bt_registry_current(b.registry), BT_STR("rank0"))->draining));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_wherever_it_appears_later(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", one, NULL);
    (void) add(&a, 8005, "five", -1);
    drain(&a, 8002, true); /* b does not have it */
    drain(&a, 8005, true); /* nor this one yet */
    TURN_UNTIL(&rig_loop, in_pool(&b, 0, 8005) != NULL && is_drained(&b, 8005));
    look(&b);
    rig_apply(&b, two, NULL); /* a reload: at once, before any loop has seen the worker */
    assert_true(is_drained(&b, 8002));
    TURN_UNTIL(&rig_loop, in_pool(&b, 0, 8005) != NULL); /* the reload did not name it */
    assert_true(is_drained(&b, 8005));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_removal_ends_it(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    (void) add(&a, 8005, "five", -1);
    TURN_UNTIL(&rig_loop, in_pool(&b, 0, 8005) != NULL);
    drain(&b, 8005, true);
    TURN_UNTIL(&rig_loop, is_drained(&a, 8005));
    take_out(&a, 8005);
    TURN_UNTIL(&rig_loop, in_pool(&b, 0, 8005) == NULL);
    wait_row(8005, "\"draining\":null");
    (void) add(&b, 8005, "five", -1);
    TURN_UNTIL(&rig_loop, in_pool(&a, 0, 8005) != NULL);
    rig_start(&late, "late", one, NULL);
    TURN_UNTIL(&rig_loop, in_pool(&late, 0, 8005) != NULL);
    look(&a);
    assert_false(is_drained(&a, 8005));
    assert_false(is_drained(&b, 8005));
    assert_false(is_drained(&late, 8005));
    rig_stop(&a);
    rig_stop(&b);
    rig_stop(&late);
}

/* Its other replicas' configurations name it: they were told to send nothing more, and nobody has said anything else. */
static void test_removal_on_one_does_not_make_others_serve(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    drain(&a, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    take_out(&a, 8001);
    wait_row(8001, "\"draining\":null");
    look(&b);
    assert_true(is_drained(&b, 8001));
    rig_apply(&a, one, NULL); /* as with one gateway: what the configuration brings back serves */
    look(&a);
    assert_false(is_drained(&a, 8001));
    drain(&a, 8001, false);
    TURN_UNTIL(&rig_loop, !is_drained(&b, 8001));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_added_anew_it_serves(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", two, NULL);
    drain(&b, 8002, true);
    wait_row(8002, "true");
    look(&a); /* has heard of it */
    (void) add(&a, 8002, "new", -1);
    assert_false(is_drained(&a, 8002));
    TURN_UNTIL(&rig_loop, !is_drained(&b, 8002));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_drained_while_another_adds_it(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", two, NULL);
    rig_heartbeat(&a, 3);
    rig_heartbeat(&b, 3);
    (void) add(&a, 8002, "new", -1);
    wait_next_ms();
    drain(&b, 8002, true); /* has not heard of that */
    TURN_UNTIL(&rig_loop, is_drained(&a, 8002));
    look(&b);
    assert_true(is_drained(&b, 8002));
    take_out(&a, 8002); /* neither row has taken the other's place */
    look(&b);
    assert_non_null(in_pool(&b, 0, 8002));
    rig_stop(&a);
    rig_stop(&b);
}

/* By one that has not read the drain. */
static void test_added_anew_it_serves_whoever_has_heard_of_what(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    (void) add(&a, 8005, "five", -1);
    TURN_UNTIL(&rig_loop, in_pool(&b, 0, 8005) != NULL);
    look(&b);
    drain(&a, 8005, true);
    wait_next_ms();
    take_out(&b, 8005);
    wait_next_ms();
    (void) add(&b, 8005, "five", -1);
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8005));
    wait_row(8005, "false"); /* nobody is told of it any more */
    rig_start(&late, "late", one, NULL);
    TURN_UNTIL(&rig_loop, in_pool(&late, 0, 8005) != NULL);
    look(&a);
    look(&b);
    assert_false(is_drained(&a, 8005));
    assert_false(is_drained(&b, 8005));
    assert_false(is_drained(&late, 8005));
    drain(&late, 8005, true);
    TURN_UNTIL(&rig_loop, is_drained(&a, 8005) && is_drained(&b, 8005));
    rig_stop(&a);
    rig_stop(&b);
    rig_stop(&late);
}

static void test_removed_by_one_that_has_not_heard(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    look(&b);
    drain(&a, 8001, true);
    wait_next_ms();
    take_out(&b, 8001);
    wait_row(8001, "null");
    look(&a);
    assert_true(is_drained(&a, 8001));
    rig_start(&late, "late", one, NULL);
    look(&late);
    assert_false(is_drained(&late, 8001));
    rig_stop(&a);
    rig_stop(&b);
    rig_stop(&late);
}

/* Its stamp is above that of an order whose replica's clock is ahead of ours. */
static void test_a_drain_by_a_late_clock(void **state)
{
    char value[160];
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    snprintf(value, sizeof(value),
             "{\"stamp\":%llu,\"pool\":\"default\",\"worker\":{\"url\":\"http://127.0.0.1:8005\"}}",
             (unsigned long long) bt_clock_wall_ms() + 3600000);
    rig_put("workers", "default 127.0.0.1:8005@-1", value, 0);
    TURN_UNTIL(&rig_loop, in_pool(&a, 0, 8005) != NULL && in_pool(&b, 0, 8005) != NULL);
    drain(&a, 8005, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8005));
    look(&a);
    assert_true(is_drained(&a, 8005));
    rig_stop(&a);
    rig_stop(&b);
}

static const char *described(const replica_t *r)
{
    static char said[4096];
    bt_text_t out;

    bt_text_init(&out);
    bt_fleet_describe(r->fleet, &out);
    assert_int_equal(bt_json_validate(bt_text_str(&out), &(size_t){0}), 0);
    snprintf(said, sizeof(said), "%.*s", BT_STR_ARG(bt_text_str(&out)));
    bt_text_fini(&out);
    return strstr(said, "\"drained\":");
}

#define DRAINED "{\"stamp\":5,\"pool\":\"default\",\"draining\":true}"

static void test_a_drain_outlives_its_worker(void **state)
{
    const char *why = NULL;
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", two, NULL);
    assert_string_equal(described(&a), "\"drained\":[]}\n");
    drain(&b, 8001, true);
    drain(&b, 8002, true);
    rig_put("workers", "default ::1:9/p:1@2 drain", DRAINED, 0);
    TURN_UNTIL(&rig_loop, is_drained(&a, 8001) && strstr(described(&a), "/p") != NULL);
    assert_string_equal(
        described(&a),
        "\"drained\":[{\"pool\":\"default\",\"worker\":\"127.0.0.1:8001\",\"here\":true},"
        "{\"pool\":\"default\",\"worker\":\"127.0.0.1:8002\",\"here\":false},"
        "{\"pool\":\"default\",\"worker\":\"[::1]:9/p:1@2\",\"here\":false}]}\n");
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("http://127.0.0.1:8003"), &why), 0);
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("w 2"), &why), 0);
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("[::1]:9/p:1"), &why), 0); /* no rank */
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("[::1]:9/p:1@2"), &why), 1);
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("http://127.0.0.1:8002/"), &why), 1);
    assert_int_equal(bt_fleet_undrain_url(a.fleet, BT_STR("http://127.0.0.1:8002/"), &why), 0);
    assert_null(why); /* the others are told */
    assert_null(strstr(described(&a), "8002"));
    TURN_UNTIL(&rig_loop, !is_drained(&b, 8002) && strstr(described(&b), "/p") == NULL);
    assert_true(is_drained(&b, 8001));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_value_that_cannot_be_read_changes_nothing(void **state)
{
    static const char *const values[] = {
        "{\"v\":2,\"at\":5}", "{\"stamp\":\"x\",\"pool\":\"default\",\"draining\":false}",
        "{\"stamp\":9223372036854775807,\"pool\":\"default\",\"draining\":false}",
        "{\"stamp\":99999999999,\"pool\":\"default\",\"draining\":\"soft\"}", ""};
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    drain(&a, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    look(&a);
    for (unsigned i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        rig_put("workers", "default 127.0.0.1:8001@-1 drain", values[i], 0);
        look(&a);
        look(&a); /* one look to undo it, one to forget it */
        look(&b);
        assert_true(is_drained(&a, 8001));
        assert_true(is_drained(&b, 8001));
        if (i != 3)
            assert_string_equal(row_of(8001), values[i]); /* may be a later version's */
    }
    drain(&b, 8001, false); /* an operator's word is put over it */
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8001));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_names_that_nobody_could_find_again(void **state)
{
    static const bt_str_t names[] = {BT_STR("default 127.0.0.1:8001@-1\0 drain"),
                                     BT_STR("default\0 127.0.0.1:8001@-1 drain"),
                                     BT_STR("default 127.0.0.1:8001\x1b[m@-1 drain"),
                                     BT_STR("more 127.0.0.1:8001@-1 drain"),
                                     BT_STR("samelen 127.0.0.1:8001@-1 drain"),
                                     BT_STR("default"),
                                     BT_STR("default drain"),
                                     BT_STR(" drain")};
    replica_t a;

    rig_start(&a, "a", one, NULL);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                       .key = BT_STR("workers"),
                                       .field = names[i],
                                       .value = BT_STR(DRAINED)});
    look(&a);
    assert_string_equal(described(&a), "\"drained\":[]}\n");
    rig_stop(&a);
}

static void test_an_epoch_of_somebody_elses(void **state)
{
    static const char *const epochs[] = {"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "0123456789ABCDEF",
                                         "x", "0123456789abcde "};
    replica_t a;

    rig_start(&a, "a", one, NULL);
    for (unsigned i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++) {
        drain(&a, 8001, true);
        wait_row(8001, "true");
        rig_put("workers", "@epoch", epochs[i], 0);
        look(&a);
        look(&a);
        look(&a);
        (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                       .key = BT_STR("workers"),
                                       .field = BT_STR("default 127.0.0.1:8001@-1 drain")});
        look(&a);
        TURN_UNTIL(&rig_loop, !is_drained(&a, 8001)); /* taken away, not flushed */
    }
    rig_stop(&a);
}

static void test_a_flushed_store_is_told_again(void **state)
{
    replica_t a, b, late;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    drain(&a, 8001, true);
    drain(&a, 8002, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001) && is_drained(&b, 8002));
    drain(&a, 8002, false);
    TURN_UNTIL(&rig_loop, !is_drained(&b, 8002));
    rig_flush("workers");
    rig_stop(&a); /* whoever knows it tells it again */
    wait_row(8001, "true");
    wait_row(8002, "false");
    assert_true(is_drained(&b, 8001));
    rig_start(&late, "late", two, NULL);
    TURN_UNTIL(&rig_loop, is_drained(&late, 8001));
    assert_false(is_drained(&late, 8002));
    rig_stop(&b);
    rig_stop(&late);
}

static void test_a_row_taken_away_is_an_end_of_it(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    drain(&a, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    look(&a);
    look(&b); /* both have seen it in the table */
    (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_DROP,
                                   .key = BT_STR("workers"),
                                   .field = BT_STR("default 127.0.0.1:8001@-1 drain")});
    look(&a);
    look(&b);
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8001) && !is_drained(&b, 8001));
    look(&a);
    look(&b);
    assert_string_equal(row_of(8001), "");
    rig_stop(&a);
    rig_stop(&b);
}

static void test_what_it_reads(void **state)
{
    static const char *const nothing[] = {"{\"stamp\":9,\"pool\":\"default\",\"draining\":1}",
                                          "{\"stamp\":9,\"pool\":\"default\"}",
                                          "{\"stamp\":0,\"pool\":\"default\",\"draining\":true}",
                                          "{\"pool\":\"default\"}",
                                          "{\"stamp\":9,\"pool\":\"default\",\"draining\":null}",
                                          "{\"stamp\":9,",
                                          ""};
    replica_t a;

    rig_start(&a, "a", one, NULL);
    for (unsigned i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
        char field[64];
        snprintf(field, sizeof(field), "default 127.0.0.1:%u@-1 drain", i == 0 ? 8001 : 9000 + i);
        rig_put("workers", field, nothing[i], 0);
    }
    look(&a);
    assert_false(is_drained(&a, 8001));
    rig_flush("workers");
#define PUT(stamp, word)                                                                           \
    rig_put("workers", "default 127.0.0.1:8001@-1 drain",                                          \
            "{\"stamp\":" stamp ",\"pool\":\"default\",\"draining\":" word "}", 0)
    PUT("5", "true");
    TURN_UNTIL(&rig_loop, is_drained(&a, 8001));
    PUT("4", "false");
    look(&a);
    wait_row(8001, "\"stamp\":5,"); /* older than what is known: put right */
    PUT("6", "false");
    TURN_UNTIL(&rig_loop, !is_drained(&a, 8001));
    PUT("6", "true"); /* two at one moment: everywhere the same one of them */
    TURN_UNTIL(&rig_loop, is_drained(&a, 8001));
    PUT("6", "false");
    look(&a);
    wait_row(8001, "true");
    assert_true(is_drained(&a, 8001));
    rig_stop(&a);
#undef PUT
}

/* ---- a store that goes and comes back ---- */

static redis_server_t server;

static int redis_setup(void **state)
{
    char err[256], url[64];

    if (redis_program() == NULL)
        return 0;
    (void) rig_setup(state);
    bool is_gone = false;
    bt_store_client_free(rig_client, rig_on_gone, &is_gone);
    TURN_UNTIL(&rig_loop, is_gone);
    bt_store_close(rig_store);
    redis_start(&server, NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%u", server.port);
    assert_int_equal(bt_store_open(&rig_store, &(bt_store_config_t){.url = url}, err, sizeof(err)),
                     0);
    return bt_store_client_new(&rig_client, rig_store, &rig_loop, NULL, NULL);
}

static int redis_teardown(void **state)
{
    if (redis_program() == NULL)
        return 0;
    redis_end(&server);
    return rig_teardown(state);
}

static bool is_health(enum bt_store_health health)
{
    return bt_store_health(rig_store, NULL, 0) == health;
}

static void test_the_store_away(void **state)
{
    replica_t a, b;

    if (redis_program() == NULL)
        skip();
    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    TURN_UNTIL(&rig_loop, is_health(BT_STORE_UP));
    drain(&a, 8001, true);
    assert_null(untold);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    for (unsigned round = 0; round < 2; round++) { /* it has kept what it knew; it has lost all */
        const bool is_lost = round == 1;
        if (is_lost)
            redis_stop(&server);
        else
            redis_freeze(&server);
        TURN_UNTIL(&rig_loop, is_health(BT_STORE_UNAVAILABLE));
        drain(&a, 8001, is_lost);
        assert_string_equal(untold, "the store is unavailable: they follow when it is back");
        drain(&b, 8002, !is_lost);
        assert_int_equal(is_drained(&a, 8001), is_lost); /* here, at once */
        if (is_lost)
            redis_again(&server);
        else
            redis_thaw(&server);
        TURN_UNTIL(&rig_loop, is_drained(&b, 8001) == is_lost && is_drained(&a, 8002) == !is_lost);
        TURN_UNTIL(&rig_loop, is_health(BT_STORE_UP));
        assert_int_equal(is_drained(&a, 8001), is_lost);
        assert_int_equal(is_drained(&b, 8002), !is_lost);
    }
    rig_stop(&a);
    rig_stop(&b);
}

int main(void)
{
#define SPEC(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        SPEC(test_drained_on_one_drained_on_all),
        SPEC(test_the_last_order_holds),
        SPEC(test_a_pool_at_a_time_and_a_rank_at_a_time),
        SPEC(test_wherever_it_appears_later),
        SPEC(test_removal_ends_it),
        SPEC(test_removal_on_one_does_not_make_others_serve),
        SPEC(test_added_anew_it_serves),
        SPEC(test_drained_while_another_adds_it),
        SPEC(test_added_anew_it_serves_whoever_has_heard_of_what),
        SPEC(test_removed_by_one_that_has_not_heard),
        SPEC(test_a_drain_by_a_late_clock),
        SPEC(test_a_drain_outlives_its_worker),
        SPEC(test_a_value_that_cannot_be_read_changes_nothing),
        SPEC(test_names_that_nobody_could_find_again),
        SPEC(test_an_epoch_of_somebody_elses),
        SPEC(test_a_flushed_store_is_told_again),
        SPEC(test_a_row_taken_away_is_an_end_of_it),
        SPEC(test_what_it_reads),
        cmocka_unit_test_setup_teardown(test_the_store_away, redis_setup, redis_teardown),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
