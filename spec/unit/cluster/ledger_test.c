#include "cluster/ledger.h"
#include "help.h"

#include <pthread.h>

static bt_worker_t *w;

static int setup(void **state)
{
    w = quick_worker(BT_ROLE_DECODE, "http://127.0.0.1:1", "nixl");
    return 0;
}

static int teardown(void **state)
{
    bt_worker_unref(w);
    return 0;
}

static void assert_load(enum bt_phase phase, int64_t tokens, int64_t requests)
{
    assert_int_equal(atomic_load(&bt_worker_total(w, phase)->tokens), tokens);
    assert_int_equal(atomic_load(&bt_worker_total(w, phase)->requests), requests);
}

static void tokens_per_phase(void **state)
{
    bt_ledger_entry_t p = {0}, d = {0};
    bt_ledger_hold(&p, w, BT_PHASE_PREFILL, 100);
    bt_ledger_hold(&d, w, BT_PHASE_DECODE, 40);
    bt_ledger_grow(&d, 3);
    bt_ledger_grow(&d, 1);
    assert_load(BT_PHASE_PREFILL, 100, 1);
    assert_load(BT_PHASE_DECODE, 44, 1);
    assert_int_equal(atomic_load(&w->load.started_since), 2);
    bt_ledger_release(&p);
    assert_load(BT_PHASE_PREFILL, 0, 0);
    assert_load(BT_PHASE_DECODE, 44, 1);
    bt_ledger_release(&d);
    assert_load(BT_PHASE_DECODE, 0, 0);
}

static void release_twice_and_never_held(void **state)
{
    bt_ledger_entry_t e = {0};
    bt_ledger_release(&e);
    bt_ledger_grow(&e, 7);
    assert_load(BT_PHASE_DECODE, 0, 0);
    bt_ledger_hold(&e, w, BT_PHASE_DECODE, 5);
    bt_ledger_release(&e);
    bt_ledger_release(&e);
    bt_ledger_grow(&e, 7);
    assert_load(BT_PHASE_DECODE, 0, 0);
}

static void holding_again_moves_the_load(void **state)
{
    bt_ledger_entry_t e = {0};
    bt_ledger_hold(&e, w, BT_PHASE_PREFILL, 10);
    bt_ledger_hold(&e, w, BT_PHASE_DECODE, 20);
    assert_load(BT_PHASE_PREFILL, 0, 0);
    assert_load(BT_PHASE_DECODE, 20, 1);
    bt_ledger_hold(&e, w, BT_PHASE_DECODE, -5); /* never below nothing */
    bt_ledger_grow(&e, -9);
    assert_load(BT_PHASE_DECODE, 0, 1);
    bt_ledger_release(&e);
    assert_load(BT_PHASE_DECODE, 0, 0);
}

static void *hammer(void *arg)
{
    bt_ledger_entry_t entries[16] = {0};
    unsigned seed = (unsigned) (uintptr_t) arg;
    for (int i = 0; i < 20000; i++) {
        bt_ledger_entry_t *e = &entries[rand_r(&seed) % 16];
        switch (rand_r(&seed) % 4) {
        case 0:
            bt_ledger_hold(e, w, rand_r(&seed) % 2 ? BT_PHASE_PREFILL : BT_PHASE_DECODE,
                           rand_r(&seed) % 5000);
            break;
        case 1:
            bt_ledger_grow(e, rand_r(&seed) % 3);
            break;
        default:
            bt_ledger_release(e);
        }
    }
    /* What this thread still holds is known; give it back, twice. */
    for (int i = 0; i < 16; i++) {
        bt_ledger_release(&entries[i]);
        bt_ledger_release(&entries[i]);
    }
    return NULL;
}

static void a_leg_that_goes_on_counts_once(void **state)
{
    bt_ledger_entry_t prefill = {0}, decode = {0};
    bt_ledger_hold(&prefill, w, BT_PHASE_PREFILL, 100);
    int64_t started = atomic_load(&w->load.started_since);
    bt_ledger_pass(&prefill, &decode, BT_PHASE_DECODE, 100);
    assert_load(BT_PHASE_PREFILL, 0, 0);
    assert_load(BT_PHASE_DECODE, 100, 1);
    assert_int_equal(atomic_load(&w->load.started_since), started);
    bt_ledger_release(&decode);
    bt_ledger_pass(&prefill, &decode, BT_PHASE_DECODE, 100); /* not held: nothing */
    assert_load(BT_PHASE_DECODE, 0, 0);
}

static void totals_return_to_zero_under_threads(void **state)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, (void *) (i + 1)), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_load(BT_PHASE_PREFILL, 0, 0);
    assert_load(BT_PHASE_DECODE, 0, 0);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(tokens_per_phase),
        CASE(release_twice_and_never_held),
        CASE(holding_again_moves_the_load),
        CASE(a_leg_that_goes_on_counts_once),
        CASE(totals_return_to_zero_under_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
