/* What is read out of a client's body, what is refused, what is stripped. */
#include "api/intent.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

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

static bt_intent_t read_ok(enum bt_route route, const char *text)
{
    bt_intent_t intent;
    const char *why = "";
    int rc = bt_intent_read(&intent, &arena, route, bt_str(text), &why);

    if (rc != 0)
        fail_msg("%s: %s", text, why);
    return intent;
}

static void expect_refused(enum bt_route route, const char *text, int wanted, const char *word)
{
    bt_intent_t intent;
    const char *why = NULL;

    assert_int_equal(bt_intent_read(&intent, &arena, route, bt_str(text), &why), wanted);
    assert_non_null(why);
    assert_non_null(strstr(why, word));
}

static void expect_stripped(enum bt_route route, const char *text, const char *wanted)
{
    bt_intent_t intent = read_ok(route, text);
    bt_slices_t out = {0};
    char joined[2048];
    size_t n = 0;

    assert_int_equal(bt_body_apply(&intent.body, &intent.strip, &arena, &out), 0);
    for (unsigned i = 0; i < out.count; i++) {
        memcpy(joined + n, out.items[i].p, out.items[i].n);
        n += out.items[i].n;
    }
    joined[n] = '\0';
    assert_string_equal(joined, wanted);
}

static void test_facts(void **state)
{
    bt_intent_t i =
        read_ok(BT_ROUTE_CHAT,
                "{\"model\":\"m\\u0031\",\"stream\":true,\"n\":3,\"seed\":7,"
                "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"session_id\":\"s\"}");

    assert_true(bt_str_eq(i.model, BT_STR("m1")));
    assert_true(i.stream);
    assert_int_equal(i.n, 3);
    assert_true(i.has_seed && i.seed == 7);
    assert_int_equal(i.prompt_count, 0);
    assert_true(bt_str_eq(i.session, BT_STR("s")));
    assert_null(i.unsplittable);
}

static void test_prompts(void **state)
{
    bt_intent_t i = read_ok(BT_ROUTE_COMPLETIONS, "{\"prompt\":\"abcd\"}");

    assert_int_equal(i.prompt_count, 0);
    assert_int_equal(bt_intent_prompt_tokens(&i, 4000), 1); /* six raw bytes at four a token */
    i = read_ok(BT_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\", \"b\" ,\"c\"]}");
    assert_int_equal(i.prompt_count, 3);
    i = read_ok(BT_ROUTE_COMPLETIONS, "{\"prompt\":[1,2,3,4,5]}"); /* one prompt of five ids */
    assert_int_equal(i.prompt_count, 0);
    assert_int_equal(bt_intent_prompt_tokens(&i, 4000), 5);
    char ids[4096];
    size_t n = (size_t) snprintf(ids, sizeof(ids), "{\"prompt\":[");
    for (unsigned k = 0; k < 500; k++)
        n += (size_t) snprintf(ids + n, sizeof(ids) - n, k % 3 == 0 ? "%u, " : "%u,", k * 37);
    snprintf(ids + n, sizeof(ids) - n, "-1 , 1.5, 7]}");
    i = read_ok(BT_ROUTE_COMPLETIONS, ids);
    assert_int_equal(i.prompt_ids, 503);
    i = read_ok(BT_ROUTE_GENERATE, "{\"input_ids\":[[1,2],[3,4,5]]}");
    assert_int_equal(i.prompt_count, 2);
    assert_int_equal(i.prompt_ids, 5);
    i = read_ok(BT_ROUTE_GENERATE, "{\"text\":[\"a\"],\"sampling_params\":{\"n\":2}}");
    assert_int_equal(i.prompt_count, 1);
    assert_int_equal(i.n, 2);
}

static void test_refusals(void **state)
{
    expect_refused(BT_ROUTE_CHAT, "[]", BT_E_JSON, "JSON object");
    expect_refused(BT_ROUTE_CHAT, "{\"model\":\"a\",\"model\":\"b\"}", BT_E_JSON_DUP, "\"model\"");
    expect_refused(BT_ROUTE_CHAT, "{\"rid\":1,\"ri\\u0064\":2}", BT_E_JSON_DUP, "\"rid\"");
    expect_refused(BT_ROUTE_CHAT, "{\"priority\":1,\"priorit\\u0079\":2}", BT_E_JSON_DUP,
                   "\"priority\"");
    expect_refused(BT_ROUTE_GENERATE, "{\"sampling_params\":{\"n\":1,\"n\":2}}", BT_E_JSON_DUP,
                   "\"n\"");
    expect_refused(BT_ROUTE_CHAT, "{\"n\":0}", BT_E_INVAL, "\"n\"");
    expect_refused(BT_ROUTE_CHAT, "{\"n\":1.5}", BT_E_INVAL, "\"n\"");
    expect_refused(BT_ROUTE_CHAT, "{\"a\":\"\xff\"}", BT_E_JSON_UTF8, "byte");
    (void) read_ok(BT_ROUTE_CHAT, "{\"unknown\":1,\"unknown\":2}"); /* nobody here reads it */
}

static void test_strips(void **state)
{
    expect_stripped(
        BT_ROUTE_CHAT,
        "{\"kv_transfer_params\":{},\"batch_kv_transfer_params\":1,\"ec_transfer_params\":1,"
        "\"bootstrap_host\":\"h\","
        "\"bootstrap_port\":1,\"bootstrap_room\":1,\"bootstrap_pair_key\":1,\"rid\":\"r\",\"routed_"
        "dp_rank\":1,"
        "\"data_parallel_rank\":1,\"disagg_prefill_dp_rank\":1,\"decode_tp_size\":1,"
        "\"kv_hints\":{\"protocol_version\":\"0.1\",\"message_id\":\"m\",\"actions\":[]},"
        "\"keep\":1}",
        "{\"keep\":1}");
    expect_stripped(BT_ROUTE_CHAT, "{\"kv\\u005ftransfer_params\":{},\"a\":1}", "{\"a\":1}");
    expect_stripped(BT_ROUTE_CHAT, "{\"vllm_xargs\":{\"kv_transfer_params\":{},\"x\":1}}",
                    "{\"vllm_xargs\":{\"x\":1}}");
    expect_stripped(BT_ROUTE_CHAT, "{\"vllm_xargs\":{\"kv_cache_report_mode\":\"all\",\"x\":1}}",
                    "{\"vllm_xargs\":{\"x\":1}}");
    expect_stripped(BT_ROUTE_TOKENS,
                    "{\"sampling_params\":{\"extra_args\":{\"kv_transfer_params\":{}},\"t\":1}}",
                    "{\"sampling_params\":{\"extra_args\":{},\"t\":1}}");
    expect_stripped(BT_ROUTE_TOKENS,
                    "{\"sampling_params\":{\"extra_args\":{\"a\":1.0, "
                    "\"kv\\u005ftransfer_params\":{} ,\"b\":2}}}",
                    "{\"sampling_params\":{\"extra_args\":{\"a\":1.0,\"b\":2}}}");
    expect_stripped(BT_ROUTE_TOKENS, "{\"sampling_params\":{\"extra_args\":{\"mine\":1}}}",
                    "{\"sampling_params\":{\"extra_args\":{\"mine\":1}}}");
}

static void test_unsplittable(void **state)
{
    assert_non_null(read_ok(BT_ROUTE_COMPLETIONS, "{\"best_of\":2}").unsplittable);
    assert_non_null(read_ok(BT_ROUTE_COMPLETIONS, "{\"use_beam_search\":true}").unsplittable);
    assert_non_null(
        read_ok(BT_ROUTE_RESPONSES, "{\"previous_response_id\":\"resp_1\"}").unsplittable);
    assert_null(read_ok(BT_ROUTE_RESPONSES, "{\"previous_response_id\":null}").unsplittable);
    expect_refused(BT_ROUTE_GENERATE, "{\"return_logprob\":[1],\"logprob_start_len\":[0]}",
                   BT_E_INVAL, "\"return_logprob\" must be a list of true and false, not 1");
    expect_refused(BT_ROUTE_GENERATE, "{\"return_logprob\":[true,\"yes\"]}", BT_E_INVAL, "yes");
    expect_refused(BT_ROUTE_GENERATE, "{\"logprob_start_len\":[0,\"1\"]}", BT_E_INVAL,
                   "list of integers");
    assert_null(read_ok(BT_ROUTE_COMPLETIONS, "{\"best_of\":1,\"echo\":false,\"logprobs\":1}")
                    .unsplittable);
}

/* In which form, and whether a pair could tell it at all. */
static void test_prompt_logprobs(void **state)
{
    static const struct {
        enum bt_route route;
        const char *body;
        enum bt_prompt_logprobs form;
        bool is_whole;
    } rows[] = {
        {BT_ROUTE_COMPLETIONS, "{\"prompt_logprobs\":1}", BT_PROMPT_LOGPROBS_VLLM, false},
        {BT_ROUTE_COMPLETIONS, "{\"prompt_logprobs\":0}", BT_PROMPT_LOGPROBS_VLLM, false},
        {BT_ROUTE_COMPLETIONS, "{\"prompt_logprobs\":null}", BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_COMPLETIONS, "{\"prompt_logprobs\":false}", BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_COMPLETIONS, "{\"prompt_logprobs\":1,\"stream\":true}", BT_PROMPT_LOGPROBS_VLLM,
         true},
        {BT_ROUTE_CHAT, "{\"prompt_logprobs\":1}", BT_PROMPT_LOGPROBS_VLLM, false},
        {BT_ROUTE_MESSAGES, "{\"prompt_logprobs\":1}", BT_PROMPT_LOGPROBS_VLLM, true},
        {BT_ROUTE_TOKENS, "{\"sampling_params\":{\"prompt_logprobs\":1}}", BT_PROMPT_LOGPROBS_VLLM,
         false},
        {BT_ROUTE_TOKENS, "{\"stream\":true,\"sampling_params\":{\"prompt_logprobs\":1}}",
         BT_PROMPT_LOGPROBS_VLLM, true},
        {BT_ROUTE_GENERATE, "{\"sampling_params\":{\"prompt_logprobs\":1}}",
         BT_PROMPT_LOGPROBS_VLLM, true},
        {BT_ROUTE_COMPLETIONS, "{\"echo\":true,\"logprobs\":0}", BT_PROMPT_LOGPROBS_ECHO, false},
        {BT_ROUTE_COMPLETIONS, "{\"echo\":true,\"logprobs\":1,\"stream\":true}",
         BT_PROMPT_LOGPROBS_ECHO, false},
        {BT_ROUTE_COMPLETIONS, "{\"echo\":true}", BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_CHAT, "{\"echo\":true,\"logprobs\":true}", BT_PROMPT_LOGPROBS_ECHO, true},
        {BT_ROUTE_COMPLETIONS, "{\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":1}",
         BT_PROMPT_LOGPROBS_ECHO, true},
        {BT_ROUTE_GENERATE, "{\"return_logprob\":true,\"logprob_start_len\":0}",
         BT_PROMPT_LOGPROBS_INPUT, false},
        {BT_ROUTE_GENERATE,
         "{\"return_logprob\":true,\"logprob_start_len\":0,\"return_flat_raw_top_logprobs\":true}",
         BT_PROMPT_LOGPROBS_INPUT, true},
        {BT_ROUTE_GENERATE,
         "{\"return_logprob\":true,\"logprob_start_len\":0,\"return_flat_raw_top_logprobs\":false}",
         BT_PROMPT_LOGPROBS_INPUT, false},
        {BT_ROUTE_GENERATE, "{\"return_logprob\":true,\"logprob_start_len\":-1}",
         BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_GENERATE, "{\"return_logprob\":true}", BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_GENERATE, "{\"logprob_start_len\":0}", BT_PROMPT_LOGPROBS_NONE, false},
        {BT_ROUTE_GENERATE, "{\"return_logprob\":[ false, true],\"logprob_start_len\":[null, 2 ]}",
         BT_PROMPT_LOGPROBS_INPUT, false},
        {BT_ROUTE_COMPLETIONS, "{\"return_logprob\":true,\"logprob_start_len\":0}",
         BT_PROMPT_LOGPROBS_INPUT, true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const bt_intent_t intent = read_ok(rows[i].route, rows[i].body);
        assert_int_equal(intent.prompt_logprobs, rows[i].form);
        assert_int_equal(intent.unsplittable != NULL, rows[i].is_whole);
    }
}

static void test_types(void **state)
{
    static const char *const wrong[] = {"{\"stream\":\"true\"}",  "{\"stream\":1}",
                                        "{\"max_tokens\":\"9\"}", "{\"max_tokens\":9.5}",
                                        "{\"model\":7}",          "{\"vllm_xargs\":[]}",
                                        "{\"n\":\"2\"}",          "{\"seed\":1.5}",
                                        "{\"prompt\":{}}",        "{\"prompt\":7}",
                                        "{\"session_id\":7}",     "{\"stream_options\":1}",
                                        "{\"best_of\":\"2\"}",    "{\"sampling_params\":\"x\"}"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        expect_refused(BT_ROUTE_COMPLETIONS, wrong[i], BT_E_INVAL, "must be");
    assert_int_equal(read_ok(BT_ROUTE_COMPLETIONS, "{\"max_tokens\":9.0,\"n\":2e0}").n, 2);
    assert_int_equal(read_ok(BT_ROUTE_COMPLETIONS, "{\"max_tokens\":9e0}").max_tokens, 9);
    (void) read_ok(BT_ROUTE_COMPLETIONS, "{\"stream\":null,\"model\":null,\"n\":null}");
    (void) read_ok(BT_ROUTE_PROXY, "{\"stream\":\"yes\",\"n\":{},\"prompt\":7}"); /* not ours */
    (void) read_ok(BT_ROUTE_RESPONSES, "{\"text\":{\"format\":{}},\"prompt\":{\"id\":\"p\"}}");
}

static void test_lists_of_sampling_params(void **state)
{
    assert_int_equal(read_ok(BT_ROUTE_GENERATE, "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{"
                                                "\"n\":1,\"max_new_tokens\":3}]}")
                         .prompt_count,
                     2);
    expect_refused(BT_ROUTE_GENERATE, "{\"sampling_params\":[{\"n\":1},{\"n\":2}]}", BT_E_INVAL,
                   "\"n\" above 1");
    expect_refused(BT_ROUTE_GENERATE, "{\"sampling_params\":[7]}", BT_E_INVAL, "list of objects");
    expect_refused(BT_ROUTE_GENERATE, "{\"sampling_params\":[{\"extra_args\":{}}]}", BT_E_INVAL,
                   "extra_args");
    expect_refused(BT_ROUTE_TOKENS, "{\"sampling_params\":[{}]}", BT_E_INVAL, "must be an object");
    for (unsigned i = 0; i < 3; i++)
        expect_refused(
            (const enum bt_route[]){BT_ROUTE_PROXY, BT_ROUTE_CHAT, BT_ROUTE_PROXY_PATH}[i],
            "{\"sampling_params\":[{},{\"extra\\u005fargs\":{}}]}", BT_E_INVAL, "extra_args");
    (void) read_ok(BT_ROUTE_PROXY, "{\"sampling_params\":[{\"n\":2},7]}");
}

/* A client's sizes are its own affair only as long as nobody keeps them. */
static void test_sizes(void **state)
{
    static const char *const names[] = {"model",      "session_id", "user", "previous_response_id",
                                        "request_id", "rid"};
    char *text = malloc(3 << 20);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        sprintf(text, "{\"%s\":\"%01025d\"}", names[i], 0);
        expect_refused(BT_ROUTE_RESPONSES, text, BT_E_LIMIT, names[i]);
        expect_refused(BT_ROUTE_PROXY, text, BT_E_LIMIT, names[i]);
        sprintf(text, "{\"%s\":\"%01024d\"}", names[i], 0);
        (void) read_ok(BT_ROUTE_RESPONSES, text);
    }
    sprintf(text, "{\"session_params\":{\"session_id\":\"%01025d\"}}", 0);
    expect_refused(BT_ROUTE_GENERATE, text, BT_E_LIMIT, "session_id");
    sprintf(text, "{\"vllm_xargs\":{\"x\":\"%01048576d\"}}", 0);
    expect_refused(BT_ROUTE_CHAT, text, BT_E_LIMIT, "vllm_xargs");
    free(text);
}

static void test_one_list_at_every_door(void **state)
{
    expect_stripped(BT_ROUTE_CHAT,
                    "{\"vllm_xargs\":{\"ec_transfer_params\":1,\"a\":2,\"ri\\u0064\":3}}",
                    "{\"vllm_xargs\":{\"a\":2}}");
    expect_stripped(BT_ROUTE_CHAT,
                    "{\"sampling_params\":{\"extra_args\":{\"ec_transfer_params\":1,\"b\":2}}}",
                    "{\"sampling_params\":{\"extra_args\":{\"b\":2}}}");
    expect_stripped(BT_ROUTE_PROXY, "{\"a\":[1],\"bootstrap_room\":1,\"http_worker_ipc\":\"x\"}",
                    "{\"a\":[1]}");
    expect_refused(BT_ROUTE_PROXY_PATH,
                   "{\"vllm_xargs\":{\"kv_transfer_params\":{},\"kv_transfer_params\":1}}",
                   BT_E_JSON_DUP, "\"kv_transfer_params\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_facts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prompts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strips, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unsplittable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_prompt_logprobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_types, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lists_of_sampling_params, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_list_at_every_door, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
