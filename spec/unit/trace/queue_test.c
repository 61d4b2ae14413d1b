#include "trace/queue.h"
#include "unit.h"

#include <stdlib.h>

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"

static bool put(bt_trace_queue_t *q, bt_str_t draft, uint64_t us)
{
    bt_trace_kept_t kept = {
        .draft = draft, .spans = 3, .why = BT_TRACE_SLOW, .trace = TRACE, .wall_ms = 7};

    for (unsigned i = 0; i < BT_TRACE_METRICS; i++)
        kept.values[i].bucket = BT_TRACE_BUCKETS; /* none */
    kept.values[BT_TRACE_DURATION].bucket = 2;
    kept.values[BT_TRACE_DURATION].us = us;
    return bt_trace_queue_put(q, &kept);
}

static void traces_come_out_whole_and_in_their_order(void **state)
{
    bt_trace_queue_t *q;
    bt_trace_batch_t batch = {0};

    assert_int_equal(bt_trace_queue_new(&q), 0);
    assert_true(put(q, BT_STR("one"), 1));
    assert_true(put(q, BT_STR("two"), 2));
    assert_true(put(q, BT_STR("three"), 3));
    bt_trace_queue_take(q, 6, &batch);
    assert_memory_equal(batch.drafts.data, "onetwo", 6);
    assert_int_equal(batch.drafts.len, 6);
    assert_int_equal(batch.spans, 6);
    batch.drafts.len = 0;
    bt_trace_queue_take(q, 1, &batch); /* one is taken, whatever its size */
    assert_int_equal(batch.drafts.len, 5);
    assert_int_equal(bt_trace_queue_bytes(q), 0);
    bt_text_fini(&batch.drafts);
    bt_trace_queue_free(q);
}

static void what_finds_no_room_is_counted(void **state)
{
    const size_t n = BT_TRACE_QUEUE_BYTES / 5;
    char *big = calloc(1, n);
    bt_trace_batch_t batch = {0};
    bt_trace_stats_t stats;
    bt_trace_queue_t *q;

    assert_non_null(big);
    assert_int_equal(bt_trace_queue_new(&q), 0);
    for (unsigned round = 0; round < 3; round++) { /* around the ring */
        for (unsigned i = 0; i < 4; i++)
            assert_true(put(q, (bt_str_t){big, n}, 1));
        assert_false(put(q, (bt_str_t){big, n}, 1));
        batch = (bt_trace_batch_t){.drafts = batch.drafts};
        batch.drafts.len = 0;
        bt_trace_queue_take(q, BT_TRACE_QUEUE_BYTES, &batch);
        assert_int_equal(batch.drafts.len, 4 * n);
        bt_trace_queue_note(q, 10, 1, 1);
    }
    bt_trace_queue_stats(q, &stats);
    assert_int_equal(stats.dropped, 3 * (3 + 1));
    assert_int_equal(stats.exported, 30);
    assert_int_equal(stats.rejected, 3);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.kept[BT_TRACE_SLOW], 15);
    bt_text_fini(&batch.drafts);
    bt_trace_queue_free(q);
    free(big);
}

static void a_bucket_has_the_last_trace_that_was_kept(void **state)
{
    bt_trace_exemplar_t e;
    bt_trace_queue_t *q;

    assert_int_equal(bt_trace_queue_new(&q), 0);
    assert_false(bt_trace_queue_exemplar(q, BT_TRACE_DURATION, 2, &e));
    assert_true(put(q, BT_STR("one"), 1));
    assert_true(put(q, BT_STR("two"), 2));
    assert_true(bt_trace_queue_exemplar(q, BT_TRACE_DURATION, 2, &e));
    assert_int_equal(e.us, 2);
    assert_int_equal(e.wall_ms, 7);
    assert_memory_equal(e.trace, TRACE, sizeof(e.trace));
    assert_false(bt_trace_queue_exemplar(q, BT_TRACE_TTFT, 2, &e));
    bt_trace_queue_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces_come_out_whole_and_in_their_order),
        cmocka_unit_test(what_finds_no_room_is_counted),
        cmocka_unit_test(a_bucket_has_the_last_trace_that_was_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
