/* An agent's connection to a gateway: registering, being refused, losing it and finding it again, gateways that say rubbish or read nothing. */
#include "fake_gateway.h"
#include "raw_peer.h"

#include "transport/gateway/gateway_conn.h"

#include <stdio.h>

static const bt_kv_config_t by_hand = {.progress = BT_KV_PROGRESS_CALLER};

typedef struct bench {
    fake_t fake;
    rig_side_t side;
    uint32_t gateway;
} bench_t;

static void bench_open(bench_t *b, const bt_kv_config_t *config)
{
    fake_open(&b->fake);
    rig_side_open(&b->side, "prefill", config, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    b->gateway = fake_join(&b->fake, &b->side, 0, 1);
}

static void bench_close(bench_t *b)
{
    if (b->side.agent != NULL)
        rig_side_close(&b->side);
    fake_close(&b->fake);
}

static const char *why_not(bench_t *b)
{
    static char text[256];

    bt_kv_gateway_state(b->side.agent, b->gateway, text, sizeof(text));
    return text;
}

static bool is_registered(bench_t *b)
{
    return bt_kv_gateway_state(b->side.agent, b->gateway, NULL, 0) == 1;
}

static bt_kv_room_t open_sender(bench_t *b, uint64_t id, bool is_dummy)
{
    bt_kv_send_spec_t spec = {.room = id, .layout = b->side.layout, .dummy = is_dummy};
    bt_kv_room_t room = 0;

    assert_int_equal(bt_kv_send_open(b->side.agent, &spec, &room), 0);
    return room;
}

static void tell_open(bench_t *b, uint64_t id)
{
    fake_open_room(&b->fake, BT_KV_CONTROL_OPEN, "prefill", BT_KV_SIDE_SENDER, id, id, 0, NULL, 0);
}

/* ---- registering ---- */
static void registers(const bt_kv_config_t *config)
{
    bench_t b;
    char text[8] = "x";

    bench_open(&b, config);
    const fake_conn_t *conn = fake_find(&b.fake, "prefill");
    assert_non_null(conn);
    assert_int_equal(conn->hello.version, BT_KV_CONTROL_VERSION);
    assert_string_equal(conn->worker, "http://127.0.0.1:8000");
    assert_string_equal(conn->host, "127.0.0.1");
    assert_int_equal(conn->hello.port, bt_kv_agent_port(b.side.agent));
    assert_int_equal(conn->hello.rank, 0);
    assert_int_equal(conn->hello.ranks, 1);
    assert_int_equal(conn->hello.kinds, b.side.config.backends);
    assert_int_not_equal(conn->hello.incarnation, 0);
    assert_int_equal(bt_kv_gateway_state(b.side.agent, b.gateway, text, sizeof(text)), 1);
    assert_string_equal(text, "");
    FAKE_WAIT(&b.fake, conn->pings >= 3);
    bench_close(&b);
}

static void test_registers_and_heartbeats(void **state)
{
    registers(NULL);
    registers(&by_hand);
}

/* Who says it at the gateway takes over the agent's part of rooms: so no peer may learn it, not even one that has the token. */
static void test_only_gateways_hear_its_incarnation(void **state)
{
    static raw_t raw;
    bench_t b;

    bench_open(&b, NULL);
    raw_dial(&raw, NULL, bt_kv_agent_port(b.side.agent));
    raw_hello(&raw, b.side.agent);
    uint64_t told = raw_read_type(&raw, BT_KV_HELLO).hello.incarnation;
    assert_true(told != fake_find(&b.fake, "prefill")->hello.incarnation);
    raw_close(&raw);
    bench_close(&b);
}

/* A listener on all addresses names the one that the gateway is reached by. */
static void test_any_address(void **state)
{
    bench_t b;

    bench_open(&b, &(bt_kv_config_t){.host = "0.0.0.0"});
    assert_string_equal(fake_find(&b.fake, "prefill")->host, "127.0.0.1");
    bench_close(&b);
}

static void test_bad_arguments(void **state)
{
    bench_t b;
    bt_kv_gateway_t good = {.host = "127.0.0.1", .port = 9, .worker = "w"}, bad[7];
    char big[BT_KV_SECRET_MAX + 2] = {0};
    uint32_t number = 77;

    bench_open(&b, NULL);
    for (unsigned i = 0; i < 7; i++)
        bad[i] = good;
    memset(big, 'x', sizeof(big) - 1);
    bad[0].host = "no.number";
    bad[1].port = 0;
    bad[2].worker = NULL;
    bad[3].worker = big;
    bad[4].token = big;
    bad[5].rank = 1; /* of one */
    bad[6].ranks = BT_KV_CONTROL_PEERS_MAX + 1;
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(bt_kv_gateway_add(b.side.agent, &bad[i], &number), BT_E_INVAL);
    assert_int_equal(number, 77);
    assert_int_equal(bt_kv_gateway_state(b.side.agent, 0, NULL, 0), BT_E_INVAL);
    assert_int_equal(bt_kv_gateway_state(b.side.agent, b.gateway + 1, NULL, 0), BT_E_INVAL);
    for (unsigned i = 1; i < BT_KV_GATEWAYS_MAX; i++)
        assert_int_equal(bt_kv_gateway_add(b.side.agent, &good, &number), 0);
    assert_int_equal(bt_kv_gateway_add(b.side.agent, &good, &number), BT_E_LIMIT);
    assert_int_equal(bt_kv_gateway_peers(b.side.agent, 5, NULL, 0, &number), BT_E_AGAIN);
    assert_int_equal(bt_kv_gateway_peers(b.side.agent, 5, NULL, 1, &number), BT_E_INVAL);
    bench_close(&b);
}

static void test_refused_and_then_taken(void **state)
{
    bench_t b;
    bt_kv_gateway_t gateway = {.host = "127.0.0.1", .worker = "w"};

    fake_open(&b.fake);
    b.fake.refusal = "another token: give both the same one";
    b.fake.retry_ms = 100;
    gateway.port = b.fake.port;
    rig_side_open(&b.side, "prefill", NULL, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    assert_int_equal(bt_kv_gateway_add(b.side.agent, &gateway, &b.gateway), 0);
    FAKE_WAIT(&b.fake, b.fake.refused == 2);
    FAKE_WAIT(&b.fake, strstr(why_not(&b), "refused: another token") != NULL);
    assert_int_equal(bt_kv_gateway_state(b.side.agent, b.gateway, NULL, 0), 0);
    b.fake.refusal = NULL;
    FAKE_WAIT(&b.fake, is_registered(&b));
    bench_close(&b);
}

static void test_another_version(void **state)
{
    bench_t b;
    bt_kv_gateway_t gateway = {.host = "127.0.0.1", .worker = "w"};

    fake_open(&b.fake);
    b.fake.version = 9;
    gateway.port = b.fake.port;
    rig_side_open(&b.side, "prefill", NULL, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    assert_int_equal(bt_kv_gateway_add(b.side.agent, &gateway, &b.gateway), 0);
    FAKE_WAIT(&b.fake, strstr(why_not(&b), "it speaks version 9") != NULL);
    bench_close(&b);
}

/* Nobody there at first: the engine's rooms do not mind, the agent goes on dialling. */
static void test_a_gateway_that_comes_late(void **state)
{
    bench_t b;
    bt_kv_gateway_t gateway = {.host = "127.0.0.1", .worker = "w"};

    fake_open(&b.fake);
    gateway.port = b.fake.port;
    fake_die(&b.fake);
    rig_side_open(&b.side, "prefill", NULL, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    assert_int_equal(bt_kv_gateway_add(b.side.agent, &gateway, &b.gateway), 0);
    FAKE_WAIT(&b.fake, strstr(why_not(&b), "cannot connect") != NULL);
    bt_kv_room_t room = open_sender(&b, 5, true);
    assert_int_equal(bt_kv_poll(b.side.agent, room), BT_KV_WAITING_FOR_INPUT);
    fake_live(&b.fake, 1);
    FAKE_WAIT(&b.fake, is_registered(&b));
    bench_close(&b);
}

static void test_a_silent_gateway_is_lost(void **state)
{
    bench_t b;

    fake_open(&b.fake);
    b.fake.dead_ms = 100;
    rig_side_open(&b.side, "prefill", NULL, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    b.gateway = fake_join(&b.fake, &b.side, 0, 1);
    b.fake.is_mute = true;
    FAKE_WAIT(&b.fake, b.fake.lost >= 1);
    b.fake.is_mute = false;
    FAKE_WAIT(&b.fake, is_registered(&b) && b.fake.accepted >= 2);
    bench_close(&b);
}

/* ---- coming back ---- */
static void test_the_same_gateway_hears_everything_anew(void **state)
{
    bench_t b;

    bench_open(&b, NULL);
    for (uint64_t id = 1; id <= 3; id++)
        tell_open(&b, id);
    bt_kv_room_t rooms[4];
    for (uint64_t id = 1; id <= 3; id++)
        rooms[id] = open_sender(&b, id, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT) &&
                           fake_is_last(&b.fake, "prefill", 3, BT_KV_WAITING_FOR_INPUT));
    fake_die(&b.fake);
    b.fake.report_count = 0;
    FAKE_WAIT(&b.fake, !is_registered(&b));
    /* One ends and is released while nobody listens, one moves on, one stays. */
    assert_int_equal(bt_kv_abort(b.side.agent, rooms[1], "the client left"), 0);
    assert_int_equal(bt_kv_room_release(b.side.agent, rooms[1]), 1);
    bt_kv_chunk_t chunk = {.pages = (const uint32_t[]){1}, .page_count = 1};
    assert_int_equal(bt_kv_send(b.side.agent, rooms[2], &chunk), 0);
    fake_live(&b.fake, 1);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_FAILED) &&
                           fake_is_last(&b.fake, "prefill", 2, BT_KV_TRANSFERRING) &&
                           fake_is_last(&b.fake, "prefill", 3, BT_KV_WAITING_FOR_INPUT));
    assert_string_equal(fake_last(&b.fake, "prefill", 1)->reason, "aborted: the client left");
    bench_close(&b);
}

/* Written to a connection that broke before the gateway read it: told again. */
static void test_what_was_lost_with_the_connection(void **state)
{
    bench_t b;

    bench_open(&b, NULL);
    tell_open(&b, 1);
    bt_kv_room_t room = open_sender(&b, 1, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT));
    b.fake.is_deaf = true;
    assert_int_equal(bt_kv_abort(b.side.agent, room, "the client left"), 0);
    assert_int_equal(bt_kv_room_release(b.side.agent, room), 1);
    fake_die(&b.fake);
    b.fake.is_deaf = false;
    fake_live(&b.fake, 1);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_FAILED));
    bench_close(&b);
}

static void test_a_new_gateway_hears_of_no_old_room(void **state)
{
    bench_t b;

    bench_open(&b, NULL);
    tell_open(&b, 1);
    bt_kv_room_t room = open_sender(&b, 1, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT));
    fake_die(&b.fake);
    b.fake.report_count = 0;
    FAKE_WAIT(&b.fake, !is_registered(&b));
    fake_live(&b.fake, 2);
    FAKE_WAIT(&b.fake, is_registered(&b));
    assert_int_equal(bt_kv_poll(b.side.agent, room), BT_KV_WAITING_FOR_INPUT);
    bt_kv_chunk_t chunk = {.pages = (const uint32_t[]){1}, .page_count = 1, .last = true};
    assert_int_equal(bt_kv_send(b.side.agent, room, &chunk), 0);
    assert_int_equal(bt_kv_poll(b.side.agent, room), BT_KV_SUCCESS);
    /* A room of the new one is heard of, after the old one would have been. */
    tell_open(&b, 2);
    open_sender(&b, 2, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 2, BT_KV_WAITING_FOR_INPUT));
    assert_int_equal(fake_count(&b.fake, "prefill", 1), 0);
    bench_close(&b);
}

static void test_closing_says_how_rooms_ended(void **state)
{
    bench_t b;

    bench_open(&b, NULL);
    tell_open(&b, 1);
    open_sender(&b, 1, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT));
    rig_side_close(&b.side);
    FAKE_WAIT(&b.fake, b.fake.lost == 1);
    assert_true(fake_is_last(&b.fake, "prefill", 1, BT_KV_FAILED));
    assert_string_equal(fake_last(&b.fake, "prefill", 1)->reason, "agent prefill closes");
    bench_close(&b);
}

/* ---- gateways that misbehave ---- */
/* Rooms that come and go, each with a gateway's OPEN; as many as there are in a step. */
static void run_rooms(bench_t *b, uint64_t first, uint64_t count)
{
    for (uint64_t id = first; id < first + count; id++)
        tell_open(b, id);
    FAKE_WAIT(&b->fake,
              bt_kv_gateway_peers(b->side.agent, first + count - 1, NULL, 0, &(uint32_t){0}) == 0);
    for (uint64_t id = first; id < first + count; id++) {
        bt_kv_room_t room = open_sender(b, id, true);
        assert_int_equal(
            bt_kv_abort(b->side.agent, room, "a reason of some length, so that it takes some room"),
            0);
        assert_int_equal(bt_kv_room_release(b->side.agent, room), 1);
    }
}

static void test_a_gateway_that_does_not_read(void **state)
{
    enum { STEP = 500 };
    bench_t b;
    uint64_t rooms = 0;

    fake_open(&b.fake);
    b.fake.dead_ms = 2000;
    rig_side_open(&b.side, "prefill", &by_hand, 7, RIG_PAGE_BYTES, RIG_PAGE_BYTES);
    b.gateway = fake_join(&b.fake, &b.side, 0, 1);
    const bt_kv_gateway_conn_t *conn = &b.side.agent->gateways->conns[0];
    b.fake.is_deaf = true;
    while (!bt_kv_gateway_conn_is_full(conn)) { /* the sockets' buffers first */
        run_rooms(&b, rooms + 1, STEP);
        rooms += STEP;
    }
    for (int i = 0; i < 10; i++, rooms += STEP)
        run_rooms(&b, rooms + 1, STEP);
    assert_in_range(conn->out.n, 1u << 19, 1u << 20);
    FAKE_WAIT(&b.fake, conn->state != BT_KV_GATEWAY_CONN_UP); /* it hangs up, and forgets nothing */
    assert_non_null(strstr(why_not(&b), "does not read"));
    fake_die(&b.fake);
    b.fake.report_count = 0;
    b.fake.is_deaf = false;
    fake_live(&b.fake, 1);
    FAKE_WAIT(&b.fake, b.fake.report_count >= rooms);
    assert_int_equal(b.fake.report_count, rooms);
    for (uint64_t i = 0; i < rooms; i++) {
        assert_int_equal(b.fake.reports[i].room.room, i + 1);
        assert_int_equal(b.fake.reports[i].room.state, BT_KV_FAILED);
    }
    assert_in_range(conn->out.room, 0, 2u << 20);
    bench_close(&b);
}

/* What it says breaks its connection, and nothing else. */
static void misbehaves(const void *p, size_t n, const char *why)
{
    bench_t b;

    bench_open(&b, &by_hand);
    tell_open(&b, 1);
    bt_kv_room_t room = open_sender(&b, 1, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT));
    fake_say_bytes(&b.fake, "prefill", p, n);
    const char *text = "";
    FAKE_WAIT(&b.fake, (text = why_not(&b))[0] != '\0' || b.fake.accepted > 1);
    if (b.fake.accepted == 1 && strstr(text, why) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", why, text);
    FAKE_WAIT(&b.fake, b.fake.accepted == 2 && is_registered(&b));
    assert_int_equal(bt_kv_poll(b.side.agent, room), BT_KV_WAITING_FOR_INPUT);
    bench_close(&b);
}

static void misbehaves_by(bt_kv_control_t message, const char *why)
{
    uint8_t bytes[BT_KV_CONTROL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(&message, bytes, sizeof(bytes));

    assert_true(n > 0);
    misbehaves(bytes, (size_t) n, why);
}

static void test_hostile_bytes(void **state)
{
    uint8_t unknown[8] = {0, 0, 0, 0, 200}, empty_open[8] = {0, 0, 0, 0, BT_KV_CONTROL_OPEN};

    misbehaves("HTTP/1.1 400 Bad Request\r\n\r\n", 28, "no message at all");
    misbehaves(unknown, 8, "an unknown type");
    misbehaves(empty_open, 8, "a malformed message");
    misbehaves_by((bt_kv_control_t){.type = BT_KV_CONTROL_WELCOME, .welcome = {1, 1, 1, 1}},
                  "a second welcome");
    misbehaves_by((bt_kv_control_t){.type = BT_KV_CONTROL_ROOM, .room = {.room = 1, .side = 1}},
                  "what only agents say");
    misbehaves_by(
        (bt_kv_control_t){.type = BT_KV_CONTROL_REFUSE, .refuse = {0, BT_STR("go\r\naway")}},
        "refused: go??away");
}

static void test_an_unknown_message_that_may_be_skipped(void **state)
{
    bench_t b;
    uint8_t unknown[8 + 3] = {3, 0, 0, 0, 200, BT_KV_CONTROL_SKIP};

    bench_open(&b, NULL);
    b.fake.is_mute = true;
    fake_say_bytes(&b.fake, "prefill", unknown, 5); /* and in two pieces */
    fake_turn(&b.fake);
    fake_say_bytes(&b.fake, "prefill", unknown + 5, sizeof(unknown) - 5);
    b.fake.is_mute = false;
    tell_open(&b, 1);
    open_sender(&b, 1, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_WAITING_FOR_INPUT));
    assert_int_equal(b.fake.accepted, 1);
    bench_close(&b);
}

/* OPENs without end: the table is bounded, and the gateway hears what does not fit; what is over makes room. */
static void test_a_full_table(void **state)
{
    enum { ROOMS = 65536 };
    bench_t b;

    bench_open(&b, &by_hand);
    for (uint64_t id = 1; id <= ROOMS + 1; id++)
        tell_open(&b, id);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", ROOMS + 1, BT_KV_FAILED));
    assert_int_equal(b.side.agent->gateways->commands.count, ROOMS);
    bt_kv_room_t room = open_sender(&b, 1, true);
    assert_int_equal(bt_kv_room_release(b.side.agent, room), 1);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", 1, BT_KV_FAILED));
    tell_open(&b, ROOMS + 2);
    open_sender(&b, ROOMS + 2, true);
    FAKE_WAIT(&b.fake, fake_is_last(&b.fake, "prefill", ROOMS + 2, BT_KV_WAITING_FOR_INPUT));
    assert_int_equal(b.side.agent->gateways->commands.count, ROOMS);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registers_and_heartbeats),
        cmocka_unit_test(test_only_gateways_hear_its_incarnation),
        cmocka_unit_test(test_any_address),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_refused_and_then_taken),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_a_gateway_that_comes_late),
        cmocka_unit_test(test_a_silent_gateway_is_lost),
        cmocka_unit_test(test_the_same_gateway_hears_everything_anew),
        cmocka_unit_test(test_what_was_lost_with_the_connection),
        cmocka_unit_test(test_a_new_gateway_hears_of_no_old_room),
        cmocka_unit_test(test_closing_says_how_rooms_ended),
        cmocka_unit_test(test_a_gateway_that_does_not_read),
        cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_an_unknown_message_that_may_be_skipped),
        cmocka_unit_test(test_a_full_table),
    };

    bt_kv_rig_use(&(bt_kv_suite_t){.name = "gateway", .backends = BT_KV_TCP});
    return cmocka_run_group_tests(tests, NULL, NULL);
}
