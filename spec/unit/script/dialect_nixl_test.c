/* nixl: expected bytes are typed from the connector's documentation and from a recorded exchange. */
#include "script_fixture.h"

#define ASK                                                                                        \
    "kv_transfer_params={\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_"   \
    "id\":null,"                                                                                   \
    "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"

/* A vLLM 0.32 reply, recorded. */
#define PARAMS                                                                                     \
    "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[1,2,3]],"       \
    "\"remote_engine_id\":\"p0\","                                                                 \
    "\"remote_request_id\":\"cmpl-req-1-0-bd83aa8a\",\"remote_host\":\"127.0.0.1\",\"remote_"      \
    "port\":40061,\"tp_size\":1,"                                                                  \
    "\"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":72,\"remote_blocks_expiry_time\":null,"    \
    "\"transfer_mode\":\"pull\",\"remote_prefill_cached_tokens\":0}"
#define REPLY(params)                                                                              \
    "{\"id\":\"cmpl-req-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":72},\"kv_transfer_"        \
    "params\":" params ",\"metrics\":null}"

static void what_it_is(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl", NULL);
    assert_int_equal(r.dialect->kind, BT_PLAN_HANDOFF);
    assert_true(r.dialect->needs_reply && r.dialect->has_release);
    assert_false(r.dialect->needs_room || r.dialect->needs_rid || r.dialect->has_abort_route ||
                 r.dialect->batch || r.dialect->learns);
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/v1/chat/completions")));
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/inference/v1/generate")));
    assert_false(bt_dialect_serves(r.dialect, BT_STR("/generate")));
    leg_fini(&r);
}

static void prefill_leg(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl", NULL);
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ASK, "stream=false", "max_tokens=1", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1", NULL);
    r.leg.path = BT_STR("/v1/chat/completions");
    r.leg.body = BT_STR("{\"max_completion_tokens\":100}");
    r.leg.prefill.dp_rank = 3;
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ASK, "stream=false", "max_tokens=1", "max_completion_tokens=1",
                 "-stream_options", "-min_tokens", "-min_completion_tokens", "X-Request-Id: req-1",
                 "X-data-parallel-rank: 3", NULL);
    r.leg.prefill.dp_rank = -1;
    r.leg.path = BT_STR("/v1/responses");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ASK, "stream=false", "max_output_tokens=1", "store=false", "-background",
                 "-stream_options", "-min_tokens", "-min_completion_tokens", "X-Request-Id: req-1",
                 "request_id=\"resp_req-1\"", NULL);
    r.leg.path = BT_STR("/inference/v1/generate");
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ASK, "stream=false", "sampling_params.max_tokens=1",
                 "-sampling_params.min_tokens", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

static void decode_leg_gets_the_parameters_verbatim(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl", NULL);
    r.leg.reply = BT_STR(REPLY(PARAMS));
    r.leg.reply_prompt_tokens = 72;
    r.leg.decode_peer.dp_rank = 1;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "kv_transfer_params=" PARAMS, "X-Request-Id: req-1", "X-data-parallel-rank: 1",
                 NULL);
    leg_fini(&r);
}

static void local_hosts_become_the_dialled_one(void **state)
{
    static const char *const hosts[] = {"localhost", "0.0.0.0", "::"};
    struct leg_run r;
    char reply[512];

    leg_init(&r, "nixl", NULL);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(reply, sizeof(reply),
                 REPLY("{\"do_remote_prefill\" : true, "
                       "\"remote_block_ids\":[7],\"remote_engine_id\":\"p0\",\"x\":[\"\\u00e9\"],"
                       "\"remote_request_id\":\"cmpl-req-1-0\",\"remote_host\": \"%s\" "
                       ",\"remote_port\":5600}"),
                 hosts[i]);
        r.leg.reply = bt_str(reply);
        assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
        assert_edits(&r,
                     "kv_transfer_params={\"do_remote_prefill\" : true, "
                     "\"remote_block_ids\":[7],\"remote_engine_id\":\"p0\","
                     "\"x\":[\"\\u00e9\"],\"remote_request_id\":\"cmpl-req-1-0\",\"remote_host\": "
                     "\"10.0.0.1\" ,"
                     "\"remote_port\":5600}",
                     "X-Request-Id: req-1", NULL);
    }
    leg_fini(&r);
}

/* vLLM-Ascend's MooncakeConnectorV1: no remote_num_tokens, members of its own. */
static void ascend_parameters_pass(void **state)
{
#define ASCEND                                                                                     \
    "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[4,5],\"remote_"  \
    "engine_id\":\"e\","                                                                           \
    "\"remote_request_id\":\"chatcmpl-req-1\",\"remote_host\":\"10.1.1.1\",\"remote_port\":30000," \
    "\"remote_pcp_size\":1,"                                                                       \
    "\"remote_dcp_size\":1,\"remote_ptp_size\":2,\"last_token_id\":3,\"remote_multi_nodes_meta_"   \
    "mapping\":{},"                                                                                \
    "\"num_prompt_blocks\":2,\"remote_block_size\":[128]}"
    struct leg_run r;

    leg_init(&r, "nixl", NULL);
    r.leg.path = BT_STR("/v1/chat/completions");
    r.leg.reply = BT_STR(REPLY(ASCEND));
    r.leg.reply_prompt_tokens = 9;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "kv_transfer_params=" ASCEND, "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

static void without_parameters_decode_computes_itself(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl", NULL);
    r.leg.reply = BT_STR(REPLY("null"));
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_RECOMPUTE);
    assert_edits(&r, "X-Request-Id: req-1", NULL);
    r.leg.reply = BT_STR("{\"id\":\"cmpl-req-1\"}");
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_RECOMPUTE);
    r.leg.reply = BT_STR(REPLY("\"text\""));
    assert_refused(&r, true, "no object");
    r.leg.reply = BT_STR(REPLY("[]"));
    assert_refused(&r, true, "no object");
    leg_fini(&r);
}

struct bad {
    const char *from, *to, *reason;
};

static void replace(char *out, size_t size, const char *text, const char *from, const char *to)
{
    const char *hit = strstr(text, from);

    assert_non_null(hit);
    snprintf(out, size, "%.*s%s%s", (int) (hit - text), text, to, hit + strlen(from));
}

/* Each member that decode engines trust is dropped, retyped or swapped in turn. */
static void partial_or_foreign_parameters_are_refused(void **state)
{
    static const struct bad cases[] = {
        {"\"do_remote_prefill\":true,", "", "do_remote_prefill"},
        {"\"do_remote_prefill\":true", "\"do_remote_prefill\":false", "do_remote_prefill"},
        {"\"do_remote_prefill\":true", "\"do_remote_prefill\":\"true\"", "do_remote_prefill"},
        {"\"do_remote_prefill\":true", "\"do_remote_prefill\":1", "do_remote_prefill"},
        {"\"remote_block_ids\":[[1,2,3]],", "", "remote_block_ids"},
        {"[[1,2,3]]", "[]", "remote_block_ids"},
        {"[[1,2,3]]", "[[]]", "remote_block_ids"},
        {"[[1,2,3]]", "[[],[]]", "remote_block_ids"},
        {"[[1,2,3]]", "null", "remote_block_ids"},
        {"[[1,2,3]]", "{\"a\":1}", "remote_block_ids"},
        {"[[1,2,3]]", "\"1,2,3\"", "remote_block_ids"},
        {"\"remote_engine_id\":\"p0\",", "", "remote_engine_id"},
        {"\"remote_engine_id\":\"p0\"", "\"remote_engine_id\":null", "remote_engine_id"},
        {"\"remote_engine_id\":\"p0\"", "\"remote_engine_id\":\"\"", "remote_engine_id"},
        {"\"remote_request_id\":\"cmpl-req-1-0-bd83aa8a\",", "", "remote_request_id"},
        {"cmpl-req-1-0-bd83aa8a", "cmpl-req-2-0-bd83aa8a", "another request"},
        {"cmpl-req-1-0-bd83aa8a", "cmpl-req-11-0-bd83aa8a", "another request"},
        {"cmpl-req-1-0-bd83aa8a", "chatcmpl-req-1-bd83aa8a", "another request"},
        {"cmpl-req-1-0-bd83aa8a", "req-1", "another request"},
        {"\"remote_host\":\"127.0.0.1\",", "", "remote_host"},
        {"\"remote_host\":\"127.0.0.1\"", "\"remote_host\":1", "remote_host"},
        {"\"remote_port\":40061,", "", "remote_port"},
        {"\"remote_port\":40061", "\"remote_port\":\"40061\"", "remote_port"},
        {"\"remote_num_tokens\":72", "\"remote_num_tokens\":71", "remote_num_tokens"},
    };
    struct leg_run r;
    char reply[1024];

    leg_init(&r, "nixl", NULL);
    r.leg.reply_prompt_tokens = 72;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        replace(reply, sizeof(reply), REPLY(PARAMS), cases[i].from, cases[i].to);
        r.leg.reply = bt_str(reply);
        assert_refused(&r, true, cases[i].reason);
        for (unsigned k = 0; k < r.edits.count; k++)
            assert_false(bt_str_eq(r.edits.items[k].key, BT_STR("kv_transfer_params")));
    }
    leg_fini(&r);
}

static void sound_variants_pass(void **state)
{
    static const struct bad cases[] = {
        {"[[1,2,3]]", "[1,2,3]", ""},
        {"[[1,2,3]]", "[[],[5]]", ""},
        {"\"remote_num_tokens\":72,", "", ""},
        {"cmpl-req-1-0-bd83aa8a", "cmpl-req-1", ""},
        {"\"transfer_mode\":\"pull\"", "\"future\":{\"deep\":[1e400]}", ""},
    };
    struct leg_run r;
    char reply[1024];

    leg_init(&r, "nixl", NULL);
    r.leg.reply_prompt_tokens = 72;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        replace(reply, sizeof(reply), REPLY(PARAMS), cases[i].from, cases[i].to);
        r.leg.reply = bt_str(reply);
        if (leg_edit(&r, true) != BT_DIALECT_OK)
            fail_msg("%s: %.*s", cases[i].to, BT_STR_ARG(r.reason));
    }
    /* Where nothing is known of the prompt's length it is not compared. */
    r.leg.reply = BT_STR(REPLY(PARAMS));
    r.leg.reply_prompt_tokens = 0;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    /* Routes whose id prefix is not known: our id must be inside. */
    r.leg.path = BT_STR("/inference/v1/generate");
    replace(reply, sizeof(reply), REPLY(PARAMS), "cmpl-req-1-0", "generate-tokens-req-1");
    r.leg.reply = bt_str(reply);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    /* Here the id is ours by a member of the body. */
    r.leg.path = BT_STR("/v1/responses");
    replace(reply, sizeof(reply), REPLY(PARAMS), "cmpl-req-1-0", "resp_req-1_0");
    r.leg.reply = bt_str(reply);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_int_equal(r.edits.count, 3); /* parameters, header, request_id */
    r.leg.request_id = BT_STR("req-2");
    assert_refused(&r, true, "another request");
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_is),
        cmocka_unit_test(prefill_leg),
        cmocka_unit_test(decode_leg_gets_the_parameters_verbatim),
        cmocka_unit_test(local_hosts_become_the_dialled_one),
        cmocka_unit_test(ascend_parameters_pass),
        cmocka_unit_test(without_parameters_decode_computes_itself),
        cmocka_unit_test(partial_or_foreign_parameters_are_refused),
        cmocka_unit_test(sound_variants_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
