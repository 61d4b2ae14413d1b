/* The verbs back end on a provider inside this process: what is posted, what is told, what is refused, what an error does. */
#include "transport/verbs_fake_pair.h"

/* ---- completion ---- */
static void check_mode(uint32_t mode, unsigned notices, unsigned immediates)
{
    bt_verbs_tuning.modes = mode;
    pair_open("fake0", "fake1");
    send_pages(100, 77);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    assert_int_equal(batch.rc, 0);
    assert_int_equal(pair.lb->notes[0], 77);
    pair_check(runs, 100);
    assert_int_equal(verbs_fake_options(0)->notices, notices);
    assert_int_equal(verbs_fake_options(0)->immediates, immediates);
    assert_int_equal(batch.batch.done, 100 * PAGE_BYTES);
    pair_close();
}

static void test_imm(void **state)
{
    check_mode(BT_VERBS_IMM | BT_VERBS_SEND, 1, 1);
}

static void test_send(void **state)
{
    check_mode(BT_VERBS_SEND | BT_VERBS_CONTROL, 1, 0);
}

static void test_control(void **state)
{
    check_mode(BT_VERBS_CONTROL, 0, 0);
}

static void test_both_ways(void **state)
{
    pair_open("fake0", "fake1");
    send_pages(10, 5);
    bt_kv_run_t back = {.src = pair.dst, .dst = pair.src->id, .bytes = 100, .rows = 1};
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    memset(pair.dst->p, 0x42, 100);
    assert_int_equal(rig_post(pair.lb, &batches[0], 2, &back, 1, 6), 0);
    PAIR_UNTIL(batches[0].over == 1 && pair.la->note_count == 1);
    assert_memory_equal(pair.src->p, pair.dst->p, 100);
    pair_close();
}

/* Neither a note nor data is needed. */
static void test_bare(void **state)
{
    pair_open("fake0", "fake1");
    assert_int_equal(rig_post(pair.la, &batches[0], 1, NULL, 0, 9), 0);
    assert_int_equal(rig_post(pair.la, &batches[1], 1, NULL, 0, 0), 0);
    runs[0] = pair_run(0, 0, 10);
    assert_int_equal(rig_post(pair.la, &batches[2], 1, runs, 1, 0), 0);
    PAIR_UNTIL(batches[0].over == 1 && batches[1].over == 1 && batches[2].over == 1 &&
               pair.lb->note_count == 1);
    pair_close();
}

static void test_notices_not_inline(void **state)
{
    verbs_fake_options(0)->inline_max = 0;
    bt_verbs_tuning.send_depth = 8;
    pair_open("fake0", "fake1");
    for (uint64_t i = 1; i <= 100; i++) {
        send_pages(5, i);
        PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == i);
        assert_int_equal(pair.lb->notes[i - 1], i);
    }
    pair_close();
}

/* ---- messages ---- */
static void test_gather(void **state)
{
    pair_open("fake0", "fake1");
    /* 20 scattered pages to 20 in a row: at most 8 pieces a message, so 3. */
    for (uint32_t i = 0; i < 20; i++)
        runs[i] =
            pair_run((uint64_t) (40 - 2 * i) * PAGE_BYTES, (uint64_t) i * PAGE_BYTES, PAGE_BYTES);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 20, 0), 0);
    PAIR_UNTIL(batch.over == 1);
    pair_check(runs, 20);
    assert_int_equal(verbs_fake_options(0)->messages, 3);
    assert_int_equal(verbs_fake_options(0)->sges_most, 8);
    pair_close();
}

static void test_rows(void **state)
{
    pair_open("fake0", "fake1");
    runs[0] = pair_run(64, 4096, 128); /* strided here, dense there: 16 rows in 2 messages */
    runs[0].rows = 16;
    runs[0].src_stride = 512;
    runs[0].dst_stride = 128;
    runs[1] = pair_run(65536, 65536, 128); /* dense here, strided there: a message a row */
    runs[1].rows = 5;
    runs[1].src_stride = 128;
    runs[1].dst_stride = 1024;
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 2, 0), 0);
    PAIR_UNTIL(batch.over == 1);
    pair_check(runs, 2);
    assert_int_equal(verbs_fake_options(0)->messages, 2 + 5);
    assert_int_equal((uint8_t) pair.dst->p[65536 + 128], 0xee);
    pair_close();
}

static void test_message_limit(void **state)
{
    verbs_fake_options(0)->message_max = 10000;
    pair_open("fake0", "fake1");
    runs[0] = pair_run(0, 8192, 100000);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 1, 0), 0);
    PAIR_UNTIL(batch.over == 1);
    pair_check(runs, 1);
    assert_int_equal(verbs_fake_options(0)->messages, 10);
    pair_close();
}

/* The provider refuses a message when no signalled completion has freed a slot: that would fail the path. */
static void test_ring_wraps(void **state)
{
    static const struct {
        uint32_t depth, every;
    } cases[] = {{1, 1}, {2, 1}, {8, 3}, {16, 8}, {64, 32}, {256, 32}};

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        setup(NULL);
        bt_verbs_tuning.send_depth = cases[c].depth;
        bt_verbs_tuning.signal_every = cases[c].every;
        pair_open("fake0", "fake1");
        for (uint64_t round = 1; round <= 5; round++) {
            send_pages(300, round);
            PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == round);
            pair_check(runs, 300);
        }
        assert_int_equal(verbs_fake_options(0)->messages, 5 * 301);
        assert_in_range(verbs_fake_options(0)->signalled, 1505 / cases[c].every,
                        1505 / cases[c].every + 5);
        pair_close();
        assert_int_equal(teardown(NULL), 0);
    }
}

/* A device with a queue shorter than the distance of signals. */
static void test_short_ring(void **state)
{
    verbs_fake_options(0)->send_max = 10;
    pair_open("fake0", "fake1");
    send_pages(300, 1);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    pair_check(runs, 300);
    pair_close();
}

static void test_chains(void **state)
{
    pair_open("fake0", "fake1");
    send_pages(255, 1);
    PAIR_UNTIL(batch.over == 1);
    assert_int_equal(verbs_fake_options(0)->posts, 4); /* 256 messages, 64 a call */
    pair_close();
}

/* ---- many batches ---- */
static void test_window(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    pair_scatter(runs, 64);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(rig_post(pair.la, &batches[i], i, &runs[i], 1, i + 1), 0);
    assert_int_equal(rig_post(pair.la, &batch, 99, runs, 1, 99), BT_E_AGAIN);
    verbs_fake_options(0)->holds = false;
    verbs_fake_step(0, 1000);
    PAIR_UNTIL(pair.lb->note_count == 64);
    PAIR_UNTIL(batches[63].over == 1);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(pair.lb->notes[i], i + 1);
    assert_int_equal(rig_post(pair.la, &batch, 99, runs, 1, 99), 0);
    PAIR_UNTIL(batch.over == 1);
    pair_close();
}

static void test_no_place_for_notices(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(1)->starves = true;
    send_pages(3, 8);
    for (int i = 0; i < 20; i++) {
        rig_turn(&pair.a);
        rig_turn(&pair.b);
    }
    assert_int_equal(batch.over, 0);
    assert_true(verbs_fake_options(0)->waits > 0);
    verbs_fake_options(1)->starves = false;
    verbs_fake_step(0, 100);
    PAIR_UNTIL(batch.over == 1 && pair.lb->note_count == 1);
    pair_close();
}

static void test_sleep(void **state)
{
    pair_open("fake0", "fake1");
    while (rig_turn(&pair.a) + rig_turn(&pair.b) > 0)
        ;
    verbs_fake_options(0)->holds = true;
    rig_sleep(&pair.b, 0);
    rig_sleep(&pair.a, 0);
    assert_int_equal(pair.a.wakes + pair.b.wakes, 0);
    send_pages(3, 8); /* posted while its agent sleeps: the completion must still wake it */
    verbs_fake_step(0, 100);
    struct epoll_event event;
    assert_int_equal(epoll_wait(pair.a.epoll, &event, 1, 10000), 1);
    assert_int_equal(epoll_wait(pair.b.epoll, &event, 1, 10000), 1);
    rig_turn(&pair.a);
    rig_turn(&pair.b);
    assert_int_equal(batch.over, 1);
    assert_int_equal(pair.lb->note_count, 1);
    pair_close();
}

/* ---- what is refused ---- */
static void test_bad_runs(void **state)
{
    bt_kv_run_t good, bad;

    pair_open("fake0", "fake1");
    good = pair_run(0, 0, 4096);
    for (unsigned c = 0; c < 8; c++) {
        bad = good;
        switch (c) {
        case 0:
            bad.src_offset = PAIR_BYTES - 4095;
            break;
        case 1:
            bad.dst_offset = PAIR_BYTES - 4095;
            break;
        case 2:
            bad.dst = 77;
            break;
        case 3:
            bad.rows = 0;
            break;
        case 4:
            bad.bytes = 0;
            break;
        case 5:
            bad.dst_offset = UINT64_MAX - 100;
            break;
        case 6:
            bad.src_offset = UINT64_MAX - 100;
            break;
        default:
            bad.rows = 1000;
            bad.dst_stride = 1 << 20;
            break;
        }
        assert_int_equal(rig_post(pair.la, &batch, 1, &bad, 1, 1), BT_E_INVAL);
        assert_int_equal(batch.over, 0);
    }
    pair_close();
}

static void test_bad_key(void **state)
{
    pair_open("fake0", "fake1");
    /* The receiver takes its region away and the sender has not heard of it yet. */
    pair.b.ops->region_remove(pair.b.backend, pair.dst);
    send_pages(3, 8);
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    assert_non_null(strstr(pair.la->why, "fake0: remote access error"));
    assert_int_equal(pair.lb->note_count, 0);
    rig_unlink(pair.la);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    assert_int_equal((uint8_t) pair.dst->p[3 * PAGE_BYTES], 0xee);
    pair_close();
}

static void test_region_leaves(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    bt_verbs_tuning.send_depth = 4;
    send_pages(500, 8); /* more than the send queue takes: the rest finds the region gone */
    pair.a.ops->peer_region(pair.la->path, pair.dst->id, 0, NULL, 0);
    verbs_fake_options(0)->holds = false;
    verbs_fake_step(0, 1000);
    PAIR_UNTIL(batch.over == 1);
    assert_int_equal(batch.rc, BT_E_INVAL);
    assert_false(pair.la->has_failed);
    PAIR_UNTIL(pair_path(pair.lb)->first_open == 1);
    assert_int_equal(pair.lb->note_count, 0);
    pair_close();
}

static void test_hostile_messages(void **state)
{
    uint8_t message[40] = {0};

    pair_open("fake0", "fake1");
    for (unsigned kind = 0; kind < 9; kind++)
        for (size_t size = 0; size < sizeof(message); size++) {
            memset(message, 0xff, sizeof(message));
            message[0] = (uint8_t) kind;
            message[1] = 0xff;
            bool may_pass = kind >= 5 && kind <= 6 && size == 9;
            int rc = pair.b.ops->received(pair.lb->path, message, size);
            assert_true(rc == 0 ? may_pass : rc == BT_E_INVAL);
        }
    pair_close();
}

static void test_regions_of_the_peer(void **state)
{
    uint8_t key[12] = {0};

    pair_open("fake0", "fake1");
    bt_verbs_path_t *path = pair_path(pair.la);
    for (uint32_t id = 100; id < 5000; id++) {
        assert_int_equal(pair.a.ops->peer_region(pair.la->path, id, id, key, sizeof(key)), 0);
        if (id % 3 != 0)
            assert_int_equal(pair.a.ops->peer_region(pair.la->path, id, 0, NULL, 0), 0);
    }
    for (uint32_t id = 100; id < 5000; id++) {
        const bt_verbs_region_t *region = bt_verbs_mem_find(path, id);
        if (id % 3 != 0)
            assert_null(region);
        else
            assert_int_equal(region->size, id);
    }
    assert_int_equal(pair.a.ops->peer_region(pair.la->path, 0, 1, key, 12), BT_E_INVAL);
    assert_int_equal(pair.a.ops->peer_region(pair.la->path, 1, 1, key, 11), BT_E_INVAL);
    pair_close();
}

/* ---- one rail, errors ---- */
static void test_error_at_each_message(void **state)
{
    for (unsigned at = 1; at <= 6; at++) {
        setup(NULL);
        pair_open("fake0", "fake1");
        verbs_fake_options(0)->fail_after = at;
        verbs_fake_options(0)->fail_status = IBV_WC_RETRY_EXC_ERR;
        send_pages(4, 8); /* a notice and four writes; the sixth message is the next batch's */
        bool hit = at <= 5;
        if (!hit) {
            PAIR_UNTIL(batch.over == 1);
            assert_int_equal(rig_post(pair.la, &batches[0], 1, runs, 4, 9), 0);
        }
        PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
        assert_int_equal(pair.la->rc, BT_E_KV_TRANSFER);
        assert_non_null(strstr(pair.la->why, "transport retry counter exceeded"));
        assert_int_equal(pair.lb->note_count, hit ? 0 : 1);
        assert_int_equal(rig_post(pair.la, &batches[1], 1, runs, 4, 9), BT_E_KV_TRANSFER);
        rig_unlink(pair.la);
        assert_int_equal(hit ? batch.rc : batches[0].rc, BT_E_CANCELLED);
        assert_int_equal(batch.over, 1);
        pair_close();
        assert_int_equal(teardown(NULL), 0);
    }
}

static void test_closed_under_way(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    for (unsigned i = 0; i < 10; i++) {
        pair_scatter(runs, 100);
        assert_int_equal(rig_post(pair.la, &batches[i], i, runs, 100, i + 1), 0);
    }
    rig_unlink(pair.la);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(batches[i].over, 1);
        assert_int_equal(batches[i].rc, BT_E_CANCELLED);
    }
    assert_int_equal(verbs_fake_count(0, IBV_QPS_RTS), 0);
    pair_close();
}

static void test_port_down(void **state)
{
    pair_open("fake0", "fake1");
    verbs_fake_options(0)->holds = true;
    send_pages(3, 8);
    rig_sleep(&pair.a, 0);
    verbs_fake_port(0, false);
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    assert_string_equal(pair.la->why, "fake0: its port is down");
    pair_close();
}

static void test_device_lost(void **state)
{
    pair_open("fake0", "fake1");
    rig_sleep(&pair.b, 0);
    verbs_fake_fatal(1);
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    assert_string_equal(pair.lb->why, "fake1: the device is lost");
    pair_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        VERBS_SPEC(test_imm),
        VERBS_SPEC(test_send),
        VERBS_SPEC(test_control),
        VERBS_SPEC(test_both_ways),
        VERBS_SPEC(test_bare),
        VERBS_SPEC(test_notices_not_inline),
        VERBS_SPEC(test_gather),
        VERBS_SPEC(test_rows),
        VERBS_SPEC(test_message_limit),
        VERBS_SPEC(test_ring_wraps),
        VERBS_SPEC(test_short_ring),
        VERBS_SPEC(test_chains),
        VERBS_SPEC(test_window),
        VERBS_SPEC(test_no_place_for_notices),
        VERBS_SPEC(test_sleep),
        VERBS_SPEC(test_bad_runs),
        VERBS_SPEC(test_bad_key),
        VERBS_SPEC(test_region_leaves),
        VERBS_SPEC(test_hostile_messages),
        VERBS_SPEC(test_regions_of_the_peer),
        VERBS_SPEC(test_error_at_each_message),
        VERBS_SPEC(test_closed_under_way),
        VERBS_SPEC(test_port_down),
        VERBS_SPEC(test_device_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
