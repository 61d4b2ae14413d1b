/* pace.c - short requests at a steady pace, whatever the gateway does meanwhile, and how long each took.
 *
 *   pace PORT CONNECTIONS RATE SECONDS
 *
 * RATE 0: a closed loop, each connection sends its next request when its answer is whole: what can be had at most.
 * SECONDS 0: until SIGTERM. A request's time counts from the moment at which it was due, so that a gateway that stands still
 * is charged for every request that it keeps waiting, sent or not. How late requests were sent (`late`) is told beside it: for
 * want of a core here, or of a connection without a request on it. At the end it waits for what is under way. Prints one line:
 *
 *   rate <answers per second> right <n> failed <n> p50_us <us> p99_us <us> max_us <us> late_p99_us <us> waited_max <requests>
 */
#include "net.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX 8192
#define PATIENCE_US 10000000U /* for answers after the end */

struct client {
    int fd;
    bool is_busy;
    uint64_t due_us;
    size_t got;
    struct client *next; /* idle */
    char answer[ANSWER_MAX];
};

struct times {
    uint32_t *us;
    size_t count, cap;
};

static char request[512];
static size_t request_n;
static unsigned port;
static int epoll;
static struct client *idle;
static unsigned busy;
static uint64_t right, failed, sent, waited_max;
static struct times took, late;
static volatile sig_atomic_t is_told_to_end;

static void on_term(int signal)
{
    (void) signal;
    is_told_to_end = 1;
}

static void note(struct times *t, uint64_t us)
{
    if (t->count == t->cap) {
        t->cap = t->cap != 0 ? 2 * t->cap : 65536;
        t->us = realloc(t->us, t->cap * sizeof(*t->us));
        if (t->us == NULL)
            bench_die("realloc");
    }
    t->us[t->count++] = us < UINT32_MAX ? (uint32_t) us : UINT32_MAX;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *) a, y = *(const uint32_t *) b;

    return (x > y) - (x < y);
}

static void sort(struct times *t)
{
    if (t->count > 0)
        qsort(t->us, t->count, sizeof(*t->us), by_value);
}

static uint32_t part_of(const struct times *t, double part)
{
    size_t at = (size_t) ((double) t->count * part);

    return t->count == 0 ? 0 : t->us[at < t->count ? at : t->count - 1];
}

static void make_request(void)
{
    static const char body[] = "{\"model\":\"sim\",\"prompt\":\"hello there\",\"max_tokens\":1}";

    request_n = (size_t) snprintf(request, sizeof(request),
                                  "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                  port, sizeof(body) - 1, body);
}

static void open_connection(struct client *c)
{
    c->fd = bench_connect(port);
    bench_watch(epoll, c->fd, EPOLLIN | EPOLLET, c);
}

static void make_idle(struct client *c)
{
    if (c->is_busy)
        busy--;
    c->is_busy = false;
    c->next = idle;
    idle = c;
}

static void fail(struct client *c, const char *why)
{
    if (failed++ == 0)
        fprintf(stderr, "pace: %s: %.*s\n", why, (int) (c->got < 400 ? c->got : 400), c->answer);
    close(c->fd);
    open_connection(c);
    make_idle(c);
}

/* The request is small and the connection empty: a write takes all of it, or the connection is broken. */
static void send_one(uint64_t due_us)
{
    struct client *c = idle;

    idle = c->next;
    c->is_busy = true;
    c->due_us = due_us;
    c->got = 0;
    busy++;
    sent++;
    if (write(c->fd, request, request_n) != (ssize_t) request_n)
        fail(c, strerror(errno));
}

static bool is_whole(struct client *c)
{
    char *body, *length;

    c->answer[c->got] = '\0';
    body = strstr(c->answer, "\r\n\r\n");
    if (body == NULL)
        return false;
    length = strcasestr(c->answer, "content-length:");
    if (length != NULL && length < body)
        return c->got == (size_t) (body + 4 - c->answer) + strtoul(length + 15, NULL, 10);
    return c->got > 7 && memcmp(c->answer + c->got - 7, "\r\n0\r\n\r\n", 7) == 0;
}

static void on_readable(struct client *c)
{
    ssize_t n;

    while ((n = read(c->fd, c->answer + c->got, ANSWER_MAX - 1 - c->got)) > 0) {
        c->got += (size_t) n;
        if (!c->is_busy || !is_whole(c))
            continue;
        if (strncmp(c->answer, "HTTP/1.1 200 ", 13) != 0) {
            fail(c, "not 200");
            return;
        }
        right++;
        note(&took, bench_now_us() - c->due_us);
        make_idle(c);
        return;
    }
    if (n < 0 && errno == EAGAIN)
        return;
    if (c->is_busy) {
        fail(c, n == 0 ? "closed" : strerror(errno));
    } else { /* an idle connection may be closed: it stands in the list of idle ones already */
        close(c->fd);
        open_connection(c);
    }
}

/* Waits until something can be read, and no longer than until then. */
static void turn(uint64_t until_us)
{
    struct epoll_event events[256];
    const uint64_t now_us = bench_now_us(), us = until_us > now_us ? until_us - now_us : 0;
    const struct timespec wait = {.tv_sec = (time_t) (us / 1000000U),
                                  .tv_nsec = (long) (us % 1000000U) * 1000};
    int count = epoll_pwait2(epoll, events, 256, &wait, NULL);

    for (int i = 0; i < count; i++)
        on_readable(events[i].data.ptr);
}

static void run_closed(uint64_t end_us)
{
    while (!is_told_to_end && bench_now_us() < end_us) {
        while (idle != NULL)
            send_one(bench_now_us());
        turn(end_us);
    }
}

static void run_paced(uint64_t from_us, uint64_t end_us, double rate)
{
    for (;;) {
        const uint64_t now_us = bench_now_us();
        const uint64_t due = (uint64_t) ((double) (now_us - from_us) * rate / 1e6);
        const uint64_t next_us = from_us + (uint64_t) ((double) (sent + 1) * 1e6 / rate) + 1;

        if (is_told_to_end || now_us >= end_us)
            return;
        if (due - sent > waited_max && sent < due)
            waited_max = due - sent;
        while (sent < due && idle != NULL) {
            const uint64_t due_us = from_us + (uint64_t) ((double) (sent + 1) * 1e6 / rate);
            note(&late, now_us - due_us);
            send_one(due_us);
        }
        turn(sent < due ? end_us : next_us);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: pace PORT CONNECTIONS RATE SECONDS\n");
        return 2;
    }
    const unsigned connections = (unsigned) atoi(argv[2]);
    const double rate = atof(argv[3]), seconds = atof(argv[4]);
    struct client *clients = calloc(connections, sizeof(*clients));

    if (clients == NULL)
        bench_die("calloc");
    signal(SIGTERM, on_term);
    signal(SIGPIPE, SIG_IGN);
    bench_raise_files();
    port = (unsigned) atoi(argv[1]);
    make_request();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < connections; i++) {
        open_connection(&clients[i]);
        make_idle(&clients[i]);
    }
    turn(bench_now_us() + 50000); /* the handshakes; nothing can be read yet */

    const uint64_t from_us = bench_now_us();
    const uint64_t end_us = seconds > 0 ? from_us + (uint64_t) (seconds * 1e6) : UINT64_MAX / 2;
    if (rate > 0)
        run_paced(from_us, end_us, rate);
    else
        run_closed(end_us);
    const double took_us = (double) (bench_now_us() - from_us);
    const uint64_t counted = right, last_us = bench_now_us() + PATIENCE_US;
    while (busy > 0 && bench_now_us() < last_us)
        turn(last_us);
    failed += busy;
    sort(&took);
    sort(&late);
    printf(
        "rate %.0f right %llu failed %llu p50_us %u p99_us %u max_us %u late_p99_us %u waited_max "
        "%llu\n",
        (double) counted * 1e6 / took_us, (unsigned long long) right, (unsigned long long) failed,
        part_of(&took, 0.5), part_of(&took, 0.99), part_of(&took, 1), part_of(&late, 0.99),
        (unsigned long long) waited_max);
    return failed != 0 || right == 0;
}
