/* thread.h - what a thread may say about itself.
 *
 * Owner: the calling thread.
 * Life:  from the call to the thread's end.
 * Flow:  Linux keeps nice values per thread; raising one's own needs no right.
 * Cost:  one system call.
 */
#ifndef BT_BASE_THREAD_H
#define BT_BASE_THREAD_H

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BT_BACKGROUND_NICE 10 /* about a tenth of a loop's share where both want the core */

/* Work that nobody's request waits for: event threads go first. A refusal changes nothing. */
static inline void bt_thread_to_background(void)
{
    (void) setpriority(PRIO_PROCESS, (id_t) syscall(SYS_gettid), BT_BACKGROUND_NICE);
}

#endif
