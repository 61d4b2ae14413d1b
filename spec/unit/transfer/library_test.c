/* The hub with real agents of libbaton_kv: both have been spec'd against fakes, here they meet. */
#include "transfer/rig.h"

#define PAGES 16u
#define PAGE_BYTES 4096u

typedef struct side {
    bt_kv_agent_t *agent;
    char *p;
    bt_kv_layout_t layout;
} side_t;

static rig_t rig;
static side_t p0, p1, d0;

static void side_open(side_t *side, const char *worker, char fill)
{
    bt_kv_config_t config = {.name = worker, .backends = BT_KV_MEM | BT_KV_TCP};
    bt_kv_gateway_t gateway = {.host = "127.0.0.1", .port = (uint16_t) rig.port, .worker = worker};
    bt_kv_buffer_t buffer = {.stride = PAGE_BYTES, .bytes = PAGE_BYTES};
    uint32_t number;
    char err[256];
    void *p;

    if (bt_kv_agent_open(&side->agent, &config, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_int_equal(bt_kv_pool_alloc(side->agent, (size_t) PAGES * PAGE_BYTES, &p, &buffer.region),
                     0);
    side->p = p;
    memset(p, fill, (size_t) PAGES * PAGE_BYTES);
    assert_int_equal(bt_kv_layout_add(side->agent, &buffer, 1, PAGES, &side->layout), 0);
    assert_int_equal(bt_kv_gateway_add(side->agent, &gateway, &number), 0);
    TURN_UNTIL(&rig.loop, has_agents(&rig, worker));
}

static void side_close(side_t *side)
{
    bt_kv_agent_close(side->agent);
    side->agent = NULL;
}

static int open_all(void **state)
{
    rig_open(&rig, NULL);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p1", "http://127.0.0.1:8003");
    (void) rig_add(&rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8002");
    side_open(&p0, "p0", 'a');
    side_open(&p1, "p1", 'b');
    side_open(&d0, "d0", '.');
    return 0;
}

static int close_all(void **state)
{
    side_close(&p0);
    side_close(&p1);
    side_close(&d0);
    rig_close(&rig);
    return 0;
}

static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static bt_kv_room_t send_open(side_t *side, uint64_t id)
{
    bt_kv_room_t room;

    assert_int_equal(
        bt_kv_send_open(side->agent,
                        &(bt_kv_send_spec_t){.room = id, .layout = side->layout, .receivers = 1},
                        &room),
        0);
    return room;
}

static bt_kv_room_t recv_open(uint64_t id)
{
    bt_kv_recv_t recv = {.room = id, .layout = d0.layout, .pages = pages, .page_count = PAGES};
    bt_kv_room_t room;

    assert_int_equal(bt_kv_recv_open(d0.agent, &recv, &room), 0);
    return room;
}

static void send_pages(side_t *side, bt_kv_room_t room, uint32_t first, uint32_t count)
{
    bt_kv_chunk_t chunk = {.first = first,
                           .pages = pages + first,
                           .page_count = count,
                           .last = first + count == PAGES};

    assert_int_equal(bt_kv_send(side->agent, room, &chunk), 0);
}

static void open_room(uint64_t id)
{
    bt_transfer_room_spec_t spec = spec_of(&rig, id);

    spec.repair_ms = 20000;
    assert_int_equal(bt_transfer_room_open(rig.t, &spec), 0);
}

static void wait_state(side_t *side, bt_kv_room_t room, enum bt_kv_state state)
{
    TURN_UNTIL(&rig.loop, bt_kv_poll(side->agent, room) == state);
}

static void wait_phase(enum bt_transfer_phase phase)
{
    TURN_UNTIL(&rig.loop, rig_stats(&rig).rooms_by_phase[phase] == 1);
}

static void expect_pages(char fill)
{
    for (size_t i = 0; i < (size_t) PAGES * PAGE_BYTES; i++)
        assert_int_equal(d0.p[i], fill);
}

static void test_done(void **state)
{
    bt_kv_room_t to = recv_open(5); /* the engine may be quicker than the gateway */
    open_room(5);
    bt_kv_room_t from = send_open(&p0, 5);
    send_pages(&p0, from, 0, PAGES);
    (void) rig_event(&rig, BT_TRANSFER_MOVING);
    assert_int_equal(rig_event(&rig, BT_TRANSFER_DONE)->bytes, PAGES * PAGE_BYTES);
    assert_int_equal(bt_kv_poll(d0.agent, to), BT_KV_SUCCESS);
    assert_int_equal(bt_kv_poll(p0.agent, from), BT_KV_SUCCESS);
    expect_pages('a');
}

static void test_another_prefill(void **state)
{
    open_room(5);
    bt_kv_room_t to = recv_open(5);
    (void) send_open(&p0, 5);
    wait_phase(BT_TRANSFER_PHASE_WAITING);
    side_close(&p0);
    const bt_transfer_event_t *e = rig_event(&rig, BT_TRANSFER_ORPHANED);
    assert_true(e->is_prefill_fault);
    assert_int_equal(bt_transfer_repair(rig.t, 5, 50, rig_worker(&rig, "p1")), 0);
    bt_kv_room_t from = send_open(&p1, 50);
    send_pages(&p1, from, 0, PAGES);
    e = rig_event(&rig, BT_TRANSFER_MOVING);
    assert_int_equal(e->source_room, 50);
    (void) rig_event(&rig, BT_TRANSFER_DONE);
    assert_int_equal(bt_kv_poll(d0.agent, to), BT_KV_SUCCESS);
    expect_pages('b');
    side_open(&p0, "p0", 'a');
}

static void test_prefill_lost_while_moving(void **state)
{
    open_room(5);
    bt_kv_room_t to = recv_open(5), from = send_open(&p0, 5);
    send_pages(&p0, from, 0, 3);
    (void) rig_event(&rig, BT_TRANSFER_MOVING);
    side_close(&p0);
    const bt_transfer_event_t *e = rig_event(&rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    wait_state(&d0, to, BT_KV_FAILED);
    side_open(&p0, "p0", 'a');
}

static void test_decode_lost(void **state)
{
    open_room(5);
    (void) recv_open(5);
    bt_kv_room_t from = send_open(&p0, 5);
    wait_phase(BT_TRANSFER_PHASE_WAITING);
    side_close(&d0);
    const bt_transfer_event_t *e = rig_event(&rig, BT_TRANSFER_FAILED);
    assert_true(e->is_decode_fault);
    assert_false(e->is_prefill_fault);
    wait_state(&p0, from, BT_KV_FAILED);
    side_open(&d0, "d0", '.');
}

static void test_closed_by_the_gateway(void **state)
{
    open_room(5);
    bt_kv_room_t to = recv_open(5), from = send_open(&p0, 5);
    wait_phase(BT_TRANSFER_PHASE_WAITING);
    bt_transfer_room_close(rig.t, 5, true, "the client has left");
    wait_state(&d0, to, BT_KV_FAILED);
    wait_state(&p0, from, BT_KV_FAILED);
    /* Also where the engine opens it only now. */
    open_room(6);
    bt_transfer_room_close(rig.t, 6, true, "the client has left");
    TURN_UNTIL(&rig.loop, rig_stats(&rig).rooms_closed == 2);
    wait_state(&p0, send_open(&p0, 6), BT_KV_FAILED);
}

/* Without its gateway a room goes on. */
static void test_gateway_gone(void **state)
{
    open_room(5);
    bt_kv_room_t to = recv_open(5), from = send_open(&p0, 5);
    send_pages(&p0, from, 0, 3);
    (void) rig_event(&rig, BT_TRANSFER_MOVING);
    rig_close_hub(&rig);
    send_pages(&p0, from, 3, PAGES - 3);
    wait_state(&d0, to, BT_KV_SUCCESS);
    wait_state(&p0, from, BT_KV_SUCCESS);
    expect_pages('a');
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_done),
        TEST(test_another_prefill),
        TEST(test_prefill_lost_while_moving),
        TEST(test_decode_lost),
        TEST(test_closed_by_the_gateway),
        TEST(test_gateway_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
