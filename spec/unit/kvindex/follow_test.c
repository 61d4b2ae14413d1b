/* Numbers that jump, answers with holes, engines that begin anew: what is known is whole, or it is dropped. */
#include "kvindex/follow.h"

#include "base/err.h"
#include "kvindex/payload.h"
#include "unit.h"

static bt_kv_index_t *index_;
static bt_kv_decoder_t decoder;
static bt_kv_follow_t follow;
static uint32_t part;
static unsigned asked, losses;
static uint64_t asked_from, now_ms;
static enum bt_kv_loss last_loss;
static int ask_rc;

static int on_ask(void *user, uint64_t from)
{
    (void) user;
    asked++;
    asked_from = from;
    return ask_rc;
}

static void on_loss(void *user, enum bt_kv_loss loss)
{
    (void) user;
    losses++;
    last_loss = loss;
}

static void open_with(bool has_replay)
{
    asked = losses = 0;
    ask_rc = 0;
    now_ms = 1000;
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){0}), 0);
    assert_int_equal(bt_kv_part_open(index_, 1, &part), 0);
    bt_kv_decoder_init(&decoder);
    follow = (bt_kv_follow_t){.index = index_,
                              .decoder = &decoder,
                              .part = part,
                              .has_replay = has_replay,
                              .ask = on_ask,
                              .on_loss = on_loss};
    bt_kv_follow_up(&follow, now_ms);
}

static int setup(void **state)
{
    open_with(true);
    return 0;
}

static int setup_without_replay(void **state)
{
    open_with(false);
    return 0;
}

static int teardown(void **state)
{
    bt_kv_follow_fini(&follow);
    bt_kv_decoder_fini(&decoder);
    bt_kv_index_free(index_);
    return 0;
}

static bt_str_t number(uint64_t n, char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (char) (n >> (56 - 8 * i));
    return (bt_str_t){out, 8};
}

/* Block n is stored by batch n. */
static void stream_as(uint64_t seq, unsigned block)
{
    char bytes[64], seq_bytes[8];

    assert_true(bt_kv_follow_wants_more(&follow));
    bt_kv_follow_message(
        &follow,
        (bt_str_t[]){BT_STR("topic"), number(seq, seq_bytes), payload_stored(block, bytes)}, 3,
        false, now_ms);
}

static void stream(uint64_t n)
{
    stream_as(n, (unsigned) n);
}

static void answer(uint64_t n, bool is_old)
{
    char bytes[64], seq[8];
    const bt_str_t payload = n == UINT64_MAX ? BT_STR("") : payload_stored((unsigned) n, bytes);

    if (is_old)
        bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR(""), number(n, seq), payload}, 3, true,
                             now_ms);
    else
        bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR(""), BT_STR(""), number(n, seq), payload},
                             4, true, now_ms);
}

static void end(void)
{
    answer(UINT64_MAX, false);
}

static uint64_t held(void)
{
    return bt_kv_part_held(index_, part);
}

static void test_late_joiner(void **state)
{
    assert_int_equal(asked, 1);
    assert_int_equal(asked_from, 0);
    assert_false(bt_kv_follow_wants_more(&follow));
    assert_false(bt_kv_part_is_live(index_, part));
    for (uint64_t n = 0; n < 3; n++)
        answer(n, n == 1); /* both shapes are read */
    end();
    assert_true(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 3);
    /* the stream begins where it likes: what the answer brought is left out */
    stream(2);
    stream(3);
    assert_int_equal(held(), 4);
    assert_int_equal(losses, 0);
    assert_int_equal(follow.stats.batches, 4);
}

static void test_old_shape_ends(void **state)
{
    answer(0, true);
    answer(UINT64_MAX, true);
    assert_true(bt_kv_part_is_live(index_, part));
}

/* The engine keeps only so much: what it still has is better than nothing. */
static void test_joiner_comes_too_late_for_all(void **state)
{
    answer(0, false);
    bt_kv_follow_down(&follow);
    bt_kv_follow_up(&follow, now_ms);
    losses = 0;
    answer(7, false);
    answer(8, false);
    end();
    stream(9);
    assert_int_equal(losses, 0);
    assert_int_equal(follow.next, 10);
}

static void test_gap_is_healed(void **state)
{
    end();
    stream(0);
    stream(3);
    assert_int_equal(asked, 2);
    assert_int_equal(asked_from, 1);
    answer(1, false);
    answer(2, false);
    answer(3, false); /* it has been published, so it is said again too */
    end();
    assert_int_equal(held(), 4);
    assert_int_equal(losses, 0);
    stream(4);
    assert_int_equal(held(), 5);
    /* an answer that ends before the batch that showed the gap */
    stream(7);
    answer(5, false);
    answer(6, false);
    end();
    assert_int_equal(held(), 8);
    assert_int_equal(losses, 0);
    assert_int_equal(follow.stats.gaps, 2);
}

static void test_gap_that_nobody_can_heal(void **state)
{
    end();
    stream(0);
    stream(1);
    stream_as(5, 0);
    assert_int_equal(asked_from, 2);
    answer(4, false); /* 2 and 3 are not kept any more */
    end();
    assert_int_equal(losses, 1);
    assert_int_equal(last_loss, BT_KV_LOSS_GAP);
    assert_true(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 1); /* batch 4 had no parent, batch 5 is block 0 */
    assert_int_equal(follow.next, 6);
}

static void test_gap_and_silence(void **state)
{
    end();
    stream(0);
    stream_as(5, 0);
    now_ms += BT_KV_REPLAY_DEADLINE_MS - 1;
    bt_kv_follow_turn(&follow, now_ms);
    assert_false(bt_kv_follow_wants_more(&follow));
    now_ms++;
    bt_kv_follow_turn(&follow, now_ms);
    assert_true(bt_kv_follow_wants_more(&follow));
    assert_int_equal(last_loss, BT_KV_LOSS_GAP);
    assert_int_equal(held(), 1);
    answer(1, false); /* too late: of no use */
    assert_int_equal(follow.next, 6);
}

static void go_quiet(void)
{
    now_ms += BT_KV_QUIET_MS;
    bt_kv_follow_turn(&follow, now_ms);
}

/* No number behind it shows that the last batch was lost. It is asked for once, and the stream does not wait. */
static void test_last_batch_is_lost(void **state)
{
    end();
    now_ms += BT_KV_QUIET_MS;
    bt_kv_follow_turn(&follow, now_ms);
    assert_int_equal(asked, 1); /* nothing has come: nothing to ask from */
    stream(0);
    now_ms += BT_KV_QUIET_MS - 1;
    bt_kv_follow_turn(&follow, now_ms);
    assert_int_equal(asked, 1);
    go_quiet();
    assert_int_equal(asked, 2);
    assert_int_equal(asked_from, 1);
    assert_true(bt_kv_follow_wants_more(&follow));
    answer(1, false);
    end();
    assert_int_equal(held(), 2);
    go_quiet();
    assert_int_equal(asked, 2);
    stream(2);
    assert_int_equal(held(), 3);
    assert_int_equal(losses, 0);
}

/* That answer was made before the batch that is missing now: it is no reason to give the part up. */
static void test_gap_while_it_is_asked(void **state)
{
    end();
    stream(0);
    go_quiet();
    stream(2);
    assert_int_equal(asked, 3);
    assert_int_equal(asked_from, 1);
    end();
    assert_false(bt_kv_follow_wants_more(&follow));
    assert_int_equal(losses, 0);
    answer(1, false);
    end();
    assert_int_equal(held(), 3);
    assert_true(bt_kv_follow_wants_more(&follow));
}

/* A ROUTER drops what a full pipe does not take. */
static void test_answer_with_a_hole(void **state)
{
    answer(0, false);
    answer(1, false);
    answer(4, false);
    answer(5, false);
    end();
    assert_int_equal(asked, 2);
    assert_int_equal(asked_from, 2);
    assert_int_equal(held(), 2);
    for (uint64_t n = 2; n < 6; n++)
        answer(n, false);
    end();
    assert_int_equal(held(), 6);
    assert_int_equal(losses, 0);
}

static void test_gap_without_replay(void **state)
{
    assert_true(bt_kv_part_is_live(index_, part));
    stream_as(40, 0); /* whatever was before us */
    assert_int_equal(losses, 0);
    stream_as(41, 1);
    stream_as(43, 0);
    assert_int_equal(losses, 1);
    assert_int_equal(last_loss, BT_KV_LOSS_GAP);
    assert_int_equal(held(), 1);
}

static void test_restart(void **state)
{
    end();
    for (uint64_t n = 0; n < 5; n++)
        stream(n);
    stream(0);
    assert_int_equal(last_loss, BT_KV_LOSS_RESTART);
    assert_int_equal(held(), 1);
    assert_int_equal(follow.next, 1);
    for (uint64_t n = 1; n < 5; n++)
        stream(n);
    stream(2); /* and again, its first two were missed */
    assert_int_equal(losses, 2);
    assert_int_equal(asked_from, 0);
    for (uint64_t n = 0; n < 3; n++)
        answer(n, false);
    end();
    assert_int_equal(held(), 3);
}

/* TensorRT-LLM counts from the time. */
static void test_restart_forward(void **state)
{
    end();
    stream_as(UINT64_C(1) << 60, 0);
    stream_as((UINT64_C(1) << 60) + 1, 1);
    stream_as((UINT64_C(1) << 61), 0);
    assert_int_equal(last_loss, BT_KV_LOSS_RESTART);
    end();
    assert_int_equal(held(), 1);
}

static void test_down(void **state)
{
    answer(0, false);
    bt_kv_follow_down(&follow);
    assert_false(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 0);
    assert_int_equal(last_loss, BT_KV_LOSS_DOWN);
    bt_kv_follow_down(&follow);
    assert_int_equal(losses, 1);
    bt_kv_follow_up(&follow, now_ms);
    assert_int_equal(asked, 2);
    answer(0, false);
    end();
    assert_int_equal(held(), 1);
}

static void test_what_is_no_batch(void **state)
{
    char seq[8];

    end();
    stream(0);
    bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR("t"), number(1, seq), BT_STR("\xc1")}, 3,
                         false, now_ms);
    assert_int_equal(last_loss, BT_KV_LOSS_UNKNOWN);
    assert_int_equal(held(), 0);
    bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR("t"), BT_STR("1234567"), BT_STR("")}, 3,
                         false, now_ms);
    bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR("t")}, 1, false, now_ms);
    bt_kv_follow_message(&follow, (bt_str_t[]){BT_STR("")}, 1, true, now_ms);
    assert_int_equal(losses, 1);
    assert_int_equal(follow.next, 2);
}

static void test_replay_that_cannot_be_asked(void **state)
{
    end();
    stream(0);
    ask_rc = BT_E_LIMIT;
    stream_as(5, 0);
    assert_true(bt_kv_follow_wants_more(&follow));
    assert_int_equal(last_loss, BT_KV_LOSS_GAP);
}

/* ---- snapshots ---- */

/* A part with blocks 0 .. 2, whose last batch was number 2, in a process that has not been connected yet. */
static void restore(void)
{
    bt_kv_place_t place;

    end();
    for (uint64_t n = 0; n < 3; n++)
        stream(n);
    assert_true(bt_kv_follow_place(&follow, &place));
    assert_int_equal(place.number, 2);
    bt_kv_part_set_live(index_, part, false);
    follow = (bt_kv_follow_t){.index = index_,
                              .decoder = &decoder,
                              .part = part,
                              .has_replay = follow.has_replay,
                              .ask = on_ask,
                              .on_loss = on_loss};
    bt_kv_follow_resume(&follow, place);
    asked = losses = 0;
}

static void test_snapshot_goes_on(void **state)
{
    bt_kv_place_t place;

    restore();
    assert_true(bt_kv_follow_place(&follow, &place)); /* written once more, should we end now */
    assert_int_equal(place.number, 2);
    bt_kv_follow_up(&follow, now_ms);
    assert_int_equal(asked, 1);
    assert_int_equal(asked_from, 2);
    answer(2, false);
    assert_false(bt_kv_part_is_live(index_, part)); /* what came after it is still to come */
    answer(3, false);
    answer(4, false);
    end();
    assert_true(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 5);
    stream(5);
    assert_int_equal(held(), 6);
    assert_int_equal(losses, 0);
    assert_int_equal(follow.stats.batches, 3);
}

/* Whoever answers is asked for all that it has. */
static void is_dropped(void)
{
    assert_int_equal(losses, 1);
    assert_int_equal(last_loss, BT_KV_LOSS_SNAPSHOT);
    assert_int_equal(held(), 0);
    assert_int_equal(asked, 2);
    assert_int_equal(asked_from, 0);
    answer(0, false);
    end();
    assert_true(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 1);
    stream(1);
    assert_int_equal(held(), 2);
}

static void test_snapshot_of_another_process(void **state)
{
    char bytes[64], seq[8];

    restore();
    bt_kv_follow_up(&follow, now_ms);
    bt_kv_follow_message(
        &follow, (bt_str_t[]){BT_STR(""), BT_STR(""), number(2, seq), payload_stored(7, bytes)}, 4,
        true, now_ms);
    is_dropped();
}

/* It has said fewer batches than the one before it had. */
static void test_snapshot_of_a_process_that_is_new(void **state)
{
    restore();
    bt_kv_follow_up(&follow, now_ms);
    end();
    is_dropped();
}

static void test_snapshot_that_is_too_old(void **state)
{
    restore();
    bt_kv_follow_up(&follow, now_ms);
    answer(3, false); /* 2 is not kept any more */
    is_dropped();
}

static void test_snapshot_and_silence(void **state)
{
    restore();
    bt_kv_follow_up(&follow, now_ms);
    now_ms += BT_KV_REPLAY_DEADLINE_MS;
    bt_kv_follow_turn(&follow, now_ms);
    is_dropped();
}

/* A connection that ends before the answer says nothing of the engine. */
static void test_snapshot_and_a_connection_that_ends(void **state)
{
    restore();
    bt_kv_follow_up(&follow, now_ms);
    bt_kv_follow_down(&follow);
    assert_int_equal(losses, 0);
    assert_int_equal(held(), 3);
    bt_kv_follow_up(&follow, now_ms);
    assert_int_equal(asked_from, 2);
    answer(2, false);
    end();
    assert_true(bt_kv_part_is_live(index_, part));
    assert_int_equal(held(), 3);
    assert_int_equal(losses, 0);
}

static void test_place(void **state)
{
    bt_kv_place_t place, next;

    end();
    assert_false(bt_kv_follow_place(&follow, &place)); /* nothing has come */
    stream(0);
    assert_true(bt_kv_follow_place(&follow, &place));
    stream(2); /* a gap: the part is as it was */
    assert_true(bt_kv_follow_place(&follow, &next));
    assert_int_equal(next.number, place.number);
    assert_true(next.hash == place.hash);
    bt_kv_follow_down(&follow);
    assert_false(bt_kv_follow_place(&follow, &place));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(late_joiner),
        T(old_shape_ends),
        T(joiner_comes_too_late_for_all),
        T(gap_is_healed),
        T(gap_that_nobody_can_heal),
        T(gap_and_silence),
        T(last_batch_is_lost),
        T(gap_while_it_is_asked),
        T(answer_with_a_hole),
        cmocka_unit_test_setup_teardown(test_gap_without_replay, setup_without_replay, teardown),
        T(restart),
        T(restart_forward),
        T(down),
        T(what_is_no_batch),
        T(replay_that_cannot_be_asked),
        T(snapshot_goes_on),
        T(snapshot_of_another_process),
        T(snapshot_of_a_process_that_is_new),
        T(snapshot_that_is_too_old),
        T(snapshot_and_silence),
        T(snapshot_and_a_connection_that_ends),
        T(place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
