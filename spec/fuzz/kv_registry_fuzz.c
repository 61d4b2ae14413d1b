/* kv_registry_fuzz.c - any sequence of requests to the registry.
 *
 * The bytes are a script: registrations of small prefills (several shapes and lives), rooms, time, and requests with any method, target and body.
 *
 * What must hold: each request has an answer with a known status; JSON is JSON; the tables keep their bounds; what is served is whole; and while
 * only the script's own prefills have registered, all the ranks that are served are of one shape and one life (their port says which).
 */
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "transport/registry/registry.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_RANKS 16
#define MAX_ROOMS 4
#define INFO "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "kv_registry_fuzz: %s (line %d)\n", #cond, __LINE__);                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct script {
    const uint8_t *p;
    size_t n;
    bt_kv_registry_t *registry;
    bt_kv_registry_answer_t answer;
    uint64_t now_ms;
    bool is_own; /* nobody but put_rank has registered */
    bool has_token, is_stranger;
} script_t;

static unsigned byte(script_t *s)
{
    if (s->n == 0)
        return 0;
    s->n--;
    return *s->p++;
}

static bt_str_t bytes(script_t *s, size_t n)
{
    n = n < s->n ? n : s->n;
    bt_str_t text = {(const char *) s->p, n};
    s->p += n;
    s->n -= n;
    return text;
}

static void check_answer(const script_t *s)
{
    static const int known[] = {200, 400, 401, 403, 404, 405, 409, 413, 503};
    bt_str_t body = bt_text_str(&s->answer.body);
    bool is_known = false;
    bt_kv_registry_stats_t stats;

    for (unsigned i = 0; i < sizeof(known) / sizeof(*known); i++)
        is_known |= s->answer.status == known[i];
    CHECK(is_known && body.n > 0);
    CHECK((s->answer.allow != NULL) == (s->answer.status == 405));
    CHECK(s->answer.status != 403 || (s->is_stranger && !s->has_token));
    CHECK(s->answer.status != 401);
    if (strstr(s->answer.content_type, "json") != NULL)
        CHECK(s->answer.status == 200 && bt_json_validate(body, NULL) == 0);
    else
        CHECK(body.n < 400);
    bt_kv_registry_stats(s->registry, &stats);
    CHECK(stats.rooms <= MAX_ROOMS && stats.ranks <= stats.ranks_expected);
    CHECK(stats.ranks_expected <= MAX_RANKS && stats.ranks_aside <= MAX_RANKS);
}

static int ask(script_t *s, bt_str_t method, bt_str_t target, bt_str_t body)
{
    bt_kv_registry_request_t request = {.method = method,
                                        .target = target,
                                        .body = body,
                                        .authorization = BT_STR("Bearer t"),
                                        .peer = BT_STR("192.0.2.1"),
                                        .is_stranger = s->is_stranger,
                                        .now_ms = s->now_ms};

    bt_kv_registry_answer(s->registry, &request, &s->answer);
    check_answer(s);
    return s->answer.status;
}

static int64_t member(const script_t *s, const char *name)
{
    bt_json_item_t item;
    int64_t value = 0;

    CHECK(bt_json_get(bt_text_str(&s->answer.body), bt_str(name), &item) == 0);
    CHECK(bt_json_i64(item.value, &value) == 0);
    return value;
}

/* A rank whose port says its life, of the shape that its page size says. */
static void put_rank(script_t *s)
{
    static const unsigned shapes[4][4] = {{1, 1, 2, 1}, {2, 1, 2, 2}, {1, 1, 4, 1}, {1, 2, 1, 1}};
    unsigned how = byte(s), which = byte(s), shape = how & 3, life = how >> 2 & 3;
    const unsigned *z = shapes[shape];
    char body[1024], incarnation[64] = "";

    if (life != 0)
        snprintf(incarnation, sizeof(incarnation), ",\"incarnation\":\"%u\"", life);
    snprintf(body, sizeof(body),
             "{\"attn_dp_size\":%u,\"attn_dp_rank\":%u,\"attn_cp_size\":%u,\"attn_cp_rank\":%u,"
             "\"attn_tp_size\":%u,\"attn_tp_rank\":%u,\"pp_size\":%u,\"pp_rank\":%u,"
             "\"system_dp_size\":1,\"system_dp_rank\":0,\"rank_ip\":\"0.0.0.0\",\"rank_port\":%u,"
             "\"page_size\":%u,\"kv_cache_dtype\":\"auto\"%s}",
             z[0], which % z[0], z[1], which / 2 % z[1], z[2], which / 4 % z[2], z[3],
             which / 16 % z[3], 1000 + shape * 10 + life, shape + 1, incarnation);
    int status = ask(s, BT_STR("PUT"), BT_STR("/route"), bt_str(body));
    CHECK(status == 200 || (status == 409 && life != 0));
}

static void check_served(script_t *s)
{
    bt_kv_registry_stats_t stats;
    char target[160];
    int64_t size[4], port = 0;

    bt_kv_registry_stats(s->registry, &stats);
    bool is_whole = stats.ranks_expected > 0 && stats.ranks == stats.ranks_expected;
    CHECK((ask(s, BT_STR("GET"), BT_STR(INFO), BT_STR_NULL) == 200) == is_whole);
    if (!is_whole)
        return;
    static const char *const names[] = {"dp_size", "attn_cp_size", "attn_tp_size", "pp_size"};
    for (unsigned i = 0; i < 4; i++)
        size[i] = member(s, names[i]);
    int64_t shape = member(s, "page_size") - 1;
    for (int64_t i = 0; i < size[0] * size[1] * size[2] * size[3]; i++) {
        snprintf(target, sizeof(target),
                 "/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&"
                 "target_pp_rank=%d",
                 (int) (i / size[3] / size[2] / size[1]), (int) (i / size[3] / size[2] % size[1]),
                 (int) (i / size[3] % size[2]), (int) (i % size[3]));
        CHECK(ask(s, BT_STR("GET"), bt_str(target), BT_STR_NULL) == 200);
        if (!s->is_own)
            continue;
        port = port != 0 ? port : member(s, "rank_port");
        CHECK(member(s, "rank_port") == port && (port - 1000) / 10 == shape);
    }
}

static void room(script_t *s)
{
    unsigned how = byte(s);
    char body[64];

    snprintf(body, sizeof(body), "{\"bootstrap_room\":%u,\"dp_rank\":%u}", how & 7, how >> 3);
    int status = ask(s, BT_STR("POST"), BT_STR("/register_dp_rank"), bt_str(body));
    CHECK(status == (how >> 3 < MAX_RANKS ? 200 : 400));
    if (status != 200)
        return;
    snprintf(body, sizeof(body), "{\"bootstrap_rooms\":[%u]}", how & 7);
    CHECK(ask(s, BT_STR("POST"), BT_STR("/query_dp_ranks"), bt_str(body)) == 200);
    snprintf(body, sizeof(body), "{\"%u\": %u}", how & 7, how >> 3);
    CHECK(bt_str_eq(bt_text_str(&s->answer.body), bt_str(body)));
}

static void any_request(script_t *s)
{
    static const char *const methods[] = {"GET", "PUT", "POST", "HEAD"};
    static const char *const targets[] = {"/route", "/register_dp_rank", "/query_dp_ranks"};
    unsigned how = byte(s);
    bt_str_t method = (how & 4) == 0 ? bt_str(methods[how & 3]) : bytes(s, byte(s) & 15);
    unsigned which = how >> 3 & 3;
    bt_str_t target = which < 3 ? bt_str(targets[which]) : bytes(s, byte(s));
    bt_str_t body = bytes(s, byte(s) | byte(s) << 8);
    bt_kv_registry_stats_t before, after;

    s->is_stranger = (how & 0x20) != 0;
    if (bt_str_eq(method, BT_STR("PUT")))
        s->is_own &= s->is_stranger && !s->has_token;
    bt_kv_registry_stats(s->registry, &before);
    int status = ask(s, method, target, body);
    bt_kv_registry_stats(s->registry, &after);
    /* What it refuses has changed nothing. */
    CHECK(status != 403 || (after.ranks == before.ranks && after.rooms <= before.rooms));
    CHECK(!s->is_stranger || s->has_token || which >= 3 || status == 403);
    s->is_stranger = false;
}

static void any_query(script_t *s)
{
    char target[300];
    bt_str_t query = bytes(s, byte(s));
    int n = snprintf(target, sizeof(target), "/route?");

    if (query.n > 0)
        memcpy(target + n, query.p, query.n);
    ask(s, BT_STR("GET"), (bt_str_t){target, (size_t) n + query.n}, BT_STR_NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t steps_ms[] = {0, 1, 50, 51, 99, 100, 101, 1000};
    script_t s = {.p = data, .n = size, .now_ms = 1, .is_own = true};
    bool has_token = size > 0 && (data[0] & 0x10) != 0;
    bt_kv_registry_config_t config = {.token = has_token ? "t" : NULL,
                                      .max_ranks = MAX_RANKS,
                                      .max_rooms = MAX_ROOMS,
                                      .rank_ttl_ms = 100,
                                      .room_ttl_ms = 100};

    bt_log_level_now = BT_LOG_ERROR;
    s.has_token = has_token;
    bt_text_init(&s.answer.body);
    CHECK(bt_kv_registry_new(&s.registry, &config) == 0);
    while (s.n > 0) {
        unsigned op = byte(&s);
        s.now_ms += steps_ms[op >> 5];
        switch (op & 7) {
        case 0:
        case 1:
        case 2:
            put_rank(&s);
            break;
        case 3:
            room(&s);
            break;
        case 4:
            any_query(&s);
            break;
        default:
            any_request(&s);
        }
        check_served(&s);
    }
    bt_text_fini(&s.answer.body);
    bt_kv_registry_free(s.registry);
    return 0;
}
