/* route.c - the table of paths. */
#include "dispatch/route.h"

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
    {BT_STR("/v1/embeddings"), BT_ROUTE_EMBEDDINGS},
    {BT_STR("/rerank"), BT_ROUTE_RERANK},
    {BT_STR("/v1/rerank"), BT_ROUTE_RERANK},
    {BT_STR("/classify"), BT_ROUTE_CLASSIFY},
    {BT_STR("/v1/classify"), BT_ROUTE_CLASSIFY},
    {BT_STR("/tokenize"), BT_ROUTE_PROXY},
    {BT_STR("/detokenize"), BT_ROUTE_PROXY},
    {BT_STR("/v1/models"), BT_ROUTE_MODELS},
    {BT_STR("/health"), BT_ROUTE_HEALTH},
    {BT_STR("/liveness"), BT_ROUTE_LIVENESS},
    {BT_STR("/readiness"), BT_ROUTE_READINESS},
    {BT_STR("/get_model_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/get_server_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/model_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/server_info"), BT_ROUTE_SERVER_INFO},
    {BT_STR("/abort_request"), BT_ROUTE_ABORT},
    {BT_STR("/workers"), BT_ROUTE_WORKERS},
    {BT_STR("/add_worker"), BT_ROUTE_WORKERS},
    {BT_STR("/remove_worker"), BT_ROUTE_WORKERS},
    {BT_STR("/list_workers"), BT_ROUTE_WORKERS},
};

static const bt_route_info_t infos[BT_ROUTE_COUNT] = {
    [BT_ROUTE_NONE] = {"other", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_CHAT] = {"chat", true, true, BT_FORM_OPENAI},
    [BT_ROUTE_COMPLETIONS] = {"completions", true, true, BT_FORM_OPENAI},
    [BT_ROUTE_RESPONSES] = {"responses", true, true, BT_FORM_OPENAI},
    [BT_ROUTE_MESSAGES] = {"messages", true, true, BT_FORM_ANTHROPIC},
    [BT_ROUTE_GENERATE] = {"generate", true, true, BT_FORM_SGLANG},
    [BT_ROUTE_TOKENS] = {"inference_generate", true, true, BT_FORM_OPENAI},
    [BT_ROUTE_EMBEDDINGS] = {"embeddings", false, true, BT_FORM_OPENAI},
    [BT_ROUTE_RERANK] = {"rerank", false, true, BT_FORM_OPENAI},
    [BT_ROUTE_CLASSIFY] = {"classify", false, true, BT_FORM_OPENAI},
    [BT_ROUTE_RESPONSE_BY_ID] = {"response_by_id", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_PROXY] = {"proxy", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_MODELS] = {"models", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_HEALTH] = {"health", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_LIVENESS] = {"liveness", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_READINESS] = {"readiness", false, false, BT_FORM_OPENAI},
    [BT_ROUTE_SERVER_INFO] = {"server_info", false, false, BT_FORM_SGLANG},
    [BT_ROUTE_ABORT] = {"abort", false, true, BT_FORM_SGLANG},
    [BT_ROUTE_WORKERS] = {"workers", false, false, BT_FORM_OPENAI},
};

/* One character of a path as a lenient server would read it: %2e is a dot, %2f and a backslash are slashes. */
static char lenient(bt_str_t path, size_t *at)
{
    const char *p = path.p + *at;
    const bool coded = path.n - *at >= 3 && p[0] == '%' && p[1] == '2';

    *at += coded && (p[2] == 'e' || p[2] == 'E' || p[2] == 'f' || p[2] == 'F') ? 3 : 1;
    if (path.p + *at - p == 3)
        return p[2] == 'e' || p[2] == 'E' ? '.' : '/';
    return *p == '\\' ? '/' : *p;
}

/* "." or ".." between slashes: a server that resolves them would reach another route than the one that was allowed. */
static bool has_dot_segment(bt_str_t path)
{
    unsigned dots = 0;
    bool only_dots = true;

    for (size_t at = 0; at < path.n;) {
        const char c = lenient(path, &at);
        if (c == '/') {
            if (only_dots && (dots == 1 || dots == 2))
                return true;
            dots = 0;
            only_dots = true;
        } else {
            only_dots = only_dots && c == '.';
            dots++;
        }
    }
    return only_dots && (dots == 1 || dots == 2);
}

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
    if (has_dot_segment(path))
        return BT_ROUTE_NONE;
    if (bt_str_starts(path, BT_STR("/v1/responses/")))
        return BT_ROUTE_RESPONSE_BY_ID;
    if (bt_str_starts(path, BT_STR("/workers/")))
        return BT_ROUTE_WORKERS;
    if (bt_str_starts(path, BT_STR("/v1/")) && path.n > 4)
        return BT_ROUTE_PROXY;
    for (; extra != NULL && *extra != NULL; extra++)
        if (is_under(path, bt_str(*extra)))
            return BT_ROUTE_PROXY;
    return BT_ROUTE_NONE;
}

const bt_route_info_t *bt_route_info(enum bt_route route)
{
    return &infos[route];
}
