/* Blanking hand-off parameters: same length, only inside that object, at every split of the body. */
#include "api/redact.h"

#include "base/json.h"
#include "unit.h"

static void expect(const char *in, const char *wanted)
{
    size_t n = strlen(in);

    assert_int_equal(n, strlen(wanted));
    assert_true(strcmp(in, wanted) == 0 || bt_redact_may_have(bt_str(in)));
    for (size_t cut = 0; cut <= n; cut++) {
        char text[512];
        bt_redact_t r;
        memcpy(text, in, n + 1);
        bt_redact_init(&r);
        (void) bt_redact_feed(&r, text, cut);
        (void) bt_redact_feed(&r, text + cut, n - cut);
        assert_string_equal(text, wanted);
        assert_int_equal(bt_json_validate((bt_str_t){text, n}, NULL), 0);
    }
}

static void test_blanks_the_object(void **state)
{
    expect("{\"id\":\"x\",\"kv_transfer_params\":{\"remote_host\":\"10.0.0.1\",\"b\":[{\"c\":\"}"
           "\\\"\"}]},\"z\":1}",
           "{\"id\":\"x\",\"kv_transfer_params\":{                                          "
           "},\"z\":1}");
    expect("{\"kv_transfer_params\":{}}", "{\"kv_transfer_params\":{}}");
}

static void test_blanks_in_each_choice(void **state)
{
    expect("{\"choices\":[{\"disaggregated_params\":{\"a\":{\"b\":\"}\"}},\"text\":\"x\"},"
           "{\"text\":\"y\",\"disaggregated_params\":{\"c\":[1,2]}}],\"usage\":{\"n\":1}}",
           "{\"choices\":[{\"disaggregated_params\":{             },\"text\":\"x\"},"
           "{\"text\":\"y\",\"disaggregated_params\":{         }}],\"usage\":{\"n\":1}}");
    expect("{\"c\":[{\"disaggregated_params\":null},{\"message\":{\"a\":1}}],\"b\":{\"c\":2}}",
           "{\"c\":[{\"disaggregated_params\":null},{\"message\":{\"a\":1}}],\"b\":{\"c\":2}}");
    expect("{\"c\":[{\"disaggregated_params\":null},[{\"a\":1}],[\"disaggregated_params\",{\"a\":1}"
           "]]}",
           "{\"c\":[{\"disaggregated_params\":null},[{\"a\":1}],[\"disaggregated_params\",{\"a\":1}"
           "]]}");
    expect("{\"disaggregated_params\":{\"x\":1},\"c\":[{\"kv_transfer_params\":{\"x\":1}}]}",
           "{\"disaggregated_params\":{\"x\":1},\"c\":[{\"kv_transfer_params\":{\"x\":1}}]}");
}

static void test_leaves_everything_else(void **state)
{
    expect("{\"kv_transfer_params\":null,\"a\":{\"kv_transfer_params\":{\"x\":1}}}",
           "{\"kv_transfer_params\":null,\"a\":{\"kv_transfer_params\":{\"x\":1}}}");
    expect("{\"text\":\"\\\"kv_transfer_params\\\":{1}\",\"b\":{\"c\":2}}",
           "{\"text\":\"\\\"kv_transfer_params\\\":{1}\",\"b\":{\"c\":2}}");
    expect("{\"a\":\"kv_transfer_params\",\"b\":{\"c\":1}}",
           "{\"a\":\"kv_transfer_params\",\"b\":{\"c\":1}}");
    expect("[\"kv_transfer_params\",{\"b\":1}]", "[\"kv_transfer_params\",{\"b\":1}]");
    expect("{\"kv_transfer_params_and_more\":{\"b\":1},\"\\\"\":{\"c\":2}}",
           "{\"kv_transfer_params_and_more\":{\"b\":1},\"\\\"\":{\"c\":2}}");
}

static void test_knows_when_there_is_nothing(void **state)
{
    assert_false(bt_redact_may_have(BT_STR("{\"id\":\"x\",\"choices\":[{\"text\":\"params\"}]}")));
    assert_true(bt_redact_may_have(BT_STR("{\"kv_transfer_params\":{}}")));
    assert_true(bt_redact_may_have(BT_STR("{\"c\":[{\"disaggregated_params\" : {\"a\":1}}]}")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blanks_the_object),
        cmocka_unit_test(test_blanks_in_each_choice),
        cmocka_unit_test(test_leaves_everything_else),
        cmocka_unit_test(test_knows_when_there_is_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
