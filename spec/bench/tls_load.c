/* tls_load.c - clients that speak TLS: many that are idle, some that ask, and handshakes; what they cost a gateway.
 *
 *   tls_load PORT [NAME=VALUE ...]
 *     idle=1000      connections that ask once and then stay
 *     resumed=1000   connections with a ticket after them, each for one request
 *     active=100     connections after that, each of which sends its next request when its answer is whole
 *     warmup=1       seconds of those that are not counted
 *     seconds=4      and that are
 *     patience=60    seconds in which the connections of a kind have to be there
 *     steps=1        before each of its four parts print "part" and wait for a line: whoever runs several says whose turn it is
 *     pids=PID[,PID...]   whose CPU time and memory to tell
 *
 * Each answer has to be 200 and come whole, and each ticket to be taken. The certificate is not verified: that costs the gateway nothing. Prints one line of
 * pairs:
 *
 *   failed <n> open_us <CPU of pids for a full handshake and a request> open_rate <a second> idle_kib <memory of an idle connection>
 *   resumed_us <CPU for a handshake with a ticket and a request> right <n> rate <answers a second> request_us <CPU>
 *   rss_kib <memory in all, at the end>
 */
#include "net.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ANSWER_MAX 8192
#define AT_ONCE 64U /* handshakes under way */
#define PIDS_MAX 64
#define TICKETS_MAX 8192U
#define BODY_BYTES 1024U

enum state { SHAKING, ASKING, WAITING, STAYING };

struct client {
    int fd;
    SSL *ssl;
    enum state state;
    bool goes;  /* after its answer */
    bool again; /* asks again after it */
    bool is_fresh;
};

static double idle = 1000, active = 100, seconds = 4, warmup = 1, resumed = 1000, patience = 60;
static double steps;
static int epoll, pids[PIDS_MAX];
static unsigned port, pid_count, fresh; /* fresh: without their first answer */
static uint64_t right, failed;
static SSL_CTX *context;
static SSL_SESSION *tickets[TICKETS_MAX]; /* OpenSSL uses each of them once */
static unsigned ticket_count;
static bool with_ticket;
static char request[4096];
static int request_n;

static uint64_t sum_of(uint64_t (*figure)(int pid))
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < pid_count; i++)
        sum += figure(pids[i]);
    return sum;
}

/* ---- a client ---- */

static int on_ticket(SSL *ssl, SSL_SESSION *session)
{
    (void) ssl;
    if (ticket_count == TICKETS_MAX)
        return 0;
    tickets[ticket_count++] = session;
    return 1;
}

static void use_ticket(SSL *ssl)
{
    if (ticket_count == 0 || SSL_set_session(ssl, tickets[--ticket_count]) != 1)
        bench_die("no ticket");
    SSL_SESSION_free(tickets[ticket_count]);
}

static void drop(struct client *c)
{
    fresh -= c->is_fresh;
    SSL_set_shutdown(c->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* its ticket stays good */
    SSL_free(c->ssl);
    close(c->fd);
    free(c);
}

static void fail(struct client *c, const char *why)
{
    const char *more = ERR_reason_error_string(ERR_peek_error());

    if (failed++ == 0)
        fprintf(stderr, "tls_load: %s%s%s\n", why, more != NULL ? ": " : "",
                more != NULL ? more : "");
    drop(c);
}

static void open_client(bool goes, bool again)
{
    struct client *c = calloc(1, sizeof(*c));

    if (c == NULL)
        bench_die("calloc");
    *c = (struct client){.fd = bench_connect(port),
                         .ssl = SSL_new(context),
                         .goes = goes,
                         .again = again,
                         .is_fresh = true};
    if (c->ssl == NULL || SSL_set_fd(c->ssl, c->fd) != 1)
        bench_die("SSL_new");
    if (with_ticket)
        use_ticket(c->ssl);
    SSL_set_connect_state(c->ssl);
    bench_watch(epoll, c->fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
    fresh++;
}

static bool waits(struct client *c, int rc)
{
    const int why = SSL_get_error(c->ssl, rc);

    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ||
           (why == SSL_ERROR_SYSCALL && errno == ENOTCONN);
}

static bool is_whole(const char *answer)
{
    const char *body = strstr(answer, "\r\n\r\n"), *length = strcasestr(answer, "content-length:");

    return body != NULL && length != NULL && length < body &&
           strlen(body + 4) == strtoul(length + 15, NULL, 10);
}

/* An answer comes as a whole: it is short, and the gateway has it from one read. In two, it is put together. */
static bool read_answer(struct client *c)
{
    static char answer[ANSWER_MAX];
    int n = 0, rc;

    while ((rc = SSL_read(c->ssl, answer + n, ANSWER_MAX - 1 - n)) > 0) {
        n += rc;
        answer[n] = '\0';
        if (is_whole(answer))
            break;
    }
    if (rc <= 0 && n == 0 && waits(c, rc))
        return false;
    if (rc <= 0 || strncmp(answer, "HTTP/1.1 200 ", 13) != 0) {
        fail(c, n == 0 ? "closed" : "wrong answer, or in parts");
        return false;
    }
    right++;
    fresh -= c->is_fresh;
    c->is_fresh = false;
    c->state = c->again ? ASKING : STAYING;
    if (!c->goes)
        return true;
    drop(c);
    return false;
}

static bool shake_hands(struct client *c)
{
    const int rc = SSL_do_handshake(c->ssl);

    if (rc == 1 && SSL_session_reused(c->ssl) != with_ticket) {
        fail(c, "the ticket was not taken");
        return false;
    }
    if (rc != 1 && !waits(c, rc)) {
        fail(c, "handshake");
        return false;
    }
    c->state = rc == 1 ? ASKING : SHAKING;
    return rc == 1;
}

static bool ask(struct client *c)
{
    const int rc = SSL_write(c->ssl, request, request_n);

    if (rc != request_n) {
        if (!waits(c, rc))
            fail(c, "write");
        return false;
    }
    c->state = WAITING;
    return true;
}

static void advance(struct client *c)
{
    char byte;
    int rc;

    ERR_clear_error();
    for (;;)
        switch (c->state) {
        case SHAKING:
            if (!shake_hands(c))
                return;
            break;
        case ASKING:
            if (!ask(c))
                return;
            break;
        case WAITING:
            if (!read_answer(c))
                return;
            break;
        case STAYING: /* nothing may come but a ticket */
            rc = SSL_read(c->ssl, &byte, 1);
            if (rc > 0 || !waits(c, rc))
                fail(c, "an idle connection was closed");
            return;
        }
}

static void turn(int ms)
{
    struct epoll_event events[256];
    const int count = epoll_wait(epoll, events, 256, ms);

    for (int i = 0; i < count; i++)
        advance(events[i].data.ptr);
}

/* ---- the run ---- */

/* Whoever started this ends the wait, with a line or by closing the pipe. */
static void begin_part(void)
{
    if (steps == 0)
        return;
    puts("part");
    fflush(stdout);
    if (getchar() == EOF)
        exit(1);
}

/* So many connections, AT_ONCE of them at a time, until each has had its first answer. Seconds. */
static double open_all(unsigned count, bool goes, bool again)
{
    const uint64_t from_us = bench_now_us();
    unsigned opened = 0;

    while ((opened < count || fresh > 0) && failed == 0) {
        for (; opened < count && fresh < AT_ONCE; opened++)
            open_client(goes, again);
        turn(10);
        if (bench_now_us() - from_us > (uint64_t) (patience * 1e6))
            bench_die("no answers");
    }
    return (double) (bench_now_us() - from_us) / 1e6;
}

static void run_for(double for_seconds)
{
    const uint64_t until_us = bench_now_us() + (uint64_t) (for_seconds * 1e6);

    while (bench_now_us() < until_us)
        turn(10);
}

static void make_request(void)
{
    static const char begin[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"";
    static const char end[] = "\"}],\"max_tokens\":16,\"temperature\":0.7}";

    request_n = snprintf(request, sizeof(request),
                         "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                         "User-Agent: bench/1\r\nContent-Type: application/json\r\n"
                         "Content-Length: %u\r\n\r\n%s%*s%s",
                         port, BODY_BYTES, begin,
                         (int) (BODY_BYTES - sizeof(begin) - sizeof(end) + 2), "word", end);
}

static void make_context(void)
{
    context = SSL_CTX_new(TLS_client_method());
    if (context == NULL)
        bench_die("SSL_CTX_new");
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_session_cache_mode(context,
                                   SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(context, on_ticket);
}

static bool read_option(char *word)
{
    static const struct {
        const char *name;
        double *value;
    } numbers[] = {{"idle", &idle},     {"active", &active},   {"seconds", &seconds},
                   {"warmup", &warmup}, {"resumed", &resumed}, {"patience", &patience},
                   {"steps", &steps}};
    char *value = strchr(word, '=');

    if (value == NULL)
        return false;
    *value++ = '\0';
    if (strcmp(word, "pids") == 0) {
        for (char *pid = strtok(value, ","); pid != NULL && pid_count < PIDS_MAX;
             pid = strtok(NULL, ","))
            pids[pid_count++] = atoi(pid);
        return true;
    }
    for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(word, numbers[i].name) == 0) {
            *numbers[i].value = strtod(value, &value);
            return *value == '\0' && *numbers[i].value >= 1;
        }
    return false;
}

int main(int argc, char **argv)
{
    port = argc > 1 ? (unsigned) atoi(argv[1]) : 0;
    for (int i = 2; i < argc && port != 0; i++)
        if (!read_option(argv[i])) {
            fprintf(stderr, "tls_load: no such option, or no value for it: %s\n", argv[i]);
            port = 0;
        }
    if (port == 0) {
        fprintf(stderr, "usage: tls_load PORT [idle=N] [active=N] [seconds=N] [warmup=N] "
                        "[resumed=N] [patience=N] [steps=1] [pids=PID,PID]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    bench_raise_files();
    make_request();
    make_context();
    epoll = epoll_create1(EPOLL_CLOEXEC);

    begin_part();
    uint64_t rss = sum_of(bench_rss_kib), cpu = sum_of(bench_cpu_us);
    const double open_s = open_all((unsigned) idle, false, false);
    const double open_us = (double) (sum_of(bench_cpu_us) - cpu) / idle;
    run_for(1);
    const double idle_kib = (double) (sum_of(bench_rss_kib) - rss) / idle;

    begin_part();
    with_ticket = true;
    cpu = sum_of(bench_cpu_us);
    open_all((unsigned) resumed, true, false);
    const double resumed_us = (double) (sum_of(bench_cpu_us) - cpu) / resumed;

    begin_part();
    with_ticket = false;
    open_all((unsigned) active, false, true);
    begin_part();
    run_for(warmup);
    const uint64_t before = right, from_us = bench_now_us();
    cpu = sum_of(bench_cpu_us);
    run_for(seconds);
    const double answers = (double) (right - before), took_us = (double) (bench_now_us() - from_us);
    cpu = sum_of(bench_cpu_us) - cpu;
    rss = sum_of(bench_rss_kib);
    printf("failed %llu open_us %.1f open_rate %.0f idle_kib %.2f resumed_us %.1f right %.0f rate "
           "%.0f "
           "request_us %.2f rss_kib %llu\n",
           (unsigned long long) failed, open_us, idle / open_s, idle_kib, resumed_us, answers,
           answers * 1e6 / took_us, (double) cpu / answers, (unsigned long long) rss);
    return failed != 0;
}
