/* error.c - one table of families.
 *
 *   OpenAI      {"error":{"message","type","param","code"}}; code is the status, as vLLM and SGLang have it
 *   Responses   the same; in a stream `event: error`, whose members stand at the top and are numbered like all its events
 *   Anthropic   {"type":"error","error":{"type","message"}}; the type is what its SDKs and its documentation go by
 *   SGLang      {"error":{"message"}} of what the client did, {"object":"error",...} with the status as text of what the server
 *               did; in a stream always the former (sglang-on-cpu facts: "Failures"). code stands in each
 *   vLLM        OpenAI's members; the type is an exception's name where vLLM has one, else the status' phrase
 */
#include "api/error.h"

#include "http/message.h"

enum bt_error_family bt_error_family_of(bt_str_t path)
{
    static const struct {
        bt_str_t path;
        enum bt_error_family family;
    } families[] = {
        {BT_STR("/v1/messages"), BT_ERRORS_ANTHROPIC},
        {BT_STR("/v1/responses"), BT_ERRORS_RESPONSES},
        {BT_STR("/inference/v1"), BT_ERRORS_VLLM},
        {BT_STR("/generate"), BT_ERRORS_SGLANG},
        {BT_STR("/abort_request"), BT_ERRORS_SGLANG},
        {BT_STR("/get_server_info"), BT_ERRORS_SGLANG},
        {BT_STR("/get_model_info"), BT_ERRORS_SGLANG},
        {BT_STR("/server_info"), BT_ERRORS_SGLANG},
        {BT_STR("/model_info"), BT_ERRORS_SGLANG},
    };

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const bt_str_t prefix = families[i].path;
        if (bt_str_starts(path, prefix) && (path.n == prefix.n || path.p[prefix.n] == '/'))
            return families[i].family;
    }
    return BT_ERRORS_OPENAI;
}

static const char *openai_type(unsigned status)
{
    if (status >= 500)
        return "server_error";
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
                           : "invalid_request_error";
}

/* 529 is Anthropic's own status for what is 503 elsewhere. */
static const char *anthropic_type(unsigned status)
{
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {
        {401, "authentication_error"}, {402, "billing_error"},     {403, "permission_error"},
        {404, "not_found_error"},      {413, "request_too_large"}, {429, "rate_limit_error"},
        {503, "overloaded_error"},     {504, "timeout_error"},     {529, "overloaded_error"}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].status == status)
            return types[i].type;
    return status >= 500 ? "api_error" : "invalid_request_error";
}

static const char *vllm_type(unsigned status)
{
    return status == 400   ? "BadRequestError"
           : status == 404 ? "NotFoundError"
           : status == 500 ? "InternalServerError"
           : status == 501 ? "NotImplementedError"
                           : bt_http_reason(status);
}

/* What every family's error has. */
static void put_message(bt_text_t *t, const char *message, const char *limit)
{
    bt_text_puts(t, "\"message\":");
    bt_text_json_str(t, bt_str(message));
    if (limit == NULL)
        return;
    bt_text_puts(t, ",\"limit\":");
    bt_text_json_str(t, bt_str(limit));
}

static void put_openai(bt_text_t *t, const char *type, unsigned status, const char *message,
                       const char *limit)
{
    bt_text_puts(t, "{\"error\":{");
    put_message(t, message, limit);
    bt_text_printf(t, ",\"type\":\"%s\",\"param\":null,\"code\":%u}}", type, status);
}

static void put_sglang(bt_text_t *t, unsigned status, const char *message, const char *limit,
                       bool is_event)
{
    const bool is_servers = status >= 500 && !is_event;

    bt_text_puts(t, is_servers ? "{\"object\":\"error\"," : "{\"error\":{");
    put_message(t, message, limit);
    if (is_servers)
        bt_text_printf(t, ",\"type\":\"%u\",\"param\":null,\"code\":%u}", status, status);
    else
        bt_text_printf(t, ",\"code\":%u}}", status);
}

static void put(bt_text_t *t, enum bt_error_family family, unsigned status, const char *message,
                const char *limit, bool is_event)
{
    switch (family) {
    case BT_ERRORS_ANTHROPIC:
        bt_text_printf(t, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",",
                       anthropic_type(status));
        put_message(t, message, limit);
        bt_text_puts(t, "}}");
        return;
    case BT_ERRORS_SGLANG:
        put_sglang(t, status, message, limit, is_event);
        return;
    case BT_ERRORS_VLLM:
        put_openai(t, vllm_type(status), status, message, limit);
        return;
    case BT_ERRORS_OPENAI:
    case BT_ERRORS_RESPONSES:
        put_openai(t, openai_type(status), status, message, limit);
        return;
    }
}

void bt_error_put(bt_text_t *t, enum bt_error_family family, unsigned status, const char *message)
{
    put(t, family, status, message, NULL, false);
}

void bt_error_put_limit(bt_text_t *t, enum bt_error_family family, unsigned status,
                        const char *message, const char *limit)
{
    put(t, family, status, message, limit, false);
}

static const char *response_code(unsigned status)
{
    return status == 429   ? "rate_limit_exceeded"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void bt_error_put_event(bt_text_t *t, enum bt_error_family family, unsigned status,
                        const char *message, uint64_t events)
{
    if (family == BT_ERRORS_RESPONSES) {
        bt_text_printf(t, "event: error\ndata: {\"type\":\"error\",\"code\":\"%s\",\"message\":",
                       response_code(status));
        bt_text_json_str(t, bt_str(message));
        bt_text_printf(t, ",\"param\":null,\"sequence_number\":%llu}\n\n",
                       (unsigned long long) events);
        return;
    }
    bt_text_puts(t, family == BT_ERRORS_ANTHROPIC ? "event: error\ndata: " : "data: ");
    put(t, family, status, message, NULL, true);
    bt_text_puts(t, "\n\n");
    if (family != BT_ERRORS_ANTHROPIC)
        bt_text_puts(t, "data: [DONE]\n\n");
}
