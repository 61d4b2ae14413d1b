/* load.c - requests at a rate or as fast as answers come, every answer checked; and what they cost the gateway.
 *
 *   load PORT [NAME=VALUE ...]
 *     kind=short          a completion of 50 bytes, for simulated workers (spec: gateway/reload_soak)
 *          json|stream    a chat of `bytes`, for mock.c: answered whole, or as a stream of one chunk
 *          chunks         a chat of `bytes`, answered by `chunks` chunks, one every `interval` us (0 = no pause)
 *     bytes=1024          of the body, kinds other than short
 *     connections=32      keep-alive
 *     rate=0              requests a second; 0 = a closed loop, each connection sends its next when its answer is whole
 *     seconds=4           0 = until SIGTERM
 *     warmup=0            seconds before them that are not counted
 *     pids=PID[,PID...]   whose CPU time and memory to tell
 *
 * A request's time counts from the moment at which it was due, so that a gateway that stands still is charged for every
 * request that it keeps waiting, sent or not. How late requests were sent (`late`) is told beside it: for want of a core here,
 * or of a connection without a request on it. At the end it waits for what is under way. Prints one line of pairs:
 *
 *   rate <answers a second> right <n> failed <n> p50_us <us> p99_us <us> max_us <us> first_p50_us <us> first_p99_us <us>
 *   late_p99_us <us> waited_max <requests> chunks <n> cpu_us <of pids, in all> rss_kib <of pids, at the end>
 *
 * first: until an answer's first byte. cpu_us / right is the cost of a request, cpu_us / chunks that of a chunk.
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

#define ANSWER_MAX 16384
#define READ_MAX 262144
#define PIDS_MAX 64
#define PATIENCE_US 10000000U /* for answers after the end */

struct client {
    int fd;
    bool is_busy;
    uint64_t due_us;
    size_t sent, got;    /* bytes; of a stream of chunks, `got` stands still at ANSWER_MAX */
    struct client *next; /* idle */
    char tail[5];        /* the last bytes of a stream of chunks, however they came */
    char answer[];
};

struct times {
    uint32_t *us;
    size_t count, cap;
};

static enum { SHORT, JSON, STREAM, CHUNKS } kind;
static double bytes = 1024, connections = 32, rate, seconds = 4, warmup, chunks_each = 1, interval;
static char *request;
static size_t request_n, answer_max = ANSWER_MAX;
static unsigned port;
static int epoll, pids[PIDS_MAX];
static struct client *idle;
static unsigned busy, pid_count;
static uint64_t right, failed, sent, chunks, waited_max, counted_from_us;
static struct times took, first, late;
static volatile sig_atomic_t is_told_to_end;

static void on_term(int signal)
{
    (void) signal;
    is_told_to_end = 1;
}

/* ---- times ---- */

static void note(struct times *t, uint64_t due_us)
{
    const uint64_t us = bench_now_us() - due_us;

    if (due_us < counted_from_us)
        return;
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

/* ---- the request ---- */

/* Whole words, with escapes and letters of several bytes as real prompts have them, and blanks. */
static void fill_prompt(char *at, size_t size)
{
    static const char words[] =
        "the gateway takes what the \\\"first\\\" runner hands to the second,\\n"
        "and na\xc3\xafvely - \xe6\x8e\xa5\xe5\x8a\x9b\xe6\xa3\x92 - runs on ";
    const size_t n = sizeof(words) - 1;

    memset(at, ' ', size);
    for (size_t i = 0; i + n <= size; i += n)
        memcpy(at + i, words, n);
}

/* wish: the prompt's begin, words that tell mock.c how to answer. */
static void make_request(size_t body_bytes, const char *wish)
{
    static const char short_body[] =
        "{\"model\":\"sim\",\"prompt\":\"hello there\",\"max_tokens\":1}";
    static const char chat_end[] = "\"}],\"max_tokens\":16,\"temperature\":0.7}";
    char begin[200];
    const size_t begin_n =
        (size_t) snprintf(begin, sizeof(begin),
                          "{\"model\":\"m\",%s\"messages\":[{\"role\":\"user\",\"content\":\"%s",
                          kind == STREAM || kind == CHUNKS ? "\"stream\":true," : "", wish);
    const size_t least = begin_n + sizeof(chat_end) - 1;
    char *at;

    if (kind == SHORT)
        body_bytes = sizeof(short_body) - 1;
    else if (body_bytes < least)
        body_bytes = least;
    request = malloc(body_bytes + 1024);
    if (request == NULL)
        bench_die("malloc");
    request_n =
        (size_t) snprintf(request, 1024,
                          "POST /v1/%s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nAccept: */*\r\n"
                          "User-Agent: bench/1\r\nAuthorization: Bearer none\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                          kind == SHORT ? "completions" : "chat/completions", port, body_bytes);
    at = request + request_n;
    request_n += body_bytes;
    if (kind == SHORT) {
        memcpy(at, short_body, body_bytes);
        return;
    }
    memcpy(at, begin, begin_n);
    fill_prompt(at + begin_n, body_bytes - least);
    memcpy(at + begin_n + body_bytes - least, chat_end, sizeof(chat_end) - 1);
}

/* ---- clients ---- */

static void open_connection(struct client *c)
{
    c->fd = bench_connect(port);
    c->sent = request_n;
    bench_watch(epoll, c->fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
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
        fprintf(stderr, "load: %s: %.*s\n", why, (int) (c->got < 400 ? c->got : 400), c->answer);
    close(c->fd);
    open_connection(c);
    make_idle(c);
}

static void send_rest(struct client *c)
{
    while (c->sent < request_n) {
        ssize_t n = write(c->fd, request + c->sent, request_n - c->sent);
        if (n < 0) {
            if (errno != EAGAIN && errno != ENOTCONN)
                fail(c, strerror(errno));
            return;
        }
        c->sent += (size_t) n;
    }
}

static void send_one(uint64_t due_us)
{
    struct client *c = idle;

    idle = c->next;
    c->is_busy = true;
    c->due_us = due_us;
    c->sent = c->got = 0;
    busy++;
    sent++;
    send_rest(c);
}

/* Both kinds of answer end in a way that nothing before it looks like. */
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

static bool is_right(const struct client *c)
{
    return strncmp(c->answer, "HTTP/1.1 200 ", 13) == 0 &&
           (kind == SHORT || strstr(c->answer, "\"bench answer\"") != NULL) &&
           (kind != STREAM || strstr(c->answer, "data: [DONE]") != NULL);
}

/* The server closes the connection behind this answer, and has said so. */
static bool is_last(const struct client *c)
{
    const char *body = strstr(c->answer, "\r\n\r\n");
    const char *close_at = strcasestr(c->answer, "\r\nconnection: close\r\n");

    return close_at != NULL && body != NULL && close_at < body;
}

static void end(struct client *c)
{
    if (!is_right(c)) {
        fail(c, "wrong answer");
        return;
    }
    right++;
    note(&took, c->due_us);
    if (is_last(c)) {
        close(c->fd);
        open_connection(c);
    }
    make_idle(c);
}

/* Of a stream of chunks only the begin and the end are kept: mock.c has one '@' in each chunk, and no chunk looks like the end. */
static bool take_chunks(struct client *c, const char *p, size_t n)
{
    const char *last = p + n, *at = p;
    const size_t kept = n < answer_max - c->got ? n : answer_max - c->got;

    memcpy(c->answer + c->got, p, kept);
    c->got += kept;
    c->answer[c->got] = '\0';
    while ((at = memchr(at, '@', (size_t) (last - at))) != NULL) {
        chunks++;
        at++;
    }
    const size_t fresh = n < sizeof(c->tail) ? n : sizeof(c->tail);
    memmove(c->tail, c->tail + fresh, sizeof(c->tail) - fresh);
    memcpy(c->tail + sizeof(c->tail) - fresh, last - fresh, fresh);
    return memcmp(c->tail, "0\r\n\r\n", sizeof(c->tail)) == 0;
}

static void on_readable(struct client *c)
{
    static char scratch[READ_MAX];
    ssize_t n;

    for (;;) {
        char *to = kind == CHUNKS ? scratch : c->answer + c->got;
        n = read(c->fd, to, kind == CHUNKS ? READ_MAX : answer_max - c->got);
        if (n <= 0)
            break;
        if (c->is_busy && c->got == 0)
            note(&first, c->due_us);
        if (kind != CHUNKS)
            c->got += (size_t) n;
        if (c->is_busy && (kind == CHUNKS ? take_chunks(c, to, (size_t) n) : is_whole(c))) {
            end(c);
            return; /* nothing more can be there yet; if it is, the next edge tells */
        }
    }
    if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
        return;
    if (c->is_busy) {
        fail(c, n == 0 ? "closed" : strerror(errno));
    } else { /* an idle connection may be closed: it stands in the list of idle ones already */
        close(c->fd);
        open_connection(c);
    }
}

/* ---- the run ---- */

/* Waits until something can be read, and no longer than until then. */
static void turn(uint64_t until_us)
{
    struct epoll_event events[256];
    const uint64_t now_us = bench_now_us(), us = until_us > now_us ? until_us - now_us : 0;
    const struct timespec wait = {.tv_sec = (time_t) (us / 1000000U),
                                  .tv_nsec = (long) (us % 1000000U) * 1000};
    int count = epoll_pwait2(epoll, events, 256, &wait, NULL);

    for (int i = 0; i < count; i++) {
        struct client *c = events[i].data.ptr;
        if (c->is_busy && c->sent < request_n)
            send_rest(c);
        if ((events[i].events & ~(uint32_t) EPOLLOUT) != 0)
            on_readable(c);
    }
}

static void run_closed(uint64_t end_us)
{
    for (;;) {
        const uint64_t now_us = bench_now_us();
        if (is_told_to_end || now_us >= end_us)
            return;
        if (idle != NULL) /* again and again where nobody listens */
            send_one(now_us);
        else
            turn(end_us);
    }
}

static void run_paced(uint64_t end_us)
{
    const uint64_t from_us = bench_now_us(), sent_before = sent;

    for (;;) {
        const uint64_t now_us = bench_now_us(), n = sent - sent_before;
        const uint64_t due = (uint64_t) ((double) (now_us - from_us) * rate / 1e6);
        const uint64_t due_us = from_us + (uint64_t) ((double) (n + 1) * 1e6 / rate);

        if (is_told_to_end || now_us >= end_us)
            return;
        if (n < due && due - n > waited_max)
            waited_max = due - n;
        if (n < due && idle != NULL) {
            note(&late, due_us);
            send_one(due_us);
        } else {
            turn(n < due ? end_us : due_us + 1);
        }
    }
}

static void run(uint64_t end_us)
{
    if (rate > 0)
        run_paced(end_us);
    else
        run_closed(end_us);
}

static uint64_t sum_of(uint64_t (*figure)(int pid))
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < pid_count; i++)
        sum += figure(pids[i]);
    return sum;
}

static bool read_pids(char *text)
{
    for (char *word = strtok(text, ","); word != NULL && pid_count < PIDS_MAX;
         word = strtok(NULL, ","))
        pids[pid_count++] = atoi(word);
    return true;
}

static bool read_kind(const char *word)
{
    static const char *const names[] = {"short", "json", "stream", "chunks"};

    for (unsigned i = 0; i < 4; i++)
        if (strcmp(word, names[i]) == 0) {
            kind = i;
            return true;
        }
    return false;
}

static bool read_option(char *word)
{
    static const struct {
        const char *name;
        double *value;
    } numbers[] = {{"bytes", &bytes},      {"connections", &connections}, {"rate", &rate},
                   {"seconds", &seconds},  {"warmup", &warmup},           {"chunks", &chunks_each},
                   {"interval", &interval}};
    char *value = strchr(word, '=');

    if (value == NULL)
        return false;
    *value++ = '\0';
    if (strcmp(word, "pids") == 0)
        return read_pids(value);
    if (strcmp(word, "kind") == 0)
        return read_kind(value);
    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(word, numbers[i].name) == 0) {
            *numbers[i].value = strtod(value, &value);
            return *value == '\0' && *numbers[i].value >= 0;
        }
    return false;
}

int main(int argc, char **argv)
{
    char wish[96] = "";

    port = argc > 1 ? (unsigned) atoi(argv[1]) : 0;
    for (int i = 2; i < argc && port != 0; i++)
        if (!read_option(argv[i])) {
            fprintf(stderr, "load: no such option, or no value for it: %s\n", argv[i]);
            port = 0;
        }
    if (port == 0) {
        fprintf(stderr, "usage: load PORT [kind=short|json|stream|chunks] [bytes=N] "
                        "[connections=N] [rate=N] [seconds=N]\n"
                        "                 [warmup=N] [chunks=N] [interval=US] [pids=PID,PID]\n");
        return 2;
    }
    if (kind == STREAM)
        snprintf(wish, sizeof(wish), "bench stream: ");
    else if (kind == CHUNKS)
        snprintf(wish, sizeof(wish), "bench chunks %.0f %.0f: ", chunks_each, interval);
    if (kind == CHUNKS)
        answer_max = 512;
    signal(SIGTERM, on_term);
    signal(SIGPIPE, SIG_IGN);
    bench_raise_files();
    make_request((size_t) bytes, wish);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < (unsigned) connections; i++) {
        struct client *c = calloc(1, sizeof(*c) + answer_max + 1);
        if (c == NULL)
            bench_die("calloc");
        open_connection(c);
        make_idle(c);
    }
    turn(bench_now_us() + 50000); /* the handshakes; nothing can be read yet */

    counted_from_us = UINT64_MAX;
    run(bench_now_us() + (uint64_t) (warmup * 1e6));
    counted_from_us = bench_now_us();
    const uint64_t right_from = right, chunks_from = chunks, cpu_from = sum_of(bench_cpu_us);
    run(seconds > 0 ? counted_from_us + (uint64_t) (seconds * 1e6) : UINT64_MAX / 2);
    const double took_us = (double) (bench_now_us() - counted_from_us);
    const uint64_t cpu_us = sum_of(bench_cpu_us) - cpu_from, rss_kib = sum_of(bench_rss_kib);
    const uint64_t counted = right - right_from, chunks_counted = chunks - chunks_from;
    const uint64_t last_us = bench_now_us() + PATIENCE_US;
    while (kind != CHUNKS && busy > 0 && bench_now_us() < last_us)
        turn(last_us);
    if (kind != CHUNKS)
        failed += busy;
    sort(&took);
    sort(&first);
    sort(&late);
    printf("rate %.0f right %llu failed %llu p50_us %u p99_us %u max_us %u first_p50_us %u "
           "first_p99_us %u late_p99_us %u waited_max %llu chunks %llu cpu_us %llu rss_kib %llu\n",
           (double) counted * 1e6 / took_us, (unsigned long long) counted,
           (unsigned long long) failed, part_of(&took, 0.5), part_of(&took, 0.99),
           part_of(&took, 1), part_of(&first, 0.5), part_of(&first, 0.99), part_of(&late, 0.99),
           (unsigned long long) waited_max, (unsigned long long) chunks_counted,
           (unsigned long long) cpu_us, (unsigned long long) rss_kib);
    return failed != 0 || (counted == 0 && chunks_counted == 0);
}
