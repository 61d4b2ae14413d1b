/* What states, losses and deadlines make of a room, and whose fault it is. */
#include "transfer/rig.h"

static pair_t *x;
static fake_t d1;

static int open_pair(void **state)
{
    x = calloc(1, sizeof *x);
    return x == NULL;
}

static int close_pair(void **state)
{
    pair_close(x);
    free(x);
    return 0;
}

/* ---- as it should be ---- */
static void test_done(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    assert_int_equal(rig_stats(&x->rig).rooms_by_phase[BT_TRANSFER_PHASE_OPENING], 1);
    pair_wait_room(x, 5);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).rooms_by_phase[BT_TRANSFER_PHASE_WAITING] == 1);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 100);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_MOVING);
    assert_int_equal(e->room, 5);
    assert_int_equal(e->source_room, 5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    fake_sync(&x->d);
    no_event(&x->rig); /* the sender has not said so */
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
    e = rig_event(&x->rig, BT_TRANSFER_DONE);
    assert_int_equal(e->bytes, 4096);
    assert_int_equal(e->wait_us, 1000);
    assert_int_equal(e->transfer_us, 2000);
    bt_transfer_stats_t stats = rig_stats(&x->rig);
    assert_int_equal(stats.rooms_done, 1);
    assert_int_equal(stats.rooms_open, 0);
    assert_int_equal(stats.bytes, 4096);
    assert_int_equal(stats.transfer_us, 2000);
    for (int i = 0; i < BT_TRANSFER_PHASES; i++)
        assert_int_equal(stats.rooms_by_phase[i], 0);
}

static void assert_in_flight(const char *prefill, int64_t prefill_bytes, int64_t decode_bytes)
{
    fake_sync(&x->d);
    assert_int_equal(rig_worker(&x->rig, prefill)->transfer_bytes, prefill_bytes);
    assert_int_equal(rig_worker(&x->rig, "d0")->transfer_bytes, decode_bytes);
}

/* What four pages of 1 KiB still miss, counted on both workers; the pages' size is known from the
 * first ones on, in this room and in the next. */
static void test_bytes_in_flight(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_wait_room(x, 5);
    assert_in_flight("p0", 0, 0);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1024);
    assert_in_flight("p0", 3072, 3072);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 3072);
    assert_in_flight("p0", 1024, 1024);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    assert_in_flight("p0", 0, 0);
    pair_room(x, 6);
    pair_wait_room(x, 6);
    assert_in_flight("p0", 4096, 4096);
    bt_transfer_room_close(x->rig.t, 6, true, "the client has left");
    assert_in_flight("p0", 0, 0);
}

/* With another prefill the bytes are on their way from that one. */
static void test_bytes_in_flight_of_a_repair(void **state)
{
    fake_t p1;

    pair_open(x, NULL);
    (void) rig_add(&x->rig, BT_ROLE_PREFILL, "p1", "http://127.0.0.1:8003");
    fake_join(&p1, &x->rig, "p1", 0, 1, 13);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p1"));
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 2048);
    pair_room(x, 6);
    pair_wait_room(x, 6);
    assert_in_flight("p0", 2048 + 4096, 2048 + 4096);
    assert_int_equal(bt_transfer_repair(x->rig.t, 6, 60, rig_worker(&x->rig, "p1")), 0);
    (void) fake_hear(&p1, BT_KV_CONTROL_OPEN);
    assert_in_flight("p0", 2048, 2048);
    fake_tell(&x->d, 6, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1024);
    assert_in_flight("p1", 3072, 2048 + 3072);
    assert_in_flight("p0", 2048, 2048 + 3072);
    fake_hang_up(&p1);
}

/* Only when every rank has it. */
static void test_done_by_all_ranks(void **state)
{
    rig_t *rig = &x->rig;

    rig_open(rig, NULL);
    (void) rig_add(rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) rig_add(rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8002");
    fake_join(&x->p, rig, "p0", 0, 1, 1);
    fake_join(&x->d, rig, "d0", 0, 2, 2);
    fake_join(&d1, rig, "d0", 1, 2, 3);
    TURN_UNTIL(&rig->loop, has_agents(rig, "p0") && has_agents(rig, "d0"));
    bt_transfer_room_spec_t spec = spec_of(rig, 5);
    assert_int_equal(bt_transfer_room_open(rig->t, &spec), 0);
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.peer_count, 2);
    assert_int_equal(m.open.peers[1].rank, 1);
    assert_int_equal(m.open.peers[1].port, 9001);
    m = fake_hear(&d1, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.peer_count, 1);
    assert_true(bt_str_eq(m.open.peers[0].host, BT_STR("127.0.0.1")));
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 10);
    (void) rig_event(rig, BT_TRANSFER_MOVING);
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 30);
    fake_sync(&x->p);
    no_event(rig);
    fake_tell(&d1, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 20);
    assert_int_equal(rig_event(rig, BT_TRANSFER_DONE)->bytes, 30);
    fake_hang_up(&d1);
}

/* States do not go back, and nothing follows an end. */
static void test_told_anew(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_BOOTSTRAPPING, 0);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2048);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_FAILED, 0);
    fake_tell(&x->d, 5, BT_KV_SIDE_SENDER, BT_KV_FAILED, 0); /* a side it has no part in */
    fake_tell(&x->p, 5, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 2048);
    assert_int_equal(rig_event(&x->rig, BT_TRANSFER_DONE)->bytes, 2048);
}

/* The data is there: that its sender dies now hurts nobody. */
static void test_sender_lost_after_delivery(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2048);
    fake_sync(&x->d);
    fake_hang_up(&x->p);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

static void test_sender_never_confirms(void **state)
{
    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 50, .dead_ms = 200});
    pair_room(x, 5);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2048);
    (void) rig_event(&x->rig, BT_TRANSFER_MOVING);
    while (x->rig.event_at == x->rig.event_count) {
        fake_say(&x->p, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
        fake_say(&x->d, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
        turn_once(&x->rig.loop);
    }
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5);
}

/* ---- losses ---- */
static void test_receiver_lost(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_wait_room(x, 5);
    fake_hang_up(&x->d);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_decode_fault);
    assert_false(e->is_prefill_fault);
    assert_int_equal(e->rc, BT_E_RESET);
    assert_in(e->reason, "lost the agent of decode d0");
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    assert_int_equal(m.abort.room, 5);
    assert_int_equal(rig_stats(&x->rig).rooms_failed, 1);
}

static void test_sender_lost_while_moving(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    close_with_reset(x->p.fd);
    x->p.fd = -1;
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_int_equal(e->bytes, 1024);
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
}

static void test_sender_silent_while_moving(void **state)
{
    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 150});
    pair_room(x, 5);
    pair_move_room(x, 5);
    while (x->rig.event_at == x->rig.event_count) {
        fake_say(&x->d, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
        turn_once(&x->rig.loop);
    }
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_in(e->reason, "no sign of life for 150 ms");
}

/* ---- failures that are told ---- */
static void test_failed_is_nobodys(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell_failed(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_E_KV_TRANSFER, "CRC error\n");
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5); /* at once */
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_false(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_int_equal(e->rc, BT_E_KV_TRANSFER);
    assert_string_equal(e->reason, "decode d0 says: CRC error?");
}

/* Its peer's complaint comes first, its own hang-up right after. */
static void test_complaint_then_loss(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell_failed(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_E_RESET, "lost agent p0");
    (void) fake_hear(&x->p, BT_KV_CONTROL_ABORT);
    fake_hang_up(&x->p);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_in(e->reason, "lost agent p0");
}

/* The accused has not been heard by us either for a while, though it is not lost yet. */
static void test_complaint_about_a_silent_one(void **state)
{
    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 30000});
    pair_room(x, 5);
    pair_move_room(x, 5);
    uint64_t until_ms = bt_clock_ms() + 80;
    while (bt_clock_ms() < until_ms)
        turn_once(&x->rig.loop);
    fake_tell_failed(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_E_STALL, "no sign of life from p0");
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
}

/* A sender that gives up what a receiver has in full: both are right. */
static void test_success_overtaken_by_failure(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_move_room(x, 5);
    fake_tell_failed(&x->p, 5, BT_KV_SIDE_SENDER, BT_E_RESET, "lost agent d0");
    (void) fake_hear(&x->d, BT_KV_CONTROL_ABORT);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 2048);
    (void) rig_event(&x->rig, BT_TRANSFER_DONE);
}

/* Before the first byte a sender's failure makes an orphan; a receiver's is the end. */
static void test_sender_failed_before_moving(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    fake_tell_failed(&x->p, 5, BT_KV_SIDE_SENDER, BT_E_CANCELLED, "aborted: out of blocks");
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_ORPHANED);
    assert_false(e->is_prefill_fault);
    assert_in(e->reason, "prefill p0 says: aborted: out of blocks");
    pair_room(x, 6);
    fake_tell_failed(&x->d, 6, BT_KV_SIDE_RECEIVER, BT_E_CANCELLED, "aborted");
    fake_tell_failed(&x->p, 6, BT_KV_SIDE_SENDER, BT_E_CANCELLED, "d0: aborted");
    e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_int_equal(e->room, 6);
    assert_false(e->is_decode_fault);
}

/* The sender hands on what the receiver has said of itself: no orphan. */
static void test_receivers_failure_heard_from_the_sender_first(void **state)
{
    pair_open(x, NULL);
    pair_room(x, 5);
    pair_wait_room(x, 5);
    fake_tell_failed(&x->p, 5, BT_KV_SIDE_SENDER, BT_E_CANCELLED, "d0: aborted");
    fake_sync(&x->p);
    fake_tell_failed(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_E_CANCELLED, "aborted");
    (void) rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_int_equal(rig_stats(&x->rig).rooms_orphaned, 0);
}

/* ---- deadlines ---- */
static void test_start_deadline(void **state)
{
    pair_open(x, NULL);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 5);
    spec.start_ms = 30;
    pair_room_of(x, &spec);
    fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_WAITING_FOR_INPUT, 0);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_int_equal(e->rc, BT_E_FIRST_BYTE_TIMEOUT);
    assert_in(e->reason, "no byte within 30 ms: prefill p0 is not opened by its engine");
    assert_false(e->is_prefill_fault || e->is_decode_fault);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 5);
    assert_int_equal(fake_hear(&x->d, BT_KV_CONTROL_ABORT).abort.room, 5);
}

/* Progress starts it anew; without any it is over. */
static void test_stall_deadline(void **state)
{
    pair_open(x, NULL);
    bt_transfer_room_spec_t spec = spec_of(&x->rig, 5);
    spec.stall_ms = 120;
    pair_room_of(x, &spec);
    pair_move_room(x, 5);
    uint64_t start_ms = bt_clock_ms(), bytes = 2000;
    while (bt_clock_ms() < start_ms + 300) {
        fake_tell(&x->d, 5, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, bytes++);
        turn_once(&x->rig.loop);
    }
    no_event(&x->rig);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_int_equal(e->rc, BT_E_STALL);
    assert_in(e->reason, "no progress for 120 ms");
    assert_true(e->bytes == bytes - 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pair, close_pair)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_done),
        TEST(test_bytes_in_flight),
        TEST(test_bytes_in_flight_of_a_repair),
        TEST(test_done_by_all_ranks),
        TEST(test_told_anew),
        TEST(test_sender_lost_after_delivery),
        TEST(test_sender_never_confirms),
        TEST(test_receiver_lost),
        TEST(test_sender_lost_while_moving),
        TEST(test_sender_silent_while_moving),
        TEST(test_failed_is_nobodys),
        TEST(test_complaint_then_loss),
        TEST(test_complaint_about_a_silent_one),
        TEST(test_success_overtaken_by_failure),
        TEST(test_sender_failed_before_moving),
        TEST(test_receivers_failure_heard_from_the_sender_first),
        TEST(test_start_deadline),
        TEST(test_stall_deadline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
