/* route.c - the table of paths.
 *
 * The list is closed. Engines have routes beside those for inference that stop them, load code into them or show their keys, and
 * new ones with every release, so nothing goes through because it happens to begin with /v1/. Listed are what clients use and what
 * changes nothing in an engine (vLLM 0.33, SGLang 0.5.23, PyMotor); --proxy-path adds to it.
 */
#include "api/route.h"

#define RESPONSES BT_STR("/v1/responses/")
#define MODELS BT_STR("/v1/models/")

static const struct {
    bt_str_t path;
    enum bt_route route;
} exact[] = {
    {BT_STR("/v1/chat/completions"), BT_ROUTE_CHAT},
    {BT_STR("/v1/completions"), BT_ROUTE_COMPLETIONS},
    {BT_STR("/v1/responses"), BT_ROUTE_RESPONSES},
    {BT_STR("/v1/messages"), BT_ROUTE_MESSAGES},
    {BT_STR("/generate"), BT_ROUTE_GENERATE},
    {BT_STR("/inference/v1/generate"), BT_ROUTE_TOKENS},
    {BT_STR("/v1/chat/completions/batch"), BT_ROUTE_CHAT_BATCH},
    {BT_STR("/v1/embeddings"), BT_ROUTE_EMBEDDINGS},
    {BT_STR("/rerank"), BT_ROUTE_RERANK},
    {BT_STR("/v1/rerank"), BT_ROUTE_RERANK},
    {BT_STR("/v2/rerank"), BT_ROUTE_RERANK},
    {BT_STR("/classify"), BT_ROUTE_CLASSIFY},
    {BT_STR("/v1/classify"), BT_ROUTE_CLASSIFY},
    {BT_STR("/health"), BT_ROUTE_HEALTH},
    {BT_STR("/liveness"), BT_ROUTE_LIVENESS},
    {BT_STR("/readiness"), BT_ROUTE_READINESS},
    {BT_STR("/v1/models"), BT_ROUTE_MODELS},
    {BT_STR("/abort_request"), BT_ROUTE_ABORT},
    {BT_STR("/get_model_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/get_server_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/model_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/server_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/tokenize"), BT_ROUTE_PROXY},
    {BT_STR("/detokenize"), BT_ROUTE_PROXY},
    {BT_STR("/v1/tokenize"), BT_ROUTE_PROXY},
    {BT_STR("/v1/detokenize"), BT_ROUTE_PROXY},
    {BT_STR("/v1/messages/count_tokens"), BT_ROUTE_PROXY},
    {BT_STR("/score"), BT_ROUTE_PROXY},
    {BT_STR("/v1/score"), BT_ROUTE_PROXY},
    {BT_STR("/pooling"), BT_ROUTE_PROXY},
    {BT_STR("/v2/embed"), BT_ROUTE_PROXY},
    {BT_STR("/v1/chat/completions/render"), BT_ROUTE_PROXY},
    {BT_STR("/v1/completions/render"), BT_ROUTE_PROXY},
    {BT_STR("/v1/messages/render"), BT_ROUTE_PROXY},
    {BT_STR("/v1/responses/render"), BT_ROUTE_PROXY},
    {BT_STR("/v1/chat/completions/derender"), BT_ROUTE_PROXY},
    {BT_STR("/v1/completions/derender"), BT_ROUTE_PROXY},
    {BT_STR("/v1/audio/transcriptions"), BT_ROUTE_UPLOAD},
    {BT_STR("/v1/audio/translations"), BT_ROUTE_UPLOAD},
    {BT_STR("/workers"), BT_ROUTE_WORKERS},
    {BT_STR("/add_worker"), BT_ROUTE_WORKERS},
    {BT_STR("/remove_worker"), BT_ROUTE_WORKERS},
    {BT_STR("/list_workers"), BT_ROUTE_WORKERS},
};

static const bt_route_info_t infos[BT_ROUTE_COUNT] = {
    [BT_ROUTE_NONE] = {"other", false, BT_BODY_NONE},
    [BT_ROUTE_CHAT] = {"chat", true, BT_BODY_JSON},
    [BT_ROUTE_CHAT_BATCH] = {"chat_batch", true, BT_BODY_JSON},
    [BT_ROUTE_COMPLETIONS] = {"completions", true, BT_BODY_JSON},
    [BT_ROUTE_RESPONSES] = {"responses", true, BT_BODY_JSON},
    [BT_ROUTE_MESSAGES] = {"messages", true, BT_BODY_JSON},
    [BT_ROUTE_GENERATE] = {"generate", true, BT_BODY_JSON},
    [BT_ROUTE_TOKENS] = {"inference_generate", true, BT_BODY_JSON},
    [BT_ROUTE_EMBEDDINGS] = {"embeddings", false, BT_BODY_JSON},
    [BT_ROUTE_RERANK] = {"rerank", false, BT_BODY_JSON},
    [BT_ROUTE_CLASSIFY] = {"classify", false, BT_BODY_JSON},
    [BT_ROUTE_RESPONSE_BY_ID] = {"response_by_id", false, BT_BODY_OPTIONAL},
    [BT_ROUTE_PROXY] = {"proxy", false, BT_BODY_OPTIONAL},
    [BT_ROUTE_UPLOAD] = {"upload", false, BT_BODY_FORM},
    [BT_ROUTE_PROXY_PATH] = {"proxy_path", false, BT_BODY_ANY},
    [BT_ROUTE_MODEL] = {"model", false, BT_BODY_OPTIONAL},
    [BT_ROUTE_MODELS] = {"models", false, BT_BODY_NONE},
    [BT_ROUTE_HEALTH] = {"health", false, BT_BODY_NONE},
    [BT_ROUTE_LIVENESS] = {"liveness", false, BT_BODY_NONE},
    [BT_ROUTE_READINESS] = {"readiness", false, BT_BODY_NONE},
    [BT_ROUTE_SERVER_INFO] = {"server_info", false, BT_BODY_OPTIONAL},
    [BT_ROUTE_ABORT] = {"abort", false, BT_BODY_NONE},
    [BT_ROUTE_WORKERS] = {"workers", false, BT_BODY_NONE},
};

static bool is_under(bt_str_t path, bt_str_t prefix)
{
    return prefix.n != 0 && bt_str_starts(path, prefix) &&
           (path.n == prefix.n || path.p[prefix.n] == '/' || prefix.p[prefix.n - 1] == '/');
}

enum bt_route bt_route_of(bt_str_t path, const char *const *extra)
{
    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++)
        if (bt_str_eq(path, exact[i].path))
            return exact[i].route;
    if (bt_str_starts(path, RESPONSES))
        return BT_ROUTE_RESPONSE_BY_ID;
    if (bt_str_starts(path, MODELS))
        return BT_ROUTE_MODEL;
    if (bt_str_starts(path, BT_STR("/workers/")))
        return BT_ROUTE_WORKERS;
    for (; extra != NULL && *extra != NULL; extra++)
        if (is_under(path, bt_str(*extra)))
            return BT_ROUTE_PROXY_PATH;
    return BT_ROUTE_NONE;
}

const bt_route_info_t *bt_route_info(enum bt_route route)
{
    return &infos[route];
}

const char *bt_route_operation(enum bt_route route)
{
    switch (route) {
    case BT_ROUTE_CHAT:
    case BT_ROUTE_CHAT_BATCH:
    case BT_ROUTE_RESPONSES:
    case BT_ROUTE_MESSAGES:
        return "chat";
    case BT_ROUTE_COMPLETIONS:
    case BT_ROUTE_GENERATE:
    case BT_ROUTE_TOKENS:
        return "text_completion";
    case BT_ROUTE_EMBEDDINGS:
        return "embeddings";
    default:
        return NULL;
    }
}

bt_str_t bt_route_name(enum bt_route route, bt_str_t path)
{
    const size_t skip = route == BT_ROUTE_RESPONSE_BY_ID ? RESPONSES.n
                        : route == BT_ROUTE_MODEL        ? MODELS.n
                                                         : path.n;

    return skip < path.n ? (bt_str_t){path.p + skip, path.n - skip} : BT_STR_NULL;
}
