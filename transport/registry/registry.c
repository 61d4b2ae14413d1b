/* One function a route, behind a table of routes. Bodies are read by registry_body.c into plain values before anything is touched, so a request that is
 * refused has changed nothing. The ranks are registry_ranks.c's, the rooms registry_rooms.c's.
 */
#include "transport/registry/registry.h"

#include "transport/registry/registry_ranks.h"
#include "transport/registry/registry_rooms.h"

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define RANKS_DEFAULT 16384u
#define RANKS_LIMIT (1u << 20)
#define ROOMS_DEFAULT 65536u
#define ROOMS_LIMIT (1u << 24)
#define BODY_DEFAULT (1u << 20)
#define TTL_DEFAULT_MS 120000u

struct bt_kv_registry {
    bt_kv_registry_config_t config; /* defaults filled in */
    char *token;
    bt_kv_ranks_t ranks;
    bt_kv_room_ranks_t rooms;
    uint64_t queries, refused;
};

int bt_kv_registry_new(bt_kv_registry_t **registry_p, const bt_kv_registry_config_t *config)
{
    bt_kv_registry_config_t c = *config;

    c.max_ranks = c.max_ranks != 0 ? c.max_ranks : RANKS_DEFAULT;
    c.max_rooms = c.max_rooms != 0 ? c.max_rooms : ROOMS_DEFAULT;
    c.max_body_bytes = c.max_body_bytes != 0 ? c.max_body_bytes : BODY_DEFAULT;
    c.rank_ttl_ms = c.rank_ttl_ms != 0 ? c.rank_ttl_ms : TTL_DEFAULT_MS;
    c.room_ttl_ms = c.room_ttl_ms != 0 ? c.room_ttl_ms : TTL_DEFAULT_MS;
    if ((c.token != NULL && c.token[0] == '\0') || c.max_ranks > RANKS_LIMIT ||
        c.max_rooms > ROOMS_LIMIT)
        return BT_E_INVAL;
    bt_kv_registry_t *registry = calloc(1, sizeof(*registry));
    if (registry == NULL)
        return BT_E_NOMEM;
    registry->config = c;
    registry->ranks.ttl_ms = c.rank_ttl_ms;
    int rc = bt_kv_room_ranks_init(&registry->rooms, c.max_rooms, c.room_ttl_ms);
    if (rc == 0 && c.token != NULL) {
        registry->token = bt_str_dup(bt_str(c.token));
        rc = registry->token != NULL ? 0 : BT_E_NOMEM;
    }
    if (rc < 0) {
        bt_kv_registry_free(registry);
        return rc;
    }
    registry->config.token = registry->token;
    *registry_p = registry;
    return 0;
}

void bt_kv_registry_free(bt_kv_registry_t *registry)
{
    if (registry == NULL)
        return;
    bt_kv_ranks_fini(&registry->ranks);
    bt_kv_room_ranks_fini(&registry->rooms);
    free(registry->token);
    free(registry);
}

void bt_kv_registry_stats(const bt_kv_registry_t *registry, bt_kv_registry_stats_t *stats_p)
{
    *stats_p = (bt_kv_registry_stats_t){
        .ranks = registry->ranks.served.count,
        .ranks_expected = registry->ranks.served.total,
        .ranks_aside = registry->ranks.aside.count,
        .rooms = registry->rooms.count,
        .replaced = registry->ranks.replaced,
        .rooms_evicted = registry->rooms.evicted,
        .refused = registry->refused,
    };
}

/* ---- answers ---- */
static void say(bt_kv_registry_answer_t *answer, int status, const char *text)
{
    answer->status = status;
    answer->body.len = 0;
    bt_text_puts(&answer->body, text);
}

static void refuse(bt_kv_registry_t *registry, bt_kv_registry_answer_t *answer, int status,
                   const char *text)
{
    registry->refused++;
    say(answer, status, text);
}

static void begin_json(bt_kv_registry_answer_t *answer)
{
    answer->status = 200;
    answer->content_type = "application/json; charset=utf-8";
}

/* ---- PUT /route ---- */
static int take_peer_address(const bt_kv_registry_request_t *request, bt_kv_registration_t *r)
{
    if (!bt_kv_is_wildcard(r->ip))
        return 0;
    if (request->peer.n == 0 || request->peer.n >= sizeof(r->ip))
        return BT_E_INVAL;
    memcpy(r->ip, request->peer.p, request->peer.n);
    r->ip[request->peer.n] = '\0';
    return 0;
}

static void put_route(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                      bt_kv_registry_answer_t *answer)
{
    char why[BT_KV_SENTENCE_BYTES] = "";
    bt_kv_registration_t r;
    bool was_whole = bt_kv_ranks_are_whole(&registry->ranks);
    uint64_t replaced = registry->ranks.replaced;

    if (bt_kv_read_registration(request->body, registry->config.max_ranks, &r, why) < 0) {
        refuse(registry, answer, 400, why);
        return;
    }
    if (take_peer_address(request, &r) < 0) {
        refuse(registry, answer, 400,
               "rank_ip is a wildcard; register an address that decode can reach");
        return;
    }
    int rc = bt_kv_ranks_put(&registry->ranks, &r, request->now_ms, why);
    if (rc == BT_E_AGAIN) {
        refuse(registry, answer, 409, why);
        return;
    }
    if (rc < 0) {
        say(answer, 503, "Out of memory.");
        return;
    }
    if (registry->ranks.replaced != replaced)
        bt_kv_room_ranks_clear(&registry->rooms);
    if (bt_kv_ranks_are_whole(&registry->ranks) &&
        (!was_whole || registry->ranks.replaced != replaced))
        bt_log_info("kv", "registry: all %u ranks have registered", registry->ranks.served.total);
    say(answer, 200, "OK");
}

/* ---- GET /route ---- */
enum { DP, CP, TP, PP, AXES };

static const char *const axis_names[AXES] = {"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank",
                                             "target_pp_rank"};

static bt_str_t cut(bt_str_t *rest, char at)
{
    const char *stop = rest->n > 0 ? memchr(rest->p, at, rest->n) : NULL;
    bt_str_t head = {rest->p, stop != NULL ? (size_t) (stop - rest->p) : rest->n};

    *rest = stop != NULL ? (bt_str_t){stop + 1, rest->n - head.n - 1} : BT_STR_NULL;
    return head;
}

/* 1: all four are there; 0: one is missing; BT_E_INVAL: one is no integer. The first of a name counts. */
static int read_query(bt_str_t query, int64_t ranks[AXES], char *why)
{
    bt_str_t values[AXES] = {{NULL, 0}};

    while (query.n > 0) {
        bt_str_t value = cut(&query, '&');
        bt_str_t name = cut(&value, '=');
        for (unsigned i = 0; i < AXES; i++)
            if (values[i].p == NULL && bt_str_eq(name, bt_str(axis_names[i])))
                values[i] = value.p != NULL ? value : BT_STR("");
    }
    for (unsigned i = 0; i < AXES; i++)
        if (values[i].n == 0)
            return 0;
    for (unsigned i = 0; i < AXES; i++)
        if (bt_json_i64(values[i], &ranks[i]) < 0) {
            snprintf(why, BT_KV_SENTENCE_BYTES, "%s must be an integer", axis_names[i]);
            return BT_E_INVAL;
        }
    return 1;
}

static void put_bool(bt_text_t *out, const char *name, bool value)
{
    bt_text_printf(out, ", \"%s\": %s", name, value ? "true" : "false");
}

/* What decode works out itself is null here, as SGLang's server sends it. */
static void put_info(bt_text_t *out, const bt_kv_rank_set_t *set)
{
    const bt_kv_topology_t *t = &set->topology;

    bt_text_printf(out, "{\"attn_tp_size\": %u, \"attn_cp_size\": %u, \"dp_size\": %u", t->tp,
                   t->cp, t->dp);
    bt_text_printf(out, ", \"pp_size\": %u, \"page_size\": %lld, \"kv_cache_dtype\": ", t->pp,
                   (long long) t->page_size);
    if (t->kv_cache_dtype[0] != '\0')
        bt_text_json_str(out, bt_str(t->kv_cache_dtype));
    else
        bt_text_puts(out, "null");
    put_bool(out, "follow_bootstrap_room", t->follow_bootstrap_room);
    put_bool(out, "enable_dsa_cache_layer_split", t->enable_dsa_cache_layer_split);
    if (set->prefill_http_port != 0)
        bt_text_printf(out, ", \"prefill_http_port\": %u", set->prefill_http_port);
    else
        bt_text_puts(out, ", \"prefill_http_port\": null");
    bt_text_puts(out, ", \"target_tp_rank\": null, \"target_tp_ranks\": null, "
                      "\"target_cp_ranks\": null, \"target_pp_ranks\": null, "
                      "\"required_dst_info_num\": null, "
                      "\"required_prefill_response_num\": null}");
}

static void put_rank(const bt_kv_ranks_t *ranks, const int64_t *at, bt_kv_registry_answer_t *answer)
{
    const bt_kv_rank_t *rank = bt_kv_ranks_get(ranks, at[DP], at[CP], at[TP], at[PP]);

    if (rank == NULL) {
        say(answer, 404, "");
        bt_text_printf(&answer->body,
                       "Bootstrap info not found for dp_rank=%lld cp_rank=%lld tp_rank=%lld "
                       "pp_rank=%lld",
                       (long long) at[DP], (long long) at[CP], (long long) at[TP],
                       (long long) at[PP]);
        return;
    }
    begin_json(answer);
    bt_text_puts(&answer->body, "{\"rank_ip\": ");
    bt_text_json_str(&answer->body, bt_str(rank->ip));
    bt_text_printf(&answer->body, ", \"rank_port\": %u}", rank->port);
}

static void get_route(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                      bt_kv_registry_answer_t *answer)
{
    char why[BT_KV_SENTENCE_BYTES] = "Missing inputs for bootstrap server.";
    bt_str_t query = request->target;
    int64_t ranks[AXES];

    cut(&query, '?');
    if (read_query(query, ranks, why) <= 0) {
        refuse(registry, answer, 400, why);
        return;
    }
    if (!bt_kv_ranks_are_whole(&registry->ranks)) {
        say(answer, 503, "");
        bt_text_printf(&answer->body,
                       "Prefill server not fully registered yet (%u workers registered).",
                       registry->ranks.served.count);
        return;
    }
    if (ranks[DP] == -1 && ranks[CP] == -1 && ranks[TP] == -1 && ranks[PP] == -1) {
        begin_json(answer);
        put_info(&answer->body, &registry->ranks.served);
    } else {
        put_rank(&registry->ranks, ranks, answer);
    }
}

/* ---- rooms ---- */
static void register_dp_rank(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                             bt_kv_registry_answer_t *answer)
{
    char why[BT_KV_SENTENCE_BYTES] = "";
    uint64_t room;
    uint32_t dp_rank;

    if (bt_kv_read_room_rank(request->body, registry->config.max_ranks, &room, &dp_rank, why) < 0) {
        refuse(registry, answer, 400, why);
        return;
    }
    bt_kv_room_ranks_put(&registry->rooms, room, dp_rank, request->now_ms);
    say(answer, 200, "OK");
}

static void query_dp_ranks(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                           bt_kv_registry_answer_t *answer)
{
    char why[BT_KV_SENTENCE_BYTES] = "";
    const char *comma = "";
    bt_json_cursor_t c;
    bt_json_item_t item;
    bt_str_t rooms;
    int64_t room;

    if (bt_kv_read_rooms(request->body, &rooms, why) < 0) {
        refuse(registry, answer, 400, why);
        return;
    }
    uint64_t query = ++registry->queries;
    begin_json(answer);
    bt_text_puts(&answer->body, "{");
    for (int rc = bt_json_array(&c, rooms); rc >= 0 && bt_json_next(&c, &item) > 0;) {
        bt_kv_room_rank_t *known = bt_json_i64(item.value, &room) == 0
                                       ? bt_kv_room_ranks_get(&registry->rooms, (uint64_t) room)
                                       : NULL;
        if (known == NULL || known->asked == query)
            continue;
        known->asked = query;
        bt_text_printf(&answer->body, "%s\"%lld\": %u", comma, (long long) room, known->dp_rank);
        comma = ", ";
    }
    bt_text_puts(&answer->body, "}");
}

static void get_health(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                       bt_kv_registry_answer_t *answer)
{
    (void) registry;
    (void) request;
    say(answer, 200, "OK");
}

/* ---- the table ---- */
static const struct route {
    const char *path, *method, *allow;
    bool is_open; /* needs no token */
    void (*answer)(bt_kv_registry_t *, const bt_kv_registry_request_t *, bt_kv_registry_answer_t *);
} routes[] = {
    {"/route", "GET", "GET, PUT", false, get_route},
    {"/route", "PUT", "GET, PUT", false, put_route},
    {"/register_dp_rank", "POST", "POST", false, register_dp_rank},
    {"/query_dp_ranks", "POST", "POST", false, query_dp_ranks},
    {"/health", "GET", "GET, HEAD", true, get_health},
    {"/health", "HEAD", "GET, HEAD", true, get_health},
};

static bool is_allowed(const bt_kv_registry_t *registry, bt_str_t authorization)
{
    bt_str_t scheme = cut(&authorization, ' ');
    bt_str_t given = bt_str_trim(authorization), token = bt_str(registry->token);

    if (registry->token == NULL)
        return true;
    return bt_str_ieq(scheme, BT_STR("Bearer")) && bt_str_is_secret(token, given);
}

/* The route; else one of the same path with another method; else NULL. */
static const struct route *find_route(bt_str_t path, bt_str_t method)
{
    const struct route *near = NULL;

    for (unsigned i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
        if (!bt_str_eq(path, bt_str(routes[i].path)))
            continue;
        near = &routes[i];
        if (bt_str_eq(method, bt_str(near->method)))
            break;
    }
    return near;
}

int bt_kv_registry_refusal(const bt_kv_registry_t *registry,
                           const bt_kv_registry_request_t *request)
{
    bt_str_t rest = request->target;
    const struct route *route = find_route(cut(&rest, '?'), request->method);

    if (route != NULL && route->is_open)
        return 0;
    if (!is_allowed(registry, request->authorization))
        return 401;
    return registry->token == NULL && request->is_stranger ? 403 : 0;
}

static void answer_route(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                         bt_kv_registry_answer_t *answer)
{
    bt_str_t rest = request->target;
    bt_str_t path = cut(&rest, '?');
    const struct route *route = find_route(path, request->method);
    const int refusal = bt_kv_registry_refusal(registry, request);

    if (refusal == 401) {
        answer->authenticate = "Bearer";
        refuse(registry, answer, 401, "This registry needs \"Authorization: Bearer <token>\".");
    } else if (refusal == 403) {
        refuse(registry, answer, 403, "");
        bt_text_printf(&answer->body,
                       "This registry is open to its own host and to the hosts of the gateway's "
                       "workers, and %.*s is none of them: add its worker first, or start the "
                       "gateway with --registry-allow %.*s, or with --registry-token if it can "
                       "send one.",
                       (int) (request->peer.n < 64 ? request->peer.n : 64), request->peer.p,
                       (int) (request->peer.n < 64 ? request->peer.n : 64), request->peer.p);
    } else if (route == NULL) {
        say(answer, 404, "404: Not Found");
    } else if (!bt_str_eq(request->method, bt_str(route->method))) {
        answer->allow = route->allow;
        say(answer, 405, "Method not allowed");
    } else if (request->body.n > registry->config.max_body_bytes) {
        refuse(registry, answer, 413, "The body is larger than this registry reads.");
    } else {
        route->answer(registry, request, answer);
    }
}

void bt_kv_registry_answer(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                           bt_kv_registry_answer_t *answer)
{
    answer->status = 0;
    answer->content_type = "text/plain; charset=utf-8";
    answer->allow = answer->authenticate = NULL;
    answer->body.len = 0;
    answer->body.failed = false;
    bt_kv_room_ranks_expire(&registry->rooms, request->now_ms);
    answer_route(registry, request, answer);
    if (answer->body.failed) { /* out of memory half-way through a text */
        answer->status = 503;
        answer->body.len = 0;
    }
}
