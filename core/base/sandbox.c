/* Landlock by its three calls, and a seccomp filter in the kernel's own words: Debian 12 has no library for the first, and the second needs none.
 *
 * The filter is a list of what is refused, not of what is allowed: a call that a later libc makes instead of today's must not stop a gateway. It has what
 * an intruder goes on with: other processes' memory, mounts, namespaces, modules, BPF, keys. Connections are not its matter, nor is execve, which
 * Landlock holds to what is allowed.
 */
#include "base/sandbox.h"

#include "base/sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of later headers than Debian 12's: ABI 2, 3. */
#define REFER (1ULL << 13)
#define TRUNCATE (1ULL << 14)

#define FILE_READ LANDLOCK_ACCESS_FS_READ_FILE
#define READ (FILE_READ | LANDLOCK_ACCESS_FS_READ_DIR)
#define FILE_WRITE (LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE)
#define WRITE                                                                                      \
    (FILE_WRITE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |                 \
     LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |    \
     LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | \
     LANDLOCK_ACCESS_FS_MAKE_SYM | REFER)

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

static bt_sandbox_state_t state;

bt_sandbox_state_t bt_sandbox_state(void)
{
    return state;
}

/* ---- files ---- */

int bt_sandbox_open(bt_sandbox_t *sandbox)
{
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    sandbox->fd = -1;
    if (abi < 1)
        return -errno;
    state.landlock_abi = (unsigned) abi;
    sandbox->handled = READ | WRITE | LANDLOCK_ACCESS_FS_EXECUTE;
    if (abi < 2)
        sandbox->handled &= ~REFER;
    if (abi < 3)
        sandbox->handled &= ~TRUNCATE;
    const struct landlock_ruleset_attr attr = {.handled_access_fs = sandbox->handled};
    sandbox->fd = (int) syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
    return sandbox->fd < 0 ? -errno : 0;
}

int bt_sandbox_allow(bt_sandbox_t *sandbox, const char *path, unsigned access)
{
    struct landlock_path_beneath_attr rule = {
        .allowed_access = ((access & BT_SANDBOX_READ) != 0 ? READ : 0) |
                          ((access & BT_SANDBOX_WRITE) != 0 ? WRITE : 0) |
                          ((access & BT_SANDBOX_EXECUTE) != 0 ? LANDLOCK_ACCESS_FS_EXECUTE : 0),
        .parent_fd = open(path, O_PATH | O_CLOEXEC)};
    struct stat info;
    int rc = 0;

    if (rule.parent_fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    if (fstat(rule.parent_fd, &info) == 0 && !S_ISDIR(info.st_mode))
        rule.allowed_access &= FILE_READ | FILE_WRITE | LANDLOCK_ACCESS_FS_EXECUTE;
    rule.allowed_access &= sandbox->handled;
    if (syscall(SYS_landlock_add_rule, sandbox->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
        rc = -errno;
    close(rule.parent_fd);
    return rc;
}

/* ---- calls ---- */

#ifdef ARCH
static const int refused[] = {
#if !BT_ASAN /* its search for leaks stops the threads so */
    SYS_ptrace,
#endif
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_open_by_handle_at,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_syslog,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
#ifdef SYS_iopl
    SYS_iopl,
    SYS_ioperm,
#endif
};
#define REFUSED (sizeof(refused) / sizeof(*refused))

#define X32 0x40000000U /* of x86-64: the same calls by other numbers */
#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)

static struct sock_filter jump(unsigned how, uint32_t k, size_t if_so, size_t if_not)
{
    return (struct sock_filter) BPF_JUMP((uint16_t) (BPF_JMP | BPF_K | how), k, (uint8_t) if_so,
                                         (uint8_t) if_not);
}

/* Another architecture's calls have other numbers: none of them is made. clone makes threads, but no namespaces; clone3's flags lie in
 * memory, which no filter sees, and libraries that find none take clone. Jumps count from the next line. */
static int enter_filter(void)
{
    struct sock_filter code[REFUSED + 11] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        jump(BPF_JEQ, ARCH, 0, REFUSED + 7),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        jump(BPF_JGE, X32, REFUSED + 5, 0),
    };
    const struct sock_filter end[] = {
        jump(BPF_JEQ, SYS_clone3, 5, 0),
        jump(BPF_JEQ, SYS_clone, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        jump(BPF_JSET, NAMESPACES, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    unsigned n = 4;

    for (unsigned i = 0; i < REFUSED; i++)
        code[n++] = jump(BPF_JEQ, (uint32_t) refused[i], REFUSED + 4 - i, 0);
    memcpy(code + n, end, sizeof end);
    n += sizeof end / sizeof *end;
    const struct sock_fprog program = {.len = (unsigned short) n, .filter = code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return -errno;
    state.has_seccomp = true;
    return 0;
}
#else
static int enter_filter(void)
{
    return 0; /* the numbers of this architecture's calls have not been checked */
}
#endif

int bt_sandbox_enter(bt_sandbox_t *sandbox)
{
    int rc = 0;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_landlock_restrict_self, sandbox->fd, 0) != 0)
        rc = -errno;
    bt_sandbox_close(sandbox);
    if (rc < 0)
        return rc;
    state.has_landlock = true;
    return enter_filter();
}

void bt_sandbox_inherit(void)
{
#ifdef ARCH
    state.has_seccomp = true;
#endif
    state.has_landlock = true;
}

void bt_sandbox_close(bt_sandbox_t *sandbox)
{
    if (sandbox->fd >= 0)
        close(sandbox->fd);
    sandbox->fd = -1;
}
