/* Work on another thread: it runs there, its end comes back to the loop, and a cancelled one ends too. */
#include "loop/offload.h"

#include "base/mem.h"
#include "util.h"

#include <pthread.h>

#define MANY 64

struct job {
    bt_offload_t work;
    pthread_t ran_on;
    unsigned runs, ends;
    uv_sem_t *wait_for; /* or NULL */
};

static bt_loop_t loop;

static int setup(void **state)
{
    return bt_loop_init(&loop, 0);
}

static int teardown(void **state)
{
    bt_loop_fini(&loop);
    return 0;
}

static void run(bt_offload_t *work)
{
    struct job *job = bt_container_of(work, struct job, work);

    if (job->wait_for != NULL)
        uv_sem_wait(job->wait_for);
    job->ran_on = pthread_self();
    job->runs++;
    bt_mem_count(BT_MEM_TEXTS, 100); /* less than what a thread keeps to itself while it runs */
}

static void on_done(bt_offload_t *work)
{
    bt_container_of(work, struct job, work)->ends++;
}

static void test_runs_elsewhere_and_ends_here(void **state)
{
    struct job job = {.runs = 0};
    const size_t before = bt_mem_bytes(BT_MEM_TEXTS);

    bt_offload_start(&job.work, &loop, run, on_done);
    assert_int_equal(job.ends, 0);
    TURN_UNTIL(&loop, job.ends == 1);
    assert_int_equal(job.runs, 1);
    assert_false(pthread_equal(job.ran_on, pthread_self()));
    assert_int_equal(bt_mem_bytes(BT_MEM_TEXTS), before + 100);
    bt_mem_count(BT_MEM_TEXTS, -100);
}

static void test_loop_turns_meanwhile(void **state)
{
    uv_sem_t gate;
    struct job slow = {.wait_for = &gate};

    uv_sem_init(&gate, 0);
    bt_offload_start(&slow.work, &loop, run, on_done);
    for (unsigned i = 0; i < 5; i++)
        turn_once(&loop);
    assert_int_equal(slow.ends, 0);
    uv_sem_post(&gate);
    TURN_UNTIL(&loop, slow.ends == 1);
    uv_sem_destroy(&gate);
    bt_mem_count(BT_MEM_TEXTS, -100);
}

/* More than there are threads, all of them held: those that have not begun never do. */
static void test_cancel(void **state)
{
    static struct job jobs[MANY];
    uv_sem_t gate;
    unsigned ran = 0;

    uv_sem_init(&gate, 0);
    for (unsigned i = 0; i < MANY; i++) {
        jobs[i] = (struct job){.wait_for = &gate};
        bt_offload_start(&jobs[i].work, &loop, run, on_done);
    }
    for (unsigned i = 0; i < MANY; i++)
        bt_offload_cancel(&jobs[i].work);
    for (unsigned i = 0; i < MANY; i++)
        uv_sem_post(&gate);
    for (unsigned i = 0; i < MANY; i++)
        TURN_UNTIL(&loop, jobs[i].ends == 1);
    for (unsigned i = 0; i < MANY; i++)
        ran += jobs[i].runs;
    assert_in_range(ran, 0, MANY / 2); /* the pool has 4 threads */
    uv_sem_destroy(&gate);
    bt_mem_count(BT_MEM_TEXTS, -100 * (int64_t) ran);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_runs_elsewhere_and_ends_here, setup, teardown),
        cmocka_unit_test_setup_teardown(test_loop_turns_meanwhile, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
    };

    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
