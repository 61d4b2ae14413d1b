#include "script/shared/prefix_hash.h"
#include "script/shared/prefix_index.h"
#include "script/shared/prefix_ring.h"
#include "unit.h"

#include <pthread.h>

static bt_prefix_ring_t *ring;
static uint64_t taken[BT_PREFIX_BLOCKS_MAX];
static uint32_t worker;

static int setup(void **state)
{
    bt_prefix_clear();
    ring = bt_prefix_ring_new();
    return ring != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    bt_prefix_ring_bind(NULL);
    bt_prefix_ring_free(ring);
    return 0;
}

static void chain(uint64_t *hashes, unsigned count, uint64_t seed)
{
    for (unsigned i = 0; i < count; i++)
        hashes[i] = (seed + 1) * 0x9e3779b97f4a7c15ULL + (uint64_t) i * 0xbf58476d1ce4e5b9ULL;
}

static void what_is_new_is_told_once(void **state)
{
    uint64_t hashes[10];
    chain(hashes, 10, 1);
    bt_prefix_insert(hashes, 4, 7, 1); /* this thread tells nobody */
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 0);
    bt_prefix_ring_bind(ring);
    bt_prefix_insert(hashes, 10, 7, 2);
    bt_prefix_insert(hashes, 10, 7, 3);
    bt_prefix_insert(hashes, 2, 8, 3);
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 6);
    assert_int_equal(worker, 7);
    assert_memory_equal(taken, hashes + 4, 6 * sizeof(hashes[0]));
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 2);
    assert_int_equal(worker, 8);
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 0);
    assert_int_equal(bt_prefix_ring_dropped(ring), 0);
}

static void a_full_ring_forgets_and_counts(void **state)
{
    static uint64_t hashes[BT_PREFIX_BLOCKS_MAX];
    uint64_t told = 0, seen = 0;
    unsigned count;
    bt_prefix_ring_bind(ring);
    for (uint64_t i = 0; i < 70; i++) {
        chain(hashes, BT_PREFIX_BLOCKS_MAX, 1000 + i);
        bt_prefix_insert(hashes, BT_PREFIX_BLOCKS_MAX, 7, i);
        told += BT_PREFIX_BLOCKS_MAX;
    }
    while ((count = bt_prefix_ring_take(ring, &worker, taken)) > 0)
        seen += count;
    assert_true(bt_prefix_ring_dropped(ring) > 0);
    assert_int_equal(seen + bt_prefix_ring_dropped(ring), told);
    bt_prefix_insert(hashes, 1, 9, 100);
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 1);
    assert_int_equal(taken[0], hashes[0]);
}

/* The reader makes room while a row is being written. */
static void nothing_stands_behind_a_gap(void **state)
{
    const uint64_t hashes[] = {1, 2, 3};
    bt_prefix_row_t row;
    bt_prefix_ring_bind(ring);
    do { /* until there is room for the head of one more row and one hash */
        bt_prefix_row_begin(&row);
        bt_prefix_row_add(&row, 9);
        bt_prefix_row_end(&row, 7);
    } while (row.at < 65532);
    bt_prefix_row_begin(&row);
    bt_prefix_row_add(&row, hashes[0]);
    bt_prefix_row_add(&row, hashes[1]);
    assert_int_equal(row.count, 1);
    assert_int_equal(bt_prefix_ring_take(ring, &worker, taken), 1);
    bt_prefix_row_add(&row, hashes[2]);
    bt_prefix_row_end(&row, 8);
    assert_int_equal(bt_prefix_ring_dropped(ring), 2);
    while (bt_prefix_ring_take(ring, &worker, taken) > 0 && worker == 7) {}
    assert_int_equal(worker, 8);
    assert_int_equal(taken[0], hashes[0]);
}

#define ROWS 30000U

static void *write_rows(void *arg)
{
    uint64_t hashes[5];
    bt_prefix_ring_bind(ring);
    for (unsigned i = 0; i < ROWS; i++) {
        bt_prefix_row_t row;
        bt_prefix_row_begin(&row);
        for (unsigned k = 0; k < 1 + i % 5; k++) {
            hashes[k] = ((uint64_t) i << 8) + k;
            bt_prefix_row_add(&row, hashes[k]);
        }
        bt_prefix_row_end(&row, i + 1);
    }
    return arg;
}

static void rows_come_whole_and_in_order(void **state)
{
    uint64_t blocks = 0, all = 0;
    uint32_t last = 0;
    pthread_t writer;
    bool is_over = false;
    for (unsigned i = 0; i < ROWS; i++)
        all += 1 + i % 5;
    assert_int_equal(pthread_create(&writer, NULL, write_rows, NULL), 0);
    while (!is_over) {
        unsigned count = bt_prefix_ring_take(ring, &worker, taken);
        blocks += count;
        is_over = count == 0 && last == ROWS;
        if (count == 0) {
            is_over |= blocks + bt_prefix_ring_dropped(ring) == all;
            continue;
        }
        assert_true(worker > last); /* rows that found no room are missing, none comes twice */
        last = worker;
        assert_true(count <= 1 + (worker - 1) % 5);
        for (unsigned k = 0; k < count; k++)
            assert_int_equal(taken[k], ((uint64_t) (worker - 1) << 8) + k);
    }
    pthread_join(writer, NULL);
    assert_int_equal(blocks + bt_prefix_ring_dropped(ring), all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_new_is_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_ring_forgets_and_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_stands_behind_a_gap, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_come_whole_and_in_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
