/* What a page may send is not ours to choose: its origin is listed, so the headers that it asks for are allowed by name (client libraries have
 * dozens of their own). What workers say of CORS is taken out of their answers (dispatch/answer/headers.c): engines allow everybody.
 */
#include "http/cors.h"

static const bt_str_t methods = {"GET, HEAD, POST, DELETE", 23};

static bool is_any(const bt_cors_t *cors)
{
    return cors->origins[0][0] == '*';
}

const char *bt_cors_origin(const bt_cors_t *cors, const bt_head_t *head)
{
    if (cors->origins == NULL)
        return NULL;
    const bt_str_t given = bt_head_get(head, BT_STR("origin"));
    if (given.n == 0)
        return NULL;
    for (const char *const *known = cors->origins; *known != NULL; known++)
        if ((*known)[0] == '*' || bt_str_ieq(given, bt_str(*known)))
            return *known;
    return NULL;
}

static void add(bt_header_t *out, unsigned *count, bt_str_t name, bt_str_t value)
{
    out[(*count)++] = (bt_header_t){name, value};
}

/* Whoever keeps answers must not give one origin's to another: Vary, whoever has asked. */
unsigned bt_cors_answer(const bt_cors_t *cors, const char *origin,
                        bt_header_t out[BT_CORS_HEADERS_MAX])
{
    unsigned count = 0;

    if (cors->origins == NULL)
        return 0;
    if (!is_any(cors))
        add(out, &count, BT_STR("Vary"), BT_STR("Origin"));
    if (origin == NULL)
        return count;
    add(out, &count, BT_STR("Access-Control-Allow-Origin"), bt_str(origin));
    add(out, &count, BT_STR("Access-Control-Expose-Headers"),
        BT_STR(
            "x-request-id, retry-after, x-baton-policy, x-baton-policy-generation, x-baton-plan, "
            "x-baton-encode, x-baton-prefill, x-baton-decode, x-baton-worker, x-baton-attempts, "
            "x-baton-degraded, x-baton-leg, x-baton-error"));
    if (cors->has_credentials)
        add(out, &count, BT_STR("Access-Control-Allow-Credentials"), BT_STR("true"));
    return count;
}

bool bt_cors_is_preflight(const bt_cors_t *cors, const bt_head_t *head)
{
    return cors->origins != NULL && head->method == BT_OPTIONS &&
           bt_head_find(head, BT_STR("origin")) != NULL &&
           bt_head_find(head, BT_STR("access-control-request-method")) != NULL;
}

/* A list of names: nothing that would be more than one header. */
static bool is_list_of_names(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == ',' || c == ' '))
            return false;
    }
    return s.n > 0 && s.n <= BT_CORS_ASKED_MAX;
}

unsigned bt_cors_preflight(const char *origin, const bt_head_t *head,
                           bt_header_t out[BT_CORS_PREFLIGHT_MAX], unsigned *count_p)
{
    const bt_str_t asked = bt_head_get(head, BT_STR("access-control-request-headers"));

    *count_p = 0;
    if (origin == NULL)
        return 403;
    add(out, count_p, BT_STR("Access-Control-Allow-Methods"), methods);
    if (is_list_of_names(asked))
        add(out, count_p, BT_STR("Access-Control-Allow-Headers"), asked);
    add(out, count_p, BT_STR("Access-Control-Max-Age"), BT_STR("600"));
    return 204;
}
