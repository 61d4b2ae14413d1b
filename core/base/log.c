/* A line is built on the stack and leaves with one write, so threads need no lock: the kernel keeps
 * writes up to PIPE_BUF whole on pipes, and appends whole on files. Hence the line limit.
 *
 * What the network sent may stand in a message. Control characters are escaped in both modes, so
 * nobody can forge a second line; in JSON mode everything goes through the JSON quoter, which also
 * repairs bad UTF-8.
 */
#include "base/log.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#define LINE_BYTES 4096 /* Linux' PIPE_BUF */
#define TAIL_BYTES 8    /* what closes a line: quote, brace, newline, "..." */
#define MESSAGE_BYTES 3072
#define SITE_LINES 10U    /* lines a second of one call site */
#define CONTEXT_BYTES 136 /* request ids have 128 at most */

struct line {
    char *at, *end; /* end leaves TAIL_BYTES free */
};

int bt_log_level_now = BT_LOG_INFO;
static int is_json;
static int log_fd = STDERR_FILENO;
static _Thread_local struct {
    char worker[CONTEXT_BYTES], request[CONTEXT_BYTES];
} context;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void bt_log_set(enum bt_log_level level, bool json, int fd)
{
    __atomic_store_n(&is_json, json, __ATOMIC_RELAXED);
    __atomic_store_n(&log_fd, fd, __ATOMIC_RELAXED);
    __atomic_store_n(&bt_log_level_now, (int) level, __ATOMIC_RELAXED);
}

int bt_log_level_parse(bt_str_t s, enum bt_log_level *level_p)
{
    if (bt_str_ieq(s, BT_STR("warning")))
        s = BT_STR("warn");
    for (unsigned i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (bt_str_ieq(s, bt_str(level_names[i]))) {
            *level_p = (enum bt_log_level) i;
            return 0;
        }
    }
    return BT_E_INVAL;
}

static void copy_context(char *to, const char *from)
{
    size_t n = from != NULL ? strnlen(from, CONTEXT_BYTES - 1) : 0;
    if (n > 0)
        memcpy(to, from, n);
    to[n] = '\0';
}

void bt_log_context(const char *worker, const char *request_id)
{
    copy_context(context.worker, worker);
    copy_context(context.request, request_id);
}

static void write_out(struct iovec *iov, int n)
{
    int fd = __atomic_load_n(&log_fd, __ATOMIC_RELAXED);
    while (writev(fd, iov, n) < 0 && errno == EINTR)
        ; /* a log that cannot be written has nowhere to say so */
}

void bt_log_line(bt_str_t line)
{
    char nl = '\n';
    struct iovec iov[2] = {{(void *) (uintptr_t) line.p, line.n}, {&nl, 1}};
    write_out(iov, 2);
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

static void put(struct line *l, bt_str_t s)
{
    size_t room = (size_t) (l->end - l->at);
    size_t n = s.n < room ? s.n : room;
    if (n > 0)
        memcpy(l->at, s.p, n);
    l->at += n;
}

static void put_plain(struct line *l, bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char) s.p[i];
        char escaped[8];
        if (c >= 0x20 && c != 0x7f)
            put(l, (bt_str_t){s.p + i, 1});
        else
            put(l, (bt_str_t){escaped, (size_t) snprintf(escaped, sizeof(escaped), "\\x%02x", c)});
    }
}

/* As much of the string as fits. A character takes 6 bytes at most, so each cut leaves no more room
 * than needed. */
static void put_quoted(struct line *l, bt_str_t s)
{
    size_t room = (size_t) (l->end - l->at), size;

    while ((size = bt_json_quoted_size(s)) > room && s.n > 0)
        s.n -= (size - room + 5) / 6 < s.n ? (size - room + 5) / 6 : s.n;
    if (size <= room)
        l->at += bt_json_quote(s, l->at);
}

static void put_member(struct line *l, const char *name, bt_str_t value)
{
    put(l, bt_str(name));
    put_quoted(l, value);
}

static void build_json(struct line *l, enum bt_log_level level, bt_str_t component,
                       bt_str_t message)
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
    put_member(l, ",\"message\":", message);
    *l->at++ = '}';
}

static void build_text(struct line *l, enum bt_log_level level, bt_str_t component,
                       bt_str_t message)
{
    char head[64], time[32];

    bt_clock_iso8601(bt_clock_wall_ms(), time, sizeof(time));
    snprintf(head, sizeof(head), "%s %-5s ", time, level_names[level]);
    put(l, bt_str(head));
    put_plain(l, component);
    put(l, BT_STR(": "));
    if (context.worker[0] != '\0') {
        put(l, BT_STR("worker="));
        put_plain(l, bt_str(context.worker));
        put(l, BT_STR(" "));
    }
    if (context.request[0] != '\0') {
        put(l, BT_STR("request="));
        put_plain(l, bt_str(context.request));
        put(l, BT_STR(" "));
    }
    put_plain(l, message);
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
    char buf[LINE_BYTES], message[MESSAGE_BYTES];
    struct line l = {buf, buf + sizeof(buf) - TAIL_BYTES};
    uint32_t suppressed = 0;
    va_list args;

    if (site != NULL && !site_admits(site, &suppressed))
        return;
    va_start(args, fmt);
    size_t n = format_message(message, sizeof(message), suppressed, fmt, args);
    va_end(args);
    if (__atomic_load_n(&is_json, __ATOMIC_RELAXED))
        build_json(&l, level, bt_str(component), (bt_str_t){message, n});
    else
        build_text(&l, level, bt_str(component), (bt_str_t){message, n});
    *l.at++ = '\n';
    struct iovec iov = {buf, (size_t) (l.at - buf)};
    write_out(&iov, 1);
}
