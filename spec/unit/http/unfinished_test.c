/* Who has to go when memory is short. Memory is what the spec says it is: bt_mem_count. */
#include "base/err.h"
#include "base/mem.h"
#include "http/unfinished.h"
#include "loop/util.h"

#include <pthread.h>

#define LIMIT ((size_t) 100 << 20)
#define MIB ((size_t) 1 << 20)

static bt_unfinished_t *table;
static bt_unfinished_loop_t *here;
static bt_loop_t loop;
static bt_unfinished_entry_t entries[16];
static _Atomic unsigned gone[16];
static pthread_t gone_on[16];

static void evict(bt_unfinished_entry_t *e)
{
    const size_t i = (size_t) (e - entries);

    bt_mem_count(BT_MEM_BUFFERS, -(int64_t) e->bytes);
    bt_mem_hand_over();
    gone_on[i] = pthread_self();
    bt_unfinished_close(e);
    atomic_fetch_add(&gone[i], 1);
}

static int setup(void **state)
{
    memset(entries, 0, sizeof(entries));
    for (unsigned i = 0; i < 16; i++)
        atomic_store(&gone[i], 0);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_unfinished_new(&table, LIMIT, evict), 0);
    return bt_unfinished_join(table, &loop, &here);
}

static int teardown(void **state)
{
    turn(&loop, 4);
    for (unsigned i = 0; i < 16; i++)
        if (entries[i].is_open)
            evict(&entries[i]);
    bt_loop_fini(&loop);
    bt_unfinished_free(table);
    assert_int_equal(bt_mem_total_bytes(), 0);
    return 0;
}

/* What a connection does: ask, then take. */
static int take(bt_unfinished_loop_t *at, unsigned i, uint64_t sender, size_t bytes)
{
    int rc = bt_unfinished_reserve(at, &entries[i], sender, bytes);

    if (rc == 0)
        bt_mem_count(BT_MEM_BUFFERS, (int64_t) bytes);
    return rc;
}

static void test_all_is_granted_below_the_limit(void **state)
{
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(take(here, i, i % 2, 10 * MIB - 1000), 0);
    turn(&loop, 4);
    assert_int_equal(bt_unfinished_evicted(table), 0);
}

static void test_the_heaviest_sender_loses_its_largest(void **state)
{
    assert_int_equal(take(here, 0, 7, 30 * MIB), 0); /* one large */
    for (unsigned i = 1; i < 5; i++)
        assert_int_equal(take(here, i, 8, (9 + i) * MIB), 0); /* 46 in four: the heaviest */
    assert_int_equal(take(here, 5, 9, 25 * MIB), 0);          /* 101 */
    turn(&loop, 4);
    assert_int_equal(gone[4], 1); /* its largest: 88 are left */
    assert_int_equal(gone[0] + gone[1] + gone[2] + gone[3], 0);
    assert_int_equal(take(here, 6, 9, 5 * MIB), 0);
    turn(&loop, 4);
    assert_int_equal(bt_unfinished_evicted(table), 1);
    assert_int_equal(take(here, 7, 10, 10 * MIB), 0); /* 103; 8 holds 33, 7 and 9 hold 30 */
    turn(&loop, 4);
    assert_int_equal(gone[3], 1);
    assert_int_equal(bt_unfinished_evicted(table), 2);
}

static void test_who_would_be_the_heaviest_is_refused(void **state)
{
    assert_int_equal(take(here, 0, 1, 40 * MIB), 0);
    assert_int_equal(take(here, 1, 2, 50 * MIB), 0);
    assert_int_equal(take(here, 0, 1, 20 * MIB), BT_E_LIMIT); /* it would hold 60 */
    assert_int_equal(take(here, 2, 1, 20 * MIB), 0);          /* the same sender's 40 go */
    turn(&loop, 4);
    assert_int_equal(gone[0], 1);
    assert_int_equal(gone[1], 0);
}

static void test_what_complete_requests_hold_stays(void **state)
{
    bt_mem_count(BT_MEM_ARENAS, (int64_t) (95 * MIB));
    assert_int_equal(take(here, 0, 1, 4 * MIB), 0);
    assert_int_equal(take(here, 1, 2, 8 * MIB), BT_E_LIMIT); /* not even if the 4 went */
    assert_int_equal(bt_unfinished_reserve(here, NULL, 3, 16384), 0);
    assert_int_equal(take(here, 1, 2, 2 * MIB), 0); /* the 4 go */
    turn(&loop, 4);
    assert_int_equal(gone[0], 1);
    bt_mem_count(BT_MEM_ARENAS, (int64_t) (3 * MIB));
    assert_int_equal(bt_unfinished_reserve(here, NULL, 3, 16384), 0); /* the 2 go */
    turn(&loop, 4);
    assert_int_equal(gone[1], 1);
    bt_mem_count(BT_MEM_ARENAS, (int64_t) (2 * MIB));
    assert_int_equal(bt_unfinished_reserve(here, NULL, 3, 16384), BT_E_LIMIT);
    bt_mem_count(BT_MEM_ARENAS, -(int64_t) (100 * MIB));
}

static void test_one_sender_has_half_in_complete_requests(void **state)
{
    assert_int_equal(take(here, 0, 1, 60 * MIB), 0);
    assert_int_equal(bt_unfinished_complete(&entries[0]), 0); /* its first may be large */
    assert_int_equal(take(here, 1, 1, MIB), 0);
    assert_int_equal(bt_unfinished_complete(&entries[1]), BT_E_LIMIT);
    assert_int_equal(take(here, 2, 2, 30 * MIB), 0);
    assert_int_equal(bt_unfinished_complete(&entries[2]), 0);
    assert_int_equal(take(here, 3, 3, 12 * MIB), BT_E_LIMIT); /* nobody takes complete ones away */
    evict(&entries[0]);
    assert_int_equal(bt_unfinished_complete(&entries[1]), 0);
    turn(&loop, 4);
    assert_int_equal(bt_unfinished_evicted(table), 0);
}

/* Above half of the limit a head's bytes are listed before the key in it is known. */
static void test_a_sender_is_known_late(void **state)
{
    bt_mem_count(BT_MEM_ARENAS, (int64_t) (60 * MIB));
    for (unsigned i = 0; i < 3; i++) {
        bt_unfinished_note(here, &entries[i], 100 + i, 16384); /* three addresses */
        bt_mem_count(BT_MEM_BUFFERS, 16384);
        assert_int_equal(take(here, i, 7, 8 * MIB), 0); /* of one key */
    }
    assert_int_equal(take(here, 3, 8, 14 * MIB), 0); /* 98: the key's 24 outweigh these */
    assert_int_equal(take(here, 4, 9, 6 * MIB), 0);
    turn(&loop, 4);
    assert_int_equal(gone[3], 0);
    assert_int_equal(gone[0] + gone[1] + gone[2], 1);
    bt_mem_count(BT_MEM_ARENAS, -(int64_t) (60 * MIB));
}

static void test_small_beginnings_are_listed_only_when_memory_is_scarce(void **state)
{
    bt_unfinished_note(here, &entries[0], 1, 16384);
    assert_false(entries[0].is_open);
    bt_mem_count(BT_MEM_ARENAS, (int64_t) (60 * MIB));
    bt_unfinished_note(here, &entries[0], 1, 16384);
    assert_true(entries[0].is_open);
    bt_mem_count(BT_MEM_BUFFERS, 16384);
    bt_unfinished_note(here, &entries[0], 1, 16384); /* once is enough */
    assert_int_equal(entries[0].bytes, 16384);
    bt_mem_count(BT_MEM_ARENAS, -(int64_t) (60 * MIB));
}

/* ---- two loops ---- */

static bt_loop_t other;
static bt_unfinished_loop_t *there;

static void *run_other(void *arg)
{
    bt_loop_run(&other);
    return arg;
}

struct order {
    bt_mail_t envelope;
    unsigned i;
    size_t bytes;
    _Atomic int rc;
};

static void on_order(bt_loop_t *at, bt_mail_t *envelope)
{
    struct order *o = bt_container_of(envelope, struct order, envelope);

    (void) at;
    int rc = take(there, o->i, 2, o->bytes);
    bt_mem_hand_over();
    atomic_store(&o->rc, rc + 1);
}

static int take_there(unsigned i, size_t bytes)
{
    struct order o = {.i = i, .bytes = bytes};

    bt_loop_post(&other, &o.envelope, on_order);
    STEP_UNTIL(atomic_load(&o.rc) != 0, usleep(100));
    return atomic_load(&o.rc) - 1;
}

static void test_the_loop_that_has_it_lets_it_go(void **state)
{
    pthread_t thread;

    assert_int_equal(bt_loop_init(&other, 1), 0);
    assert_int_equal(bt_unfinished_join(table, &other, &there), 0);
    assert_int_equal(pthread_create(&thread, NULL, run_other, NULL), 0);
    assert_int_equal(take_there(0, 60 * MIB), 0);
    assert_int_equal(take(here, 1, 1, 30 * MIB), 0);
    assert_int_equal(take(here, 1, 1, 20 * MIB), 0); /* at once: what leaves counts as gone */
    assert_int_equal(take(here, 2, 1, 5 * MIB), 0);  /* and nobody else is sent for it */
    STEP_UNTIL(atomic_load(&gone[0]) != 0, usleep(100));
    assert_true(pthread_equal(gone_on[0], thread));
    assert_int_equal(bt_unfinished_evicted(table), 1);
    bt_loop_stop(&other);
    pthread_join(thread, NULL);
    bt_loop_fini(&other);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_all_is_granted_below_the_limit),
        TEST(test_the_heaviest_sender_loses_its_largest),
        TEST(test_who_would_be_the_heaviest_is_refused),
        TEST(test_what_complete_requests_hold_stays),
        TEST(test_one_sender_has_half_in_complete_requests),
        TEST(test_a_sender_is_known_late),
        TEST(test_small_beginnings_are_listed_only_when_memory_is_scarce),
        TEST(test_the_loop_that_has_it_lets_it_go),
    };

    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
