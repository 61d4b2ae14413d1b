/* What only mem can show, because it can be told to hold a batch under way, to flip a byte, to be full, to refuse. */
#include "suite.h"
#include "transport/backends/mem/backend_mem.h"

#include "transport/agent/agent.h"
#include "transport/control/link.h"

#include <pthread.h>
#include <stdio.h>

static const uint32_t to[8] = {9, 3, 4, 5, 60, 61, 2, 40};
static const uint32_t from[8] = {1, 2, 3, 4, 30, 31, 63, 0};

/* A room with its batch held half-way. */
static void open_held(rig_t *rig, const bt_kv_config_t *config, bt_kv_room_t *recv_p,
                      bt_kv_room_t *send_p)
{
    rig_open(rig, config);
    atomic_store(&bt_kv_mem_faults.hold, 1);
    *send_p = rig_send_open(rig, 5, 1);
    *recv_p = rig_recv(rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(rig, *send_p, 0, from, 8, true, false), 0);
    rig_wait(&rig->to, &rig->from, *recv_p, BT_KV_TRANSFERRING);
}

static void never_released_while_held(bool by_sender)
{
    rig_t rig;
    bt_kv_room_t recv, send;

    open_held(&rig, NULL, &recv, &send);
    bt_kv_abort(by_sender ? rig.from.agent : rig.to.agent, by_sender ? send : recv, "test");
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(bt_kv_room_release(rig.to.agent, recv), 0);
        assert_int_equal(bt_kv_room_release(rig.from.agent, send), 0);
        rig_turn(&rig.to, &rig.from);
    }
    atomic_store(&bt_kv_mem_faults.hold, 0);
    rig_release(&rig.to, &rig.from, recv);
    memset(rig.to.p, 0xa5, rig.to.size);
    rig_release(&rig.from, &rig.to, send);
    for (size_t i = 0; i < rig.to.size; i++)
        assert_int_equal((unsigned char) rig.to.p[i], 0xa5);
    rig_close(&rig);
}

static void test_release_waits_for_what_is_under_way(void **state)
{
    never_released_while_held(true);
    never_released_while_held(false);
}

/* This side has drained, the sender has not acknowledged: it may be writing. */
static void test_release_waits_for_the_acknowledgement(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    atomic_store(&bt_kv_mem_faults.busy, 1);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_TRANSFERRING);
    bt_kv_abort(rig.to.agent, recv, "test");
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(bt_kv_room_release(rig.to.agent, recv), 0);
        rig_turn(&rig.to, &rig.from);
    }
    atomic_store(&bt_kv_mem_faults.busy, 0);
    rig_release(&rig.to, &rig.from, recv);
    rig_release(&rig.from, &rig.to, send);
    rig_close(&rig);
}

/* The other side never confirms: release_ms cuts the link and with it the access. */
static void test_release_ms_is_the_last_resort(void **state)
{
    rig_t rig;
    bt_kv_room_t recv, send;
    bt_kv_agent_stats_t stats;

    open_held(&rig, &(bt_kv_config_t){.release_ms = 150}, &recv, &send);
    bt_kv_abort(rig.to.agent, recv, "test");
    uint64_t began_ms = rig_now_ms();
    rig_release(&rig.to, &rig.from, recv);
    assert_true(rig_now_ms() - began_ms >= 140); /* not before its time */
    memset(rig.to.p, 0xa5, rig.to.size);
    atomic_store(&bt_kv_mem_faults.hold, 0);
    rig_release(&rig.from, &rig.to, send);
    bt_kv_agent_stats(rig.to.agent, &stats);
    assert_int_equal(stats.links_lost, 1);
    for (size_t i = 0; i < rig.to.size; i++)
        assert_int_equal((unsigned char) rig.to.p[i], 0xa5);
    rig_close(&rig);
}

static void test_close_with_a_batch_under_way(void **state)
{
    rig_t rig;
    bt_kv_room_t recv, send;

    for (int first = 0; first < 2; first++) {
        open_held(&rig, NULL, &recv, &send);
        rig_side_close(first == 0 ? &rig.from : &rig.to);
        atomic_store(&bt_kv_mem_faults.hold, 0);
        if (first == 0)
            rig_release(&rig.to, NULL, recv);
        else
            rig_release(&rig.from, NULL, send);
        rig_close(&rig);
    }
}

static void test_a_flipped_byte_fails_the_room(void **state)
{
    rig_t rig;
    bt_kv_agent_stats_t stats;

    rig_open(&rig, &(bt_kv_config_t){.crc = true});
    atomic_store(&bt_kv_mem_faults.flip, 1);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, true);
    assert_int_equal(rig_send(&rig, send, 0, from, 8, true, true), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    rig_wait(&rig.from, &rig.to, send, BT_KV_FAILED);
    assert_int_equal(atomic_load(&bt_kv_mem_faults.flip), 0);
    assert_non_null(strstr(rig_error(&rig.to, recv), "CRC error in pages 0 to 8 from prefill"));
    assert_non_null(strstr(rig_error(&rig.from, send), "CRC error"));
    bt_kv_agent_stats(rig.to.agent, &stats);
    assert_int_equal(stats.crc_errors, 1);
    rig_release(&rig.to, &rig.from, recv);
    rig_release(&rig.from, &rig.to, send);
    rig_close(&rig);
}

/* The lane fills, takes nothing more, and goes on when there is room again. */
static void test_back_pressure(void **state)
{
    rig_t rig;
    uint32_t taken = 0, first_refused = 0;
    uint32_t all[RIG_PAGES];

    for (uint32_t i = 0; i < RIG_PAGES; i++)
        all[i] = i;
    rig_open(&rig, &(bt_kv_config_t){.lane_depth = 4});
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    for (uint32_t i = 0; i < 4; i++) /* before WaitingForInput the room holds as many */
        assert_int_equal(rig_send(&rig, send, i, &all[i], 1, false, false), 0);
    assert_int_equal(rig_send(&rig, send, 4, &all[4], 1, false, false), BT_E_AGAIN);
    atomic_store(&bt_kv_mem_faults.hold, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, all, RIG_PAGES, 0, false);
    rig_wait(&rig.from, &rig.to, send, BT_KV_TRANSFERRING);
    uint64_t end_ms = rig_now_ms() + 20000;
    for (taken = 4; taken < RIG_PAGES; taken++) {
        int rc;
        while ((rc = rig_send(&rig, send, taken, &all[taken], 1, taken + 1 == RIG_PAGES, false)) ==
               BT_E_AGAIN) {
            if (first_refused == 0 && taken > 4)
                first_refused = taken;
            if (first_refused != 0)
                atomic_store(&bt_kv_mem_faults.hold, 0);
            assert_true(rig_now_ms() < end_ms);
            rig_turn(&rig.from, &rig.to);
        }
        assert_int_equal(rc, 0);
    }
    assert_in_range(first_refused, 5, RIG_PAGES - 1);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_SUCCESS);
    rig_wait(&rig.from, &rig.to, send, BT_KV_SUCCESS);
    rig_check_pages(&rig, all, all, RIG_PAGES, 0);
    rig_close(&rig);
}

static void test_a_full_queue_is_tried_again(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    atomic_store(&bt_kv_mem_faults.again, 3);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, from, 4, false, false), 0);
    assert_int_equal(rig_send(&rig, send, 4, from + 4, 4, true, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_SUCCESS);
    rig_wait(&rig.from, &rig.to, send, BT_KV_SUCCESS);
    assert_int_equal(atomic_load(&bt_kv_mem_faults.again), 0);
    rig_check_pages(&rig, to, from, 8, 0);
    rig_close(&rig);
}

static void test_no_path_is_said_with_its_reason(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    atomic_store(&bt_kv_mem_faults.deny, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 0, false);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_FAILED);
    atomic_store(&bt_kv_mem_faults.deny, 0);
    assert_non_null(strstr(rig_error(&rig.to, recv), "no way to move data"));
    assert_non_null(strstr(rig_error(&rig.to, recv), "mem"));
    rig_release(&rig.to, &rig.from, recv);
    rig_close(&rig);
}

static void test_contiguous_pages_are_one_descriptor(void **state)
{
    rig_t rig;
    uint32_t all[RIG_PAGES];
    bt_kv_room_stats_t stats;

    for (uint32_t i = 0; i < RIG_PAGES; i++)
        all[i] = i;
    rig_open(&rig, NULL);
    bt_kv_room_t send = rig_send_open(&rig, 5, 1);
    bt_kv_room_t recv = rig_recv(&rig, 5, all, RIG_PAGES, 0, false);
    assert_int_equal(rig_send(&rig, send, 0, all, RIG_PAGES, true, false), 0);
    rig_wait(&rig.to, &rig.from, recv, BT_KV_SUCCESS);
    assert_int_equal(bt_kv_room_stats(rig.from.agent, send, &stats), 0);
    assert_int_equal(stats.pages, RIG_PAGES * RIG_BUFFERS);
    assert_int_equal(stats.descriptors, 1); /* even the buffers adjoin */
    rig_close(&rig);
}

/* ---- the receiver's guard ---- */
static void test_destinations(void **state)
{
    rig_t rig;
    enum { P = RIG_PAGE_BYTES };

    rig_open(&rig, NULL);
    bt_kv_room_t recv = rig_recv(&rig, 5, to, 8, 1, true); /* page 9 is prefix */
    rig_wait(&rig.to, &rig.from, recv, BT_KV_WAITING_FOR_INPUT);
    bt_kv_agent_t *agent = rig.to.agent;
    bt_kv_enter(agent);
    bt_kv_link_t *link = bt_container_of(agent->links.next, bt_kv_link_t, link);
    bt_kv_path_t stranger = {.link = &(bt_kv_link_t){.agent = agent}};
    const struct {
        uint64_t offset, bytes;
        bool is_open;
    } cases[] = {
        {3 * P, P, true},
        {3 * P, 3 * P, true},                  /* 3, 4, 5 adjoin */
        {3 * P + 10, 3 * P - 20, true},        /* inside */
        {2 * P, 4 * P, true},                  /* 2 .. 5 */
        {2 * P, 4 * P + 1, false},             /* reaches into 6 */
        {6 * P, P, false},                     /* never announced */
        {9 * P, P, false},                     /* prefix */
        {RIG_PAGES * P + 60 * P, 2 * P, true}, /* buffer 1 */
        {RIG_PAGES * P + 60 * P, 3 * P, false},
        {3ull * RIG_PAGES * P, RIG_AUX_BYTES, true}, /* the piece */
        {3ull * RIG_PAGES * P, RIG_AUX_BYTES + 1, false},
        {3 * P, 0, false},
        {UINT64_MAX, 2, false},
        {3 * P, UINT64_MAX, false},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *p =
            bt_kv_destination(link->path, recv, rig.to.region, cases[i].offset, cases[i].bytes);
        assert_ptr_equal(p, cases[i].is_open ? rig.to.p + cases[i].offset : NULL);
    }
    assert_null(bt_kv_destination(&stranger, recv, rig.to.region, 3 * P, P));
    assert_null(bt_kv_destination(link->path, recv + 1, rig.to.region, 3 * P, P));
    assert_null(bt_kv_destination(link->path, recv, rig.to.region + 1, 3 * P, P));
    bt_kv_leave(agent);
    bt_kv_abort(agent, recv, "test");
    bt_kv_enter(agent);
    assert_null(bt_kv_destination(link->path, recv, rig.to.region, 3 * P, P));
    bt_kv_leave(agent);
    rig_release(&rig.to, &rig.from, recv);
    rig_close(&rig);
}

/* ---- many threads ---- */
typedef struct worker {
    rig_t *rig;
    uint32_t number;
} worker_t;

static void *work(void *user)
{
    worker_t *w = user;
    rig_t *rig = w->rig;
    uint32_t pages[4] = {w->number * 4, w->number * 4 + 1, w->number * 4 + 3, w->number * 4 + 2};

    for (uint32_t i = 0; i < 50; i++) {
        uint64_t id = (uint64_t) w->number << 32 | (i + 1);
        bt_kv_room_t send = rig_send_open(rig, id, 1);
        bt_kv_room_t recv = rig_recv(rig, id, pages, 4, 0, false);
        bool is_aborted = i % 5 == 4;
        assert_int_equal(rig_send(rig, send, 0, pages, 2, false, false), 0);
        if (is_aborted)
            bt_kv_abort(i % 2 == 0 ? rig->from.agent : rig->to.agent, i % 2 == 0 ? send : recv, "");
        else
            assert_int_equal(rig_send(rig, send, 2, pages + 2, 2, true, false), 0);
        rig_wait(&rig->to, NULL, recv, is_aborted ? BT_KV_FAILED : BT_KV_SUCCESS);
        rig_wait(&rig->from, NULL, send, is_aborted ? BT_KV_FAILED : BT_KV_SUCCESS);
        rig_release(&rig->to, NULL, recv);
        rig_release(&rig->from, NULL, send);
    }
    return NULL;
}

static void test_any_thread_may_call_anything(void **state)
{
    enum { THREADS = 6 };
    rig_t rig;
    pthread_t threads[THREADS];
    worker_t workers[THREADS];
    bt_kv_agent_stats_t stats;

    rig_open(&rig, NULL);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker_t){&rig, i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    bt_kv_agent_stats(rig.from.agent, &stats);
    assert_int_equal(stats.rooms_open, 0);
    assert_int_equal(stats.rooms_success, THREADS * 40);
    assert_int_equal(stats.rooms_failed, THREADS * 10);
    assert_int_equal(stats.refused_frames, 0);
    rig_close(&rig);
}

/* ---- fake ---- */
#define POOL_ROUNDS 3000
#define POOL_BYTES                                                                                 \
    ((size_t) 4 << 20) /* large enough for huge pages, which most machines then refuse */

/* Two agents of one process: neither may ever unmap what the other has just got. */
static void *come_and_go(void *user)
{
    bt_kv_agent_t *agent = user;

    for (unsigned round = 0; round < POOL_ROUNDS; round++) {
        const char mark = (char) (1 + round % 100);
        bt_kv_region_t region;
        void *p;

        if (bt_kv_pool_alloc(agent, POOL_BYTES, &p, &region) != 0)
            return "no pool";
        for (size_t at = 0; at < POOL_BYTES; at += POOL_BYTES / 4)
            ((volatile char *) p)[at] = mark;
        for (size_t at = 0; at < POOL_BYTES; at += POOL_BYTES / 4)
            if (((volatile char *) p)[at] != mark)
                return "somebody else's pool";
        if (bt_kv_region_remove(agent, region) != 0)
            return "not removed";
    }
    return NULL;
}

static void test_pools_of_two_threads(void **state)
{
    const bt_kv_config_t config = {.name = "pools", .backends = BT_KV_MEM};
    bt_kv_agent_t *agents[2];
    pthread_t threads[2];
    char err[300];

    for (int i = 0; i < 2; i++) {
        assert_int_equal(bt_kv_agent_open(&agents[i], &config, err, sizeof(err)), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, agents[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        void *why;
        pthread_join(threads[i], &why);
        if (why != NULL)
            fail_msg("%s", (const char *) why);
        bt_kv_agent_close(agents[i]);
    }
}

static void test_fake_needs_nobody(void **state)
{
    bt_kv_agent_t *agent;
    char err[128], memory[4096];
    bt_kv_region_t region;
    bt_kv_layout_t layout;
    bt_kv_room_t recv, send;
    bt_kv_config_t config = {.name = "fake", .backends = BT_KV_FAKE};

    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), 0);
    assert_int_equal(bt_kv_region_add(agent, memory, sizeof(memory), &region), 0);
    bt_kv_buffer_t buffer = {region, 0, 64, 64};
    assert_int_equal(bt_kv_layout_add(agent, &buffer, 1, 64, &layout), 0);
    bt_kv_source_t source = {.host = "192.0.2.1", .port = 9};
    bt_kv_recv_t spec = {.room = 1,
                         .layout = layout,
                         .pages = to,
                         .page_count = 8,
                         .sources = &source,
                         .source_count = 1};
    assert_int_equal(bt_kv_recv_open(agent, &spec, &recv), 0);
    assert_int_equal(bt_kv_poll(agent, recv), BT_KV_SUCCESS);
    bt_kv_send_spec_t open = {.room = 2, .layout = layout};
    assert_int_equal(bt_kv_send_open(agent, &open, &send), 0);
    assert_int_equal(bt_kv_poll(agent, send), BT_KV_WAITING_FOR_INPUT);
    bt_kv_chunk_t chunk = {.pages = from, .page_count = 8, .last = true};
    assert_int_equal(bt_kv_send(agent, send, &chunk), 0);
    assert_int_equal(bt_kv_poll(agent, send), BT_KV_SUCCESS);
    assert_int_equal(bt_kv_room_release(agent, recv), 1);
    assert_int_equal(bt_kv_room_release(agent, send), 1);
    bt_kv_agent_close(agent);
}

static void test_device_memory_needs_a_taker(void **state)
{
    bt_kv_agent_t *agent;
    bt_kv_region_t region;
    char err[128];
    bt_kv_config_t config = {.name = "a", .backends = BT_KV_MEM | BT_KV_SHM | BT_KV_TCP};

    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), 0);
    assert_int_equal(bt_kv_region_add_dmabuf(agent, 0, 0, 4096, &region), BT_E_INVAL);
    bt_kv_agent_close(agent);
    config.backends = BT_KV_FAKE;
    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), 0);
    assert_int_equal(bt_kv_region_add_dmabuf(agent, 0, 0, 4096, &region), 0);
    bt_kv_agent_close(agent);
}

static void test_agents_that_cannot_open(void **state)
{
    bt_kv_agent_t *agent = NULL, *other;
    char err[256];
    bt_kv_config_t config = {.name = "a", .backends = BT_KV_MEM};

    assert_int_equal(bt_kv_agent_open(&other, &config, err, sizeof(err)), 0);
    config.port = bt_kv_agent_port(other);
    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), BT_E_CONNECT);
    assert_non_null(strstr(err, "take another port"));
    config.host = "localhost";
    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), BT_E_INVAL);
    config.name = NULL;
    assert_int_equal(bt_kv_agent_open(&agent, &config, err, sizeof(err)), BT_E_INVAL);
    assert_null(agent);
    bt_kv_agent_close(other);
    bt_kv_agent_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release_waits_for_what_is_under_way),
        cmocka_unit_test(test_release_waits_for_the_acknowledgement),
        cmocka_unit_test(test_release_ms_is_the_last_resort),
        cmocka_unit_test(test_close_with_a_batch_under_way),
        cmocka_unit_test(test_a_flipped_byte_fails_the_room),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_a_full_queue_is_tried_again),
        cmocka_unit_test(test_no_path_is_said_with_its_reason),
        cmocka_unit_test(test_contiguous_pages_are_one_descriptor),
        cmocka_unit_test(test_destinations),
        cmocka_unit_test(test_any_thread_may_call_anything),
        cmocka_unit_test(test_pools_of_two_threads),
        cmocka_unit_test(test_fake_needs_nobody),
        cmocka_unit_test(test_device_memory_needs_a_taker),
        cmocka_unit_test(test_agents_that_cannot_open),
    };

    bt_kv_rig_use(&(bt_kv_suite_t){.backends = BT_KV_MEM});
    return cmocka_run_group_tests(tests, NULL, NULL);
}
