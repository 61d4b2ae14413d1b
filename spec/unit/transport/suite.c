/* What every back end does: the first half is what arrives, the second what happens when it does not. */
#include "suite.h"

#include <poll.h>
#include <unistd.h>

#define PAGES(...) ((const uint32_t[]){__VA_ARGS__})

static const uint32_t to[8] = {9, 3, 4, 5, 60, 61, 2, 40};
static const uint32_t from[8] = {1, 2, 3, 4, 30, 31, 63, 0};

static void both_succeed(rig_t *rig, bt_kv_room_t recv, bt_kv_room_t send)
{
    rig_wait(&rig->to, &rig->from, recv, BT_KV_SUCCESS);
    rig_wait(&rig->from, &rig->to, send, BT_KV_SUCCESS);
    assert_int_equal(bt_kv_room_release(rig->to.agent, recv), 1);
    assert_int_equal(bt_kv_room_release(rig->from.agent, send), 1);
    assert_int_equal(bt_kv_poll(rig->to.agent, recv), BT_KV_FAILED); /* a stale handle */
}

static void both_fail(rig_t *rig, bt_kv_room_t recv, bt_kv_room_t send)
{
    rig_wait(&rig->to, &rig->from, recv, BT_KV_FAILED);
    rig_wait(&rig->from, &rig->to, send, BT_KV_FAILED);
    assert_true(strlen(rig_error(&rig->to, recv)) > 0);
    assert_true(strlen(rig_error(&rig->from, send)) > 0);
    rig_release(&rig->to, &rig->from, recv);
    rig_release(&rig->from, &rig->to, send);
}

/* ---- what arrives ---- */
static void whole_room(const bt_kv_config_t *config)
{
    rig_t rig;
    bt_kv_room_stats_t stats;

    rig_open(&rig, config);
    memset(rig_aux(&rig.to), 0, RIG_AUX_BYTES);
    bt_kv_room_t send = rig_send_open(&rig, 77, 1);
    bt_kv_room_t recv = rig_recv(&rig, 77, to, 8, 0, true);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, true), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_SUCCESS);
    rig_wait(&rig.from, &rig.to, send, BT_KV_SUCCESS);
    rig_check_pages(&rig, to, from, 8, 0);
    assert_memory_equal(rig_aux(&rig.to), rig_aux(&rig.from), RIG_AUX_BYTES);
    assert_int_equal(bt_kv_room_stats(rig.from.agent, send, &stats), 0);
    assert_int_equal(stats.bytes, 8 * RIG_BUFFERS * RIG_PAGE_BYTES + RIG_AUX_BYTES);
    assert_int_equal(stats.pages, 8 * RIG_BUFFERS);
    /* (9,1) (3,2 4,3 5,4) (60,30 61,31) (2,63) (40,0): five runs a buffer, and the aux piece, which may adjoin */
    assert_in_range(stats.descriptors, 5 * RIG_BUFFERS, 5 * RIG_BUFFERS + 1);
    assert_int_not_equal(stats.backend, 0);
    both_succeed(&rig, recv, send);
    rig_close(&rig);
}

static void test_whole_room(void **state)
{
    whole_room(NULL);
}

static void test_whole_room_with_crc(void **state)
{
    whole_room(&(bt_kv_config_t){.crc = true});
}

static void test_caller_mode(void **state)
{
    whole_room(&(bt_kv_config_t){.progress = BT_KV_PROGRESS_CALLER});
}

static void test_chunks_and_layers_in_any_order(void **state)
{
    rig_t rig;
    bt_kv_chunk_t chunks[] = {
        {.first = 4, .pages = from + 4, .page_count = 4, .buffer_first = 0, .buffer_count = 1},
        {.first = 0, .pages = from, .page_count = 4, .buffer_first = 0, .buffer_count = 2},
        {.first = 0, .pages = from, .page_count = 8, .buffer_first = 2, .buffer_count = 1},
        {.first = 4, .pages = from + 4, .page_count = 4, .buffer_first = 1, .buffer_count = 1},
    };

    rig_open(&rig, &(bt_kv_config_t){.crc = true});
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    for (unsigned i = 0; i < 4; i++) /* some before WaitingForInput, some after */
        assert_int_equal(bt_kv_send(rig.from.agent, send, &chunks[i]), 0);
    assert_int_equal(rig_send(&rig, send, 0, NULL, 0, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_check_pages(&rig, to, from, 8, 0);
    rig_close(&rig);
}

static void test_announced_before_the_sender_opens(void **state)
{
    rig_t rig;
    uint32_t pages = 0, prefix = 0;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 3, false);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(bt_kv_send_wanted(rig.from.agent, send, &pages, &prefix), 0);
    assert_int_equal(pages, 8);
    assert_int_equal(prefix, 3);
    /* The prefix is left out, whether the engine sends it or not. */
    assert_int_equal(rig_send(&rig, send, 0, from, 5, false, false), 0);
    assert_int_equal(rig_send(&rig, send, 5, from + 5, 3, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_check_pages(&rig, to, from, 8, 3);
    rig_close(&rig);
}

static void test_everything_is_prefix(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 8, true);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, true), 0);
    both_succeed(&rig, recv, send);
    rig_check_pages(&rig, to, from, 0, 0);
    assert_memory_equal(rig_aux(&rig.to), rig_aux(&rig.from), RIG_AUX_BYTES);
    rig_close(&rig);
}

static void test_two_receivers(void **state)
{
    rig_t rig, second;
    uint32_t other[8];

    rig_open(&rig, NULL);
    rig_side_open(&second.to, "decode-2", NULL, 0, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    second.from = rig.from;
    for (unsigned i = 0; i < 8; i++)
        other[i] = 63 - to[i];
    bt_kv_room_t send = rig_send_open(&rig, 5, 2);
    bt_kv_room_t one = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
    bt_kv_room_t two = rig_recv(&second, 5, other, 8, 4, false);
    assert_int_equal(rig_send(&rig, send, 4, from + 4, 4, true, false), 0);
    rig_wait(&rig.to, &rig.from, one, BT_KV_SUCCESS);
    rig_wait(&second.to, &rig.from, two, BT_KV_SUCCESS);
    rig_wait(&rig.from, &rig.to, send, BT_KV_SUCCESS);
    rig_check_pages(&rig, to, from, 8, 0);
    rig_check_pages(&second, other, from, 8, 4);
    rig_side_close(&second.to);
    rig_close(&rig);
}

/* Two prefill ranks with half of the heads each: a page is 8 rows (tokens); a receiver's row is 128 bytes, a sender's 64. */
static void test_slices_of_two_sources(void **state)
{
    rig_t rig;
    rig_side_t rank1;
    bt_kv_room_t recv, send[2];
    bt_kv_room_stats_t stats;

    rig_side_open(&rig.from, "rank-0", NULL, 3, 512, 512);
    rig_side_open(&rank1, "rank-1", NULL, 4, 512, 640); /* with gaps between pages */
    rig_side_open(&rig.to, "decode", NULL, 0, 1024, 1024);
    bt_kv_source_t sources[3] = {
        {.host = "127.0.0.1",
         .port = bt_kv_agent_port(rig.from.agent),
         .slice = {8, 64, 128, 0, 0, 64}},
        {.host = "127.0.0.1",
         .port = bt_kv_agent_port(rank1.agent),
         .slice = {8, 64, 128, 0, 64, 64}},
        {.host = "127.0.0.1", .port = 1, .dummy = true},
    };
    bt_kv_recv_t spec = {.room = 5,
                         .layout = rig.to.layout,
                         .pages = to,
                         .page_count = 8,
                         .sources = sources,
                         .source_count = 3};
    assert_int_equal(bt_kv_recv_open(rig.to.agent, &spec, &recv), 0);
    for (unsigned i = 0; i < 2; i++) {
        rig_side_t *side = i == 0 ? &rig.from : &rank1;
        bt_kv_chunk_t chunk = {.pages = from, .page_count = 8, .last = true};
        bt_kv_send_spec_t open = {.room = 5, .layout = side->layout};
        assert_int_equal(bt_kv_send_open(side->agent, &open, &send[i]), 0);
        assert_int_equal(bt_kv_send(side->agent, send[i], &chunk), 0);
    }
    rig_wait(&rig.to, &rig.from, recv, BT_KV_SUCCESS);
    rig_wait(&rig.from, NULL, send[0], BT_KV_SUCCESS);
    rig_wait(&rank1, NULL, send[1], BT_KV_SUCCESS);
    for (uint32_t b = 0; b < RIG_BUFFERS; b++)
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t row = 0; row < 8; row++) {
                const char *at = rig_page(&rig.to, b, to[i]) + (size_t) row * 128;
                assert_memory_equal(at, rig_page(&rig.from, b, from[i]) + (size_t) row * 64, 64);
                assert_memory_equal(at + 64, rig_page(&rank1, b, from[i]) + (size_t) row * 64, 64);
            }
    assert_int_equal(bt_kv_room_stats(rig.from.agent, send[0], &stats), 0);
    assert_int_equal(stats.descriptors, 8 * RIG_BUFFERS); /* one a page, not one a row */
    rig_side_close(&rank1);
    rig_close(&rig);
}

static void test_dummy_sender(void **state)
{
    rig_t rig;
    bt_kv_room_t room;

    rig_open(&rig, NULL);
    bt_kv_send_spec_t spec = {.room = 5, .dummy = true};
    assert_int_equal(bt_kv_send_open(rig.from.agent, &spec, &room), 0);
    assert_int_equal(bt_kv_poll(rig.from.agent, room), BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(rig_send(&rig, room, 0, from, 4, false, false), 0);
    assert_int_equal(bt_kv_poll(rig.from.agent, room), BT_KV_TRANSFERRING);
    assert_int_equal(rig_send(&rig, room, 4, from, 4, true, false), 0);
    assert_int_equal(bt_kv_poll(rig.from.agent, room), BT_KV_SUCCESS);
    assert_int_equal(bt_kv_room_release(rig.from.agent, room), 1);
    rig_close(&rig);
}

/* Many rooms at once on one link; none is refused below max_rooms, the next one is. */
static void test_many_rooms(void **state)
{
    enum { ROOMS = 200 };
    rig_t rig;
    bt_kv_room_t recv[ROOMS], send[ROOMS], extra;
    uint8_t states[ROOMS];
    bt_kv_send_spec_t spec = {.room = 9999};

    rig_open(&rig, &(bt_kv_config_t){.max_rooms = ROOMS});
    for (uint32_t i = 0; i < ROOMS; i++) {
        recv[i] = rig_recv(&rig, i + 1, PAGES(i % RIG_PAGES), 1, 0, false);
        send[i] = rig_send_open(&rig, i + 1, 1);
    }
    spec.layout = rig.from.layout;
    assert_int_equal(bt_kv_send_open(rig.from.agent, &spec, &extra), BT_E_LIMIT);
    for (uint32_t i = 0; i < ROOMS; i++)
        assert_int_equal(rig_send(&rig, send[i], 0, PAGES(i % RIG_PAGES), 1, true, false), 0);
    for (uint32_t i = 0; i < ROOMS; i++)
        rig_wait(&rig.to, &rig.from, recv[i], BT_KV_SUCCESS);
    bt_kv_poll_many(rig.to.agent, recv, ROOMS, states);
    for (uint32_t i = 0; i < ROOMS; i++)
        assert_int_equal(states[i], BT_KV_SUCCESS);
    for (uint32_t i = 0; i < ROOMS; i++)
        both_succeed(&rig, recv[i], send[i]);
    for (uint32_t b = 0; b < RIG_BUFFERS; b++)
        assert_memory_equal(rig_page(&rig.to, b, 0), rig_page(&rig.from, b, 0),
                            RIG_PAGES * RIG_PAGE_BYTES);
    rig_close(&rig);
}

static void test_the_event_fd(void **state)
{
    rig_t rig;
    uint64_t count = 0;

    rig_open(&rig, NULL);
    struct pollfd fd = {.fd = bt_kv_agent_fd(rig.to.agent), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(poll(&fd, 1, 20000), 1); /* WaitingForInput */
    assert_int_equal(read(fd.fd, &count, sizeof(count)), sizeof(count));
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    assert_int_equal(poll(&fd, 1, 20000), 1); /* ended */
    both_succeed(&rig, recv, send);
    rig_close(&rig);
}

/* ---- what does not ---- */
/* Where an abort strikes: 0 before the other side has opened, 1 announced, 2 after a first chunk. */
static void abort_at(bool by_sender, int phase)
{
    rig_t rig;
    bt_kv_room_t recv = 0, send = 0;

    rig_open(&rig, NULL);
    if (by_sender || phase > 0)
        send = rig_send_open(&rig, 5, 1);
    if (!by_sender || phase > 0)
        recv = rig_recv(&rig, 5, to, 8, 0, false);
    if (phase > 0)
        rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    if (phase > 1) {
        assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
        rig_wait(&rig.to, &rig.from, recv, BT_KV_TRANSFERRING);
    }
    rig_side_t *side = by_sender ? &rig.from : &rig.to;
    assert_int_equal(bt_kv_abort(side->agent, by_sender ? send : recv, "the client left"), 0);
    if (recv == 0) /* late announcement: the sender's tombstone answers it */
        recv = rig_recv(&rig, 5, to, 8, 0, false);
    if (send == 0) {
        rig_release(&rig.to, &rig.from, recv);
        rig_close(&rig);
        return;
    }
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv), "the client left"));
    assert_non_null(strstr(rig_error(&rig.from, send), "the client left"));
    assert_int_equal(bt_kv_abort(side->agent, by_sender ? send : recv, "again"), 0);
    assert_null(strstr(rig_error(side, by_sender ? send : recv), "again"));
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), BT_E_CANCELLED);
    both_fail(&rig, recv, send);
    /* The same room id works afterwards. */
    memset(rig.to.p, 0, rig.to.size);
    send = rig_send_open(&rig, 5, 1);
    recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_check_pages(&rig, to, from, 8, 0);
    rig_close(&rig);
}

static void test_abort_by_either_side_in_each_phase(void **state)
{
    for (int phase = 0; phase < 3; phase++) {
        abort_at(true, phase);
        abort_at(false, phase);
    }
}

/* Announced, given up, and only then does the sender open: it hears of it at once, once. */
static void test_a_receiver_that_left_early(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
    bt_kv_abort(rig.to.agent, recv, "the client left");
    rig_release(&rig.to, &rig.from, recv);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, send), "the client left"));
    rig_release(&rig.from, &rig.to, send);
    send = rig_send_open(&rig, 5, 1);
    recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_close(&rig);
}

/* Announced, given up, announced again, and only then does the sender open: it is served. That room
 * 6 has moved says that the sender has
 * heard of room 5, too, because one connection carries both. */
static void test_a_receiver_that_left_and_came_back(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
    bt_kv_abort(rig.to.agent, recv, "the client left");
    rig_release(&rig.to, &rig.from, recv);
    recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t other = rig_recv(&rig, 6, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 6, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, other, send);
    send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_close(&rig);
}

/* Given up before the two agents have even spoken: the sender hears of it as soon as they do, whether its room is open by then or not. */
static void test_a_receiver_that_left_before_it_was_heard(void **state)
{
    rig_t rig;
    bt_kv_room_t send[2];

    rig_open(&rig, &(bt_kv_config_t){.progress = BT_KV_PROGRESS_CALLER});
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(bt_kv_room_release(rig.to.agent, recv), 1);
    bt_kv_room_t other = rig_recv(&rig, 6, to, 8, 0, false);
    bt_kv_abort(rig.to.agent, other, "the client left");
    assert_int_equal(bt_kv_room_release(rig.to.agent, other), 1);
    send[0] = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.from, &rig.to, send[0], BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, send[0]), "released before it had ended"));
    send[1] = rig_send_open(&rig, 6, 1);
    rig_wait(&rig.from, &rig.to, send[1], BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, send[1]), "the client left"));
    rig_release(&rig.from, &rig.to, send[0]);
    rig_release(&rig.from, &rig.to, send[1]);
    rig_close(&rig);
}

static void test_release_aborts(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    rig_release(&rig.to, &rig.from, recv);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, send), "decode"));
    rig_release(&rig.from, &rig.to, send);
    assert_int_equal(bt_kv_room_release(rig.from.agent, send), 1); /* unknown by now */
    assert_int_equal(bt_kv_room_release(rig.from.agent, 0), 1);
    rig_close(&rig);
}

/* Once a room has failed, a sender that stands still keeps its own pages, and the receiver's only where it can write them. */
static void test_a_sender_that_stands_still(void **state)
{
    rig_t rig;
    bt_kv_room_stats_t stats;

    rig_open(&rig, &(bt_kv_config_t){.progress = BT_KV_PROGRESS_CALLER});
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_TRANSFERRING);
    assert_int_equal(bt_kv_room_stats(rig.to.agent, recv, &stats), 0);
    bt_kv_abort(rig.to.agent, recv, "the gateway has given it up");
    if (stats.backend == BT_KV_SHM) /* the receiver alone copies */
        rig_release(&rig.to, NULL, recv);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    rig_release(&rig.to, &rig.from, recv);
    rig_release(&rig.from, &rig.to, send);
    /* What was said late has done no harm: the link goes on. */
    memset(rig.to.p, 0, rig.to.size);
    send = rig_send_open(&rig, 6, 1);
    recv = rig_recv(&rig, 6, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_check_pages(&rig, to, from, 8, 0);
    bt_kv_agent_stats_t figures;
    bt_kv_agent_stats(rig.to.agent, &figures);
    assert_int_equal(figures.links_lost, 0);
    assert_int_equal(figures.refused_frames, 0);
    rig_close(&rig);
}

static void fails_with(uint32_t sent_pages, const uint32_t *pages, uint32_t twice, const char *why)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 6, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    if (twice > 0)
        assert_int_equal(rig_send(&rig, send, 0, pages, twice, false, false), 0);
    assert_int_equal(rig_send(&rig, send, 0, pages, sent_pages, true, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    if (strstr(rig_error(&rig.to, recv), why) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", why, rig_error(&rig.to, recv));
    both_fail(&rig, recv, send);
    rig_close(&rig);
}

static void test_wrong_page_totals(void **state)
{
    fails_with(5, from, 0, "5 pages in all, 6 were announced");
    fails_with(8, from, 0, "a chunk reaches to page 8");
    fails_with(3, from, 3, "sent some pages twice");
}

static void test_missing_piece(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, true);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv), "piece 0 was not sent"));
    both_fail(&rig, recv, send);
    rig_close(&rig);
}

static void test_layouts_that_do_not_match(void **state)
{
    rig_t rig;

    rig_side_open(&rig.from, "prefill", NULL, 7, 512, 512);
    rig_side_open(&rig.to, "decode", NULL, 0, 1024, 1024);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv),
                           "different sizes, 512 bytes at the sender and 1024 at the receiver"));
    assert_non_null(strstr(rig_error(&rig.to, recv), "the same block size, dtype"));
    both_fail(&rig, recv, send);
    rig_close(&rig);
}

static void test_a_third_receiver_is_refused(void **state)
{
    rig_t rig;
    bt_kv_room_t copy;

    rig_open(&rig, NULL);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_send_spec_t spec = {.room = 5, .layout = rig.from.layout};
    assert_int_equal(bt_kv_send_open(rig.from.agent, &spec, &copy), BT_E_INVAL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    bt_kv_room_t late = rig_recv(&rig, 5, from, 8, 0, false);
    rig_wait(&rig.to, &rig.from, late, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, late), "has all its receivers"));
    rig_release(&rig.to, &rig.from, late);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    rig_close(&rig);
}

static void test_bad_arguments(void **state)
{
    rig_t rig;
    bt_kv_room_t room = 1;

    rig_open(&rig, NULL);
    bt_kv_source_t source = {.host = "127.0.0.1", .port = bt_kv_agent_port(rig.from.agent)};
    bt_kv_recv_t good = {.room = 5,
                         .layout = rig.to.layout,
                         .pages = to,
                         .page_count = 8,
                         .sources = &source,
                         .source_count = 1};
    bt_kv_recv_t bad[8];
    bt_kv_source_t nowhere = {.host = "no.number", .port = 1}, twice[2] = {source, source};
    for (unsigned i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].room = 0;
    bad[1].layout = 99;
    bad[2].pages = PAGES(1, 2, 3, 4, 5, 6, 7, RIG_PAGES);
    bad[3].pages = PAGES(1, 2, 3, 4, 5, 6, 7, 1);
    bad[4].prefix_pages = 9;
    bad[5].source_count = 0;
    bad[6].sources = &nowhere;
    bad[7].sources = twice;
    bad[7].source_count = 2;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(bt_kv_recv_open(rig.to.agent, &bad[i], &room), BT_E_INVAL);
        assert_int_equal(room, 1);
    }
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, NULL, 0, false, false), BT_E_INVAL);
    assert_int_equal(rig_send(&rig, send, 0, PAGES(RIG_PAGES), 1, false, false), BT_E_INVAL);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, false, true), BT_E_INVAL);
    assert_int_equal(rig_send(&rig, send + 1, 0, from, 8, false, false), BT_E_INVAL);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false),
                     BT_E_INVAL); /* after the last */
    assert_int_equal(bt_kv_region_remove(rig.to.agent, rig.to.region), BT_E_AGAIN);
    assert_int_equal(bt_kv_layout_remove(rig.from.agent, rig.from.layout), BT_E_AGAIN);
    rig_release(&rig.from, &rig.to, send);
    assert_int_equal(bt_kv_layout_remove(rig.from.agent, rig.from.layout), 0);
    assert_int_equal(bt_kv_poll(rig.from.agent, UINT64_MAX), BT_KV_FAILED);
    rig_close(&rig);
}

/* ---- peers ---- */
static void closes_at(bool is_sender, int phase)
{
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false), send = 0;
    rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
    if (phase > 0) {
        send = rig_send_open(&rig, 5, 1);
        rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    }
    if (phase > 1) {
        assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
        rig_wait(&rig.to, &rig.from, recv, BT_KV_TRANSFERRING);
    }
    if (is_sender) {
        rig_side_close(&rig.from);
        rig_wait(&rig.to, NULL, recv, BT_KV_FAILED);
        assert_non_null(strstr(rig_error(&rig.to, recv), "prefill"));
        rig_release(&rig.to, NULL, recv);
    } else {
        rig_side_close(&rig.to);
        if (phase > 0) {
            rig_wait(&rig.from, NULL, send, BT_KV_FAILED);
            assert_non_null(strstr(rig_error(&rig.from, send), "decode"));
            rig_release(&rig.from, NULL, send);
        }
    }
    rig_close(&rig);
}

static void test_peer_closes_in_each_phase(void **state)
{
    for (int phase = 0; phase < 3; phase++) {
        closes_at(true, phase);
        closes_at(false, phase);
    }
}

static void test_nobody_is_there(void **state)
{
    rig_t rig;
    bt_kv_room_t room;

    rig_open(&rig, NULL);
    uint16_t port = bt_kv_agent_port(rig.from.agent);
    rig_side_close(&rig.from);
    bt_kv_source_t source = {.host = "127.0.0.1", .port = port};
    bt_kv_recv_t spec = {.room = 5,
                         .layout = rig.to.layout,
                         .pages = to,
                         .page_count = 8,
                         .sources = &source,
                         .source_count = 1};
    assert_int_equal(bt_kv_recv_open(rig.to.agent, &spec, &room), 0);
    rig_wait(&rig.to, NULL, room, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, room), "cannot connect to 127.0.0.1"));
    rig_release(&rig.to, NULL, room);
    rig_close(&rig);
}

static void test_tokens_must_match(void **state)
{
    rig_t rig;

    rig_side_open(&rig.from, "prefill", &(bt_kv_config_t){.token = "sesame"}, 7, 1024, 1024);
    rig_side_open(&rig.to, "decode", &(bt_kv_config_t){.token = "simsim"}, 0, 1024, 1024);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv), "token"));
    assert_null(strstr(rig_error(&rig.to, recv), "sesame"));
    rig_release(&rig.to, &rig.from, recv);
    rig_close(&rig);
}

static void test_timeouts_of_each_phase(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_kv_config_t){.bootstrap_ms = 150});
    bt_kv_room_t alone = rig_send_open(&rig, 4, 1);          /* nobody announces */
    bt_kv_room_t early = rig_recv(&rig, 6, to, 8, 0, false); /* nobody opens */
    rig_wait(&rig.from, &rig.to, alone, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.from, alone), "in Bootstrapping"));
    rig_wait(&rig.to, &rig.from, early, BT_KV_FAILED);
    rig_release(&rig.from, &rig.to, alone);
    rig_release(&rig.to, &rig.from, early);
    rig_close(&rig);

    rig_open(&rig, &(bt_kv_config_t){.stall_ms = 500});
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    rig_wait(&rig.from, &rig.to, send, BT_KV_WAITING_FOR_INPUT);
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0); /* and no more */
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    assert_non_null(strstr(rig_error(&rig.to, recv), "without progress"));
    both_fail(&rig, recv, send);
    rig_close(&rig);
}

static void test_describe_names_the_peer(void **state)
{
    rig_t rig;
    char text[1024];
    bt_kv_agent_stats_t stats;

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, false), 0);
    both_succeed(&rig, recv, send);
    assert_true(bt_kv_agent_describe(rig.to.agent, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "to prefill (127.0.0.1:"));
    bt_kv_agent_stats(rig.from.agent, &stats);
    assert_int_equal(stats.rooms_open, 0);
    assert_int_equal(stats.rooms_success, 1);
    assert_int_equal(stats.bytes_sent, 8 * RIG_BUFFERS * RIG_PAGE_BYTES);
    assert_int_equal(stats.links, 1);
    assert_int_equal(stats.refused_frames, 0);
    rig_close(&rig);
}

int bt_kv_suite(const bt_kv_suite_t *how)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_room),
        cmocka_unit_test(test_whole_room_with_crc),
        cmocka_unit_test(test_caller_mode),
        cmocka_unit_test(test_chunks_and_layers_in_any_order),
        cmocka_unit_test(test_announced_before_the_sender_opens),
        cmocka_unit_test(test_everything_is_prefix),
        cmocka_unit_test(test_two_receivers),
        cmocka_unit_test(test_slices_of_two_sources),
        cmocka_unit_test(test_dummy_sender),
        cmocka_unit_test(test_many_rooms),
        cmocka_unit_test(test_the_event_fd),
        cmocka_unit_test(test_abort_by_either_side_in_each_phase),
        cmocka_unit_test(test_a_receiver_that_left_early),
        cmocka_unit_test(test_a_receiver_that_left_and_came_back),
        cmocka_unit_test(test_a_receiver_that_left_before_it_was_heard),
        cmocka_unit_test(test_release_aborts),
        cmocka_unit_test(test_a_sender_that_stands_still),
        cmocka_unit_test(test_wrong_page_totals),
        cmocka_unit_test(test_missing_piece),
        cmocka_unit_test(test_layouts_that_do_not_match),
        cmocka_unit_test(test_a_third_receiver_is_refused),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_peer_closes_in_each_phase),
        cmocka_unit_test(test_nobody_is_there),
        cmocka_unit_test(test_tokens_must_match),
        cmocka_unit_test(test_timeouts_of_each_phase),
        cmocka_unit_test(test_describe_names_the_peer),
    };

    bt_kv_rig_use(how);
    return cmocka_run_group_tests_name(how->name, tests, NULL, NULL);
}
