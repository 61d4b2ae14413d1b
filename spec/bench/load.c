/* load.c - a closed loop of clients that check what they get, and the CPU time that a gateway took for it.
 *
 *   load PORT PID[,PID...] CONNECTIONS SECONDS BODY_BYTES json|stream
 *
 * Each connection sends its next request when the answer to the last one is whole. After a warm-up of a third of
 * the time, answers are counted, and the processes' CPU time over the same window. Prints one line:
 *
 *   <requests per second> <CPU us per request> <requests> <errors>
 */
#include "net.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ANSWER_MAX 16384
#define PIDS_MAX 16

struct client {
    int fd;
    size_t sent;
    size_t got;
    char answer[ANSWER_MAX];
};

static char *request;
static size_t request_n;
static unsigned port;
static bool is_stream;
static int epoll;
static int pids[PIDS_MAX];
static unsigned pid_count;
static uint64_t done, errors;

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

/* A chat of one long message. */
static void make_request(size_t body_bytes)
{
    static const char end[] = "\"}],\"max_tokens\":16,\"temperature\":0.7}";
    char begin[160];
    size_t begin_n, fill;
    char *body;

    begin_n = (size_t) snprintf(
        begin, sizeof(begin), "{\"model\":\"m\",%s\"messages\":[{\"role\":\"user\",\"content\":\"",
        is_stream ? "\"stream\":true," : "");
    if (body_bytes < begin_n + sizeof(end))
        body_bytes = begin_n + sizeof(end);
    fill = body_bytes - begin_n - (sizeof(end) - 1);
    body = malloc(body_bytes);
    request = malloc(body_bytes + 1024);
    if (body == NULL || request == NULL)
        bench_die("malloc");
    memcpy(body, begin, begin_n);
    fill_prompt(body + begin_n, fill);
    memcpy(body + begin_n + fill, end, sizeof(end) - 1);
    request_n = (size_t) snprintf(
        request, 1024,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nAccept: */*\r\n"
        "User-Agent: bench/1\r\nAuthorization: Bearer none\r\n%s"
        "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
        port, is_stream ? "x-bench: stream\r\n" : "", body_bytes);
    memcpy(request + request_n, body, body_bytes);
    request_n += body_bytes;
    free(body);
}

static void start(struct client *c)
{
    c->fd = bench_connect(port);
    c->sent = c->got = 0;
    bench_watch(epoll, c->fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
}

static void fail(struct client *c, const char *why)
{
    if (errors++ == 0)
        fprintf(stderr, "load: %s: %.*s\n", why, (int) (c->got < 400 ? c->got : 400), c->answer);
    close(c->fd);
    start(c);
}

static void send_rest(struct client *c)
{
    while (c->sent < request_n) {
        ssize_t n = write(c->fd, request + c->sent, request_n - c->sent);
        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
            return;
        if (n < 0) {
            fail(c, "write");
            return;
        }
        c->sent += (size_t) n;
    }
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
           strstr(c->answer, "\"bench answer\"") != NULL &&
           (!is_stream || strstr(c->answer, "data: [DONE]") != NULL);
}

static void on_readable(struct client *c)
{
    ssize_t n;

    while ((n = read(c->fd, c->answer + c->got, ANSWER_MAX - 1 - c->got)) > 0) {
        c->got += (size_t) n;
        if (!is_whole(c))
            continue;
        if (!is_right(c)) {
            fail(c, "wrong answer");
            return;
        }
        done++;
        c->sent = c->got = 0;
        send_rest(c);
        return; /* nothing more can be there yet; if it is, the next edge tells */
    }
    if (n == 0 || (errno != EAGAIN && errno != ENOTCONN))
        fail(c, n == 0 ? "closed" : strerror(errno));
}

static void turn_until(uint64_t end_us)
{
    struct epoll_event events[256];
    uint64_t now;

    while ((now = bench_now_us()) < end_us) {
        int count = epoll_wait(epoll, events, 256, (int) ((end_us - now) / 1000 + 1));
        for (int i = 0; i < count; i++) {
            struct client *c = events[i].data.ptr;
            if (c->sent < request_n)
                send_rest(c);
            if ((events[i].events & ~(uint32_t) EPOLLOUT) != 0)
                on_readable(c);
        }
    }
}

static uint64_t cpu_us(void)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < pid_count; i++)
        sum += bench_cpu_us(pids[i]);
    return sum;
}

static void read_pids(char *text)
{
    for (char *word = strtok(text, ","); word != NULL && pid_count < PIDS_MAX;
         word = strtok(NULL, ","))
        pids[pid_count++] = atoi(word);
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr,
                "usage: load PORT PID[,PID...] CONNECTIONS SECONDS BODY_BYTES json|stream\n");
        return 2;
    }
    port = (unsigned) atoi(argv[1]);
    read_pids(argv[2]);
    unsigned connections = (unsigned) atoi(argv[3]);
    double seconds = atof(argv[4]);
    is_stream = strcmp(argv[6], "stream") == 0;
    bench_raise_files();
    make_request(strtoul(argv[5], NULL, 10));
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct client *clients = calloc(connections, sizeof(*clients));
    if (clients == NULL)
        bench_die("calloc");
    for (unsigned i = 0; i < connections; i++)
        start(&clients[i]);

    turn_until(bench_now_us() + (uint64_t) (seconds * 1e6 / 3));
    uint64_t from_us = bench_now_us(), cpu_from = cpu_us(), done_from = done;
    turn_until(from_us + (uint64_t) (seconds * 1e6));
    uint64_t cpu = cpu_us() - cpu_from, counted = done - done_from;
    double took_us = (double) (bench_now_us() - from_us);
    printf("%.0f %.2f %llu %llu\n", (double) counted * 1e6 / took_us,
           counted > 0 ? (double) cpu / (double) counted : 0.0, (unsigned long long) counted,
           (unsigned long long) errors);
    return errors != 0 || counted == 0;
}
