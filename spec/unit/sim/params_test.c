/* kv_transfer_params: what counts as there, and that what is printed can be read. */
#include "base/pages.h"
#include "params.h"
#include "unit.h"

#include <stdio.h>

static bt_arena_t arena;
static sim_params_t p;

static int setup(void **state)
{
    bt_arena_init(&arena);
    return 0;
}

static int teardown(void **state)
{
    bt_arena_fini(&arena);
    bt_pages_thread_fini();
    return 0;
}

static void read_text(const char *text)
{
    sim_params_read((sim_raw_t){bt_str(text), BT_JSON_OBJECT}, &arena, &p);
}

static void test_complete(void **state)
{
    read_text("{\"do_remote_prefill\":true,\"remote_block_ids\":[[1,2,3]],\"remote_engine_id\":"
              "\"p0\",\"remote_request_id\":\"r\","
              "\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,\"tp_size\":2}");
    assert_true(p.do_remote_prefill && !p.do_remote_decode && sim_params_complete(&p));
    assert_int_equal(p.id_count, 3);
    assert_int_equal(p.ids[2], 3);
    assert_int_equal(p.tp, 2);
    assert_true(bt_str_eq(p.port, BT_STR("5600")));
}

static void test_each_of_five_is_needed(void **state)
{
    static const char *const members[] = {
        "\"remote_block_ids\":[[1]]", "\"remote_engine_id\":\"p\"", "\"remote_request_id\":\"r\"",
        "\"remote_host\":\"h\"",      "\"remote_port\":1",
    };
    char text[256];

    for (unsigned left_out = 0; left_out < 5; left_out++) {
        size_t n = (size_t) snprintf(text, sizeof(text), "{\"do_remote_prefill\":true");
        for (unsigned i = 0; i < 5; i++)
            if (i != left_out)
                n += (size_t) snprintf(text + n, sizeof(text) - n, ",%s", members[i]);
        snprintf(text + n, sizeof(text) - n, "}");
        read_text(text);
        assert_false(sim_params_complete(&p));
    }
}

static void test_no_blocks(void **state)
{
    static const char *const bodies[] = {
        "{\"remote_block_ids\":[]}",
        "{\"remote_block_ids\":[[]]}",
        "{\"remote_block_ids\":null}",
        "{\"remote_block_ids\":[1,2]}",
        "{}",
    };

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        read_text(bodies[i]);
        assert_int_equal(p.id_count, 0);
    }
}

static void test_truth_is_pythons(void **state)
{
    read_text("{\"do_remote_decode\":1,\"do_remote_prefill\":\"\"}");
    assert_true(p.do_remote_decode && !p.do_remote_prefill);
    read_text("{\"do_remote_decode\":null,\"do_remote_prefill\":\"yes\"}");
    assert_true(!p.do_remote_decode && p.do_remote_prefill);
}

static void test_printed_and_read(void **state)
{
    uint32_t ids[2] = {4, 9};
    sim_worker_t worker = {.options = {.connector = SIM_NIXL, .tp = 1, .engine_id = "e"},
                           .side_port = 77};
    sim_held_t held = {
        .worker = &worker, .id = "cmpl-x-0-12345678", .prompt_tokens = 50, .blocks = 2, .ids = ids};
    bt_str_t text = sim_params_print(&held, 32, &arena);

    assert_int_equal(bt_json_count(text), 14);
    sim_params_read((sim_raw_t){text, BT_JSON_OBJECT}, &arena, &p);
    assert_true(sim_params_complete(&p) && p.do_remote_prefill && !p.do_remote_decode);
    assert_int_equal(p.ids[1], 9);
    worker.options.connector = SIM_NIXL_PUSH;
    assert_int_equal(bt_json_count(sim_params_print(&held, 0, &arena)), 13);
    worker.options.connector = SIM_ASCEND;
    assert_int_equal(bt_json_count(sim_params_print(&held, 0, &arena)), 14);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static void test_rooms(void **state)
{
    static const char *const wrong[] = {"0", "-1", "9223372036854775808", "1.5", "\"7\"", "null"};
    char text[128];

    read_text("{\"do_remote_decode\":true}");
    assert_false(p.has_room);
    read_text("{\"do_remote_decode\":true,\"baton_room\":9223372036854775807}");
    assert_true(p.has_room && !p.is_room_wrong);
    assert_int_equal(p.room, INT64_MAX);
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(text, sizeof(text), "{\"baton_room\":%s}", wrong[i]);
        read_text(text);
        assert_true(p.has_room && p.is_room_wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_complete),         TEST(test_each_of_five_is_needed), TEST(test_no_blocks),
        TEST(test_truth_is_pythons), TEST(test_printed_and_read),       TEST(test_rooms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
