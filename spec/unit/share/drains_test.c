/* Workers that one replica's API has drained: the others follow, whoever has added them, and whenever they come. */
#include "rig.h"

#include "../state/redis_server.h"

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
static void drain(replica_t *r, unsigned port, bool draining)
{
    bt_worker_t *w = in_pool(r, 0, port);

    assert_int_equal(bt_registry_drain(r->registry, bt_str(w->name), draining), 0);
    bt_share_worker_drained(r->share, "default", w, draining);
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
    bt_worker_t *w = bt_fleet_find(bt_registry_current(r->registry), bt_str(name));
    bt_share_worker_added(r->share, "default", w);
    return w;
}

static void take_out(replica_t *r, unsigned port)
{
    bt_worker_t *w = in_pool(r, 0, port);

    bt_worker_ref(w);
    assert_int_equal(bt_registry_remove(r->registry, bt_str(w->name)), 0);
    bt_share_worker_removed(r->share, "default", w);
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
    while (strstr(row_of(port), part) == NULL)
        turn_once(&rig_loop);
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
    bt_share_rows_look(r->share);
    rig_beat(r, 3);
}

static void test_drained_on_one_drained_on_all(void **state)
{
    replica_t a, b, late;

    (void) state;
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

    (void) state;
    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, NULL);
    rig_beat(&b, 3);
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

    (void) state;
    rig_start(&a, "a", one, one);
    rig_start(&b, "b", one, one);
    (void) add(&a, 8005, "rank0", 0);
    bt_worker_t *rank1 = add(&a, 8005, "rank1", 1); /* of one url */
    TURN_UNTIL(&rig_loop,
               bt_fleet_find(bt_registry_current(b.registry), BT_STR("rank0")) != NULL &&
                   bt_fleet_find(bt_registry_current(b.registry), BT_STR("rank1")) != NULL);
    drain(&a, 8001, true);
    assert_int_equal(bt_registry_drain(a.registry, BT_STR("rank1"), true), 0);
    bt_share_worker_drained(a.share, "default", rank1, true);
    rank1 = bt_fleet_find(bt_registry_current(b.registry), BT_STR("rank1"));
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001) && atomic_load(&rank1->draining));
    assert_false(atomic_load(&in_pool(&b, 1, 8001)->draining));
    assert_false(
        atomic_load(&bt_fleet_find(bt_registry_current(b.registry), BT_STR("rank0"))->draining));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_wherever_it_appears_later(void **state)
{
    replica_t a, b;

    (void) state;
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

    (void) state;
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

    (void) state;
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

    (void) state;
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

    (void) state;
    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", two, NULL);
    rig_beat(&a, 3);
    rig_beat(&b, 3);
    drain(&b, 8002, true);
    (void) add(&a, 8002, "new", -1); /* has not heard of that */
    TURN_UNTIL(&rig_loop, is_drained(&a, 8002));
    look(&b);
    assert_true(is_drained(&b, 8002));
    take_out(&a, 8002); /* neither row has taken the other's place */
    look(&b);
    assert_non_null(in_pool(&b, 0, 8002));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_flushed_store_is_told_again(void **state)
{
    replica_t a, b, late;

    (void) state;
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

    (void) state;
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

    (void) state;
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

    (void) state;
    if (redis_program() == NULL)
        skip();
    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    TURN_UNTIL(&rig_loop, is_health(BT_STORE_UP));
    drain(&a, 8001, true);
    TURN_UNTIL(&rig_loop, is_drained(&b, 8001));
    for (unsigned round = 0; round < 2; round++) { /* it has kept what it knew; it has lost all */
        const bool is_lost = round == 1;
        if (is_lost)
            redis_stop(&server);
        else
            redis_freeze(&server);
        TURN_UNTIL(&rig_loop, is_health(BT_STORE_AWAY));
        drain(&a, 8001, is_lost);
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
        SPEC(test_a_flushed_store_is_told_again),
        SPEC(test_a_row_taken_away_is_an_end_of_it),
        SPEC(test_what_it_reads),
        cmocka_unit_test_setup_teardown(test_the_store_away, redis_setup, redis_teardown),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
