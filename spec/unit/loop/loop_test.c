/* The event thread: mailbox order under contention, stopping, the end with mail left over, sleeping when idle. */
#include "loop/loop.h"

#include "base/flight.h"
#include "util.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define PRODUCERS 4
#define MAILS 100000

struct mail {
    bt_mail_t envelope;
    unsigned from, number;
};

struct post_office {
    bt_loop_t loop;
    unsigned next[PRODUCERS]; /* number expected of each sender */
    unsigned out_of_order, received;
};

struct producer {
    pthread_t thread;
    struct post_office *office;
    struct mail *mails;
    unsigned index;
};

static void on_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct post_office *office = bt_container_of(loop, struct post_office, loop);
    struct mail *mail = bt_container_of(envelope, struct mail, envelope);

    if (mail->number != office->next[mail->from])
        office->out_of_order++;
    office->next[mail->from] = mail->number + 1;
    if (++office->received == PRODUCERS * MAILS)
        bt_loop_stop(loop);
}

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (unsigned i = 0; i < MAILS; i++) {
        p->mails[i].from = p->index;
        p->mails[i].number = i;
        bt_loop_post(&p->office->loop, &p->mails[i].envelope, on_mail);
    }
    return NULL;
}

static void test_mailbox_keeps_order_and_loses_nothing(void **state)
{
    struct post_office office = {.received = 0};
    struct producer producers[PRODUCERS];

    assert_int_equal(bt_loop_init(&office.loop, 0), 0);
    for (unsigned i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.office = &office, .index = i};
        producers[i].mails = calloc(MAILS, sizeof(struct mail));
        assert_non_null(producers[i].mails);
        assert_int_equal(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
    }
    bt_loop_run(&office.loop); /* ends only when the last mail is in */
    assert_int_equal(office.out_of_order, 0);
    for (unsigned i = 0; i < PRODUCERS; i++) {
        pthread_join(producers[i].thread, NULL);
        assert_int_equal(office.next[i], MAILS);
        free(producers[i].mails);
    }
    bt_loop_fini(&office.loop);
}

static unsigned relayed;
static bt_mail_t relay_mail;

static void on_last(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) loop;
    (void) envelope;
    relayed += 10;
}

static void on_first(bt_loop_t *loop, bt_mail_t *envelope)
{
    relayed++;
    bt_loop_post(loop, envelope, on_last);
}

static void test_mail_posted_by_mail_comes_next_turn(void **state)
{
    bt_loop_t loop;

    relayed = 0;
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_loop_post(&loop, &relay_mail, on_first);
    uv_run(&loop.uv, UV_RUN_ONCE);
    assert_int_equal(relayed, 1);
    uv_run(&loop.uv, UV_RUN_ONCE);
    assert_int_equal(relayed, 11);
    bt_loop_fini(&loop);
}

static void test_fini_delivers_what_is_left(void **state)
{
    bt_loop_t loop;

    relayed = 0;
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_loop_post(&loop, &relay_mail, on_first);
    bt_loop_fini(&loop);
    assert_int_equal(relayed, 11);
}

static void test_stop_before_run_counts(void **state)
{
    bt_loop_t loop;

    assert_int_equal(bt_loop_init(&loop, 3), 0);
    assert_int_equal(loop.index, 3);
    bt_loop_stop(&loop);
    bt_loop_run(&loop);
    bt_loop_fini(&loop);
}

static void *run_loop(void *arg)
{
    bt_loop_run(arg);
    return NULL;
}

static void test_stop_from_another_thread(void **state)
{
    bt_loop_t loop;
    pthread_t thread;

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(pthread_create(&thread, NULL, run_loop, &loop), 0);
        bt_loop_stop(&loop);
        pthread_join(thread, NULL);
    }
    bt_loop_fini(&loop);
}

static void test_idle_loop_sleeps_without_end(void **state)
{
    bt_loop_t loop;

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    turn(&loop, 3);
    assert_int_equal(uv_backend_timeout(&loop.uv), -1);
    bt_loop_fini(&loop);
}

static void test_sigpipe_does_not_kill(void **state)
{
    bt_loop_t loop;
    int fds[2];

    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    assert_int_equal(write(fds[1], "x", 1), -1);
    assert_int_equal(errno, EPIPE);
    close(fds[1]);
    bt_loop_fini(&loop);
}

/* ---- later ---- */

struct put_off {
    bt_later_t later;
    unsigned calls;
};

static void on_later(bt_later_t *later)
{
    bt_container_of(later, struct put_off, later)->calls++;
}

static struct put_off *by_mail; /* what on_put_off_mail puts off */

static void on_put_off_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) envelope;
    bt_loop_later(loop, &by_mail->later);
    bt_loop_later(loop, &by_mail->later); /* once is enough */
    assert_int_equal(by_mail->calls, 0);  /* not from inside */
}

static void test_later_comes_once_and_before_the_loop_sleeps(void **state)
{
    struct put_off put_off = {.calls = 0};
    bt_loop_t loop;
    bt_mail_t mail;

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_later_init(&put_off.later, on_later);
    by_mail = &put_off;
    assert_false(bt_later_waits(&put_off.later));
    bt_loop_post(&loop, &mail, on_put_off_mail);
    uv_run(&loop.uv, UV_RUN_ONCE);
    assert_true(bt_later_waits(&put_off.later));
    uv_run(&loop.uv, UV_RUN_NOWAIT);
    assert_int_equal(put_off.calls, 1);
    assert_false(bt_later_waits(&put_off.later));
    uv_run(&loop.uv, UV_RUN_NOWAIT);
    assert_int_equal(put_off.calls, 1);
    bt_loop_fini(&loop);
}

static void test_fini_calls_what_was_put_off(void **state)
{
    struct put_off put_off = {.calls = 0};
    bt_loop_t loop;

    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_later_init(&put_off.later, on_later);
    bt_loop_later(&loop, &put_off.later);
    bt_loop_fini(&loop);
    assert_int_equal(put_off.calls, 1);
}

/* ---- stalls ---- */

static void stall(void)
{
    const struct timespec t = {.tv_nsec = 40 * 1000000};

    nanosleep(&t, NULL);
}

static void on_stalling_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    (void) envelope;
    (void) loop;
    stall();
}

static void on_stalling_timer(bt_timer_t *timer)
{
    stall();
    bt_loop_stop(timer->loop);
}

static bool has_stall(const char *what, bt_flight_event_t *event_p)
{
    for (uint64_t n = 1; n <= bt_flight_last(0); n++)
        if (bt_flight_read(0, n, event_p) && event_p->kind == BT_FLIGHT_STALL &&
            strncmp(event_p->detail, what, strlen(what)) == 0)
            return true;
    return false;
}

static void test_stalls_are_noted(void **state)
{
    bt_flight_event_t event;
    bt_mail_t envelope;
    bt_timer_t timer;
    bt_loop_t loop;

    assert_int_equal(bt_flight_open(1), 0);
    bt_flight_bind(0);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    bt_timer_init(&loop, &timer, on_stalling_timer);
    bt_timer_start(&timer, 100);
    bt_loop_post(&loop, &envelope, on_stalling_mail);
    bt_loop_run(&loop);
    assert_true(has_stall("sockets, mail", &event));
    assert_true(event.us >= 20000);
    assert_true(event.cpu_us <= event.us); /* it slept, but how much else ran is not ours to say */
    assert_true(has_stall("timers", &event));
    assert_true(event.us >= 20000);
    bt_timer_stop(&timer);
    bt_loop_fini(&loop);
    bt_flight_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mailbox_keeps_order_and_loses_nothing),
        cmocka_unit_test(test_mail_posted_by_mail_comes_next_turn),
        cmocka_unit_test(test_fini_delivers_what_is_left),
        cmocka_unit_test(test_stop_before_run_counts),
        cmocka_unit_test(test_stop_from_another_thread),
        cmocka_unit_test(test_idle_loop_sleeps_without_end),
        cmocka_unit_test(test_sigpipe_does_not_kill),
        cmocka_unit_test(test_later_comes_once_and_before_the_loop_sleeps),
        cmocka_unit_test(test_fini_calls_what_was_put_off),
        cmocka_unit_test(test_stalls_are_noted),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
