/* Errors of the gateway's own: each family's body and event, status by status; which path is whose. */
#include "api/error.h"

#include <stdio.h>

#include "base/json.h"
#include "unit.h"

static void expect_text(bt_text_t *t, const char *wanted)
{
    assert_string_equal(t->data, wanted);
    bt_text_fini(t);
}

static void expect_body(enum bt_error_family family, unsigned status, const char *wanted)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put(&t, family, status, "a \"word\"");
    assert_int_equal(bt_json_validate(bt_text_str(&t), NULL), 0);
    expect_text(&t, wanted);
}

static void expect_event(enum bt_error_family family, unsigned status, const char *wanted)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put_event(&t, family, status, "w", 7);
    expect_text(&t, wanted);
}

static void limit_is(enum bt_error_family family, const char *wanted)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_error_put_limit(&t, family, 429, "w", "rpm");
    assert_int_equal(bt_json_validate(bt_text_str(&t), NULL), 0);
    expect_text(&t, wanted);
}

static void test_limit(void **state)
{
    limit_is(BT_ERRORS_OPENAI, "{\"error\":{\"message\":\"w\",\"limit\":\"rpm\",\"type\":\"rate_"
                               "limit_error\",\"param\":null,\"code\":429}}");
    limit_is(BT_ERRORS_ANTHROPIC, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\","
                                  "\"message\":\"w\",\"limit\":\"rpm\"}}");
    limit_is(BT_ERRORS_SGLANG, "{\"error\":{\"message\":\"w\",\"limit\":\"rpm\",\"code\":429}}");
}

static void test_family_of_a_path(void **state)
{
    static const struct {
        const char *path;
        enum bt_error_family family;
    } rows[] = {
        {"/v1/messages", BT_ERRORS_ANTHROPIC},
        {"/v1/messages/count_tokens", BT_ERRORS_ANTHROPIC},
        {"/v1/messages/no/such/route", BT_ERRORS_ANTHROPIC},
        {"/v1/messagesx", BT_ERRORS_OPENAI},
        {"/v1/responses", BT_ERRORS_RESPONSES},
        {"/v1/responses/resp_1", BT_ERRORS_RESPONSES},
        {"/inference/v1/generate", BT_ERRORS_VLLM},
        {"/generate", BT_ERRORS_SGLANG},
        {"/abort_request", BT_ERRORS_SGLANG},
        {"/v1/completions", BT_ERRORS_OPENAI},
        {"/v1/chat/completions", BT_ERRORS_OPENAI},
        {"/v1/embeddings", BT_ERRORS_OPENAI},
        {"/v1/models", BT_ERRORS_OPENAI},
        {"/", BT_ERRORS_OPENAI},
        {"", BT_ERRORS_OPENAI},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(bt_error_family_of(bt_str(rows[i].path)), rows[i].family);
    assert_int_equal(bt_error_family_of(BT_STR_NULL), BT_ERRORS_OPENAI);
}

static void test_anthropic(void **state)
{
    static const struct {
        unsigned status;
        const char *type;
    } rows[] = {
        {400, "invalid_request_error"},
        {401, "authentication_error"},
        {402, "billing_error"},
        {403, "permission_error"},
        {404, "not_found_error"},
        {405, "invalid_request_error"},
        {408, "invalid_request_error"},
        {413, "request_too_large"},
        {415, "invalid_request_error"},
        {429, "rate_limit_error"},
        {500, "api_error"},
        {502, "api_error"},
        {503, "overloaded_error"},
        {504, "timeout_error"},
        {529, "overloaded_error"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char body[256], event[256];
        snprintf(body, sizeof(body),
                 "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"a \\\"word\\\"\"}}",
                 rows[i].type);
        snprintf(event, sizeof(event),
                 "event: error\ndata: "
                 "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"w\"}}\n\n",
                 rows[i].type);
        expect_body(BT_ERRORS_ANTHROPIC, rows[i].status, body);
        expect_event(BT_ERRORS_ANTHROPIC, rows[i].status, event);
    }
}

static void test_openai_and_vllm(void **state)
{
    static const struct {
        unsigned status;
        const char *type, *vllm, *code;
    } rows[] = {
        {400, "invalid_request_error", "BadRequestError", "invalid_request_error"},
        {401, "authentication_error", "Unauthorized", "invalid_request_error"},
        {403, "permission_error", "Forbidden", "invalid_request_error"},
        {404, "invalid_request_error", "NotFoundError", "invalid_request_error"},
        {413, "invalid_request_error", "Content Too Large", "invalid_request_error"},
        {429, "rate_limit_error", "Too Many Requests", "rate_limit_exceeded"},
        {500, "server_error", "InternalServerError", "server_error"},
        {501, "server_error", "NotImplementedError", "server_error"},
        {502, "server_error", "Bad Gateway", "server_error"},
        {503, "server_error", "Service Unavailable", "server_error"},
        {504, "server_error", "Gateway Timeout", "server_error"},
    };
    static const char body_form[] = "{\"error\":{\"message\":\"a \\\"word\\\"\",\"type\":\"%s\","
                                    "\"param\":null,\"code\":%u}}";
    static const char event_form[] =
        "data: {\"error\":{\"message\":\"w\",\"type\":\"%s\",\"param\":null,\"code\":%u}}\n\n"
        "data: [DONE]\n\n";
    static const char response_form[] =
        "event: error\ndata: {\"type\":\"error\",\"code\":\"%s\",\"message\":\"w\",\"param\":null,"
        "\"sequence_number\":7}\n\n";

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char body[256], event[256];
        snprintf(body, sizeof(body), body_form, rows[i].type, rows[i].status);
        expect_body(BT_ERRORS_OPENAI, rows[i].status, body);
        expect_body(BT_ERRORS_RESPONSES, rows[i].status, body);
        snprintf(event, sizeof(event), event_form, rows[i].type, rows[i].status);
        expect_event(BT_ERRORS_OPENAI, rows[i].status, event);
        snprintf(event, sizeof(event), response_form, rows[i].code);
        expect_event(BT_ERRORS_RESPONSES, rows[i].status, event);
        snprintf(body, sizeof(body), body_form, rows[i].vllm, rows[i].status);
        expect_body(BT_ERRORS_VLLM, rows[i].status, body);
    }
}

static void test_sglang(void **state)
{
    expect_body(BT_ERRORS_SGLANG, 400, "{\"error\":{\"message\":\"a \\\"word\\\"\",\"code\":400}}");
    expect_body(BT_ERRORS_SGLANG, 429, "{\"error\":{\"message\":\"a \\\"word\\\"\",\"code\":429}}");
    expect_body(BT_ERRORS_SGLANG, 502,
                "{\"object\":\"error\",\"message\":\"a \\\"word\\\"\",\"type\":\"502\","
                "\"param\":null,\"code\":502}");
    expect_event(BT_ERRORS_SGLANG, 502,
                 "data: {\"error\":{\"message\":\"w\",\"code\":502}}\n\ndata: [DONE]\n\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit), cmocka_unit_test(test_family_of_a_path),
        cmocka_unit_test(test_anthropic), cmocka_unit_test(test_openai_and_vllm),
        cmocka_unit_test(test_sglang)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
