/* The registry's bodies: what is read, and the sentence for each that is not. */
#include "transport/registry/registry_body.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>

#define MAX_RANKS 64

#define FULL                                                                                       \
    "{\"attn_tp_size\": 2, \"attn_tp_rank\": 1, \"attn_cp_size\": 1, \"attn_cp_rank\": 0, "        \
    "\"attn_dp_size\": 1, \"attn_dp_rank\": 0, \"pp_size\": 1, \"pp_rank\": 0, "                   \
    "\"system_dp_size\": 1, \"system_dp_rank\": 0, \"rank_ip\": \"10.0.0.2\", "                    \
    "\"rank_port\": 17001, \"page_size\": 64, \"kv_cache_dtype\": \"fp8_e4m3\", "                  \
    "\"load_balance_method\": \"round_robin\", \"enable_dsa_cache_layer_split\": true, "           \
    "\"prefill_http_port\": 30000}"

static char why[BT_KV_SENTENCE_BYTES];

static void expect_why(const char *text)
{
    if (strstr(why, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, why);
}

static int read_put(const char *body)
{
    bt_kv_registration_t r;

    why[0] = '\0';
    return bt_kv_read_registration(bt_str(body), MAX_RANKS, &r, why);
}

static void test_a_registration(void **state)
{
    bt_kv_registration_t r;

    assert_int_equal(bt_kv_read_registration(BT_STR(FULL), MAX_RANKS, &r, why), 0);
    assert_int_equal(r.topology.tp, 2);
    assert_int_equal(r.key.tp, 1);
    assert_int_equal(r.topology.dp * r.topology.cp * r.topology.pp, 1);
    assert_int_equal(r.topology.page_size, 64);
    assert_string_equal(r.topology.kv_cache_dtype, "fp8_e4m3");
    assert_false(r.topology.follow_bootstrap_room);
    assert_true(r.topology.enable_dsa_cache_layer_split);
    assert_string_equal(r.ip, "10.0.0.2");
    assert_int_equal(r.port, 17001);
    assert_int_equal(r.prefill_http_port, 30000);
    assert_string_equal(r.incarnation, "");
}

/* PUT /route with one member replaced by something else, or left out. */
static void test_malformed_registrations(void **state)
{
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"\"attn_tp_size\": 2,", "", "attn_tp_size is missing"},
        {"\"attn_tp_size\": 2", "\"attn_tp_size\": 0", "attn_tp_size must be"},
        {"\"attn_tp_size\": 2", "\"attn_tp_size\": 1", "attn_tp_rank 1 must be below"},
        {"\"attn_cp_rank\": 0", "\"attn_cp_rank\": -1", "attn_cp_rank must be"},
        {"\"attn_dp_rank\": 0", "\"attn_dp_rank\": 1", "attn_dp_rank 1 must be below"},
        {"\"pp_size\": 1", "\"pp_size\": true", "pp_size must be"},
        {"\"pp_rank\": 0", "\"pp_rank\": 1", "pp_rank 1 must be below"},
        {"\"system_dp_size\": 1", "\"system_dp_size\": null", "system_dp_size must be"},
        {"\"rank_ip\": \"10.0.0.2\"", "\"rank_ip\": 5", "rank_ip must be a string"},
        {"10.0.0.2", "10.0.0.2\\r\\nX-A: b", "rank_ip must not hold"},
        {"10.0.0.2", "10.0.0.2\\u0000", "rank_ip must not hold"},
        {"10.0.0.2", "12345678901234567890123456789012345678901234567890123456789012345",
         "at most 64 bytes"},
        {"17001", "0", "rank_port must be"},
        {"17001", "65536", "rank_port must be"},
        {"17001", "\"17001\"", "rank_port must be"},
        {"\"page_size\": 64", "\"page_size\": 0", "page_size must be"},
        {"\"fp8_e4m3\"", "7", "kv_cache_dtype must be"},
        {"\"round_robin\"", "{}", "load_balance_method must be"},
        {"true", "\"true\"", "must be true or false"},
        {"30000", "70000", "prefill_http_port must be"},
        {"30000", "30000, \"incarnation\": 9", "incarnation must be"},
        {"30000", "30000, \"rank_port\": 1", "rank_port is there twice"},
    };
    const char *full = FULL;
    char body[2048];

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *at = strstr(full, cases[i].from);
        assert_non_null(at);
        snprintf(body, sizeof(body), "%.*s%s%s", (int) (at - full), full, cases[i].to,
                 at + strlen(cases[i].from));
        assert_int_equal(read_put(body), BT_E_INVAL);
        expect_why(cases[i].why);
    }
}

/* Numbers whose product would overflow 32 bits. */
static void test_too_many_ranks(void **state)
{
    static const char *const sizes[][3] = {
        {"65536", "65536", "65536"}, {"65", "1", "1"}, {"8", "9", "1"}, {"2", "32", "2"}};
    char body[1024];

    for (unsigned i = 0; i < 4; i++) {
        snprintf(body, sizeof(body),
                 "{\"attn_tp_size\":%s,\"attn_tp_rank\":0,\"attn_cp_size\":%s,\"attn_cp_rank\":0,"
                 "\"attn_dp_size\":1,\"attn_dp_rank\":0,\"pp_size\":1,\"pp_rank\":0,"
                 "\"system_dp_size\":%s,\"system_dp_rank\":0,\"rank_ip\":\"h\","
                 "\"rank_port\":1,\"page_size\":1}",
                 sizes[i][0], sizes[i][1], sizes[i][2]);
        assert_int_equal(read_put(body), BT_E_INVAL);
        expect_why("must be at most 64");
    }
}

static void test_a_room_and_its_rank(void **state)
{
    static const struct {
        const char *body, *why;
    } cases[] = {
        {"", "must be a JSON object"},
        {"[]", "must be a JSON object"},
        {"{\"bootstrap_room\":1,\"dp_rank\":1", "malformed JSON at byte"},
        {"{\"bootstrap_room\":1,\"dp_rank\":1}}", "malformed JSON"},
        {"{\"x\":\"\xff\",\"bootstrap_room\":1,\"dp_rank\":1}", "UTF-8"},
        {"{\"bootstrap_room\":1}", "dp_rank is missing"},
        {"{\"bootstrap_room\":1,\"dp_rank\":1,\"dp_\\u0072ank\":2}", "dp_rank is there twice"},
        {"{\"bootstrap_room\":null,\"dp_rank\":1}", "bootstrap_room must be"},
        {"{\"bootstrap_room\":\"1\",\"dp_rank\":1}", "bootstrap_room must be"},
        {"{\"bootstrap_room\":1.0,\"dp_rank\":1}", "bootstrap_room must be"},
        {"{\"bootstrap_room\":-1,\"dp_rank\":1}", "bootstrap_room must be"},
        {"{\"bootstrap_room\":9223372036854775808,\"dp_rank\":1}", "bootstrap_room must be"},
        {"{\"bootstrap_room\":1,\"dp_rank\":1e0}", "dp_rank must be"},
    };
    uint64_t room = 7;
    uint32_t rank = 7;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(bt_kv_read_room_rank(bt_str(cases[i].body), MAX_RANKS, &room, &rank, why),
                         BT_E_INVAL);
        expect_why(cases[i].why);
    }
    const bt_str_t nul = BT_STR("{\"bootstrap_room\":1,\0\"dp_rank\":1}");
    assert_int_equal(bt_kv_read_room_rank(nul, MAX_RANKS, &room, &rank, why), BT_E_INVAL);
    assert_int_equal(room + rank, 14);
    const bt_str_t good =
        BT_STR(" {\"dp_rank\":63, \"x\":{}, \"bootstrap_room\":9223372036854775807}");
    assert_int_equal(bt_kv_read_room_rank(good, MAX_RANKS, &room, &rank, why), 0);
    assert_int_equal(room, INT64_MAX);
    assert_int_equal(rank, 63);
}

static void test_rooms(void **state)
{
    static const struct {
        const char *body, *why;
    } cases[] = {
        {"{\"bootstrap_rooms\":5}", "must be an array"},
        {"{\"bootstrap_rooms\":[1,\"2\"]}", "must hold integers"},
        {"{\"bootstrap_rooms\":[[1]]}", "must hold integers"},
        {"{}", "bootstrap_rooms is missing"},
    };
    bt_str_t rooms = BT_STR_NULL;

    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_int_equal(bt_kv_read_rooms(bt_str(cases[i].body), &rooms, why), BT_E_INVAL);
        expect_why(cases[i].why);
    }
    assert_int_equal(bt_kv_read_rooms(BT_STR("{\"bootstrap_rooms\": [1, 2 ] }"), &rooms, why), 0);
    assert_true(bt_str_eq(rooms, BT_STR("[1, 2 ]")));
}

static void test_wildcards(void **state)
{
    static const char *const wild[] = {"", "0.0.0.0", "::", "[::]", "*"};
    static const char *const tame[] = {"0.0.0.1", "127.0.0.1", "::1", "host"};

    for (unsigned i = 0; i < 5; i++)
        assert_true(bt_kv_is_wildcard(wild[i]));
    for (unsigned i = 0; i < 4; i++)
        assert_false(bt_kv_is_wildcard(tame[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_registration), cmocka_unit_test(test_malformed_registrations),
        cmocka_unit_test(test_too_many_ranks), cmocka_unit_test(test_a_room_and_its_rank),
        cmocka_unit_test(test_rooms),          cmocka_unit_test(test_wildcards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
