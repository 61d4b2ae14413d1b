/* registry.h - SGLang's bootstrap registry as request -> answer: where a prefill's ranks are, and which rank has a room. No sockets here.
 *
 * Owner: whoever serves it (the gateway, an engine); one a prefill instance. Not locked: one thread at a time.
 * Life:  bt_kv_registry_new -> answers -> bt_kv_registry_free. It has no timer: each request brings the time.
 * Flow:  ranks PUT /route until the set is whole, then decode may GET /route; rooms come by POST /register_dp_rank and go after room_ttl_ms.
 * Cost:  O(bytes of the request); a room is O(1), the tables are bounded and the oldest room makes way.
 *
 * Routes, names and texts are SGLang's: PUT and GET /route, POST /register_dp_rank, POST /query_dp_ranks, GET /health. What differs:
 * - Ranks are a set, so a rank that registers again (a retry) is not counted twice.
 * - The topology is not the first writer's for ever. What is served is always one prefill's life, never parts of two shapes:
 *   - A PUT may carry "incarnation", a text that is new in each life of the prefill and the same on all its ranks. Another one than the served one's
 *     replaces everything at once (GET is 503 until the new set is whole). A replaced one that comes late, or one with two shapes, is refused: 409.
 *   - Without it, a PUT of another topology is answered 200 and collected aside, while the old one goes on being served. It takes over when its set is
 *     whole, or all the old ranks have registered again in it, or no old rank has registered for rank_ttl_ms. A set aside that was
 *     quiet for rank_ttl_ms starts afresh. The same topology without an incarnation cannot be told from a retry: its ranks are replaced one by one.
 *   - When the topology is replaced the rooms are forgotten: their ranks were the old one's.
 *   Age alone never removes a rank: SGLang's ranks register once. (The port of the HTTP API is not part of the topology: the latest one is served.)
 * - With a token every request but GET /health needs "Authorization: Bearer <token>", else 401. Without one a stranger (whoever serves this says who is one)
 *   may GET /health only, else 403.
 * - A wildcard in rank_ip (0.0.0.0, ::, or nothing) becomes the address the request came from.
 * - What is malformed, missing, twice there or out of range is 400 with a sentence, where SGLang fails with 500.
 */
#ifndef BT_TRANSPORT_REGISTRY_H
#define BT_TRANSPORT_REGISTRY_H

#include "base/text.h"

typedef struct bt_kv_registry bt_kv_registry_t;

/* Zero means the default. */
typedef struct bt_kv_registry_config {
    const char *token;       /* NULL = none is asked; copied */
    uint32_t max_ranks;      /* of a topology; default 16,384 */
    uint32_t max_rooms;      /* default 65,536 */
    uint32_t max_body_bytes; /* default 1 MiB; more is 413. The server need not read beyond it */
    uint32_t rank_ttl_ms;    /* default 120,000 */
    uint32_t room_ttl_ms;    /* default 120,000 */
} bt_kv_registry_config_t;

typedef struct bt_kv_registry_request { /* borrowed for the call */
    bt_str_t method, target; /* as on the request line: "/route?prefill_dp_rank=-1&..." */
    bt_str_t body;
    bt_str_t authorization; /* the header's value; empty = not there */
    bt_str_t peer;          /* numeric address of the other end, without port; empty = not known */
    bool is_stranger;       /* of a host that has no business here; with a token nobody is */
    uint64_t now_ms;        /* monotonic */
} bt_kv_registry_request_t;

typedef struct bt_kv_registry_answer {
    int status;
    const char *content_type;
    const char *allow;        /* with 405: value of the header Allow; else NULL */
    const char *authenticate; /* with 401: value of the header WWW-Authenticate; else NULL */
    bt_text_t body;           /* the caller's: init before the first use; emptied by each answer */
} bt_kv_registry_answer_t;

typedef struct bt_kv_registry_stats {
    uint32_t ranks, ranks_expected; /* of the served topology; 0 expected: none is known */
    uint32_t ranks_aside;           /* of a topology that has not taken over */
    uint32_t rooms;
    uint64_t replaced;      /* topologies that took over from another one */
    uint64_t rooms_evicted; /* before their time, because the table was full */
    uint64_t refused;       /* answers of 4xx but 404 and 405 */
} bt_kv_registry_stats_t;

/* 0, BT_E_INVAL (an empty token), BT_E_NOMEM. */
int bt_kv_registry_new(bt_kv_registry_t **registry_p, const bt_kv_registry_config_t *config);
void bt_kv_registry_free(bt_kv_registry_t *registry);
/* Before its body has come: 401 or 403 if that is the answer whatever the body is; else 0. */
int bt_kv_registry_refusal(const bt_kv_registry_t *registry,
                           const bt_kv_registry_request_t *request);
/* Always an answer: any method, target and body. */
void bt_kv_registry_answer(bt_kv_registry_t *registry, const bt_kv_registry_request_t *request,
                           bt_kv_registry_answer_t *answer);
void bt_kv_registry_stats(const bt_kv_registry_t *registry, bt_kv_registry_stats_t *stats_p);

#endif
