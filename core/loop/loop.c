/* loop.c - the event thread: its turn, its mailbox, its start and end.
 *
 *   uv's turn:   timers -> pending -> [prepare] -> sleep in epoll -> I/O, wake -> [check] -> close callbacks
 *                                         |                                           |
 *                                     flush what timers and                       flush what I/O and
 *                                     close callbacks wrote,                      mail wrote
 *                                     then call what was put off
 *
 * The mailbox is a stack that any thread pushes onto with one compare-and-swap and that the loop takes as a whole with
 * one exchange; reversing what was taken restores the order of each sender. Only the push that finds the mailbox empty
 * pays for a wake-up: until the loop has emptied it, others' mail rides along. Mail posted while a batch is being
 * delivered waits for the next turn, so that two loops writing to each other cannot starve their sockets.
 */
#include "loop/loop_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"

#include <signal.h>
#include <string.h>

#define FLUSH_ROUNDS                                                                               \
    4 /* flushes in a row before sleeping, when draining makes streams dirty again */

#define CPU_LOOK_MS 1000

static bt_mail_t *take_mail(bt_loop_t *loop)
{
    bt_mail_t *newest = atomic_exchange_explicit(&loop->mailbox, NULL, memory_order_acquire);
    bt_mail_t *oldest = NULL;

    while (newest != NULL) {
        bt_mail_t *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static bool deliver_mail(bt_loop_t *loop)
{
    bt_mail_t *envelope = take_mail(loop);
    bool any = envelope != NULL;

    while (envelope != NULL) {
        bt_mail_t *next = envelope->next; /* the callback owns msg and may free it */
        envelope->next = NULL;
        envelope->cb(loop, envelope);
        envelope = next;
    }
    return any;
}

static void on_wake(uv_async_t *wake)
{
    bt_loop_t *loop = wake->data;

    deliver_mail(loop);
    if (atomic_load_explicit(&loop->stopping, memory_order_acquire))
        uv_stop(&loop->uv);
}

void bt_loop_later(bt_loop_t *loop, bt_later_t *later)
{
    if (!bt_later_waits(later))
        bt_list_push(&loop->later, &later->link);
}

static void call_later(bt_loop_t *loop)
{
    while (!bt_list_empty(&loop->later)) {
        bt_later_t *later = bt_container_of(loop->later.next, bt_later_t, link);
        bt_list_remove(&later->link);
        later->cb(later);
    }
}

/* CPU time is a system call, so a loop reads its own once a second at most: what it has used since bounds what a stall did. */
static void look_at_cpu(bt_loop_t *loop, uint64_t now_ms)
{
    loop->cpu_ms = now_ms;
    loop->cpu_us = bt_clock_cpu_us();
}

void bt_loop_note_stall(bt_loop_t *loop, uint64_t ms, const char *what)
{
    const uint64_t before_us = loop->cpu_us;

    look_at_cpu(loop, uv_now(&loop->uv));
    bt_flight_stall(ms * 1000, loop->cpu_us - before_us, what);
}

/* libuv reads the clock as it wakes and again before it comes to prepare: what lies between is what I/O, mail and close callbacks
 * took, for no clock of ours. Timers have one (timer.c). */
static void look_for_stall(bt_loop_t *loop)
{
    const uint64_t now_ms = uv_now(&loop->uv), ms = now_ms - loop->woke_ms;

    if (loop->woke_ms != 0 && ms >= BT_LOOP_STALL_MS)
        bt_loop_note_stall(loop, ms, "sockets, mail and what they led to");
    else if (now_ms - loop->cpu_ms >= CPU_LOOK_MS)
        look_at_cpu(loop, now_ms);
}

static void on_prepare(uv_prepare_t *prepare)
{
    bt_loop_t *loop = prepare->data;

    look_for_stall(loop);
    for (int i = 0; i < FLUSH_ROUNDS && !bt_list_empty(&loop->dirty); i++)
        bt_stream_flush_dirty(loop);
    call_later(loop);
    if (!bt_list_empty(&loop->dirty))
        uv_async_send(&loop->wake); /* let I/O have a look, but do not sleep on unsent bytes */
    bt_clock_begin_event();         /* whatever it is that ends the sleep */
}

static void on_check(uv_check_t *check)
{
    bt_loop_t *loop = check->data;

    loop->woke_ms = uv_now(&loop->uv);
    bt_stream_flush_dirty(loop);
    bt_clock_end_event();
}

/* libuv writes with writev(2), which has no MSG_NOSIGNAL: a peer that went away would end the process. */
static void ignore_sigpipe(void)
{
    struct sigaction now;

    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
}

static int start_handles(bt_loop_t *loop)
{
    int rc = uv_async_init(&loop->uv, &loop->wake, on_wake);

    if (rc < 0)
        return rc;
    loop->wake.data = loop;
    /* These four cannot fail: they only link themselves into the loop. */
    uv_prepare_init(&loop->uv, &loop->prepare);
    uv_check_init(&loop->uv, &loop->check);
    loop->prepare.data = loop->check.data = loop;
    uv_prepare_start(&loop->prepare, on_prepare);
    uv_check_start(&loop->check, on_check);
    return 0;
}

static void close_handles(bt_loop_t *loop)
{
    uv_close((uv_handle_t *) &loop->wake, NULL);
    uv_close((uv_handle_t *) &loop->prepare, NULL);
    uv_close((uv_handle_t *) &loop->check, NULL);
}

int bt_loop_init(bt_loop_t *loop, unsigned index)
{
    memset(loop, 0, sizeof(*loop));
    loop->index = index;
    bt_list_init(&loop->dirty);
    bt_list_init(&loop->later);
    bt_stream_init_shared(loop);
    atomic_init(&loop->mailbox, NULL);
    atomic_init(&loop->stopping, false);
    atomic_init(&loop->connections, 0);
    ignore_sigpipe();
    int rc = uv_loop_init(&loop->uv);
    if (rc < 0)
        return rc;
    loop->uv.data = loop;
    rc = start_handles(loop);
    if (rc < 0)
        goto err_loop;
    rc = bt_wheel_new(loop);
    if (rc < 0)
        goto err_handles;
    return 0;

err_handles:
    close_handles(loop);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
err_loop:
    uv_loop_close(&loop->uv);
    return rc;
}

void bt_loop_run(bt_loop_t *loop)
{
    /* Stopping is taken back here and not at the start, so that a stop that came before run() counts. */
    while (!atomic_exchange_explicit(&loop->stopping, false, memory_order_acquire))
        uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void bt_loop_stop(bt_loop_t *loop)
{
    atomic_store_explicit(&loop->stopping, true, memory_order_release);
    uv_async_send(&loop->wake);
}

void bt_loop_post(bt_loop_t *loop, bt_mail_t *envelope, bt_mail_cb cb)
{
    bt_mail_t *head = atomic_load_explicit(&loop->mailbox, memory_order_relaxed);

    envelope->cb = cb;
    do {
        envelope->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&loop->mailbox, &head, envelope,
                                                    memory_order_release, memory_order_relaxed));
    if (head == NULL)
        uv_async_send(&loop->wake);
}

static void count_open(uv_handle_t *handle, void *arg)
{
    if (!uv_is_closing(handle))
        ++*(unsigned *) arg;
}

void bt_loop_fini(bt_loop_t *loop)
{
    unsigned open = 0;

    while (deliver_mail(loop))
        continue;
    bt_wheel_free(loop);
    close_handles(loop);
    uv_walk(&loop->uv, count_open, &open);
    /* A handle somebody forgot would keep a waiting run here for ever. */
    uv_run(&loop->uv, BT_SOFT(open != 0) ? UV_RUN_NOWAIT : UV_RUN_DEFAULT);
    while (deliver_mail(loop))
        continue;
    call_later(loop);
    bt_stream_fini_shared(loop);
    (void) BT_SOFT(uv_loop_close(&loop->uv) != 0);
}
