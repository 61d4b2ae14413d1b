/* Workers of unlike tensor-parallel sizes: who asks whom for which part of a page, without an engine saying it. */
#include "fake_gateway.h"

#include <stdio.h>

#define ROOM 2001u
#define HEAD_BYTES 256u
#define PAGES 4u

static const uint32_t to[PAGES] = {9, 3, 60, 2};
static const uint32_t from[PAGES] = {1, 2, 30, 0};

typedef struct bench {
    fake_t fake;
    bt_kv_heads_t heads;
    uint32_t p_ranks, d_ranks;
    rig_side_t p[3], d[3];
    bt_kv_room_t send[3], recv[3];
} bench_t;

static uint32_t heads_of(uint32_t total, uint32_t ranks)
{
    return ranks > total ? 1 : total / ranks;
}

static void open_side(bench_t *b, rig_side_t *sides, uint32_t ranks, const char *name,
                      const bt_kv_config_t *config)
{
    static char names[6][16];
    static unsigned next;
    uint32_t total = b->heads.total != 0 ? b->heads.total : ranks; /* uncut: a head each */
    uint32_t rows = b->heads.rows != 0 ? b->heads.rows : 1;

    for (uint32_t i = 0; i < ranks; i++) {
        char *own = names[next++ % 6];
        uint32_t bytes = heads_of(total, ranks) * HEAD_BYTES * rows;
        snprintf(own, sizeof(names[0]), "%s-%u", name, i);
        rig_side_open(&sides[i], own, config, name[0] == 'p' ? 7 + i : 0, bytes, bytes);
        fake_join_heads(&b->fake, &sides[i], i, ranks, b->heads);
    }
}

static void bench_open(bench_t *b, bt_kv_heads_t heads, uint32_t p_ranks, uint32_t d_ranks,
                       const bt_kv_config_t *config)
{
    *b = (bench_t){.heads = heads, .p_ranks = p_ranks, .d_ranks = d_ranks};
    fake_open(&b->fake);
    open_side(b, b->p, p_ranks, "p", config);
    open_side(b, b->d, d_ranks, "d", config);
}

static void bench_close(bench_t *b)
{
    for (uint32_t i = 0; i < 3; i++) {
        if (b->p[i].agent != NULL)
            rig_side_close(&b->p[i]);
        if (b->d[i].agent != NULL)
            rig_side_close(&b->d[i]);
    }
    fake_close(&b->fake);
}

/* OPEN to all agents of a side. */
static void tell(bench_t *b, enum bt_kv_side side, uint64_t room, uint32_t repair_ms)
{
    bool is_sender = side == BT_KV_SIDE_SENDER;
    rig_side_t *ours = is_sender ? b->p : b->d, *theirs = is_sender ? b->d : b->p, *peers[3];
    uint32_t count = is_sender ? b->p_ranks : b->d_ranks;
    uint32_t peer_count = is_sender ? b->d_ranks : b->p_ranks;

    for (uint32_t i = 0; i < peer_count; i++)
        peers[i] = &theirs[i];
    for (uint32_t i = 0; i < count; i++)
        fake_open_room(&b->fake, BT_KV_CONTROL_OPEN, ours[i].config.name, side, room, room,
                       repair_ms, peers, peer_count);
}

static void open_senders(bench_t *b, uint64_t room)
{
    bt_kv_send_spec_t spec = {.room = room, .receivers = BT_KV_RECEIVERS_OF_GATEWAY};

    for (uint32_t i = 0; i < b->p_ranks; i++) {
        spec.layout = b->p[i].layout;
        assert_int_equal(bt_kv_send_open(b->p[i].agent, &spec, &b->send[i]), 0);
    }
}

static void open_receivers(bench_t *b, uint64_t room)
{
    bt_kv_recv_t spec = {.room = room, .pages = to, .page_count = PAGES};

    for (uint32_t i = 0; i < b->d_ranks; i++) {
        spec.layout = b->d[i].layout;
        assert_int_equal(bt_kv_recv_open(b->d[i].agent, &spec, &b->recv[i]), 0);
    }
}

static void send_chunks(bench_t *b)
{
    for (uint32_t i = 0; i < b->p_ranks; i++)
        for (uint32_t page = 0; page < PAGES; page += 2)
            assert_int_equal(bt_kv_send(b->p[i].agent, b->send[i],
                                        &(bt_kv_chunk_t){.first = page,
                                                         .pages = from + page,
                                                         .page_count = 2,
                                                         .last = page + 2 == PAGES}),
                             0);
}

static void until_all(bench_t *b, enum bt_kv_state state)
{
    for (uint32_t i = 0; i < b->d_ranks; i++)
        FAKE_WAIT(&b->fake, bt_kv_poll(b->d[i].agent, b->recv[i]) == state);
    for (uint32_t i = 0; i < b->p_ranks; i++)
        FAKE_WAIT(&b->fake, bt_kv_poll(b->p[i].agent, b->send[i]) == state);
}

static const char *head_at(const bench_t *b, const rig_side_t *side, uint32_t rank, uint32_t ranks,
                           uint32_t buffer, uint32_t page, uint32_t row, uint32_t head)
{
    uint32_t total = b->heads.total, own = heads_of(total, ranks);
    uint32_t first = ranks > total ? rank / (ranks / total) : rank * own;

    if (head < first || head >= first + own)
        return NULL;
    return rig_page(side, buffer, page) + (size_t) (row * own + head - first) * HEAD_BYTES;
}

/* One of prefill's ranks has these bytes. */
static bool has_sent(const bench_t *b, uint32_t buffer, uint32_t page, uint32_t row, uint32_t head,
                     const char *bytes)
{
    for (uint32_t i = 0; i < b->p_ranks; i++) {
        const char *at = head_at(b, &b->p[i], i, b->p_ranks, buffer, page, row, head);
        if (at != NULL && memcmp(at, bytes, HEAD_BYTES) == 0)
            return true;
    }
    return false;
}

/* Every head that decode's ranks hold, of every page. */
static void check_heads(const bench_t *b)
{
    uint32_t checked = 0;

    for (uint32_t rank = 0; rank < b->d_ranks; rank++)
        for (uint32_t buffer = 0; buffer < RIG_BUFFERS; buffer++)
            for (uint32_t i = 0; i < PAGES; i++)
                for (uint32_t row = 0; row < b->heads.rows; row++)
                    for (uint32_t head = 0; head < b->heads.total; head++) {
                        const char *bytes =
                            head_at(b, &b->d[rank], rank, b->d_ranks, buffer, to[i], row, head);
                        if (bytes == NULL)
                            continue;
                        assert_true(has_sent(b, buffer, from[i], row, head, bytes));
                        checked++;
                    }
    assert_true(checked >= b->d_ranks * RIG_BUFFERS * PAGES);
}

static uint64_t sent_by(const rig_side_t *side)
{
    bt_kv_agent_stats_t stats;

    bt_kv_agent_stats(side->agent, &stats);
    return stats.bytes_sent;
}

/* ---- rooms that go well ---- */
static const struct {
    bt_kv_heads_t heads;
    uint32_t p_ranks, d_ranks;
} shapes[] = {
    {{4, 1}, 2, 1}, {{4, 1}, 1, 2}, {{2, 1}, 2, 1}, {{2, 3}, 2, 1}, {{4, 3}, 1, 2},
    {{1, 1}, 2, 1}, {{1, 1}, 1, 2}, {{1, 1}, 3, 1}, {{1, 1}, 1, 3}, {{1, 1}, 2, 2},
    {{3, 2}, 3, 1}, {{3, 2}, 1, 3}, {{4, 1}, 2, 2}, {{1, 1}, 1, 1},
};

/* order: who is first; g: the gateway, p and d: the engines. */
static void goes_well(unsigned shape, const char *order)
{
    bench_t b;

    bench_open(&b, shapes[shape].heads, shapes[shape].p_ranks, shapes[shape].d_ranks, NULL);
    for (const char *who = order; *who != '\0'; who++) {
        if (*who == 'P')
            tell(&b, BT_KV_SIDE_SENDER, ROOM, 0);
        else if (*who == 'D')
            tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 0);
        else if (*who == 'p')
            open_senders(&b, ROOM);
        else if (*who == 'd')
            open_receivers(&b, ROOM);
        else
            send_chunks(&b);
        for (int i = 0; i < 20; i++)
            fake_turn(&b.fake);
    }
    until_all(&b, BT_KV_SUCCESS);
    check_heads(&b);
    bench_close(&b);
}

static void test_all_shapes(void **state)
{
    for (unsigned i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        goes_well(i, "PDpds");
}

/* Whoever comes last, a sender does not begin before it knows how many will ask. */
static void test_all_orders(void **state)
{
    static const char *const orders[] = {"pdsPD", "pdsDP", "DdpsP", "psPDd", "psDdP", "dDPps"};

    for (unsigned i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        goes_well(1, orders[i]); /* one sender, two receivers */
        goes_well(0, orders[i]); /* two senders, one receiver */
        goes_well(5, orders[i]); /* two copies, one receiver: a dummy */
    }
}

static void test_a_copy_that_nobody_needs_sends_nothing(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){1, 1}, 2, 1, NULL);
    tell(&b, BT_KV_SIDE_SENDER, ROOM, 0);
    tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 0);
    open_senders(&b, ROOM);
    open_receivers(&b, ROOM);
    send_chunks(&b);
    until_all(&b, BT_KV_SUCCESS);
    assert_int_equal(sent_by(&b.p[0]), PAGES * RIG_BUFFERS * HEAD_BYTES);
    assert_int_equal(sent_by(&b.p[1]), 0);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "p-1", ROOM, BT_KV_SUCCESS));
    assert_int_equal(bt_kv_room_release(b.p[1].agent, b.send[1]), 1);
    bench_close(&b);
}

/* ---- rooms that can't be ---- */
static void expect_refusal(bench_t *b, const char *why)
{
    tell(b, BT_KV_SIDE_SENDER, ROOM, 0);
    tell(b, BT_KV_SIDE_RECEIVER, ROOM, 0);
    open_senders(b, ROOM);
    open_receivers(b, ROOM);
    until_all(b, BT_KV_FAILED);
    for (uint32_t i = 0; i < b->d_ranks; i++)
        if (strstr(rig_error(&b->d[i], b->recv[i]), why) == NULL)
            fail_msg("%s", rig_error(&b->d[i], b->recv[i]));
    assert_non_null(strstr(rig_error(&b->p[0], b->send[0]), why));
    bench_close(b);
}

static void test_pages_that_are_not_cut(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){0, 0}, 2, 1, NULL);
    for (uint32_t i = 0; i < 2; i++)
        b.send[i] = 0;
    tell(&b, BT_KV_SIDE_SENDER, ROOM, 0);
    open_receivers(&b, ROOM);
    tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 0);
    FAKE_WAIT(&b.fake, bt_kv_poll(b.d[0].agent, b.recv[0]) == BT_KV_FAILED);
    assert_non_null(
        strstr(rig_error(&b.d[0], b.recv[0]), "names 2 senders and this agent is rank 0 of 1"));
    assert_non_null(strstr(rig_error(&b.d[0], b.recv[0]), "the same tensor-parallel size"));
    open_senders(&b, ROOM);
    FAKE_WAIT(&b.fake, bt_kv_poll(b.p[1].agent, b.send[1]) == BT_KV_FAILED);
    assert_non_null(
        strstr(rig_error(&b.p[1], b.send[1]), "names 1 receivers and this agent is rank 1 of 2"));
    bench_close(&b);
}

static void test_heads_that_cannot_be_shared_out(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){3, 1}, 3, 1, NULL);
    b.p_ranks = 2; /* as the gateway names them */
    tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 0);
    open_receivers(&b, ROOM);
    FAKE_WAIT(&b.fake, bt_kv_poll(b.d[0].agent, b.recv[0]) == BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d[0], b.recv[0]), "heads that so many can't share"));
    bench_close(&b);
}

static void test_pages_of_unlike_sizes(void **state)
{
    bench_t b;
    bt_kv_buffer_t buffers[2];

    bench_open(&b, (bt_kv_heads_t){4, 1}, 2, 1, NULL);
    for (uint32_t i = 0; i < 2; i++)
        buffers[i] = (bt_kv_buffer_t){b.d[0].region, (uint64_t) i * 65536, 1024, 1024 >> i};
    assert_int_equal(bt_kv_layout_add(b.d[0].agent, buffers, 2, 64, &b.d[0].layout), 0);
    tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 0);
    open_receivers(&b, ROOM);
    FAKE_WAIT(&b.fake, bt_kv_poll(b.d[0].agent, b.recv[0]) == BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d[0], b.recv[0]), "not all of one size"));
    bench_close(&b);
}

static void test_other_heads_than_the_other_side(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){2, 1}, 2, 1, NULL);
    rig_side_close(&b.d[0]);
    rig_side_open(&b.d[0], "d-0", NULL, 0, 1024, 1024); /* twice as much a head */
    for (unsigned i = 0; i < 4; i++)
        if (b.fake.sides[i] == &b.d[0])
            b.fake.sides[i] = NULL;
    fake_join_heads(&b.fake, &b.d[0], 0, 1, b.heads);
    expect_refusal(&b, "the slice asks for 1 rows of 512 bytes, the sender's pages have 256 bytes");
}

/* ---- a sender that is lost ---- */
static bool is_orphan(const bench_t *b, const rig_side_t *side)
{
    const fake_report_t *last = fake_last(&b->fake, side->config.name, ROOM);

    return last != NULL && last->room.is_orphan;
}

static void test_another_prefill_takes_over(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){2, 1}, 1, 2, NULL);
    rig_side_open(&b.p[1], "p-other", NULL, 9, 2 * HEAD_BYTES, 2 * HEAD_BYTES);
    fake_join_heads(&b.fake, &b.p[1], 0, 1, b.heads);
    tell(&b, BT_KV_SIDE_RECEIVER, ROOM, 15000);
    open_receivers(&b, ROOM);
    for (uint32_t i = 0; i < 2; i++)
        FAKE_WAIT(&b.fake, bt_kv_poll(b.d[i].agent, b.recv[i]) == BT_KV_WAITING_FOR_INPUT);
    rig_side_close(&b.p[0]);
    for (uint32_t i = 0; i < 2; i++)
        FAKE_WAIT(&b.fake, is_orphan(&b, &b.d[i]));
    b.p[0] = b.p[1];
    b.p[1].agent = NULL;
    for (unsigned i = 0; i < 4; i++)
        if (b.fake.sides[i] == &b.p[1])
            b.fake.sides[i] = &b.p[0];
    rig_side_t *sender[] = {&b.p[0]};
    tell(&b, BT_KV_SIDE_SENDER, ROOM + 1, 0);
    for (uint32_t i = 0; i < 2; i++)
        fake_open_room(&b.fake, BT_KV_CONTROL_SOURCE, b.d[i].config.name, BT_KV_SIDE_RECEIVER, ROOM,
                       ROOM + 1, 0, sender, 1);
    open_senders(&b, ROOM + 1);
    send_chunks(&b);
    until_all(&b, BT_KV_SUCCESS);
    check_heads(&b);
    bench_close(&b);
}

/* ---- without a gateway ---- */
static void test_nobody_names_the_receivers(void **state)
{
    bench_t b;
    bt_kv_gateway_t bad = {
        .host = "127.0.0.1", .port = 1, .worker = "w", .rank = 0, .ranks = 2, .heads = {3, 1}};
    bt_kv_room_t room = 7;

    b = (bench_t){.heads = {1, 1}, .p_ranks = 1};
    fake_open(&b.fake);
    rig_side_open(&b.p[0], "p-0", &(bt_kv_config_t){.bootstrap_ms = 100}, 7, HEAD_BYTES,
                  HEAD_BYTES);
    bt_kv_send_spec_t spec = {
        .room = ROOM, .layout = b.p[0].layout, .receivers = BT_KV_RECEIVERS_OF_GATEWAY};
    assert_int_equal(bt_kv_send_open(b.p[0].agent, &spec, &room), BT_E_INVAL);
    assert_int_equal(room, 7);
    assert_int_equal(bt_kv_gateway_add(b.p[0].agent, &bad, NULL), BT_E_INVAL);
    fake_join_heads(&b.fake, &b.p[0], 0, 1, b.heads);
    open_senders(&b, ROOM);
    FAKE_WAIT(&b.fake, bt_kv_poll(b.p[0].agent, b.send[0]) == BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.p[0], b.send[0]), "for a gateway to name the receivers"));
    bench_close(&b);
}

static void test_aborted_before_it_was_opened(void **state)
{
    bench_t b;

    bench_open(&b, (bt_kv_heads_t){2, 1}, 2, 1, NULL);
    tell(&b, BT_KV_SIDE_SENDER, ROOM, 0);
    for (uint32_t i = 0; i < 2; i++)
        fake_abort(&b.fake, b.p[i].config.name, ROOM, "the client is gone");
    open_senders(&b, ROOM);
    for (uint32_t i = 0; i < 2; i++)
        FAKE_WAIT(&b.fake, bt_kv_poll(b.p[i].agent, b.send[i]) == BT_KV_FAILED);
    bench_close(&b);
}

static int run(const char *name, uint32_t backends)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_shapes),
        cmocka_unit_test(test_all_orders),
        cmocka_unit_test(test_a_copy_that_nobody_needs_sends_nothing),
        cmocka_unit_test(test_pages_that_are_not_cut),
        cmocka_unit_test(test_heads_that_cannot_be_shared_out),
        cmocka_unit_test(test_pages_of_unlike_sizes),
        cmocka_unit_test(test_other_heads_than_the_other_side),
        cmocka_unit_test(test_another_prefill_takes_over),
        cmocka_unit_test(test_nobody_names_the_receivers),
        cmocka_unit_test(test_aborted_before_it_was_opened),
    };

    bt_kv_rig_use(&(bt_kv_suite_t){.name = name, .backends = backends});
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    int failed = run("mem", BT_KV_MEM);

    failed += run("shm", BT_KV_SHM);
    failed += run("tcp", BT_KV_TCP);
    return failed;
}
