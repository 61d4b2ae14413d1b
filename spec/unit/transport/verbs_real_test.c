/* The same back end over libibverbs, on the Soft-RoCE devices of spec/tools/rdma-vm. BATON_RDMA_A and BATON_RDMA_B name the devices of the two ends
 * ("rxe0"). Skipped (77) where there is no device. Arguments: names of the groups to run; default: the ones that need no change of the network. */
#include "transport/verbs_pair.h"

static bt_kv_run_t runs[1024];
static rig_batch_t batch, batches[64];

static const char *devices(const char *name)
{
    const char *value = getenv(name);

    return value != NULL ? value : "rxe0";
}

static void open_pair(uint32_t modes)
{
    bt_verbs_tuning.modes = modes;
    pair_open(devices("BATON_RDMA_A"), devices("BATON_RDMA_B"));
}

static void describe(void)
{
    char text[400] = "";

    pair.a.ops->describe(pair.la->path, text, sizeof(text));
    print_message("%s\n", text);
}

/* Batches of all sizes; every page is compared. */
static void check_mode(uint32_t modes)
{
    static const uint32_t sizes[] = {1, 2, 15, 16, 64, 100, 256};

    open_pair(modes);
    describe();
    for (uint64_t round = 0; round < 21; round++) {
        uint32_t n = sizes[round % 7];
        pair_fill();
        pair_scatter(runs, n);
        assert_int_equal(rig_post(pair.la, &batch, 1, runs, n, round + 1), 0);
        PAIR_UNTIL(pair.lb->note_count == round + 1);
        pair_check(runs, n); /* at the note, not later */
        PAIR_UNTIL(batch.over == 1);
        assert_int_equal(batch.rc, 0);
        assert_int_equal(pair.lb->notes[round], round + 1);
    }
    pair_close();
}

static void test_imm(void **state)
{
    check_mode(BT_VERBS_IMM);
}

static void test_send(void **state)
{
    check_mode(BT_VERBS_SEND);
}

static void test_control(void **state)
{
    check_mode(BT_VERBS_CONTROL);
}

static void test_rows(void **state)
{
    open_pair(BT_VERBS_IMM);
    runs[0] = pair_run(64, 4096, 128);
    runs[0].rows = 64;
    runs[0].src_stride = 512;
    runs[0].dst_stride = 128;
    runs[1] = pair_run(65536, 65536, 128);
    runs[1].rows = 50;
    runs[1].src_stride = 128;
    runs[1].dst_stride = 1024;
    runs[2] = pair_run(262144, 262144, 2 << 20);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 3, 5), 0);
    PAIR_UNTIL(pair.lb->note_count == 1 && batch.over == 1);
    pair_check(runs, 3);
    assert_int_equal((uint8_t) pair.dst->p[65536 + 128], 0xee);
    pair_close();
}

/* The window full, again and again; agents sleep when there is nothing. */
static void test_many(void **state)
{
    uint32_t posted = 0, total = 1000;

    open_pair(BT_VERBS_IMM);
    pair_scatter(runs, 64);
    while (posted < total) {
        rig_batch_t *next = &batches[posted % 64];
        if (posted >= 64 && next->over == 0) {
            rig_turn(&pair.b);
            if (rig_turn(&pair.a) == 0)
                rig_sleep(&pair.a, 1);
            continue;
        }
        assert_int_equal(rig_post(pair.la, next, posted, &runs[posted % 64], 1, posted + 1), 0);
        posted++;
    }
    PAIR_UNTIL(pair.lb->note_count == total);
    uint64_t sum = 0; /* with several rails they may overtake each other */
    for (uint32_t i = 0; i < total; i++)
        sum += pair.lb->notes[i];
    assert_int_equal(sum, (uint64_t) total * (total + 1) / 2);
    PAIR_UNTIL(pair_path(pair.la)->job_count == 0);
    pair_close();
}

static void test_wakes(void **state)
{
    open_pair(BT_VERBS_IMM);
    while (rig_turn(&pair.a) + rig_turn(&pair.b) > 0)
        ;
    for (uint32_t i = 1; i <= 20; i++) {
        struct epoll_event event;
        while (pair.b.ops->arm(pair.b.backend) || pair.a.ops->arm(pair.a.backend))
            ;
        assert_int_equal(rig_post(pair.la, &batch, 1, runs, 0, i), 0);
        assert_int_equal(epoll_wait(pair.b.epoll, &event, 1, 10000), 1);
        PAIR_UNTIL(pair.lb->note_count == i && batch.over == 1);
    }
    pair_close();
}

static void test_bad_key(void **state)
{
    open_pair(BT_VERBS_IMM);
    pair.b.ops->region_remove(pair.b.backend, pair.dst);
    pair_scatter(runs, 3);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 3, 8), 0);
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    print_message("%s\n", pair.la->why);
    assert_non_null(strstr(pair.la->why, "remote access error"));
    assert_int_equal(pair.lb->note_count, 0);
    assert_int_equal((uint8_t) pair.dst->p[3 * PAGE_BYTES], 0xee);
    rig_unlink(pair.la);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    pair_close();
}

/* The peer's end is gone without a word, as when its process was killed. */
static void test_peer_gone(void **state)
{
    uint64_t began_ms;

    open_pair(BT_VERBS_IMM);
    rig_unlink(pair.lb);
    began_ms = bt_clock_ms();
    pair_scatter(runs, 3);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 3, 8), 0);
    RIG_UNTIL(&pair.a, NULL, pair.la->has_failed);
    print_message("%s after %u ms\n", pair.la->why, (unsigned) (bt_clock_ms() - began_ms));
    assert_non_null(strstr(pair.la->why, "retry"));
    rig_unlink(pair.la);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    pair_close();
}

/* The receiver drains while the sender pumps: after the answer nothing is written. */
static void test_drain(void **state)
{
    open_pair(BT_VERBS_IMM);
    for (uint64_t round = 1; round <= 10; round++) {
        pair_scatter(runs, 256);
        for (unsigned i = 0; i < 8; i++)
            assert_int_equal(rig_post(pair.la, &batches[i], round, runs, 256, 100), 0);
        for (uint64_t turns = 0; turns < round; turns++)
            rig_turn(&pair.b);
        PAIR_UNTIL(rig_drain(pair.lb, round));
        memset(pair.dst->p, 0xdd, PAIR_BYTES);
        PAIR_UNTIL(pair_path(pair.la)->job_count == 0);
        assert_int_equal(rig_post(pair.la, &batch, round + 100, runs, 0, 200 + round), 0);
        PAIR_UNTIL(pair.lb->note_count > 0 &&
                   pair.lb->notes[(pair.lb->note_count - 1) % RIG_NOTES] == 200 + round);
        for (size_t i = 0; i < PAIR_BYTES; i++)
            if ((uint8_t) pair.dst->p[i] != 0xdd)
                fail_msg("round %u: written after the drain", (unsigned) round);
    }
    pair_close();
}

static void shell(const char *command)
{
    if (system(command) != 0)
        fail_msg("%s", command);
}

/* The wire is cut under way. With rails left the path lives, else both ends fail in bounded time. */
static void test_link_down(void **state)
{
    open_pair(BT_VERBS_IMM);
    pair_scatter(runs, 1000);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 1000, 1), 0);
    rig_turn(&pair.a);
    shell("ip link set va down");
    uint64_t began_ms = bt_clock_ms();
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    print_message("%s / %s after %u ms\n", pair.la->why, pair.lb->why,
                  (unsigned) (bt_clock_ms() - began_ms));
    assert_int_equal(pair.lb->note_count, 0);
    rig_unlink(pair.la);
    assert_int_equal(batch.rc, BT_E_CANCELLED);
    pair_close();
}

/* No port says anything: frames just vanish. Who sends finds out by himself, the other hears it on the control connection. */
static void test_black_hole(void **state)
{
    open_pair(BT_VERBS_IMM);
    pair_scatter(runs, 1000);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, 1000, 1), 0);
    shell("tc qdisc replace dev va root netem loss 100%");
    uint64_t began_ms = bt_clock_ms();
    PAIR_UNTIL(pair.la->has_failed && pair.lb->has_failed);
    print_message("%s / %s after %u ms\n", pair.la->why, pair.lb->why,
                  (unsigned) (bt_clock_ms() - began_ms));
    assert_int_equal(pair.lb->note_count, 0);
    shell("tc qdisc del dev va root");
    pair_close();
}

/* One of two rails loses its other end under way: its half comes by the other rail, and after the pause it carries again. */
static void test_rail_fails(void **state)
{
    struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

    bt_verbs_tuning.pause_ms = 100;
    open_pair(BT_VERBS_IMM);
    describe();
    for (uint64_t round = 1; round <= 6; round++) {
        const bt_verbs_conn_t *mine = &pair_path(pair.la)->conns[round % 2];
        const bt_verbs_conn_t *theirs = &pair_path(pair.lb)->conns[round % 2];
        unsigned epoch = mine->epoch;
        pair_fill();
        pair_scatter(runs, 512);
        assert_int_equal(rig_post(pair.la, &batch, 1, runs, 512, 2 * round), 0);
        assert_int_equal(ibv_modify_qp(theirs->qp, &error, IBV_QP_STATE), 0);
        /* Should the first have been quick enough, the second meets the dead end. */
        assert_int_equal(rig_post(pair.la, &batches[0], 1, runs, 512, 2 * round + 1), 0);
        PAIR_UNTIL(pair.lb->note_count == 2 * round);
        pair_check(runs, 512);
        memset(pair.dst->p, 0xdd, PAIR_BYTES);
        PAIR_UNTIL(batch.over == 1 && batches[0].over == 1);
        assert_true(batch.rc == 0 && batches[0].rc == 0);
        PAIR_UNTIL(mine->epoch == epoch + 1 && mine->state == BT_VERBS_LIVE &&
                   theirs->state == BT_VERBS_LIVE);
        for (size_t i = 0; i < PAIR_BYTES; i++)
            if ((uint8_t) pair.dst->p[i] != 0xdd)
                fail_msg("round %u: written after the notes", (unsigned) round);
    }
    assert_false(pair.la->has_failed || pair.lb->has_failed);
    pair_close();
}

/* For people, beside ib_write_bw of the same run: 3 s of 4 MiB batches, eight under way; in one run and in scattered pages. */
static void rate_of(const char *what, uint32_t n)
{
    uint64_t began_us = bt_clock_us(), over = 0, posted = 0;

    while (bt_clock_us() - began_us < 3000000) {
        while (posted < over + 8) {
            assert_int_equal(rig_post(pair.la, &batches[posted % 64], 1, runs, n, posted + 1), 0);
            posted++;
        }
        rig_turn(&pair.b);
        rig_turn(&pair.a);
        while (over < posted && batches[over % 64].over == 1)
            over++;
    }
    print_message("%s: %.1f MB/s\n", what,
                  (double) (over * batches[0].batch.bytes) / (double) (bt_clock_us() - began_us));
    PAIR_UNTIL(pair_path(pair.la)->job_count == 0);
}

static void test_rate(void **state)
{
    open_pair(BT_VERBS_IMM);
    runs[0] = pair_run(0, 0, PAIR_BYTES);
    rate_of("one run", 1);
    pair_scatter(runs, 1000);
    rate_of("scattered 4 KiB pages", 1000);
    for (uint32_t i = 0; i < 64; i++)
        runs[i] = pair_run((uint64_t) (i * 37 % 64) << 16, (uint64_t) (i * 23 % 64) << 16, 65536);
    rate_of("scattered 64 KiB pages", 64);
    pair_close();
}

static int group_is(int argc, char **argv, const char *name)
{
    return argc > 1 && strcmp(argv[1], name) == 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(test_imm),       cmocka_unit_test(test_send),
        cmocka_unit_test(test_control),   cmocka_unit_test(test_rows),
        cmocka_unit_test(test_many),      cmocka_unit_test(test_wakes),
        cmocka_unit_test(test_drain),     cmocka_unit_test(test_bad_key),
        cmocka_unit_test(test_peer_gone),
    };
    const struct CMUnitTest loss[] = {cmocka_unit_test(test_imm), cmocka_unit_test(test_send),
                                      cmocka_unit_test(test_drain)};
    const struct CMUnitTest black[] = {cmocka_unit_test(test_black_hole)};
    const struct CMUnitTest down[] = {cmocka_unit_test(test_link_down)};
    const struct CMUnitTest rate[] = {cmocka_unit_test(test_rate)};
    const struct CMUnitTest rails[] = {
        cmocka_unit_test(test_imm),        cmocka_unit_test(test_send),
        cmocka_unit_test(test_many),       cmocka_unit_test(test_drain),
        cmocka_unit_test(test_rail_fails),
    };

    if (bt_kv_verbs_ops() == NULL) {
        puts("skipped: no RDMA device here");
        return 77;
    }
    if (group_is(argc, argv, "loss"))
        return cmocka_run_group_tests(loss, NULL, NULL);
    if (group_is(argc, argv, "rate"))
        return cmocka_run_group_tests(rate, NULL, NULL);
    if (group_is(argc, argv, "rails"))
        return cmocka_run_group_tests(rails, NULL, NULL);
    if (group_is(argc, argv, "black"))
        return cmocka_run_group_tests(black, NULL, NULL);
    if (group_is(argc, argv, "down"))
        return cmocka_run_group_tests(down, NULL, NULL);
    return cmocka_run_group_tests(common, NULL, NULL);
}
