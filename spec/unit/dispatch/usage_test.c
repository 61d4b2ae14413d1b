/* Tokens that a worker says it has made, however its answer is cut into pieces. */
#include "dispatch/answer/usage.h"
#include "unit.h"

static uint64_t tokens_of(const char *text, size_t piece)
{
    const size_t n = strlen(text);
    bt_leg_t leg = {.events = 0};
    bt_arena_t arena;

    bt_arena_init(&arena);
    for (size_t at = 0; at < n; at += piece)
        bt_usage_feed(&leg, &arena, text + at, piece < n - at ? piece : n - at);
    const uint64_t tokens = bt_usage_tokens(&leg);
    bt_arena_fini(&arena);
    return tokens;
}

static void in_all_pieces(const char *text, uint64_t tokens)
{
    for (size_t piece = 1; piece <= strlen(text); piece += piece < 70 ? 1 : 97)
        assert_int_equal(tokens_of(text, piece), tokens);
}

static void reads_what_engines_say(void **state)
{
    in_all_pieces("{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":12}}", 12);
    in_all_pieces("{\"usage\": {\"output_tokens\" : 7, \"input_tokens\": 3}}", 7);
    in_all_pieces("{\"text\":\"x\",\"meta_info\":{\"completion_tokens\":3,\"id\":\"a\"}}", 3);
    in_all_pieces("{\"usage\":{\"completion_tokens\":1},\"usage\":{\"completion_tokens\":2}}", 2);
}

static void reads_what_was_cached(void **state)
{
    static const struct {
        const char *reply;
        uint64_t cached;
    } cases[] = {
        {"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":8}}}", 8},
        {"{\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":null},"
         "\"kv_transfer_params\":{\"remote_prefill_cached_tokens\": 7}}",
         7},
        {"{\"meta_info\":{\"prompt_tokens\":9,\"cached_tokens\":6}}", 6},
        {"{\"choices\":[{\"text\":\"\\\"cached_tokens\\\":5\"}]}", 0},
        {"", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(bt_usage_cached(bt_str(cases[i].reply)), cases[i].cached);
}

static void finds_the_prompt_of_a_reply_that_nobody_reads(void **state)
{
    static const struct {
        const char *reply;
        int64_t prompt; /* -1: it does not say */
    } cases[] = {
        {"{\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"total_tokens\":13}}", 12},
        {"{\"usage\" : { \"prompt_tokens\" : 0 , \"completion_tokens\":1 }}", 0},
        /* What is not as engines write it is for who reads JSON. */
        {"{\"usage\":{\"prompt_tokens_details\":{},\"prompt_tokens\":7}}", -1},
        {"{\"usage\":{\"of\":{\"prompt_tokens\":5},\"prompt_tokens\":7}}", -1},
        {"{\"usage\":\"none\",\"prompt_tokens\":5}", -1},
        {"{\"usage\":null,\"meta_info\":{\"prompt_tokens\":5}}", -1},
        {"{\"usage\":[{\"prompt_tokens\":5}]}", -1},
        {"{\"usage\":{\"prompt_tokens\":5.5}}", -1},
        {"{\"usage\":{\"prompt_tokens\":5e3}}", -1},
        {"{\"usage\":{\"prompt_tokens\":-5}}", -1},
        {"{\"usage\":{\"prompt_tokens\":5000000000000}}", -1},
        {"{\"usage\":{\"prompt_tokens\":\"5\"}}", -1},
        {"{\"prompt_tokens\":5,\"usage\":null}", -1},
        {"{\"meta_info\":{\"prompt_tokens\":5}}", -1},
        {"{\"text\":\"\\\"usage\\\":{\\\"prompt_tokens\\\":9}\"}", -1},
        {"{\"usage\":{\"prompt_tokens\":null}}", -1},
        {"{\"usage\":{\"prompt_tokens\":12", -1}, /* it may be cut */
        {"", -1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t prompt = 99;
        assert_int_equal(bt_usage_tells_prompt(bt_str(cases[i].reply), &prompt),
                         cases[i].prompt >= 0);
        assert_int_equal(prompt, cases[i].prompt >= 0 ? (uint64_t) cases[i].prompt : 99);
    }
}

static void reads_no_text_as_usage(void **state)
{
    in_all_pieces("{\"text\":\"\\\"completion_tokens\\\":99\"}", 0);
    in_all_pieces("{\"usage\":{\"completion_tokens\":4},\"text\":\"\\\"completion_tokens\\\":99\"}",
                  4);
    in_all_pieces("{\"usage\":{\"completion_tokens\":null}}", 0);
    in_all_pieces("{}", 0);
}

static void looks_at_the_end_of_a_long_answer(void **state)
{
    static char text[5000];

    memset(text, 'x', 4500);
    strcpy(text + 4500, "\"usage\":{\"completion_tokens\":123}}");
    in_all_pieces(text, 123);
    memset(text, 'x', 4990);
    memcpy(text, "\"completion_tokens\":5,", 22); /* too far from the end */
    text[4990] = '\0';
    in_all_pieces(text, 0);
}

static void finds_usage_that_much_stands_behind(void **state)
{
    static const size_t pieces[] = {1, 7, 100, 300, 511, 512, 1500, 65536};
    static char text[4200];

    for (size_t before = 0; before < 600; before += 37)
        for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
            memset(text, 'x', sizeof(text) - 1);
            memcpy(text + before, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":123},", 51);
            bt_leg_t leg = {.events = 0};
            bt_arena_t arena;
            bt_arena_init(&arena);
            for (size_t at = 0; at < sizeof(text) - 1; at += pieces[i])
                bt_usage_feed(&leg, &arena, text + at,
                              pieces[i] < sizeof(text) - 1 - at ? pieces[i]
                                                                : sizeof(text) - 1 - at);
            assert_int_equal(bt_usage_tokens(&leg), 123);
            assert_int_equal(bt_usage_of_leg(&leg).prompt, 5);
            assert_true(bt_usage_of_leg(&leg).is_output_known);
            bt_arena_fini(&arena);
        }
}

/* The first piece ends anywhere in its name, and the second is as long as it takes for that to leave the tail, or nearly. */
static void finds_usage_that_leaves_as_it_comes(void **state)
{
    static const char usage[] = "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":123},";
    static char text[4200];

    for (size_t before = 0; before < 600; before += 3)
        for (size_t cut = before + 1; cut < before + 9; cut++)
            for (size_t more = 400; more<1500; more += more> 480 && more < 530 ? 1 : 50) {
                bt_leg_t leg = {.events = 0};
                bt_arena_t arena;
                memset(text, 'x', cut + more);
                memcpy(text + before, usage, sizeof(usage) - 1);
                bt_arena_init(&arena);
                bt_usage_feed(&leg, &arena, text, cut);
                bt_usage_feed(&leg, &arena, text + cut, more);
                bt_usage_feed(&leg, &arena, "}", 1);
                assert_int_equal(bt_usage_tokens(&leg), 123);
                assert_int_equal(bt_usage_of_leg(&leg).prompt, 5);
                bt_arena_fini(&arena);
            }
}

static void counts_events_where_there_are_some(void **state)
{
    bt_leg_t leg = {.events = 9};

    assert_int_equal(bt_usage_tokens(&leg), 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_engines_say),
        cmocka_unit_test(reads_what_was_cached),
        cmocka_unit_test(finds_the_prompt_of_a_reply_that_nobody_reads),
        cmocka_unit_test(reads_no_text_as_usage),
        cmocka_unit_test(looks_at_the_end_of_a_long_answer),
        cmocka_unit_test(finds_usage_that_much_stands_behind),
        cmocka_unit_test(finds_usage_that_leaves_as_it_comes),
        cmocka_unit_test(counts_events_where_there_are_some),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
