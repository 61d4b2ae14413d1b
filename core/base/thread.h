/* thread.h - threads that are no event loops: their start, and what a thread may say about itself.
 *
 * Owner: the calling thread.
 * Life:  from the call to the thread's end.
 * Flow:  Linux keeps nice values per thread; raising one's own needs no right.
 * Cost:  a few system calls.
 */
#ifndef BT_BASE_THREAD_H
#define BT_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BT_BACKGROUND_NICE 10 /* about a tenth of a loop's share where both want the core */

/* Work that nobody's request waits for: event threads go first. A refusal changes nothing. */
static inline void bt_thread_to_background(void)
{
    (void) setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), BT_BACKGROUND_NICE);
}

/* A thread that takes no signals: they are for the threads that wait for them. 0 or a negative errno. */
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

#endif
