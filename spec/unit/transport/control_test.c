/* What gateway and agent say to each other: what is written comes back, what is cut, stretched or out of its bounds is refused. */
#include "transport/wire/control.h"

#include "base/err.h"
#include "base/rand.h"
#include "unit.h"

#include <stdlib.h>

static uint8_t bytes[BT_KV_CONTROL_BYTES];

static size_t encode(const bt_kv_control_t *message)
{
    ptrdiff_t n = bt_kv_control_encode(message, bytes, sizeof(bytes));

    assert_in_range(n, 8, sizeof(bytes));
    return (size_t) n;
}

/* Of [0, n): the one message there is. */
static int decode(size_t n, bt_kv_control_t *message_p)
{
    const char *why = NULL;

    assert_int_equal(bt_kv_control_next(bytes, n, message_p), n);
    int rc = bt_kv_control_decode(message_p, &why);
    assert_true(rc == 0 || rc == 1 || why != NULL);
    return rc;
}

static bt_kv_control_t back(const bt_kv_control_t *message)
{
    bt_kv_control_t m;

    assert_int_equal(decode(encode(message), &m), 0);
    assert_int_equal(m.type, message->type);
    assert_int_equal(m.flags, message->flags);
    return m;
}

static bool is_text(bt_str_t s, const char *text)
{
    return bt_str_eq(s, bt_str(text));
}

static bt_kv_control_t a_hello(void)
{
    return (bt_kv_control_t){.type = BT_KV_CONTROL_HELLO,
                             .hello = {
                                 .version = 7,
                                 .rank = 2,
                                 .ranks = 4,
                                 .kinds = BT_KV_TCP | BT_KV_SHM,
                                 .pid = 4711,
                                 .incarnation = UINT64_C(0x1122334455667788),
                                 .name = BT_STR("decode-2"),
                                 .worker = BT_STR("http://10.0.0.1:8000"),
                                 .host = BT_STR("10.0.0.1"),
                                 .port = 65535,
                             }};
}

static bt_kv_control_t a_room(void)
{
    return (bt_kv_control_t){.type = BT_KV_CONTROL_ROOM,
                             .room = {.room = INT64_MAX,
                                      .side = BT_KV_SIDE_RECEIVER,
                                      .state = BT_KV_WAITING_FOR_INPUT,
                                      .is_orphan = true,
                                      .rc = BT_E_STALL,
                                      .kind = BT_KV_TCP,
                                      .bytes = UINT64_C(1) << 40,
                                      .pages = 2,
                                      .pages_wanted = 3,
                                      .bootstrap_us = 4,
                                      .wait_us = 5,
                                      .transfer_us = 6,
                                      .reason = BT_STR("lost p")}};
}

static bt_kv_control_t an_open(uint8_t type)
{
    return (bt_kv_control_t){.type = type,
                             .open = {.room = 5,
                                      .source_room = 6,
                                      .side = BT_KV_SIDE_SENDER,
                                      .expire_ms = 7,
                                      .repair_ms = 8,
                                      .peers = {{0, BT_STR("10.0.0.1"), 9}, {1, BT_STR("::1"), 10}},
                                      .peer_count = 2}};
}

static void test_hello(void **state)
{
    bt_kv_control_t in = a_hello(), m = back(&in);

    assert_int_equal(m.hello.version, 7);
    assert_int_equal(m.hello.rank, 2);
    assert_int_equal(m.hello.ranks, 4);
    assert_int_equal(m.hello.kinds, BT_KV_TCP | BT_KV_SHM);
    assert_int_equal(m.hello.pid, 4711);
    assert_int_equal(m.hello.incarnation, UINT64_C(0x1122334455667788));
    assert_true(is_text(m.hello.name, "decode-2"));
    assert_true(is_text(m.hello.worker, "http://10.0.0.1:8000"));
    assert_true(is_text(m.hello.host, "10.0.0.1"));
    assert_int_equal(m.hello.port, 65535);
}

static void test_room(void **state)
{
    bt_kv_control_t in = a_room(), m = back(&in);

    assert_int_equal(m.room.room, INT64_MAX);
    assert_int_equal(m.room.side, BT_KV_SIDE_RECEIVER);
    assert_int_equal(m.room.state, BT_KV_WAITING_FOR_INPUT);
    assert_true(m.room.is_orphan);
    assert_int_equal(m.room.rc, BT_E_STALL);
    assert_int_equal(m.room.kind, BT_KV_TCP);
    assert_int_equal(m.room.bytes, UINT64_C(1) << 40);
    assert_int_equal(m.room.pages, 2);
    assert_int_equal(m.room.pages_wanted, 3);
    assert_int_equal(m.room.bootstrap_us, 4);
    assert_int_equal(m.room.wait_us, 5);
    assert_int_equal(m.room.transfer_us, 6);
    assert_true(is_text(m.room.reason, "lost p"));
}

static void test_open_and_source(void **state)
{
    static const uint8_t types[] = {BT_KV_CONTROL_OPEN, BT_KV_CONTROL_SOURCE};

    for (unsigned i = 0; i < 2; i++) {
        bt_kv_control_t in = an_open(types[i]), m = back(&in);
        assert_int_equal(m.open.room, 5);
        assert_int_equal(m.open.source_room, 6);
        assert_int_equal(m.open.side, BT_KV_SIDE_SENDER);
        assert_int_equal(m.open.expire_ms, 7);
        assert_int_equal(m.open.repair_ms, 8);
        assert_int_equal(m.open.peer_count, 2);
        assert_int_equal(m.open.peers[1].rank, 1);
        assert_int_equal(m.open.peers[1].port, 10);
        assert_true(is_text(m.open.peers[1].host, "::1"));
    }
}

static void test_the_small_ones(void **state)
{
    bt_kv_control_t m = back(&(bt_kv_control_t){.type = BT_KV_CONTROL_PING, .ping = {1, 2, 3}});
    assert_int_equal(m.ping.rooms_open, 1);
    assert_int_equal(m.ping.bytes_sent, 2);
    assert_int_equal(m.ping.bytes_received, 3);
    m = back(&(bt_kv_control_t){.type = BT_KV_CONTROL_WELCOME, .welcome = {1, 2, 3, UINT64_MAX}});
    assert_int_equal(m.welcome.version, 1);
    assert_int_equal(m.welcome.heartbeat_ms, 2);
    assert_int_equal(m.welcome.dead_ms, 3);
    assert_int_equal(m.welcome.incarnation, UINT64_MAX);
    m = back(&(bt_kv_control_t){
        .type = BT_KV_CONTROL_REFUSE, .flags = BT_KV_CONTROL_SKIP, .refuse = {9, BT_STR("who?")}});
    assert_int_equal(m.refuse.retry_ms, 9);
    assert_true(is_text(m.refuse.reason, "who?"));
    m = back(&(bt_kv_control_t){.type = BT_KV_CONTROL_ABORT, .abort = {9, BT_STR("left")}});
    assert_int_equal(m.abort.room, 9);
    assert_true(is_text(m.abort.reason, "left"));
}

/* BT_KV_CONTROL_BYTES takes the longest; texts that are too long are cut, not refused. */
static void test_the_longest(void **state)
{
    char text[300];
    bt_kv_control_t in = an_open(BT_KV_CONTROL_OPEN);

    memset(text, 'x', sizeof(text));
    in.open.peer_count = BT_KV_CONTROL_PEERS_MAX;
    for (uint32_t i = 0; i < BT_KV_CONTROL_PEERS_MAX; i++)
        in.open.peers[i] = (bt_kv_control_peer_t){i, {text, sizeof(text)}, 1};
    bt_kv_control_t m = back(&in);
    assert_int_equal(m.open.peers[63].host.n, BT_KV_CONTROL_HOST_MAX);
    in.open.peer_count++;
    assert_int_equal(bt_kv_control_encode(&in, bytes, sizeof(bytes)), BT_E_INVAL);
    in = a_hello();
    in.hello.name = in.hello.worker = in.hello.host = (bt_str_t){text, sizeof(text)};
    m = back(&in);
    assert_int_equal(m.hello.worker.n, BT_KV_CONTROL_TEXT_MAX);
}

/* A buffer that is too small: BT_E_LIMIT and nothing beyond it (the sanitizer looks on), whatever its size. */
static void test_no_room(void **state)
{
    bt_kv_control_t in = an_open(BT_KV_CONTROL_SOURCE);
    size_t whole = encode(&in);

    for (size_t n = 0; n < whole; n++) {
        uint8_t *small = malloc(n + 1);
        assert_int_equal(bt_kv_control_encode(&in, small, n), BT_E_LIMIT);
        free(small);
    }
    assert_int_equal(bt_kv_control_encode(&in, bytes, whole), whole);
    in.type = 200;
    assert_int_equal(bt_kv_control_encode(&in, bytes, sizeof(bytes)), BT_E_INVAL);
}

/* Every shorter stream waits for more; every shorter payload under a right length is refused. */
static void test_cut_at_every_byte(void **state)
{
    bt_kv_control_t all[] = {
        a_hello(),
        a_room(),
        an_open(BT_KV_CONTROL_OPEN),
        {.type = BT_KV_CONTROL_PING, .ping = {1, 2, 3}},
        {.type = BT_KV_CONTROL_WELCOME, .welcome = {1, 2, 3, 4}},
        {.type = BT_KV_CONTROL_REFUSE, .refuse = {9, BT_STR("who?")}},
        {.type = BT_KV_CONTROL_ABORT, .abort = {9, BT_STR("left")}},
    };
    bt_kv_control_t m;

    for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) {
        size_t whole = encode(&all[i]);
        for (size_t n = 0; n < whole; n++)
            assert_int_equal(bt_kv_control_next(bytes, n, &m), 0);
        for (uint32_t size = 0; size < whole - 8; size++) {
            const char *why = NULL;
            uint8_t *exact = malloc(size + 8);
            memcpy(exact, bytes, size + 8);
            memcpy(exact, &size, 4);
            assert_int_equal(bt_kv_control_next(exact, size + 8, &m), size + 8);
            assert_int_equal(bt_kv_control_decode(&m, &why), BT_E_INVAL);
            assert_non_null(why);
            free(exact);
        }
    }
}

/* A payload that has grown at its end is read all the same. */
static void test_a_longer_payload(void **state)
{
    bt_kv_control_t in = a_room(), m;
    size_t n = encode(&in);
    uint32_t size = (uint32_t) n - 8 + 5;

    memset(bytes + n, 0xee, 5);
    memcpy(bytes, &size, 4);
    assert_int_equal(decode(n + 5, &m), 0);
    assert_true(is_text(m.room.reason, "lost p"));
}

static void test_unknown_types(void **state)
{
    bt_kv_control_t m;

    memset(bytes, 0, 8);
    bytes[4] = 200;
    assert_int_equal(decode(8, &m), BT_E_INVAL);
    bytes[5] = BT_KV_CONTROL_SKIP;
    assert_int_equal(decode(8, &m), 1);
    bytes[4] = BT_KV_CONTROL_ROOM; /* a known one is not skipped for being malformed */
    assert_int_equal(decode(8, &m), BT_E_INVAL);
    bytes[6] = 1; /* must be zero */
    assert_int_equal(bt_kv_control_next(bytes, 8, &m), BT_E_INVAL);
}

/* One field of a good message made impossible. */
static void spoil(const bt_kv_control_t *message, size_t at, uint32_t value)
{
    bt_kv_control_t m;
    size_t n = encode(message);

    memcpy(bytes + 8 + at, &value, 4);
    assert_int_equal(decode(n, &m), BT_E_INVAL);
}

static void test_hostile_fields(void **state)
{
    bt_kv_control_t hello = a_hello(), open = an_open(BT_KV_CONTROL_OPEN), room = a_room(), m;
    uint32_t size = BT_KV_CONTROL_MAX + 1;

    memset(bytes, 0, 8);
    memcpy(bytes, &size, 4);
    assert_int_equal(bt_kv_control_next(bytes, 8, &m), BT_E_INVAL);
    spoil(&hello, 0, 1);           /* magic */
    spoil(&hello, 8, 4);           /* rank 4 of 4 */
    spoil(&hello, 12, 0);          /* of none */
    spoil(&hello, 32, 0xffffffff); /* bytes of the name */
    spoil(&hello, 32, BT_KV_CONTROL_TEXT_MAX + 1);
    spoil(&room, 8, (BT_KV_SUCCESS + 1u) << 8 | 1u); /* state */
    spoil(&room, 8, 3);                              /* side */
    spoil(&open, 16, 0);                             /* side */
    spoil(&open, 25, 0xffffffff);                    /* peers */
    spoil(&open, 25, BT_KV_CONTROL_PEERS_MAX + 1);
    spoil(&open, 25, 3);            /* one more than there is */
    spoil(&open, 29 + 4, 8u << 16); /* port 0 */
    spoil(&open, 29 + 6, 64);       /* bytes of the host */
    hello.hello.worker = BT_STR("");
    assert_int_equal(decode(encode(&hello), &m), BT_E_INVAL);
    room.room.room = 0;
    assert_int_equal(decode(encode(&room), &m), BT_E_INVAL);
    open.open.source_room = 0;
    assert_int_equal(decode(encode(&open), &m), BT_E_INVAL);
    bt_kv_control_t abort_none = {.type = BT_KV_CONTROL_ABORT};
    assert_int_equal(decode(encode(&abort_none), &m), BT_E_INVAL);
}

/* Random small numbers under right heads: decoded or refused, nothing read beyond; what decodes is written again. */
static void test_noise(void **state)
{
    static const uint8_t types[] = {64, 65, 72, 80, 81, 82, 83, 84, 99};

    bt_rand_seed(5);
    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t) bt_rand_below(100);
        uint8_t *noise = calloc(1, n + 8);
        const char *why = NULL;
        bt_kv_control_t m;
        for (size_t i = 0; i < n; i++)
            noise[8 + i] = (uint8_t) (bt_rand_below(3) != 0 ? 0 : bt_rand_below(9));
        noise[0] = (uint8_t) n;
        noise[4] = types[bt_rand_below(sizeof(types))];
        assert_int_equal(bt_kv_control_next(noise, n + 8, &m), n + 8);
        if (bt_kv_control_decode(&m, &why) == 0)
            encode(&m);
        free(noise);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_open_and_source),
        cmocka_unit_test(test_the_small_ones),
        cmocka_unit_test(test_the_longest),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_a_longer_payload),
        cmocka_unit_test(test_unknown_types),
        cmocka_unit_test(test_hostile_fields),
        cmocka_unit_test(test_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
