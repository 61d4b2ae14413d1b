/* How it works: the handler calls nothing that may take a lock or allocate. The file is open from the start, so neither the sandbox
 * nor a full table of descriptors is in the way; backtrace() is called once before, because its first call loads libgcc. stderr may be
 * a pipe that nobody reads: it is asked before each write whether it takes a page, and an alarm ends a process whose handler hangs (the
 * crash may have come in the dynamic linker, whose lock the unwinder needs).
 *
 * A fault comes again when the handler returns, and a signal that was sent is sent once more: so the core file shows the thread as
 * it was. A second thread that crashes waits for the first one's dump; a fault in the handler itself ends the process at once.
 *
 * Sanitizers have handlers of their own, which say more: there ours are installed for --crash-file only. */
#include "gateway/crash.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/flight.h"
#include "base/line.h"
#include "base/sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#define STACK_BYTES ((size_t) 65536)
#define FRAMES 64
#define LINE_BYTES 256
#define STDERR_MS 1000
#define ALL_S 10 /* a dump takes no longer */

static const struct {
    int number;
    const char *name;
} signals[] = {{SIGSEGV, "SIGSEGV"},
               {SIGABRT, "SIGABRT"},
               {SIGBUS, "SIGBUS"},
               {SIGFPE, "SIGFPE"},
               {SIGILL, "SIGILL"}};
#define SIGNALS (sizeof signals / sizeof signals[0])

static const char *path;
static _Atomic int file_fd = -1;
static unsigned control_ring;
static bool is_installed;
static _Atomic long crashed; /* the thread that writes; 0 = none */
static _Thread_local void *own_stack;

/* ---- writing ---- */

static void put_out(int fd, const bt_line_t *l)
{
    const bt_str_t text = bt_line_str(l);

    for (size_t done = 0; done < text.n;) {
        const ssize_t n = write(fd, text.p + done, text.n - done);
        if (n <= 0 && errno != EINTR)
            return;
        done += n > 0 ? (size_t) n : 0;
    }
}

/* A pipe that is ready takes 4 KiB without waiting. */
static bool takes(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    return poll(&p, 1, STDERR_MS) == 1 && (p.revents & POLLOUT) != 0;
}

static const char *name_of(int number)
{
    for (size_t i = 0; i < SIGNALS; i++)
        if (signals[i].number == number)
            return signals[i].name;
    return "a signal";
}

static void put_hex(bt_line_t *l, uint64_t value)
{
    static const char digits[] = "0123456789abcdef";
    bool is_begun = false;

    bt_line_lit(l, "0x");
    for (int shift = 60; shift >= 0; shift -= 4) {
        const unsigned digit = (unsigned) (value >> shift) & 15;
        is_begun |= digit != 0 || shift == 0;
        if (is_begun)
            bt_line_put(l, (bt_str_t){&digits[digit], 1});
    }
}

static void put_head(int fd, const siginfo_t *info)
{
    char text[LINE_BYTES], thread[17] = "";
    bt_line_t l;

    (void) prctl(PR_GET_NAME, thread);
    bt_line_init(&l, text, sizeof text);
    bt_line_lit(&l, "baton " BT_VERSION " crash: ");
    bt_line_z(&l, name_of(info->si_signo));
    if (info->si_code > 0) {
        bt_line_lit(&l, " at ");
        put_hex(&l, (uint64_t) (uintptr_t) info->si_addr);
    } else {
        bt_line_lit(&l, " sent by process ");
        bt_line_u64(&l, (uint64_t) info->si_pid);
    }
    bt_line_lit(&l, ", in thread ");
    bt_line_z(&l, thread);
    bt_line_lit(&l, " of process ");
    bt_line_u64(&l, (uint64_t) getpid());
    bt_line_lit(&l, ", unix time ");
    bt_line_decimal(&l, bt_clock_wall_us(), 6);
    bt_line_lit(&l, "\nflight recorder, the newest last (seconds before, loop, kind, what):\n");
    put_out(fd, &l);
}

static void put_event(int fd, unsigned ring, const bt_flight_event_t *e, uint64_t now_us)
{
    char text[LINE_BYTES];
    bt_line_t l;

    bt_line_init(&l, text, sizeof text);
    bt_line_lit(&l, "  -");
    bt_line_decimal(&l, now_us > e->at_us ? now_us - e->at_us : 0, 6);
    bt_line_lit(&l, " ");
    if (ring == control_ring)
        bt_line_lit(&l, "control");
    else
        bt_line_u64(&l, ring);
    bt_line_lit(&l, " ");
    bt_line_z(&l, bt_flight_kind_name(e->kind));
    bt_line_lit(&l, " ");
    bt_line_put(&l, (bt_str_t){e->detail, strnlen(e->detail, sizeof e->detail)});
    if (e->us != 0) {
        bt_line_lit(&l, ", us=");
        bt_line_u64(&l, e->us);
    }
    if (e->cpu_us != BT_FLIGHT_CPU_UNKNOWN) {
        bt_line_lit(&l, ", cpu_us<=");
        bt_line_u64(&l, e->cpu_us);
    }
    if (e->count > 1) {
        bt_line_lit(&l, ", times=");
        bt_line_u64(&l, e->count);
    }
    bt_line_lit(&l, "\n");
    put_out(fd, &l);
}

static void put_rings(int fd, bool may_block)
{
    const uint64_t now_us = bt_clock_us();

    for (unsigned ring = 0; ring < bt_flight_rings(); ring++) {
        const uint64_t last = bt_flight_last(ring);
        for (uint64_t number = bt_flight_first(last); number <= last; number++) {
            bt_flight_event_t event;
            if (!bt_flight_read(ring, number, &event))
                continue;
            if (may_block && !takes(fd))
                return;
            put_event(fd, ring, &event, now_us);
        }
    }
}

static void put_backtrace(int fd)
{
    static const char head[] = "backtrace (addr2line -fie PROGRAM +OFFSET names what has none):\n";
    char text[sizeof head];
    bt_line_t l;

    bt_line_init(&l, text, sizeof text);
    bt_line_z(&l, head);
    put_out(fd, &l);
#ifdef __GLIBC__
    void *frames[FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), fd);
#endif
}

static bool can_write(int fd, bool may_block)
{
    return fd >= 0 && (!may_block || takes(fd));
}

static void put_events(int fd, bool may_block, const siginfo_t *info)
{
    if (!can_write(fd, may_block))
        return;
    put_head(fd, info);
    put_rings(fd, may_block);
}

/* The unwinder reads the code at which it stands: after a call to nowhere that is one more fault, and the end. So it comes last. */
static void dump(const siginfo_t *info)
{
    const int file = atomic_load(&file_fd);

    put_events(file, false, info);
    put_events(STDERR_FILENO, true, info);
    if (can_write(file, false))
        put_backtrace(file);
    if (can_write(STDERR_FILENO, true))
        put_backtrace(STDERR_FILENO);
}

/* ---- the handler ---- */

/* Whoever writes ends the process; if it cannot, this thread does. */
static void wait_for_other(void)
{
    const struct timespec nap = {.tv_sec = ALL_S};

    (void) nanosleep(&nap, NULL);
}

static void limit_time(void)
{
    sigset_t set;

    signal(SIGALRM, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    (void) pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void) alarm(ALL_S);
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    const long self = syscall(SYS_gettid);
    const int before = errno;
    long none = 0;

    (void) context;
    if (atomic_compare_exchange_strong(&crashed, &none, self)) {
        limit_time();
        dump(info);
    } else if (none != self) {
        wait_for_other();
    }
    signal(number, SIG_DFL);
    if (info->si_code <= 0)
        (void) raise(number); /* blocked until this returns */
    errno = before;
}

/* ---- life ---- */

static int open_file(void)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);

    return fd < 0 ? -errno : fd;
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};

#ifdef __GLIBC__
    void *frames[1];
    (void) backtrace(frames, 1);
#endif
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < SIGNALS; i++)
        (void) sigaction(signals[i].number, &action, NULL);
    is_installed = true;
    bt_crash_thread_begin();
}

int bt_crash_open(const char *file, unsigned loops, char *err, size_t err_size)
{
    const int rc = bt_flight_open(loops + 1);

    if (rc < 0)
        return bt_err_refuse(err, err_size, "%s", bt_err_text(rc));
    bt_flight_bind(loops);
    path = file;
    control_ring = loops;
    if (file != NULL) {
        const int fd = open_file();
        if (fd < 0) {
            bt_flight_close();
            return bt_err_refuse(err, err_size, "--crash-file: cannot write %s: %s", file,
                                 strerror(-fd));
        }
        atomic_store(&file_fd, fd);
    }
    if (file != NULL || !(BT_ASAN || BT_TSAN))
        install();
    return 0;
}

int bt_crash_reopen(void)
{
    if (path == NULL)
        return 0;
    const int fd = open_file();
    if (fd < 0)
        return fd;
    /* The number stays, so that who crashes now has a file, the old one or the new one. */
    const int rc = dup3(fd, atomic_load(&file_fd), O_CLOEXEC) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

void bt_crash_close(void)
{
    for (size_t i = 0; is_installed && i < SIGNALS; i++)
        signal(signals[i].number, SIG_DFL);
    if (is_installed)
        bt_crash_thread_end();
    is_installed = false;
    const int fd = atomic_exchange(&file_fd, -1);
    if (fd >= 0)
        close(fd);
    bt_flight_close();
}

void bt_crash_thread_begin(void)
{
    if (!is_installed || own_stack != NULL || (own_stack = malloc(STACK_BYTES)) == NULL)
        return;
    const stack_t stack = {.ss_sp = own_stack, .ss_size = STACK_BYTES};
    (void) sigaltstack(&stack, NULL);
}

void bt_crash_thread_end(void)
{
    const stack_t none = {.ss_flags = SS_DISABLE};

    if (own_stack == NULL)
        return;
    (void) sigaltstack(&none, NULL);
    free(own_stack);
    own_stack = NULL;
}
