/* streams.c - many streams at once through a gateway, every text checked.
 *
 *   streams PORT PID STREAMS TOKENS PER_SECOND MODEL_A MODEL_B
 *
 * Opens STREAMS streams, PER_SECOND new ones a second, even ones of MODEL_A, odd ones of MODEL_B, completions and chats
 * in turn. Each has a prompt of its own and so a text of its own; the words are computed here, from the formula in
 * examples/sim/README.md, and compared byte by byte as they come. Prints a line of "name value" pairs:
 *
 *   right, wrong, errors      how the streams ended (wrong: text or its end; errors: status, framing, broken off, too late)
 *   open_max                  streams that were past their first event and not at their end, at one moment
 *   events, events_min        data events of all, of the shortest
 *   rate_min                  events a second of the slowest
 *   rss_kib, cpu_us_per_event of process PID while all were open
 */
#include "net.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048
#define TOO_LATE_US 240000000U

enum place { HEAD, SIZE, DATA, DATA_END, LAST, WHOLE };

struct stream {
    int fd;
    unsigned number;
    enum place place;
    uint64_t kv;
    size_t chunk_left, line_n, text_n;
    uint64_t first_us, last_us;
    unsigned events;
    bool is_chat, is_wrong, is_done, is_over;
    char line[LINE_MAX_BYTES];
};

static struct stream *streams;
static unsigned count, tokens, port, opened, open_now, open_max, over, right, wrong, errors;
static const char *models[2];
static uint64_t events, all_open_us, all_open_cpu, all_open_events, rss_kib, steady_cpu,
    steady_events;
static int epoll, gateway_pid;

/* ---- the text to expect ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9U;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBU;
    return x ^ x >> 31;
}

static uint64_t kv_of(const char *prompt)
{
    size_t n = strlen(prompt);
    uint64_t s = 0x9E3779B97F4A7C15U;

    for (size_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        memcpy(&word, prompt + at, n - at < 8 ? n - at : 8);
        s = (s ^ word) * 0xFF51AFD7ED558CCDU;
        s ^= s >> 32;
    }
    return mix(s ^ n * 0x9E3779B97F4A7C15U);
}

static char expected_at(const struct stream *s, size_t at)
{
    static const char consonants[] = "bcdfghjklmnprstz", vowels[] = "aeiouaei";
    uint64_t x = mix(s->kv ^ mix(1) ^ (uint64_t) (at / 6 + 1) * 0xD6E8FEB86659FD93U);

    switch (at % 6) {
    case 0:
        return consonants[x & 15];
    case 1:
        return vowels[x >> 4 & 7];
    case 2:
        return consonants[x >> 7 & 15];
    case 3:
        return vowels[x >> 11 & 7];
    case 4:
        return consonants[x >> 14 & 15];
    default:
        return ' ';
    }
}

/* ---- a stream's life ---- */

static void note_edge(void)
{
    if (open_now == count && all_open_us == 0) {
        all_open_us = bench_now_us();
        all_open_cpu = bench_cpu_us(gateway_pid);
        all_open_events = events;
        rss_kib = bench_rss_kib(gateway_pid);
    }
}

static void end(struct stream *s, const char *error)
{
    if (s->is_over)
        return;
    if (open_now == count) { /* the first to end */
        steady_cpu = bench_cpu_us(gateway_pid) - all_open_cpu;
        steady_events = events - all_open_events;
    }
    s->is_over = true;
    over++;
    open_now -= s->events > 0;
    close(s->fd);
    if (error != NULL) {
        if (errors++ < 5)
            fprintf(stderr, "stream %u: %s after %u events: %.*s\n", s->number, error, s->events,
                    (int) s->line_n, s->line);
    } else if (s->is_wrong || !s->is_done || s->text_n + 1 != (size_t) tokens * 6) {
        if (wrong++ < 5)
            fprintf(stderr, "stream %u: wrong text or end (%zu bytes, %u events)\n", s->number,
                    s->text_n, s->events);
    } else {
        right++;
    }
}

static void open_stream(unsigned number)
{
    struct stream *s = &streams[number];
    char prompt[128], kv_text[160], body[512], request[1024];
    int n;

    s->number = number;
    s->is_chat = number / 2 % 2 == 1;
    snprintf(prompt, sizeof(prompt),
             "stream %u: the first runner hands to the second what it carries", number);
    snprintf(kv_text, sizeof(kv_text), s->is_chat ? "user\n%s\n" : "%s", prompt);
    s->kv = kv_of(kv_text);
    snprintf(body, sizeof(body),
             s->is_chat ? "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],"
                          "\"max_tokens\":%u,"
                          "\"temperature\":0,\"stream\":true}"
                        : "{\"model\":\"%s\",\"prompt\":\"%s\",\"max_tokens\":%u,\"temperature\":0,"
                          "\"stream\":true}",
             models[number % 2], prompt, tokens);
    n = snprintf(request, sizeof(request),
                 "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                 "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 s->is_chat ? "/v1/chat/completions" : "/v1/completions", strlen(body), body);
    s->fd = bench_connect(port);
    bench_watch(epoll, s->fd, EPOLLIN | EPOLLOUT | EPOLLET, s);
    /* On the loopback a connection is there before connect() returns, unless the backlog is full. */
    if (write(s->fd, request, (size_t) n) != n)
        end(s, "the request was not taken");
}

static void take_text(struct stream *s, const char *p)
{
    for (; *p != '"' && *p != '\0'; p++)
        if (*p != expected_at(s, s->text_n++))
            s->is_wrong = true;
}

static void take_line(struct stream *s)
{
    const char *text;

    s->line[s->line_n] = '\0';
    s->line_n = 0;
    if (strncmp(s->line, "data: ", 6) != 0)
        return;
    if (strncmp(s->line + 6, "[DONE]", 6) == 0) {
        s->is_done = true;
        return;
    }
    if (s->events++ == 0) {
        s->first_us = bench_now_us();
        if (++open_now > open_max)
            open_max = open_now;
        note_edge();
    }
    events++;
    s->last_us = bench_now_us();
    text = strstr(s->line, s->is_chat ? "\"content\":\"" : "\"text\":\"");
    if (text != NULL)
        take_text(s, strchr(text, ':') + 2);
}

static bool put(struct stream *s, char c)
{
    if (s->line_n >= LINE_MAX_BYTES - 1)
        return false;
    s->line[s->line_n++] = c;
    return true;
}

static bool ends_with(const struct stream *s, const char *tail)
{
    size_t n = strlen(tail);

    return s->line_n >= n && memcmp(s->line + s->line_n - n, tail, n) == 0;
}

/* One byte; NULL, or what is wrong with it. */
static const char *take(struct stream *s, char c)
{
    if (s->place != DATA && s->place != WHOLE && !put(s, c))
        return "a line without end";
    switch (s->place) {
    case HEAD:
        if (!ends_with(s, "\r\n\r\n"))
            return NULL;
        if (strncmp(s->line, "HTTP/1.1 200 ", 13) != 0)
            return "status";
        s->place = SIZE;
        break;
    case SIZE:
        if (c != '\n')
            return NULL;
        s->chunk_left = strtoul(s->line, NULL, 16);
        s->place = s->chunk_left > 0 ? DATA : LAST;
        break;
    case DATA:
        s->place = --s->chunk_left == 0 ? DATA_END : DATA;
        if (c == '\n')
            take_line(s);
        else if (!put(s, c))
            return "an event without end";
        return s->place == DATA_END && s->line_n > 0 ? "a chunk that ends inside a line" : NULL;
    case DATA_END:
        if (c != '\n')
            return NULL;
        s->place = SIZE;
        break;
    case LAST:
        if (c == '\n')
            s->place = WHOLE;
        break;
    case WHOLE:
        return "bytes behind the end";
    }
    s->line_n = 0;
    return NULL;
}

static void on_readable(struct stream *s)
{
    char piece[16384];
    const char *error = NULL;
    ssize_t n;

    while ((n = read(s->fd, piece, sizeof(piece))) > 0) {
        for (ssize_t i = 0; i < n && error == NULL; i++)
            error = take(s, piece[i]);
        if (error != NULL || s->place == WHOLE) {
            end(s, error);
            return;
        }
    }
    if (n == 0)
        end(s, "closed");
    else if (errno != EAGAIN && errno != ENOTCONN)
        end(s, strerror(errno));
}

static void turn(int timeout_ms)
{
    struct epoll_event list[512];
    int n = epoll_wait(epoll, list, 512, timeout_ms);

    for (int i = 0; i < n; i++) {
        struct stream *s = list[i].data.ptr;
        if (!s->is_over && (list[i].events & ~(uint32_t) EPOLLOUT) != 0)
            on_readable(s);
    }
}

static void report(void)
{
    unsigned events_min = 0;
    double rate_min = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct stream *s = &streams[i];
        double seconds = (double) (s->last_us - s->first_us) / 1e6;
        double rate = s->events > 1 && seconds > 0 ? (s->events - 1) / seconds : 0;
        if (i == 0 || s->events < events_min)
            events_min = s->events;
        if (i == 0 || rate < rate_min)
            rate_min = rate;
    }
    printf("right %u wrong %u errors %u open_max %u events %llu events_min %u rate_min %.2f "
           "rss_kib %llu cpu_us_per_event %.1f\n",
           right, wrong, errors, open_max, (unsigned long long) events, events_min, rate_min,
           (unsigned long long) rss_kib,
           steady_events > 0 ? (double) steady_cpu / (double) steady_events : 0.0);
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: streams PORT PID STREAMS TOKENS PER_SECOND MODEL_A MODEL_B\n");
        return 2;
    }
    port = (unsigned) atoi(argv[1]);
    gateway_pid = atoi(argv[2]);
    count = (unsigned) atoi(argv[3]);
    tokens = (unsigned) atoi(argv[4]);
    unsigned per_second = (unsigned) atoi(argv[5]);
    models[0] = argv[6];
    models[1] = argv[7];
    bench_raise_files();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    streams = calloc(count, sizeof(*streams));
    if (streams == NULL)
        bench_die("calloc");
    uint64_t start_us = bench_now_us(), now;
    while (over < count && (now = bench_now_us() - start_us) < TOO_LATE_US) {
        while (opened < count && (uint64_t) opened * 1000000U <= now * per_second)
            open_stream(opened++);
        turn(opened < count ? 2 : 100);
    }
    for (unsigned i = 0; i < opened; i++)
        end(&streams[i], "too late");
    report();
    return right == count ? 0 : 1;
}
