/* What an event or a body of a completion says; forms as vLLM and vLLM-Ascend write them. */
#include "api/completion.h"
#include "unit.h"

static bt_completion_t read_text(const char *text)
{
    bt_completion_t c;

    assert_int_equal(bt_completion_read(&c, bt_str(text)), 0);
    return c;
}

static void expect(bt_str_t value, const char *wanted)
{
    if (wanted == NULL) {
        assert_null(value.p);
        return;
    }
    assert_int_equal(value.n, strlen(wanted));
    assert_memory_equal(value.p, wanted, value.n);
}

static void test_first_event(void **state)
{
    const bt_completion_t c =
        read_text("{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":17,\"model\":"
                  "\"m\",\"choices\":"
                  "[{\"index\":0,\"text\":\" "
                  "\\\"a\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":"
                  "null,\"prompt_token_ids\":[1,2],\"token_ids\":[10]}],\"system_fingerprint\":"
                  "\"f\",\"usage\":"
                  "null}");

    expect(c.id, "\"cmpl-1\"");
    expect(c.created, "17");
    expect(c.model, "\"m\"");
    expect(c.fingerprint, "\"f\"");
    expect(c.text, "\" \\\"a\"");
    expect(c.token_ids, "[10]");
    expect(c.prompt_ids, "[1,2]");
    assert_true(c.has_choice);
    assert_false(bt_completion_has(c.finish));
    assert_false(bt_completion_is_recomputed(&c));
    expect(c.prompt_tokens, NULL);
}

static void test_usage(void **state)
{
    bt_completion_t c =
        read_text("{\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"total_tokens\":17,"
                  "\"completion_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":4}}}");

    assert_false(c.has_choice);
    expect(c.prompt_tokens, "5");
    expect(c.completion_tokens, "12");
    expect(c.total_tokens, "17");
    expect(c.cached_tokens, "4");
    c = read_text("{\"usage\":{\"prompt_tokens\":5,\"prompt_tokens_details\":null}}");
    expect(c.cached_tokens, NULL);
}

static void test_given_up(void **state)
{
    bt_completion_t c = read_text("{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\","
                                  "\"stop_reason\":\"recomputed\",\"token_ids\":[]}]}");

    assert_true(bt_completion_is_recomputed(&c));
    expect(c.token_ids, "[]");
    /* an id of a stop token, and a client's own stop string, are something else */
    c = read_text("{\"choices\":[{\"finish_reason\":\"stop\",\"stop_reason\":128001}]}");
    assert_false(bt_completion_is_recomputed(&c));
    c = read_text("{\"choices\":[{\"text\":\"recomputed\",\"stop_reason\":null}]}");
    assert_false(bt_completion_is_recomputed(&c));
    c = read_text("{\"stop_reason\":\"recomputed\",\"choices\":[]}");
    assert_false(bt_completion_is_recomputed(&c));
}

static void test_prompt_ids_of_the_object(void **state)
{
    bt_completion_t c = read_text("{\"prompt_token_ids\":[3],\"choices\":[{\"token_ids\":[4]}]}");

    expect(c.prompt_ids, "[3]");
    c = read_text("{\"choices\":[{\"prompt_token_ids\":[7]}],\"prompt_token_ids\":[3]}");
    expect(c.prompt_ids, "[7]");
}

static void test_what_is_none(void **state)
{
    static const char *const texts[] = {
        "[DONE]", "", "[]", "{\"choices\":[{\"text\":]}", "{\"choices\":[{}]", "{\"id\":\"a\"}x"};
    bt_completion_t c;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_true(bt_completion_read(&c, bt_str(texts[i])) < 0);
    c = read_text("{\"choices\":[7],\"usage\":3}");
    assert_false(c.has_choice);
    c = read_text("{\"choices\":{},\"id\":null}");
    assert_false(c.has_choice);
    assert_false(bt_completion_has(c.id));
}

static void test_chats(void **state)
{
    bt_completion_t c =
        read_text("{\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}");

    expect(c.role, "\"assistant\"");
    expect(c.text, NULL);
    c = read_text("{\"choices\":[{\"delta\":{\"content\":\"a\",\"reasoning_content\":\"b\"},"
                  "\"finish_reason\":\"stop\"}]}");
    expect(c.text, "\"a\"");
    expect(c.reasoning, "\"b\"");
    expect(c.finish, "\"stop\"");
    c = read_text("{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":\"a\","
                  "\"reasoning\":null}}]}");
    expect(c.role, "\"assistant\"");
    expect(c.text, "\"a\"");
    assert_false(bt_completion_has(c.reasoning));
    assert_true(bt_completion_read(&c, BT_STR("{\"choices\":[{\"delta\":{\"content\":}}]}")) < 0);
}

static void test_members_that_were_read(void **state)
{
    const bt_str_t text =
        BT_STR("{\"id\":\"a\",\"prompt_token_ids\":[1],\"choices\":[{\"text\":\"x\"}],"
               "\"usage\":{\"prompt_tokens\":1}}");
    bt_json_item_t items[8];
    bt_json_members_t members = {.text = text, .items = items, .cap = 8};
    bt_json_cursor_t cursor;
    bt_completion_t c;

    assert_int_equal(bt_json_object(&cursor, text), 0);
    while (bt_json_next(&cursor, &items[members.count]) == 1)
        members.count++;
    assert_int_equal(bt_completion_take(&c, &members), 0);
    expect(c.id, "\"a\"");
    expect(c.text, "\"x\"");
    expect(c.prompt_ids, "[1]");
    expect(c.prompt_tokens, "1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_event),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_prompt_ids_of_the_object),
        cmocka_unit_test(test_what_is_none),
        cmocka_unit_test(test_chats),
        cmocka_unit_test(test_members_that_were_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
