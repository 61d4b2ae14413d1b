/* crash.h - what a process that crashes leaves behind: the flight recorder's rings and a backtrace.
 *
 * Owner: the main thread opens and closes it; any thread may crash.
 * Life:  open, once inside the sandbox and before the threads -> bt_crash_thread_begin and _end on each thread -> close.
 * Flow:  SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL -> --crash-file and stderr -> what the signal does by itself (a core file).
 * Cost:  none until then; 64 KiB of stack for each thread that has one.
 */
#ifndef BT_GATEWAY_CRASH_H
#define BT_GATEWAY_CRASH_H

#include <stddef.h>

/* Opens the flight recorder too: a ring for each loop, and one for the control loop, which the caller's thread will be. file: is
 * appended to, NULL = stderr only. */
int bt_crash_open(const char *file, unsigned loops, char *err, size_t err_size);
/* Opens the file by its name again. 0 or a negative errno: a dump goes where it went. */
int bt_crash_reopen(void);
void bt_crash_close(void);
/* So that a stack that has run over can be told of. */
void bt_crash_thread_begin(void);
void bt_crash_thread_end(void);

#endif
