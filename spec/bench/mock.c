/* mock.c - workers that do no work: fixed answers, ready the moment the request is there.
 *
 *   mock PREFILL DECODE       so many prefill and decode ports, all free ones; prints "prefill PORT" and "decode PORT"
 *                             lines, then "ready". A prefill port answers as its bootstrap server, too.
 *   mock free                 prints a port that nobody has
 *
 * A decode port answers as a stream of one chunk when the prompt begins with "bench stream", and as one of N chunks every US
 * microseconds (0 = as fast as they are taken) when it begins with "bench chunks N US": gateways drop headers and members that
 * they do not know. All paced streams have one pace. A prefill port's answer has kv_transfer_params made for the request's
 * X-Request-Id. GET is answered by what health checks and questions for the model want, HTTP/2 by closing.
 */
#include "net.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define READ_BYTES 262144
#define HEAD_MAX 8192
#define PORTS_MAX 16
#define LOOKED_AT 512 /* of a body; the prompt begins there, whatever a gateway made of it */

struct port {
    int fd;
    bool is_prefill;
};

struct conn {
    int fd;
    const struct port *port; /* NULL: this is a listener */
    size_t head_n;
    size_t body_left;
    bool in_body, is_looked_at, is_stream, is_get;
    unsigned chunks_left; /* of the answer under way */
    size_t chunk_n;       /* bytes of the first of them that have been sent */
    unsigned interval_us;
    uint64_t due_us;
    struct conn *next, **from; /* in a queue; from: what points here, NULL = in none */
    char id[160];
    char head[HEAD_MAX];
};

static struct port ports[PORTS_MAX];
static char chat_answer[4096], stream_answer[4096], health_answer[512];
static char scratch[READ_BYTES];
static int epoll;

struct queue {
    struct conn *first, **last;
    unsigned count;
};

static struct queue paced = {.last = &paced.first}; /* the next due first */
static struct queue flat = {.last = &flat.first};   /* with room in their sockets */

#define USAGE "\"usage\":{\"prompt_tokens\":250,\"total_tokens\":255,\"completion_tokens\":5}"

static void put_answer(char *out, size_t size, const char *type, const char *body)
{
    snprintf(out, size,
             "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
             type, strlen(body), body);
}

static void make_answers(void)
{
    static const char event[] =
        "data: "
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1795252121,"
        "\"model\":\"m\","
        "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"bench answer\"},"
        "\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

    put_answer(chat_answer, sizeof(chat_answer), "application/json",
               "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1795252121,"
               "\"model\":\"m\",\"choices\":"
               "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"bench answer\"},"
               "\"finish_reason\":\"stop\"}]," USAGE "}");
    put_answer(health_answer, sizeof(health_answer), "application/json",
               "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"owned_by\":"
               "\"sglang\"}],"
               "\"model_path\":\"m\",\"served_model_name\":\"m\",\"status\":\"ok\"}");
    snprintf(stream_answer, sizeof(stream_answer),
             "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
             "transfer-encoding: chunked\r\n\r\n%zx\r\n%s\r\n0\r\n\r\n",
             sizeof(event) - 1, event);
}

static void send_all(struct conn *c, const char *p)
{
    if (write(c->fd, p, strlen(p)) < 0 && errno != EPIPE && errno != ECONNRESET)
        bench_die("write");
}

static void send_prefill(struct conn *c)
{
    char body[2048], answer[4096];

    snprintf(body, sizeof(body),
             "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\",\"created\":1795252121,"
             "\"model\":\"m\",\"choices\":"
             "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"b\"},\"finish_"
             "reason\":\"length\"}]," USAGE ",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
             "\"do_remote_decode\":false,\"remote_block_ids\":[[1,2,"
             "3,4,5,6,7,8]],\"remote_engine_id\":\"p0\",\"remote_request_id\":\"chatcmpl-%s-0-"
             "bd83aa8a\","
             "\"remote_host\":\"127.0.0.1\",\"remote_port\":40061,\"tp_size\":1,\"dcp_size\":1,"
             "\"pp_size\":1,"
             "\"remote_num_tokens\":250}}",
             c->id, c->id);
    put_answer(answer, sizeof(answer), "application/json", body);
    send_all(c, answer);
}

static void enqueue(struct queue *q, struct conn *c)
{
    c->next = NULL;
    c->from = q->last;
    *q->last = c;
    q->last = &c->next;
    q->count++;
}

static void dequeue(struct queue *q, struct conn *c)
{
    if (c->from == NULL)
        return;
    *c->from = c->next;
    if (c->next != NULL)
        c->next->from = c->from;
    else
        q->last = c->from;
    c->from = NULL;
    q->count--;
}

static struct queue *queue_of(const struct conn *c)
{
    return c->interval_us > 0 ? &paced : &flat;
}

static void watch_room(struct conn *c, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};

    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event) < 0)
        bench_die("epoll_ctl");
}

static void send_chunk(struct conn *c)
{
    static const char chunk[] = "24\r\ndata: {\"choices\":[{\"text\":\"@ab\"}]}\n\n\r\n";
    static const char last[] = "0\r\n\r\n";
    const char *p = c->chunks_left > 0 ? chunk : last;
    const size_t left = strlen(p) - c->chunk_n;

    dequeue(queue_of(c), c);
    const ssize_t n = write(c->fd, p + c->chunk_n, left);
    if (n < 0 && errno != EAGAIN)
        return;
    if (n < (ssize_t) left) {
        c->chunk_n += n > 0 ? (size_t) n : 0;
        watch_room(c, true);
        return;
    }
    c->chunk_n = 0;
    if (c->chunks_left == 0)
        return;
    c->chunks_left--;
    c->due_us += c->interval_us;
    enqueue(queue_of(c), c);
}

static void begin_chunks(struct conn *c)
{
    send_all(c,
             "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
             "transfer-encoding: chunked\r\n\r\n"
             "21\r\ndata: {\"text\":\"bench answer\"}  \n\n\r\n");
    c->due_us = bench_now_us() + c->interval_us;
    enqueue(queue_of(c), c);
}

/* One chunk of each stream that is due, or could take one; until when there is none, -1 = for good. */
static int64_t send_chunks(void)
{
    const uint64_t now_us = bench_now_us();

    for (unsigned left = flat.count; left > 0; left--)
        send_chunk(flat.first);
    while (paced.first != NULL && paced.first->due_us <= now_us)
        send_chunk(paced.first);
    if (flat.first != NULL)
        return 0;
    return paced.first != NULL ? (int64_t) (paced.first->due_us - now_us) : -1;
}

static void answer(struct conn *c)
{
    if (c->is_get)
        send_all(c, health_answer);
    else if (c->port->is_prefill)
        send_prefill(c);
    else if (c->chunks_left > 0)
        begin_chunks(c);
    else
        send_all(c, c->is_stream ? stream_answer : chat_answer);
    c->head_n = 0;
    c->in_body = false;
}

static void copy_value(char *out, size_t size, const char *p)
{
    size_t n = 0;

    for (; *p == ' '; p++)
        continue;
    for (; n + 1 < size && p[n] != '\r' && p[n] != '\0'; n++)
        out[n] = p[n];
    out[n] = '\0';
}

static void read_headers(struct conn *c)
{
    const char *line = c->head;
    char length[32];

    c->body_left = c->chunks_left = 0;
    c->chunk_n = 0;
    c->is_stream = c->is_looked_at = false;
    c->is_get = strncmp(c->head, "GET ", 4) == 0;
    strcpy(c->id, "none");
    while ((line = strchr(line, '\n')) != NULL) {
        line++;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            copy_value(length, sizeof(length), line + 15);
            c->body_left = strtoul(length, NULL, 10);
        } else if (strncasecmp(line, "x-request-id:", 13) == 0) {
            copy_value(c->id, sizeof(c->id), line + 13);
        }
    }
}

/* Bytes of p that were of use. */
static size_t take_head(struct conn *c, const char *p, size_t n)
{
    size_t room = HEAD_MAX - 1 - c->head_n, taken = n < room ? n : room, before = c->head_n;
    char *end;

    memcpy(c->head + c->head_n, p, taken);
    c->head_n += taken;
    c->head[c->head_n] = '\0';
    end = strstr(c->head, "\r\n\r\n");
    if (end == NULL) {
        if (taken == 0)
            exit(1);
        return taken;
    }
    end[2] = '\0';
    read_headers(c);
    c->in_body = true;
    return (size_t) (end + 4 - c->head) - before;
}

static void look_for_wish(struct conn *c, const char *p, size_t n)
{
    static const char mark[] = "bench ";
    const char *at = memmem(p, n, mark, sizeof(mark) - 1);
    char words[64];

    c->is_looked_at = true;
    if (at == NULL)
        return;
    n -= (size_t) (at - p);
    n = n < sizeof(words) ? n : sizeof(words) - 1;
    memcpy(words, at, n);
    words[n] = '\0';
    c->is_stream = true;
    (void) sscanf(words, "bench chunks %u %u", &c->chunks_left, &c->interval_us);
}

static void take(struct conn *c, const char *p, size_t n)
{
    while (n > 0) {
        size_t used;
        if (!c->in_body) {
            used = take_head(c, p, n);
        } else {
            used = n < c->body_left ? n : c->body_left;
            if (!c->is_looked_at)
                look_for_wish(c, p, used < LOOKED_AT ? used : LOOKED_AT);
            c->body_left -= used;
        }
        p += used;
        n -= used;
        if (c->in_body && c->body_left == 0)
            answer(c);
    }
}

/* As engines do that speak HTTP/1.1 alone; gateways try. */
static bool is_http2(const struct conn *c, const char *p, size_t n)
{
    return c->head_n == 0 && !c->in_body && n >= 4 && memcmp(p, "PRI ", 4) == 0;
}

static void on_input(struct conn *c)
{
    ssize_t n = read(c->fd, scratch, sizeof(scratch));

    if (n > 0 && !is_http2(c, scratch, (size_t) n)) {
        take(c, scratch, (size_t) n);
    } else if (n >= 0 || errno != EAGAIN) {
        dequeue(queue_of(c), c);
        close(c->fd);
        free(c);
    }
}

static void on_conn(struct conn *c, uint32_t what)
{
    if ((what & EPOLLOUT) != 0) {
        watch_room(c, false);
        enqueue(queue_of(c), c);
    }
    if ((what & ~(uint32_t) EPOLLOUT) != 0)
        on_input(c);
}

static void on_listener(const struct port *port)
{
    int fd;

    while ((fd = bench_accept(port->fd)) >= 0) {
        struct conn *c = calloc(1, sizeof(*c));
        if (c == NULL)
            bench_die("calloc");
        c->fd = fd;
        c->port = port;
        bench_watch(epoll, fd, EPOLLIN, c);
    }
}

static bool is_port(const void *who)
{
    return (const char *) who >= (const char *) ports &&
           (const char *) who < (const char *) (ports + PORTS_MAX);
}

static int print_free_port(void)
{
    unsigned number;

    close(bench_listen(0, &number));
    printf("%u\n", number);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "free") == 0)
        return print_free_port();
    unsigned prefills = argc > 1 ? (unsigned) atoi(argv[1]) : 2;
    unsigned all = prefills + (argc > 2 ? (unsigned) atoi(argv[2]) : 2);
    struct epoll_event events[256];

    if (all > PORTS_MAX)
        return 2;
    signal(SIGPIPE, SIG_IGN); /* a gateway that ends in the middle of a stream */
    bench_raise_files();
    make_answers();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < all; i++) {
        unsigned number;
        ports[i] = (struct port){bench_listen(0, &number), i < prefills};
        bench_watch(epoll, ports[i].fd, EPOLLIN, &ports[i]);
        printf("%s %u\n", i < prefills ? "prefill" : "decode", number);
    }
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        const int64_t us = send_chunks();
        const struct timespec wait = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
        int count = epoll_pwait2(epoll, events, 256, us < 0 ? NULL : &wait, NULL);
        for (int i = 0; i < count; i++) {
            if (is_port(events[i].data.ptr))
                on_listener(events[i].data.ptr);
            else
                on_conn(events[i].data.ptr, events[i].events);
        }
    }
}
