/* What people see: agents and rooms as JSON. */
#include "transfer/rig.h"

#include "base/json.h"

static pair_t *x;
static bt_text_t shown;

static int open_pair(void **state)
{
    x = calloc(1, sizeof *x);
    bt_text_init(&shown);
    return x == NULL;
}

static int close_pair(void **state)
{
    bt_text_fini(&shown);
    pair_close(x);
    free(x);
    return 0;
}

static const char *show(unsigned limit)
{
    size_t at = 0;

    bt_text_fini(&shown);
    bt_text_init(&shown);
    bt_transfer_describe(x->rig.t, limit, &shown);
    if (bt_json_validate(bt_text_str(&shown), &at) != 0)
        fail_msg("no JSON at %zu: %s", at, shown.data);
    return shown.data;
}

static void expect(const char *part)
{
    assert_in(show(1000), part);
}

static void test_agents(void **state)
{
    pair_open(x, NULL);
    bt_kv_control_t hello = hello_of("nobody \"x\"", 0, 1, 9);
    static fake_t other;
    fake_join_as(&other, &x->rig, &hello);
    expect("{\"worker\":\"p0\",\"is_waiting\":false,\"name\":\"agent\",\"rank\":0,\"ranks\":1,"
           "\"address\":\"127.0.0.1:9000\",\"pid\":4711,\"backends\":[\"shm\",\"tcp\"],");
    expect("{\"worker\":\"nobody \\\"x\\\"\",\"is_waiting\":true");
    fake_say(&x->p, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING, .ping = {1, 222, 333}});
    fake_sync(&x->d);
    expect("\"bytes_sent\":222,\"bytes_received\":333}");
    fake_hang_up(&other);
}

static void test_room(void **state)
{
    pair_open(x, NULL);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, INT64_MAX);
    pair_room_of(x, &spec);
    expect(
        "{\"room\":\"9223372036854775807\",\"source_room\":\"9223372036854775807\","
        "\"request_id\":\"request-1\",\"prefill\":\"p0\",\"decode\":\"d0\",\"phase\":\"opening\","
        "\"prefill_states\":[null],\"decode_states\":[null],\"bytes\":0,");
    expect("\"rooms_open\":1,");
    expect("\"rooms_total\":1}");
    pair_move_room(x, INT64_MAX);
    expect("\"phase\":\"moving\",\"prefill_states\":[\"WaitingForInput\"],"
           "\"decode_states\":[\"Transferring\"],\"bytes\":1024,\"pages\":1,\"pages_wanted\":4,");
    expect("\"backend\":\"tcp\"");
    fake_tell(&x->d, INT64_MAX, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4000);
    fake_tell(&x->p, INT64_MAX, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4000);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
    /* It stays for a while; 4,000 bytes in 2 ms. */
    expect("\"phase\":\"done\"");
    expect("\"rate_bytes_per_s\":2000000,");
    expect("\"rooms_open\":0,");
    expect("\"rooms_total\":1}");
}

/* The rate while it moves is that of the last interval. */
static void test_rate(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    uint64_t start_us = bt_clock_us();
    while (bt_clock_us() < start_us + 60000)
        turn_once(&x->rig.loop);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1024 + 1000000);
    fake_sync(&x->d);
    const char *at = strstr(show(10), "\"rate_bytes_per_s\":");
    assert_non_null(at);
    unsigned long rate = strtoul(at + 19, NULL, 10);
    /* A million bytes in at least 60 ms, and in no more than what has passed. */
    assert_true(rate <= 1000000ul * 1000 / 60);
    assert_true(rate >= 1000000ul * 1000000 / (bt_clock_us() - start_us + 1000000));
}

static void test_limit(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    bt_transfer_room_close(x->rig.t, 5, true, "gone");
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_open == 0);
    (void) fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    (void) fake_hear(&x->d, BT_KV_CONTROL_ABORT);
    pair_room(x, 6);
    pair_room(x, 7);
    assert_in(show(1), "\"room\":\"6\"");
    assert_null(strstr(shown.data, "\"room\":\"7\""));
    assert_in(shown.data, "\"rooms_total\":3}");
    assert_null(strstr(show(2), "\"room\":\"5\""));
    assert_in(show(3), "\"room\":\"5\"");
    assert_in(shown.data, "\"reason\":\"gone\"");
    assert_in(show(0), "\"rooms\":[],\"rooms_total\":3}");
}

/* The row of one room, or "". */
static const char *show_one(uint64_t room)
{
    bt_text_fini(&shown);
    bt_text_init(&shown);
    if (!bt_transfer_describe_room(x->rig.t, room, &shown)) {
        assert_int_equal(shown.len, 0);
        return "";
    }
    assert_int_equal(bt_json_validate(bt_text_str(&shown), &(size_t){0}), 0);
    return shown.data;
}

static void test_one_room(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_room(x, 6);
    assert_in(show_one(6), "{\"room\":\"6\",\"source_room\":\"6\",");
    assert_in(show_one(6), "\"phase\":\"opening\"");
    pair_move_room(x, 6);
    assert_in(show_one(6), "\"phase\":\"moving\"");
    assert_in(show_one(6), "\"bytes\":1024,");
    assert_string_equal(show_one(7), "");
    /* Ended rooms are remembered, the last ones. */
    bt_transfer_room_close(x->rig.t, 5, true, "gone");
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_open == 1);
    assert_in(show_one(5), "\"phase\":\"failed\"");
    assert_in(show_one(5), "\"reason\":\"gone\"");
    uint64_t room = 100;
    for (; show_one(5)[0] != '\0'; room++) {
        assert_true(room < 1100);
        (void) fake_hear(&x->p, BT_KV_CONTROL_ABORT);
        (void) fake_hear(&x->d, BT_KV_CONTROL_ABORT);
        pair_room(x, room);
        bt_transfer_room_close(x->rig.t, room, true, "gone too");
        TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_open == 1);
    }
    assert_true(room > 101);
    assert_in(show_one(100), "gone too");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_agents), TEST(test_room), TEST(test_rate), TEST(test_limit), TEST(test_one_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
