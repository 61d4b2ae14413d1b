/* floor.c - the system calls of a gateway and nothing else: what no gateway gets below that reads and writes each message once.
 *
 *   floor handoff|bootstrap PREFILL_PORT[,...] DECODE_PORT[,...] PORT
 *
 * handoff:   prefill is asked, what its answer says under "kv_transfer_params" is put before the body's last brace, decode is
 *            asked, its answer handed on.
 * bootstrap: a room is put before the body's last brace, both are asked at once, decode's answer is handed on, prefill's dropped.
 *
 * One thread, bare epoll. A client has a connection to one worker of each role for good: no pool, no policy, no deadline, no
 * error handling (whatever is amiss ends that client). Not a gateway: it trusts all that it reads.
 */
#include "net.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#define BODY_MAX 1048576
#define HEAD_MAX 8192
#define ANSWER_MAX 65536
#define PORTS_MAX 16

struct client;

/* One socket; `out` is what it has not taken yet. */
struct end {
    struct client *client;
    int fd;
    struct iovec out[3];
};

struct client {
    struct end self, prefill, decode;
    bool prefill_done, decode_done, is_gone, has_next;
    size_t head_n, got, request_n; /* 0 = the head is not whole */
    size_t answer_got;             /* of prefill's, in `answer` */
    size_t left;                   /* of decode's body; SIZE_MAX = chunked */
    bool in_answer;
    char heads[2][512], splice[2][2048];
    char answer[8192];
    char *request;
    struct client *next_gone;
};

static unsigned ports[2][PORTS_MAX], port_count[2], clients;
static bool is_handoff;
static int epoll, listener;
static uint64_t rooms = 1;
static struct client *gone;

/* ---- sockets ---- */

static void close_client(struct client *c)
{
    if (c->is_gone)
        return;
    c->is_gone = true;
    close(c->self.fd);
    close(c->prefill.fd);
    close(c->decode.fd);
    c->next_gone = gone; /* until the turn's end: its other sockets may be in this turn, too */
    gone = c;
}

static void flush(struct end *e)
{
    while (e->out[0].iov_len + e->out[1].iov_len + e->out[2].iov_len > 0) {
        ssize_t n = writev(e->fd, e->out, 3);
        if (n < 0) {
            if (errno != EAGAIN && errno != ENOTCONN)
                close_client(e->client);
            return;
        }
        for (unsigned i = 0; i < 3; i++) {
            const size_t part = (size_t) n < e->out[i].iov_len ? (size_t) n : e->out[i].iov_len;
            e->out[i].iov_base = (char *) e->out[i].iov_base + part;
            e->out[i].iov_len -= part;
            n -= (ssize_t) part;
        }
    }
}

static void watch(struct client *c, struct end *e, int fd)
{
    e->client = c;
    e->fd = fd;
    bench_watch(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET, e);
}

static void on_listener(void)
{
    int fd;

    while ((fd = bench_accept(listener)) >= 0) {
        struct client *c = calloc(1, sizeof(*c));
        if (c == NULL || (c->request = malloc(BODY_MAX + HEAD_MAX)) == NULL)
            bench_die("malloc");
        watch(c, &c->self, fd);
        watch(c, &c->prefill, bench_connect(ports[0][clients % port_count[0]]));
        watch(c, &c->decode, bench_connect(ports[1][clients % port_count[1]]));
        clients++;
    }
}

/* ---- messages ---- */

static size_t length_of(const char *head)
{
    const char *at = strcasestr(head, "content-length:");

    return at != NULL ? strtoul(at + 15, NULL, 10) : SIZE_MAX;
}

/* The client's body with `splice` before its last brace, in one write. */
static void ask(struct client *c, bool is_decode)
{
    struct end *e = is_decode ? &c->decode : &c->prefill;
    char *head = c->heads[is_decode], *splice = c->splice[is_decode];
    const size_t body_n = c->request_n - c->head_n, splice_n = strlen(splice);
    const int n = snprintf(head, sizeof(c->heads[0]),
                           "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                           "content-type: application/json\r\n"
                           "x-request-id: floor\r\ncontent-length: %zu\r\n\r\n",
                           body_n - 1 + splice_n);

    e->out[0] = (struct iovec){head, (size_t) n};
    e->out[1] = (struct iovec){c->request + c->head_n, body_n - 1};
    e->out[2] = (struct iovec){splice, splice_n};
    flush(e);
}

static void on_request(struct client *c)
{
    c->prefill_done = c->decode_done = c->in_answer = false;
    c->answer_got = 0;
    if (is_handoff) {
        strcpy(c->splice[0], ",\"kv_transfer_params\":{\"do_remote_decode\":true}}");
        ask(c, false);
        return;
    }
    for (unsigned i = 0; i < 2; i++)
        snprintf(c->splice[i], sizeof(c->splice[i]),
                 ",\"bootstrap_host\":\"127.0.0.1\",\"bootstrap_port\":8998,"
                 "\"bootstrap_room\":%llu}",
                 (unsigned long long) rooms);
    rooms++;
    ask(c, false);
    ask(c, true);
}

static void on_client(struct client *c)
{
    ssize_t n;
    char *last;

    c->has_next = c->request_n != 0 && c->got == c->request_n; /* decode was faster than prefill */
    if (c->has_next)
        return;
    while ((n = read(c->self.fd, c->request + c->got, BODY_MAX + HEAD_MAX - 1 - c->got)) > 0) {
        c->got += (size_t) n;
        c->request[c->got] = '\0';
        if (c->request_n == 0 && (last = strstr(c->request, "\r\n\r\n")) != NULL) {
            c->head_n = (size_t) (last + 4 - c->request);
            c->request_n = c->head_n + length_of(c->request);
        }
        if (c->request_n != 0 && c->got == c->request_n) {
            on_request(c);
            return; /* nothing more can be there yet; if it is, the next edge tells */
        }
    }
    if (n == 0 || errno != EAGAIN)
        close_client(c);
}

static void end_request(struct client *c)
{
    if (!c->prefill_done || !c->decode_done)
        return;
    c->got = c->request_n = 0;
    if (c->has_next)
        on_client(c);
}

static void on_prefill(struct client *c)
{
    const size_t room = sizeof(c->answer) - 1 - c->answer_got;
    const ssize_t n = read(c->prefill.fd, c->answer + c->answer_got, room);
    const char *body, *parameters;

    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != ENOTCONN))
            close_client(c);
        return;
    }
    c->answer_got += (size_t) n;
    c->answer[c->answer_got] = '\0';
    body = strstr(c->answer, "\r\n\r\n");
    if (body == NULL || c->answer_got < (size_t) (body + 4 - c->answer) + length_of(c->answer))
        return;
    c->prefill_done = true;
    if (!is_handoff) {
        end_request(c);
        return;
    }
    parameters = strstr(body, "\"kv_transfer_params\""); /* mock.c's last member */
    if (parameters == NULL) {
        close_client(c);
        return;
    }
    snprintf(c->splice[1], sizeof(c->splice[1]), ",%s", parameters);
    ask(c, true);
}

/* True when these bytes end decode's answer. */
static bool take_answer(struct client *c, const char *p, size_t n)
{
    const char *body = NULL;

    if (!c->in_answer) {
        body = strstr(p, "\r\n\r\n"); /* mock.c writes a head at once */
        if (body == NULL)
            return false;
        c->in_answer = true;
        c->left = strcasestr(p, "transfer-encoding:") != NULL ? SIZE_MAX : length_of(p);
        n -= (size_t) (body + 4 - p);
        p = body + 4;
    }
    if (c->left != SIZE_MAX) {
        c->left -= n;
        return c->left == 0;
    }
    return n >= 5 && memcmp(p + n - 5, "0\r\n\r\n", 5) == 0;
}

/* True = there may be more. */
static bool on_decode(struct client *c)
{
    static char bytes[ANSWER_MAX + 1];
    const ssize_t n = read(c->decode.fd, bytes, ANSWER_MAX);

    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != ENOTCONN))
            close_client(c);
        return false;
    }
    bytes[n] = '\0';
    c->decode_done = take_answer(c, bytes, (size_t) n);
    if (write(c->self.fd, bytes, (size_t) n) !=
        n) /* a client that does not read is no client of ours */
        close_client(c);
    else
        end_request(c);
    return n == ANSWER_MAX && !c->is_gone;
}

static void on_end(struct end *e, uint32_t what)
{
    struct client *c = e->client;

    if ((what & EPOLLOUT) != 0)
        flush(e);
    if ((what & ~(uint32_t) EPOLLOUT) == 0 || c->is_gone)
        return;
    if (e == &c->self)
        on_client(c);
    else if (e == &c->prefill)
        on_prefill(c);
    else
        while (on_decode(c))
            continue;
}

static void free_gone(void)
{
    while (gone != NULL) {
        struct client *c = gone;
        gone = c->next_gone;
        free(c->request);
        free(c);
    }
}

static void read_ports(unsigned role, char *text)
{
    for (char *word = strtok(text, ","); word != NULL && port_count[role] < PORTS_MAX;
         word = strtok(NULL, ","))
        ports[role][port_count[role]++] = (unsigned) atoi(word);
}

int main(int argc, char **argv)
{
    struct epoll_event events[256];
    unsigned port;

    if (argc == 5) {
        is_handoff = strcmp(argv[1], "handoff") == 0;
        read_ports(0, argv[2]);
        read_ports(1, argv[3]);
    }
    if (port_count[0] == 0 || port_count[1] == 0) {
        fprintf(stderr,
                "usage: floor handoff|bootstrap PREFILL_PORT[,...] DECODE_PORT[,...] PORT\n");
        return 2;
    }
    bench_raise_files();
    signal(SIGPIPE, SIG_IGN);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    listener = bench_listen((unsigned) atoi(argv[4]), &port);
    bench_watch(epoll, listener, EPOLLIN, NULL);
    for (;;) {
        const int count = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == NULL)
                on_listener();
            else
                on_end(events[i].data.ptr, events[i].events);
        }
        free_gone();
    }
}
