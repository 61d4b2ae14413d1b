/* loop.h - one event thread: a uv loop, its mailbox, its timer wheel, its end-of-turn flush.
 *
 * Owner: the thread that runs it; only bt_loop_post and the atomics may be touched by others.
 * Life:  init -> run -> (bt_loop_stop from anywhere) -> run returns -> fini.
 * Flow:  a turn = timers, I/O callbacks, then every stream that was written to is flushed once (so what one turn
 *        produces for one socket leaves in one system call), then sleep.
 * Cost:  post is lock-free (MPSC push) plus at most one wake-up write per turn; idle costs no CPU.
 */
#ifndef BT_LOOP_LOOP_H
#define BT_LOOP_LOOP_H

#include "base/clock.h"
#include "base/list.h"
#include "base/slab.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

typedef struct bt_loop bt_loop_t;
typedef struct bt_mail bt_mail_t;
typedef struct bt_timer bt_timer_t;

/* Mail to another loop; embedded in a larger struct which the receiver then owns. */
typedef void (*bt_mail_cb)(bt_loop_t *loop, bt_mail_t *envelope);
struct bt_mail {
    struct bt_mail *next; /* mailbox link */
    bt_mail_cb cb;        /* runs on the receiving loop, in order per sender */
};

/* A call put off to the end of the turn; embedded in a larger struct. */
typedef struct bt_later bt_later_t;
typedef void (*bt_later_cb)(bt_later_t *later);
struct bt_later {
    bt_list_t link; /* in loop->later while it waits */
    bt_later_cb cb;
};

struct bt_wheel; /* private: loop/timer.c */

struct bt_loop {
    uv_loop_t uv;
    unsigned index;               /* 0 .. n-1; the control loop has BT_LOOP_CONTROL */
    void *user;                   /* the room that dispatch hangs on a loop */
    _Atomic(bt_mail_t *) mailbox; /* newest first */
    uv_async_t wake;
    uv_prepare_t prepare;    /* flush point before sleeping */
    uv_check_t check;        /* flush point right after I/O */
    bt_list_t dirty;         /* streams with bytes to flush */
    struct bt_buf *read_buf; /* what streams read into, one after the other; NULL = none yet */
    struct bt_buf *copy_buf; /* and copy into */
    unsigned reads_held, bufs_held; /* since the last flush */
    struct bt_queued *spare_slices; /* for what streams queue */
    unsigned spare_slice_count;
    bt_slab_t reqs;  /* of uv, for streams that connect or wait for room */
    bt_list_t later; /* calls that wait for the turn's end */
    struct bt_wheel *wheel;
    uint64_t woke_ms;        /* uv's clock when the turn began; 0 = the first has not */
    uint64_t cpu_ms, cpu_us; /* when its CPU time was read last, and what it was */
    atomic_bool stopping;
    _Atomic unsigned connections; /* client connections held now; read by other loops to balance */
};

#define BT_LOOP_CONTROL 0xffffU

int bt_loop_init(bt_loop_t *loop, unsigned index);
void bt_loop_run(bt_loop_t *loop);
/* From any thread: run() returns after the current turn. */
void bt_loop_stop(bt_loop_t *loop);
/* Delivers mail still in the mailbox, closes its own handles, frees the wheel. Streams must be closed before. */
void bt_loop_fini(bt_loop_t *loop);
/* From any thread. Mail from one sender arrives in order. */
void bt_loop_post(bt_loop_t *loop, bt_mail_t *envelope, bt_mail_cb cb);
/* Calls cb once before the loop sleeps next: no callback of the turn is on the stack any more and what was written has
 * been flushed. For memory that something may still look at until then. cb may free the struct. Init before the first. */
static inline void bt_later_init(bt_later_t *later, bt_later_cb cb)
{
    bt_list_init(&later->link);
    later->cb = cb;
}
static inline bool bt_later_waits(const bt_later_t *later)
{
    return !bt_list_empty(&later->link);
}
void bt_loop_later(bt_loop_t *loop, bt_later_t *later); /* nothing when it waits already */

/* timers (timer.c): a hashed wheel of 8 ms ticks driven by one uv timer that sleeps when nothing is due.
 * start/stop are O(1) and synchronous: after bt_timer_stop the callback will not run, so the struct may be freed. */
typedef void (*bt_timer_cb)(bt_timer_t *timer);
struct bt_timer {
    bt_list_t link;
    uint64_t due_ms;
    bt_timer_cb cb;
    bt_loop_t *loop;
};
void bt_timer_init(bt_loop_t *loop, bt_timer_t *timer, bt_timer_cb cb);
/* (Re)arms; fires once, not before `ms` and at most one tick late (plus what the turn takes). */
void bt_timer_start(bt_timer_t *timer, uint64_t ms);
void bt_timer_stop(bt_timer_t *timer); /* idempotent */
bool bt_timer_active(const bt_timer_t *timer);

#endif
