/* An agent's connection: hello and refusals, signs of life, bytes that are no messages. */
#include "transfer/rig.h"

#include <sys/resource.h>

static fake_t a, b;

static void refused(rig_t *rig, bt_kv_control_t *hello, const char *reason)
{
    fake_dial(&a, rig);
    fake_prove(&a, rig->token);
    if (!bt_kv_auth_is_open(&a.auth))
        fake_say(&a, hello);
    bt_kv_control_t m = fake_hear(&a, BT_KV_CONTROL_REFUSE);
    char text[BT_KV_CONTROL_TEXT_MAX + 1];
    snprintf(text, sizeof text, "%.*s", BT_STR_ARG(m.refuse.reason));
    assert_in(text, reason);
    assert_true(m.refuse.retry_ms > 0);
    fake_hear_end(&a);
    fake_hang_up(&a);
    assert_int_equal(rig_stats(rig).agents, 0);
}

static void test_welcome(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 123, .dead_ms = 4567});
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    fake_dial(&a, &rig);
    fake_say(&a, &hello);
    bt_kv_control_t m = fake_hear(&a, BT_KV_CONTROL_WELCOME);
    assert_int_equal(m.welcome.heartbeat_ms, 123);
    assert_int_equal(m.welcome.dead_ms, 4567);
    assert_true(m.welcome.incarnation != 0);
    assert_int_equal(rig_stats(&rig).agents, 1);
    assert_int_equal(rig_stats(&rig).agents_waiting, 1);
    fake_hang_up(&a);
    TURN_UNTIL(&rig.loop, rig_stats(&rig).agents == 0);
    assert_int_equal(rig_stats(&rig).agents_waiting, 0);
    assert_int_equal(rig_stats(&rig).agents_lost, 1);
    rig_close(&rig);
}

static void test_refusals(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.token = "secret"});
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    rig.token = NULL;
    refused(&rig, &hello, "it has no proof of the token: give both sides the same one");
    rig.token = "secreT";
    refused(&rig, &hello,
            "it has another token: give both sides the same one, the gateway's --transfer-token");
    rig.token = "secretsecret\nsecret"; /* the first one is proved */
    refused(&rig, &hello, "--transfer-token");
    rig.token = "secret";
    hello.hello.version = 9;
    refused(&rig, &hello, "version");
    hello.hello.version = BT_KV_CONTROL_VERSION;
    hello.hello.host = BT_STR("prefill.example");
    refused(&rig, &hello, "numeric");
    hello.hello.host = BT_STR("127.0.0.1");
    hello.hello.ranks = 65;
    refused(&rig, &hello, "rank");
    assert_int_equal(rig_stats(&rig).agents_refused, 6);
    hello.hello.ranks = 1;
    fake_join_as(&a, &rig, &hello);
    fake_hang_up(&a);
    rig_close(&rig);
}

static void test_max_agents(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.max_agents = 1});
    fake_join(&b, &rig, "p0", 0, 1, 1);
    bt_kv_control_t hello = hello_of("p1", 0, 1, 2);
    fake_dial(&a, &rig);
    fake_say(&a, &hello);
    (void) fake_hear(&a, BT_KV_CONTROL_REFUSE);
    fake_hear_end(&a);
    fake_hang_up(&a);
    fake_hang_up(&b);
    rig_close(&rig);
}

/* A wildcard is no address to dial: the one it connects from is taken. */
static void test_wildcard_host(void **state)
{
    rig_t rig;
    bt_text_t text;

    rig_open(&rig, NULL);
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    hello.hello.host = BT_STR("0.0.0.0");
    fake_join_as(&a, &rig, &hello);
    bt_text_init(&text);
    bt_transfer_describe(rig.t, 10, &text);
    assert_in(text.data, "\"address\":\"127.0.0.1:9000\"");
    bt_text_fini(&text);
    fake_hang_up(&a);
    rig_close(&rig);
}

/* Both ways: we ping, and one that says nothing is lost. */
static void test_heartbeat(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 400});
    fake_join(&a, &rig, "p0", 0, 1, 1);
    for (int i = 0; i < 40; i++) { /* twice dead_ms, were it silent */
        (void) fake_hear(&a, BT_KV_CONTROL_PING);
        fake_say(&a, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
    }
    assert_int_equal(rig_stats(&rig).agents, 1);
    fake_hear_end(&a); /* and now it is silent */
    assert_int_equal(rig_stats(&rig).agents, 0);
    assert_int_equal(rig_stats(&rig).agents_lost, 1);
    fake_hang_up(&a);
    rig_close(&rig);
}

/* When it was we who slept, what came meanwhile is a sign of life. */
static void test_own_sleep_is_no_silence(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 60});
    fake_join(&a, &rig, "p0", 0, 1, 1);
    uint64_t until_ms = bt_clock_ms() + 100;
    fake_say(&a, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
    while (bt_clock_ms() < until_ms)
        usleep(5000); /* the loop does not turn */
    turn(&rig.loop, 2);
    assert_int_equal(rig_stats(&rig).agents, 1);
    fake_hear_end(&a);
    fake_hang_up(&a);
    rig_close(&rig);
}

static void closed_after(rig_t *rig, const void *p, size_t n)
{
    fake_dial(&a, rig);
    fake_send(&a, p, n);
    fake_hear_end(&a);
    fake_hang_up(&a);
}

static void test_rubbish_instead_of_hello(void **state)
{
    static const uint8_t too_long[8] = {0xff, 0xff, 0xff, 0x7f, BT_KV_CONTROL_HELLO, 0, 0, 0};
    static const uint8_t other_magic[16] = {8, 0, 0, 0, BT_KV_CONTROL_HELLO, 0, 0, 0, 1, 2, 3, 4};
    static const uint8_t skippable[8] = {0, 0, 0, 0, 200, 1, 0, 0};
    static const char http[] = "GET /metrics HTTP/1.1\r\nHost: baton\r\n\r\n";
    uint8_t ping[64];
    rig_t rig;

    rig_open(&rig, NULL);
    closed_after(&rig, too_long, sizeof too_long);
    closed_after(&rig, other_magic, sizeof other_magic);
    closed_after(&rig, skippable, sizeof skippable);
    closed_after(&rig, http, sizeof http - 1);
    ptrdiff_t n =
        bt_kv_control_encode(&(bt_kv_control_t){.type = BT_KV_CONTROL_PING}, ping, sizeof ping);
    closed_after(&rig, ping, (size_t) n);
    assert_int_equal(rig_stats(&rig).agents_refused, 5);
    rig_close(&rig);
}

static void join_and_send(rig_t *rig, const void *p, size_t n)
{
    fake_join(&a, rig, "p0", 0, 1, 1);
    fake_send(&a, p, n);
    fake_hear_end(&a);
    fake_hang_up(&a);
}

static void test_rubbish_after_hello(void **state)
{
    static const uint8_t unknown[8] = {0, 0, 0, 0, 200, 0, 0, 0};
    static const uint8_t bad_room[12] = {4, 0, 0, 0, BT_KV_CONTROL_ROOM, 0, 0, 0};
    uint8_t bytes[1024];
    rig_t rig;

    rig_open(&rig, NULL);
    join_and_send(&rig, unknown, sizeof unknown);
    join_and_send(&rig, bad_room, sizeof bad_room);
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    ptrdiff_t n = bt_kv_control_encode(&hello, bytes, sizeof bytes);
    join_and_send(&rig, bytes, (size_t) n); /* a second hello */
    bt_kv_control_t abort_it = {.type = BT_KV_CONTROL_ABORT};
    abort_it.abort.room = 1;
    n = bt_kv_control_encode(&abort_it, bytes, sizeof bytes);
    join_and_send(&rig, bytes, (size_t) n); /* what only gateways say */
    assert_int_equal(rig_stats(&rig).agents_lost, 4);
    rig_close(&rig);
}

static void test_byte_by_byte_and_skipped(void **state)
{
    static const uint8_t skippable[12] = {4, 0, 0, 0, 200, 1, 0, 0, 9, 9, 9, 9};
    uint8_t bytes[1024];
    rig_t rig;

    rig_open(&rig, NULL);
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    ptrdiff_t n = bt_kv_control_encode(&hello, bytes, sizeof bytes);
    fake_dial(&a, &rig);
    for (ptrdiff_t i = 0; i < n; i++) {
        fake_send(&a, bytes + i, 1);
        turn_once(&rig.loop);
    }
    (void) fake_hear(&a, BT_KV_CONTROL_WELCOME);
    fake_send(&a, skippable, 5);
    turn(&rig.loop, 3);
    fake_send(&a, skippable + 5, 7);
    fake_sync(&a);
    assert_int_equal(rig_stats(&rig).agents, 1);
    fake_hang_up(&a);
    rig_close(&rig);
}

/* Every cut and every changed byte of a hello and of a report: an answer or an end, never a crash. */
static void test_mutations(void **state)
{
    uint8_t whole[1024];
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 10, .dead_ms = 30});
    bt_kv_control_t hello = hello_of("p0", 0, 1, 1);
    bt_kv_control_t room = room_of(5, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 7);
    ptrdiff_t n = bt_kv_control_encode(&hello, whole, sizeof whole);
    n += bt_kv_control_encode(&room, whole + n, sizeof whole - (size_t) n);
    for (ptrdiff_t i = 0; i < n; i++) {
        uint8_t bytes[1024];
        memcpy(bytes, whole, (size_t) n);
        bytes[i] = (uint8_t) (bytes[i] ^ 0xff);
        fake_dial(&a, &rig);
        fake_send(&a, bytes, (size_t) n);
        turn(&rig.loop, 2);
        fake_hang_up(&a);
        fake_dial(&a, &rig);
        fake_send(&a, whole, (size_t) i);
        turn(&rig.loop, 2);
        fake_hang_up(&a);
    }
    TURN_UNTIL(&rig.loop, rig_stats(&rig).agents == 0);
    fake_join(&a, &rig, "p0", 0, 1, 1);
    fake_hang_up(&a);
    rig_close(&rig);
}

/* Connections that say nothing keep no agent out: the oldest of them makes way for it. */
static void test_many_that_say_nothing(void **state)
{
    enum { MANY = 1100 };
    static int fds[MANY];
    struct rlimit limit;
    rig_t rig;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * MANY + 100)
        skip();
    rig_open(&rig, NULL);
    for (unsigned i = 0; i < MANY; i++) {
        fake_dial(&b, &rig);
        fds[i] = b.fd;
        turn_once(&rig.loop);
    }
    fake_join(&a, &rig, "p0", 0, 1, 1);
    assert_int_equal(rig_stats(&rig).agents, 1);
    b.fd = fds[0];
    fake_hear_end(&b);
    assert_true(rig_stats(&rig).agents_refused >= MANY - 1024);
    fake_sync(&a);
    for (unsigned i = 0; i < MANY; i++)
        close(fds[i]);
    fake_hang_up(&a);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_welcome),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_max_agents),
        cmocka_unit_test(test_wildcard_host),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_own_sleep_is_no_silence),
        cmocka_unit_test(test_rubbish_instead_of_hello),
        cmocka_unit_test(test_rubbish_after_hello),
        cmocka_unit_test(test_byte_by_byte_and_skipped),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_many_that_say_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
