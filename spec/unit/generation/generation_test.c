#include "base/err.h"
#include "generation/generation.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static bt_generations_t gs;
static char err[256];

static bt_policy_source_t *source_of(const char *version, const char *more)
{
    char text[512];
    bt_policy_source_t *source;

    snprintf(text, sizeof text,
             "return { api = 2, name = 'mine', version = '%s', plan = function() end %s }", version,
             more);
    assert_int_equal(
        bt_policy_source_new(&source, BT_SOURCE_ADMIN, "mine", "admin/mine.lua", bt_str(text)), 0);
    return source;
}

/* One pool "default"; takes source. decode may be NULL. */
static bt_policy_bundle_t *bundle_of(uint64_t number, bt_policy_source_t *source,
                                     bt_policy_source_t *decode)
{
    bt_policy_bundle_t *b;

    assert_int_equal(bt_bundle_new(&b, number, 1), 0);
    assert_int_equal(bt_bundle_name(b, 0, "default"), 0);
    assert_int_equal(bt_bundle_put(b, 0, BT_SLOT_BOTH, source, NULL, number), 0);
    assert_int_equal(bt_bundle_put(b, 0, BT_SLOT_DECODE, decode, NULL, number), 0);
    bt_policy_source_unref(source);
    bt_policy_source_unref(decode);
    return b;
}

/* Blocks until all threads have done their part. */
static int build(void)
{
    int rc;

    while ((rc = bt_generations_build(&gs, err, sizeof err)) > 0)
        bt_generations_wait(&gs);
    return rc;
}

/* Policies of what is prepared that do not serve already. */
static unsigned count_new(void)
{
    const bt_generation_t *g = gs.prepared;
    unsigned count = 0;

    for (unsigned i = 0; i < g->bundle->pool_count; i++) {
        const struct bt_pool_policies *p = &g->pools[i], *old = NULL;
        if (gs.serving != NULL)
            old = bt_generation_pool(gs.serving, g->bundle->pools[i].name, i);
        count += p->both != NULL && (old == NULL || old->both != p->both);
        count += p->prefill != NULL && (old == NULL || old->prefill != p->prefill);
        count += p->decode != NULL && (old == NULL || old->decode != p->decode);
    }
    return count;
}

/* Returns how many VMs were made. */
static unsigned serve(bt_policy_bundle_t *bundle)
{
    unsigned built;

    assert_int_equal(bt_generations_begin(&gs, bundle), 0);
    bt_bundle_unref(bundle);
    assert_int_equal(build(), 0);
    built = count_new();
    bt_generations_commit(&gs);
    return built;
}

static const char *version_of(const bt_generation_t *g)
{
    return bt_policy_version(bt_generation_pool(g, "default", 0)->both);
}

static int setup(void **state)
{
    memset(&gs, 0, sizeof gs);
    return 0;
}

static int teardown(void **state)
{
    bt_generations_fini(&gs);
    return gs.live == 0 ? 0 : -1;
}

static void test_nothing_serves_at_first(void **state)
{
    bt_generation_t *none = bt_generation_pin(&gs);

    assert_null(none);
    bt_generation_unpin(&none);
    assert_int_equal(bt_generations_build(&gs, err, sizeof err), BT_E_INVAL);
    bt_generations_abort(&gs);
}

static void test_a_pin_outlives_a_commit(void **state)
{
    bt_generation_t *pin;

    assert_int_equal(serve(bundle_of(1, source_of("1", ""), NULL)), 1);
    pin = bt_generation_pin(&gs);
    assert_int_equal(serve(bundle_of(2, source_of("2", ""), NULL)), 1);
    assert_int_equal(gs.live, 2);
    assert_string_equal(version_of(pin), "1");
    assert_string_equal(version_of(gs.serving), "2");
    bt_generation_unpin(&pin);
    assert_null(pin);
    assert_int_equal(gs.live, 1);
    bt_generation_unpin(&pin); /* idempotent */
    assert_int_equal(gs.live, 1);
}

static void test_unpinning_what_serves_keeps_it(void **state)
{
    bt_generation_t *pin;

    serve(bundle_of(1, source_of("1", ""), NULL));
    pin = bt_generation_pin(&gs);
    bt_generation_unpin(&pin);
    assert_int_equal(gs.live, 1);
    assert_string_equal(version_of(gs.serving), "1");
}

static void test_unchanged_texts_are_shared(void **state)
{
    bt_policy_source_t *same = source_of("1", "");
    const bt_policy_t *vm;

    assert_int_equal(serve(bundle_of(1, bt_policy_source_ref(same), source_of("d", ""))), 2);
    vm = bt_generation_pool(gs.serving, "default", 0)->both;
    assert_int_equal(serve(bundle_of(2, bt_policy_source_ref(same), source_of("e", ""))), 1);
    assert_ptr_equal(bt_generation_pool(gs.serving, "default", 0)->both, vm);
    assert_string_equal(bt_policy_version(bt_generation_pool(gs.serving, "default", 0)->decode),
                        "e");
    assert_null(bt_generation_pool(gs.serving, "default", 0)->prefill);
    assert_int_equal(serve(bundle_of(3, same, NULL)), 0);
    assert_ptr_equal(bt_generation_pool(gs.serving, "default", 0)->both, vm);
}

/* The new start sees what the old handover gave: here it says so by refusing. */
static void test_a_generation_leaves_something_to_the_next(void **state)
{
    bt_policy_bundle_t *b = bundle_of(
        2, source_of("2", ", start = function(params, old) error('old is ' .. old.left) end"),
        NULL);

    serve(bundle_of(1, source_of("1", ", handover = function(ctx) return { left = 'seven' } end"),
                    NULL));
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(build(), BT_E_POLICY);
    assert_non_null(strstr(err, "old is seven"));
    bt_bundle_unref(b);
    assert_string_equal(version_of(gs.serving), "1");
}

static void test_an_abort_changes_nothing(void **state)
{
    bt_policy_bundle_t *b = bundle_of(2, source_of("2", ""), NULL);

    serve(bundle_of(1, source_of("1", ""), NULL));
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(bt_generations_begin(&gs, b), BT_E_INVAL);
    assert_int_equal(build(), 0);
    bt_generations_abort(&gs);
    bt_bundle_unref(b);
    assert_int_equal(gs.live, 1);
    assert_string_equal(version_of(gs.serving), "1");
}

static void test_a_text_that_fails_leaves_nothing_prepared(void **state)
{
    bt_policy_bundle_t *b = bundle_of(2, source_of("2", ""), source_of("3", ", oops = 1"));

    serve(bundle_of(1, source_of("1", ""), NULL));
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(build(), BT_E_POLICY);
    assert_non_null(strstr(err, "admin/mine.lua"));
    assert_non_null(strstr(err, "oops"));
    bt_bundle_unref(b);
    assert_null(gs.prepared);
    assert_int_equal(gs.live, 1);
}

static void test_at_most_four_live(void **state)
{
    bt_generation_t *pins[BT_GENERATIONS_MAX];
    bt_policy_bundle_t *b = bundle_of(9, source_of("9", ""), NULL);

    for (unsigned i = 0; i < BT_GENERATIONS_MAX; i++) {
        serve(bundle_of(i + 1, source_of("1", ""), NULL));
        pins[i] = bt_generation_pin(&gs);
    }
    assert_int_equal(gs.live, 4);
    assert_int_equal(bt_generations_begin(&gs, b), BT_E_AGAIN);
    assert_int_equal(gs.live, 4);
    bt_generation_unpin(&pins[1]); /* any of them makes room, not only the oldest */
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    bt_generations_abort(&gs);
    bt_bundle_unref(b);
    for (unsigned i = 0; i < BT_GENERATIONS_MAX; i++)
        bt_generation_unpin(&pins[i]);
    assert_int_equal(gs.live, 1);
}

static void test_pools_are_found_by_name(void **state)
{
    bt_policy_bundle_t *b;
    bt_policy_source_t *source = source_of("1", "");

    assert_int_equal(bt_bundle_new(&b, 1, 2), 0);
    assert_int_equal(bt_bundle_name(b, 0, "a"), 0);
    assert_int_equal(bt_bundle_name(b, 1, "b"), 0);
    assert_int_equal(bt_bundle_put(b, 1, BT_SLOT_BOTH, source, NULL, 1), 0);
    bt_policy_source_unref(source);
    serve(b);
    assert_ptr_equal(bt_generation_pool(gs.serving, "b", 1), &gs.serving->pools[1]);
    assert_ptr_equal(bt_generation_pool(gs.serving, "b", 0),
                     &gs.serving->pools[1]); /* it stood elsewhere before */
    assert_ptr_equal(bt_generation_pool(gs.serving, "b", 7), &gs.serving->pools[1]);
    assert_null(bt_generation_pool(gs.serving, "c", 0));
    assert_null(gs.serving->pools[0].both);
}

/* ---- parameters ---- */

#define WITH_WEIGHT ", params = { weight = { type = 'number', max = 10, default = 1 } }"

/* One pool, one policy with weight = number; takes no reference. */
static bt_policy_bundle_t *weighted(uint64_t number, bt_policy_source_t *source, double weight)
{
    bt_value_t item = {.type = BT_VALUE_NUMBER, .key = (char *) "weight", .number = weight};
    const bt_value_t params = {.type = BT_VALUE_TABLE, .items = &item, .count = 1};
    bt_policy_bundle_t *b;

    assert_int_equal(bt_bundle_new(&b, number, 1), 0);
    assert_int_equal(bt_bundle_name(b, 0, "default"), 0);
    assert_int_equal(bt_bundle_put(b, 0, BT_SLOT_BOTH, source, &params, number), 0);
    return b;
}

/* start tells by failing which value it got. */
static void test_parameters_reach_start(void **state)
{
    bt_policy_source_t *source = source_of(
        "1", WITH_WEIGHT ", start = function(params) if params.weight == 7 then error('seven') end "
                         "end");
    bt_policy_bundle_t *b;

    serve(weighted(1, source, 3));
    b = weighted(2, source, 7);
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(build(), BT_E_POLICY);
    assert_non_null(strstr(err, "seven"));
    bt_bundle_unref(b);
    bt_policy_source_unref(source);
}

static void test_other_parameters_are_another_vm(void **state)
{
    bt_policy_source_t *source = source_of("1", WITH_WEIGHT);
    bt_policy_bundle_t *b;

    assert_int_equal(serve(weighted(1, source, 3)), 1);
    assert_int_equal(serve(weighted(2, source, 3)), 0); /* equal, though another copy */
    assert_int_equal(serve(weighted(3, source, 4)), 1);
    assert_int_equal(serve(bundle_of(4, bt_policy_source_ref(source), NULL)), 1);
    b = weighted(5, source, 12);
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(build(), BT_E_CONFIG);
    assert_non_null(strstr(err, "params.weight: 12 is above max 10"));
    bt_bundle_unref(b);
    bt_policy_source_unref(source);
}

/* ---- one policy or several in a pool ---- */

static void test_a_policy_that_is_named_twice_has_one_vm(void **state)
{
    bt_policy_source_t *one = source_of("1", "");
    bt_policy_t *all[BT_SLOT_COUNT];
    const struct bt_pool_policies *p;

    bt_policy_source_ref(one); /* a bundle takes one for each */
    bt_policy_source_ref(one);
    serve(bundle_of(1, one, one));
    p = &gs.serving->pools[0];
    assert_non_null(p->both);
    assert_ptr_equal(p->decode, p->both);
    assert_int_equal(bt_pool_policies_all(p, all), 1);
    serve(bundle_of(2, one, source_of("2", "")));
    p = &gs.serving->pools[0];
    assert_ptr_not_equal(p->decode, p->both);
    assert_int_equal(bt_pool_policies_all(p, all), 2);
}

static void test_only_one_of_a_pool_may_route(void **state)
{
    bt_policy_source_t *one = source_of("1", ", route = function() end");
    bt_policy_bundle_t *b = bundle_of(1, one, source_of("2", ", route = function() end"));

    assert_int_equal(bt_generations_begin(&gs, b), 0);
    bt_bundle_unref(b);
    assert_int_equal(build(), BT_E_CONFIG);
    assert_string_equal(err, "pool default: policies mine and mine both have a route hook; only "
                             "one of a pool's policies may");
    assert_null(gs.prepared);
}

/* ---- shadows ---- */

static void test_a_shadow_that_fails_is_left_out(void **state)
{
    bt_policy_source_t *good = source_of("1", ""), *bad = source_of("2", ", oops = 1");
    bt_policy_bundle_t *b;

    assert_int_equal(bt_bundle_new(&b, 1, 2), 0);
    assert_int_equal(bt_bundle_name(b, 0, "default"), 0);
    assert_int_equal(bt_bundle_name(b, 1, "rules:try/shadow"), 0);
    assert_int_equal(bt_bundle_put(b, 0, BT_SLOT_BOTH, good, NULL, 1), 0);
    assert_int_equal(bt_bundle_put(b, 1, BT_SLOT_BOTH, bad, NULL, 1), 0);
    b->pools[1].parts[BT_SLOT_BOTH].is_shadow = true;
    serve(b);
    assert_string_equal(version_of(gs.serving), "1");
    assert_null(gs.serving->pools[1].both);
    assert_int_equal(bt_bundle_new(&b, 2, 2), 0); /* the same text decides beside, and decides */
    assert_int_equal(bt_bundle_name(b, 0, "default"), 0);
    assert_int_equal(bt_bundle_name(b, 1, "rules:try/shadow"), 0);
    assert_int_equal(bt_bundle_put(b, 0, BT_SLOT_BOTH, good, NULL, 1), 0);
    assert_int_equal(bt_bundle_put(b, 1, BT_SLOT_BOTH, good, NULL, 1), 0);
    b->pools[1].parts[BT_SLOT_BOTH].is_shadow = true;
    assert_int_equal(serve(b), 1);
    assert_non_null(gs.serving->pools[1].both);
    bt_policy_source_unref(good);
    bt_policy_source_unref(bad);
}

/* ---- threads ---- */

static void test_many_parts(void **state)
{
    bt_policy_bundle_t *b;
    char name[16];

    assert_int_equal(bt_bundle_new(&b, 1, 100), 0);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%u", i);
        bt_policy_source_t *source = source_of(name, "");
        assert_int_equal(bt_bundle_name(b, i, name), 0);
        assert_int_equal(bt_bundle_put(b, i, BT_SLOT_BOTH, source, NULL, 1), 0);
        bt_policy_source_unref(source);
    }
    assert_int_equal(serve(b), 100);
    for (unsigned i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%u", i);
        assert_string_equal(bt_policy_version(gs.serving->pools[i].both), name);
    }
}

static bt_loop_t loop;

static void on_built(void *user)
{
    int *rc_p = user;

    *rc_p = bt_generations_build(&gs, err, sizeof err);
    if (*rc_p <= 0)
        bt_loop_stop(&loop);
}

static void on_late(bt_timer_t *timer)
{
    (void) timer;
    fail_msg("nobody told that the policy is made");
}

/* The loop turns while start waits, and is told. */
static void test_the_loop_is_told(void **state)
{
    bt_timer_t late;
    int rc = 1;

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_timer_init(&loop, &late, on_late);
    bt_timer_start(&late, 60000);
    bt_generations_listen(&gs, &loop, on_built, &rc);
    bt_policy_bundle_t *b = bundle_of(1, source_of("1", ", start = function() baton.sleep(30) end"),
                                      source_of("2", ", start = function() baton.sleep(10) end"));
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    bt_bundle_unref(b);
    assert_int_equal(bt_generations_build(&gs, err, sizeof err), 1);
    bt_loop_run(&loop);
    if (rc < 0)
        fail_msg("%s", err);
    bt_generations_commit(&gs);
    assert_string_equal(version_of(gs.serving), "1");
    bt_timer_stop(&late);
    bt_generations_listen(&gs, &loop, NULL, NULL);
    bt_generations_fini(&gs);
    bt_loop_fini(&loop);
}

/* Nothing waits for the thread: another generation serves while it sleeps on. */
static void test_an_abort_waits_for_no_thread(void **state)
{
    bt_policy_bundle_t *b =
        bundle_of(1, source_of("1", ", start = function() baton.sleep(200) end"), NULL);

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_generations_listen(&gs, &loop, NULL, NULL);
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(bt_generations_build(&gs, err, sizeof err), 1);
    assert_non_null(gs.builder.builds);
    bt_generations_abort(&gs);
    assert_null(gs.prepared);
    assert_int_equal(gs.live, 0);
    assert_non_null(gs.builder.builds); /* still at it */
    bt_bundle_unref(b);
    serve(bundle_of(2, source_of("2", ""), NULL));
    assert_string_equal(version_of(gs.serving), "2");
    bt_generations_fini(&gs); /* this one joins */
    assert_null(gs.builder.builds);
    bt_loop_fini(&loop); /* mail that nobody waits for */
}

static unsigned told;

static void on_end(void *user)
{
    (void) user;
    told++;
    assert_int_equal(bt_generations_build(&gs, err, sizeof err), BT_E_INVAL);
}

static void test_fini_tells_who_waits(void **state)
{
    bt_policy_bundle_t *b =
        bundle_of(1, source_of("1", ", start = function() baton.sleep(20) end"), NULL);

    told = 0;
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_generations_listen(&gs, &loop, on_end, NULL);
    assert_int_equal(bt_generations_begin(&gs, b), 0);
    assert_int_equal(bt_generations_build(&gs, err, sizeof err), 1);
    bt_bundle_unref(b);
    bt_generations_fini(&gs);
    assert_int_equal(told, 1);
    bt_loop_fini(&loop);
    assert_int_equal(told, 1); /* the mail comes too late for anybody */
}

static void test_errors_are_counted_by_birth(void **state)
{
    bt_policy_errors_t e;
    char last[64] = "";

    bt_policy_errors_init(&e);
    assert_int_equal(bt_policy_errors_count(&e, 1, last, sizeof last), 0);
    bt_policy_errors_note(&e, 1, "one");
    bt_policy_errors_note(&e, 1, "two");
    bt_policy_errors_note(&e, 2, "other");
    assert_int_equal(bt_policy_errors_count(&e, 1, last, sizeof last), 2);
    assert_string_equal(last, "two");
    bt_policy_errors_note(&e, 1 + BT_POLICY_ERROR_SLOTS, "new");
    assert_int_equal(bt_policy_errors_count(&e, 1, last, sizeof last),
                     0); /* a younger one has its place */
    bt_policy_errors_note(&e, 1, "late");
    assert_int_equal(bt_policy_errors_count(&e, 1 + BT_POLICY_ERROR_SLOTS, last, sizeof last), 1);
    assert_string_equal(last, "new");
    bt_policy_errors_fini(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_serves_at_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_pin_outlives_a_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unpinning_what_serves_keeps_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unchanged_texts_are_shared, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_generation_leaves_something_to_the_next, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_an_abort_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_text_that_fails_leaves_nothing_prepared, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_at_most_four_live, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pools_are_found_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_parameters_reach_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_parameters_are_another_vm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_shadow_that_fails_is_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_policy_that_is_named_twice_has_one_vm, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_only_one_of_a_pool_may_route, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_loop_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_abort_waits_for_no_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fini_tells_who_waits, setup, teardown),
        cmocka_unit_test(test_errors_are_counted_by_birth),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
