/* Verbs on several rails: striping, a rail that fails and comes back; and drain, in every phase. */
#include "transport/verbs_fake_pair.h"

/* ---- several rails ---- */
static void test_stripes(void **state)
{
    pair_open("fake0,fake1", "fake2,fake3");
    send_pages(256, 8); /* 1 MiB */
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    pair_check(runs, 256);
    uint64_t notices = verbs_fake_options(0)->notices * sizeof(uint64_t) * 10;
    assert_int_equal(verbs_fake_options(0)->bytes - notices, 512 << 10);
    assert_int_equal(verbs_fake_options(1)->bytes, 512 << 10);
    send_pages(31, 9); /* below two slices: one rail */
    PAIR_UNTIL(pair.lb->note_count == 2);
    assert_int_equal(verbs_fake_options(0)->immediates + verbs_fake_options(1)->immediates, 3);
    pair_close();
}

static void test_stripes_in_any_order(void **state)
{
    for (unsigned late = 0; late < 2; late++) {
        setup(NULL);
        pair_open("fake0,fake1", "fake2,fake3");
        verbs_fake_options(late)->holds = true;
        for (unsigned i = 0; i < 5; i++) {
            pair_scatter(runs, 64);
            assert_int_equal(rig_post(pair.la, &batches[i], i, runs, 64, i + 1), 0);
        }
        for (int i = 0; i < 20; i++) {
            rig_turn(&pair.a);
            rig_turn(&pair.b);
        }
        assert_int_equal(pair.lb->note_count, 0);
        for (unsigned i = 0; i < 5; i++)
            assert_int_equal(batches[i].over, 0);
        for (unsigned i = 0; i < 1000; i++) { /* message by message */
            verbs_fake_step(late, 1);
            rig_turn(&pair.b);
            rig_turn(&pair.a);
        }
        assert_int_equal(pair.lb->note_count, 5);
        assert_int_equal(batches[4].over, 1);
        pair_check(runs, 64);
        pair_close();
        assert_int_equal(teardown(NULL), 0);
    }
}

static void test_unequal_rails(void **state)
{
    pair_open("fake0", "fake2,fake3");
    send_pages(256, 8);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    pair_check(runs, 256);
    assert_int_equal(verbs_fake_count(0, IBV_QPS_RTS), 2);
    pair_close();
}

/* A rail fails at each message; the batch comes all the same, once. */
static void fail_a_rail(uint32_t mode, unsigned rail, unsigned at, bool delivers)
{
    char text[400];

    setup(NULL);
    bt_verbs_tuning.modes = mode;
    pair_open("fake0,fake1", "fake2,fake3");
    verbs_fake_options(rail)->fail_after = at;
    verbs_fake_options(rail)->fail_status = IBV_WC_RETRY_EXC_ERR;
    verbs_fake_options(rail)->fail_delivers = delivers;
    send_pages(64, 8);
    PAIR_UNTIL(pair.lb->note_count == 1);
    pair_check(runs, 64);
    memset(pair.dst->p, 0xdd, PAIR_BYTES); /* the pages have a new owner now */
    PAIR_UNTIL(batch.over == 1);
    assert_int_equal(batch.rc, 0);
    for (int i = 0; i < 20; i++) {
        rig_turn(&pair.a);
        rig_turn(&pair.b);
    }
    assert_int_equal(pair.lb->note_count, 1);
    for (size_t i = 0; mode != BT_VERBS_CONTROL && i < PAIR_BYTES; i++)
        if ((uint8_t) pair.dst->p[i] != 0xdd)
            fail_msg("written after the note");
    assert_false(pair.la->has_failed);
    if (verbs_fake_options(rail)->fail_after == 0) {
        pair.a.ops->describe(pair.la->path, text, sizeof(text));
        assert_non_null(strstr(text, "paused: fake"));
    }
    send_pages(64, 9);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 2);
    pair_check(runs, 64);
    pair_close();
    assert_int_equal(teardown(NULL), 0);
}

static void test_rail_fails(void **state)
{
    for (unsigned mode = BT_VERBS_IMM; mode <= BT_VERBS_CONTROL; mode *= 2)
        for (unsigned rail = 0; rail < 2; rail++)
            for (unsigned at = 1; at <= 34; at += at < 4 || at > 30 ? 1 : 9) {
                fail_a_rail(mode, rail, at, false);
                if (at < 33 || rail == 0 || mode != BT_VERBS_IMM)
                    fail_a_rail(mode, rail, at, true);
            }
}

static void test_rail_comes_back(void **state)
{
    bt_verbs_tuning.pause_ms = 0;
    pair_open("fake0,fake1", "fake2,fake3");
    for (unsigned round = 1; round <= 5; round++) {
        verbs_fake_options(1)->fail_after = 2;
        verbs_fake_options(1)->fail_status = IBV_WC_RETRY_EXC_ERR;
        send_pages(64, round);
        PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == round);
        PAIR_UNTIL(pair_path(pair.la)->conns[1].state == BT_VERBS_LIVE &&
                   pair_path(pair.lb)->conns[1].state == BT_VERBS_LIVE);
        assert_int_equal(pair_path(pair.la)->conns[1].epoch, round);
    }
    uint64_t before = verbs_fake_options(1)->bytes;
    send_pages(64, 9);
    PAIR_UNTIL(batch.over == 1);
    assert_int_equal(verbs_fake_options(1)->bytes - before, 128 << 10);
    pair_close();
}

/* A probe that fails costs nothing but another pause. */
static void test_probe_fails(void **state)
{
    bt_verbs_tuning.pause_ms = 0;
    pair_open("fake0,fake1", "fake2,fake3");
    verbs_fake_options(1)->fail_after = 2;
    verbs_fake_options(1)->fail_status = IBV_WC_RETRY_EXC_ERR;
    send_pages(64, 1);
    PAIR_UNTIL(pair_path(pair.la)->conns[1].state != BT_VERBS_LIVE);
    verbs_fake_options(1)->fail_after = 1; /* the probe's notice */
    PAIR_UNTIL(pair_path(pair.la)->conns[1].epoch == 2);
    PAIR_UNTIL(pair_path(pair.la)->conns[1].state == BT_VERBS_LIVE &&
               pair_path(pair.lb)->conns[1].state == BT_VERBS_LIVE);
    assert_false(pair.la->has_failed || pair.lb->has_failed);
    pair_close();
}

static void test_rail_waits_out_its_pause(void **state)
{
    pair_open("fake0,fake1", "fake2,fake3");
    verbs_fake_options(1)->fail_after = 2;
    verbs_fake_options(1)->fail_status = IBV_WC_RETRY_EXC_ERR;
    send_pages(64, 1);
    PAIR_UNTIL(pair_path(pair.la)->conns[1].state == BT_VERBS_PAUSED &&
               pair_path(pair.lb)->conns[1].state == BT_VERBS_PAUSED);
    bt_verbs_conn_t *conn = &pair_path(pair.la)->conns[1];
    assert_in_range(conn->retry_at_ms, bt_clock_ms() + 1, bt_clock_ms() + 30000);
    for (int i = 0; i < 100; i++) {
        rig_turn(&pair.a);
        rig_turn(&pair.b);
    }
    assert_int_equal(conn->epoch, 0);
    conn->retry_at_ms = 0; /* the pause is over */
    PAIR_UNTIL(conn->state == BT_VERBS_LIVE);
    pair_close();
}

static void test_last_rail_fails(void **state)
{
    pair_open("fake0,fake1", "fake2,fake3");
    for (unsigned i = 0; i < 2; i++) {
        verbs_fake_options(i)->fail_after = 3;
        verbs_fake_options(i)->fail_status = IBV_WC_RETRY_EXC_ERR;
    }
    send_pages(64, 1);
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    rig_unlink(pair.la);
    assert_int_equal(batch.over, 1);
    pair_close();
}

static void test_rail_cannot_be_reached(void **state)
{
    verbs_fake_options(3)->gids[0].gid.raw[15] = 0xee;
    pair_open("fake0,fake1", "fake2,fake3");
    send_pages(64, 1);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    assert_int_equal(verbs_fake_options(1)->messages, 0);
    pair_close();
}

static void test_peer_cannot_be_reached(void **state)
{
    verbs_fake_options(1)->gids[0].gid.raw[15] = 0xee;
    pair_start("fake0", "fake1");
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    assert_non_null(strstr(pair.la->why, "cannot be reached"));
    assert_false(pair.la->is_ready);
    pair_close();
}

/* ---- drain ---- */
/* The device holds everything back; of the batches before, one is posted in part and the rest waits. */
static void test_drain_in_every_phase(void **state)
{
    for (unsigned target = 0; target < 4; target++) {
        setup(NULL);
        bt_verbs_tuning.send_depth = 64;
        pair_open("fake0", "fake1");
        verbs_fake_options(0)->holds = true;
        pair_scatter(runs, 40);
        for (unsigned i = 0; i < 4; i++) /* 41 messages each: 0 is posted, 1 in part, 2 and 3 not */
            assert_int_equal(rig_post(pair.la, &batches[i], 100 + i, runs, 40, i + 1), 0);
        bool is_out = target < 2;
        assert_false(rig_drain(pair.la, 100 + target));
        assert_int_equal(batches[target].over, is_out ? 0 : 1);
        assert_int_equal(batches[target].rc, is_out ? 0 : BT_E_CANCELLED);
        for (int i = 0; i < 5; i++) {
            rig_turn(&pair.a);
            rig_turn(&pair.b);
        }
        assert_int_equal(batches[target].over, is_out ? 0 : 1);
        if (is_out)
            assert_false(rig_drain(pair.la, 100 + target));
        verbs_fake_options(0)->holds = false;
        verbs_fake_step(0, 1000);
        PAIR_UNTIL(rig_drain(pair.la, 100 + target));
        assert_int_equal(batches[target].over, 1);
        assert_int_equal(batches[target].rc, target == 0 ? 0 : BT_E_CANCELLED);
        PAIR_UNTIL(batches[0].over + batches[1].over + batches[2].over + batches[3].over == 4);
        PAIR_UNTIL(pair.lb->note_count == (target == 0 ? 4 : 3));
        for (unsigned i = 0; i < pair.lb->note_count && target > 0; i++)
            assert_int_not_equal(pair.lb->notes[i], target + 1);
        pair_close();
        assert_int_equal(teardown(NULL), 0);
    }
}

/* The receiver's room has failed: true only when the sender has said that nothing is under way. */
static void test_drain_of_a_receiver(void **state)
{
    bt_verbs_tuning.send_depth = 16;
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    send_pages(100, 8);
    assert_false(rig_drain(pair.lb, 1));
    for (int i = 0; i < 20; i++) {
        rig_turn(&pair.a);
        rig_turn(&pair.b);
        assert_false(rig_drain(pair.lb, 1));
    }
    verbs_fake_options(0)->holds = false;
    verbs_fake_step(0, 100);
    PAIR_UNTIL(rig_drain(pair.lb, 1));
    assert_int_equal(batch.over, 1);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    memset(pair.dst->p, 0xdd, PAIR_BYTES);
    /* The sender's agent may not know yet: what it posts of that room goes nowhere. */
    assert_int_equal(rig_post(pair.la, &batches[0], 1, runs, 100, 9), 0);
    assert_int_equal(batches[0].over, 1);
    assert_int_equal(batches[0].rc, BT_E_CANCELLED);
    for (size_t i = 0; i < PAIR_BYTES; i++)
        if ((uint8_t) pair.dst->p[i] != 0xdd)
            fail_msg("written after the drain");
    assert_int_equal(pair.lb->note_count, 0);
    pair_close();
}

static void test_drain_revokes(void **state)
{
    bt_verbs_tuning.drain_ms = 0;
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    send_pages(100, 8);
    assert_false(rig_drain(pair.la, 1));
    PAIR_UNTIL(rig_drain(pair.la, 1)); /* does not end by itself: the queue pair goes */
    assert_int_equal(batch.over, 1);
    assert_true(pair.la->has_failed);
    assert_int_equal(verbs_fake_count(0, IBV_QPS_RTS), 0);
    PAIR_UNTIL(pair.lb->has_failed && rig_drain(pair.lb, 1));
    assert_int_equal(verbs_fake_count(1, IBV_QPS_RTS), 0);
    pair_close();
}

/* Two rails, one of them stuck: the room's share on it moves, cancelled, to the other. */
static void test_drain_of_a_stuck_rail(void **state)
{
    bt_verbs_tuning.drain_ms = 0;
    pair_open("fake0,fake1", "fake2,fake3");
    verbs_fake_options(1)->holds = true;
    send_pages(64, 8);
    PAIR_UNTIL(batch.batch.done > 0); /* the other rail's share is over */
    assert_false(rig_drain(pair.la, 1));
    assert_false(rig_drain(pair.la, 1)); /* no patience: the stuck rail is given up */
    bt_verbs_tuning.drain_ms = 60000;
    PAIR_UNTIL(rig_drain(pair.la, 1));
    assert_int_equal(batch.over, 1);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    assert_int_equal(verbs_fake_options(0)->bytes,
                     (128 << 10) + 2 * 80); /* the stuck half is not sent again */
    assert_false(pair.la->has_failed);
    assert_int_equal(pair.lb->note_count, 0);
    verbs_fake_options(1)->holds = false;
    pair_scatter(runs, 64);
    assert_int_equal(rig_post(pair.la, &batch, 2, runs, 64, 9), 0);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    pair_close();
}

static void test_drain_of_nothing(void **state)
{
    pair_open("fake0", "fake1");
    assert_false(rig_drain(pair.la, 5)); /* the peer is asked */
    assert_false(rig_drain(pair.lb, 6));
    PAIR_UNTIL(rig_drain(pair.la, 5));
    PAIR_UNTIL(rig_drain(pair.lb, 6));
    pair_close();
}

/* The link is lost while the peer's answer is awaited: it never comes, so this side takes the peer's access away. */
static void test_drain_without_a_link(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    send_pages(100, 8);
    assert_false(rig_drain(pair.lb, 1));
    pair.lb->is_cut = true;
    RIG_UNTIL(&pair.b, NULL, rig_drain(pair.lb, 1)); /* the sender's agent does nothing any more */
    assert_int_equal(verbs_fake_count(1, IBV_QPS_RTS), 0);
    verbs_fake_step(0, 1000);
    assert_int_equal((uint8_t) pair.dst->p[3 * PAGE_BYTES], 0xee);
    pair_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        VERBS_SPEC(test_stripes),
        VERBS_SPEC(test_stripes_in_any_order),
        VERBS_SPEC(test_unequal_rails),
        VERBS_SPEC(test_rail_fails),
        VERBS_SPEC(test_rail_comes_back),
        VERBS_SPEC(test_probe_fails),
        VERBS_SPEC(test_rail_waits_out_its_pause),
        VERBS_SPEC(test_last_rail_fails),
        VERBS_SPEC(test_rail_cannot_be_reached),
        VERBS_SPEC(test_peer_cannot_be_reached),
        VERBS_SPEC(test_drain_in_every_phase),
        VERBS_SPEC(test_drain_of_a_receiver),
        VERBS_SPEC(test_drain_revokes),
        VERBS_SPEC(test_drain_of_a_stuck_rail),
        VERBS_SPEC(test_drain_of_nothing),
        VERBS_SPEC(test_drain_without_a_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
