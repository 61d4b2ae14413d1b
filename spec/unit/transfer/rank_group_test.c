/* Whose agent is it, and has a worker all of them? */
#include "transfer/rig.h"

#define ELSEWHERE 0x7f000002 /* 127.0.0.2: another address of this host */

static fake_t a, b, c;
static char why[BT_KV_CONTROL_TEXT_MAX + 1];

static void test_all_ranks_make_it_whole(void **state)
{
    rig_t rig;

    rig_open(&rig, NULL);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    fake_join(&a, &rig, "p0", 0, 2, 1);
    fake_sync(&a);
    assert_false(has_agents(&rig, "p0"));
    uint64_t epoch = bt_workers_changes();
    fake_join(&b, &rig, "p0", 1, 2, 2);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    assert_true(bt_workers_changes() > epoch);
    epoch = bt_workers_changes();
    fake_hang_up(&a);
    TURN_UNTIL(&rig.loop, !has_agents(&rig, "p0"));
    assert_true(bt_workers_changes() > epoch);
    fake_hang_up(&b);
    rig_close(&rig);
}

/* As breakers count them. */
static void test_is_usable_with_its_agents(void **state)
{
    bt_worker_spec_t spec;
    char err[256];
    rig_t rig;

    rig_open(&rig, NULL);
    make_spec(&spec, BT_ROLE_PREFILL, "http://127.0.0.1:8001", "BatonConnector");
    assert_int_equal(bt_registry_add(rig.registry, NULL, &spec, err, sizeof err), 0);
    bt_worker_spec_fini(&spec);
    bt_worker_t *w = rig_worker(&rig, "p0");
    bt_worker_set_health(w, BT_HEALTH_UP, "test");
    assert_int_equal(atomic_load(&w->breaker.group->usable), 0);
    fake_join(&a, &rig, "p0", 0, 1, 1);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    assert_int_equal(atomic_load(&w->breaker.group->usable), 1);
    fake_hang_up(&a);
    TURN_UNTIL(&rig.loop, !has_agents(&rig, "p0"));
    assert_int_equal(atomic_load(&w->breaker.group->usable), 0);
    rig_close(&rig);
}

/* Who says that there are more ranks cannot make a worker useless whose agents are all there. */
static void test_ranks_must_agree(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 10000, .dead_ms = 60000});
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    fake_join(&a, &rig, "p0", 0, 1, 1);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    bt_kv_control_t hello = hello_of("p0", 1, 2, 2);
    assert_true(fake_try(&b, &rig, INADDR_LOOPBACK, &hello, why) > 0);
    assert_in(why, "say another number of ranks");
    assert_true(has_agents(&rig, "p0"));
    fake_hang_up(&a);
    TURN_UNTIL(&rig.loop, !has_agents(&rig, "p0"));
    fake_join_as(&b, &rig, &hello);
    fake_join(&a, &rig, "p0", 0, 2, 3);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    fake_hang_up(&a);
    fake_hang_up(&b);
    rig_close(&rig);
}

/* Those of a worker that is half dead hold nobody up: its engine has come back with another number of ranks. */
static void test_silent_ranks_need_not_agree(void **state)
{
    bt_kv_control_t first = hello_of("p0", 0, 2, 3), second = hello_of("p0", 1, 2, 4);
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 40000});
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    fake_join(&a, &rig, "p0", 0, 1, 1);
    while (fake_try(&b, &rig, INADDR_LOOPBACK, &second, why) != 0)
        ;
    assert_false(has_agents(&rig, "p0"));
    assert_int_equal(fake_try(&c, &rig, INADDR_LOOPBACK, &first, why), 0);
    TURN_UNTIL(&rig.loop, has_agents(&rig, "p0"));
    fake_hang_up(&a);
    fake_hang_up(&b);
    fake_hang_up(&c);
    rig_close(&rig);
}

/* By URL, however it is spelled. */
static void test_found_by_url(void **state)
{
    rig_t rig;

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

/* Two agents that waited for one place: the first one has it. */
static void test_two_wait_for_one_place(void **state)
{
    rig_t rig;

    rig_open(&rig, &(bt_transfer_config_t){.heartbeat_ms = 10000, .dead_ms = 60000});
    fake_join(&a, &rig, "p0", 0, 1, 1);
    fake_join(&b, &rig, "p0", 0, 1, 2);
    fake_join(&c, &rig, "d0", 0, 1, 3);
    (void) rig_add(&rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) fake_hear(&b, BT_KV_CONTROL_REFUSE);
    fake_hear_end(&b);
    assert_true(has_agents(&rig, "p0"));
    assert_int_equal(rig_stats(&rig).agents, 2);
    assert_int_equal(rig_stats(&rig).agents_waiting, 1); /* c, whose turn came after b's end */
    fake_sync(&a);
    (void) rig_add(&rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8002");
    assert_true(has_agents(&rig, "d0"));
    fake_hang_up(&a);
    fake_hang_up(&b);
    fake_hang_up(&c);
    rig_close(&rig);
}

/* ---- who may take a place that is taken ---- */

static void assert_untouched(pair_t *x)
{
    bt_kv_control_t m;

    fake_sync(&x->p);
    while (fake_next(&x->p, &m))
        assert_int_equal(m.type, BT_KV_CONTROL_PING);
    assert_false(x->p.is_over);
    assert_true(has_agents(&x->rig, "p0"));
    assert_int_equal(rig_stats(&x->rig).agents, 2);
    assert_int_equal(rig_stats(&x->rig).agents_lost, 0);
    no_event(&x->rig);
}

/* Whoever says its name, from wherever and with whatever token: an agent that lives stays, and so do its rooms. */
static void nobody_displaces(const char *token)
{
    static const in_addr_t from[] = {INADDR_LOOPBACK, ELSEWHERE};
    bt_kv_control_t hello = hello_of("p0", 0, 1, 99);
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, &(bt_transfer_config_t){.token = token, .heartbeat_ms = 10000, .dead_ms = 60000});
    pair_room(x, 77);
    pair_move_room(x, 77);
    for (unsigned i = 0; i < 2; i++) {
        fake_sync(&x->p);
        uint32_t retry_ms = fake_try(&c, &x->rig, from[i], &hello, why);
        bool is_trusted = token != NULL || from[i] == INADDR_LOOPBACK;
        assert_true(retry_ms > 100 && retry_ms <= (is_trusted ? 20100 : 60100));
        assert_in(why, is_trusted ? "is alive: end it" : "--transfer-token");
        assert_untouched(x);
    }
    assert_int_equal(rig_stats(&x->rig).agents_refused, 2);
    fake_tell(&x->p, 77, BT_KV_SIDE_SENDER, BT_KV_SUCCESS, 4096);
    fake_tell(&x->d, 77, BT_KV_SIDE_RECEIVER, BT_KV_SUCCESS, 4096);
    assert_int_equal(rig_event(&x->rig, BT_TRANSFER_DONE)->bytes, 4096);
    pair_close(x);
    free(x);
}

static void test_a_live_agent_stays(void **state)
{
    nobody_displaces(NULL);
    nobody_displaces("sesame");
}

/* A process that was killed and started again, while its old connection never closes: in its place as soon as the old one has missed two heartbeats, long before it
 * is lost. The old one's rooms are lost, and it need not stay away for long: it may not have been dead. */
static void back_in_a_half_open_place(const char *token, in_addr_t from)
{
    bt_kv_control_t hello = hello_of("p0", 0, 1, 99);
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, &(bt_transfer_config_t){.token = token, .heartbeat_ms = 50, .dead_ms = 40000});
    pair_room(x, 77);
    pair_move_room(x, 77);
    uint64_t since_ms = bt_clock_ms();
    for (uint32_t retry_ms; (retry_ms = fake_try(&c, &x->rig, from, &hello, why)) != 0;)
        assert_true(retry_ms <= 200);
    assert_true(bt_clock_ms() - since_ms < 20000);
    assert_true(has_agents(&x->rig, "p0"));
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_REFUSE);
    assert_true(m.refuse.retry_ms <= 5000);
    fake_hear_end(&x->p);
    const bt_transfer_event_t *e = rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_true(e->is_prefill_fault);
    assert_false(e->is_decode_fault);
    assert_int_equal(x->rig.gone_count, 1);
    assert_string_equal(x->rig.gone, "p0: another process has its agent's place");
    assert_int_equal(rig_worker(&x->rig, "p0")->warm.life, 1);
    fake_hang_up(&c);
    pair_close(x);
    free(x);
}

static void test_back_in_a_half_open_place(void **state)
{
    back_in_a_half_open_place(NULL, INADDR_LOOPBACK);
    back_in_a_half_open_place("sesame", INADDR_LOOPBACK);
    back_in_a_half_open_place("sesame", ELSEWHERE); /* its host died */
}

/* Without a token another address has to wait until the old agent is lost, and is told how long that may take. */
static void test_another_address_waits(void **state)
{
    bt_kv_control_t hello = hello_of("p0", 0, 1, 99);
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 20, .dead_ms = 600});
    pair_room(x, 77);
    pair_move_room(x, 77);
    uint64_t heard_ms = bt_clock_ms();
    fake_sync(&x->p);
    for (uint32_t retry_ms; (retry_ms = fake_try(&c, &x->rig, ELSEWHERE, &hello, why)) != 0;) {
        assert_true(retry_ms <= 700);
        assert_in(why, "--transfer-token");
        fake_sync(&x->d); /* else it is as silent, and the first to be taken for dead */
    }
    assert_true(bt_clock_ms() - heard_ms >= 500);
    assert_true(rig_event(&x->rig, BT_TRANSFER_FAILED)->is_prefill_fault);
    fake_hang_up(&c);
    pair_close(x);
    free(x);
}

/* Who knows an agent's incarnation is not that agent. */
static void test_another_address_is_another_process(void **state)
{
    bt_kv_control_t hello = hello_of("p0", 0, 1, 11);
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 10000, .dead_ms = 60000});
    pair_room(x, 77);
    pair_move_room(x, 77);
    assert_true(fake_try(&c, &x->rig, ELSEWHERE, &hello, why) > 0);
    assert_untouched(x);
    pair_close(x);
    free(x);
}

/* The same process on a new connection: its rooms go on. */
static void test_same_process_takes_over(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, NULL);
    pair_room(x, 77);
    pair_move_room(x, 77);
    fake_join(&c, &x->rig, "p0", 0, 1, 11);
    fake_hear_end(&x->p);
    assert_true(has_agents(&x->rig, "p0"));
    assert_int_equal(x->rig.gone_count, 0);
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

    pair_open(x, NULL);
    pair_room(x, 77);
    pair_move_room(x, 77);
    fake_hang_up(&x->p);
    (void) rig_event(&x->rig, BT_TRANSFER_FAILED);
    assert_false(has_agents(&x->rig, "p0"));
    assert_int_equal(x->rig.gone_count, 1);
    assert_string_equal(x->rig.gone, "p0: its transfer agent is gone");
    fake_join(&x->p, &x->rig, "p0", 0, 1, 11);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p0"));
    fake_tell(&x->p, 78, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 1); /* another gateway's */
    fake_tell(&x->p, 77, BT_KV_SIDE_SENDER, BT_KV_TRANSFERRING, 2048);
    assert_int_equal(fake_hear(&x->p, BT_KV_CONTROL_ABORT).abort.room, 77);
    fake_tell(&x->p, 77, BT_KV_SIDE_SENDER, BT_KV_FAILED, 2048);
    fake_sync(&x->p);
    (void) fake_hear(&x->d, BT_KV_CONTROL_ABORT);
    pair_room(x, 79); /* nothing else was said to it */
    pair_close(x);
    free(x);
}

/* This process stood still for longer than agents wait for a sign of it: they have all hung up and dial again. Nobody has died. */
static void test_they_hung_up_because_we_slept(void **state)
{
    pair_t *x = calloc(1, sizeof *x);

    pair_open(x, &(bt_transfer_config_t){.heartbeat_ms = 50, .dead_ms = 500});
    pair_room(x, 77);
    pair_room(x, 78);
    pair_wait_room(x, 77);
    pair_move_room(x, 78);
    fake_sync(&x->p);
    fake_sync(&x->d);
    usleep(700000); /* that is what is tested: no turn in all this time */
    fake_hang_up(&x->p);
    fake_hang_up(&x->d);
    TURN_UNTIL(&x->rig.loop, rig_stats(&x->rig).agents == 0);
    assert_false(has_agents(&x->rig, "p0"));
    assert_int_equal(x->rig.gone_count, 0);
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
    for (int i = 0; i < 22; i++) {
        (void) fake_hear(&x->p, BT_KV_CONTROL_PING);
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
        cmocka_unit_test(test_is_usable_with_its_agents),
        cmocka_unit_test(test_ranks_must_agree),
        cmocka_unit_test(test_silent_ranks_need_not_agree),
        cmocka_unit_test(test_found_by_url),
        cmocka_unit_test(test_waits_for_its_worker),
        cmocka_unit_test(test_two_wait_for_one_place),
        cmocka_unit_test(test_a_live_agent_stays),
        cmocka_unit_test(test_back_in_a_half_open_place),
        cmocka_unit_test(test_another_address_waits),
        cmocka_unit_test(test_another_address_is_another_process),
        cmocka_unit_test(test_same_process_takes_over),
        cmocka_unit_test(test_comes_back_with_old_rooms),
        cmocka_unit_test(test_they_hung_up_because_we_slept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
