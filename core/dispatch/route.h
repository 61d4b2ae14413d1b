/* route.h - which paths the gateway serves, and what kind of request each one is.
 *
 * Owner: nobody; a constant table.
 * Life:  static.
 * Flow:  path -> route; anything not listed is 404 unless proxied (rules section 1).
 * Cost:  a length switch and a compare.
 */
#ifndef BT_DISPATCH_ROUTE_H
#define BT_DISPATCH_ROUTE_H

#include "base/str.h"
#include "http/message.h"

enum bt_route {
    BT_ROUTE_NONE,
    BT_ROUTE_CHAT,
    BT_ROUTE_COMPLETIONS,
    BT_ROUTE_RESPONSES,
    BT_ROUTE_MESSAGES,
    BT_ROUTE_GENERATE,
    BT_ROUTE_TOKENS, /* /inference/v1/generate */
    BT_ROUTE_EMBEDDINGS,
    BT_ROUTE_RERANK,
    BT_ROUTE_CLASSIFY,
    BT_ROUTE_RESPONSE_BY_ID, /* /v1/responses/{id}[/...] */
    BT_ROUTE_PROXY,          /* proxied as it is: /v1/..., /tokenize, /detokenize, --proxy-path */
    BT_ROUTE_MODELS,
    BT_ROUTE_HEALTH,
    BT_ROUTE_LIVENESS,
    BT_ROUTE_READINESS,
    BT_ROUTE_SERVER_INFO, /* /get_server_info, /get_model_info: from a worker */
    BT_ROUTE_ABORT,
    BT_ROUTE_WORKERS, /* peers' worker paths on the client port */
    BT_ROUTE_COUNT
};

/* In what form errors are told. */
enum bt_error_form { BT_FORM_OPENAI, BT_FORM_ANTHROPIC, BT_FORM_SGLANG };

typedef struct bt_route_info {
    const char *label; /* metric label */
    bool generates;    /* tokens come out: can be split into prefill and decode */
    bool takes_json;   /* the body is read as JSON */
    enum bt_error_form form;
} bt_route_info_t;

/* extra: NULL-terminated --proxy-path prefixes, or NULL. */
enum bt_route bt_route_of(bt_str_t path, const char *const *extra);
const bt_route_info_t *bt_route_info(enum bt_route route);

#endif
