/* sglang: expected bytes are typed from the engine's request schema and from recorded exchanges. */
#include "script_fixture.h"

static const uint64_t rooms[] = {5975098084415727586u, 9223372036854775807u, 3};

static void start(struct leg_run *r)
{
    leg_init(r, "sglang", NULL);
    r->leg.rid = BT_STR("bt0000000000000001");
    r->leg.rooms = rooms;
    r->leg.room_count = 1;
    r->leg.prefill.bootstrap_port = 8998;
}

static void what_it_is(void **state)
{
    struct leg_run r;

    start(&r);
    assert_int_equal(r.dialect->kind, BT_PLAN_BOOTSTRAP);
    assert_true(r.dialect->needs_room && r.dialect->needs_rid && r.dialect->batch &&
                r.dialect->has_abort_route);
    assert_false(r.dialect->needs_reply || r.dialect->has_release || r.dialect->learns);
    assert_true(bt_dialect_serves(r.dialect, BT_STR("/generate")));
    assert_false(bt_dialect_serves(r.dialect, BT_STR("/v1/messages")));
    leg_fini(&r);
}

static void a_scalar_prompt_gets_scalars(void **state)
{
    struct leg_run r;

    start(&r);
    for (int decode = 0; decode < 2; decode++) {
        assert_int_equal(leg_edit(&r, decode == 1), BT_DIALECT_OK);
        assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=8998",
                     "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"",
                     "X-Request-Id: req-1", NULL);
    }
    r.leg.prefill.bootstrap_port = 0;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=null",
                 "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"",
                 "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

static void a_list_gets_lists(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.prompt_count = 3;
    r.leg.room_count = 3;
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(
        &r, "bootstrap_host=[\"10.0.0.1\",\"10.0.0.1\",\"10.0.0.1\"]",
        "bootstrap_port=[8998,8998,8998]",
        "bootstrap_room=[5975098084415727586,9223372036854775807,3]",
        "rid=[\"bt0000000000000001_00\",\"bt0000000000000001_01\",\"bt0000000000000001_02\"]",
        "X-Request-Id: req-1", NULL);
    r.leg.prompt_count = 1; /* a list of one is still a list */
    r.leg.room_count = 1;
    r.leg.prefill.bootstrap_port = -1;
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=[\"10.0.0.1\"]", "bootstrap_port=[null]",
                 "bootstrap_room=[5975098084415727586]", "rid=[\"bt0000000000000001_00\"]",
                 "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

/* No rid of a batch is a prefix of another: abort matches prefixes. */
static void rids_of_a_long_list_have_one_width(void **state)
{
    uint64_t many[101];
    struct leg_run r;

    for (unsigned i = 0; i < 101; i++)
        many[i] = i + 1;
    start(&r);
    r.leg.rooms = many;
    r.leg.prompt_count = r.leg.room_count = 101;
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    for (unsigned i = 0; i < r.edits.count; i++) {
        if (!bt_str_eq(r.edits.items[i].key, BT_STR("rid")))
            continue;
        assert_true(bt_str_find(r.edits.items[i].value, BT_STR("\"bt0000000000000001_010\"")) > 0);
        assert_true(bt_str_find(r.edits.items[i].value, BT_STR("\"bt0000000000000001_100\"")) > 0);
        leg_fini(&r);
        return;
    }
    fail_msg("no rid");
}

static void the_prefill_leg_is_not_streamed(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.stream = true;
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=8998",
                 "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"", "stream=false",
                 "-stream_options", "X-Request-Id: req-1", NULL);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=8998",
                 "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"",
                 "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

static void data_parallel_ranks(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.prefill.dp_size = 4;
    r.leg.prefill.dp_rank = 2;
    r.leg.decode_peer.dp_size = 2;
    r.leg.decode_peer.dp_rank = 1;
    assert_int_equal(leg_edit(&r, false), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=8998",
                 "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"",
                 "routed_dp_rank=2", "X-Request-Id: req-1", NULL);
    assert_int_equal(leg_edit(&r, true), BT_DIALECT_OK);
    assert_edits(&r, "bootstrap_host=\"10.0.0.1\"", "bootstrap_port=8998",
                 "bootstrap_room=5975098084415727586", "rid=\"bt0000000000000001\"",
                 "disagg_prefill_dp_rank=2", "routed_dp_rank=1", "X-Request-Id: req-1", NULL);
    leg_fini(&r);
}

/* A room without the rest, or rooms that do not match the prompts, end real engines. */
static void half_a_room_is_refused(void **state)
{
    struct leg_run r;

    start(&r);
    r.leg.room_count = 0;
    assert_refused(&r, false, "no room");
    r.leg.prompt_count = 2;
    r.leg.room_count = 1;
    assert_refused(&r, true, "1 rooms for 2 prompts");
    r.leg.prompt_count = 0;
    r.leg.rid = BT_STR("");
    assert_refused(&r, false, "no rid");
    leg_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_is),
        cmocka_unit_test(a_scalar_prompt_gets_scalars),
        cmocka_unit_test(a_list_gets_lists),
        cmocka_unit_test(rids_of_a_long_list_have_one_width),
        cmocka_unit_test(the_prefill_leg_is_not_streamed),
        cmocka_unit_test(data_parallel_ranks),
        cmocka_unit_test(half_a_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
