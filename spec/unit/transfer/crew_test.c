/* Whose agent is it, and has a worker all of them? */
#include "transfer/rig.h"

static fake_t a, b, c;

static void test_all_ranks_make_it_whole(void **state)
{
    rig_t rig;

    (void) state;
    rig_open(&rig, NULL);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    fake_join(&a, &rig, "p0", 0, 2, 1);
    fake_sync(&a);
    assert_false(has_agents(&rig, "p0"));
    uint64_t epoch = bt_fleet_epoch();
    fake_join(&b, &rig, "p0", 1, 2, 2);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    assert_true(bt_fleet_epoch() > epoch);
    epoch = bt_fleet_epoch();
    fake_hang_up(&a);
    TURN_UNTIL(&rig.loop, !has_agents(&rig, "p0"));
    assert_true(bt_fleet_epoch() > epoch);
    fake_hang_up(&b);
    rig_close(&rig);
}

static void test_ranks_must_agree(void **state)
{
    rig_t rig;

    (void) state;
    rig_open(&rig, NULL);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    fake_join(&a, &rig, "p0", 0, 1, 1);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    fake_join(&b, &rig, "p0", 1, 2, 2);
    TURN_UNTIL(&rig.loop, !has_agents(&rig, "p0"));
    fake_hang_up(&a);
    fake_join(&a, &rig, "p0", 0, 2, 3);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    fake_hang_up(&a);
    fake_hang_up(&b);
    rig_close(&rig);
}

/* By URL, however it is spelled. */
static void test_found_by_url(void **state)
{
    rig_t rig;

    (void) state;
    rig_open(&rig, NULL);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://Node-1:8001");
    fake_join(&a, &rig, "node-1:8001/", 0, 1, 1);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    fake_hang_up(&a);
    rig_close(&rig);
}

static void test_waits_for_its_worker(void **state)
{
    rig_t rig;

    (void) state;
    rig_open(&rig, NULL);
    fake_join(&a, &rig, "http://127.0.0.1:8001", 0, 1, 1);
    fake_sync(&a);
    assert_int_equal(rig_stats(&rig).agents_waiting, 1);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    assert_true(has_agents(&rig, "p0"));
    assert_int_equal(rig_stats(&rig).agents_waiting, 0);
    /* Gone, and there again as another object. */
    bt_worker_t *old = bt_worker_ref(rig_worker(&rig, "p0"));
    assert_int_equal(bt_registry_remove(rig.registry, BT_STR("p0")), 0);
    assert_false(atomic_load(&old->has_agents));
    assert_int_equal(rig_stats(&rig).agents_waiting, 1);
    bt_worker_t *again = rig_add(&rig, BT_ROLE_DECODE, "d7", "http://127.0.0.1:8001");
    assert_true(again != old);
    assert_true(has_agents(&rig, "d7"));
    bt_worker_unref(old);
    fake_hang_up(&a);
    rig_close(&rig);
}

/* Two agents that waited for one place: the later one has it. */
static void test_two_wait_for_one_place(void **state)
{
    rig_t rig;

    (void) state;
    rig_open(&rig, NULL);
    fake_join(&a, &rig, "p0", 0, 1, 1);
    fake_join(&b, &rig, "p0", 0, 1, 2);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) fake_hear(&a, BT_KV_STEER_REFUSE);
    fake_hear_end(&a);
    assert_true(has_agents(&rig, "p0"));
    assert_int_equal(rig_stats(&rig).agents, 1);
    assert_int_equal(rig_stats(&rig).agents_waiting, 0);
    fake_hang_up(&a);
    fake_hang_up(&b);
    rig_close(&rig);
}

/* Another process in its place: the old one is told to stay away, and its rooms are lost. */
static void test_another_process_replaces(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    (void) state;
    pair_open(x, NULL);
    pair_room(x, 77);
    pair_move_room(x, 77);
    fake_join(&c, &x->rig, "p0", 0, 1, 99);
    bt_kv_steer_t m = fake_hear(&x->p, BT_KV_STEER_REFUSE);
    assert_true(m.refuse.retry_ms >= 10000);
    fake_hear_end(&x->p);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_true(has_agents(&x->rig, "p0"));
    fake_hang_up(&c);
    pair_close(x);
    free(x);
}

/* The same process on a new connection: its rooms go on. */
static void test_same_process_takes_over(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    (void) state;
    pair_open(x, NULL);
    pair_room(x, 77);
    pair_move_room(x, 77);
    fake_join(&c, &x->rig, "p0", 0, 1, 11);
    fake_hear_end(&x->p);
    assert_true(has_agents(&x->rig, "p0"));
    fake_tell(&c, 77, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
    fake_tell(&x->d, 77, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    assert_int_equal(rig_event(&x->rig, BT_TRANSFER_DONE)->bytes, 4096);
    fake_hang_up(&c);
    pair_close(x);
    free(x);
}

/* Lost and back again: the room that has ended meanwhile is to be aborted, what nobody knows is left alone. */
static void test_comes_back_with_old_rooms(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    (void) state;
    pair_open(x, NULL);
    pair_room(x, 77);
    pair_move_room(x, 77);
    fake_hang_up(&x->p);
    (void) rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_false(has_agents(&x->rig, "p0"));
    fake_join(&x->p, &x->rig, "p0", 0, 1, 11);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p0"));
    fake_tell(&x->p, 78, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 1); /* another gateway's */
    fake_tell(&x->p, 77, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 2048);
    assert_int_equal(fake_hear(&x->p, BT_KV_STEER_ABORT).abort.room, 77);
    fake_tell(&x->p, 77, BT_KV_SIDE_SENDER, BT_KV_FAILED, 2048);
    fake_sync(&x->p);
    (void) fake_hear(&x->d, BT_KV_STEER_ABORT);
    pair_room(x, 79); /* nothing else was said to it */
    pair_close(x);
    free(x);
}

/* This process stood still for longer than agents wait for a sign of it: they have all hung up and dial again. Nobody has died. */
static void test_they_hung_up_because_we_slept(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    (void) state;
    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 50, .dead_ms = 200});
    pair_room(x, 77);
    pair_room(x, 78);
    pair_wait_room(x, 77);
    pair_move_room(x, 78);
    fake_sync(&x->p);
    fake_sync(&x->d);
    usleep(300000); /* that is what is tested: no turn in all this time */
    fake_hang_up(&x->p);
    fake_hang_up(&x->d);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).agents == 0);
    assert_false(has_agents(&x->rig, "p0"));
    fake_join(&x->p, &x->rig, "p0", 0, 1, 11);
    fake_join(&x->d, &x->rig, "d0", 0, 1, 12);
    pair_wait_room(x, 77);
    fake_sync(&x->d);
    no_event(&x->rig);
    fake_tell(&x->d, 77, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1024);
    assert_int_equal(rig_event(&x->rig, BT_TRANSFER_MOVING)->room, 77);
    for (uint64_t room = 77; room <= 78; room++) {
        fake_tell(&x->p, room, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
        fake_tell(&x->d, room, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
        assert_int_equal(rig_event(&x->rig, BT_TRANSFER_DONE)->room, room);
    }
    /* Whoever goes later is lost as always. */
    pair_room(x, 79);
    pair_move_room(x, 79);
    for (int i = 0; i < 8; i++) {
        (void) fake_hear(&x->p, BT_KV_STEER_PING);
        fake_sync(&x->p);
        fake_sync(&x->d);
    }
    fake_hang_up(&x->p);
    assert_true(rig_event(&x->rig, BT_TRANSFER_FAILED)->is_prefill_fault);
    pair_close(x);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_make_it_whole),
        cmocka_unit_test(test_ranks_must_agree),
        cmocka_unit_test(test_found_by_url),
        cmocka_unit_test(test_waits_for_its_worker),
        cmocka_unit_test(test_two_wait_for_one_place),
        cmocka_unit_test(test_another_process_replaces),
        cmocka_unit_test(test_same_process_takes_over),
        cmocka_unit_test(test_comes_back_with_old_rooms),
        cmocka_unit_test(test_they_hung_up_because_we_slept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
