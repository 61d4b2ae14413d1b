/* Requests of all routes come out as the same prompts. */
#include "ask.h"
#include "base/pages.h"
#include "unit.h"
#include "words.h"

static bt_arena_t arena;
static sim_ask_t ask;
static sim_problem_t problem;

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

static int read_body(enum sim_route route, const char *body)
{
    return sim_ask_read(route, bt_str(body), BT_STR_NULL, 64, &arena, &ask, &problem);
}

static void expect_prompt(unsigned i, const char *text, size_t n)
{
    assert_true(i < ask.prompt_count);
    assert_int_equal(ask.prompts[i].kv, sim_kv((bt_str_t){text, n}));
    assert_int_equal(ask.prompts[i].tokens, (n + 3) / 4);
}

static void test_completions(void **state)
{
    assert_int_equal(
        read_body(SIM_COMPLETIONS,
                  "{\"model\":\"m\",\"prompt\":\"a\\u0062c\\n\",\"max_tokens\":3,\"seed\":5,"
                  "\"stream\":true,\"stream_options\":{\"include_usage\":true}}"),
        0);
    expect_prompt(0, "abc\n", 4);
    assert_int_equal(ask.max_tokens, 3);
    assert_int_equal(ask.seed, 5);
    assert_true(ask.stream && ask.include_usage && !ask.is_list);
    assert_true(bt_str_eq(ask.model, BT_STR("m")));
}

static void test_lists(void **state)
{
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}"), 0);
    assert_int_equal(ask.prompt_count, 2);
    assert_true(ask.is_list);
    expect_prompt(1, "b", 1);
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":[1,258]}"), 0);
    assert_int_equal(ask.prompt_count, 1);
    assert_false(ask.is_list);
    expect_prompt(0, "\1\0\0\0\2\1\0\0", 8);
    assert_int_equal(
        read_body(SIM_GENERATE,
                  "{\"input_ids\":[[1],[2,3]],\"sampling_params\":{\"max_new_tokens\":9}}"),
        0);
    assert_int_equal(ask.prompt_count, 2);
    assert_int_equal(ask.max_tokens, 9);
    expect_prompt(0, "\1\0\0\0", 4);
}

static void test_conversations_are_the_same_on_all_routes(void **state)
{
    static const char text[] = "system\nS\nuser\nhello\n";

    assert_int_equal(read_body(SIM_CHAT,
                               "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
                               "{\"content\":[{\"type\":\"text\",\"text\":\"hel\"},{\"type\":"
                               "\"text\",\"text\":\"lo\"}],\"role\":\"user\"}]}"),
                     0);
    expect_prompt(0, text, sizeof(text) - 1);
    assert_int_equal(read_body(SIM_MESSAGES, "{\"system\":\"S\",\"max_tokens\":1,\"messages\":[{"
                                             "\"role\":\"user\",\"content\":\"hello\"}]}"),
                     0);
    expect_prompt(0, text, sizeof(text) - 1);
    assert_int_equal(read_body(SIM_RESPONSES, "{\"instructions\":\"S\",\"input\":\"hello\"}"), 0);
    expect_prompt(0, text, sizeof(text) - 1);
}

static void test_refusals(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"a\"",
        "[]",
        "{\"prompt\":7}",
        "{\"prompt\":[]}",
        "{\"prompt\":\"a\",\"max_tokens\":\"3.5\"}",
        "{\"prompt\":\"a\",\"max_tokens\":[3]}",
        "{\"prompt\":\"a\",\"stream\":2}",
        "{\"prompt\":\"a\",\"stream\":\"maybe\"}",
        "{\"prompt\":\"a\",\"n\":0}",
        "{}",
        "{\"prompt\":[\"a\",[\"b\"]]}",
    };

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        assert_int_equal(read_body(SIM_COMPLETIONS, bodies[i]), -1);
        assert_int_equal(problem.status, 400);
    }
    assert_int_equal(read_body(SIM_MESSAGES, "{\"messages\":[]}"), -1);
    assert_int_equal(read_body(SIM_CHAT, "{\"messages\":[7]}"), -1);
}

/* Pydantic's lax mode: a gateway that does not convert as much must refuse it. */
static void test_converts_what_pydantic_converts(void **state)
{
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":\"True\","
                                                "\"max_tokens\":\"3\",\"n\":2.0}"),
                     0);
    assert_true(ask.stream);
    assert_int_equal(ask.max_tokens, 3);
    assert_int_equal(ask.n, 2);
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":1}"), 0);
    assert_true(ask.stream);
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":\"a\",\"stream\":\"off\"}"), 0);
    assert_false(ask.stream);
    assert_int_equal(
        read_body(SIM_GENERATE,
                  "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{\"n\":2},{\"n\":2}]}"),
        0);
    assert_int_equal(ask.n, 2);
}

static void test_kept_values_survive_the_body(void **state)
{
    char body[] =
        "{\"prompt\":\"a\",\"rid\":\"r1\",\"bootstrap_room\":77,\"kv_transfer_params\":{\"x\":1}}";

    assert_int_equal(read_body(SIM_COMPLETIONS, body), 0);
    memset(body, '#', sizeof(body) - 1);
    assert_true(bt_str_eq(ask.rid.value, BT_STR("\"r1\"")));
    assert_true(bt_str_eq(ask.room.value, BT_STR("77")));
    assert_true(bt_str_eq(ask.kv_params.value, BT_STR("{\"x\":1}")));
    assert_int_equal(ask.host.type, BT_JSON_NONE);
}

static void test_greedy_has_no_seed(void **state)
{
    assert_int_equal(read_body(SIM_COMPLETIONS, "{\"prompt\":\"a\",\"seed\":5,\"temperature\":0}"),
                     0);
    assert_int_equal(ask.seed, 0);
    assert_false(ask.has_seed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_completions),
        TEST(test_lists),
        TEST(test_conversations_are_the_same_on_all_routes),
        TEST(test_refusals),
        TEST(test_converts_what_pydantic_converts),
        TEST(test_kept_values_survive_the_body),
        TEST(test_greedy_has_no_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
