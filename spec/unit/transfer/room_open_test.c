/* How rooms begin, are let go, and get another sender. */
#include "transfer/rig.h"

static pair_t *x;
static fake_t p1;

static int open_pair(void **state)
{
    x = calloc(1, sizeof *x);
    p1.fd = -1;
    return x == NULL;
}

static int close_pair(void **state)
{
    fake_hang_up(&p1);
    pair_close(x);
    free(x);
    return 0;
}

static void add_p1(void)
{
    (void) rig_add(&x->rig, BT_ROLE_PREFILL, "p1", "http://127.0.0.1:8003");
    bt_kv_control_t hello = hello_of("p1", 0, 1, 21);
    hello.hello.port = 9500;
    fake_join_as(&p1, &x->rig, &hello);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p1"));
}

/* ---- opening ---- */
static void test_open_lacks_agents(void **state)
{
    rig_t *rig = &x->rig;

    rig_open(rig, NULL);
    (void) rig_add(rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) rig_add(rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8002");
    x->p.fd = -1;
    fake_join(&x->d, rig, "d0", 0, 1, 1);
    TURN_UNTIL(&rig->loop, has_agents(rig, "d0"));
    bt_transfer_room_spec_t spec = spec_of(rig, 5);
    assert_int_equal(bt_transfer_room_open(rig->t, &spec), 0);
    const bt_transfer_event_t *e = rig_event(rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_string_equal(e->reason, "worker p0: none of its agents is registered");
    /* Its engine may have opened it already, and must not wait for it. */
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
    fake_join(&x->p, rig, "p0", 1, 2, 1);
    fake_sync(&x->p);
    assert_int_equal(bt_transfer_room_open(rig->t, &spec), 0);
    e = rig_event(rig, BT_TRANSFER_FAILED);
    assert_string_equal(e->reason, "worker p0: the agent of rank 0 of 2 is not registered");
    fake_hang_up(&x->d);
    TURN_UNTIL(&rig->loop, !has_agents(rig, "d0"));
    assert_int_equal(bt_transfer_room_open(rig->t, &spec), 0);
    e = rig_event(rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault && e->is_decode_fault);
    assert_in(e->reason, "; worker d0: none");
    assert_int_equal(rig_stats(rig).rooms_failed, 3);
    assert_int_equal(rig_stats(rig).rooms_open, 0);
}

static void test_open_twice(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 5);
    assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_int_equal(e->rc, BT_E_INVAL);
    assert_false(e->is_prefill_fault || e->is_decode_fault);
    pair_move_room(x, 5); /* the first one goes on */
    spec.room = 0;
    assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
    (void) rig_event(&x->rig, BT_TRANSFER_FAILED);
}

static void test_open_says_deadlines(void **state)
{
    pair_open(x, NULL);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 5);
    spec.start_ms = 1234;
    spec.repair_ms = 77;
    assert_int_equal(bt_transfer_room_open(x->rig.t, &spec), 0);
    bt_kv_control_t m = fake_hear(&x->d, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.expire_ms, 1234);
    assert_int_equal(m.open.repair_ms, 77);
    assert_int_equal(m.open.source_room, 5);
    assert_int_equal(m.open.peer_count, 1);
    assert_int_equal(m.open.peers[0].port, 9000);
}

/* ---- closing ---- */
static void test_close_aborts(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    bt_transfer_room_close(x->rig.t, 5, true, "the client has left");
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    assert_int_equal(m.abort.room, 5);
    assert_true(bt_str_eq(m.abort.reason, BT_STR("the client has left")));
    (void) fake_hear(&x->d, BT_KV_CONTROL_ABORT);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_FAILED, 0);
    fake_sync(&x->d);
    no_event(&x->rig);
    assert_int_equal(rig_stats(&x->rig).rooms_closed, 1);
    assert_int_equal(rig_stats(&x->rig).rooms_failed, 0);
    bt_transfer_room_close(x->rig.t, 5, true, "again"); /* nothing */
    bt_transfer_room_close(x->rig.t, 6, true, NULL);
}

static void test_close_lets_it_end(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    bt_transfer_room_close(x->rig.t, 5, false, NULL);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2048);
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 2048);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_done == 1);
    no_event(&x->rig);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 6);
    spec.stall_ms = 30;
    pair_room_of(x, &spec);
    pair_move_room(x, 6);
    bt_transfer_room_close(x->rig.t, 6, false, NULL);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 6); /* watched */
    no_event(&x->rig);
}

/* Decode has answered and never asked for the KV: prefill's blocks are not held for all of start_ms. */
static void test_close_of_a_room_that_decode_did_not_need(void **state)
{
    const bt_transfer_config_t quick = {.dead_ms = 1000, .heartbeat_ms = 100};
    pair_open(x, &quick);
    pair_room(x, 5);
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_BOOTSTRAPPING, 0);
    fake_sync(&x->p);
    bt_transfer_room_close(x->rig.t, 5, false, NULL);
    while (rig_stats(&x->rig).rooms_open == 1) {
        fake_sync(&x->p);
        fake_sync(&x->d);
    }
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    assert_int_equal(m.abort.room, 5);
    assert_true(bt_str_eq(m.abort.reason, BT_STR("decode has answered without it")));
    assert_int_equal(rig_stats(&x->rig).rooms_closed, 1);
    assert_int_equal(rig_stats(&x->rig).rooms_failed, 0);
    no_event(&x->rig);
}

/* While the event of a failure waits for somebody to blame. */
static void test_close_while_blame_is_open(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell_failed(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_E_RESET, "lost");
    (void) fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    bt_transfer_room_close(x->rig.t, 5, false, NULL);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_open == 0);
    no_event(&x->rig);
}

/* ---- another sender ---- */
static void orphan_room(uint64_t room)
{
    bt_transfer_room_spec_t spec = spec_of(&x->rig, room);

    spec.repair_ms = 30000;
    pair_room_of(x, &spec);
    pair_wait_room(x, room);
    fake_sync(&x->p);
    fake_sync(&x->d);
    fake_hang_up(&x->p);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    assert_int_equal(e->room, room);
    assert_int_equal(e->source_room, room);
    assert_true(e->is_prefill_fault);
}

static void repair_room(uint64_t room, uint64_t source_room)
{
    assert_int_equal(bt_transfer_repair(x->rig.t, room, source_room, rig_worker(&x->rig, "p1")), 0);
    bt_kv_control_t m = fake_hear(&p1, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.room, source_room);
    assert_int_equal(m.open.side, BT_KV_SIDE_SENDER);
    m = fake_hear(&x->d, BT_KV_CONTROL_SOURCE);
    assert_int_equal(m.open.room, room);
    assert_int_equal(m.open.source_room, source_room);
    assert_int_equal(m.open.side, BT_KV_SIDE_RECEIVER);
    assert_int_equal(m.open.peer_count, 1);
    assert_int_equal(m.open.peers[0].port, 9500);
}

/* People find it by decode's number, and by the one that its prefill of today knows. */
static void shown_as(uint64_t name, const char *part)
{
    bt_text_t out;

    bt_text_init(&out);
    assert_true(bt_transfer_describe_room(x->rig.t, name, &out));
    assert_in(out.data, "{\"room\":\"5\",\"source_room\":\"50\",");
    assert_in(out.data, part);
    bt_text_fini(&out);
}

static void test_repair_to_done(void **state)
{
    pair_open(x, NULL);
    add_p1();
    orphan_room(5);
    fake_tell_orphan(&x->d, 5);
    fake_sync(&x->d);
    no_event(&x->rig); /* told once */
    repair_room(5, 50);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1000);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_MOVING);
    assert_int_equal(e->room, 5);
    assert_int_equal(e->source_room, 50);
    shown_as(5, "\"phase\":\"moving\"");
    shown_as(50, "\"phase\":\"moving\"");
    fake_tell(&p1, 50, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    e = rig_event(&x->rig, BT_TRANSFER_DONE);
    assert_int_equal(e->source_room, 50);
    assert_int_equal(rig_stats(&x->rig).rooms_orphaned, 1);
    assert_int_equal(rig_stats(&x->rig).rooms_repaired, 1);
    shown_as(5, "\"phase\":\"done\"");
    shown_as(50, "\"phase\":\"done\"");
}

/* Only the attempt that has opened a room closes it, by the name that it has given. */
static void test_close_by_the_name_of_its_sender(void **state)
{
    pair_open(x, NULL);
    add_p1();
    orphan_room(5);
    repair_room(5, 50);
    bt_transfer_room_close(x->rig.t, 50, true, "somebody else");
    fake_tell(&p1, 50, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

/* The receiver's complaint about the old sender may come after the repair: it is not about the new one. */
static void test_late_complaint(void **state)
{
    pair_open(x, NULL);
    add_p1();
    orphan_room(5);
    repair_room(5, 50);
    fake_tell_orphan(&x->d, 5);
    fake_sync(&x->d);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_WAITING_FOR_INPUT, 0); /* SOURCE has come */
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1000);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    assert_int_equal(rig_stats(&x->rig).rooms_orphaned, 1);
}

static void test_orphaned_twice(void **state)
{
    pair_open(x, NULL);
    add_p1();
    orphan_room(5);
    repair_room(5, 50);
    fake_hang_up(&p1);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    assert_int_equal(e->source_room, 50);
    assert_true(e->is_prefill_fault);
    fake_join(&x->p, &x->rig, "p0", 0, 1, 31);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p0"));
    assert_int_equal(bt_transfer_repair(x->rig.t, 5, 51, rig_worker(&x->rig, "p0")), 0);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_OPEN).open.room, 51);
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_SOURCE).open.source_room, 51);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 1);
    fake_tell(&x->p, 51, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 1);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

static void test_nobody_repairs(void **state)
{
    pair_open(x, NULL);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 5);
    spec.repair_ms = 30;
    pair_room_of(x, &spec);
    fake_hang_up(&x->p);
    (void) rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_in(e->reason, "no other prefill took its place within 30 ms");
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
    /* Too late: the new one is told, and nothing else comes. */
    add_p1();
    assert_int_equal(bt_transfer_repair(x->rig.t, 5, 50, rig_worker(&x->rig, "p1")), 0);
    assert_int_equal(fake_hear(&p1, BT_KV_CONTROL_ABORT).abort.room, 50);
    no_event(&x->rig);
}

static void test_repair_after_moving(void **state)
{
    pair_open(x, NULL);
    add_p1();
    pair_room(x, 5);
    pair_move_room(x, 5);
    assert_int_equal(bt_transfer_repair(x->rig.t, 5, 50, rig_worker(&x->rig, "p1")), 0);
    assert_int_equal(fake_hear(&p1, BT_KV_CONTROL_ABORT).abort.room, 50);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_false(e->is_prefill_fault || e->is_decode_fault);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5);
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
}

/* A prefill that lives is replaced (its engine is stuck, say): it hears of it, and what it still says is of no interest. */
static void test_repair_replaces_a_live_sender(void **state)
{
    pair_open(x, NULL);
    add_p1();
    pair_room(x, 5);
    pair_wait_room(x, 5);
    fake_sync(&x->d);
    repair_room(5, 50);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5);
    fake_tell_failed(&x->p, 5, BT_KV_SIDE_SENDER, BT_E_CANCELLED, "aborted");
    fake_sync(&x->p);
    fake_tell(&p1, 50, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 1);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 1);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

/* The sender had lost only us: the receiver has its bytes all the same, and the room goes on. */
static void test_orphan_moves_after_all(void **state)
{
    pair_open(x, NULL);
    orphan_room(5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1000);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    fake_join(&x->p, &x->rig, "p0", 0, 1, 11);
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 1000);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2000);
    fake_sync(&x->d);
    no_event(&x->rig); /* its sender has a participant again */
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 2000);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

/* The receiver's own report makes an orphan too, once its sender is known to be lost or a moment has passed. */
static void test_receiver_tells_orphan(void **state)
{
    pair_open(x, NULL);
    add_p1();
    pair_room(x, 5);
    pair_wait_room(x, 5);
    fake_tell_orphan(&x->d, 5);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    assert_false(e->is_prefill_fault); /* for all we know it lives */
    assert_in(e->reason, "decode d0 says: lost agent p0");
    repair_room(5, 50);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5);
}

static void test_repair_lacks_agents(void **state)
{
    pair_open(x, NULL);
    (void) rig_add(&x->rig, BT_ROLE_PREFILL, "p1", "http://127.0.0.1:8003");
    orphan_room(5);
    assert_int_equal(bt_transfer_repair(x->rig.t, 5, 50, rig_worker(&x->rig, "p1")), 0);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_in(e->reason, "worker p1: none of its agents");
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_open_lacks_agents),
        TEST(test_open_twice),
        TEST(test_open_says_deadlines),
        TEST(test_close_aborts),
        TEST(test_close_lets_it_end),
        TEST(test_close_while_blame_is_open),
        TEST(test_close_by_the_name_of_its_sender),
        TEST(test_repair_to_done),
        TEST(test_late_complaint),
        TEST(test_orphaned_twice),
        TEST(test_nobody_repairs),
        TEST(test_repair_after_moving),
        TEST(test_repair_replaces_a_live_sender),
        TEST(test_orphan_moves_after_all),
        TEST(test_receiver_tells_orphan),
        TEST(test_repair_lacks_agents),
        TEST(test_close_of_a_room_that_decode_did_not_need),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
