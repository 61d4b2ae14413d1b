/* Rooms that a gateway opens, follows, aborts and repairs: two prefill agents, a decode agent and a small gateway. */
#include "fake_gateway.h"

#include <stdio.h>

#define ROOM 1001u   /* as the gateway opened it */
#define ROOM_2 1002u /* at the second prefill */

static const uint32_t to[8] = {9, 3, 4, 5, 60, 61, 2, 40};
static const uint32_t from[8] = {1, 2, 3, 4, 30, 31, 63, 0};
static const bt_kv_config_t by_hand = {.progress = BT_KV_PROGRESS_CALLER};

typedef struct bench {
    fake_t fake;
    rig_side_t p1, p2, d;
    uint32_t gateway; /* of d */
} bench_t;

/* p1_config: of the first prefill alone, when it is to be another. */
static void bench_open(bench_t *b, const bt_kv_config_t *config, const bt_kv_config_t *p1_config)
{
    fake_open(&b->fake);
    rig_side_open(&b->p1, "prefill", p1_config != NULL ? p1_config : config, 7, RIG_PAGE_BYTES,
                  RIG_PAGE_BYTES);
    rig_side_open(&b->p2, "prefill-2", config, 8, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    rig_side_open(&b->d, "decode", config, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    fake_join(&b->fake, &b->p1, 0, 1);
    fake_join(&b->fake, &b->p2, 0, 1);
    b->gateway = fake_join(&b->fake, &b->d, 0, 1);
}

static void bench_close(bench_t *b)
{
    rig_side_t *sides[] = {&b->p1, &b->p2, &b->d};

    for (unsigned i = 0; i < 3; i++)
        if (sides[i]->agent != NULL)
            rig_side_close(sides[i]);
    fake_close(&b->fake);
}

static void tell_sender(bench_t *b, rig_side_t *p, uint64_t room)
{
    rig_side_t *peers[] = {&b->d};
    fake_open_room(&b->fake, BT_KV_CONTROL_OPEN, p->config.name, BT_KV_SIDE_SENDER, room, room, 0,
                   peers, 1);
}

static void tell_receiver(bench_t *b, rig_side_t *p, uint32_t repair_ms)
{
    rig_side_t *peers[] = {p};
    fake_open_room(&b->fake, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, ROOM, ROOM,
                   repair_ms, peers, 1);
}

static void tell_source(bench_t *b, rig_side_t *p, uint64_t source_room, uint32_t repair_ms)
{
    rig_side_t *peers[] = {p};
    fake_open_room(&b->fake, BT_KV_CONTROL_SOURCE, "decode", BT_KV_SIDE_RECEIVER, ROOM, source_room,
                   repair_ms, peers, 1);
}

static int try_recv(bench_t *b, bt_kv_room_t *room_p)
{
    bt_kv_recv_t recv = {.room = ROOM, .layout = b->d.layout, .pages = to, .page_count = 8};

    recv.pieces[0] = rig_aux_piece(&b->d);
    recv.piece_count = 1;
    return bt_kv_recv_open(b->d.agent, &recv, room_p);
}

static bt_kv_room_t open_recv(bench_t *b)
{
    bt_kv_room_t room = 0;

    assert_int_equal(try_recv(b, &room), 0);
    return room;
}

static bt_kv_room_t open_send(rig_side_t *p, uint64_t id)
{
    bt_kv_send_spec_t spec = {.room = id, .layout = p->layout};
    bt_kv_room_t room = 0;

    assert_int_equal(bt_kv_send_open(p->agent, &spec, &room), 0);
    return room;
}

static void send_pages(rig_side_t *p, bt_kv_room_t room, uint32_t first, uint32_t count,
                       bool is_last)
{
    bt_kv_chunk_t chunk = {
        .first = first, .pages = from + first, .page_count = count, .last = is_last};

    if (is_last) {
        chunk.pieces[0] = rig_aux_piece(p);
        chunk.piece_count = 1;
    }
    assert_int_equal(bt_kv_send(p->agent, room, &chunk), 0);
}

static void until(bench_t *b, rig_side_t *side, bt_kv_room_t room, enum bt_kv_state state)
{
    FAKE_WAIT(&b->fake, bt_kv_poll(side->agent, room) == state);
}

static void until_told(bench_t *b, rig_side_t *side, uint64_t room, enum bt_kv_state state)
{
    FAKE_WAIT(&b->fake, fake_is_last(&b->fake, side->config.name, room, state));
}

static void until_orphan(bench_t *b)
{
    FAKE_WAIT(&b->fake, fake_last(&b->fake, "decode", ROOM) != NULL &&
                            fake_last(&b->fake, "decode", ROOM)->room.is_orphan);
}

static void until_released(bench_t *b, rig_side_t *side, bt_kv_room_t room)
{
    FAKE_WAIT(&b->fake, bt_kv_room_release(side->agent, room) == 1);
}

static void check_pages(bench_t *b, const rig_side_t *p)
{
    rig_t rig = {.from = *p, .to = b->d};

    rig_check_pages(&rig, to, from, 8, 0);
    assert_memory_equal(rig_aux(&b->d), rig_aux(p), RIG_AUX_BYTES);
}

/* ---- rooms as they should go ---- */
static void goes_well(const bt_kv_config_t *config, bool is_open_first)
{
    bench_t b;
    bt_kv_room_t send = 0, recv = 0;

    bench_open(&b, config, NULL);
    if (is_open_first) {
        tell_sender(&b, &b.p1, ROOM);
        tell_receiver(&b, &b.p1, 5000);
        uint32_t count = 0;
        FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.d.agent, ROOM, NULL, 0, &count) == 0);
        FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.p1.agent, ROOM, NULL, 0, &count) == 0);
    }
    send = open_send(&b.p1, ROOM);
    recv = open_recv(&b);
    if (!is_open_first) {
        assert_int_equal(bt_kv_poll(b.d.agent, recv), BT_KV_BOOTSTRAPPING);
        tell_sender(&b, &b.p1, ROOM);
        until_told(&b, &b.p1, ROOM, BT_KV_BOOTSTRAPPING);
        tell_receiver(&b, &b.p1, 5000);
    }
    until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    send_pages(&b.p1, send, 0, 4, false);
    until(&b, &b.d, recv, BT_KV_TRANSFERRING);
    send_pages(&b.p1, send, 4, 4, true);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    until(&b, &b.p1, send, BT_KV_SUCCESS);
    assert_int_equal(bt_kv_room_release(b.d.agent, recv), 1); /* before it was told, perhaps */
    assert_int_equal(bt_kv_room_release(b.p1.agent, send), 1);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    until_told(&b, &b.p1, ROOM, BT_KV_SUCCESS);
    check_pages(&b, &b.p1);
    assert_string_equal(fake_states(&b.fake, "prefill", ROOM), "1234");
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "1234");
    const fake_report_t *last = fake_last(&b.fake, "decode", ROOM);
    assert_int_equal(last->room.side, BT_KV_SIDE_RECEIVER);
    assert_int_equal(last->room.bytes, 8 * RIG_BUFFERS * RIG_PAGE_BYTES + RIG_AUX_BYTES);
    assert_int_equal(last->room.pages, 8 * RIG_BUFFERS);
    assert_int_equal(last->room.pages_wanted, 8 * RIG_BUFFERS);
    assert_int_equal(last->room.kind, b.d.config.backends);
    assert_int_equal(last->room.rc, 0);
    assert_string_equal(last->reason, "");
    last = fake_last(&b.fake, "prefill", ROOM);
    assert_int_equal(last->room.side, BT_KV_SIDE_SENDER);
    assert_int_equal(last->room.pages_wanted, 8 * RIG_BUFFERS);
    bench_close(&b);
}

static void test_open_before_the_engine(void **state)
{
    goes_well(NULL, true);
    goes_well(&by_hand, true);
}

static void test_open_after_the_engine(void **state)
{
    goes_well(NULL, false);
    goes_well(&by_hand, false);
}

/* Progress comes with heartbeats while nothing else changes. */
static void test_progress_is_told(void **state)
{
    bench_t b;

    bench_open(&b, NULL, NULL);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 0);
    bt_kv_room_t send = open_send(&b.p1, ROOM);
    open_recv(&b);
    until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    for (uint32_t i = 0; i < 4; i++) {
        send_pages(&b.p1, send, i, 1, false);
        FAKE_WAIT(&b.fake, fake_last(&b.fake, "decode", ROOM)->room.bytes ==
                               (uint64_t) (i + 1) * RIG_BUFFERS * RIG_PAGE_BYTES);
        FAKE_WAIT(&b.fake, fake_last(&b.fake, "prefill", ROOM)->room.bytes ==
                               (uint64_t) (i + 1) * RIG_BUFFERS * RIG_PAGE_BYTES);
    }
    bench_close(&b);
}

static void test_rooms_of_nobody_are_not_told(void **state)
{
    bench_t b;
    rig_t rig;

    bench_open(&b, NULL, NULL);
    rig.from = b.p1;
    rig.to = b.d;
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    tell_receiver(&b, &b.p1, 0);
    open_recv(&b);
    until_told(&b, &b.d, ROOM, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(fake_count(&b.fake, "decode", 5), 0);
    assert_int_equal(fake_count(&b.fake, "prefill", 5), 0);
    bench_close(&b);
}

/* ---- sources ---- */
static void test_no_gateway_no_source(void **state)
{
    bench_t b;
    bt_kv_room_t room = 7;

    fake_open(&b.fake);
    rig_side_open(&b.d, "decode", &(bt_kv_config_t){.bootstrap_ms = 100}, 0, RIG_PAGE_BYTES,
                  RIG_PAGE_BYTES);
    assert_int_equal(try_recv(&b, &room), BT_E_INVAL);
    assert_int_equal(room, 7);
    fake_join(&b.fake, &b.d, 0, 1);
    room = open_recv(&b); /* and nobody ever opens it */
    until(&b, &b.d, room, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d, room), "waiting for a gateway to name the sender"));
    assert_int_equal(bt_kv_room_release(b.d.agent, room), 1);
    rig_side_close(&b.d);
    fake_close(&b.fake);
}

/* Two senders, one receiver: which part comes from which is the engine's to say; the gateway names them. */
static void test_another_number_of_ranks(void **state)
{
    bench_t b;
    bt_kv_peer_t peers[4];
    uint32_t count = 0;
    bt_kv_room_t recv, send[2];

    bench_open(&b, NULL, NULL);
    rig_side_t *both[] = {&b.p1, &b.p2};
    recv = open_recv(&b);
    fake_open_room(&b.fake, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, ROOM, ROOM, 5000,
                   both, 2);
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d, recv), "names 2 senders and this agent is rank 0 of 1"));
    until_released(&b, &b.d, recv);

    fake_open_room(&b.fake, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, 7, 7, 5000, both, 2);
    FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.d.agent, 7, peers, 4, &count) == 0);
    assert_int_equal(count, 2);
    bt_kv_source_t sources[2];
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(peers[i].rank, i);
        assert_int_equal(peers[i].port, bt_kv_agent_port(both[i]->agent));
        sources[i] = (bt_kv_source_t){.host = peers[i].host,
                                      .port = peers[i].port,
                                      .slice = {1, 1024, 1024, 512 * i, 512 * i, 512}};
        send[i] = open_send(both[i], 7);
        send_pages(both[i], send[i], 0, 8, true);
    }
    bt_kv_recv_t spec = {.room = 7,
                         .layout = b.d.layout,
                         .pages = to,
                         .page_count = 8,
                         .sources = sources,
                         .source_count = 2};
    assert_int_equal(bt_kv_recv_open(b.d.agent, &spec, &recv), 0);
    until_told(&b, &b.d, 7, BT_KV_SUCCESS);
    assert_string_equal(fake_states(&b.fake, "decode", 7), "1234");
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(rig_page(&b.d, 1, to[3]) + (size_t) 512 * i,
                            rig_page(both[i], 1, from[3]) + (size_t) 512 * i, 512);
    bench_close(&b);
}

static void test_the_source_of_the_own_rank(void **state)
{
    bench_t b;

    fake_open(&b.fake);
    rig_side_open(&b.p1, "prefill", NULL, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    rig_side_open(&b.p2, "prefill-2", NULL, 8, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    rig_side_open(&b.d, "decode", NULL, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    fake_join(&b.fake, &b.d, 1, 2);
    rig_side_t *both[] = {&b.p1, &b.p2};
    bt_kv_room_t recv = open_recv(&b);
    fake_open_room(&b.fake, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, ROOM, ROOM, 0, both,
                   2);
    bt_kv_room_t send = open_send(&b.p2, ROOM);
    send_pages(&b.p2, send, 0, 8, true);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    check_pages(&b, &b.p2);
    bench_close(&b);
}

/* ---- aborts ---- */
static void test_abort_before_the_engine(void **state)
{
    bench_t b;
    bt_kv_control_t marker;

    for (int has_open = 0; has_open < 2; has_open++) {
        bench_open(&b, NULL, NULL);
        if (has_open) {
            tell_sender(&b, &b.p1, ROOM);
            tell_receiver(&b, &b.p1, 5000);
        }
        fake_abort(&b.fake, "prefill", ROOM, "the client left");
        fake_abort(&b.fake, "decode", ROOM, "the client left");
        /* Later rooms are there: so is the abort. */
        tell_sender(&b, &b.p1, 77);
        uint32_t count;
        FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.p1.agent, 77, NULL, 0, &count) == 0);
        marker =
            (bt_kv_control_t){.type = BT_KV_CONTROL_OPEN,
                              .open = {.room = 77, .source_room = 77, .side = BT_KV_SIDE_RECEIVER}};
        fake_say(&b.fake, "decode", &marker);
        FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.d.agent, 77, NULL, 0, &count) == 0);
        bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
        assert_int_equal(bt_kv_poll(b.p1.agent, send), BT_KV_FAILED);
        assert_int_equal(bt_kv_poll(b.d.agent, recv), BT_KV_FAILED);
        assert_string_equal(rig_error(&b.d, recv), "aborted by the gateway: the client left");
        assert_int_equal(bt_kv_room_error(b.p1.agent, send, NULL, 0), BT_E_CANCELLED);
        assert_int_equal(bt_kv_room_release(b.d.agent, recv), 1);
        assert_int_equal(bt_kv_room_release(b.p1.agent, send), 1);
        until_told(&b, &b.d, ROOM, BT_KV_FAILED);
        until_told(&b, &b.p1, ROOM, BT_KV_FAILED);
        bench_close(&b);
    }
}

/* phase 0: the receiver waits for its announcement to be answered; 1: half of the pages are there. */
static void test_abort_of_an_open_room(void **state)
{
    bench_t b;

    for (int phase = 0; phase < 2; phase++) {
        bench_open(&b, NULL, NULL);
        tell_sender(&b, &b.p1, ROOM);
        tell_receiver(&b, &b.p1, 5000);
        bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
        until(&b, &b.p1, send, BT_KV_WAITING_FOR_INPUT);
        if (phase == 1) {
            send_pages(&b.p1, send, 0, 4, false);
            until(&b, &b.d, recv, BT_KV_TRANSFERRING);
        }
        fake_abort(&b.fake, "decode", ROOM, "the client\nleft");
        until_told(&b, &b.d, ROOM, BT_KV_FAILED);
        until_told(&b, &b.p1, ROOM, BT_KV_FAILED); /* the agents tell each other */
        assert_string_equal(rig_error(&b.d, recv), "aborted by the gateway: the client?left");
        assert_string_equal(fake_last(&b.fake, "decode", ROOM)->reason,
                            "aborted by the gateway: the client?left");
        assert_null(strchr(fake_states(&b.fake, "decode", ROOM), 'o'));
        until_released(&b, &b.d, recv);
        until_released(&b, &b.p1, send);
        bench_close(&b);
    }
}

static void test_the_engine_never_opens_it(void **state)
{
    bench_t b;
    bt_kv_control_t m = {
        .type = BT_KV_CONTROL_OPEN,
        .open = {.room = ROOM, .source_room = ROOM, .side = BT_KV_SIDE_SENDER, .expire_ms = 50}};

    bench_open(&b, NULL, NULL);
    fake_say(&b.fake, "prefill", &m);
    until_told(&b, &b.p1, ROOM, BT_KV_FAILED);
    assert_int_equal(fake_last(&b.fake, "prefill", ROOM)->room.rc, BT_E_FIRST_BYTE_TIMEOUT);
    assert_non_null(strstr(fake_last(&b.fake, "prefill", ROOM)->reason, "has not opened"));
    bench_close(&b);
}

/* ---- orphans ---- */
/* How its sender goes: its agent closes, its engine aborts, its process stops. */
enum loss { CLOSES, ABORTS, STOPS };

static void repaired(enum loss loss, const bt_kv_config_t *config, bool is_announced)
{
    bench_t b;
    const bt_kv_config_t stopped = {.progress = BT_KV_PROGRESS_CALLER};
    bt_kv_config_t mine = config != NULL ? *config : (bt_kv_config_t){0};

    if (loss == STOPS) {
        mine.heartbeat_ms = 30;
        mine.dead_ms = 150;
        mine.release_ms = 200; /* shm: nothing else tells that it is out of our pages */
    }
    bench_open(&b, &mine, loss == STOPS ? &stopped : NULL);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
    if (is_announced)
        until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    if (loss == CLOSES)
        rig_side_close(&b.p1);
    else if (loss == ABORTS)
        assert_int_equal(bt_kv_abort(b.p1.agent, send, "out of memory"), 0);
    else
        b.fake.sides[0] = NULL; /* no turn any more */
    until_orphan(&b);
    const fake_report_t *orphan = fake_last(&b.fake, "decode", ROOM);
    assert_int_not_equal(orphan->room.rc, 0);
    assert_true(strlen(orphan->reason) > 0);
    enum bt_kv_state before = bt_kv_poll(b.d.agent, recv);
    assert_in_range(before, BT_KV_BOOTSTRAPPING, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(bt_kv_room_error(b.d.agent, recv, NULL, 0), 0);

    tell_sender(&b, &b.p2, ROOM_2);
    bt_kv_room_t send2 = open_send(&b.p2, ROOM_2);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    until_told(&b, &b.p2, ROOM_2, BT_KV_WAITING_FOR_INPUT);
    assert_false(fake_last(&b.fake, "decode", ROOM)->room.is_orphan);
    send_pages(&b.p2, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    until_told(&b, &b.p2, ROOM_2, BT_KV_SUCCESS);
    check_pages(&b, &b.p2);
    const char *states = fake_states(&b.fake, "decode", ROOM);
    if (is_announced)
        assert_string_equal(states, "12o234");
    until_released(&b, &b.d, recv);
    until_released(&b, &b.p2, send2);
    bench_close(&b);
}

static void test_repaired_after_its_sender_closed(void **state)
{
    repaired(CLOSES, NULL, true);
    repaired(CLOSES, &by_hand, true);
    repaired(CLOSES, NULL, false);
}

static void test_repaired_after_its_sender_aborted(void **state)
{
    repaired(ABORTS, NULL, true);
    repaired(ABORTS, &by_hand, true);
    repaired(ABORTS, NULL, false);
}

static void test_repaired_after_its_sender_stopped(void **state)
{
    repaired(STOPS, NULL, true);
    repaired(STOPS, &by_hand, true);
}

/* Nobody listens at the sender's address. */
static void test_repaired_after_no_connection(void **state)
{
    bench_t b;
    rig_side_t nobody;

    bench_open(&b, NULL, NULL);
    rig_side_open(&nobody, "nobody", NULL, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    bt_kv_control_t open = {
        .type = BT_KV_CONTROL_OPEN,
        .open = {.room = ROOM,
                 .source_room = ROOM,
                 .side = BT_KV_SIDE_RECEIVER,
                 .repair_ms = 15000,
                 .peers = {{0, BT_STR("127.0.0.1"), bt_kv_agent_port(nobody.agent)}},
                 .peer_count = 1}};
    rig_side_close(&nobody);
    fake_say(&b.fake, "decode", &open);
    bt_kv_room_t recv = open_recv(&b);
    until_orphan(&b);
    assert_int_equal(bt_kv_poll(b.d.agent, recv), BT_KV_BOOTSTRAPPING);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    bt_kv_room_t send2 = open_send(&b.p2, ROOM_2);
    send_pages(&b.p2, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "1o1234");
    check_pages(&b, &b.p2);
    bench_close(&b);
}

static void orphaned(bench_t *b, uint32_t repair_ms, bt_kv_room_t *recv_p)
{
    bench_open(b, NULL, NULL);
    tell_sender(b, &b->p1, ROOM);
    tell_receiver(b, &b->p1, repair_ms);
    bt_kv_room_t send = open_send(&b->p1, ROOM);
    *recv_p = open_recv(b);
    until_told(b, &b->p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    until_told(b, &b->d, ROOM, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(bt_kv_abort(b->p1.agent, send, "out of memory"), 0);
}

static void test_no_other_sender_comes(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 100, &recv);
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "12o0");
    const char *reason = fake_last(&b.fake, "decode", ROOM)->reason;
    assert_non_null(strstr(reason, "aborted: out of memory; no other sender within 100 ms"));
    assert_string_equal(rig_error(&b.d, recv), reason);
    assert_int_equal(fake_last(&b.fake, "decode", ROOM)->room.rc, BT_E_CANCELLED);
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

/* An orphan's own deadline goes on counting. */
static void test_an_orphan_is_not_for_ever(void **state)
{
    bench_t b;

    bench_open(&b, &(bt_kv_config_t){.bootstrap_ms = 400}, NULL);
    tell_receiver(&b, &b.p1, 600000);
    bt_kv_room_t recv = open_recv(&b);
    until_told(&b, &b.d, ROOM, BT_KV_WAITING_FOR_INPUT);
    rig_side_close(&b.p1);
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "12o0");
    assert_non_null(strstr(rig_error(&b.d, recv), "timed out after 400 ms in WaitingForInput"));
    assert_int_equal(bt_kv_room_release(b.d.agent, recv), 1);
    bench_close(&b);
}

static void test_no_repair_is_wanted(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 0, &recv);
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "120");
    bench_close(&b);
}

static void test_abort_of_an_orphan(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 15000, &recv);
    until_orphan(&b);
    fake_abort(&b.fake, "decode", ROOM, "no prefill left");
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_string_equal(rig_error(&b.d, recv), "aborted by the gateway: no prefill left");
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

static void test_the_gateway_is_lost_while_it_waits(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 300, &recv);
    until_orphan(&b);
    fake_die(&b.fake);
    until(&b, &b.d, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d, recv), "aborted: out of memory"));
    bench_close(&b);
}

/* Another process at the gateway's port knows nothing of the orphan, so nobody would repair it. */
static void test_another_gateway_comes_while_it_waits(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 600000, &recv);
    until_orphan(&b);
    fake_die(&b.fake);
    fake_live(&b.fake, 2);
    until(&b, &b.d, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.d, recv), "aborted: out of memory"));
    bench_close(&b);
}

/* A gateway that was away for a moment repairs what it hears of when it is back. */
static void test_repaired_after_the_gateway_came_back(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 15000, &recv);
    until_orphan(&b);
    fake_die(&b.fake);
    b.fake.report_count = 0;
    fake_live(&b.fake, 1);
    until_orphan(&b);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    bt_kv_room_t send2 = open_send(&b.p2, ROOM_2);
    send_pages(&b.p2, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    check_pages(&b, &b.p2);
    bench_close(&b);
}

/* The second sender may be the first agent again, under another room: its tag is the same, so it waits for the old end. */
static void test_repaired_by_the_same_agent(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 15000, &recv);
    until_orphan(&b);
    tell_source(&b, &b.p1, ROOM_2, 15000);
    bt_kv_room_t send2 = open_send(&b.p1, ROOM_2);
    send_pages(&b.p1, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    check_pages(&b, &b.p1);
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

/* And again, and again: every sender gives up in turn, at two agents. */
static void test_repaired_many_times(void **state)
{
    bench_t b;
    bt_kv_room_t recv;

    orphaned(&b, 15000, &recv);
    for (uint64_t i = 0; i < 6; i++) {
        rig_side_t *p = i % 3 == 0 ? &b.p1 : &b.p2;
        until_orphan(&b);
        bt_kv_room_t send = open_send(p, 2000 + i);
        tell_source(&b, p, 2000 + i, 15000);
        until(&b, p, send, BT_KV_WAITING_FOR_INPUT);
        FAKE_WAIT(&b.fake, !fake_last(&b.fake, "decode", ROOM)->room.is_orphan);
        if (i < 5) {
            assert_int_equal(bt_kv_abort(p->agent, send, "not I"), 0);
            continue;
        }
        send_pages(p, send, 0, 8, true);
        until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
        check_pages(&b, p);
    }
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

/* ---- a sender that is replaced while it is well ---- */
/* Only the receiver's own code writes its pages: nobody is waited for. */
static bool is_pulled(const bench_t *b)
{
    return b->d.config.backends == BT_KV_SHM;
}

static void test_replaced_and_released_when_the_old_one_is_quiet(void **state)
{
    bench_t b;

    bench_open(&b, NULL, &by_hand);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
    until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    rig_side_t *p1 = b.fake.sides[0];
    b.fake.sides[0] = NULL; /* from here on it does nothing, but its link lives */
    bt_kv_room_t send2 = open_send(&b.p2, ROOM_2);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    until(&b, &b.p2, send2, BT_KV_WAITING_FOR_INPUT);
    /* What the old one still sends, not knowing, goes nowhere, and breaks nothing. */
    send_pages(&b.p1, send, 0, 4, false);
    send_pages(&b.p1, send, 4, 4, true);
    uint32_t pings = fake_find(&b.fake, "decode")->pings;
    FAKE_WAIT(&b.fake, fake_find(&b.fake, "decode")->pings > pings + 1);
    send_pages(&b.p2, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    check_pages(&b, &b.p2);
    if (is_pulled(&b)) {
        until_released(&b, &b.d, recv);
    } else {
        assert_int_equal(bt_kv_room_release(b.d.agent, recv), 0);
        assert_int_equal(bt_kv_poll(b.d.agent, recv), BT_KV_SUCCESS);
    }
    b.fake.sides[0] = p1; /* it hears that it was replaced, and confirms */
    until_released(&b, &b.d, recv);
    until_told(&b, &b.p1, ROOM, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&b.p1, send), "the gateway has found another sender"));
    check_pages(&b, &b.p2);
    bt_kv_agent_stats_t stats;
    bt_kv_agent_stats(b.d.agent, &stats);
    assert_int_equal(stats.refused_frames, 0);
    assert_int_equal(stats.links_lost, 0);
    bench_close(&b);
}

/* The same agent is named again while its first room is still well: the second announcement waits until the first end is quiet. */
static void test_replaced_by_another_room_of_the_same_agent(void **state)
{
    bench_t b;

    bench_open(&b, NULL, &by_hand);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    open_send(&b.p1, ROOM);
    open_recv(&b);
    until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    rig_side_t *p1 = b.fake.sides[0];
    b.fake.sides[0] = NULL;
    uint32_t told = fake_count(&b.fake, "decode", ROOM);
    tell_source(&b, &b.p1, ROOM_2, 15000);
    FAKE_WAIT(&b.fake, fake_count(&b.fake, "decode", ROOM) > told);
    b.fake.sides[0] = p1;
    bt_kv_room_t send2 = open_send(&b.p1, ROOM_2);
    send_pages(&b.p1, send2, 0, 8, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "1234");
    check_pages(&b, &b.p1);
    bench_close(&b);
}

/* The old one never comes back: release_ms bounds the wait. */
static void test_replaced_and_released_by_time(void **state)
{
    bench_t b;

    bench_open(&b, &(bt_kv_config_t){.release_ms = 100}, &by_hand);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    open_send(&b.p1, ROOM);
    bt_kv_room_t recv = open_recv(&b);
    until_told(&b, &b.p1, ROOM, BT_KV_WAITING_FOR_INPUT);
    b.fake.sides[0] = NULL;
    bt_kv_room_t send2 = open_send(&b.p2, ROOM_2);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    send_pages(&b.p2, send2, 0, 8, true);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    if (!is_pulled(&b))
        assert_int_equal(bt_kv_room_release(b.d.agent, recv), 0);
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

static void test_a_source_before_the_engine(void **state)
{
    bench_t b;

    bench_open(&b, NULL, NULL);
    tell_receiver(&b, &b.p1, 15000);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    uint32_t count;
    bt_kv_peer_t peer = {.port = 0};
    FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.d.agent, ROOM, &peer, 1, &count) == 0 &&
                           peer.port == bt_kv_agent_port(b.p2.agent));
    bt_kv_room_t recv = open_recv(&b), send2 = open_send(&b.p2, ROOM_2);
    send_pages(&b.p2, send2, 0, 8, true);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    check_pages(&b, &b.p2);
    bench_close(&b);
}

/* Bytes have moved: the room stays with its sender, and its state is told once more. */
static void test_a_source_that_comes_too_late(void **state)
{
    bench_t b;

    bench_open(&b, NULL, NULL);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
    send_pages(&b.p1, send, 0, 4, false);
    until_told(&b, &b.d, ROOM, BT_KV_TRANSFERRING);
    FAKE_WAIT(&b.fake,
              fake_last(&b.fake, "decode", ROOM)->room.bytes == 4 * RIG_BUFFERS * RIG_PAGE_BYTES);
    uint32_t told = fake_count(&b.fake, "decode", ROOM);
    tell_source(&b, &b.p2, ROOM_2, 15000);
    FAKE_WAIT(&b.fake, fake_count(&b.fake, "decode", ROOM) > told);
    send_pages(&b.p1, send, 4, 4, true);
    until_told(&b, &b.d, ROOM, BT_KV_SUCCESS);
    check_pages(&b, &b.p1);
    told = fake_count(&b.fake, "decode", ROOM);
    assert_int_equal(bt_kv_room_release(b.d.agent, recv), 1);
    tell_source(&b, &b.p2, ROOM_2, 15000); /* ended, and released */
    FAKE_WAIT(&b.fake, fake_count(&b.fake, "decode", ROOM) > told);
    assert_true(fake_is_last(&b.fake, "decode", ROOM, BT_KV_SUCCESS));
    bench_close(&b);
}

/* The first byte was there: the room fails as ever. */
static void test_lost_after_the_first_byte(void **state)
{
    bench_t b;

    bench_open(&b, NULL, NULL);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
    send_pages(&b.p1, send, 0, 4, false);
    until_told(&b, &b.d, ROOM, BT_KV_TRANSFERRING);
    rig_side_close(&b.p1);
    until_told(&b, &b.d, ROOM, BT_KV_FAILED);
    assert_string_equal(fake_states(&b.fake, "decode", ROOM), "1230");
    until_released(&b, &b.d, recv);
    bench_close(&b);
}

/* Two gateways before the same workers: neither ends the other's rooms. */
static void test_an_abort_of_another_gateways_room(void **state)
{
    bench_t b;
    fake_t second;
    uint32_t count = 0;

    bench_open(&b, NULL, NULL);
    fake_open(&second);
    fake_join(&second, &b.d, 0, 1);
    tell_sender(&b, &b.p1, ROOM);
    tell_receiver(&b, &b.p1, 15000);
    FAKE_WAIT(&b.fake, bt_kv_gateway_peers(b.d.agent, ROOM, NULL, 0, &count) == 0); /* before: */
    fake_abort(&second, "decode", ROOM, "not mine");
    rig_side_t *peers[] = {&b.p1};
    fake_open_room(&second, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, 7, 7, 0, peers, 1);
    FAKE_WAIT(&second, bt_kv_gateway_peers(b.d.agent, 7, NULL, 0, &count) == 0); /* it was read */
    bt_kv_room_t send = open_send(&b.p1, ROOM), recv = open_recv(&b);
    until_told(&b, &b.d, ROOM, BT_KV_WAITING_FOR_INPUT);
    fake_abort(&second, "decode", ROOM, "not mine");
    fake_open_room(&second, BT_KV_CONTROL_OPEN, "decode", BT_KV_SIDE_RECEIVER, 8, 8, 0, peers, 1);
    FAKE_WAIT(&second, bt_kv_gateway_peers(b.d.agent, 8, NULL, 0, &count) == 0);
    send_pages(&b.p1, send, 0, 8, true);
    until(&b, &b.d, recv, BT_KV_SUCCESS);
    assert_int_equal(fake_count(&second, "decode", ROOM), 0);
    bench_close(&b);
    fake_close(&second);
}

static int run(const char *name, uint32_t backends)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_before_the_engine),
        cmocka_unit_test(test_open_after_the_engine),
        cmocka_unit_test(test_progress_is_told),
        cmocka_unit_test(test_rooms_of_nobody_are_not_told),
        cmocka_unit_test(test_no_gateway_no_source),
        cmocka_unit_test(test_another_number_of_ranks),
        cmocka_unit_test(test_the_source_of_the_own_rank),
        cmocka_unit_test(test_abort_before_the_engine),
        cmocka_unit_test(test_abort_of_an_open_room),
        cmocka_unit_test(test_the_engine_never_opens_it),
        cmocka_unit_test(test_repaired_after_its_sender_closed),
        cmocka_unit_test(test_repaired_after_its_sender_aborted),
        cmocka_unit_test(test_repaired_after_its_sender_stopped),
        cmocka_unit_test(test_repaired_after_no_connection),
        cmocka_unit_test(test_no_other_sender_comes),
        cmocka_unit_test(test_an_orphan_is_not_for_ever),
        cmocka_unit_test(test_no_repair_is_wanted),
        cmocka_unit_test(test_abort_of_an_orphan),
        cmocka_unit_test(test_the_gateway_is_lost_while_it_waits),
        cmocka_unit_test(test_another_gateway_comes_while_it_waits),
        cmocka_unit_test(test_repaired_after_the_gateway_came_back),
        cmocka_unit_test(test_repaired_by_the_same_agent),
        cmocka_unit_test(test_repaired_many_times),
        cmocka_unit_test(test_replaced_and_released_when_the_old_one_is_quiet),
        cmocka_unit_test(test_replaced_by_another_room_of_the_same_agent),
        cmocka_unit_test(test_replaced_and_released_by_time),
        cmocka_unit_test(test_a_source_before_the_engine),
        cmocka_unit_test(test_a_source_that_comes_too_late),
        cmocka_unit_test(test_lost_after_the_first_byte),
        cmocka_unit_test(test_an_abort_of_another_gateways_room),
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
