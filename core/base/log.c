/* A line is built on the stack and given to the queue (log_queue.c); where there is none it leaves
 * with one write, so threads need no lock: the kernel keeps writes up to PIPE_BUF whole on pipes,
 * and appends whole on files. Hence the line limit.
 *
 * What the network sent may stand in a message. Control characters are escaped in both modes, so
 * nobody can forge a second line; in JSON mode everything goes through the JSON quoter, which also
 * repairs bad UTF-8.
 */
#include "base/log.h"

#include "base/clock.h"
#include "base/line.h"
#include "base/log_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define LINE_BYTES 4096 /* Linux' PIPE_BUF */
#define TAIL_BYTES 1    /* what closes a line */
#define MESSAGE_BYTES 3072
#define SITE_LINES 10U    /* lines a second of one call site */
#define CONTEXT_BYTES 136 /* request ids have 128 at most */
#define LAST_WORDS_MS 500

int bt_log_level_now = BT_LOG_INFO;
static int is_json;
static int log_fd = STDERR_FILENO;
static const char *log_path; /* NULL = no file */
static _Thread_local struct {
    char worker[CONTEXT_BYTES], request[CONTEXT_BYTES], trace[CONTEXT_BYTES];
} context;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void bt_log_set(enum bt_log_level level, bool json, int fd)
{
    __atomic_store_n(&is_json, json, __ATOMIC_RELAXED);
    __atomic_store_n(&log_fd, fd, __ATOMIC_RELAXED);
    __atomic_store_n(&bt_log_level_now, (int) level, __ATOMIC_RELAXED);
}

int bt_log_fd(void)
{
    return __atomic_load_n(&log_fd, __ATOMIC_RELAXED);
}

/* A pipe without a reader is an error here, not a wait. */
static int open_to_append(const char *path)
{
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);

    return fd >= 0 ? fd : -errno;
}

int bt_log_open(const char *path)
{
    const int fd = open_to_append(path);

    if (fd < 0)
        return fd;
    log_path = path;
    __atomic_store_n(&log_fd, fd, __ATOMIC_RELAXED);
    return 0;
}

/* The number stays, so whoever is about to write to it needs no lock. */
int bt_log_reopen(void)
{
    const int fd = log_path != NULL ? open_to_append(log_path) : 0;
    int rc = 0;

    if (fd <= 0)
        return fd;
    if (dup3(fd, bt_log_fd(), O_CLOEXEC) < 0)
        rc = -errno;
    close(fd);
    return rc;
}

static void copy_context(char *to, const char *from)
{
    size_t n = from != NULL ? strnlen(from, CONTEXT_BYTES - 1) : 0;
    if (n > 0)
        memcpy(to, from, n);
    to[n] = '\0';
}

void bt_log_context(const char *worker, const char *request_id, const char *trace_id)
{
    copy_context(context.worker, worker);
    copy_context(context.request, request_id);
    copy_context(context.trace, trace_id);
}

void bt_log_line(bt_str_t line)
{
    char nl = '\n';
    struct iovec iov[2] = {{(void *) (uintptr_t) line.p, line.n}, {&nl, 1}};

    if (bt_log_queue_put(line))
        return;
    while (writev(bt_log_fd(), iov, 2) < 0 && errno == EINTR)
        ; /* a log that cannot be written has nowhere to say so */
}

bool bt_log_last_words(void)
{
    struct pollfd room = {.fd = bt_log_fd(), .events = POLLOUT};
    const bool is_heard = bt_log_queue_flush(LAST_WORDS_MS) && poll(&room, 1, LAST_WORDS_MS) == 1;

    bt_log_queue_leave(!is_heard);
    return is_heard;
}

/* Whether a site may write now. A new second's first line carries the number of lines swallowed
 * before it. Two threads meeting at the turn of a second may let a line too many through; counts of
 * swallowed lines stay exact.
 */
static bool site_admits(struct bt_log_site *site, uint32_t *suppressed_p)
{
    uint64_t now = bt_clock_ms();
    uint64_t window = __atomic_load_n(&site->window_ms, __ATOMIC_RELAXED);

    if ((int64_t) (now - window) >= 1000 &&
        __atomic_compare_exchange_n(&site->window_ms, &window, now, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        __atomic_store_n(&site->count, 1, __ATOMIC_RELAXED);
        *suppressed_p = __atomic_exchange_n(&site->suppressed, 0, __ATOMIC_RELAXED);
        return true;
    }
    if (__atomic_fetch_add(&site->count, 1, __ATOMIC_RELAXED) < SITE_LINES)
        return true;
    __atomic_fetch_add(&site->suppressed, 1, __ATOMIC_RELAXED);
    return false;
}

static void put_member(bt_line_t *l, const char *name, bt_str_t value)
{
    bt_line_z(l, name);
    bt_line_quoted(l, value, SIZE_MAX);
}

static void build_json(bt_line_t *l, enum bt_log_level level, bt_str_t component, bt_str_t message)
{
    char time[32];

    bt_clock_iso8601(bt_clock_wall_ms(), time, sizeof(time));
    put_member(l, "{\"time\":", bt_str(time));
    put_member(l, ",\"level\":", bt_str(level_names[level]));
    put_member(l, ",\"component\":", component);
    if (context.worker[0] != '\0')
        put_member(l, ",\"worker\":", bt_str(context.worker));
    if (context.request[0] != '\0')
        put_member(l, ",\"request_id\":", bt_str(context.request));
    if (context.trace[0] != '\0')
        put_member(l, ",\"trace_id\":", bt_str(context.trace));
    put_member(l, ",\"message\":", message);
    l->end += TAIL_BYTES;
    bt_line_lit(l, "}");
}

static void put_named(bt_line_t *l, const char *name, const char *value)
{
    if (value[0] == '\0')
        return;
    bt_line_z(l, name);
    bt_line_plain(l, bt_str(value), SIZE_MAX);
    bt_line_lit(l, " ");
}

static void build_text(bt_line_t *l, enum bt_log_level level, bt_str_t component, bt_str_t message)
{
    char head[64], time[32];

    bt_clock_iso8601(bt_clock_wall_ms(), time, sizeof(time));
    snprintf(head, sizeof(head), "%s %-5s ", time, level_names[level]);
    bt_line_z(l, head);
    bt_line_plain(l, component, SIZE_MAX);
    bt_line_lit(l, ": ");
    put_named(l, "worker=", context.worker);
    put_named(l, "request=", context.request);
    put_named(l, "trace=", context.trace);
    bt_line_plain(l, message, SIZE_MAX);
}

static bt_str_t build(bt_line_t *l, enum bt_log_level level, const char *component,
                      bt_str_t message)
{
    l->end -= TAIL_BYTES;
    if (__atomic_load_n(&is_json, __ATOMIC_RELAXED))
        build_json(l, level, bt_str(component), message);
    else
        build_text(l, level, bt_str(component), message);
    return bt_line_str(l);
}

size_t bt_log_dropped_line(char *out, size_t size, uint64_t n)
{
    char message[96];
    bt_line_t l;

    snprintf(message, sizeof(message), "%" PRIu64 " log lines dropped: %s does not take them", n,
             log_path != NULL ? "the file" : "stderr");
    bt_line_init(&l, out, size - 1);
    const size_t length = build(&l, BT_LOG_WARN, "log", bt_str(message)).n;
    out[length] = '\n';
    return length + 1;
}

/* Formats into out; returns the length kept. Cut messages end in "...". */
static size_t format_message(char *out, size_t size, uint32_t suppressed, const char *fmt,
                             va_list args)
{
    size_t n = 0;

    if (suppressed > 0)
        n = (size_t) snprintf(out, size, "(%u like this not shown) ", suppressed);
    int wrote = vsnprintf(out + n, size - n, fmt, args);
    if (wrote < 0)
        return n;
    if ((size_t) wrote < size - n)
        return n + (size_t) wrote;
    memcpy(out + size - 4, "...", 4);
    return size - 1;
}

void bt_log_write(struct bt_log_site *site, enum bt_log_level level, const char *component,
                  const char *fmt, ...)
{
    char buf[LINE_BYTES - 1], message[MESSAGE_BYTES]; /* a newline is added */
    bt_line_t l;
    uint32_t suppressed = 0;
    va_list args;

    if (site != NULL && !site_admits(site, &suppressed))
        return;
    va_start(args, fmt);
    size_t n = format_message(message, sizeof(message), suppressed, fmt, args);
    va_end(args);
    bt_line_init(&l, buf, sizeof(buf));
    bt_log_line(build(&l, level, component, (bt_str_t){message, n}));
}
