/* Replicas, loads, health and calls: what one tells, the others act upon. */
#include "rig.h"

#include "base/json.h"
#include "cluster/ledger.h"

static const unsigned two[] = {8001, 8002, 0}, one[] = {8001, 0}, none[] = {0};

static int64_t others(const bt_worker_t *w, enum bt_phase phase)
{
    return atomic_load(&w->others_tokens[phase]);
}

static void test_replicas_come_and_go(void **state)
{
    replica_t a, b, c;

    rig_start(&a, "a", none, NULL);
    assert_int_equal(bt_fleet_replicas(a.fleet), 1);
    rig_heartbeat(&a, 3);
    assert_int_equal(bt_fleet_replicas(a.fleet), 1);
    assert_false(bt_worker_is_shared());
    rig_start(&b, "b", none, NULL);
    rig_start(&c, "c", none, NULL);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 3 && bt_fleet_replicas(b.fleet) == 3 &&
                              bt_fleet_replicas(c.fleet) == 3);
    assert_true(bt_worker_is_shared());
    rig_stop(&b); /* says good-bye: nobody waits for its rows to run out */
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 2 && bt_fleet_replicas(c.fleet) == 2);
    assert_int_equal(rig_all("replicas").row_count, 2);
    rig_stop(&c);
    rig_stop(&a);
    assert_int_equal(rig_all("replicas").row_count, 0);
    assert_int_equal(rig_all("load").row_count, 0);
    assert_int_equal(rig_all("health").row_count, 0);
}

static void test_a_replica_without_a_word_runs_out(void **state)
{
    replica_t a;

    rig_start(&a, "a", none, NULL);
    rig_put("replicas", "ghost#0", "{\"name\":\"ghost\"}", 60);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 2);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 1);
    rig_stop(&a);
}

static void test_names_that_are_no_replicas(void **state)
{
    static const bt_str_t names[] = {BT_STR("q\0x"), BT_STR("q\0"), BT_STR("\x1b[31m#0"),
                                     BT_STR("a\nb#0"), BT_STR("\xc2\x9b#0")};
    replica_t a;

    rig_start(&a, "a", none, NULL);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        (void) rig_ask((bt_store_op_t){.what = BT_STORE_TABLE_PUT,
                                       .key = BT_STR("replicas"),
                                       .field = names[i],
                                       .value = BT_STR("{\"name\":\"x\"}")});
    rig_put("replicas", "ghost#0", "{\"name\":\"ghost\"}", 0);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) > 1);
    rig_heartbeat(&a, 3);
    assert_int_equal(bt_fleet_replicas(a.fleet), 2); /* limits are divided by it */
    rig_stop(&a);
}

static void test_two_of_one_name_are_two(void **state)
{
    bt_ledger_entry_t e = {0};
    replica_t a, b;

    rig_start(&a, "same", one, NULL);
    rig_start(&b, "same", one, NULL);
    bt_ledger_hold(&e, rig_worker(&a, 8001), BT_PHASE_PREFILL, 9);
    TURN_UNTIL(&rig_loop, others(rig_worker(&b, 8001), BT_PHASE_PREFILL) == 9);
    assert_int_equal(bt_fleet_replicas(b.fleet), 2);
    TURN_UNTIL(&rig_loop, a.fleet->has_twin && b.fleet->has_twin); /* told */
    bt_ledger_release(&e);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_flush_is_no_moment_of_being_alone(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", none, NULL);
    rig_start(&b, "b", none, NULL);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 2);
    for (int i = 0; i < 10; i++) {
        rig_flush("replicas");
        uint64_t until = rig_heartbeats(&a) + 4;
        while (rig_heartbeats(&a) < until) {
            turn_once(&rig_loop);
            assert_int_equal(bt_fleet_replicas(a.fleet), 2);
        }
    }
    rig_stop(&a);
    rig_stop(&b);
}

static void test_loads_of_the_others_add_up(void **state)
{
    bt_ledger_entry_t in_a = {0}, in_b = {0}, in_b2 = {0};
    replica_t a, b, c;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    rig_start(&c, "c", one, NULL); /* does not know the second worker */
    bt_ledger_hold(&in_a, rig_worker(&a, 8001), BT_PHASE_PREFILL, 100);
    bt_ledger_hold(&in_b, rig_worker(&b, 8001), BT_PHASE_PREFILL, 30);
    bt_ledger_hold(&in_b2, rig_worker(&b, 8002), BT_PHASE_DECODE, 7);
    bt_worker_t *w = rig_worker(&c, 8001);
    TURN_UNTIL(&rig_loop, others(w, BT_PHASE_PREFILL) == 130);
    assert_int_equal(atomic_load(&w->others_requests[BT_PHASE_PREFILL]), 2);
    assert_int_equal(others(w, BT_PHASE_DECODE), 0);
    assert_int_equal(bt_worker_tokens(w, BT_PHASE_PREFILL), 130);
    assert_int_equal(bt_worker_requests(w, BT_PHASE_PREFILL), 2);
    TURN_UNTIL(&rig_loop, others(rig_worker(&a, 8001), BT_PHASE_PREFILL) == 30 &&
                              others(rig_worker(&a, 8002), BT_PHASE_DECODE) == 7);
    assert_int_equal(bt_worker_tokens(rig_worker(&a, 8001), BT_PHASE_PREFILL), 130);
    TURN_UNTIL(&rig_loop, others(rig_worker(&b, 8001), BT_PHASE_PREFILL) == 100);
    assert_int_equal(others(rig_worker(&b, 8002), BT_PHASE_DECODE),
                     0); /* its own is not told to it */
    bt_ledger_release(&in_a);
    TURN_UNTIL(&rig_loop, others(w, BT_PHASE_PREFILL) == 30);
    bt_ledger_release(&in_b2);
    bt_worker_t *gone = bt_worker_ref(rig_worker(&b, 8001));
    rig_stop(&b); /* with something on it */
    TURN_UNTIL(&rig_loop, others(w, BT_PHASE_PREFILL) == 0);
    bt_ledger_release(&in_b);
    bt_worker_unref(gone);
    rig_stop(&a);
    rig_stop(&c);
}

static void test_a_worker_of_two_pools_is_one(void **state)
{
    bt_ledger_entry_t e = {0};
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b", one, one);
    bt_ledger_hold(&e, rig_worker(&a, 8001), BT_PHASE_DECODE, 9);
    const bt_workers_t *workers = bt_registry_current(b.registry);
    TURN_UNTIL(&rig_loop, others(workers->pools[0].all.items[0], BT_PHASE_DECODE) == 9 &&
                              others(workers->pools[1].all.items[0], BT_PHASE_DECODE) == 9);
    bt_ledger_release(&e);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_dead_replicas_load_runs_out_and_nonsense_counts_nothing(void **state)
{
    static const char *const nonsense[] = {
        ";;;",
        "x 1 2 3 4;",
        "0123456789abcdeg 1 1 1 1;",
        "0123456789abcdef",
        "0123456789abcdef 1 1;",
        "0123456789abcdef -1 1 1 1;",
        "0123456789abcdef 99999999999999999999999 1 1 1;",
        "\xff\xfe",
    };
    char row[128];
    replica_t a;

    rig_start(&a, "a", one, NULL);
    bt_worker_t *w = rig_worker(&a, 8001);
    for (unsigned i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        snprintf(row, sizeof(row), "bad#%u", i);
        rig_put("load", row, nonsense[i], 0);
        rig_put("health", row, nonsense[i], 0);
        rig_put("replicas", row, nonsense[i], 0);
        rig_put("workers", row, nonsense[i], 0);
    }
    snprintf(row, sizeof(row), "%016llx 50 2 0 0;%016llx -5 0 0 0;",
             (unsigned long long) bt_worker_key_of(w), (unsigned long long) bt_worker_key_of(w));
    rig_put("load", "ghost#0", row, 80);
    TURN_UNTIL(&rig_loop, others(w, BT_PHASE_PREFILL) == 50);
    assert_int_equal(atomic_load(&w->others_requests[BT_PHASE_PREFILL]), 2);
    TURN_UNTIL(&rig_loop, others(w, BT_PHASE_PREFILL) == 0);
    assert_int_equal(a.hints, 0);
    rig_stop(&a);
}

static void test_a_worker_that_is_down_elsewhere_is_looked_at(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    set_up(rig_worker(&a, 8001));
    set_up(rig_worker(&b, 8001));
    rig_heartbeat(&b, 5);
    assert_int_equal(b.hints, 0);
    atomic_store(&rig_worker(&a, 8001)->health, BT_HEALTH_DOWN);
    TURN_UNTIL(&rig_loop, b.hints == 1);
    assert_int_equal(b.hinted_id, rig_worker(&b, 8001)->id);
    assert_int_equal(atomic_load(&rig_worker(&b, 8001)->health),
                     BT_HEALTH_UP); /* a hint is no verdict */
    rig_heartbeat(&b, 5);
    assert_int_equal(b.hints, 1); /* not with every heartbeat */
    rig_stop(&a);
    rig_stop(&b);
}

static void test_an_open_breaker_elsewhere_makes_ours_quick(void **state)
{
    replica_t a, b;

    rig_start(&a, "a", two, NULL);
    rig_start(&b, "b", two, NULL);
    bt_breaker_t *theirs = &rig_worker(&a, 8001)->breaker, *ours = &rig_worker(&b, 8001)->breaker;
    bt_breaker_t *other = &rig_worker(&b, 8002)->breaker;
    assert_false(bt_breaker_failure(ours, false, bt_clock_ms()));
    for (int i = 0; i < 5; i++)
        (void) bt_breaker_failure(theirs, false, bt_clock_ms());
    assert_int_equal(bt_breaker_state(theirs, bt_clock_ms()), BT_BREAKER_OPEN);
    TURN_UNTIL(&rig_loop, atomic_load(&ours->hinted_until_ms) > bt_clock_ms());
    assert_int_equal(bt_breaker_state(ours, bt_clock_ms()), BT_BREAKER_CLOSED);
    assert_true(bt_breaker_allows(ours, bt_clock_ms()));
    assert_false(bt_breaker_failure(other, false, bt_clock_ms()));
    assert_true(bt_breaker_failure(ours, false, bt_clock_ms()));
    rig_stop(&a);
    uint64_t hinted_until_ms = atomic_load(&ours->hinted_until_ms);
    TURN_UNTIL(&rig_loop, bt_clock_ms() > hinted_until_ms);
    rig_heartbeat(&b, 2); /* the hint is not renewed by what nobody says */
    assert_int_equal(atomic_load(&ours->hinted_until_ms), hinted_until_ms);
    rig_stop(&b);
}

static void test_a_call_reaches_all_once(void **state)
{
    char big[BT_FLEET_CALL_MAX + 1];
    replica_t a, b, late;

    rig_start(&a, "a", none, NULL);
    rig_start(&b, "b", none, NULL);
    rig_heartbeat(&a, 2);
    rig_heartbeat(&b, 2);
    assert_int_equal(bt_fleet_call(a.fleet, "cancel", BT_STR("req 1")), 0);
    assert_int_equal(bt_fleet_call(b.fleet, "cancel", BT_STR("req-2")), 0);
    assert_int_equal(bt_fleet_call(b.fleet, "forget", BT_STR("")), 0);
    TURN_UNTIL(&rig_loop, a.calls == 3 && b.calls == 3);
    assert_string_equal(a.called[0], "cancel req 1");
    assert_string_equal(b.called[0], "cancel req 1");
    assert_string_equal(a.called[1], "cancel req-2");
    assert_string_equal(b.called[2], "forget ");
    rig_start(&late, "late", none, NULL);
    rig_heartbeat(&late, 4);
    rig_heartbeat(&a, 4);
    assert_int_equal(late.calls, 0); /* what was ordered before it came is not its business */
    assert_int_equal(a.calls, 3);
    memset(big, 'x', sizeof(big));
    assert_int_equal(bt_fleet_call(a.fleet, "cancel", (bt_str_t){big, sizeof(big)}), BT_E_LIMIT);
    rig_stop(&late);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_names_that_cannot_be_used(void **state)
{
    char err[256];
    bt_fleet_t *fleet;
    bt_fleet_config_t config = {.store = rig_store, .replica = "a#b"};

    assert_int_equal(bt_fleet_new(&fleet, &rig_loop, &config, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "'#'"));
    config.replica = "a\nb";
    assert_int_equal(bt_fleet_new(&fleet, &rig_loop, &config, err, sizeof(err)), BT_E_CONFIG);
    config.replica = "";
    assert_int_equal(bt_fleet_new(&fleet, &rig_loop, &config, err, sizeof(err)), BT_E_CONFIG);
    config.replica = "a";
    config.space = "a{b";
    assert_int_equal(bt_fleet_new(&fleet, &rig_loop, &config, err, sizeof(err)), BT_E_CONFIG);
    assert_non_null(strstr(err, "brace"));
}

static void test_what_is_described(void **state)
{
    bt_text_t out;
    replica_t a, b;

    rig_start(&a, "a", one, NULL);
    rig_start(&b, "b\"quote", one, NULL);
    TURN_UNTIL(&rig_loop, bt_fleet_replicas(a.fleet) == 2);
    rig_heartbeat(&b, 2);
    rig_heartbeat(&a, 2);
    bt_text_init(&out);
    bt_fleet_describe(a.fleet, &out);
    size_t at;
    assert_int_equal(bt_json_validate((bt_str_t){out.data, out.len}, &at), 0);
    assert_non_null(strstr(out.data, "{\"replica\":\"a\","));
    assert_non_null(strstr(out.data, "\"name\":\"b\\\"quote\""));
    assert_non_null(strstr(out.data, "\"state\":\"up\""));
    assert_non_null(strstr(out.data, "\"drained\":[]}"));
    bt_text_fini(&out);
    rig_stop(&a);
    rig_stop(&b);
}

int main(void)
{
#define SPEC(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)
    const struct CMUnitTest tests[] = {
        SPEC(test_replicas_come_and_go),
        SPEC(test_a_replica_without_a_word_runs_out),
        SPEC(test_names_that_are_no_replicas),
        SPEC(test_two_of_one_name_are_two),
        SPEC(test_a_flush_is_no_moment_of_being_alone),
        SPEC(test_loads_of_the_others_add_up),
        SPEC(test_a_worker_of_two_pools_is_one),
        SPEC(test_a_dead_replicas_load_runs_out_and_nonsense_counts_nothing),
        SPEC(test_a_worker_that_is_down_elsewhere_is_looked_at),
        SPEC(test_an_open_breaker_elsewhere_makes_ours_quick),
        SPEC(test_a_call_reaches_all_once),
        SPEC(test_names_that_cannot_be_used),
        SPEC(test_what_is_described),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
