/* baton: expected bytes are typed from the connector's contract. */
#include "script_fixture.h"

#define PREFILL_PARAMS(room)                                                                       \
    "kv_transfer_params={\"do_remote_decode\":true,\"do_remote_prefill\":false,\"baton_"           \
    "room\":" room "}"
#define DECODE_PARAMS(room)                                                                        \
    "kv_transfer_params={\"do_remote_decode\":false,\"do_remote_prefill\":true,\"baton_"           \
    "room\":" room "}"

static const uint64_t rooms[] = {9223372036854775807u}; /* more than a double holds */

static void start(struct leg_run *r)
{
    leg_init(r, "baton", NULL);
    r->leg.rooms = rooms;
    r->leg.room_count = 1;
}

static void what_it_is(void **state)
{
    struct leg_run r;

    start(&r);
    assert_int_equal(r.dialect->kind, BT_PLAN_BOOTSTRAP);
    assert_true(r.dialect->needs_room && r.dialect->is_gateway_managed);
    assert_false(r.dialect->needs_reply || r.dialect->has_release || r.dialect->needs_rid ||
                 r.dialect->has_abort_route || r.dialect->batch || r.dialect->learns);
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/v1/completions")));
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/inference/v1/generate")));
    assert_false(bt_dialect_serves(r.dialect, BT_STR("/generate")));
    leg_fini(&r);
}

static void each_leg_names_its_room(void **state)
{
    static const uint64_t another = 41;
    struct leg_run r;

    start(&r);
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "stream=false", "max_tokens=1", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1",
                 PREFILL_PARAMS("9223372036854775807"), NULL);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "X-Request-Id: req-1", DECODE_PARAMS("9223372036854775807"), NULL);
    r.leg.rooms = &another; /* another prefill takes over */
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "stream=false", "max_tokens=1", "-stream_options", "-min_tokens",
                 "-min_completion_tokens", "X-Request-Id: req-1", PREFILL_PARAMS("41"), NULL);
    leg_fini(&r);
}

static void ids_and_ranks_go_as_vllm_reads_them(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.path = BT_STR("/v1/responses");
    r.leg.decode_peer.dp_rank = 1;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "X-Request-Id: req-1", "X-data-parallel-rank: 1", "request_id=\"resp_req-1\"",
                 DECODE_PARAMS("9223372036854775807"), NULL);
    leg_fini(&r);
}

static void no_leg_without_a_room(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.room_count = 0;
    assert_refused(&r, false, "no room");
    assert_refused(&r, true, "no room");
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_is),
        cmocka_unit_test(each_leg_names_its_room),
        cmocka_unit_test(ids_and_ranks_go_as_vllm_reads_them),
        cmocka_unit_test(no_leg_without_a_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
