/* The line before a pool: places, order over loops, and whoever goes before its turn. Requests are
 * no more than what the line sees of them. */
#include "dispatch/queue/queue.h"

#include "base/err.h"
#include "base/pages.h"
#include "dispatch/plan/candidates.h"
#include "loop/util.h"

#define SIZE 3

typedef struct fake {
    bt_request_t r;
    bt_worker_pool_t pool;
    bt_timer_t timer;
    unsigned went_on, blocks; /* blocks: times that it finds its workers full */
    bool is_free, is_refused; /* refused: it finds no worker, and may not wait for one */
} fake_t;

static bt_loop_t loops[2];
static bt_dispatcher_t dispatchers[2];
static bt_dispatch_shared_t shared;

/* One worker, with room, so that a request that is blocked lets others pass where its pool has a limit; without one it does not. */
static bt_worker_t worker;
static bt_worker_t *workers[] = {&worker};
static bt_workers_t snapshot = {.epoch = 1};
static bt_worker_set_t pool_alone; /* of pools that are made */

static fake_t *fake_of(bt_request_t *r)
{
    return bt_container_of(r, fake_t, r);
}

static void go_on(bt_request_t *r, enum bt_progress progress)
{
    assert_int_equal(progress, BT_PROGRESS_NEXT);
    fake_of(r)->went_on++;
}

static void on_reap(bt_later_t *later)
{
    fake_of(bt_container_of(later, bt_request_t, reap))->is_free = true;
}

static void make(fake_t *f, unsigned loop, const char *pool, const struct bt_request_ops *ops)
{
    *f = (fake_t){.pool.spec.name = (char *) (uintptr_t) pool, .pool.alone = pool_alone};
    f->r.d = &dispatchers[loop];
    f->r.ops = ops;
    f->r.pool = &f->pool;
    f->r.workers = &snapshot;
    bt_arena_init(&f->r.arena);
    bt_later_init(&f->r.reap, on_reap);
}

static const struct bt_request_ops noting = {.go_on = go_on};

static enum bt_progress enter(fake_t *f, unsigned loop, const char *pool)
{
    make(f, loop, pool, &noting);
    return bt_queue_enter(&f->r);
}

/* As request.c does it. */
static void end(fake_t *f)
{
    f->r.finished = true;
    bt_queue_leave(&f->r);
    f->is_free = f->r.holds == 0;
}

static void turn_both(void)
{
    turn(&loops[0], 3);
    turn(&loops[1], 3);
}

static unsigned running_now, waiting_now;

static void add_line(void *user, const bt_queue_facts_t *facts)
{
    (void) user;
    running_now += facts->running;
    waiting_now += facts->waiting.count;
}

static void is_now(unsigned running, unsigned waiting)
{
    running_now = waiting_now = 0;
    bt_queues_each(shared.queues, add_line, NULL);
    assert_int_equal(running_now, running);
    assert_int_equal(waiting_now, waiting);
}

static void make_candidates(unsigned loop)
{
    struct bt_candidates *c = bt_candidates_new(1);

    c->epoch = snapshot.epoch;
    c->changes = bt_workers_changes();
    c->recheck_at_ms = UINT64_MAX;
    c->sets[BT_LIST_HYBRID] = c->sets[BT_LIST_SINGLE] = (bt_worker_set_t){workers, 1};
    dispatchers[loop].candidates = c;
    dispatchers[loop].workers = &snapshot;
    dispatchers[loop].pool_count = 1;
}

static void drop_candidates(unsigned loop)
{
    for (int list = 0; list < BT_LIST_COUNT; list++)
        if (dispatchers[loop].candidates->sets[list].items == workers)
            dispatchers[loop].candidates->sets[list].items = NULL;
    bt_candidates_free(dispatchers[loop].candidates, 1);
    dispatchers[loop].candidates = NULL;
    dispatchers[loop].workers = NULL;
}

/* On both loops. */
static void set_usable(bool is_usable)
{
    for (unsigned i = 0; i < 2; i++)
        for (int list = BT_LIST_HYBRID; list <= BT_LIST_SINGLE; list++)
            dispatchers[i].candidates->sets[list].count = is_usable;
}

static void start(unsigned limit, unsigned size)
{
    shared.config.queue_timeout_ms = 1000000000; /* no slow machine predicts such a wait */
    shared.config.max_concurrent = limit;
    shared.config.queue_size = size;
    shared.queues = bt_queues_new(&shared.config);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(bt_loop_init(&loops[i], i), 0);
        dispatchers[i].loop = &loops[i];
        dispatchers[i].shared = &shared;
        make_candidates(i);
    }
}

static int setup(void **state)
{
    start(1, SIZE);
    return 0;
}

static int teardown(void **state)
{
    is_now(0, 0);
    bt_queues_free(shared.queues);
    shared.queues = NULL;
    for (unsigned i = 0; i < 2; i++) {
        drop_candidates(i);
        bt_loop_fini(&loops[i]);
    }
    bt_pages_thread_fini();
    return 0;
}

static void drop(fake_t *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_true(all[i].is_free);
        bt_arena_fini(&all[i].r.arena);
    }
}

static void without_a_queue_nobody_waits(void **state)
{
    struct bt_queues *q = shared.queues;
    fake_t f;
    shared.queues = NULL;
    assert_int_equal(enter(&f, 0, "a"), BT_PROGRESS_NEXT);
    assert_null(f.r.ticket);
    end(&f);
    shared.queues = q;
    drop(&f, 1);
}

static void first_come_first_served_over_loops(void **state)
{
    fake_t f[4];
    assert_int_equal(enter(&f[0], 0, "a"), BT_PROGRESS_NEXT);
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(enter(&f[i], i % 2, "a"), BT_PROGRESS_WAITS);
    is_now(1, 3);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(f[i].went_on, 0);
        end(&f[i - 1]);
        turn_both();
        assert_int_equal(f[i].went_on, 1);
        assert_true(f[i].r.record.queue_us > 0);
        is_now(1, 3 - i);
    }
    end(&f[3]);
    assert_int_equal(atomic_load(&dispatchers[0].stats.queue_wait.count), 1);
    assert_int_equal(atomic_load(&dispatchers[1].stats.queue_wait.count), 2);
    drop(f, 4);
}

static void each_pool_has_a_line(void **state)
{
    fake_t f[3];
    assert_int_equal(enter(&f[0], 0, "a"), BT_PROGRESS_NEXT);
    assert_int_equal(enter(&f[1], 0, "b"), BT_PROGRESS_NEXT);
    assert_int_equal(enter(&f[2], 1, "b"), BT_PROGRESS_WAITS);
    end(&f[0]);
    turn_both();
    assert_int_equal(f[2].went_on, 0);
    end(&f[1]);
    turn_both();
    assert_int_equal(f[2].went_on, 1);
    end(&f[2]);
    drop(f, 3);
}

static void who_leaves_the_line_is_passed_over(void **state)
{
    fake_t f[3];
    enter(&f[0], 0, "a");
    enter(&f[1], 1, "a");
    enter(&f[2], 0, "a");
    end(&f[1]);
    is_now(1, 1);
    end(&f[0]);
    turn_both();
    assert_int_equal(f[1].went_on, 0);
    assert_int_equal(f[2].went_on, 1);
    end(&f[2]);
    drop(f, 3);
}

/* Its client goes while the mail is on its way: the place goes to the next, on another loop. */
static void who_is_called_and_gone_hands_on(void **state)
{
    fake_t f[3];
    enter(&f[0], 0, "a");
    enter(&f[1], 1, "a");
    enter(&f[2], 0, "a");
    end(&f[0]);
    end(&f[1]);
    assert_false(f[1].is_free); /* the mail is in its memory */
    is_now(1, 1);
    turn(&loops[1], 3);
    assert_true(f[1].is_free);
    assert_int_equal(f[1].went_on, 0);
    is_now(1, 0);
    turn(&loops[0], 3);
    assert_int_equal(f[2].went_on, 1);
    end(&f[2]);
    drop(f, 3);
}

/* ---- workers that are gone, or full ---- */

/* As request.c does it. */
static void plan(bt_request_t *r, enum bt_progress progress)
{
    fake_t *f = fake_of(r);

    (void) progress;
    f->went_on++;
    if (f->blocks != 0) {
        f->blocks--;
        assert_true(bt_queue_block(r, BT_E_AGAIN));
    } else if (dispatchers[0].candidates->sets[BT_LIST_SINGLE].count == 0) {
        f->is_refused = !bt_queue_block(r, BT_E_NO_WORKER);
    }
}

static const struct bt_request_ops planning = {.go_on = plan};

static enum bt_progress come(fake_t *f, unsigned loop, unsigned engine_request_limit,
                             unsigned blocks)
{
    make(f, loop, "a", &planning);
    f->pool.spec.engine_request_limit = engine_request_limit;
    f->blocks = blocks;
    const enum bt_progress progress = bt_queue_enter(&f->r);
    if (progress == BT_PROGRESS_NEXT)
        plan(&f->r, progress);
    return progress;
}

static void outlives_its_workers(unsigned engine_request_limit)
{
    fake_t f[4];

    come(&f[0], 0, engine_request_limit, 0);
    assert_int_equal(come(&f[1], 0, engine_request_limit, 0), BT_PROGRESS_WAITS);
    assert_int_equal(come(&f[2], 1, engine_request_limit, 0), BT_PROGRESS_WAITS);
    set_usable(false);
    end(&f[0]);
    turn_both();
    assert_int_equal(come(&f[3], 0, engine_request_limit, 0), BT_PROGRESS_NEXT);
    assert_true(f[3].is_refused);
    end(&f[3]);
    assert_int_equal(f[1].went_on, 1); /* the place is its own, and it keeps it */
    assert_false(f[1].is_refused);
    assert_int_equal(f[2].went_on, 0);
    is_now(1, 1);
    set_usable(true);
    while (f[1].went_on < 2)
        turn_both();
    assert_int_equal(f[2].went_on, 0);
    end(&f[1]);
    turn_both();
    assert_int_equal(f[2].went_on, 1);
    end(&f[2]);
    drop(f, 4);
}

static void a_line_outlives_its_workers(void **state)
{
    outlives_its_workers(0);
    outlives_its_workers(1);
}

/* No worker is usable, but one is being tried by the request that its breaker has let through: others wait for what comes of it. */
static void others_wait_for_a_probe(void **state)
{
    fake_t f[4];

    come(&f[0], 0, 0, 0);            /* the probe */
    for (unsigned i = 0; i < 2; i++) /* from here on they are those of the pool */
        memset(dispatchers[i].candidates->sets, 0, sizeof dispatchers[i].candidates->sets);
    pool_alone = (bt_worker_set_t){workers, 1};
    atomic_store(&worker.health, BT_HEALTH_UP);
    atomic_store(&worker.breaker.state, BT_BREAKER_HALF_OPEN);
    atomic_store(&worker.breaker.probing, true);
    atomic_store(&worker.breaker.open_until_ms, UINT64_MAX);
    bt_workers_changed();
    end(&f[0]); /* its place is free, and the outcome not known yet */
    assert_int_equal(come(&f[1], 0, 0, 0), BT_PROGRESS_NEXT);
    assert_false(f[1].is_refused);
    assert_int_equal(come(&f[2], 1, 0, 0), BT_PROGRESS_WAITS);
    is_now(1, 1);
    atomic_store(&worker.breaker.state, BT_BREAKER_CLOSED);
    atomic_store(&worker.breaker.probing, false);
    bt_workers_changed();
    while (f[1].went_on < 2)
        turn_both();
    assert_false(f[1].is_refused);
    end(&f[1]);
    turn_both();
    assert_int_equal(f[2].went_on, 1);
    end(&f[2]);
    /* Nobody waits for one that is open and has no probe. */
    atomic_store(&worker.breaker.state, BT_BREAKER_OPEN);
    bt_workers_changed();
    come(&f[3], 0, 0, 0);
    assert_true(f[3].is_refused);
    end(&f[3]);
    atomic_store(&worker.breaker.state, BT_BREAKER_CLOSED);
    pool_alone = (bt_worker_set_t){NULL, 0};
    drop(f, 4);
}

static void who_keeps_its_place_for_workers_may_leave(void **state)
{
    fake_t f[3];
    for (unsigned i = 0; i < 3; i++)
        come(&f[i], i % 2, 1, 0);
    set_usable(false);
    for (unsigned i = 0; i < 3; i++) {
        end(&f[i]);
        turn_both();
        if (i < 2)
            assert_int_equal(f[i + 1].went_on, 1);
        is_now(i < 2, i < 1);
    }
    drop(f, 3);
}

/* On both loops: the fleet after a reload. Workers that are gone are no candidates. */
static void reload(bt_workers_t *now)
{
    set_usable(false);
    for (unsigned i = 0; i < 2; i++)
        dispatchers[i].workers = now;
}

/* Its error is due at once: nobody of that pool will come back, and its place in the snapshot is another pool's now. */
static void nobody_waits_for_a_pool_that_is_gone(void **state)
{
    bt_workers_t without = {.epoch = snapshot.epoch + 1};
    fake_t f[3];
    for (unsigned i = 0; i < 3; i++)
        come(&f[i], i % 2, 1, 0);
    reload(&without);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f[i].is_refused, i > 0);
        end(&f[i]);
        turn_both();
    }
    for (unsigned i = 0; i < 2; i++) /* none of its workers are left for the next request */
        assert_int_equal(dispatchers[i].candidates[0].epoch, snapshot.epoch);
    drop(f, 3);
}

/* Two that keep their places for workers, as their pool goes: they look again, with what is there now. */
static void ends_to_wait(bt_workers_t *now, bool is_served)
{
    fake_t f[3];

    for (unsigned i = 0; i < 3; i++)
        come(&f[i], i % 2, 1, 0);
    set_usable(false);
    end(&f[0]);
    turn_both();
    assert_false(f[1].is_refused);
    is_now(1, 1);
    reload(now);
    set_usable(is_served);
    while (f[1].went_on < 2)
        turn_both();
    assert_int_equal(f[1].is_refused, !is_served);
    end(&f[1]);
    turn_both();
    assert_int_equal(f[2].went_on, 1);
    assert_int_equal(f[2].is_refused, !is_served);
    end(&f[2]);
    drop(f, 3);
    reload(&snapshot);
    set_usable(true);
}

static void who_waits_for_workers_as_their_pool_goes_looks_again(void **state)
{
    bt_worker_pool_t other = {.spec.name = (char *) (uintptr_t) "b"};
    bt_workers_t without = {.epoch = snapshot.epoch}, moved = without;
    moved.pools = &other;
    moved.pool_count = 1;
    atomic_store(&snapshot.refs, 1000); /* what requests leave is never freed */
    atomic_store(&moved.refs, 1000);
    ends_to_wait(&without, false);
    ends_to_wait(&moved, true);
}

/* Whoever finds one leaves it to the next, until somebody takes it. */
static void one_room_is_for_one(void **state)
{
    fake_t f[4];
    bt_worker_t other = {.id = 1};
    bt_queues_free(shared.queues);
    shared.config.max_concurrent = 4;
    shared.queues = bt_queues_new(&shared.config);
    for (unsigned i = 0; i < 4; i++)
        come(&f[i], i % 2, 4, i < 2 ? 2 : i == 2);
    f[0].r.pinned = &other;
    is_now(1, 0); /* three have given their places up */
    bt_queue_note_room(&f[3].r, &worker);
    turn_both();
    turn_both();
    assert_int_equal(f[0].went_on, 1); /* it cannot use this worker */
    assert_int_equal(f[1].went_on, 2); /* it can, and does not */
    assert_int_equal(f[2].went_on, 2);
    is_now(2, 0);
    for (unsigned i = 0; i < 2; i++) {
        bt_queue_note_room(&f[3].r, i == 0 ? &worker : &other);
        turn_both();
        turn_both();
        assert_int_equal(f[0].went_on, 1 + i);
        assert_int_equal(f[1].went_on, 3);
    }
    is_now(3, 0);
    for (unsigned i = 0; i < 4; i++)
        end(&f[i]);
    turn_both();
    drop(f, 4);
}

/* It went on without a place, as nobody was usable, and found a worker: media or token ids were waited for meanwhile. */
static void who_has_no_place_leaves_room_too(void **state)
{
    fake_t f[2];
    set_usable(false);
    assert_int_equal(enter(&f[0], 0, "a"), BT_PROGRESS_NEXT);
    set_usable(true);
    come(&f[1], 1, 1, 1);
    bt_queue_note_room(&f[0].r, &worker);
    turn_both();
    assert_int_equal(f[1].went_on, 2);
    end(&f[0]);
    end(&f[1]);
    drop(f, 2);
}

/* ---- two threads ---- */

#define EACH 2000
#define LIMIT 3

static fake_t crowd[2][EACH];
static bt_timer_t room_timers[2];
static _Atomic unsigned places, most, ended;

static void quit(fake_t *f)
{
    if (f->went_on != 0)
        atomic_fetch_sub(&places, 1);
    bt_queue_note_room(&f->r, &worker);
    end(f);
    if (atomic_fetch_add(&ended, 1) + 1 == 2 * EACH)
        for (unsigned i = 0; i < 2; i++)
            bt_loop_stop(&loops[i]);
}

static void on_quit(bt_timer_t *timer)
{
    fake_t *f = bt_container_of(timer, fake_t, timer);

    if (!f->r.finished)
        quit(f);
}

static void serve(bt_request_t *r, enum bt_progress progress)
{
    fake_t *f = fake_of(r);

    (void) progress;
    if (f->blocks != 0) {
        f->blocks--;
        assert_true(bt_queue_block(r, BT_E_AGAIN));
        return;
    }
    const unsigned now = atomic_fetch_add(&places, 1) + 1;
    f->went_on = 1;
    if (now > atomic_load(&most))
        atomic_store(&most, now);
    bt_timer_start(&f->timer, 0);
}

static const struct bt_request_ops serving = {.go_on = serve};

/* In real life a leg of others ends. */
static void on_room(bt_timer_t *timer)
{
    bt_queue_note_room(&crowd[timer == &room_timers[1]][EACH - 1].r, &worker);
    bt_timer_start(timer, 1);
}

/* Each fifth goes when it has waited a while, wherever it is then. */
static void enter_all(unsigned loop)
{
    for (unsigned i = 0; i < EACH; i++) {
        fake_t *f = &crowd[loop][i];
        make(f, loop, "a", &serving);
        bt_timer_init(&loops[loop], &f->timer, on_quit);
        f->blocks = i % 7 < 3 ? i % 7 : 0;
        f->pool.spec.engine_request_limit = i % 2 == 0 ? LIMIT : 0;
        if (i % 5 == 0)
            bt_timer_start(&f->timer, 1 + i % 50);
        if (bt_queue_enter(&f->r) == BT_PROGRESS_NEXT)
            serve(&f->r, BT_PROGRESS_NEXT);
    }
}

static void run(void *arg)
{
    bt_loop_t *loop = arg;

    enter_all(loop->index);
    bt_timer_init(loop, &room_timers[loop->index], on_room);
    bt_timer_start(&room_timers[loop->index], 1);
    bt_loop_run(loop);
    bt_timer_stop(&room_timers[loop->index]);
    bt_pages_thread_fini();
}

static void nobody_is_left_waiting(void **state)
{
    uv_thread_t threads[2];
    start(LIMIT, 2 * EACH);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(uv_thread_create(&threads[i], run, &loops[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        uv_thread_join(&threads[i]);
    assert_int_equal(atomic_load(&ended), 2 * EACH);
    assert_true(atomic_load(&most) <= LIMIT);
    turn_both();
    for (unsigned i = 0; i < 2; i++)
        drop(crowd[i], EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_a_queue_nobody_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(first_come_first_served_over_loops, setup, teardown),
        cmocka_unit_test_setup_teardown(each_pool_has_a_line, setup, teardown),
        cmocka_unit_test_setup_teardown(who_leaves_the_line_is_passed_over, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_called_and_gone_hands_on, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_outlives_its_workers, setup, teardown),
        cmocka_unit_test_setup_teardown(others_wait_for_a_probe, setup, teardown),
        cmocka_unit_test_setup_teardown(who_keeps_its_place_for_workers_may_leave, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_waits_for_a_pool_that_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(who_waits_for_workers_as_their_pool_goes_looks_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_room_is_for_one, setup, teardown),
        cmocka_unit_test_setup_teardown(who_has_no_place_leaves_room_too, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_is_left_waiting, NULL, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
