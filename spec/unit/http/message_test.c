#include "http/message.h"
#include "unit.h"

static bt_header_t headers[] = {
    {{"Host", 4}, {"h", 1}},
    {{"Connection", 10}, {"close , X-Mine,,", 16}},
    {{"CONNECTION", 10}, {"\tx-other", 8}},
    {{"X-Empty", 7}, {"", 0}},
    {{"Host", 4}, {"second", 6}},
};
static const bt_head_t head = {.headers = headers, .header_count = 5};

static void finds_the_first_of_a_name_in_any_case(void **state)
{
    assert_ptr_equal(bt_head_find(&head, BT_STR("hOST")), &headers[0]);
    assert_null(bt_head_find(&head, BT_STR("hos")));
    assert_true(bt_str_eq(bt_head_get(&head, BT_STR("host")), BT_STR("h")));
    assert_non_null(bt_head_get(&head, BT_STR("x-empty")).p);
    assert_null(bt_head_get(&head, BT_STR("absent")).p);
}

static void tokens_are_whole_words_over_all_headers_of_the_name(void **state)
{
    assert_true(bt_head_has_token(&head, BT_STR("connection"), BT_STR("Close")));
    assert_true(bt_head_has_token(&head, BT_STR("connection"), BT_STR("x-mine")));
    assert_true(bt_head_has_token(&head, BT_STR("connection"), BT_STR("X-Other")));
    assert_false(bt_head_has_token(&head, BT_STR("connection"), BT_STR("clos")));
    assert_false(bt_head_has_token(&head, BT_STR("connection"), BT_STR("mine")));
}

static void hop_headers_are_the_fixed_ones_and_those_connection_names(void **state)
{
    static const char *const hop[] = {"Connection",
                                      "keep-alive",
                                      "TE",
                                      "Trailer",
                                      "Upgrade",
                                      "Transfer-Encoding",
                                      "Proxy-Connection",
                                      "Proxy-Authorization",
                                      "x-mine",
                                      "x-other"};
    static const char *const end_to_end[] = {"Host", "Authorization", "Content-Type",
                                             "X-Vllm-Priority", "x-min"};

    for (size_t i = 0; i < sizeof(hop) / sizeof(hop[0]); i++)
        assert_true(bt_head_is_hop(&head, bt_str(hop[i])));
    for (size_t i = 0; i < sizeof(end_to_end) / sizeof(end_to_end[0]); i++)
        assert_false(bt_head_is_hop(&head, bt_str(end_to_end[i])));
}

static void reasons(void **state)
{
    assert_string_equal(bt_http_reason(200), "OK");
    assert_string_equal(bt_http_reason(413), "Content Too Large");
    assert_string_equal(bt_http_reason(599), "Unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_first_of_a_name_in_any_case),
        cmocka_unit_test(tokens_are_whole_words_over_all_headers_of_the_name),
        cmocka_unit_test(hop_headers_are_the_fixed_ones_and_those_connection_names),
        cmocka_unit_test(reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
