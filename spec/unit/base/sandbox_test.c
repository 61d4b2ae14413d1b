/* A child process in a sandbox: what it may still do, and what it may not. */
#include "base/sandbox.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static const char *in(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* 0, or why not. */
static int try_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);

    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

static int try_start(const char *path)
{
    char *const argv[] = {(char *) (uintptr_t) path, NULL};
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execv(path, argv);
        _exit(errno == EACCES ? 99 : 98);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status) == 99 ? EACCES : WEXITSTATUS(status);
}

#define WANT(what, rc)                                                                             \
    do {                                                                                           \
        int got = (what);                                                                          \
        if (got != (rc)) {                                                                         \
            fprintf(stderr, "%s: %d instead of %d (line %d)\n", #what, got, (rc), __LINE__);       \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int call(long rc)
{
    return rc < 0 ? errno : 0;
}

static int files(void)
{
    WANT(try_open(in("read/file"), O_RDONLY), 0);
    WANT(try_open(in("read/file"), O_WRONLY), EACCES);
    WANT(try_open(in("read/new"), O_WRONLY | O_CREAT), EACCES);
    WANT(call(unlink(in("read/file"))), EACCES);
    WANT(call(truncate(in("read/file"), 0)), EACCES);
    WANT(try_open(in("write/new"), O_WRONLY | O_CREAT), 0);
    WANT(try_open(in("write/new"), O_RDONLY), EACCES);
    WANT(call(unlink(in("write/new"))), 0);
    WANT(try_open(in("file"), O_RDONLY), EACCES);
    WANT(try_open(in("read/../file"), O_RDONLY), EACCES);
    WANT(try_open(in("read/link"), O_RDONLY), EACCES); /* to ../file */
    WANT(try_open("/etc/passwd", O_RDONLY), EACCES);
    WANT(try_start("/bin/sh"), EACCES);
    return 0;
}

static int try_clone(long flags)
{
    const long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);

    if (pid == 0)
        _exit(0);
    return pid < 0 ? errno : waitpid((pid_t) pid, NULL, 0) == pid ? 0 : -1;
}

static int calls(void)
{
    struct iovec nothing = {0};

    WANT(call(process_vm_readv(getppid(), &nothing, 1, &nothing, 1, 0)), EPERM);
    WANT(call(unshare(CLONE_NEWUSER)), EPERM);
    for (long flag = 1L << 17; flag <= 1L << 30; flag <<= 1)
        if (((CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
              CLONE_NEWPID | CLONE_NEWNET) &
             flag) != 0)
            WANT(try_clone(flag), EPERM);
    WANT(try_clone(0), 0);
    WANT(call(syscall(SYS_clone3, NULL, 0)), ENOSYS);
    WANT(call(syscall(SYS_mount_setattr, -1, "", 0, NULL, 0)), EPERM);
    WANT(call(syscall(SYS_fsconfig, -1, 0, NULL, NULL, 0)), EPERM);
#ifdef __x86_64__
    WANT(call(syscall(0x40000000 + SYS_getpid)), EPERM); /* x32's */
#endif
    WANT(call(mount("none", "/mnt", "tmpfs", 0, NULL)), EPERM);
    WANT(call(syscall(SYS_bpf, 0, NULL, 0)), EPERM);
    WANT(call(syscall(SYS_keyctl, 0, 0, 0, 0, 0)), EPERM);
    WANT(call(getpid()), 0);
    return 0;
}

static void *in_thread(void *rc_p)
{
    *(int *) rc_p = files() != 0 || calls() != 0;
    return NULL;
}

/* Threads and programs that begin later are inside. */
static int inside(void)
{
    bt_sandbox_t sandbox;
    pthread_t thread;
    int rc = 1;

    if (bt_sandbox_open(&sandbox) != 0)
        return 77;
    WANT(bt_sandbox_state().landlock_abi >= 1, 1);
    WANT(bt_sandbox_state().has_landlock || bt_sandbox_state().has_seccomp, 0);
    WANT(bt_sandbox_allow(&sandbox, in("read"), BT_SANDBOX_READ), 0);
    WANT(bt_sandbox_allow(&sandbox, in("read/file"), BT_SANDBOX_READ), 0); /* a file, too */
    WANT(bt_sandbox_allow(&sandbox, in("write"), BT_SANDBOX_WRITE), 0);
    WANT(bt_sandbox_allow(&sandbox, in("nowhere"), BT_SANDBOX_WRITE), 0);
    WANT(bt_sandbox_enter(&sandbox), 0);
    WANT(bt_sandbox_state().has_landlock, 1);
    WANT(bt_sandbox_state().has_seccomp, prctl(PR_GET_SECCOMP) == 2);
    if (files() != 0 || calls() != 0 || pthread_create(&thread, NULL, in_thread, &rc) != 0 ||
        pthread_join(thread, NULL) != 0)
        return 1;
    return rc;
}

static void write_file(const char *path)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    fclose(out);
}

static void test_a_process_inside(void **state)
{
    int status;

    strcpy(folder, "/tmp/baton-sandbox-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(mkdir(in("read"), 0700), 0);
    assert_int_equal(mkdir(in("write"), 0700), 0);
    write_file(in("file"));
    write_file(in("read/file"));
    assert_int_equal(symlink("../file", in("read/link")), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(inside());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(unlink(in("read/link")), 0);
    assert_int_equal(unlink(in("read/file")), 0);
    assert_int_equal(unlink(in("file")), 0);
    assert_int_equal(rmdir(in("read")), 0);
    assert_int_equal(rmdir(in("write")), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip(); /* this kernel has none */
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(try_start("/bin/true"), 0); /* this one is outside */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
