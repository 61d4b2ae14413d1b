/* The timer wheel: never early, stop and start from anywhere, rotations, silence when nothing is active.
 *
 * The linker puts our clock in front of the real one (--wrap), so that "started nine seconds ago" needs no waiting. */
#include "loop/loop.h"

#include "util.h"

uint64_t __real_bt_clock_us(void);
uint64_t __wrap_bt_clock_us(void);
uint64_t __wrap_bt_clock_ms(void);

static uint64_t behind_us; /* how far the wheel's clock is in the past */

uint64_t __wrap_bt_clock_us(void)
{
    return __real_bt_clock_us() - behind_us;
}

uint64_t __wrap_bt_clock_ms(void)
{
    return __wrap_bt_clock_us() / 1000;
}

static bt_loop_t loop;

struct probe {
    bt_timer_t timer;
    uint64_t due_us; /* not before */
    unsigned fired;
    bool early;
    struct probe *other; /* what the callback acts upon */
};

static int setup(void **state)
{
    behind_us = 0;
    return bt_loop_init(&loop, 0);
}

static int teardown(void **state)
{
    bt_loop_fini(&loop);
    return 0;
}

static void on_probe(bt_timer_t *timer)
{
    struct probe *p = bt_container_of(timer, struct probe, timer);

    p->fired++;
    p->early = p->early || bt_clock_us() < p->due_us;
}

static void start(struct probe *p, uint64_t ms)
{
    p->due_us = bt_clock_us() + ms * 1000;
    bt_timer_start(&p->timer, ms);
}

static void init(struct probe *p, bt_timer_cb cb)
{
    memset(p, 0, sizeof(*p));
    bt_timer_init(&loop, &p->timer, cb);
}

static void test_fires_once_and_not_early(void **state)
{
    static const uint64_t delays[] = {0, 1, 7, 8, 9, 16, 40, 100};
    struct probe probes[8];

    for (unsigned i = 0; i < 8; i++) {
        init(&probes[i], on_probe);
        start(&probes[i], delays[i]);
        assert_true(bt_timer_active(&probes[i].timer));
    }
    TURN_UNTIL(&loop, probes[7].fired > 0);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(probes[i].fired, 1);
        assert_false(probes[i].early);
        assert_false(bt_timer_active(&probes[i].timer));
    }
}

static void test_due_time_is_within_a_tick(void **state)
{
    struct probe p;

    init(&p, on_probe);
    for (uint64_t ms = 0; ms < 3000; ms++) {
        start(&p, ms);
        uint64_t now_us = bt_clock_us();
        assert_true(p.timer.due_ms * 1000 >= p.due_us);
        assert_true(p.timer.due_ms * 1000 <=
                    now_us + ms * 1000 + 9000); /* a tick, and the clock's rounding */
    }
    bt_timer_stop(&p.timer);
}

static void test_alarm_is_off_when_nothing_is_active(void **state)
{
    struct probe a, b;

    init(&a, on_probe);
    init(&b, on_probe);
    turn(&loop, 2);
    assert_int_equal(uv_backend_timeout(&loop.uv), -1);
    start(&a, 500);
    start(&b, 20);
    assert_true(uv_backend_timeout(&loop.uv) >= 0);
    bt_timer_stop(&a.timer);
    assert_true(uv_backend_timeout(&loop.uv) >= 0);
    bt_timer_stop(&b.timer);
    bt_timer_stop(&b.timer); /* idempotent */
    assert_int_equal(uv_backend_timeout(&loop.uv), -1);
    start(&a, 1);
    TURN_UNTIL(&loop, a.fired == 1);
    assert_int_equal(uv_backend_timeout(&loop.uv), -1);
}

static void test_earlier_timer_moves_the_alarm(void **state)
{
    struct probe slow, fast;

    init(&slow, on_probe);
    init(&fast, on_probe);
    turn(&loop, 2); /* uv answers 0 before its first turn */
    start(&slow, 60000);
    assert_true(uv_backend_timeout(&loop.uv) > 8000);
    start(&fast, 10);
    assert_true(uv_backend_timeout(&loop.uv) < 100);
    TURN_UNTIL(&loop, fast.fired == 1);
    assert_int_equal(slow.fired, 0);
    bt_timer_stop(&slow.timer);
}

static void on_stop_other(bt_timer_t *timer)
{
    struct probe *p = bt_container_of(timer, struct probe, timer);

    on_probe(timer);
    bt_timer_stop(&p->other->timer);
    free(p->other); /* stopped means that the memory may go */
    p->other = NULL;
}

static void test_stop_a_neighbour_of_the_same_slot(void **state)
{
    struct probe first, last;
    struct probe *victim = malloc(sizeof(*victim));

    init(&first, on_stop_other);
    init(victim, on_probe);
    init(&last, on_probe);
    first.other = victim;
    behind_us = 100000; /* all three are due already, whatever slot: one run fires them */
    start(&first, 1);
    start(victim, 1);
    start(&last, 1);
    behind_us = 0;
    TURN_UNTIL(&loop, last.fired == 1);
    assert_int_equal(first.fired, 1);
    assert_null(first.other);
}

static void on_free_self(bt_timer_t *timer)
{
    struct probe *p = bt_container_of(timer, struct probe, timer);

    bt_timer_stop(timer); /* already inactive */
    p->other->fired++;
    free(p);
}

static void test_free_itself(void **state)
{
    struct probe counter = {.fired = 0};
    struct probe *p = malloc(sizeof(*p));

    init(p, on_free_self);
    p->other = &counter;
    start(p, 0);
    TURN_UNTIL(&loop, counter.fired == 1);
}

static void on_rearm(bt_timer_t *timer)
{
    struct probe *p = bt_container_of(timer, struct probe, timer);

    on_probe(timer);
    if (p->fired < 5)
        start(p, 0);
}

static void test_rearm_itself(void **state)
{
    struct probe p;

    init(&p, on_rearm);
    start(&p, 0);
    TURN_UNTIL(&loop, p.fired == 5);
    assert_false(p.early);
    turn(&loop, 3);
    assert_int_equal(p.fired, 5);
}

static void on_postpone_other(bt_timer_t *timer)
{
    struct probe *p = bt_container_of(timer, struct probe, timer);

    on_probe(timer);
    start(p->other, 30);
}

static void test_postpone_one_that_is_about_to_fire(void **state)
{
    struct probe first, second;

    init(&first, on_postpone_other);
    init(&second, on_probe);
    first.other = &second;
    behind_us = 50000;
    start(&first, 1);
    start(&second, 1);
    behind_us = 0;
    TURN_UNTIL(&loop, first.fired == 1);
    assert_int_equal(second.fired, 0);
    TURN_UNTIL(&loop, second.fired == 1);
    assert_false(second.early);
}

/* 1024 ticks of 8 ms later is the same slot. */
static void test_far_timer_stays_when_its_slot_runs(void **state)
{
    struct probe near, far;

    init(&near, on_probe);
    init(&far, on_probe);
    start(&near, 16);
    start(&far, 16 + 8192);
    assert_int_equal(near.timer.due_ms / 8 % 1024, far.timer.due_ms / 8 % 1024);
    TURN_UNTIL(&loop, near.fired == 1);
    assert_int_equal(far.fired, 0);
    assert_true(bt_timer_active(&far.timer));
    bt_timer_stop(&far.timer);
}

static void test_far_timer_fires_after_rotations(void **state)
{
    struct probe one, three, later;

    init(&one, on_probe);
    init(&three, on_probe);
    init(&later, on_probe);
    behind_us = UINT64_C(25000000); /* more than three rotations ago */
    start(&one, 8300);
    start(&three, 25010);
    start(&later, 120000);
    behind_us = 0;
    TURN_UNTIL(&loop, three.fired == 1);
    assert_int_equal(one.fired, 1);
    assert_false(three.early);
    assert_int_equal(later.fired, 0);
    bt_timer_stop(&later.timer);
}

static void test_never_does_not_overflow(void **state)
{
    struct probe p;

    init(&p, on_probe);
    start(&p, UINT64_MAX);
    turn(&loop, 2);
    assert_int_equal(p.fired, 0);
    assert_true(p.timer.due_ms > bt_clock_ms());
    bt_timer_stop(&p.timer);
}

#define CROWD 400

static struct probe crowd[CROWD];
static unsigned crowd_starts[CROWD], crowd_fires, crowd_budget;
static uint32_t crowd_seed = 12345;

static uint32_t roll(void)
{
    crowd_seed = crowd_seed * 1664525U + 1013904223U;
    return crowd_seed >> 8;
}

/* Each timer that fires stops one and starts two, at random. */
static void on_crowd(bt_timer_t *timer)
{
    on_probe(timer);
    crowd_fires++;
    if (crowd_budget == 0)
        return;
    crowd_budget--;
    unsigned stop = roll() % CROWD;
    if (bt_timer_active(&crowd[stop].timer))
        crowd_starts[stop]--;
    bt_timer_stop(&crowd[stop].timer);
    for (int i = 0; i < 2; i++) {
        unsigned at = roll() % CROWD;
        crowd_starts[at] += bt_timer_active(&crowd[at].timer) ? 0 : 1;
        start(&crowd[at], roll() % 60);
    }
}

static void test_random_starts_and_stops(void **state)
{
    crowd_budget = 3000;
    for (unsigned i = 0; i < CROWD; i++) {
        init(&crowd[i], on_crowd);
        crowd_starts[i] = 1;
        start(&crowd[i], roll() % 100);
    }
    TURN_UNTIL(&loop, uv_backend_timeout(&loop.uv) == -1); /* until no timer is active */
    assert_true(crowd_fires > 1000);
    for (unsigned i = 0; i < CROWD; i++) {
        assert_int_equal(crowd[i].fired, crowd_starts[i]);
        assert_false(crowd[i].early);
        assert_false(bt_timer_active(&crowd[i].timer));
    }
}

static bool has_read, was_read_first;

static void on_bytes(uv_poll_t *poll, int status, int events)
{
    has_read = status == 0 && events != 0;
    uv_poll_stop(poll);
}

static void on_deadline(bt_timer_t *timer)
{
    was_read_first = has_read;
    on_probe(timer);
}

/* libuv 1.44 runs timers before it polls, so a byte that came in time was found after the deadline. */
static void test_reads_first_after_it_stood_still(void **state)
{
    struct probe p;
    uv_poll_t poll;
    int ends[2];

    has_read = false;
    init(&p, on_deadline);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(uv_poll_init(&loop.uv, &poll, ends[0]), 0);
    assert_int_equal(uv_poll_start(&poll, UV_READABLE, on_bytes), 0);
    start(&p, 16);
    assert_int_equal(write(ends[1], "x", 1), 1);
    usleep(300000);
    TURN_UNTIL(&loop, p.fired == 1);
    assert_true(was_read_first);
    uv_close((uv_handle_t *) &poll, NULL);
    turn(&loop, 1);
    close(ends[0]);
    close(ends[1]);
}

/* Its alarm is late: it has gone off once, and the loop reads. */
static void be_late(struct probe *p)
{
    init(p, on_probe);
    start(p, 8);
    usleep(200000);
    turn(&loop, 1);
    assert_int_equal(p->fired, 0);
}

static void test_starts_and_stops_while_it_reads(void **state)
{
    static struct probe late; /* the loop's end finds it */
    struct probe soon, later;

    be_late(&late);
    init(&soon, on_probe);
    init(&later, on_probe);
    bt_timer_stop(&late.timer); /* nobody is active, and the alarm goes off all the same */
    start(&later, 60);
    start(&soon, 0);
    TURN_UNTIL(&loop, later.fired == 1);
    assert_int_equal(late.fired, 0);
    assert_int_equal(soon.fired, 1);
    assert_false(soon.early || later.early);
    be_late(&late);
    bt_timer_stop(&late.timer);
    TURN_UNTIL(&loop, uv_backend_timeout(&loop.uv) == -1);
    be_late(&late); /* and the loop ends */
}

static void on_again(bt_timer_t *timer)
{
    on_probe(timer);
    start(bt_container_of(timer, struct probe, timer), 8);
}

/* Each of its alarms is late. */
static void test_fires_on_a_loop_that_is_always_slow(void **state)
{
    struct probe p;

    init(&p, on_again);
    start(&p, 8);
    for (unsigned i = 0; i < 8; i++) {
        usleep(150000);
        turn(&loop, 1);
    }
    assert_int_equal(p.fired, 4);
    bt_timer_stop(&p.timer);
}

static void test_stop_after_the_loop_has_gone(void **state)
{
    bt_loop_t other;
    struct probe p;

    assert_int_equal(bt_loop_init(&other, 1), 0);
    bt_timer_init(&other, &p.timer, on_probe);
    bt_timer_start(&p.timer, 1000);
    bt_loop_fini(&other);
    assert_false(bt_timer_active(&p.timer));
    bt_timer_stop(&p.timer);
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LOOP(test_fires_once_and_not_early),
        WITH_LOOP(test_due_time_is_within_a_tick),
        WITH_LOOP(test_alarm_is_off_when_nothing_is_active),
        WITH_LOOP(test_earlier_timer_moves_the_alarm),
        WITH_LOOP(test_stop_a_neighbour_of_the_same_slot),
        WITH_LOOP(test_free_itself),
        WITH_LOOP(test_rearm_itself),
        WITH_LOOP(test_postpone_one_that_is_about_to_fire),
        WITH_LOOP(test_far_timer_stays_when_its_slot_runs),
        WITH_LOOP(test_far_timer_fires_after_rotations),
        WITH_LOOP(test_never_does_not_overflow),
        WITH_LOOP(test_random_starts_and_stops),
        WITH_LOOP(test_reads_first_after_it_stood_still),
        WITH_LOOP(test_starts_and_stops_while_it_reads),
        WITH_LOOP(test_fires_on_a_loop_that_is_always_slow),
        WITH_LOOP(test_stop_after_the_loop_has_gone),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
