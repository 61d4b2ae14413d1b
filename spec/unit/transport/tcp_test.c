/* The TCP back end between two rigs: what arrives is what was sent, whatever the shape, the number of streams and the socket buffers. */
#include "tcp_pair.h"

#include "base/sanitize.h"

#define MIB ((size_t) 1 << 20)

static void test_opens_and_describes(void **state)
{
    tcp_pair_t pair;
    char text[300];

    pair_open(&pair, 4, MIB);
    assert_true(pair.tx.ops->describe(pair.out->path, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "tcp, 4 streams, reno"));
    assert_true(pair.tx.ops->close_revokes); /* a lost peer need not be known to be dead */
    pair_close(&pair);
}

static void shapes(uint32_t streams)
{
    enum { PAGES = 640, RUNS = 600 };
    tcp_pair_t pair;
    static bt_kv_run_t runs[RUNS];
    rig_batch_t b;
    uint32_t order[PAGES];

    pair_open(&pair, streams, (size_t) PAGES * PAGE);
    for (uint32_t i = 0; i < PAGES; i++)
        order[i] = i;
    for (uint32_t i = PAGES - 1; i > 0; i--) {
        uint32_t j = numbers_below(i + 1), page = order[i];
        order[i] = order[j];
        order[j] = page;
    }
    for (uint32_t i = 0; i < RUNS; i++) /* scattered pages, odd lengths in between */
        runs[i] = plain_run(&pair, (uint64_t) (PAGES - 1 - i) * PAGE, (uint64_t) order[i] * PAGE,
                            i % 5 == 0 ? 1 + numbers_below(PAGE) : PAGE);
    assert_int_equal(rig_post(pair.out, &b, 5, runs, RUNS, 77), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, b.over > 0);
    assert_int_equal(b.rc, 0);
    assert_int_equal(pair.in->note_count, 1);
    assert_int_equal(pair.in->notes[0], 77);
    assert_true(are_there(&pair, runs, RUNS));
    pair_close(&pair);
}

static void test_scattered_pages(void **state)
{
    shapes(1);
    shapes(4);
}

/* One run of more than a block, rows of many lengths, a note without bytes. */
static void strides(uint32_t streams)
{
    static const uint32_t widths[] = {1, 7, 128, 1000, 4096, 3 * 1024 * 1024};
    tcp_pair_t pair;
    rig_batch_t b[8];

    pair_open(&pair, streams, 24 * MIB);
    bt_kv_run_t large = plain_run(&pair, 3, 5, (uint32_t) (20 * MIB + 13));
    assert_int_equal(rig_post(pair.out, &b[0], 1, &large, 1, 1), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, b[0].over == 1);
    assert_true(are_there(&pair, &large, 1));
    for (uint32_t i = 0; i < 6; i++) {
        bt_kv_run_t run = plain_run(&pair, 64, 128, widths[i]);
        run.rows = widths[i] > MIB ? 4 : 2000;
        run.src_stride = widths[i] + 17;
        run.dst_stride = widths[i] + 3;
        memset(pair.dst->p, 0, pair.dst->size);
        assert_int_equal(rig_post(pair.out, &b[1], 1, &run, 1, 2 + i), 0);
        RIG_UNTIL(&pair.tx, &pair.rx, b[1].over == 1);
        assert_int_equal(b[1].rc, 0);
        assert_true(are_there(&pair, &run, 1));
        for (uint32_t row = 0; row + 1 < run.rows; row++) /* nothing between the rows */
            assert_true(
                is_all_zero(pair.dst->p + 128 + (size_t) row * run.dst_stride + run.bytes, 3));
        assert_int_equal(pair.in->notes[1 + i], 2 + i);
    }
    assert_int_equal(rig_post(pair.out, &b[2], 1, NULL, 0, 99), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, b[2].over == 1);
    assert_int_equal(pair.in->notes[pair.in->note_count - 1], 99);
    pair_close(&pair);
}

static void test_large_runs_and_rows(void **state)
{
    strides(1);
    strides(4);
}

static void test_many_small_batches(void **state)
{
    enum { COUNT = 1000 };
    static rig_batch_t b[COUNT];
    static bt_kv_run_t runs[COUNT];
    tcp_pair_t pair;
    uint32_t over = 0;
    uint64_t sum = 0;

    pair_open(&pair, 4, MIB);
    for (uint32_t i = 0; i < COUNT; i++) { /* more than there are slots: the rest waits */
        runs[i] = plain_run(&pair, i * 1000u, i * 1000u, 1000);
        assert_int_equal(rig_post(pair.out, &b[i], i + 1, &runs[i], 1, i + 1), 0);
    }
    while (over < COUNT) {
        rig_turn(&pair.tx);
        rig_turn(&pair.rx);
        for (over = 0; over < COUNT && b[over].over == 1; over++)
            ;
    }
    assert_int_equal(pair.in->note_count, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        sum += pair.in->notes[i];
    assert_int_equal(sum, COUNT * (COUNT + 1) / 2);
    assert_true(are_there(&pair, runs, COUNT));
    pair_close(&pair);
}

static void test_small_socket_buffers(void **state)
{
    const size_t all = (BT_ASAN || BT_TSAN ? 20 : 100) * MIB;

    for (uint32_t streams = 1; streams <= 4; streams += 3) {
        tcp_pair_t pair;
        rig_batch_t b;
        pair_open(&pair, streams, all);
        set_buffers(tcp_path(pair.out), 16384);
        set_buffers(tcp_path(pair.in), 16384);
        bt_kv_run_t run = plain_run(&pair, 0, 0, (uint32_t) all);
        assert_int_equal(rig_post(pair.out, &b, 1, &run, 1, 1), 0);
        RIG_UNTIL(&pair.tx, &pair.rx, b.over == 1);
        assert_int_equal(b.rc, 0);
        assert_memory_equal(pair.src->p, pair.dst->p, all);
        pair_close(&pair);
    }
}

static void test_both_directions_at_once(void **state)
{
    tcp_pair_t pair;
    rig_batch_t there, back;

    pair_open(&pair, 2, 8 * MIB);
    fill_random(pair.dst, 9);
    char *copy = malloc(4 * MIB);
    memcpy(copy, pair.dst->p, 4 * MIB);
    bt_kv_run_t go = plain_run(&pair, 0, 4 * MIB, (uint32_t) (4 * MIB));
    bt_kv_run_t come = {.src = pair.dst,
                        .dst = pair.src->id,
                        .dst_offset = 4 * MIB,
                        .bytes = (uint32_t) (4 * MIB),
                        .rows = 1};
    assert_int_equal(rig_post(pair.out, &there, 1, &go, 1, 1), 0);
    assert_int_equal(rig_post(pair.in, &back, 2, &come, 1, 2), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, there.over == 1 && back.over == 1);
    assert_memory_equal(pair.src->p + 4 * MIB, copy, 4 * MIB);
    assert_true(are_there(&pair, &go, 1));
    free(copy);
    pair_close(&pair);
}

/* The room fails while its bytes are on their way: they go nowhere, nobody is told, and the stream goes on. */
static void test_refused_bytes_are_discarded(void **state)
{
    tcp_pair_t pair;
    rig_batch_t bad, good;

    for (uint32_t streams = 1; streams <= 4; streams += 3) {
        pair_open(&pair, streams, 16 * MIB);
        bt_kv_run_t first = plain_run(&pair, 0, 0, (uint32_t) (8 * MIB));
        bt_kv_run_t second = plain_run(&pair, 8 * MIB, 8 * MIB, (uint32_t) (2 * MIB));
        assert_int_equal(rig_post(pair.out, &bad, 6, &first, 1, 66), 0);
        assert_int_equal(rig_post(pair.out, &good, 7, &second, 1, 77), 0);
        while (pair.dst->p[0] != pair.src->p[0]) { /* its first bytes are there */
            rig_turn(&pair.tx);
            rig_turn(&pair.rx);
        }
        pair.in->refused_tag = 6;
        assert_true(rig_drain(pair.in, 6));
        memset(pair.dst->p, 0, 8 * MIB); /* the pages are somebody else's now */
        RIG_UNTIL(&pair.tx, &pair.rx, bad.over == 1 && good.over == 1);
        assert_int_equal(bad.rc, BT_E_CANCELLED);
        assert_int_equal(good.rc, 0);
        assert_true(is_all_zero(pair.dst->p, 8 * MIB));
        assert_true(are_there(&pair, &second, 1));
        assert_int_equal(pair.in->note_count, 1);
        assert_int_equal(pair.in->notes[0], 77);
        pair_close(&pair);
    }
}

static void test_a_run_beyond_the_region_is_refused(void **state)
{
    tcp_pair_t pair;
    rig_batch_t b;

    pair_open(&pair, 1, MIB);
    bt_kv_run_t run = plain_run(&pair, 0, MIB - 100, 101);
    assert_int_equal(rig_post(pair.out, &b, 1, &run, 1, 1), 0);
    RIG_UNTIL(&pair.tx, &pair.rx, b.over == 1);
    assert_int_equal(b.rc, BT_E_CANCELLED);
    assert_int_equal(pair.in->note_count, 0);
    assert_true(is_all_zero(pair.dst->p, pair.dst->size));
    pair_close(&pair);
}

/* The sender's room fails while the receiver does not read: what is half written stays the room's, the rest is given up. */
static void test_drain_of_a_sender(void **state)
{
    enum { COUNT = 4 };
    const size_t each = 18 * MIB; /* more than four plans hold */
    static rig_batch_t b[COUNT];
    static bt_kv_run_t runs[COUNT];

    for (uint32_t streams = 1; streams <= 4; streams += 3) {
        tcp_pair_t pair;
        uint32_t turns = 0;
        pair_open(&pair, streams, COUNT * each);
        set_buffers(tcp_path(pair.out), 65536);
        set_buffers(tcp_path(pair.in), 65536); /* less than a block */
        for (uint32_t i = 0; i < COUNT; i++) {
            runs[i] = plain_run(&pair, i * each, i * each, (uint32_t) each);
            assert_int_equal(rig_post(pair.out, &b[i], 1 + i % 2, &runs[i], 1, i + 1), 0);
        }
        while (turns++ < 100)
            rig_turn(&pair.tx); /* until the buffers are full */
        assert_false(rig_drain(pair.out, 1));
        assert_int_equal(b[0].over, 0);
        for (uint32_t i = 2; i < COUNT; i += 2)
            assert_int_equal(b[i].over + (b[i].rc == BT_E_CANCELLED), 2);
        RIG_UNTIL(&pair.tx, &pair.rx, rig_drain(pair.out, 1));
        memset(pair.src->p, 0x55, each); /* its pages are free */
        for (uint32_t i = 0; i < COUNT; i++)
            RIG_UNTIL(&pair.tx, &pair.rx, b[i].over == 1);
        for (uint32_t i = 1; i < COUNT; i += 2)
            assert_true(b[i].rc == 0 && are_there(&pair, &runs[i], 1));
        for (uint32_t i = 0; i < pair.in->note_count; i++)
            assert_int_equal(pair.in->notes[i] % 2, 0); /* of tag 2 */
        assert_int_equal(pair.in->note_count, COUNT / 2);
        pair_close(&pair);
    }
}

/* Slots of dropped batches come back. */
static void test_rooms_that_fail_again_and_again(void **state)
{
    tcp_pair_t pair;

    pair_open(&pair, 4, 8 * MIB);
    for (uint32_t round = 0; round < 1000; round++) {
        rig_batch_t b = {0};
        bt_kv_run_t run = plain_run(&pair, 0, 0, 1 + numbers_below((uint32_t) (4 * MIB)));
        assert_int_equal(rig_post(pair.out, &b, round + 1, &run, 1, round + 1), 0);
        for (uint32_t turns = numbers_below(4); turns > 0; turns--) {
            rig_turn(&pair.tx);
            rig_turn(&pair.rx);
        }
        RIG_UNTIL(&pair.tx, &pair.rx, rig_drain(pair.out, round + 1));
        assert_int_equal(b.over, 1);
    }
    pair_close(&pair);
}

static void test_close_gives_batches_back_once(void **state)
{
    tcp_pair_t pair;
    rig_batch_t b[40];
    static bt_kv_run_t runs[40];

    pair_open(&pair, 2, 40 * MIB);
    for (uint32_t i = 0; i < 40; i++) {
        runs[i] = plain_run(&pair, i * MIB, i * MIB, (uint32_t) MIB);
        assert_int_equal(rig_post(pair.out, &b[i], i, &runs[i], 1, 0), 0);
    }
    rig_turn(&pair.tx);
    rig_unlink(pair.out);
    for (uint32_t i = 0; i < 40; i++)
        assert_true(b[i].over == 1 && b[i].rc == BT_E_CANCELLED);
    RIG_UNTIL(&pair.rx, NULL, pair.in->has_failed);
    assert_int_equal(pair.in->rc, BT_E_RESET);
    assert_non_null(strstr(pair.in->why, "tcp data connection"));
    pair_close(&pair);
}

/* Every 37th byte of what a batch puts on the wire: the connection ends there. This spec is the network: it takes the bytes from the socket and hands
 * the receiver the first of them. */
static void test_the_connection_ends_anywhere(void **state)
{
    enum { FRAME = BT_TCP_BLOCK_HEAD_BYTES + BT_TCP_RUN_BYTES + 8 + 2900 };
    uint8_t bytes[FRAME];

    for (uint32_t at = 0; at < FRAME; at += 37) {
        tcp_pair_t pair;
        rig_batch_t b;
        pair_open(&pair, 1 + at % 2, MIB);
        bt_kv_run_t run = plain_run(&pair, 0, 0, 2900);
        bt_tcp_conn_t *from = tcp_path(pair.out)->conns[0], *to = tcp_path(pair.in)->conns[0];
        assert_int_equal(rig_post(pair.out, &b, 1, &run, 1, 1), 0); /* written by post itself */
        RIG_UNTIL(&pair.tx, NULL, recv(to->fd, bytes, FRAME, MSG_PEEK | MSG_DONTWAIT) == FRAME);
        assert_int_equal(recv(to->fd, bytes, FRAME, 0), FRAME);
        memcpy(to->rx.stage, bytes, at);
        to->rx.stage_n = at;
        shutdown(from->fd, SHUT_RDWR);
        RIG_UNTIL(&pair.tx, &pair.rx, pair.in->has_failed && pair.out->has_failed);
        assert_int_equal(pair.in->rc, BT_E_RESET);
        assert_int_equal(pair.in->note_count, 0);
        rig_unlink(pair.out);
        assert_int_equal(b.over, 1);
        assert_int_equal(b.rc, BT_E_CANCELLED);
        pair_close(&pair);
    }
}

/* ---- two threads: they sleep, and wake each other ---- */
typedef struct receiver {
    tcp_pair_t *pair;
    uint32_t wanted;
} receiver_t;

static void *receive(void *user)
{
    receiver_t *r = user;
    RIG_UNTIL(&r->pair->rx, NULL, r->pair->in->note_count == r->wanted);
    for (int i = 0; i < 3; i++)
        rig_turn(&r->pair->rx); /* the last acknowledgements */
    return NULL;
}

static void test_sleepers_wake(void **state)
{
    enum { ROUNDS = 300 };
    tcp_pair_t pair;
    receiver_t r = {.pair = &pair, .wanted = ROUNDS};
    pthread_t thread;

    pair_open(&pair, 2, 4 * MIB);
    assert_int_equal(pthread_create(&thread, NULL, receive, &r), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        rig_batch_t b;
        bt_kv_run_t run = plain_run(&pair, 0, 0, i % 3 == 0 ? (uint32_t) (3 * MIB) : PAGE);
        assert_int_equal(rig_post(pair.out, &b, 1, &run, 1, i + 1), 0);
        RIG_UNTIL(&pair.tx, NULL, b.over == 1);
        assert_int_equal(b.rc, 0);
    }
    pthread_join(thread, NULL);
    pair_close(&pair);
}

/* A rig that sleeps, while another thread posts to it: post itself must wake it. */
typedef struct poster {
    tcp_pair_t *pair;
    rig_batch_t b[200];
    bt_kv_run_t run;
    bool is_done; /* atomic */
} poster_t;

static void *post_all(void *user)
{
    poster_t *p = user;
    for (int i = 0; i < 200; i++)
        assert_int_equal(rig_post(p->pair->out, &p->b[i], 1, &p->run, 1, (uint64_t) i + 1), 0);
    __atomic_store_n(&p->is_done, true, __ATOMIC_RELEASE);
    return NULL;
}

static void test_post_wakes_a_sleeper(void **state)
{
    static poster_t p;
    tcp_pair_t pair;
    receiver_t r = {.pair = &pair, .wanted = 200};
    pthread_t poster, receiver;

    pair_open(&pair, 1, 4 * MIB);
    p.pair = &pair;
    p.run = plain_run(&pair, 0, 0, (uint32_t) MIB);
    assert_int_equal(pthread_create(&receiver, NULL, receive, &r), 0);
    assert_int_equal(pthread_create(&poster, NULL, post_all, &p), 0);
    RIG_UNTIL(&pair.tx, NULL, __atomic_load_n(&p.is_done, __ATOMIC_ACQUIRE) && p.b[199].over == 1);
    pthread_join(poster, NULL);
    pthread_join(receiver, NULL);
    assert_true(are_there(&pair, &p.run, 1));
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_and_describes),
        cmocka_unit_test(test_scattered_pages),
        cmocka_unit_test(test_large_runs_and_rows),
        cmocka_unit_test(test_many_small_batches),
        cmocka_unit_test(test_small_socket_buffers),
        cmocka_unit_test(test_both_directions_at_once),
        cmocka_unit_test(test_refused_bytes_are_discarded),
        cmocka_unit_test(test_a_run_beyond_the_region_is_refused),
        cmocka_unit_test(test_drain_of_a_sender),
        cmocka_unit_test(test_rooms_that_fail_again_and_again),
        cmocka_unit_test(test_close_gives_batches_back_once),
        cmocka_unit_test(test_the_connection_ends_anywhere),
        cmocka_unit_test(test_sleepers_wake),
        cmocka_unit_test(test_post_wakes_a_sleeper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
