/* thread.h - threads that are no event loops: start, waits, and what one says of itself.
 *
 * Owner: the calling thread.
 * Life:  from the call to the thread's end.
 * Flow:  Linux keeps nice values per thread; raising one's own needs no right.
 * Cost:  a few system calls.
 */
#ifndef BT_BASE_THREAD_H
#define BT_BASE_THREAD_H

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#define BT_BACKGROUND_NICE 10 /* about a tenth of a loop's share where both want the core */

/* Work that nobody's request waits for: event threads go first. A refusal changes nothing. */
static inline void bt_thread_to_background(void)
{
    (void) setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), BT_BACKGROUND_NICE);
}

/* Without signals: they are for the threads that wait for them. 0 or a negative errno. */
static inline int bt_thread_start(pthread_t *thread_p, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread_p, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

/* cond: of uv_cond_init, which makes it count by bt_clock_us. Under lock. False: it is until_us. */
static inline bool bt_thread_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_us)
{
    const uint64_t now_us = bt_clock_us();

    return now_us < until_us && uv_cond_timedwait(cond, lock, (until_us - now_us) * 1000) == 0;
}

#endif
