/* A gateway-managed attempt, its room at the hub, and another prefill in the place of one that is lost. */
#include "dispatch/attempt_rig.h"
#include "dispatch/plan/plan.h"

static void all_goes_well(void **state)
{
    const bt_transfer_room_spec_t *spec = &hub.opened[0];

    begin(P0, D0);
    assert_true(spec->room > 0 && spec->room <= INT64_MAX);
    assert_int_equal(spec->start_ms, 20000);
    assert_int_equal(spec->stall_ms, 3000);
    assert_int_equal(spec->repair_ms, 700);
    assert_string_equal(spec->request_id, "req-1");
    assert_ptr_equal(spec->loop, &rig.loop);
    assert_non_null(strstr(engines[P0].got, "\"do_remote_decode\":true"));
    assert_non_null(strstr(engines[D0].got, "\"do_remote_prefill\":true"));
    tell(0, BT_TRANSFER_MOVING, 0, NOBODY);
    answer(P0, 200, REPLY);
    tell(0, BT_TRANSFER_DONE, 0, NOBODY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(hub.close_count, 1);
    assert_false(hub.closed[0].is_abort);
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT); /* mail that was on its way */
    recorded("\"kv\":{\"bytes\":65536,\"wait_ms\":30,\"transfer_ms\":1.2}");
    assert_int_equal(blamed(P0), 0);
}

/* What follows when p1 is to take over from p0 in the room that was opened first: d0 hears of nothing. */
static void p1_takes_over(void)
{
    uint64_t room = hub.opened[0].room, again;

    take(P1);
    again = room_in(P1);
    assert_int_equal(hub.repair_count, 1);
    assert_int_equal(hub.repaired[0].room, room);
    assert_int_equal(hub.repaired[0].source_room, again);
    assert_string_equal(hub.repaired[0].prefill, "p1");
    assert_true(again != room);
    assert_non_null(strstr(engines[P1].got, "X-Request-Id: req-1\r\n"));
    tell(0, BT_TRANSFER_ORPHANED, room, PREFILL_FAULT); /* of the old one: it crossed our repair */
    tell(0, BT_TRANSFER_MOVING, again, NOBODY);
    answer(P1, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_non_null(strstr(rig.answer, "x-baton-prefill: p1\r\n"));
    assert_non_null(strstr(rig.answer, "x-baton-attempts: 2\r\n"));
    assert_int_equal(engines[D0].requests, 1);
    assert_int_equal(hub.open_count, 1);
    assert_int_equal(hub.repair_count, 1);
    assert_false(hub.closed[0].is_abort);
    assert_int_equal(atomic_load(&rig.d->stats.prefill_replacements), 1);
    assert_int_equal(atomic_load(&rig.d->stats.retries), 0);
}

static void a_prefill_that_dies_is_replaced(void **state)
{
    begin(P0, D0);
    reset(P0);
    p1_takes_over();
    recorded("\"replaced\":[{\"prefill\":\"p0\",\"failure\":\"reset\"}]");
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(P1) + blamed(D0), 0);
}

/* By either number, as long as the attempt runs. hub_room: how the hub calls it. */
static void found_by(uint64_t room, const char *part)
{
    uint64_t hub_room = 0;
    bt_text_t out;

    bt_text_init(&out);
    assert_true(bt_dispatcher_describe_room(rig.d, room, &out, &hub_room));
    assert_int_equal(hub_room, hub.opened[0].room);
    if (strstr(out.data, part) == NULL)
        fail_msg("no %s in %s", part, out.data);
    bt_text_fini(&out);
}

static void not_found_by(uint64_t room)
{
    bt_text_t out;

    bt_text_init(&out);
    assert_false(bt_dispatcher_describe_room(rig.d, room, &out, &(uint64_t){0}));
    assert_int_equal(out.len, 0);
    bt_text_fini(&out);
}

static void its_rooms_are_found_while_it_runs(void **state)
{
    uint64_t first, second;

    begin(P0, D0);
    first = room_in(P0);
    found_by(first, "\"request\":{\"id\":\"req-1\",\"route\":\"completions\",");
    found_by(first,
             "},\"attempt\":{\"id\":\"req-1\",\"n\":1,\"prefill\":\"p0\",\"decode\":\"d0\",");
    not_found_by(first + 1);
    reset(P0);
    take(P1);
    second = room_in(P1);
    assert_true(first != second);
    found_by(first, "\"prefill\":\"p1\",\"decode\":\"d0\",");
    found_by(second, "\"prefill\":\"p1\",\"decode\":\"d0\",");
    answer(P1, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("hello");
    not_found_by(first);
    not_found_by(second);
}

static void so_is_one_whose_agent_dies(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_ORPHANED, 0, PREFILL_FAULT);
    p1_takes_over();
    assert_true(has_hung_up(&engines[P0]));
    recorded("\"replaced\":[{\"prefill\":\"p0\",\"failure\":\"kv_transfer\"}]");
    assert_int_equal(blamed(P0), 1);
}

static void so_is_one_that_answers_an_error(void **state)
{
    begin(P0, D0);
    answer(P0, 500, "{\"error\":{\"message\":\"no\"}}");
    p1_takes_over();
    assert_int_equal(blamed(P0), 1);
}

static void so_is_one_that_answers_200_with_an_error_inside(void **state)
{
    begin(P0, D0);
    answer(P0, 200, "{\"object\":\"error\",\"message\":\"no\",\"code\":500}");
    p1_takes_over();
}

/* Nobody says whose fault it was: the old one is left, not blamed. */
static void an_orphan_without_blame(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_ORPHANED, 0, NOBODY);
    p1_takes_over();
    recorded("\"replaced\":[{\"prefill\":\"p0\"");
    assert_int_equal(blamed(P0), 0);
}

static void one_after_the_other(void **state)
{
    uint64_t rooms[2];

    begin(P0, D0);
    reset(P0);
    take(P1);
    rooms[0] = room_in(P1);
    tell(0, BT_TRANSFER_ORPHANED, rooms[0], PREFILL_FAULT);
    take(P2);
    rooms[1] = room_in(P2);
    hub.opened[1] = hub.opened[0];
    hub.opened[1].room = rooms[1]; /* is no pair's name for a room */
    tell(1, BT_TRANSFER_FAILED, rooms[1], PREFILL_FAULT);
    assert_int_equal(hub.repair_count, 2);
    assert_int_equal(hub.repaired[1].source_room, rooms[1]);
    assert_true(rooms[0] != rooms[1] && rooms[1] != hub.opened[0].room);
    answer(P2, 200, REPLY);
    answer(D0, 200, REPLY);
    answered("x-baton-attempts: 3\r\n");
    assert_int_equal(engines[D0].requests, 1);
    answer(P2, 200, REPLY); /* nobody waits for it, but it ends the drain */
    recorded("\"replaced\":[{\"prefill\":\"p1\",\"failure\":\"kv_transfer\"},"
             "{\"prefill\":\"p0\",\"failure\":\"reset\"}]");
}

/* p1's name cannot be looked up: p2 comes at once. */
static void who_cannot_be_asked_is_passed_over(void **state)
{
    begin(P0, D0);
    atomic_store(&engines[P1].worker->has_addr, false);
    reset(P0);
    take(P2);
    assert_int_equal(hub.repair_count, 2);
    assert_int_equal(room_in(P2), hub.repaired[1].source_room);
    answer(D0, 200, REPLY);
    answered("x-baton-prefill: p2\r\n");
    assert_false(has_caller(&engines[P1]));
}

/* Retried from the beginning by these two, in a room of its own; nothing is left of the first. */
static void begins_anew(int prefill, int decode)
{
    hang_up(&engines[D0]);
    take(prefill);
    take(decode);
    assert_int_equal(hub.open_count, 2);
    assert_string_equal(hub.opened_for[1][0], names[prefill]);
    assert_string_equal(hub.opened_for[1][1], names[decode]);
    assert_true(hub.opened[1].room != hub.opened[0].room);
    assert_int_equal(room_in(prefill), hub.opened[1].room);
    assert_int_equal(room_in(decode), hub.opened[1].room);
    assert_int_equal(hub.close_count, 1);
    assert_true(hub.closed[0].is_abort);
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT); /* of the first: nobody's any more */
    answer(prefill, 200, REPLY);
    answer(decode, 200, REPLY);
    answered("hello");
    assert_false(hub.closed[1].is_abort);
}

static void after_the_first_byte_all_begins_anew(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_MOVING, 0, NOBODY);
    reset(P0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    begins_anew(P1, D0);
    assert_int_equal(hub.repair_count, 0);
    assert_int_equal(blamed(P0), 1);
    recorded("\"failure\":\"reset\",\"leg\":\"prefill\"");
}

static void a_room_that_fails_fails_the_attempt(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_MOVING, 0, NOBODY);
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT);
    begins_anew(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(D0), 0);
    recorded("\"failure\":\"kv_transfer\",\"leg\":\"prefill\",\"status\":0,\"guilty\":[\"p0\"]");
}

static void decodes_fault(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_FAILED, 0, DECODE_FAULT);
    hang_up(&engines[P0]);
    begins_anew(P0, D1);
    assert_int_equal(blamed(D0), 1);
    assert_int_equal(blamed(P0), 0);
}

static void a_decode_that_dies_takes_the_room_with_it(void **state)
{
    begin(P0, D0);
    reset(D0);
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    hang_up(&engines[P0]);
    begins_anew(P0, D1);
    assert_int_equal(hub.repair_count, 0);
    assert_int_equal(blamed(D0), 1);
}

/* Decode's engine speaks before its agent's word has come round by the hub. */
static void whose_fault_a_transfer_was(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_MOVING, 0, NOBODY);
    answer(P0, 200, REPLY); /* the hub watches the room: that prefill has ended says nothing */
    answer(D0, 500, "{\"error\":{\"message\":\"KV transfer failed: room 7\",\"code\":500}}");
    TURN_UNTIL(&rig.loop, bt_timer_active(&live_attempt()->blame_wait));
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT);
    begins_anew(P1, D0);
    assert_int_equal(blamed(D0), 0);
    recorded(
        "\"failure\":\"upstream_status\",\"leg\":\"decode\",\"status\":500,\"guilty\":[\"p0\"]");
}

/* The hub does not know either: that is held against decode when it fails so with another prefill, too. */
static void nobody_knows_whose_fault_it_was(void **state)
{
    begin(P0, D0);
    answer(D0, 500, "{\"error\":{\"message\":\"no\",\"code\":500}}");
    TURN_UNTIL(&rig.loop, bt_timer_active(&live_attempt()->blame_wait));
    tell(0, BT_TRANSFER_FAILED, 0, NOBODY);
    hang_up(&engines[P0]);
    begins_anew(P0, D1);
    assert_int_equal(blamed(P0) + blamed(D0), 0);
    assert_int_equal(atomic_load(&engines[D0].worker->suspect_partner), engines[P0].worker->id);
}

static void the_hub_says_nothing_of_decodes_error(void **state)
{
    begin(P0, D0);
    answer(D0, 500, "{\"error\":{\"message\":\"no\",\"code\":500}}");
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0])); /* when the wait is over */
    hang_up(&engines[P0]);
    begins_anew(P0, D1);
    assert_int_equal(blamed(P0) + blamed(D0), 0);
}

static void decodes_own_error_after_the_transfer(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_DONE, 0, NOBODY);
    answer(D0, 500, "{\"error\":{\"message\":\"no\",\"code\":500}}");
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]));
    hang_up(&engines[P0]);
    begins_anew(P0, D1);
    assert_int_equal(blamed(D0), 1);
}

static void an_orphan_whose_decode_has_given_up(void **state)
{
    begin(P0, D0);
    answer(D0, 500, "{\"error\":{\"message\":\"KV transfer failed: room 7\",\"code\":500}}");
    TURN_UNTIL(&rig.loop, bt_timer_active(&live_attempt()->blame_wait));
    tell(0, BT_TRANSFER_ORPHANED, 0, PREFILL_FAULT);
    assert_int_equal(hub.repair_count, 0);
    begins_anew(P1, D0);
    assert_int_equal(blamed(P0), 1);
}

/* Alternates of the policy's plan come before the least loaded. */
static void the_policys_alternates_come_first(void **state)
{
    bt_choice_t choice = {
        .alternates = {{engines[P0].worker, engines[D0].worker, -1, -1, BT_PLAN_NONE},
                       {engines[P1].worker, engines[D1].worker, -1, -1, BT_PLAN_NONE},
                       {engines[P2].worker, engines[D0].worker, -1, -1, BT_PLAN_NONE}},
        .alternate_count = 3};
    bt_task_t *task;

    begin(P0, D0);
    task = live_attempt()->task;
    task->choice = bt_plan_keep(task->request, &choice);
    reset(P0);
    take(P2);
    assert_string_equal(hub.repaired[0].prefill, "p2");
    answer(D0, 200, REPLY);
    answered("x-baton-prefill: p2\r\n");
}

/* Bytes moved when p1 was to take over: neither p1 nor d0 is held responsible, and they serve the next attempt. */
static void too_late_to_repair(void **state)
{
    begin(P0, D0);
    reset(P0);
    take(P1);
    tell(0, BT_TRANSFER_FAILED, 0, NOBODY); /* it still names the old sender */
    hang_up(&engines[P1]);
    begins_anew(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(P1) + blamed(D0), 0);
}

/* The hub blames the old sender, which p1 is not. */
static void an_old_senders_fault(void **state)
{
    begin(P0, D0);
    reset(P0);
    take(P1);
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT);
    hang_up(&engines[P1]);
    begins_anew(P1, D0);
    assert_int_equal(blamed(P0), 1);
    assert_int_equal(blamed(P1), 0);
}

/* Back-pressure is routed around as everywhere: by another attempt. */
static void a_busy_prefill(void **state)
{
    begin(P0, D0);
    answer(P0, 429, "{\"error\":{\"message\":\"busy\"}}");
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[D0]));
    begins_anew(P1, D0);
    assert_int_equal(hub.repair_count, 0);
    assert_int_equal(blamed(P0), 0);
}

/* The old sender had sent everything: its late death and the hub's refusal to repair change nothing. */
static void a_repair_that_meets_a_room_that_is_done(void **state)
{
    begin(P0, D0);
    reset(P0);
    take(P1);
    tell(0, BT_TRANSFER_DONE, 0, NOBODY);
    tell(0, BT_TRANSFER_FAILED, 0, NOBODY);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(engines[D0].requests, 1);
    assert_int_equal(hub.open_count, 1);
}

static void prefill_is_not_needed_any_more(void **state)
{
    begin(P0, D0);
    tell(0, BT_TRANSFER_MOVING, 0, NOBODY);
    tell(0, BT_TRANSFER_DONE, 0, NOBODY);
    reset(P0);
    TURN_UNTIL(&rig.loop, blamed(P0) == 1);
    answer(D0, 200, REPLY);
    answered("hello");
    assert_int_equal(hub.open_count, 1);
    assert_int_equal(hub.repair_count, 0);
}

/* Decode's answer is on its way: what the room does is decode's own affair. */
static void a_committed_answer_stands(void **state)
{
    static char text[8192];

    begin(P0, D0);
    memset(text, ' ', sizeof(text));
    memcpy(text, REPLY, sizeof(REPLY) - 1);
    assert_true(dprintf(engines[D0].conn,
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
                        "%zu\r\n\r\n",
                        sizeof(text)) > 0);
    assert_int_equal(write(engines[D0].conn, text, 6000), 6000); /* more than is looked into */
    TURN_UNTIL(&rig.loop, !has_answer() && strstr(rig.answer, "hello") != NULL);
    tell(0, BT_TRANSFER_ORPHANED, 0, PREFILL_FAULT);
    tell(0, BT_TRANSFER_FAILED, 0, PREFILL_FAULT);
    assert_int_equal(write(engines[D0].conn, text + 6000, sizeof(text) - 6000),
                     sizeof(text) - 6000);
    answered("HTTP/1.1 200");
    assert_int_equal(hub.repair_count, 0);
    assert_int_equal(hub.open_count, 1);
}

static void what_the_client_is_to_blame_for_is_not_repaired(void **state)
{
    begin(P0, D0);
    answer(P0, 400, "{\"error\":{\"message\":\"your prompt\"}}");
    answered("your prompt");
    assert_int_equal(hub.repair_count, 0);
    assert_true(hub.closed[0].is_abort);
}

static void nobody_else_is_there(void **state)
{
    atomic_store(&engines[P1].worker->has_agents, false);
    atomic_store(&engines[P2].worker->has_agents, false);
    bt_workers_changed();
    begin(P0, D0);
    tell(0, BT_TRANSFER_ORPHANED, 0, PREFILL_FAULT);
    answered("KV transfer between the pair failed: as the spec says");
    assert_non_null(strstr(rig.answer, "HTTP/1.1 502"));
    assert_true(hub.closed[0].is_abort);
    assert_int_equal(hub.repair_count, 0);
}

static void retries_can_be_forbidden(void **state)
{
    rig.shared.config.disable_retries = true;
    begin(P0, D0);
    reset(P0);
    answered("HTTP/1.1 502");
    assert_int_equal(hub.repair_count, 0);
    assert_int_equal(hub.open_count, 1);
}

static void a_client_that_leaves_aborts_both(void **state)
{
    begin(P0, D0);
    close(rig.client);
    rig.client = -1;
    TURN_UNTIL(&rig.loop, has_hung_up(&engines[P0]) && has_hung_up(&engines[D0]));
    assert_int_equal(hub.close_count, 1);
    assert_true(hub.closed[0].is_abort);
    tell(0, BT_TRANSFER_FAILED, 0, NOBODY);
}

/* A hub without memory: the attempt cannot begin, and nothing is left of it. */
static void the_hub_says_no(void **state)
{
    hub.rc = BT_E_NOMEM;
    ask();
    answered("HTTP/1.1 503");
    assert_false(has_caller(&engines[P0]));
}

static void the_hub_cannot_repair(void **state)
{
    begin(P0, D0);
    hub.rc = BT_E_NOMEM;
    reset(P0);
    answered("HTTP/1.1 502");
    assert_int_equal(atomic_load(&rig.d->stats.prefill_replacements), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(all_goes_well),
        CASE(a_prefill_that_dies_is_replaced),
        CASE(its_rooms_are_found_while_it_runs),
        CASE(so_is_one_whose_agent_dies),
        CASE(so_is_one_that_answers_an_error),
        CASE(so_is_one_that_answers_200_with_an_error_inside),
        CASE(an_orphan_without_blame),
        CASE(one_after_the_other),
        CASE(who_cannot_be_asked_is_passed_over),
        CASE(after_the_first_byte_all_begins_anew),
        CASE(a_room_that_fails_fails_the_attempt),
        CASE(decodes_fault),
        CASE(a_decode_that_dies_takes_the_room_with_it),
        CASE(whose_fault_a_transfer_was),
        CASE(nobody_knows_whose_fault_it_was),
        CASE(the_hub_says_nothing_of_decodes_error),
        CASE(decodes_own_error_after_the_transfer),
        CASE(an_orphan_whose_decode_has_given_up),
        CASE(the_policys_alternates_come_first),
        CASE(too_late_to_repair),
        CASE(an_old_senders_fault),
        CASE(a_busy_prefill),
        CASE(a_repair_that_meets_a_room_that_is_done),
        CASE(prefill_is_not_needed_any_more),
        CASE(a_committed_answer_stands),
        CASE(what_the_client_is_to_blame_for_is_not_repaired),
        CASE(nobody_else_is_there),
        CASE(retries_can_be_forbidden),
        CASE(a_client_that_leaves_aborts_both),
        CASE(the_hub_says_no),
        CASE(the_hub_cannot_repair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
