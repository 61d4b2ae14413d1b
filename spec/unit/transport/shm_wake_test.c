/* Sleep and wake-up: a lost one would leave both sides asleep for good. Once between processes, once between threads with API calls from a third
 * one, for ThreadSanitizer; and copies, drains and closes that race each other. */
#include "shm_pair.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/rand.h"
#include "base/sanitize.h"

#define MIB ((size_t) 1 << 20)
#define SLEEPS (BT_TSAN || BT_ASAN ? 20000u : 100000u)

/* Waits for the next note asleep, never polling: a lost wake-up ends in the deadline. */
static void sleep_until_note(rig_t *rig, const rig_link_t *link, uint32_t count)
{
    uint64_t end_ms = bt_clock_ms() + RIG_DEADLINE_MS;
    while (link->note_count < count) {
        if (rig_turn(rig) == 0 && link->note_count < count)
            rig_sleep(rig, (int) RIG_DEADLINE_MS);
        if (bt_clock_ms() >= end_ms)
            fail_msg("a wake-up was lost before note %u", count);
    }
}

static void be_lazy(void)
{
    for (volatile uint64_t n = bt_rand_below(400); n > 0; n--)
        ;
}

typedef struct side {
    rig_t *rig;
    rig_link_t *link;
    bool begins;
} side_t;

static void *play(void *arg)
{
    side_t *side = arg;
    rig_batch_t batch = {.over = 1};
    for (uint32_t i = 1; i <= SLEEPS; i++) {
        if (!side->begins)
            sleep_until_note(side->rig, side->link, i);
        be_lazy();
        while (batch.over == 0)
            if (rig_turn(side->rig) == 0)
                rig_sleep(side->rig, (int) RIG_DEADLINE_MS);
        assert_int_equal(rig_post(side->link, &batch, 1, NULL, 0, i), 0);
        if (side->begins)
            sleep_until_note(side->rig, side->link, i);
    }
    uint64_t end_ms = bt_clock_ms() + RIG_DEADLINE_MS;
    while (batch.over == 0) {
        if (rig_turn(side->rig) == 0)
            rig_sleep(side->rig, (int) RIG_DEADLINE_MS);
        if (bt_clock_ms() >= end_ms)
            fail_msg("a wake-up was lost after the last batch");
    }
    rig_turn(
        side->rig); /* the peer's last batch: whoever took it owes the wake-up until its next turn */
    return NULL;
}

static void test_no_wake_up_is_lost_between_processes(void **state)
{
    rig_t rig;
    int fds[2], status;

    rig_sockets(fds);
    pid_t child = fork();
    rig_open(&rig, &bt_kv_shm_ops);
    rig_link_t *link = rig_link(&rig, fds[child == 0], child == 0);
    close(fds[child != 0]);
    RIG_UNTIL(&rig, NULL, link->is_ready);
    side_t side = {&rig, link, child == 0};
    play(&side);
    if (child == 0) {
        RIG_UNTIL(&rig, NULL, link->said == 1);
        _exit(0);
    }
    assert_true(rig.wakes > 0);
    rig_say(link, 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    rig_close(&rig);
}

static void test_no_wake_up_is_lost_between_threads(void **state)
{
    pair_t p;
    pthread_t other;

    pair_open(&p);
    side_t a = {&p.a, p.la, true}, b = {&p.b, p.lb, false};
    assert_int_equal(pthread_create(&other, NULL, play, &b), 0);
    play(&a);
    pthread_join(other, NULL);
    assert_true(p.a.wakes > 0 && p.b.wakes > 0);
    pair_close(&p);
}

/* ---- an agent's thread that sleeps, and a thread that posts ---- */
typedef struct worker {
    rig_t *rig;
    bool is_over; /* under the rig's lock */
    int wake;     /* an eventfd that ends its sleep */
    pthread_t thread;
} worker_t;

static void *run_agent(void *arg)
{
    worker_t *w = arg;
    for (;;) {
        if (rig_turn(w->rig) == 0) /* so long that a lost wake-up meets somebody's deadline */
            rig_sleep(w->rig, 2 * (int) RIG_DEADLINE_MS);
        pthread_mutex_lock(&w->rig->lock);
        bool is_over = w->is_over;
        pthread_mutex_unlock(&w->rig->lock);
        if (is_over)
            return NULL;
    }
}

static void start_agent(worker_t *w, rig_t *rig)
{
    *w = (worker_t){.rig = rig, .wake = eventfd(0, EFD_CLOEXEC)};
    assert_int_equal(bt_kv_watch(rig, w->wake, EPOLLIN), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, run_agent, w), 0);
}

static void stop_agent(worker_t *w)
{
    uint64_t one = 1;
    pthread_mutex_lock(&w->rig->lock);
    w->is_over = true;
    pthread_mutex_unlock(&w->rig->lock);
    assert_int_equal(write(w->wake, &one, sizeof(one)), sizeof(one));
    pthread_join(w->thread, NULL);
    bt_kv_unwatch(w->rig, w->wake);
    close(w->wake);
}

static bool is_over(rig_t *rig, const rig_batch_t *batch)
{
    pthread_mutex_lock(&rig->lock);
    bool yes = batch->over > 0;
    pthread_mutex_unlock(&rig->lock);
    return yes;
}

/* Batches of random sizes from this thread; now and then a tag is drained while it is copied. */
static void post_and_drain(bool window)
{
    enum { ROUNDS = 300, BATCHES = 6 };
    pair_t p;
    uint32_t cancelled = 0, done = 0;

    bt_rand_seed(11);
    bt_shm_hooks.probe_failures = window ? -1 : 0;
    pair_open(&p);
    bt_kv_mem_t *src = rig_private(&p.a, MIB), *dst = rig_pool(&p.b, MIB);
    worker_t wa, wb;
    start_agent(&wa, &p.a);
    start_agent(&wb, &p.b);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        rig_batch_t batches[BATCHES];
        bt_kv_run_t runs[BATCHES];
        for (int i = 0; i < BATCHES; i++) {
            uint32_t bytes = 1 + (uint32_t) bt_rand_below(MIB);
            runs[i] = plain(src, 0, dst, 0, bytes);
            assert_int_equal(
                rig_post(p.la, &batches[i], round * 2 + (uint64_t) i % 2, &runs[i], 1, 1), 0);
        }
        if (round % 2 == 0) {
            uint64_t end_ms = bt_clock_ms() + RIG_DEADLINE_MS;
            while (!rig_drain(p.la, round * 2)) { /* tag of half of them */
                (void) rig_drain(p.lb, round * 2);
                sched_yield();
                assert_true(bt_clock_ms() < end_ms);
            }
            for (int i = 0; i < BATCHES; i += 2)
                assert_true(is_over(&p.a, &batches[i]));
        }
        for (int i = 0; i < BATCHES; i++) {
            uint64_t end_ms = bt_clock_ms() + RIG_DEADLINE_MS;
            while (!is_over(&p.a, &batches[i])) {
                sched_yield();
                assert_true(bt_clock_ms() < end_ms);
            }
            assert_true(batches[i].rc == 0 || (round % 2 == 0 && i % 2 == 0));
            cancelled += batches[i].rc != 0;
            done += batches[i].rc == 0;
        }
    }
    assert_true(done >= ROUNDS * BATCHES * 3 / 4);
    assert_true(cancelled > 0);
    stop_agent(&wa);
    stop_agent(&wb);
    assert_int_equal(p.lb->note_count, done);
    pair_close(&p);
}

static void test_posts_and_drains_beside_the_agents_thread(void **state)
{
    post_and_drain(false);
}

static void test_the_same_through_the_window(void **state)
{
    post_and_drain(true);
}

/* A receiver's path is closed by another thread while its agent copies: nothing is written after the close. */
static int is_copying, is_closing; /* atomic */
static void copy_late(void)
{
    struct timespec a_while = {.tv_nsec = 300 * 1000 * 1000};
    __atomic_store_n(&is_copying, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&is_closing, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    nanosleep(&a_while,
              NULL); /* the close that does not wait has its chance; one that does needs none */
}

static void test_close_waits_for_the_copy(void **state)
{
    for (int round = 0; round < 3; round++) {
        pair_t p;
        worker_t wb;
        rig_batch_t batch;
        pair_open(&p);
        bt_kv_mem_t *src = rig_private(&p.a, MIB), *dst = rig_private(&p.b, MIB);
        memset(src->p, 1, src->size);
        bt_kv_run_t run = plain(src, 0, dst, 0, (uint32_t) MIB);
        rig_hooks.in_copy = copy_late;
        __atomic_store_n(&is_copying, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&is_closing, 0, __ATOMIC_RELEASE);
        start_agent(&wb, &p.b);
        assert_int_equal(rig_post(p.la, &batch, 1, &run, 1, 1), 0);
        while (__atomic_load_n(&is_copying, __ATOMIC_ACQUIRE) == 0)
            sched_yield();
        __atomic_store_n(&is_closing, 1, __ATOMIC_RELEASE);
        rig_unlink(p.lb);
        memset(dst->p, 0x5a, dst->size);
        stop_agent(&wb);
        for (size_t i = 0; i < dst->size; i++)
            assert_int_equal(dst->p[i], 0x5a);
        assert_int_equal(p.lb->note_count, 0);
        pair_close(&p);
    }
}

/* The narrow place: a post at the very moment of arming. Both threads start together, each with a pause of its own. */
static uint32_t moment; /* atomic */
static void pause_for(uint64_t n)
{
    for (volatile uint64_t i = 0; i < n; i++)
        ;
}

static void *post_at_the_moment(void *arg)
{
    side_t *side = arg;
    rig_batch_t batch;
    for (uint32_t i = 1; i <= SLEEPS / 2; i++) {
        while (__atomic_load_n(&moment, __ATOMIC_ACQUIRE) != i)
            ;
        pause_for(bt_rand_below(60));
        assert_int_equal(rig_post(side->link, &batch, 1, NULL, 0, i), 0);
        while (batch.over == 0)
            rig_turn(side->rig);
    }
    return NULL;
}

static void test_a_post_at_the_moment_of_arming(void **state)
{
    pair_t p;
    pthread_t other;

    pair_open(&p);
    side_t a = {&p.a, p.la, true};
    assert_int_equal(pthread_create(&other, NULL, post_at_the_moment, &a), 0);
    for (uint32_t i = 1; i <= SLEEPS / 2; i++) {
        while (rig_turn(&p.b) > 0)
            ;
        __atomic_store_n(&moment, i, __ATOMIC_RELEASE);
        pause_for(bt_rand_below(60));
        sleep_until_note(&p.b, p.lb, i);
    }
    pthread_join(other, NULL);
    assert_true(p.b.wakes > 0);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_wake_up_is_lost_between_processes),
        cmocka_unit_test(test_no_wake_up_is_lost_between_threads),
        cmocka_unit_test(test_posts_and_drains_beside_the_agents_thread),
        cmocka_unit_test(test_the_same_through_the_window),
        cmocka_unit_test(test_close_waits_for_the_copy),
        cmocka_unit_test(test_a_post_at_the_moment_of_arming),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
