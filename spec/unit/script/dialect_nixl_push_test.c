/* nixl_push and shared_cache: expected bytes are typed from the connectors' documentation. */
#include "script_fixture.h"

#define ASK                                                                                        \
    "kv_transfer_params={\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_"   \
    "id\":null,"                                                                                   \
    "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"

static void what_it_is(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl_push", NULL);
    assert_int_equal(r.dialect->kind, BT_PLAN_BOOTSTRAP);
    assert_true(r.dialect->learns);
    assert_false(r.dialect->needs_reply || r.dialect->has_release || r.dialect->needs_room ||
                 r.dialect->needs_rid);
    leg_fini(&r);
}

static void both_legs(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl_push", NULL);
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, ASK, "stream=false", "max_tokens=1", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1", NULL);
    r.leg.prefill.engine_id = BT_STR("p0");
    r.leg.prefill.bootstrap_port = 5600;
    r.leg.prefill.tp_size = 2;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r,
                 "kv_transfer_params={\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                 "\"remote_engine_id\":\"p0\","
                 "\"remote_host\":\"10.0.0.1\",\"remote_port\":5600,\"tp_size\":2,\"pp_size\":1,"
                 "\"remote_request_id\":\"req-1\"}",
                 "X-Request-Id: req-1", NULL);
    r.leg.prefill.kv_host = BT_STR("kv.example");
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r,
                 "kv_transfer_params={\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                 "\"remote_engine_id\":\"p0\","
                 "\"remote_host\":\"kv.example\",\"remote_port\":5600,\"tp_size\":2,\"pp_size\":1,"
                 "\"remote_request_id\":\"req-1\"}",
                 "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

static void unlearned_is_refused(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl_push", NULL);
    assert_refused(&r, true, "unlearned");
    assert_true(bt_str_eq(r.reason, BT_STR("unlearned")));
    r.leg.prefill.engine_id = BT_STR("p0");
    assert_refused(&r, true, "unlearned"); /* no port */
    r.leg.prefill.bootstrap_port = -1;
    assert_refused(&r, true, "unlearned");
    leg_fini(&r);
}

/* Inside a data-parallel engine each rank has its own id and side channel port. */
static void data_parallel_ranks(void **state)
{
    struct leg_run r;

    leg_init(&r, "nixl_push", NULL);
    r.leg.prefill.engine_id = BT_STR("p0");
    r.leg.prefill.bootstrap_port = 5600;
    r.leg.prefill.dp_size = 4;
    assert_refused(&r, true, "unlearned"); /* which rank it will be is not known */
    r.leg.prefill.dp_rank = 3;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r,
                 "kv_transfer_params={\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                 "\"remote_engine_id\":\"p0_dp3\","
                 "\"remote_host\":\"10.0.0.1\",\"remote_port\":5603,\"tp_size\":1,\"pp_size\":1,"
                 "\"remote_request_id\":\"req-1\"}",
                 "X-Request-Id: req-1", NULL);
    r.leg.prefill.learned = true;
    r.leg.prefill.engine_id = BT_STR("p0_dp1");
    assert_refused(&r, true, "unlearned"); /* another rank taught it */
    r.leg.prefill.dp_rank = 1;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    leg_fini(&r);
}

static void a_reply_is_forwarded_like_a_hand_off(void **state)
{
#define PUSHED                                                                                     \
    "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[1,2,3]],"       \
    "\"remote_engine_id\":\"p0\","                                                                 \
    "\"remote_request_id\":\"cmpl-req-1-0-bd83aa8a\",\"remote_host\":\"10.0.0.1\",\"remote_"       \
    "port\":40061,\"tp_size\":1,"                                                                  \
    "\"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":72,\"transfer_mode\":\"push\",\"remote_"   \
    "prefill_cached_tokens\":0}"
    struct leg_run r;

    leg_init(&r, "nixl_push", NULL);
    r.leg.reply = BT_STR("{\"kv_transfer_params\":" PUSHED "}");
    r.leg.reply_prompt_tokens = 72;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "kv_transfer_params=" PUSHED, "X-Request-Id: req-1", NULL);
    r.leg.reply_prompt_tokens = 73;
    assert_refused(&r, true, "remote_num_tokens");
    leg_fini(&r);
}

static void shared_cache_legs(void **state)
{
    struct leg_run r;

    leg_init(&r, "shared_cache", NULL);
    assert_int_equal(r.dialect->kind, BT_PLAN_HANDOFF);
    assert_false(r.dialect->needs_reply || r.dialect->has_release || r.dialect->learns);
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "stream=false", "max_tokens=1", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1", NULL);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_is),
        cmocka_unit_test(both_legs),
        cmocka_unit_test(unlearned_is_refused),
        cmocka_unit_test(data_parallel_ranks),
        cmocka_unit_test(a_reply_is_forwarded_like_a_hand_off),
        cmocka_unit_test(shared_cache_legs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
