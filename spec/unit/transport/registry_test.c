/* The registry against a table typed from SGLang's routes, names and texts; then what it does better: sets, lives, shapes, bounds, a token. */
#include "transport/registry/registry.h"

#include "base/err.h"
#include "base/json.h"
#include "unit.h"

#include <stdio.h>

#define INFO "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
#define RANK(dp, cp, tp, pp)                                                                       \
    "/route?prefill_dp_rank=" #dp "&prefill_cp_rank=" #cp "&target_tp_rank=" #tp                   \
    "&target_pp_rank=" #pp

static bt_kv_registry_t *registry;
static bt_kv_registry_answer_t answer;
static bt_kv_registry_config_t config;
static uint64_t now_ms;
static const char *authorization, *peer;
static bool is_stranger;

/* ---- asking ---- */
static int ask_bytes(const char *method, const char *target, bt_str_t body)
{
    bt_kv_registry_request_t request = {.method = bt_str(method),
                                        .target = bt_str(target),
                                        .body = body,
                                        .authorization = bt_str(authorization),
                                        .peer = bt_str(peer),
                                        .is_stranger = is_stranger,
                                        .now_ms = now_ms};

    const int refusal = bt_kv_registry_refusal(registry, &request);
    bt_kv_registry_answer(registry, &request, &answer);
    assert_int_equal(answer.status == 401 || answer.status == 403 ? answer.status : 0, refusal);
    return answer.status;
}

static int ask(const char *method, const char *target, const char *body)
{
    return ask_bytes(method, target, bt_str(body));
}

static void expect_text(const char *text)
{
    assert_string_equal(answer.body.data, text);
}

static void expect_in_text(const char *text)
{
    if (bt_str_find(bt_text_str(&answer.body), bt_str(text)) < 0)
        fail_msg("\"%s\" is not in \"%s\"", text, answer.body.data);
}

static void expect_member(const char *name, const char *value)
{
    bt_json_item_t item;

    assert_int_equal(bt_json_get(bt_text_str(&answer.body), bt_str(name), &item), 0);
    if (!bt_str_eq(item.value, bt_str(value)))
        fail_msg("%s is %.*s, not %s, in %s", name, BT_STR_ARG(item.value), value,
                 answer.body.data);
}

static bt_kv_registry_stats_t stats(void)
{
    bt_kv_registry_stats_t s;

    bt_kv_registry_stats(registry, &s);
    return s;
}

/* ---- a prefill that registers ---- */
typedef struct put {
    int tp, tp_rank, dp, dp_rank, port, page_size;
    const char *ip, *incarnation;
} put_t;

static int put_rank(put_t p)
{
    char body[1024], life[128] = "";

    if (p.incarnation != NULL)
        snprintf(life, sizeof(life), ",\"incarnation\":\"%s\"", p.incarnation);
    snprintf(body, sizeof(body),
             "{\"attn_tp_size\":%d,\"attn_tp_rank\":%d,\"attn_cp_size\":1,\"attn_cp_rank\":0,"
             "\"attn_dp_size\":%d,\"attn_dp_rank\":%d,\"pp_size\":1,\"pp_rank\":0,"
             "\"system_dp_size\":1,\"system_dp_rank\":0,\"rank_ip\":\"%s\",\"rank_port\":%d,"
             "\"page_size\":%d,\"kv_cache_dtype\":\"auto\","
             "\"load_balance_method\":\"follow_bootstrap_room\","
             "\"enable_dsa_cache_layer_split\":false,\"prefill_http_port\":30000%s}",
             p.tp, p.tp_rank, p.dp != 0 ? p.dp : 1, p.dp_rank, p.ip != NULL ? p.ip : "10.0.0.1",
             p.port, p.page_size != 0 ? p.page_size : 64, life);
    return ask("PUT", "/route", body);
}

static void put_all(int tp, int port, const char *incarnation)
{
    for (int i = 0; i < tp; i++)
        assert_int_equal(
            put_rank((put_t){.tp = tp, .tp_rank = i, .port = port + i, .incarnation = incarnation}),
            200);
}

/* What is served is whole and of this shape and base port alone. */
static void expect_served(int tp, int port)
{
    char text[128];

    assert_int_equal(ask("GET", INFO, ""), 200);
    snprintf(text, sizeof(text), "%d", tp);
    expect_member("attn_tp_size", text);
    for (int i = 0; i < tp; i++) {
        snprintf(text, sizeof(text),
                 "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=%d&target_pp_rank=0",
                 i);
        assert_int_equal(ask("GET", text, ""), 200);
        snprintf(text, sizeof(text), "{\"rank_ip\": \"10.0.0.1\", \"rank_port\": %d}", port + i);
        expect_text(text);
    }
    snprintf(text, sizeof(text),
             "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=%d&target_pp_rank=0", tp);
    assert_int_equal(ask("GET", text, ""), 404);
}

static int setup(void **state)
{
    authorization = peer = NULL;
    is_stranger = false;
    now_ms = 1000000;
    bt_text_init(&answer.body);
    return bt_kv_registry_new(&registry, &config);
}

static int teardown(void **state)
{
    bt_kv_registry_free(registry);
    bt_text_fini(&answer.body);
    config = (bt_kv_registry_config_t){.token = NULL};
    return 0;
}

/* ---- the reference's table ---- */
#define PUT_FULL                                                                                   \
    "{\"attn_tp_size\": 2, \"attn_tp_rank\": 1, \"attn_cp_size\": 1, \"attn_cp_rank\": 0, "        \
    "\"attn_dp_size\": 1, \"attn_dp_rank\": 0, \"pp_size\": 1, \"pp_rank\": 0, "                   \
    "\"system_dp_size\": 1, \"system_dp_rank\": 0, \"rank_ip\": \"10.0.0.2\", "                    \
    "\"rank_port\": 17001, \"page_size\": 64, \"kv_cache_dtype\": \"fp8_e4m3\", "                  \
    "\"load_balance_method\": \"round_robin\", \"enable_dsa_cache_layer_split\": true, "           \
    "\"prefill_http_port\": 30000}"
#define PUT_SHORT /* the last three are optional; another member may come */                       \
    "{\"attn_tp_size\":1,\"attn_tp_rank\":0,\"attn_cp_size\":1,\"attn_cp_rank\":0,"                \
    "\"attn_dp_size\":1,\"attn_dp_rank\":0,\"pp_size\":1,\"pp_rank\":0,\"system_dp_size\":1,"      \
    "\"system_dp_rank\":0,\"rank_ip\":\"10.0.0.1\",\"rank_port\":17000,\"page_size\":1,"           \
    "\"kv_cache_dtype\":null,\"of_a_later_version\":[{}]}"

static void test_the_reference(void **state)
{
    static const struct {
        const char *method, *target, *body;
        int status;
        const char *text;
    } cases[] = {
        {"GET", "/health", "", 200, "OK"},
        {"HEAD", "/health", "", 200, "OK"},
        {"GET", INFO, "", 503, "Prefill server not fully registered yet (0 workers registered)."},
        {"GET", "/route", "", 400, "Missing inputs for bootstrap server."},
        {"GET", "/route?", "", 400, "Missing inputs for bootstrap server."},
        {"GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0", "", 400,
         "Missing inputs for bootstrap server."},
        {"GET", "/route?prefill_dp_rank=&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", "",
         400, "Missing inputs for bootstrap server."},
        {"PUT", "/route", PUT_FULL, 200, "OK"},
        {"GET", INFO, "", 503, "Prefill server not fully registered yet (1 workers registered)."},
        {"GET", RANK(0, 0, 1, 0), "", 503,
         "Prefill server not fully registered yet (1 workers registered)."},
        {"POST", "/register_dp_rank", "{\"bootstrap_room\": 5, \"dp_rank\": 3}", 200, "OK"},
        {"POST", "/register_dp_rank", "{\"bootstrap_room\": 9223372036854775807, \"dp_rank\": 0}",
         200, "OK"},
        {"POST", "/query_dp_ranks", "{\"bootstrap_rooms\": [5, 6, 9223372036854775807]}", 200,
         "{\"5\": 3, \"9223372036854775807\": 0}"},
        {"POST", "/query_dp_ranks", "{\"bootstrap_rooms\": []}", 200, "{}"},
        {"POST", "/query_dp_ranks", "{\"bootstrap_rooms\": [5, 5]}", 200, "{\"5\": 3}"},
        {"DELETE", "/route", "", 405, "Method not allowed"},
        {"POST", "/route", PUT_FULL, 405, "Method not allowed"},
        {"HEAD", INFO, "", 405, "Method not allowed"},
        {"get", "/health", "", 405, "Method not allowed"},
        {"GET", "/register_dp_rank", "", 405, "Method not allowed"},
        {"PUT", "/query_dp_ranks", "", 405, "Method not allowed"},
        {"GET", "/routes", "", 404, "404: Not Found"},
        {"GET", "", "", 404, "404: Not Found"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int status = ask(cases[i].method, cases[i].target, cases[i].body);
        if (status != cases[i].status || strcmp(answer.body.data, cases[i].text) != 0)
            fail_msg("%s %s: %d %s", cases[i].method, cases[i].target, status, answer.body.data);
        assert_int_equal(answer.allow != NULL, status == 405);
    }
}

static void test_info_and_ranks(void **state)
{
    static const char *const members[][2] = {
        {"attn_tp_size", "2"},
        {"attn_cp_size", "1"},
        {"dp_size", "1"},
        {"pp_size", "1"},
        {"page_size", "64"},
        {"kv_cache_dtype", "\"fp8_e4m3\""},
        {"follow_bootstrap_room", "false"},
        {"enable_dsa_cache_layer_split", "true"},
        {"prefill_http_port", "30000"},
        {"target_tp_rank", "null"},
        {"target_tp_ranks", "null"},
        {"target_cp_ranks", "null"},
        {"target_pp_ranks", "null"},
        {"required_dst_info_num", "null"},
        {"required_prefill_response_num", "null"},
    };
    char body[] = PUT_FULL;

    assert_int_equal(ask("PUT", "/route", body), 200);
    memcpy(strstr(body, "attn_tp_rank\": 1"), "attn_tp_rank\": 0", 16);
    memcpy(strstr(body, "17001"), "17000", 5);
    assert_int_equal(ask("PUT", "/route", body), 200);
    assert_int_equal(ask("GET", INFO, ""), 200);
    assert_string_equal(answer.content_type, "application/json; charset=utf-8");
    for (unsigned i = 0; i < sizeof(members) / sizeof(*members); i++)
        expect_member(members[i][0], members[i][1]);
    assert_int_equal(bt_json_count(bt_text_str(&answer.body)), sizeof(members) / sizeof(*members));
    assert_int_equal(ask("GET", RANK(0, 0, 1, 0), ""), 200);
    expect_text("{\"rank_ip\": \"10.0.0.2\", \"rank_port\": 17001}");
    assert_int_equal(ask("GET", RANK(0, 0, 2, 0), ""), 404);
    expect_text("Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=2 pp_rank=0");
    assert_int_equal(ask("GET", RANK(-1, 0, 0, 0), ""), 404);
    expect_text("Bootstrap info not found for dp_rank=-1 cp_rank=0 tp_rank=0 pp_rank=0");
    assert_int_equal(ask("GET", RANK(9223372036854775807, 0, 0, 0), ""), 404);
    assert_int_equal(ask("GET",
                         "/route?x=1&target_pp_rank=0&target_pp_rank=7&prefill_dp_rank=0&"
                         "prefill_cp_rank=0&target_tp_rank=0",
                         ""),
                     200);
    expect_text("{\"rank_ip\": \"10.0.0.2\", \"rank_port\": 17000}");
}

static void test_what_may_be_left_out(void **state)
{
    assert_int_equal(ask("PUT", "/route", PUT_SHORT), 200);
    assert_int_equal(ask("GET", INFO, ""), 200);
    expect_member("kv_cache_dtype", "null");
    expect_member("follow_bootstrap_room", "true");
    expect_member("enable_dsa_cache_layer_split", "false");
    expect_member("prefill_http_port", "null");
}

/* dp_size is attn_dp_size when system_dp_size is 1, else system_dp_size; the key likewise. */
static void test_both_kinds_of_data_parallel(void **state)
{
    char body[] = PUT_SHORT;

    for (int i = 0; i < 2; i++)
        assert_int_equal(put_rank((put_t){.tp = 1, .dp = 2, .dp_rank = i, .port = 17000 + i}), 200);
    assert_int_equal(ask("GET", INFO, ""), 200);
    expect_member("dp_size", "2");
    assert_int_equal(ask("GET", RANK(1, 0, 0, 0), ""), 200);
    expect_member("rank_port", "17001");
    teardown(NULL);
    setup(NULL);
    memcpy(strstr(body, "\"system_dp_size\":1"), "\"system_dp_size\":3", 18);
    for (int i = 0; i < 3; i++) {
        strstr(body, "system_dp_rank\":")[16] = (char) ('0' + i);
        strstr(body, "17000")[4] = (char) ('0' + i);
        assert_int_equal(ask("PUT", "/route", body), 200);
        body[(size_t) (strstr(body, "1700") - body) + 4] = '0';
    }
    assert_int_equal(ask("GET", INFO, ""), 200);
    expect_member("dp_size", "3");
    assert_int_equal(ask("GET", RANK(2, 0, 0, 0), ""), 200);
    expect_member("rank_port", "17002");
}

/* ---- a set, not a counter ---- */
static void test_registering_again(void **state)
{
    for (int i = 0; i < 5; i++)
        put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 17000 + i});
    assert_int_equal(ask("GET", INFO, ""), 503);
    expect_in_text("(1 workers registered)");
    put_rank((put_t){.tp = 2, .tp_rank = 1, .port = 17005});
    expect_served(2, 17004);
    assert_int_equal(stats().ranks, 2);
    assert_int_equal(stats().replaced, 0);
}

/* ---- restarts ---- */
static void test_a_new_life_resets(void **state)
{
    put_all(4, 17000, "first");
    expect_served(4, 17000);
    ask("POST", "/register_dp_rank", "{\"bootstrap_room\":5,\"dp_rank\":0}");
    /* The same shape: without an incarnation this would be a mixture of two lives. */
    put_rank((put_t){.tp = 4, .tp_rank = 2, .port = 18002, .incarnation = "second"});
    assert_int_equal(ask("GET", INFO, ""), 503);
    expect_in_text("(1 workers registered)");
    assert_int_equal(stats().rooms, 0);
    /* A straggler of the first life changes nothing. */
    assert_int_equal(
        put_rank((put_t){.tp = 4, .tp_rank = 0, .port = 17000, .incarnation = "first"}), 409);
    expect_in_text("replaced by a later one");
    put_all(4, 18000, "second");
    expect_served(4, 18000);
    /* Another shape, smaller. */
    put_all(2, 19000, "third");
    expect_served(2, 19000);
    /* One life has one shape. */
    assert_int_equal(put_rank((put_t){.tp = 3, .port = 1, .incarnation = "third"}), 409);
    expect_in_text("all its ranks must agree");
    expect_served(2, 19000);
    assert_int_equal(stats().replaced, 2);
}

static void test_another_shape_waits_until_it_is_whole(void **state)
{
    put_all(2, 17000, NULL);
    for (int i = 0; i < 3; i++) {
        put_rank((put_t){.tp = 4, .tp_rank = i + 1, .port = 18001 + i});
        /* Rank 1 of the old ones is back, rank 0 is not: the old set is served, whole. */
        expect_served(2, 17000);
    }
    assert_int_equal(stats().ranks_aside, 3);
    put_rank((put_t){.tp = 4, .tp_rank = 0, .port = 18000});
    expect_served(4, 18000);
    assert_int_equal(stats().ranks_aside, 0);
    /* Smaller again: whole before all the old ranks are back. */
    put_rank((put_t){.tp = 1, .port = 19000});
    expect_served(1, 19000);
    assert_int_equal(stats().replaced, 2);
}

static void test_another_shape_when_all_old_ranks_are_back(void **state)
{
    put_all(2, 17000, NULL);
    put_rank((put_t){.tp = 4, .tp_rank = 0, .port = 18000});
    put_rank((put_t){.tp = 4, .tp_rank = 0, .port = 18000}); /* a retry is no second rank */
    expect_served(2, 17000);
    put_rank((put_t){.tp = 4, .tp_rank = 1, .port = 18001});
    assert_int_equal(ask("GET", INFO, ""), 503); /* nobody is left of the old one */
    expect_in_text("(2 workers registered)");
    put_all(4, 18000, NULL);
    expect_served(4, 18000);
}

static void test_another_shape_after_the_ttl(void **state)
{
    put_all(4, 17000, NULL);
    now_ms += 120000;
    put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 18000});
    expect_served(4, 17000);
    now_ms += 1;
    put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 18000});
    assert_int_equal(ask("GET", INFO, ""), 503);
    put_rank((put_t){.tp = 2, .tp_rank = 1, .port = 18001});
    expect_served(2, 18000);
    now_ms += 10 * 120000; /* age alone removes nothing */
    expect_served(2, 18000);
}

/* Two shapes aside, and one that was quiet too long: the parts of one never make another whole. */
static void test_what_waits_is_not_mixed_either(void **state)
{
    put_all(3, 17000, NULL);
    put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 18000});
    put_rank((put_t){.tp = 2, .tp_rank = 1, .port = 19001, .page_size = 16});
    expect_served(3, 17000);
    now_ms += 60000;
    put_all(3, 17000, NULL);
    now_ms += 60001; /* the old ranks are fresh, what waits is not */
    put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 20000, .page_size = 16});
    expect_served(3, 17000);
    assert_int_equal(stats().ranks_aside, 1);
    put_rank((put_t){.tp = 2, .tp_rank = 1, .port = 20001, .page_size = 16});
    expect_served(2, 20000);
}

static void test_a_client_without_lives_after_one_with(void **state)
{
    put_all(2, 17000, "first");
    put_rank((put_t){.tp = 2, .tp_rank = 0, .port = 18000});
    expect_served(2, 17000);
    put_rank((put_t){.tp = 2, .tp_rank = 1, .port = 18001});
    expect_served(2, 18000);
    assert_int_equal(put_rank((put_t){.tp = 2, .port = 1, .incarnation = "first"}), 409);
}

/* ---- addresses ---- */
static void test_wildcard_addresses(void **state)
{
    static const char *const wildcards[] = {"0.0.0.0", "::", "[::]", ""};

    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000, .ip = wildcards[i]}), 400);
        expect_in_text("rank_ip");
        peer = "192.0.2.7";
        assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000, .ip = wildcards[i]}), 200);
        assert_int_equal(ask("GET", RANK(0, 0, 0, 0), ""), 200);
        expect_text("{\"rank_ip\": \"192.0.2.7\", \"rank_port\": 17000}");
        peer = NULL;
    }
    peer = "192.0.2.7";
    put_rank((put_t){.tp = 1, .port = 17000, .ip = "node-7.cluster"});
    ask("GET", RANK(0, 0, 0, 0), "");
    expect_member("rank_ip", "\"node-7.cluster\"");
}

/* ---- rooms ---- */
static void put_room(unsigned room)
{
    char body[64];

    snprintf(body, sizeof(body), "{\"bootstrap_room\":%u,\"dp_rank\":%u}", room, room % 8);
    assert_int_equal(ask("POST", "/register_dp_rank", body), 200);
}

static bool has_room(unsigned room)
{
    char body[64];

    snprintf(body, sizeof(body), "{\"bootstrap_rooms\":[%u]}", room);
    assert_int_equal(ask("POST", "/query_dp_ranks", body), 200);
    snprintf(body, sizeof(body), "{\"%u\": %u}", room, room % 8);
    if (strcmp(answer.body.data, body) == 0)
        return true;
    expect_text("{}");
    return false;
}

static void test_rooms_expire(void **state)
{
    put_room(1);
    put_room(2);
    now_ms += 120000;
    assert_true(has_room(1));
    put_room(2); /* lives on from here */
    now_ms += 1;
    assert_false(has_room(1));
    assert_true(has_room(2));
    now_ms += 120000;
    ask("GET", "/health", "");
    assert_int_equal(stats().rooms, 0);
    put_room(1);
    assert_true(has_room(1));
}

static void test_rooms_are_bounded(void **state)
{
    for (unsigned i = 0; i < 100; i++)
        put_room(i);
    assert_int_equal(stats().rooms, 8);
    assert_int_equal(stats().rooms_evicted, 92);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(has_room(i), i >= 92);
    put_room(92); /* now the youngest */
    put_room(100);
    assert_true(has_room(92));
    assert_false(has_room(93));
    now_ms += 200000;
    for (unsigned i = 0; i < 8; i++)
        put_room(i);
    assert_int_equal(stats().rooms_evicted, 93);
}

static int setup_small(void **state)
{
    config = (bt_kv_registry_config_t){.max_rooms = 8, .max_ranks = 8, .max_body_bytes = 700};
    return setup(state);
}

static void test_other_bounds(void **state)
{
    static char big[1000];

    put_all(8, 17000, NULL);
    expect_served(8, 17000);
    assert_int_equal(put_rank((put_t){.tp = 9, .port = 1}), 400);
    expect_in_text("at most 8");
    assert_int_equal(put_rank((put_t){.tp = 4, .dp = 3, .port = 1}), 400);
    assert_int_equal(put_rank((put_t){.tp = 65536, .dp = 65536, .port = 1}), 400);
    assert_int_equal(ask("POST", "/register_dp_rank", "{\"bootstrap_room\":1,\"dp_rank\":8}"), 400);
    memset(big, ' ', 700);
    big[0] = '{';
    big[699] = '}';
    assert_int_equal(ask("POST", "/query_dp_ranks", big), 400);
    memset(big, ' ', 701);
    assert_int_equal(ask("POST", "/query_dp_ranks", big), 413);
    expect_served(8, 17000);
}

/* ---- token ---- */
static int setup_token(void **state)
{
    config = (bt_kv_registry_config_t){.token = "s3cret"};
    return setup(state);
}

static void test_token(void **state)
{
    static const char *const wrong[] = {"",
                                        "s3cret",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer s3cre",
                                        "Bearer s3crets",
                                        "Bearer s3creT",
                                        "Bearer s3crets3cret",
                                        "Basic s3cret",
                                        "Bearer s3cret extra"};
    static const char *const targets[] = {INFO, "/register_dp_rank", "/nowhere"};

    for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        authorization = wrong[i];
        assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 401);
        assert_string_equal(answer.authenticate, "Bearer");
        for (unsigned t = 0; t < 3; t++)
            assert_int_equal(ask("GET", targets[t], ""), 401);
        assert_null(strstr(answer.body.data, "s3cret"));
        assert_int_equal(ask("GET", "/health", ""), 200);
        assert_null(answer.authenticate);
    }
    assert_int_equal(stats().ranks, 0);
    authorization = "bearer  s3cret";
    assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 200);
    assert_int_equal(ask("GET", INFO, ""), 200);
}

/* ---- strangers ---- */
static void test_strangers(void **state)
{
    static const char *const targets[] = {INFO, "/register_dp_rank", "/query_dp_ranks", "/nowhere"};

    is_stranger = true;
    peer = "192.0.2.9";
    assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 403);
    expect_in_text("--registry-allow 192.0.2.9,");
    expect_in_text("--registry-token");
    assert_int_equal(ask("POST", "/register_dp_rank", "{\"bootstrap_room\":7,\"dp_rank\":1}"), 403);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ask("GET", targets[i], ""), 403);
    assert_int_equal(ask("GET", "/health", ""), 200);
    assert_int_equal(ask("HEAD", "/health", ""), 200);
    assert_int_equal(stats().ranks, 0);
    assert_int_equal(stats().rooms, 0);
    assert_int_equal(stats().refused, 6);
    is_stranger = false;
    assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 200);
}

/* Where a token is asked it is asked of all alike. */
static void test_a_stranger_with_the_token(void **state)
{
    is_stranger = true;
    assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 401);
    authorization = "Bearer s3cret";
    assert_int_equal(put_rank((put_t){.tp = 1, .port = 17000}), 200);
}

static void test_bad_configurations(void **state)
{
    static const bt_kv_registry_config_t bad[] = {
        {.token = ""}, {.max_ranks = UINT32_MAX}, {.max_rooms = UINT32_MAX}};
    bt_kv_registry_t *none = NULL;

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bt_kv_registry_new(&none, &bad[i]), BT_E_INVAL);
    assert_null(none);
}

/* ---- refusals ---- */
/* The sentences are registry_body_test.c's; here: a status, and nothing has changed. */
static void test_a_refusal_changes_nothing(void **state)
{
    const char *full = PUT_FULL;

    for (size_t n = 0; n < strlen(full); n++)
        assert_int_equal(ask_bytes("PUT", "/route", (bt_str_t){full, n}), 400);
    assert_int_equal(stats().ranks_expected, 0);
    assert_int_equal(stats().refused, strlen(full));
    put_all(2, 17000, NULL);
    assert_int_equal(put_rank((put_t){.tp = 4, .tp_rank = 4, .port = 1}), 400);
    expect_text("attn_tp_rank 4 must be below attn_tp_size 4");
    assert_int_equal(ask("POST", "/register_dp_rank", "{\"bootstrap_room\":1}"), 400);
    expect_text("dp_rank is missing");
    assert_int_equal(ask("POST", "/query_dp_ranks", "[5]"), 400);
    expect_in_text("must be a JSON object");
    assert_int_equal(ask("GET",
                         "/route?prefill_dp_rank=0x1&prefill_cp_rank=0&target_tp_rank=0&"
                         "target_pp_rank=0",
                         ""),
                     400);
    expect_text("prefill_dp_rank must be an integer");
    assert_int_equal(stats().rooms, 0);
    assert_int_equal(stats().ranks_aside, 0);
    expect_served(2, 17000);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_the_reference),
        CASE(test_info_and_ranks),
        CASE(test_what_may_be_left_out),
        CASE(test_both_kinds_of_data_parallel),
        CASE(test_registering_again),
        CASE(test_a_new_life_resets),
        CASE(test_another_shape_waits_until_it_is_whole),
        CASE(test_another_shape_when_all_old_ranks_are_back),
        CASE(test_another_shape_after_the_ttl),
        CASE(test_what_waits_is_not_mixed_either),
        CASE(test_a_client_without_lives_after_one_with),
        CASE(test_wildcard_addresses),
        CASE(test_rooms_expire),
        cmocka_unit_test_setup_teardown(test_rooms_are_bounded, setup_small, teardown),
        cmocka_unit_test_setup_teardown(test_other_bounds, setup_small, teardown),
        cmocka_unit_test_setup_teardown(test_token, setup_token, teardown),
        cmocka_unit_test_setup_teardown(test_strangers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stranger_with_the_token, setup_token, teardown),
        cmocka_unit_test(test_bad_configurations),
        CASE(test_a_refusal_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
