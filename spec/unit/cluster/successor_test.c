/* What of a worker's past is its successor's, whoever describes it anew. */
#include "cluster/engine_ids.h"
#include "help.h"

#include <stdio.h>

#define URL "http://127.0.0.1:1"

static bt_registry_t *r;
static bt_pool_spec_t pool;
static bt_worker_spec_t spec;
static char err[256];

static int setup(void **state)
{
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    make_spec(&spec, BT_ROLE_PREFILL, URL, "MooncakeConnector");
    spec.bootstrap_port = 8998;
    return bt_registry_new(&r, NULL, NULL, NULL);
}

static int teardown(void **state)
{
    bt_registry_free(r);
    bt_worker_spec_fini(&spec);
    bt_pool_spec_fini(&pool);
    return 0;
}

static bt_worker_t *now(void)
{
    return bt_workers_find(bt_registry_current(r), BT_STR(URL));
}

/* ---- everybody who may describe it anew ---- */

static void by_config(unsigned count)
{
    const bt_worker_spec_t *lists[1] = {&spec};
    assert_int_equal(bt_registry_apply(r, &pool, 1, lists, &count, err, sizeof err), 0);
}

static void by_reload(void)
{
    by_config(1);
}

static void by_file(void)
{
    const bt_found_t one = {.spec = spec};
    assert_int_equal(bt_registry_set_found(r, BT_NAMED_FILE, &one, 1, err, sizeof err), 0);
}

static void by_pod(void)
{
    bt_found_change_t one = {.found.spec = spec};
    assert_int_equal(bt_registry_change_found(r, BT_NAMED_KUBERNETES, &one, 1), 0);
    assert_int_equal(one.rc, 0);
}

static void by_api(void)
{
    assert_int_equal(bt_registry_add(r, NULL, &spec, err, sizeof err), 0);
}

static void set_zone(const char *zone)
{
    free(spec.zone);
    spec.zone = text(zone);
}

/* As one that has served for a while, and failed lately. */
static void serve(bt_worker_t *w)
{
    const uint64_t now_ms = 1000000;

    set_up(w);
    bt_worker_note_service(w);
    w->since_ms = 7;
    atomic_store(&w->ttft_ema_us, 42);
    atomic_store(&w->routes_off, BT_OPTIONAL_TOKENS);
    atomic_store(&w->load.running, 3);
    atomic_store(&w->load.at_ms, now_ms);
    assert_int_equal(
        bt_engine_ids_read(w,
                           BT_STR("{\"0\":{\"engine_id\":\"one\"},\"1\":{\"engine_id\":\"two\"}}")),
        0);
    w->learned = (struct bt_learned){.engine_id = "e", .port = 5};
    atomic_store(&w->has_learned, true);
    atomic_store(&w->draining, true);
    for (unsigned i = 0; i < w->breaker.config.failures; i++)
        (void) bt_breaker_failure(&w->breaker, false, now_ms);
    assert_int_equal(bt_breaker_state(&w->breaker, now_ms + 1), BT_BREAKER_OPEN);
}

static void assert_has_its_past(bt_worker_t *w)
{
    char id[BT_ENGINE_ID_MAX];

    assert_int_equal(atomic_load(&w->health), BT_HEALTH_UP);
    assert_int_equal(w->since_ms, 7);
    assert_int_equal(atomic_load(&w->ttft_ema_us), 42);
    assert_int_equal(atomic_load(&w->routes_off), BT_OPTIONAL_TOKENS);
    assert_int_equal(atomic_load(&w->load.running), 3);
    assert_int_equal(atomic_load(&w->load.at_ms), 1000000);
    assert_true(atomic_load(&w->has_engine_ids));
    assert_true(bt_engine_ids_get(w, 1, id, sizeof id));
    assert_string_equal(id, "two");
    assert_true(atomic_load(&w->has_learned));
    assert_string_equal(w->learned.engine_id, "e");
    assert_true(atomic_load(&w->draining));
    assert_int_equal(bt_breaker_state(&w->breaker, 1000001), BT_BREAKER_OPEN);
    assert_int_equal(bt_breaker_state(&w->breaker, 1010001), BT_BREAKER_HALF_OPEN);
    assert_int_equal(atomic_load(&w->breaker.opened_total), 1);
}

static void assert_begins_anew(bt_worker_t *w)
{
    assert_int_equal(atomic_load(&w->health), BT_HEALTH_UNKNOWN);
    assert_int_not_equal(w->since_ms, 7);
    assert_int_equal(atomic_load(&w->ttft_ema_us), 0);
    assert_int_equal(atomic_load(&w->load.at_ms), 0);
    assert_false(atomic_load(&w->has_engine_ids));
    assert_false(atomic_load(&w->has_learned));
    assert_int_equal(bt_breaker_state(&w->breaker, 1000001), BT_BREAKER_CLOSED);
    assert_true(atomic_load(&w->draining)); /* an operator's word, not the engine's */
}

static void check(void (*first)(void), void (*then)(void))
{
    const bt_worker_t *old;

    by_config(0); /* a pool */
    set_zone("a");
    first();
    serve(now());
    old = now();
    set_zone("b");
    then();
    assert_ptr_not_equal(now(), old);
    assert_string_equal(now()->spec.zone, "b");
    assert_has_its_past(now());
    free(spec.version); /* it says of the process what was not said: no contradiction */
    spec.version = text("0.10");
    old = now();
    if (then != by_api)
        then();
    assert_true(then == by_api || now() != old);
    assert_has_its_past(now());
}

static void a_reload_keeps_the_process(void **state)
{
    check(by_reload, by_reload);
}

static void a_file_keeps_the_process(void **state)
{
    check(by_file, by_file);
}

static void a_pod_keeps_the_process(void **state)
{
    check(by_pod, by_pod);
}

static void who_adds_what_was_found_keeps_the_process(void **state)
{
    check(by_file, by_api);
}

static void who_configures_what_was_found_keeps_the_process(void **state)
{
    check(by_pod, by_reload);
}

/* One of two that is out stays out: its successor does not find its own place in the group taken. */
static void an_open_breaker_stays_open_in_a_small_pool(void **state)
{
    bt_worker_spec_t two[2];
    const bt_worker_spec_t *lists[1] = {two};
    const unsigned count = 2;

    make_spec(&two[0], BT_ROLE_HYBRID, URL, NULL);
    make_spec(&two[1], BT_ROLE_HYBRID, "http://127.0.0.1:2", NULL);
    assert_int_equal(bt_registry_apply(r, &pool, 1, lists, &count, err, sizeof err), 0);
    for (unsigned i = 0; i < 2; i++) {
        bt_worker_t *w = bt_registry_current(r)->pools[0].all.items[i];
        set_up(w);
        bt_worker_note_service(w);
    }
    for (unsigned i = 0; i < now()->breaker.config.failures; i++)
        (void) bt_breaker_failure(&now()->breaker, false, 1000000);
    two[0].zone = text("b");
    assert_int_equal(bt_registry_apply(r, &pool, 1, lists, &count, err, sizeof err), 0);
    assert_int_equal(bt_breaker_state(&now()->breaker, 1000001), BT_BREAKER_OPEN);
    assert_int_equal(atomic_load(&now()->breaker.group->out), 1);
    assert_int_equal(atomic_load(&now()->breaker.group->usable), 2);
    bt_worker_spec_fini(&two[0]);
    bt_worker_spec_fini(&two[1]);
}

static void another_process_begins_anew(void **state)
{
    by_config(0);
    spec.version = text("1");
    by_file();
    serve(now());
    free(spec.version);
    spec.version = text("2");
    by_file();
    assert_begins_anew(now());
    serve(now());
    spec.dp_size = 2;
    by_file();
    assert_has_its_past(now()); /* it was not said before */
    spec.dp_size = 4;
    by_file();
    assert_begins_anew(now());
    serve(now());
    spec.bootstrap_port = 8999;
    by_file();
    assert_begins_anew(now());
    serve(now());
    spec.role = BT_ROLE_DECODE;
    by_file();
    assert_begins_anew(now());
    assert_string_equal(now()->name, "p0");
    assert_true(atomic_load(&now()->named_ms[BT_NAMED_FILE]) > 0);
}

/* Its first word may be that of the process that is there; another word is another process's. */
static void a_word_of_its_own(void **state)
{
    bt_registered_t word = {.kv_address = "10.0.0.1:14579"};
    bt_worker_t *w;

    free(spec.connector);
    spec.connector = text("p2p_nccl");
    by_config(1);
    serve(now());
    assert_int_equal(bt_registry_take_word(r, now(), &word, &w, err, sizeof err), 0);
    assert_has_its_past(w);
    word.kv_address[0] = '2';
    assert_int_equal(bt_registry_take_word(r, w, &word, &w, err, sizeof err), 0);
    assert_begins_anew(w);
}

/* Who is down may be so by its old description. */
static void down_is_not_carried(void **state)
{
    by_config(1);
    atomic_store(&now()->health, BT_HEALTH_DOWN);
    set_zone("b");
    by_config(1);
    assert_int_equal(atomic_load(&now()->health), BT_HEALTH_UNKNOWN);
}

/* ---- a role that was switched ---- */

static void switch_to(enum bt_role role, int bootstrap_port)
{
    bt_worker_spec_t to;

    assert_int_equal(bt_worker_spec_copy(&to, &now()->spec), 0);
    to.role = role;
    to.bootstrap_port = bootstrap_port;
    assert_int_equal(bt_registry_replace(r, now(), &to, err, sizeof err), 0);
    bt_worker_spec_fini(&to);
}

static void check_switched(void (*say)(void))
{
    bt_worker_t *switched;

    by_config(0);
    say();
    serve(now());
    switch_to(BT_ROLE_DECODE, 0);
    assert_begins_anew(now());
    switched = now();
    say(); /* the same again */
    assert_ptr_equal(now(), switched);
    assert_int_equal(now()->spec.role, BT_ROLE_DECODE);
    set_zone("b"); /* more of it, in the same role */
    say();
    assert_int_equal(now()->spec.role, BT_ROLE_DECODE);
    assert_int_equal(now()->spec.bootstrap_port, 0);
    assert_string_equal(now()->spec.zone, "b");
    assert_string_equal(now()->name, "p0");
    switched = now();
    say();
    assert_ptr_equal(now(), switched);
    spec.role = BT_ROLE_HYBRID; /* another role than before: its word counts again */
    say();
    assert_int_equal(now()->spec.role, BT_ROLE_HYBRID);
    assert_null(now()->said);
    spec.role = BT_ROLE_PREFILL;
    say();
    assert_int_equal(now()->spec.role, BT_ROLE_PREFILL);
    switch_to(BT_ROLE_DECODE, 0);
    switch_to(BT_ROLE_PREFILL, 8998); /* taken back */
    assert_null(now()->said);
    switched = now();
    say();
    assert_ptr_equal(now(), switched);
}

static void a_switched_role_outlives_a_reload(void **state)
{
    check_switched(by_reload);
}

static void a_switched_role_outlives_a_file(void **state)
{
    check_switched(by_file);
}

static void a_switched_role_outlives_a_pod(void **state)
{
    check_switched(by_pod);
}

/* Who adds it says which role it has now. */
static void the_last_word_of_operators_counts(void **state)
{
    by_config(0);
    by_file();
    switch_to(BT_ROLE_DECODE, 0);
    by_api();
    assert_int_equal(now()->spec.role, BT_ROLE_PREFILL);
    assert_null(now()->said);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_reload_keeps_the_process),
        CASE(a_file_keeps_the_process),
        CASE(a_pod_keeps_the_process),
        CASE(who_adds_what_was_found_keeps_the_process),
        CASE(who_configures_what_was_found_keeps_the_process),
        CASE(an_open_breaker_stays_open_in_a_small_pool),
        CASE(another_process_begins_anew),
        CASE(a_word_of_its_own),
        CASE(down_is_not_carried),
        CASE(a_switched_role_outlives_a_reload),
        CASE(a_switched_role_outlives_a_file),
        CASE(a_switched_role_outlives_a_pod),
        CASE(the_last_word_of_operators_counts),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
