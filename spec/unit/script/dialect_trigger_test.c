/* mooncake_layerwise and mindie: expected bytes are typed from vLLM-Ascend's and PyMotor's own dispatch. */
#include "script_fixture.h"

#define URL "http://10.0.0.9:12000/v1/metaserver?attempt=4711"
#define ASKED                                                                                      \
    "kv_transfer_params={\"do_remote_decode\":false,\"do_remote_prefill\":true,\"metaserver\":"    \
    "\"" URL "\"}"
/* What decode's engine says, up to its host, and behind it. */
#define SAYS(id)                                                                                   \
    "{\"token_ids\":[],\"request_id\":\"" id "\",\"do_remote_prefill\":false,"                     \
    "\"do_remote_decode\":true,\"remote_block_ids\":[[7,8]],\"remote_block_size\":[128],"          \
    "\"remote_engine_id\":\"d0\",\"remote_host\":"
#define MORE                                                                                       \
    ",\"remote_port\":30100,\"remote_tp_size\":4,\"remote_pcp_size\":1,\"remote_dcp_size\":1,"     \
    "\"remote_cached_tokens\":0}"
#define CALL(id) SAYS(id) "\"10.0.0.2\"" MORE
#define ONE_TOKEN                                                                                  \
    "stream=false", "max_tokens=1", "-stream_options", "-min_tokens", "-min_completion_tokens",    \
        "X-Request-Id: req-1"

static void start(struct leg_run *r, const char *dialect)
{
    leg_init(r, dialect, NULL);
    r->leg.metaserver = BT_STR(URL);
    r->leg.reply = BT_STR(CALL("cmpl-req-1-0"));
}

static void what_they_are(void **state)
{
    static const char *const names[] = {"mooncake_layerwise", "mindie"};
    struct leg_run r;

    for (unsigned i = 0; i < 2; i++) {
        start(&r, names[i]);
        assert_int_equal(r.dialect->kind, BT_PLAN_TRIGGER);
        assert_true(r.dialect->needs_room);
        assert_false(r.dialect->needs_reply || r.dialect->has_release || r.dialect->needs_rid ||
                     r.dialect->has_abort_route || r.dialect->batch || r.dialect->learns ||
                     r.dialect->is_gateway_managed);
        assert_true(bt_dialect_serves(r.dialect, BT_STR("/v1/chat/completions")));
        assert_false(bt_dialect_serves(r.dialect, BT_STR("/generate")));
        leg_fini(&r);
    }
}

static void decode_is_told_where_to_call(void **state)
{
    static const char *const names[] = {"mooncake_layerwise", "mindie"};
    struct leg_run r;

    for (unsigned i = 0; i < 2; i++) {
        start(&r, names[i]);
        r.leg.reply = BT_STR("");
        assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
        assert_edits(&r, "X-Request-Id: req-1", ASKED, NULL);
        r.leg.metaserver = BT_STR("");
        assert_refused(&r, true, "no metaserver");
        leg_fini(&r);
    }
}

/* Byte for byte. */
static void prefill_gets_what_decode_said(void **state)
{
    struct leg_run r;

    start(&r, "mooncake_layerwise");
    r.leg.metaserver = BT_STR("");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ONE_TOKEN, "kv_transfer_params=" CALL("cmpl-req-1-0"), NULL);
    r.leg.reply = BT_STR("\n " CALL("cmpl-req-1-0") " \n");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ONE_TOKEN, "kv_transfer_params=" CALL("cmpl-req-1-0"), NULL);
    leg_fini(&r);
}

static void mindies_prefill_is_told_more(void **state)
{
    struct leg_run r;

    start(&r, "mindie");
    r.leg.reply = BT_STR("{\"request_id\":\"cmpl-req-1-0\",\"do_remote_decode\":true,"
                         "\"do_remote_prefill\":true,\"remote_block_ids\":[],"
                         "\"remote_engine_id\":\"d0\",\"remote_host\":\"10.0.0.2\","
                         "\"remote_port\":1,\"metaserver\":\"" URL "\",\"x\":1.50}");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ONE_TOKEN, "min_tokens=1",
                 "kv_transfer_params={\"request_id\":\"cmpl-req-1-0\",\"do_remote_decode\":true,"
                 "\"do_remote_prefill\":false,\"remote_block_ids\":[],"
                 "\"remote_engine_id\":\"d0\",\"remote_host\":\"10.0.0.2\","
                 "\"remote_port\":1,\"metaserver\":null,\"x\":1.50}",
                 NULL);
    leg_fini(&r);
}

/* What means decode's own machine means another one to prefill. */
static void decodes_host_is_made_reachable(void **state)
{
    struct leg_run r;

    start(&r, "mooncake_layerwise");
    r.leg.decode_peer.host = BT_STR("decode-1");
    r.leg.reply = BT_STR(SAYS("cmpl-req-1-0") "\"0.0.0.0\"" MORE);
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ONE_TOKEN, "kv_transfer_params=" SAYS("cmpl-req-1-0") "\"decode-1\"" MORE,
                 NULL);
    leg_fini(&r);
}

static void ids_of_every_route(void **state)
{
    static const struct {
        const char *path, *call;
    } good[] = {{"/v1/chat/completions", CALL("chatcmpl-req-1")},
                {"/v1/completions", CALL("cmpl-req-1-0")},
                {"/v1/responses", CALL("resp_req-1_0")},
                {"/v1/messages", CALL("msg_req-1")}};
    struct leg_run r;

    start(&r, "mooncake_layerwise");
    for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        r.leg.path = bt_str(good[i].path);
        r.leg.reply = bt_str(good[i].call);
        assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    }
    r.leg.path = BT_STR("/v1/completions");
    r.leg.reply = BT_STR(CALL("cmpl-req-10-0"));
    assert_refused(&r, false, "belongs to another request");
    r.leg.reply = BT_STR(CALL("chatcmpl-req-1"));
    assert_refused(&r, false, "belongs to another request");
    leg_fini(&r);
}

static void what_would_end_prefills_engine(void **state)
{
    static const struct {
        const char *call, *why;
    } bad[] = {{"", "request_id is missing"},
               {"null", "request_id is missing"},
               {"[]", "request_id is missing"},
               {"{\"request_id\":7}", "request_id is missing"},
               {"{\"request_id\":\"cmpl-req-1-0\"}", "remote_engine_id is missing"},
               {SAYS("cmpl-req-1-0") "\"\"" MORE, "remote_host is missing"},
               {SAYS("cmpl-req-1-0") "null" MORE, "remote_host is missing"},
               {SAYS("cmpl-req-1-0") "\"h\"}", "remote_port is missing"},
               {SAYS("cmpl-req-1-0") "\"h\",\"remote_port\":\"1\"}", "remote_port is missing"}};
    struct leg_run r;

    start(&r, "mooncake_layerwise");
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        r.leg.reply = bt_str(bad[i].call);
        assert_refused(&r, false, bad[i].why);
    }
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_they_are),
        cmocka_unit_test(decode_is_told_where_to_call),
        cmocka_unit_test(prefill_gets_what_decode_said),
        cmocka_unit_test(mindies_prefill_is_told_more),
        cmocka_unit_test(decodes_host_is_made_reachable),
        cmocka_unit_test(ids_of_every_route),
        cmocka_unit_test(what_would_end_prefills_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
