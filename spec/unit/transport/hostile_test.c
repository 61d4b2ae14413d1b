/* A peer that breaks the rules, or says nothing: raw sockets that speak just enough of the protocol. Whatever it does, the agent says why, closes that
 * link, and goes on serving others.
 */
#include "raw_peer.h"

#include "transport/agent/agent.h"
#include "transport/control/link.h"

static const uint32_t to[4] = {9, 3, 4, 5};

/* A healthy pair still works. */
static void check_service(rig_t *rig, uint64_t id)
{
    bt_kv_room_t recv = rig_recv(rig, id, to, 4, 0, false);
    bt_kv_room_t send = rig_send_open(rig, id, 1);

    assert_int_equal(rig_send(rig, send, 0, to, 4, true, false), 0);
    rig_wait(&rig->to, &rig->from, recv, BT_KV_SUCCESS);
    rig_wait(&rig->from, &rig->to, send, BT_KV_SUCCESS);
    rig_release(&rig->to, &rig->from, recv);
    rig_release(&rig->from, &rig->to, send);
}

/* ---- what a receiver may not say ---- */
static void put_memory(raw_t *raw)
{
    bt_kv_buffer_t buffers[RIG_BUFFERS];

    for (uint32_t i = 0; i < RIG_BUFFERS; i++)
        buffers[i] =
            (bt_kv_buffer_t){1, i * RIG_PAGES * RIG_PAGE_BYTES, RIG_PAGE_BYTES, RIG_PAGE_BYTES};
    bt_kv_put_region(&raw->out, &(bt_kv_region_frame_t){.id = 1, .size = 1 << 20});
    bt_kv_put_layout(&raw->out, 1, buffers, RIG_BUFFERS, RIG_PAGES);
}

static void put_announce(raw_t *raw, uint64_t tag, uint64_t room, uint32_t layout, uint32_t page)
{
    bt_kv_announce_t a = {.tag = tag, .room = room, .layout = layout, .page_count = 1};
    bt_kv_put_announce(&raw->out, &a, &page);
}

static void garbage(raw_t *raw)
{
    bt_kv_put(&raw->out, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
}

static void huge(raw_t *raw)
{
    uint8_t head[8] = {0xff, 0xff, 0xff, 0x7f, BT_KV_ANNOUNCE};
    bt_kv_put(&raw->out, head, 8);
}

static void huge_count(raw_t *raw)
{
    put_memory(raw);
    size_t at = raw->out.n;
    put_announce(raw, 1, 5, 1, 1);
    memset(raw->out.p + at + raw->out.n - at - 8, 0x7f, 4); /* page_count */
}

static void unknown_type(raw_t *raw)
{
    uint8_t head[8] = {0, 0, 0, 0, 99};
    bt_kv_put(&raw->out, head, 8);
}

static void page_outside(raw_t *raw)
{
    put_memory(raw);
    put_announce(raw, 1, 5, 1, RIG_PAGES);
}

static void unknown_layout(raw_t *raw)
{
    put_announce(raw, 1, 5, 1, 1);
}

static void announce_twice(raw_t *raw)
{
    put_memory(raw);
    put_announce(raw, 1, 5, 1, 1);
    put_announce(raw, 1, 6, 1, 1);
}

static void slice_outside(raw_t *raw)
{
    uint32_t page = 1;
    bt_kv_announce_t a = {.tag = 1, .room = 5, .layout = 1, .page_count = 1};

    a.slice = (bt_kv_slice_t){8, 64, 128, 0, 100, 64};
    put_memory(raw);
    bt_kv_put_announce(&raw->out, &a, &page);
}

static void piece_outside(raw_t *raw)
{
    uint32_t page = 1;
    bt_kv_announce_t a = {.tag = 1, .room = 5, .layout = 1, .page_count = 1, .piece_count = 1};

    a.pieces[0] = (bt_kv_piece_t){1, (1 << 20) - 10, 11};
    put_memory(raw);
    bt_kv_put_announce(&raw->out, &a, &page);
}

static void layout_outside(raw_t *raw)
{
    bt_kv_buffer_t buffer = {1, UINT64_MAX - 5, 64, 64};

    bt_kv_put_region(&raw->out, &(bt_kv_region_frame_t){.id = 1, .size = 4096});
    bt_kv_put_layout(&raw->out, 1, &buffer, 1, 8);
}

static void done_for_nothing(raw_t *raw)
{
    bt_kv_put_room(&raw->out, BT_KV_DONE, 1234, 0, BT_STR_NULL);
}

static void done_too_early(raw_t *raw)
{
    put_memory(raw);
    put_announce(raw, 1, 700, 1, 1); /* the test has opened room 700 */
    bt_kv_put_room(&raw->out, BT_KV_DONE, 1, 0, BT_STR_NULL);
}

static void ack_without_abort(raw_t *raw)
{
    put_memory(raw);
    put_announce(raw, 1, 700, 1, 1);
    bt_kv_put_room(&raw->out, BT_KV_ABORT_ACK, 1, 0, BT_STR_NULL);
}

static void hello_twice(raw_t *raw)
{
    bt_kv_put_hello(&raw->out, &(bt_kv_hello_t){.version = BT_KV_VERSION});
}

static void path_rubbish(raw_t *raw)
{
    bt_kv_put_blob(&raw->out, BT_KV_PATH, BT_KV_MEM, BT_STR("12345678"));
}

static void test_receivers_against_the_rules(void **state)
{
    static const struct {
        void (*put)(raw_t *raw);
        const char *why;
        bool is_before_hello;
    } cases[] = {
        {garbage, "no frame at all", true},
        {done_for_nothing, "before its hello", true},
        {garbage, "no frame at all", false},
        {huge, "too long", false},
        {huge_count, "a malformed frame", false},
        {unknown_type, "unknown type", false},
        {page_outside, "pages outside its layout", false},
        {unknown_layout, "unknown layout", false},
        {announce_twice, "an announcement twice", false},
        {slice_outside, "a slice outside", false},
        {piece_outside, "a piece outside", false},
        {layout_outside, "beyond their region", false},
        {done_for_nothing, "a DONE that nobody", false},
        {done_too_early, "DONE before it had everything", false},
        {ack_without_abort, "an abort that was not", false},
        {hello_twice, "a second hello", false},
        {path_rubbish, "does not understand", false},
    };
    static raw_t raw;
    rig_t rig;
    bt_kv_agent_stats_t stats;

    rig_open(&rig, NULL);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        bool is_counted = cases[i].put != path_rubbish; /* the back end's own affair */
        bt_kv_agent_stats(rig.from.agent, &stats);
        uint64_t before = stats.refused_frames;
        bt_kv_room_t room = rig_send_open(&rig, 700, 1);
        raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
        if (!cases[i].is_before_hello)
            raw_hello(&raw, rig.from.agent);
        cases[i].put(&raw);
        raw_flush(&raw);
        raw_read_refusal(&raw, cases[i].why);
        raw_close(&raw);
        bt_kv_agent_stats(rig.from.agent, &stats);
        assert_int_equal(stats.refused_frames, before + is_counted);
        rig_release(&rig.from, &rig.to, room);
        check_service(&rig, 1000 + i);
    }
    rig_close(&rig);
}

static void test_skippable_frames_are_skipped(void **state)
{
    static raw_t raw;
    uint8_t head[8] = {0, 0, 0, 0, 99, BT_KV_FRAME_SKIP};
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t room = rig_send_open(&rig, 700, 1);
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    bt_kv_put(&raw.out, head, 8);
    bt_kv_put_ping(&raw.out, 1, 2);
    put_memory(&raw);
    put_announce(&raw, 1, 700, 1, 1);
    raw_flush(&raw);
    rig_wait(&rig.from, NULL, room, BT_KV_WAITING_FOR_INPUT);
    /* An abort of a room that is gone is answered, its acknowledgement is not. */
    bt_kv_put_room(&raw.out, BT_KV_ABORT, 999, BT_E_CANCELLED, BT_STR("?"));
    raw_flush(&raw);
    assert_int_equal(raw_read_type(&raw, BT_KV_ABORT_ACK).room.tag, 999);
    raw_close(&raw);
    rig_wait(&rig.from, NULL, room, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, room), "mallory"));
    rig_release(&rig.from, NULL, room);
    rig_close(&rig);
}

/* The receiver keeps its acknowledgement back: it may be reading our pages. */
static void test_a_senders_release_waits_for_the_receiver(void **state)
{
    static raw_t raw;
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t room = rig_send_open(&rig, 700, 1);
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    put_memory(&raw);
    put_announce(&raw, 1, 700, 1, 1);
    raw_flush(&raw);
    rig_wait(&rig.from, NULL, room, BT_KV_WAITING_FOR_INPUT);
    bt_kv_abort(rig.from.agent, room, "test");
    assert_int_equal(raw_read_type(&raw, BT_KV_ABORT).room.tag, 1);
    assert_int_equal(raw_read_type(&raw, BT_KV_ABORT_ACK).room.tag,
                     1); /* its own side is drained */
    for (int i = 0; i < 200; i++) {
        assert_int_equal(bt_kv_room_release(rig.from.agent, room), 0);
        rig_turn(&rig.from, NULL);
    }
    bt_kv_put_room(&raw.out, BT_KV_ABORT_ACK, 1, 0, BT_STR_NULL);
    raw_flush(&raw);
    rig_release(&rig.from, NULL, room);
    raw_close(&raw);
    rig_close(&rig);
}

/* One of two senders has been asked for its pages, the other has not said hello yet: the room
 * does not wait for input before both know of it. */
static void test_a_room_waits_until_all_senders_know(void **state)
{
    static raw_t raw;
    rig_t rig;
    uint16_t port;
    int listener = raw_listen(NULL, &port);

    rig_open(&rig, NULL);
    bt_kv_source_t sources[2] = {{.host = "127.0.0.1", .port = bt_kv_agent_port(rig.from.agent)},
                                 {.host = "127.0.0.1", .port = port}};
    bt_kv_recv_t spec = {.room = 5,
                         .layout = rig.to.layout,
                         .pages = to,
                         .page_count = 4,
                         .sources = sources,
                         .source_count = 2};
    bt_kv_room_t recv, send = rig_send_open(&rig, 5, 1);
    assert_int_equal(bt_kv_recv_open(rig.to.agent, &spec, &recv), 0);
    raw_accept(&raw, listener);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(bt_kv_poll(rig.to.agent, recv), BT_KV_BOOTSTRAPPING);
    raw_close(&raw);
    rig_wait(&rig.to, NULL, recv, BT_KV_FAILED);
    close(listener);
    rig_close(&rig);
}

static void test_versions_are_refused_by_name(void **state)
{
    static raw_t raw;
    rig_t rig;

    rig_open(&rig, NULL);
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    bt_kv_put_hello(&raw.out, &(bt_kv_hello_t){.version = 9, .name = BT_STR("mallory")});
    raw_flush(&raw);
    raw_read_refusal(&raw, "speaks version 9 of the interface, this agent 1");
    raw_close(&raw);
    rig_close(&rig);
}

/* ---- what a sender may not say, and silence ---- */
static bt_kv_room_t recv_from(rig_t *rig, uint64_t id, uint16_t port)
{
    bt_kv_room_t room;
    bt_kv_source_t source = {.host = "127.0.0.1", .port = port};
    bt_kv_recv_t spec = {.room = id,
                         .layout = rig->to.layout,
                         .pages = to,
                         .page_count = 4,
                         .sources = &source,
                         .source_count = 1};

    assert_int_equal(bt_kv_recv_open(rig->to.agent, &spec, &room), 0);
    return room;
}

static void test_a_silent_peer_is_given_up(void **state)
{
    static raw_t raw;
    rig_t rig;
    uint16_t port;
    bt_kv_agent_stats_t stats;

    rig_open(&rig, &(bt_kv_config_t){.heartbeat_ms = 20, .dead_ms = 150});
    int listener = raw_listen(NULL, &port);
    bt_kv_room_t recv = recv_from(&rig, 5, port);
    raw_accept(&raw, listener);
    raw_hello(&raw, rig.to.agent);
    rig_wait(&rig.to, NULL, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv), "no sign of life from mallory"));
    rig_release(&rig.to, NULL, recv);
    raw_read_type(&raw, BT_KV_PING); /* ours did not stop */
    bt_kv_agent_stats(rig.to.agent, &stats);
    assert_true(stats.heartbeats_missed > 0);
    assert_int_equal(stats.links_lost, 1);
    raw_close(&raw);
    /* One that does not even say hello. */
    recv = recv_from(&rig, 6, port);
    rig_wait(&rig.to, NULL, recv, BT_KV_FAILED);
    rig_release(&rig.to, NULL, recv);
    close(listener);
    rig_close(&rig);
}

static void test_quiet_links_are_kept_alive(void **state)
{
    rig_t rig;
    bt_kv_agent_stats_t stats;

    rig_open(&rig, &(bt_kv_config_t){.heartbeat_ms = 20, .dead_ms = 1000, .bootstrap_ms = 1500});
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 4, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED); /* of its own timeout, not of silence */
    assert_non_null(strstr(rig_error(&rig.to, recv), "in WaitingForInput"));
    bt_kv_agent_stats(rig.to.agent, &stats);
    assert_int_equal(stats.links_lost, 0);
    rig_release(&rig.to, &rig.from, recv);
    rig_release(&rig.from, &rig.to, send);
    rig_close(&rig);
}

/* Whoever says nothing has a place only until others want it: not all of those for peers, and not all of the process's descriptors. */
static void test_many_that_say_nothing(void **state)
{
    enum { MANY = 400 };
    static raw_t quiet[MANY], raw;
    rig_t rig;

    rig_open(&rig, NULL);
    for (unsigned i = 0; i < MANY; i++)
        raw_dial(&quiet[i], NULL, bt_kv_agent_port(rig.from.agent));
    /* The first ones made way; the last one is heard. */
    raw_read_refusal(&quiet[0], "too many connections that have not said hello");
    raw_hello(&quiet[MANY - 1], rig.from.agent);
    raw_read_type(&quiet[MANY - 1], BT_KV_HELLO);
    bt_kv_enter(rig.from.agent);
    assert_true(rig.from.agent->link_count < MANY);
    bt_kv_leave(rig.from.agent);
    check_service(&rig, 1);
    for (unsigned i = 0; i < MANY; i++)
        raw_close(&quiet[i]);
    /* They count no more: as many again do not disturb one that is late with its hello. */
    raw_dial(&raw, NULL, bt_kv_agent_port(rig.from.agent));
    for (unsigned i = 0; i < 100; i++)
        raw_dial(&quiet[i], NULL, bt_kv_agent_port(rig.from.agent));
    raw_hello(&raw, rig.from.agent);
    raw_read_type(&raw, BT_KV_HELLO);
    for (unsigned i = 0; i < 100; i++)
        raw_close(&quiet[i]);
    raw_close(&raw);
    rig_close(&rig);
}

/* A room of the healthy link, aborted and acknowledged from another link by its tag: refused, and the room lives. */
static void test_the_tag_of_another_link(void **state)
{
    static raw_t raw;
    static const uint8_t types[] = {BT_KV_ABORT, BT_KV_ABORT_ACK, BT_KV_DONE};
    rig_t rig;
    uint16_t port;

    rig_open(&rig, NULL);
    int listener = raw_listen(NULL, &port);
    for (unsigned i = 0; i < sizeof(types); i++) {
        bt_kv_room_t good = rig_recv(&rig, 50 + i, to, 4, 0, false);
        rig_wait(&rig.to, &rig.from, good, BT_KV_WAITING_FOR_INPUT);
        bt_kv_room_t bad = recv_from(&rig, 80, port);
        raw_accept(&raw, listener);
        raw_hello(&raw, rig.to.agent);
        bt_kv_put_room(&raw.out, (enum bt_kv_frame_type) types[i], good, BT_E_STALL,
                       BT_STR("forged"));
        raw_flush(&raw);
        rig_wait(&rig.to, NULL, bad, BT_KV_FAILED);
        assert_non_null(strstr(rig_error(&rig.to, bad), "the tag of another link's room"));
        rig_release(&rig.to, NULL, bad);
        raw_close(&raw);
        assert_int_equal(bt_kv_poll(rig.to.agent, good), BT_KV_WAITING_FOR_INPUT);
        bt_kv_room_t send = rig_send_open(&rig, 50 + i, 1);
        assert_int_equal(rig_send(&rig, send, 0, to, 4, true, false), 0);
        rig_wait(&rig.to, &rig.from, good, BT_KV_SUCCESS);
        rig_release(&rig.to, &rig.from, good);
        rig_release(&rig.from, &rig.to, send);
    }
    close(listener);
    rig_close(&rig);
}

/* Notes that no honest sender sends, handed over as a back end would. */
static void test_forged_notes(void **state)
{
    static const bt_kv_note_t notes[] = {
        {.first = 4, .page_count = 1, .buffer_count = 1},
        {.first = UINT32_MAX, .page_count = 2, .buffer_count = 1},
        {.page_count = UINT32_MAX, .buffer_count = 1},
        {.page_count = 1, .buffer_first = RIG_BUFFERS, .buffer_count = 1},
        {.page_count = 1, .buffer_first = 1, .buffer_count = UINT32_MAX},
        {.page_count = 1, .buffer_count = 1, .pieces = 0x80},
    };
    rig_t rig;

    for (unsigned i = 0; i < sizeof(notes) / sizeof(*notes); i++) {
        uint8_t bytes[64];
        rig_open(&rig, NULL);
        bt_kv_room_t recv = rig_recv(&rig, 5, to, 4, 0, false);
        rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
        bt_kv_note_t note = notes[i];
        note.tag = recv;
        bt_kv_enter(rig.to.agent);
        bt_kv_link_t *link = bt_container_of(rig.to.agent->links.next, bt_kv_link_t, link);
        bt_kv_got_note(link->path, bytes, bt_kv_note_encode(&note, bytes));
        bt_kv_leave(rig.to.agent);
        rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
        assert_non_null(strstr(rig_error(&rig.to, recv), "sent a note"));
        rig_release(&rig.to, &rig.from, recv);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receivers_against_the_rules),
        cmocka_unit_test(test_skippable_frames_are_skipped),
        cmocka_unit_test(test_a_senders_release_waits_for_the_receiver),
        cmocka_unit_test(test_a_room_waits_until_all_senders_know),
        cmocka_unit_test(test_versions_are_refused_by_name),
        cmocka_unit_test(test_a_silent_peer_is_given_up),
        cmocka_unit_test(test_quiet_links_are_kept_alive),
        cmocka_unit_test(test_many_that_say_nothing),
        cmocka_unit_test(test_the_tag_of_another_link),
        cmocka_unit_test(test_forged_notes),
    };

    bt_kv_rig_use(&(bt_kv_suite_t){.backends = BT_KV_MEM});
    return cmocka_run_group_tests(tests, NULL, NULL);
}
