/* sandbox.h - this process gives up what it does not need of the kernel: files beyond a list (Landlock), and calls that no server makes (seccomp).
 *
 * Owner: the caller's stack, until it is entered.
 * Life:  open -> allow ... -> enter, once, before a thread runs: threads and child processes that begin later have it too, and nobody can lift it.
 * Flow:  after enter a file that is not allowed fails with EACCES, a call that is not, with EPERM.
 * Cost:  start-up; a system call then passes a filter of some 40 compares.
 *
 * What came of it is the process's, and any thread may read it once it is entered: the kernel does not tell whose layers it has.
 */
#ifndef BT_BASE_SANDBOX_H
#define BT_BASE_SANDBOX_H

#include <stdbool.h>

enum bt_sandbox_access {
    BT_SANDBOX_READ = 1,
    BT_SANDBOX_WRITE = 2,  /* and make, remove, rename, cut */
    BT_SANDBOX_EXECUTE = 4 /* start as a program; what is mapped needs READ only */
};

typedef struct bt_sandbox {
    int fd;
    unsigned long long handled; /* rights that this kernel knows of */
} bt_sandbox_t;

/* -errno: this kernel has no Landlock (ENOSYS), it is switched off (EOPNOTSUPP), or a filter of calls refuses it (EPERM). */
int bt_sandbox_open(bt_sandbox_t *sandbox);
/* access: bits of bt_sandbox_access; of a directory: all below it. A path that is not there is no error. -errno. */
int bt_sandbox_allow(bt_sandbox_t *sandbox, const char *path, unsigned access);
/* The sandbox is over, whatever comes of it. -E2BIG: this process has inherited as many as the kernel puts over one another (16). -errno: nothing has changed but that no program gets more rights than this one (no_new_privs). */
int bt_sandbox_enter(bt_sandbox_t *sandbox);
/* No other layers, but both are those of the process that this one takes the place of. */
void bt_sandbox_inherit(void);
void bt_sandbox_close(bt_sandbox_t *sandbox);

typedef struct bt_sandbox_state {
    unsigned landlock_abi; /* this kernel's; 0 = it has no Landlock, or nobody has asked */
    bool has_landlock, has_seccomp;
} bt_sandbox_state_t;
bt_sandbox_state_t bt_sandbox_state(void);

#endif
