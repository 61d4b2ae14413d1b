/* Blocks that one replica's choices have put into the index, in the other's index. One process has one index: the two replicas
 * give the same workers other ids, so each finds its own there. */
#include "rig.h"

#include "script/shared/prefix_index.h"

static const unsigned ours[] = {8001, 8002, 0}, theirs[] = {8009, 8002, 8001, 0};

static bt_prefix_ring_t *ring;

static int setup(void **state)
{
    bt_prefix_clear();
    ring = bt_prefix_ring_new();
    assert_non_null(ring);
    return rig_setup(state);
}

static int teardown(void **state)
{
    bt_prefix_ring_bind(NULL);
    bt_prefix_ring_free(ring);
    return rig_teardown(state);
}

static void make(uint64_t *hashes, unsigned count, uint64_t seed)
{
    for (unsigned i = 0; i < count; i++)
        hashes[i] = (seed + 1) * 0x9e3779b97f4a7c15ULL + (uint64_t) i * 0xbf58476d1ce4e5b9ULL;
}

static unsigned known(const replica_t *r, unsigned port, const uint64_t *hashes, unsigned count)
{
    bt_prefix_matches_t m;

    bt_prefix_find(hashes, count, &m);
    return bt_prefix_matched(&m, (uint32_t) rig_worker(r, port)->id);
}

/* As a policy of a's loop does it. */
static void choose(const replica_t *r, unsigned port, const uint64_t *hashes, unsigned count)
{
    bt_prefix_ring_bind(ring);
    bt_prefix_insert(hashes, count, (uint32_t) rig_worker(r, port)->id, bt_clock_ms());
    bt_prefix_ring_bind(NULL);
}

static bt_fleet_stats_t stats_of(const replica_t *r)
{
    bt_fleet_stats_t stats;

    bt_fleet_stats(r->fleet, &stats);
    return stats;
}

static void test_a_choice_is_known_to_the_other(void **state)
{
    uint64_t prompt[20], longer[30];
    replica_t a, b;

    make(prompt, 20, 1);
    make(longer, 30, 1); /* the same beginning */
    rig_start(&a, "a", ours, NULL);
    rig_start(&b, "b", theirs, NULL);
    assert_int_equal(bt_fleet_add_ring(a.fleet, ring), 0);
    rig_heartbeat(&a, 2);
    choose(&a, 8001, prompt, 20);
    TURN_UNTIL(&rig_loop, known(&b, 8001, prompt, 20) == 20);
    assert_int_equal(known(&b, 8002, prompt, 20), 0);
    assert_int_equal(stats_of(&a).prefix_sent, 20);
    assert_int_equal(stats_of(&b).prefix_received, 20);
    choose(&a, 8001, longer, 30);
    TURN_UNTIL(&rig_loop, known(&b, 8001, longer, 30) == 30);
    assert_int_equal(stats_of(&a).prefix_sent, 30);    /* only what is new */
    assert_int_equal(stats_of(&a).prefix_received, 0); /* its own comes back and counts nothing */
    choose(&a, 8002, prompt, 20);
    TURN_UNTIL(&rig_loop, known(&b, 8002, prompt, 20) == 20);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_what_was_heard_is_not_told_again(void **state)
{
    uint64_t prompt[20];
    replica_t a, b;

    make(prompt, 20, 2);
    rig_start(&a, "a", ours, NULL);
    rig_start(&b, "b", theirs, NULL);
    assert_int_equal(bt_fleet_add_ring(a.fleet, ring), 0);
    rig_heartbeat(&a, 2);
    bt_prefix_insert(prompt, 20, (uint32_t) rig_worker(&a, 8001)->id, bt_clock_ms()); /* heard */
    choose(&a, 8001, prompt, 20);
    rig_heartbeat(&a, 3);
    assert_int_equal(stats_of(&a).prefix_sent, 0);
    rig_stop(&a);
    rig_stop(&b);
}

static void test_who_comes_late_reads_what_is_there(void **state)
{
    uint64_t prompt[20];
    replica_t a, late;

    make(prompt, 20, 3);
    rig_start(&a, "a", ours, NULL);
    assert_int_equal(bt_fleet_add_ring(a.fleet, ring), 0);
    rig_heartbeat(&a, 2);
    choose(&a, 8002, prompt, 20);
    TURN_UNTIL(&rig_loop, stats_of(&a).prefix_sent == 20);
    rig_start(&late, "late", theirs, NULL);
    TURN_UNTIL(&rig_loop, known(&late, 8002, prompt, 20) == 20);
    rig_stop(&a);
    rig_stop(&late);
}

static void test_many_go_in_several_batches_and_too_many_are_counted(void **state)
{
    static uint64_t prompts[100][BT_PREFIX_BLOCKS_MAX];
    uint64_t told = 0;
    replica_t a, b;

    rig_start(&a, "a", ours, NULL);
    rig_start(&b, "b", theirs, NULL);
    assert_int_equal(bt_fleet_add_ring(a.fleet, ring), 0);
    rig_heartbeat(&a, 2);
    for (unsigned i = 0; i < 100; i++) { /* more than the ring holds, within one turn */
        make(prompts[i], BT_PREFIX_BLOCKS_MAX, 100 + i);
        choose(&a, 8001, prompts[i], BT_PREFIX_BLOCKS_MAX);
    }
    assert_true(bt_prefix_ring_dropped(ring) > 0);
    told = UINT64_C(100) * BT_PREFIX_BLOCKS_MAX - bt_prefix_ring_dropped(ring);
    assert_true(told > UINT64_C(60) * BT_PREFIX_BLOCKS_MAX);
    TURN_UNTIL(&rig_loop, stats_of(&b).prefix_received == told);
    assert_int_equal(known(&b, 8001, prompts[0], BT_PREFIX_BLOCKS_MAX), BT_PREFIX_BLOCKS_MAX);
    assert_int_equal(stats_of(&a).prefix_dropped, bt_prefix_ring_dropped(ring));
    rig_stop(&a);
    rig_stop(&b);
}

static void test_a_flushed_log_and_nonsense(void **state)
{
    static const char nonsense[] = "\x01\x02\x03\x04\x05\x06\x07\x08"
                                   "aaaaaaaa\xff\xff\xff\xff\xff\xff\xff\xff"
                                   "bbbbbbbb";
    uint64_t prompt[20];
    replica_t a, b;

    make(prompt, 20, 4);
    rig_start(&a, "a", ours, NULL);
    rig_start(&b, "b", theirs, NULL);
    assert_int_equal(bt_fleet_add_ring(a.fleet, ring), 0);
    for (size_t n = 0; n < sizeof(nonsense); n++)
        (void) rig_ask((bt_store_op_t){.what = BT_STORE_LOG_ADD,
                                       .key = BT_STR("prefix"),
                                       .value = {nonsense, n},
                                       .limit = 100});
    rig_heartbeat(&b, 3);
    (void) rig_ask((bt_store_op_t){.what = BT_STORE_CELL_SET, /* takes over a key of any type */
                                   .key = BT_STR("prefix"),
                                   .value = BT_STR("x")});
    (void) rig_ask((bt_store_op_t){.what = BT_STORE_CELL_DROP, .key = BT_STR("prefix")});
    rig_heartbeat(&a, 3);
    choose(&a, 8001, prompt, 20);
    TURN_UNTIL(&rig_loop, known(&b, 8001, prompt, 20) == 20);
    rig_stop(&a);
    rig_stop(&b);
}

int main(void)
{
#define SPEC(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        SPEC(test_a_choice_is_known_to_the_other),
        SPEC(test_what_was_heard_is_not_told_again),
        SPEC(test_who_comes_late_reads_what_is_there),
        SPEC(test_many_go_in_several_batches_and_too_many_are_counted),
        SPEC(test_a_flushed_log_and_nonsense),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
