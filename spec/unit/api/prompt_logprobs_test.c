/* Prefill's lists in decode's answer: each form, whole and by events, lists of prompts, what has no place, what is not told. */
#include "api/prompt_logprobs.h"

#include <stdio.h>

#include "base/err.h"
#include "unit.h"

static bt_arena_t arena;

static int setup(void **state)
{
    bt_arena_init(&arena);
    return 0;
}

static int teardown(void **state)
{
    bt_arena_fini(&arena);
    return 0;
}

static int read_part(bt_prompt_logprobs_part_t *part, enum bt_prompt_logprobs asked,
                     enum bt_route route, const char *prefill)
{
    return bt_prompt_logprobs_read(part, asked, route, bt_str(prefill), &arena);
}

static void expect_buf(bt_buf_t *buf, const char *wanted)
{
    if (wanted != NULL) {
        assert_non_null(buf);
        assert_int_equal(buf->len, strlen(wanted));
        assert_memory_equal(buf->data, wanted, buf->len);
    }
    bt_buf_unref(buf);
}

/* wanted NULL: they cannot be put together. */
static void expect_whole(enum bt_prompt_logprobs asked, enum bt_route route, const char *prefill,
                         const char *decode, const char *wanted)
{
    bt_prompt_logprobs_part_t part;
    bt_buf_t *buf = NULL;

    assert_int_equal(read_part(&part, asked, route, prefill), 0);
    assert_int_equal(bt_prompt_logprobs_put(&part, bt_str(decode), &buf),
                     wanted != NULL ? 0 : BT_E_JSON);
    expect_buf(buf, wanted);
}

static void expect_untold(enum bt_prompt_logprobs asked, enum bt_route route, const char *prefill)
{
    bt_prompt_logprobs_part_t part;

    assert_int_equal(read_part(&part, asked, route, prefill), BT_E_JSON);
}

static void expect_event(bt_prompt_logprobs_part_t *part, const char *payload, const char *wanted)
{
    char event[512], all[512];
    bt_buf_t *buf = NULL;

    snprintf(event, sizeof(event), "data: %s\n\n", payload);
    snprintf(all, sizeof(all), "data: %s\n\n", wanted);
    assert_int_equal(bt_prompt_logprobs_put_event(part, bt_str(event),
                                                  (bt_str_t){event + 6, strlen(payload)}, &buf),
                     0);
    expect_buf(buf, all);
}

static void test_input(void **state)
{
    const enum bt_prompt_logprobs asked = BT_PROMPT_LOGPROBS_INPUT;
    const enum bt_route route = BT_ROUTE_GENERATE;

    expect_whole(
        asked, route, "{\"meta_info\":{\"input_token_logprobs\":[[null,1],[-2,3]],\"x\":[9]}}",
        " {\"a\" : 1.0, \"meta_info\":{\"input_token_logprobs\":[],\"x\":[7]},\"b\":2} ",
        " {\"a\" : 1.0, \"meta_info\":{\"input_token_logprobs\":[[null,1],[-2,3]],\"x\":[7]},"
        "\"b\":2} ");
    expect_whole(asked, route,
                 "{\"meta_info\":{\"input_token_logprobs\":[ 1 , 2 ],\"input_top_logprobs\":[3],"
                 "\"input_token_ids_logprobs\":[4]}}",
                 "{\"meta_info\":{\"input_top_logprobs\":null,\"input_token_ids_logprobs\":[ 5 ],"
                 "\"input_token_logprobs\":[ ]}}",
                 "{\"meta_info\":{\"input_top_logprobs\":[3],\"input_token_ids_logprobs\":[4, 5 ],"
                 "\"input_token_logprobs\":[1 , 2 ]}}");
    expect_whole(asked, route, "{\"meta_info\":{\"input_token_logprobs\":[]}}",
                 "{\"meta_info\":{\"input_token_logprobs\":[]}}",
                 "{\"meta_info\":{\"input_token_logprobs\":[]}}");
    /* a list of prompts, one of which asks for none */
    expect_whole(asked, route,
                 "[{\"meta_info\":{\"input_token_logprobs\":[1]}},{\"meta_info\":{}},"
                 "{\"meta_info\":{\"input_token_logprobs\":[2]}}]",
                 "[{\"meta_info\":{\"input_token_logprobs\":[]}} , {\"meta_info\":{}},"
                 "{\"meta_info\":{\"input_token_logprobs\":[]}}]",
                 "[{\"meta_info\":{\"input_token_logprobs\":[1]}} , {\"meta_info\":{}},"
                 "{\"meta_info\":{\"input_token_logprobs\":[2]}}]");
    expect_whole(asked, route, "{\"meta_info\":{\"input_token_logprobs\":[1]}}",
                 "{\"meta_info\":{}}", NULL);
    expect_whole(asked, route, "{\"meta_info\":{\"input_token_logprobs\":[1]}}",
                 "{\"meta_info\":{\"input_token_logprobs\":7}}", NULL);
    expect_whole(asked, route, "{\"meta_info\":{\"input_token_logprobs\":[1]}}", "[]", NULL);
    expect_whole(asked, route, "{\"meta_info\":{\"input_token_logprobs\":[1]}}", "{\"meta", NULL);
    expect_whole(asked, route,
                 "[{\"meta_info\":{\"input_token_logprobs\":[1]}},{\"meta_info\":{}}]",
                 "[{\"meta_info\":{\"input_token_logprobs\":[]}}]", NULL);
    expect_untold(asked, route, "{\"meta_info\":{\"prompt_tokens\":1}}");
    expect_untold(asked, route, "{}");
    expect_untold(asked, route, "[]");
    expect_untold(asked, route, "[7,{\"meta_info\":[]}]");
    expect_untold(asked, route, "[{\"meta_info\":{\"input_token_logprobs\":[1]}}");
}

static void test_input_events(void **state)
{
    bt_prompt_logprobs_part_t part;

    assert_int_equal(read_part(&part, BT_PROMPT_LOGPROBS_INPUT, BT_ROUTE_GENERATE,
                               "[{\"meta_info\":{\"input_token_logprobs\":[1]}},"
                               "{\"meta_info\":{\"input_token_logprobs\":[2]}}]"),
                     0);
#define EVENT(list, why, index)                                                                    \
    "{\"meta_info\":{\"finish_reason\":" why ",\"input_token_logprobs\":[" list                    \
    "]},\"index\":" index "}"
    /* each answer's first event has them, and its last one */
    expect_event(&part, EVENT("", "null", "1"), EVENT("2", "null", "1"));
    expect_event(&part, EVENT("", "null", "1"), EVENT("", "null", "1"));
    expect_event(&part, EVENT("", "null", "0"), EVENT("1", "null", "0"));
    expect_event(&part, EVENT("", "{\"type\":\"length\"}", "1"),
                 EVENT("2", "{\"type\":\"length\"}", "1"));
    expect_event(&part, EVENT("", "null", "0"), EVENT("", "null", "0"));
    expect_event(&part, EVENT("", "\"stop\"", "0"), EVENT("1", "\"stop\"", "0"));
    expect_event(&part, "[DONE]", "[DONE]");
    expect_event(&part, "{\"error\":{\"message\":\"x\"}}", "{\"error\":{\"message\":\"x\"}}");
    expect_event(&part, "{\"meta_info\":{\"input_token_logprobs\":[]},\"index\":2}",
                 "{\"meta_info\":{\"input_token_logprobs\":[]},\"index\":2}");
    expect_event(&part, "{\"meta_info\":{\"input_token_logprobs\":[]},\"index\":-1}",
                 "{\"meta_info\":{\"input_token_logprobs\":[]},\"index\":-1}");
    expect_event(&part, "{\"meta_info\":", "{\"meta_info\":");
}

#define TWO                                                                                        \
    "{\"choices\":[{\"logprobs\":{\"tokens\":[\"a\",\"b\",\"x\"],\"token_logprobs\":[null,-1,-9]," \
    "\"text_offset\":[-1,-1,-1],\"top_logprobs\":[]}},{\"logprobs\":{\"tokens\":[\"c\",\"y\"],"    \
    "\"token_logprobs\":[null,-8],\"text_offset\":[-1,-1],\"top_logprobs\":[null,{\"y\":-8}]}}]}"

static void test_echo(void **state)
{
    const enum bt_prompt_logprobs asked = BT_PROMPT_LOGPROBS_ECHO;
    const enum bt_route route = BT_ROUTE_COMPLETIONS;

    expect_whole(
        asked, route, TWO,
        "{\"id\":1,\"choices\":[{\"index\":0,\"logprobs\":{\"text_offset\":[-1],\"tokens\":[\"d\"],"
        "\"token_logprobs\":[-3],\"top_logprobs\":[]}},{\"index\":1,\"logprobs\":{\"tokens\":[],"
        "\"token_logprobs\":[],\"text_offset\":[],\"top_logprobs\":[{\"e\":-4}]}}],\"usage\":{}}",
        "{\"id\":1,\"choices\":[{\"index\":0,\"logprobs\":{\"text_offset\":[-1,-1,-1],"
        "\"tokens\":[\"a\",\"b\",\"d\"],\"token_logprobs\":[null,-1,-3],\"top_logprobs\":[]}},"
        "{\"index\":1,\"logprobs\":{\"tokens\":[\"c\"],\"token_logprobs\":[null],"
        "\"text_offset\":[-1],\"top_logprobs\":[null,{\"e\":-4}]}}],\"usage\":{}}");
    expect_whole(asked, route, TWO, "{\"choices\":[{\"logprobs\":null},{\"logprobs\":null}]}",
                 NULL);
    expect_whole(asked, route, TWO, "{\"choices\":[]}", NULL);
    expect_whole(asked, route, TWO, "{}", NULL);
    expect_untold(asked, route, "{\"choices\":[{\"logprobs\":null}]}");
    expect_untold(asked, route, "{\"choices\":[]}");
}

static void test_echo_events(void **state)
{
    bt_prompt_logprobs_part_t part;

    assert_int_equal(read_part(&part, BT_PROMPT_LOGPROBS_ECHO, BT_ROUTE_COMPLETIONS, TWO), 0);
    expect_event(&part, "{\"choices\":[],\"usage\":{}}", "{\"choices\":[],\"usage\":{}}");
    for (unsigned i = 0; i < 2; i++) /* the first of each choice only */
        expect_event(
            &part,
            "{\"choices\":[{\"index\":1,\"logprobs\":{\"tokens\":[\"d\"],\"token_logprobs\":[-3],"
            "\"text_offset\":[-1],\"top_logprobs\":[]}}]}",
            i == 0 ? "{\"choices\":[{\"index\":1,\"logprobs\":{\"tokens\":[\"c\",\"d\"],"
                     "\"token_logprobs\":[null,-3],\"text_offset\":[-1,-1],"
                     "\"top_logprobs\":[null]}}]}"
                   : "{\"choices\":[{\"index\":1,\"logprobs\":{\"tokens\":[\"d\"],"
                     "\"token_logprobs\":[-3],\"text_offset\":[-1],\"top_logprobs\":[]}}]}");
    expect_event(
        &part,
        "{\"choices\":[{\"index\":0,\"logprobs\":{\"tokens\":[\"d\"],\"token_logprobs\":"
        "[-3],\"text_offset\":[-1],\"top_logprobs\":[]}}]}",
        "{\"choices\":[{\"index\":0,\"logprobs\":{\"tokens\":[\"a\",\"b\",\"d\"],"
        "\"token_logprobs\":[null,-1,-3],\"text_offset\":[-1,-1,-1],\"top_logprobs\":[]}}]}");
}

static void test_vllm(void **state)
{
    const enum bt_prompt_logprobs asked = BT_PROMPT_LOGPROBS_VLLM;

    expect_whole(
        asked, BT_ROUTE_COMPLETIONS,
        "{\"choices\":[{\"prompt_logprobs\":[null,{\"7\":{\"logprob\":-1}}]}]}",
        "{\"choices\":[{\"text\":\"x\",\"prompt_logprobs\":null}],\"prompt_logprobs\":1}",
        "{\"choices\":[{\"text\":\"x\",\"prompt_logprobs\":[null,{\"7\":{\"logprob\":-1}}]}"
        "],\"prompt_logprobs\":1}");
    for (unsigned i = 0; i < 2; i++)
        expect_whole(asked, i == 0 ? BT_ROUTE_CHAT : BT_ROUTE_TOKENS,
                     "{\"prompt_logprobs\":[null],\"choices\":[]}",
                     "{\"choices\":[{\"prompt_logprobs\":null}],\"prompt_logprobs\":null}",
                     "{\"choices\":[{\"prompt_logprobs\":null}],\"prompt_logprobs\":[null]}");
    expect_whole(asked, BT_ROUTE_CHAT, "{\"prompt_logprobs\":[null]}", "{\"choices\":[]}", NULL);
    expect_whole(asked, BT_ROUTE_CHAT, "{\"prompt_logprobs\":[null,2]}",
                 "{\"prompt_logprobs\":[null,9]}", "{\"prompt_logprobs\":[null,2]}");
    expect_untold(asked, BT_ROUTE_CHAT, "{\"prompt_logprobs\":null}");
    expect_untold(asked, BT_ROUTE_CHAT, "{}");
    expect_untold(asked, BT_ROUTE_COMPLETIONS, "{\"choices\":[{\"prompt_logprobs\":null}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_input, setup, teardown),
        cmocka_unit_test_setup_teardown(test_input_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_echo, setup, teardown),
        cmocka_unit_test_setup_teardown(test_echo_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vllm, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
