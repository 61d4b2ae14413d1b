/* Errors inside a 200, in the forms that engines really send (typed from the references). */
#include "api/inspect.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>

static void test_good_answers(void **state)
{
    static const char *const good[] = {
        "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":"
        "\"error\",\"finish_reason\":\"stop\"}]}",
        "{\"error\":null,\"choices\":[]}",
        "{\"error\":false,\"choices\":[]}",
        "{\"text\":\"a\",\"meta_info\":{\"finish_reason\":{\"type\":\"length\",\"length\":0}}}",
        "{\"choices\":[{\"text\":\"\\\"error\\\":1\"}]}",
        "[{\"text\":\"a\",\"meta_info\":{\"finish_reason\":null}}]",
        "",
        "not json",
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(bt_inspect_json(bt_str(good[i])), 0);
    assert_int_equal(bt_inspect_event(BT_STR("[DONE]")), 0);
}

static void test_errors(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
    } bad[] = {
        {"{\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", "
         "\"param\": null, \"code\": 500}}",
         500},
        {"{\"error\":{\"message\":\"no\",\"code\":400}}", 400},
        {"{\"error\":\"plain\"}", 500},
        {"{\"object\":\"error\",\"message\":\"m\",\"type\":\"BadRequestError\",\"param\":null,"
         "\"code\":400}",
         400},
        {"{\"object\":\"error\",\"message\":\"m\",\"code\":500}", 500},
        {"{\"text\":\"\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\",\"message\":\"x\","
         "\"status_code\":503,\"err_type\":null}}}",
         503},
        {"{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"abort\"}]}", 500},
        {"[{\"text\":\"a\"},{\"text\":\"\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\","
         "\"status_code\":null}}}]",
         500},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_inspect_json(bt_str(bad[i].text)), bad[i].status);
}

static void test_cut_body_is_judged_by_whole_members(void **state)
{
    assert_int_equal(bt_inspect_json(BT_STR("{\"object\":\"error\",\"message\":\"very lo")), 500);
    assert_int_equal(bt_inspect_json(BT_STR("{\"id\":\"a\",\"choices\":[{\"text\":\"cut he")), 0);
}

static void test_escaped_words(void **state)
{
    assert_int_equal(bt_inspect_json(BT_STR("{\"\\u0065rr\\u006fr\":{\"code\":503}}")), 503);
    assert_int_equal(
        bt_inspect_json(BT_STR("{\"choices\":[{\"text\":\"an error, and an abort\"}]}")), 0);
}

/* Not even the members of an object that was there before. */
static void test_streamed_prefill_answer(void **state)
{
    bt_json_members_t members = {.text = BT_STR("{}"), .count = 1};

    assert_true(bt_inspect_aborted(
        BT_STR(": ping\n\ndata: {\"choices\":[{\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n"),
        &members));
    assert_false(bt_inspect_aborted(
        BT_STR("data: {\"choices\":[{\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"),
        &members));
    assert_int_equal(members.text.n, 0);
    assert_int_equal(members.count, 0);
}

static bool is_object(const char *text)
{
    bt_json_members_t members = {.cap = 0};

    assert_false(bt_inspect_aborted(bt_str(text), &members));
    return members.text.n != 0;
}

static void test_reply_that_is_one_object(void **state)
{
    assert_true(is_object(" {\"a\":[1]}\r\n"));
    assert_false(is_object("{\"a\":[1]} x"));
    assert_false(is_object("{\"a\":[1"));
    assert_false(is_object("[{\"a\":1}]"));
}

static void test_members_of_a_reply(void **state)
{
    bt_json_item_t items[2];
    bt_json_members_t members = {.items = items, .cap = 2};

    assert_false(bt_inspect_aborted(BT_STR(" {\"a\":[1], \"b\":2}\n"), &members));
    assert_int_equal(members.count, 2);
    assert_true(bt_str_eq(members.text, BT_STR("{\"a\":[1], \"b\":2}")));
    assert_true(bt_str_eq(items[1].key, BT_STR("b")));
    assert_ptr_equal(items[1].value.p, members.text.p + items[1].value_off);
    assert_false(bt_inspect_aborted(BT_STR("{\"a\":1,\"b\":2,\"c\":3}"), &members));
    assert_int_equal(members.count, 3); /* more than there is room for, and none written outside */
}

static void test_reply_whose_members_nobody_asks_for(void **state)
{
    assert_false(bt_inspect_aborted(BT_STR(" {\"usage\":{\"prompt_tokens\":2}}"), NULL));
    assert_true(bt_inspect_aborted(BT_STR(" {\"choices\":[{\"finish_reason\":\"abort\"}]}"), NULL));
    assert_true(bt_inspect_aborted(BT_STR("{\"error\":{\"code\":400}}"), NULL));
    assert_true(bt_inspect_aborted(BT_STR("[{\"object\":\"error\"}]"), NULL));
    assert_false(bt_inspect_aborted(BT_STR(""), NULL));
}

static void test_kv_sentences(void **state)
{
    assert_true(bt_inspect_kv_transfer(
        BT_STR("{\"message\":\"Decode transfer failed for request rank=0 .. with exception "
               "KVTransferError(bootstrap_room=5): x\"}")));
    assert_false(bt_inspect_kv_transfer(BT_STR("{\"message\":\"out of memory\"}")));
}

/* The word is found eight bytes at a time, wherever it begins and however near the end is. */
static void test_words_at_every_place(void **state)
{
    char text[160], pad[41] = "";

    for (size_t i = 0; i <= 40; i++) {
        pad[i] = '\0';
        snprintf(text, sizeof(text), "{\"p\":\"%s\",\"error\":{\"code\":503}}", pad);
        assert_int_equal(bt_inspect_json(bt_str(text)), 503);
        snprintf(text, sizeof(text), "{\"p\":\"%s\",\"object\":\"error\"", pad); /* cut */
        assert_int_equal(bt_inspect_json((bt_str_t){text, strlen(text)}), 500);
        snprintf(text, sizeof(text), "{\"p\":\"%s\",\"choices\":[{\"finish_reason\":\"abort\"}]}",
                 pad);
        assert_int_equal(bt_inspect_json(bt_str(text)), 500);
        snprintf(text, sizeof(text), "{\"p\":\"%s or for an err, abor\",\"choices\":[]}", pad);
        assert_int_equal(bt_inspect_json(bt_str(text)), 0);
        pad[i] = "or"[i % 2];
    }
    assert_int_equal(bt_inspect_json(BT_STR("")), 0);
    assert_int_equal(bt_inspect_json(BT_STR("or")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_answers),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_cut_body_is_judged_by_whole_members),
        cmocka_unit_test(test_escaped_words),
        cmocka_unit_test(test_words_at_every_place),
        cmocka_unit_test(test_streamed_prefill_answer),
        cmocka_unit_test(test_reply_that_is_one_object),
        cmocka_unit_test(test_members_of_a_reply),
        cmocka_unit_test(test_reply_whose_members_nobody_asks_for),
        cmocka_unit_test(test_kv_sentences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
