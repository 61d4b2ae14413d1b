/* route.h - which paths the gateway serves, and what kind of request each one is.
 *
 * Owner: nobody; a constant table.
 * Life:  static.
 * Flow:  canonical path (path.h) -> route; anything that is neither listed nor under a --proxy-path is 404.
 * Cost:  a compare of lengths per row, the busiest ones first.
 */
#ifndef BT_API_ROUTE_H
#define BT_API_ROUTE_H

#include "base/str.h"
#include "http/message.h"

enum bt_route {
    BT_ROUTE_NONE,
    BT_ROUTE_CHAT,
    BT_ROUTE_CHAT_BATCH, /* several conversations in one request: made by one worker */
    BT_ROUTE_COMPLETIONS,
    BT_ROUTE_RESPONSES,
    BT_ROUTE_MESSAGES,
    BT_ROUTE_GENERATE,
    BT_ROUTE_TOKENS, /* /inference/v1/generate */
    BT_ROUTE_EMBEDDINGS,
    BT_ROUTE_RERANK,
    BT_ROUTE_CLASSIFY,
    BT_ROUTE_RESPONSE_BY_ID, /* /v1/responses/{id}[/...] */
    BT_ROUTE_PROXY,      /* routes of engines that generate nothing: tokenize, score, render ... */
    BT_ROUTE_UPLOAD,     /* audio comes as a multipart form */
    BT_ROUTE_PROXY_PATH, /* --proxy-path */
    BT_ROUTE_MODEL,      /* /v1/models/{name} */
    BT_ROUTE_MODELS,
    BT_ROUTE_HEALTH,
    BT_ROUTE_LIVENESS,
    BT_ROUTE_READINESS,
    BT_ROUTE_SERVER_INFO, /* /get_server_info, /get_model_info: from a worker */
    BT_ROUTE_ABORT,
    BT_ROUTE_WORKERS, /* peers' worker paths on the client port */
    BT_ROUTE_COUNT
};

/* What a body may be. Whatever else it may be: one that begins like a JSON object is read as one. */
enum bt_body_kind {
    BT_BODY_NONE,     /* the gateway answers itself and looks at it, if at all, on its own */
    BT_BODY_JSON,     /* POST of a JSON object; its members are understood */
    BT_BODY_OPTIONAL, /* none, or a JSON object */
    BT_BODY_FORM,     /* multipart/form-data, or as OPTIONAL */
    BT_BODY_ANY
};

typedef struct bt_route_info {
    const char *label; /* metric label */
    bool generates;    /* tokens come out: can be split into prefill and decode */
    enum bt_body_kind body;
} bt_route_info_t;

/* path: canonical. extra: NULL-terminated --proxy-path prefixes, or NULL. */
enum bt_route bt_route_of(bt_str_t path, const char *const *extra);
/* The last segments of /v1/responses/{id}... or /v1/models/{name}, or BT_STR_NULL. */
bt_str_t bt_route_name(enum bt_route route, bt_str_t path);
const bt_route_info_t *bt_route_info(enum bt_route route);
/* What OpenTelemetry's GenAI conventions call it (trace/span.h has their version); NULL: they know nothing of it. One pointer a name. */
const char *bt_route_operation(enum bt_route route);

#endif
