/* Which requests go on by their token ids alone, and how much is left of them. */
#include "api/continuation.h"
#include "unit.h"

#include <stdio.h>

static bt_arena_t arena;
static bt_intent_t intent;

static const bt_intent_t *read_body(enum bt_route route, const char *text)
{
    const char *why;

    bt_arena_fini(&arena);
    bt_arena_init(&arena);
    assert_int_equal(bt_intent_read(&intent, &arena, route, bt_str(text), &why), 0);
    return &intent;
}

static const char *refusal(const char *members)
{
    static char text[512]; /* what was read has spans of it */

    snprintf(text, sizeof(text), "{\"model\":\"m\",\"prompt\":[1,2]%s%s}",
             members[0] != '\0' ? "," : "", members);
    return bt_continuation_refusal(read_body(BT_ROUTE_COMPLETIONS, text));
}

static void test_what_ids_say_all_of(void **state)
{
    static const char *const fine[] = {
        "",
        "\"stream\":true,\"max_tokens\":5,\"temperature\":0.7,\"seed\":3,\"min_tokens\":2",
        "\"n\":1,\"best_of\":1,\"echo\":false,\"stop\":null,\"logprobs\":null,\"suffix\":\"\"",
        "\"stop\":[],\"tools\":[],\"response_format\":{\"type\":\"text\"}",
        "\"presence_penalty\":0,\"frequency_penalty\":0.0,\"repetition_penalty\":1.1",
        "\"stop_token_ids\":[7],\"ignore_eos\":true,\"logit_bias\":{\"5\":1},\"user\":\"u\"",
    };

    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
        assert_null(refusal(fine[i]));
}

static void test_what_they_do_not(void **state)
{
    static const char *const refused[] = {
        "\"tools\":[{}]",
        "\"n\":2",
        "\"best_of\":2",
        "\"use_beam_search\":true",
        "\"echo\":true",
        "\"logprobs\":0",
        "\"logprobs\":3",
        "\"prompt_logprobs\":1",
        "\"response_format\":{\"type\":\"json_object\"}",
        "\"guided_json\":{\"a\":1}",
        "\"structured_outputs\":{\"regex\":\"a\"}",
        "\"stop\":\"x\"",
        "\"stop\":[\"x\"]",
        "\"presence_penalty\":-0.5",
        "\"frequency_penalty\":1",
        "\"suffix\":\"s\"",
        "\"truncate_prompt_tokens\":5",
        "\"vllm_xargs\":{\"a\":1}",
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        assert_non_null(refusal(refused[i]));
}

static const char *beyond_text(const char *members)
{
    (void) refusal(members); /* reads them */
    return bt_continuation_beyond_text(&intent);
}

static void test_what_is_more_than_text(void **state)
{
    assert_null(beyond_text(""));
    assert_null(beyond_text("\"presence_penalty\":1,\"suffix\":\"s\",\"vllm_xargs\":{\"a\":1}"));
    assert_null(
        beyond_text("\"logprobs\":null,\"stop\":[],\"response_format\":{\"type\":\"text\"}"));
    assert_non_null(beyond_text("\"logprobs\":1"));
    assert_non_null(beyond_text("\"stop\":[\"x\"]"));
    assert_non_null(beyond_text("\"tools\":[{}]"));
    assert_non_null(beyond_text("\"echo\":true"));
    assert_non_null(beyond_text("\"response_format\":{\"type\":\"json_object\"}"));
}

static void test_prompts(void **state)
{
    assert_null(bt_continuation_refusal(read_body(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"text\"}")));
    assert_non_null(
        bt_continuation_refusal(read_body(BT_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}")));
    assert_non_null(
        bt_continuation_refusal(read_body(BT_ROUTE_COMPLETIONS, "{\"prompt\":[[1,2]]}")));
    assert_non_null(bt_continuation_refusal(read_body(BT_ROUTE_COMPLETIONS, "{\"model\":\"m\"}")));
    assert_non_null(bt_continuation_refusal(
        read_body(BT_ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}")));
}

static uint64_t limit(const char *text)
{
    return bt_continuation_limit(read_body(BT_ROUTE_COMPLETIONS, text));
}

static void test_limit(void **state)
{
    assert_int_equal(limit("{\"prompt\":\"a\"}"), 16); /* vLLM's own */
    assert_int_equal(limit("{\"prompt\":\"a\",\"max_tokens\":7}"), 7);
    assert_true(limit("{\"prompt\":\"a\",\"max_tokens\":null}") == BT_CONTINUATION_UNLIMITED);
    assert_int_equal(bt_continuation_number(&intent, "min_tokens"), 0);
    (void) read_body(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"a\",\"min_tokens\":3}");
    assert_int_equal(bt_continuation_number(&intent, "min_tokens"), 3);
}

/* PyMotor's own examples: the event that says "recomputed" is one of those counted. */
static void test_budget(void **state)
{
    assert_int_equal(bt_continuation_budget(100, 2, 1), 99);
    assert_int_equal(bt_continuation_budget(100, 9, 1), 92);
    assert_int_equal(bt_continuation_budget(100, 23, 1), 78);
    assert_int_equal(bt_continuation_budget(8, 1, 0), 7); /* after a loss nothing is made again */
    assert_int_equal(bt_continuation_budget(8, 8, 0), 1);
    assert_int_equal(bt_continuation_budget(8, 20, 1), 1);
    assert_int_equal(bt_continuation_budget(8, 0, 1), 8);
}

static int teardown(void **state)
{
    bt_arena_fini(&arena);
    return 0;
}

static int setup(void **state)
{
    bt_arena_init(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_ids_say_all_of),
        cmocka_unit_test(test_what_they_do_not),
        cmocka_unit_test(test_what_is_more_than_text),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
