/* fleet.c - a request trace replayed through several gateways over one fleet of simulated workers; what their caches found.
 *
 *   fleet TRACE GATEWAY_PORT[,...] WORKER_PORT[,...] [name=number ...]
 *
 *   rows=0            of the trace, from its beginning (0 = all)
 *   speed=150         the trace's time runs so many times faster
 *   in_flight=64      more requests than that wait for an answer to others
 *   block_tokens=512  tokens of the simulator for one block of the trace; its workers have the same block_size
 *   blocks=300        of one worker's cache
 *   seed=1            which gateway gets which request
 *   in_turn=0         1: gateways take turns, request by request
 *   ids=0             1: prompts are token ids (workers with by_ids=1), else text
 *
 * Requests go out in the trace's order, each on a connection of its own to a gateway drawn by chance, as a TCP balancer would
 * have it, when due and when there is a place. Prefix hits are the workers' own counters, which must be the sum of
 * `cached_tokens` in their answers; `ceiling` is what one LRU cache of all workers' blocks finds in the same order. Prints a
 * line of "name value" pairs and ends with 1 when a request failed or when the workers did not count exactly the requests and
 * the tokens that were sent.
 */
#include "fleet_trace.h"
#include "net.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PORTS_MAX 64
#define ANSWER_MAX 16384
#define STALL_US 60000000U
#define STATE_MAX 65536

struct client {
    int fd; /* -1 = free */
    unsigned row;
    size_t request_n, sent, got;
    char *request;
    char answer[ANSWER_MAX];
};

struct load {
    uint64_t computed, found, external, answered;
};

static struct settings {
    unsigned rows, speed, in_flight, block_tokens, blocks, seed, in_turn, ids;
} settings = {.speed = 150, .in_flight = 64, .block_tokens = 512, .blocks = 300, .seed = 1};

static struct trace trace;
static unsigned gateways[PORTS_MAX], gateway_count, workers[PORTS_MAX], worker_count;
static struct client *clients;
static int epoll;
static unsigned next_row, open_now, failures;
static uint64_t start_us, progress_us, random_state, late_us, cached;

static uint64_t draw(void)
{
    uint64_t x = random_state += 0x9E3779B97F4A7C15U;

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
    x = (x ^ x >> 27) * 0x94D049BB133111EBU;
    return x ^ x >> 31;
}

/* ---- requests ---- */

static void finish(struct client *c, const char *error)
{
    progress_us = bench_now_us();
    if (error != NULL && failures++ < 3)
        fprintf(stderr, "fleet: request %u: %s: %.*s\n", c->row, error,
                (int) (c->got < 300 ? c->got : 300), c->answer);
    close(c->fd);
    free(c->request);
    c->request = NULL;
    c->fd = -1;
    open_now--;
}

static void send_rest(struct client *c)
{
    while (c->sent < c->request_n) {
        ssize_t n = write(c->fd, c->request + c->sent, c->request_n - c->sent);

        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
            return;
        if (n < 0) { /* an early answer may say why: the reader ends it */
            c->sent = c->request_n;
            return;
        }
        c->sent += (size_t) n;
    }
}

static void make_request(struct client *c)
{
    static const char begin[] = "{\"model\":\"sim\",\"max_tokens\":1,\"temperature\":0,\"prompt\":";
    static const char end[] = "}";
    const struct trace_row *row = &trace.rows[c->row];
    size_t prompt_n = trace_prompt_bytes(&trace, row);
    size_t body_n = sizeof(begin) - 1 + prompt_n + sizeof(end) - 1;
    char *at;

    c->request = malloc(body_n + 256);
    if (c->request == NULL)
        bench_die("malloc");
    at = c->request +
         snprintf(c->request, 256,
                  "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                  body_n);
    at = (char *) memcpy(at, begin, sizeof(begin) - 1) + sizeof(begin) - 1;
    trace_prompt(&trace, row, at);
    memcpy(at + prompt_n, end, sizeof(end) - 1);
    c->request_n = (size_t) (at - c->request) + prompt_n + sizeof(end) - 1;
}

static void start(unsigned row)
{
    struct client *c = clients;

    while (c->fd >= 0)
        c++;
    c->row = row;
    c->sent = c->got = 0;
    make_request(c);
    c->fd = bench_connect(gateways[(settings.in_turn ? row : draw()) % gateway_count]);
    open_now++;
    bench_watch(epoll, c->fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
    send_rest(c);
}

/* Of an engine's answer; none is told where there is none. */
static uint64_t cached_tokens(const char *answer)
{
    static const char key[] = "\"cached_tokens\":";
    const char *at = strstr(answer, key);

    return at != NULL ? strtoull(at + sizeof(key) - 1, NULL, 10) : 0;
}

static void on_end(struct client *c)
{
    char tokens[64];

    c->answer[c->got] = '\0';
    snprintf(tokens, sizeof(tokens), "\"prompt_tokens\":%llu,",
             (unsigned long long) trace_tokens(&trace, &trace.rows[c->row]));
    cached += cached_tokens(c->answer);
    if (strncmp(c->answer, "HTTP/1.1 200 ", 13) != 0)
        finish(c, c->got == 0 ? "no answer" : "status");
    else if (strstr(c->answer, tokens) == NULL)
        finish(c, "not the answer to this prompt");
    else
        finish(c, NULL);
}

static void on_event(struct client *c)
{
    ssize_t n;

    send_rest(c);
    while ((n = read(c->fd, c->answer + c->got, ANSWER_MAX - 1 - c->got)) > 0)
        c->got += (size_t) n;
    if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
        return;
    if (n < 0)
        finish(c, strerror(errno));
    else
        on_end(c); /* its end, or more than there is room for */
}

static uint64_t due_us(unsigned row)
{
    return (trace.rows[row].due_ms - trace.rows[0].due_ms) * 1000 / settings.speed;
}

/* Sends what is due; ms until the next is, at most a tenth of a second. */
static int start_due(void)
{
    while (next_row < trace.count && open_now < settings.in_flight) {
        uint64_t now = bench_now_us() - start_us, due = due_us(next_row);

        if (due > now)
            return due - now < 100000 ? (int) ((due - now) / 1000) + 1 : 100;
        late_us = now - due > late_us ? now - due : late_us;
        start(next_row++);
    }
    return 100;
}

static void replay(void)
{
    struct epoll_event events[64];

    start_us = progress_us = bench_now_us();
    while (next_row < trace.count || open_now > 0) {
        int n = epoll_wait(epoll, events, 64, start_due());

        for (int i = 0; i < n; i++)
            on_event(events[i].data.ptr);
        if (open_now == 0)
            progress_us = bench_now_us();
        for (unsigned i = 0; bench_now_us() - progress_us > STALL_US && i < settings.in_flight; i++)
            if (clients[i].fd >= 0)
                finish(&clients[i], "no answer in time");
    }
}

/* ---- the workers' counters ---- */

static uint64_t counter(const char *state, const char *name)
{
    char key[64];
    const char *at;

    snprintf(key, sizeof(key), "\"%s\":", name);
    at = strstr(state, key);
    if (at == NULL) {
        fprintf(stderr, "fleet: a worker's /sim/state has no %s: %.200s\n", name, state);
        exit(1);
    }
    return strtoull(at + strlen(key), NULL, 10);
}

static struct load ask_worker(unsigned port)
{
    static const char question[] =
        "GET /sim/state HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    static char state[STATE_MAX];
    struct pollfd p = {.fd = bench_connect(port), .events = POLLOUT};
    size_t got = 0;
    ssize_t n = 1;

    if (poll(&p, 1, 10000) != 1 || write(p.fd, question, sizeof(question) - 1) < 0)
        bench_die("a worker's /sim/state");
    for (p.events = POLLIN; n > 0 && poll(&p, 1, 10000) == 1; got += (size_t) n)
        if ((n = read(p.fd, state + got, sizeof(state) - 1 - got)) <= 0)
            break;
    close(p.fd);
    state[got] = '\0';
    return (struct load){counter(state, "local_compute"), counter(state, "local_cache_hit"),
                         counter(state, "external_kv"), counter(state, "answered")};
}

static double spread(uint64_t max, uint64_t sum)
{
    return sum != 0 ? (double) max * worker_count / (double) sum : 0;
}

/* Everything that was sent was counted, once; and one worker that is asked in turn has the very cache of the ceiling. */
static bool adds_up(const struct load *all, uint64_t asked, uint64_t ceiling)
{
    if (all->answered != trace.count || all->computed + all->found != asked || all->external != 0) {
        fprintf(stderr,
                "fleet: %u requests of %llu tokens were sent, the workers counted %llu of %llu\n",
                trace.count, (unsigned long long) asked, (unsigned long long) all->answered,
                (unsigned long long) (all->computed + all->found + all->external));
        return false;
    }
    if (all->found != cached) {
        fprintf(stderr, "fleet: the workers found %llu tokens, their answers say %llu\n",
                (unsigned long long) all->found, (unsigned long long) cached);
        return false;
    }
    if (worker_count == 1 && settings.in_flight == 1 && all->found != ceiling) {
        fprintf(stderr, "fleet: the one worker found %llu tokens, its cache should hold %llu\n",
                (unsigned long long) all->found, (unsigned long long) ceiling);
        return false;
    }
    return true;
}

static bool report(void)
{
    uint64_t asked = 0, computed_max = 0, answered_max = 0;
    uint64_t ceiling = trace_lru_hits(&trace, worker_count * settings.blocks);
    double seconds = (double) (bench_now_us() - start_us) / 1e6;
    struct load all = {0};

    for (unsigned i = 0; i < trace.count; i++)
        asked += trace_tokens(&trace, &trace.rows[i]);
    for (unsigned i = 0; i < worker_count; i++) {
        struct load one = ask_worker(workers[i]);

        all.computed += one.computed;
        all.found += one.found;
        all.external += one.external;
        all.answered += one.answered;
        computed_max = one.computed > computed_max ? one.computed : computed_max;
        answered_max = one.answered > answered_max ? one.answered : answered_max;
    }
    printf("requests %u failures %u asked %llu hit %.4f ceiling %.4f endless %.4f "
           "tokens_spread %.3f requests_spread %.3f seconds %.1f late_s %.2f\n",
           trace.count, failures, (unsigned long long) asked, (double) all.found / (double) asked,
           (double) ceiling / (double) asked, (double) trace_lru_hits(&trace, 0) / (double) asked,
           spread(computed_max, all.computed), spread(answered_max, all.answered), seconds,
           (double) late_us / 1e6);
    return adds_up(&all, asked, ceiling) && failures == 0;
}

/* ---- the command line ---- */

static unsigned read_ports(char *text, unsigned *ports)
{
    unsigned count = 0;

    for (char *word = strtok(text, ","); word != NULL && count < PORTS_MAX;
         word = strtok(NULL, ","))
        ports[count++] = (unsigned) atoi(word);
    return count;
}

static void set(const char *word)
{
    static const struct {
        const char *name;
        unsigned *value, min, max;
    } known[] = {
        {"rows=", &settings.rows, 0, 1u << 24},
        {"speed=", &settings.speed, 1, 1u << 24},
        {"in_flight=", &settings.in_flight, 1, 4096},
        {"block_tokens=", &settings.block_tokens, 2, TRACE_BLOCK_TOKENS},
        {"blocks=", &settings.blocks, 1, 1u << 24},
        {"seed=", &settings.seed, 0, UINT32_MAX},
        {"in_turn=", &settings.in_turn, 0, 1},
        {"ids=", &settings.ids, 0, 1},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t n = strlen(known[i].name);
        char *end = NULL;
        unsigned long value;

        if (strncmp(word, known[i].name, n) != 0)
            continue;
        value = strtoul(word + n, &end, 10);
        if (end != word + n && *end == '\0' && value >= known[i].min && value <= known[i].max) {
            *known[i].value = (unsigned) value;
            return;
        }
    }
    fprintf(stderr, "fleet: %s: not known, or out of range; fleet.c lists the names\n", word);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr,
                "usage: fleet TRACE GATEWAY_PORT[,...] WORKER_PORT[,...] [name=number ...]\n");
        return 2;
    }
    gateway_count = read_ports(argv[2], gateways);
    worker_count = read_ports(argv[3], workers);
    for (int i = 4; i < argc; i++)
        set(argv[i]);
    random_state = settings.seed;
    trace_read(&trace, argv[1], settings.rows, settings.block_tokens);
    trace.has_ids = settings.ids == 1;
    clients = calloc(settings.in_flight, sizeof(*clients));
    if (clients == NULL || gateway_count == 0 || worker_count == 0 || trace.count == 0) {
        fprintf(stderr, "fleet: nothing to do: no memory, no ports or no rows\n");
        return 2;
    }
    for (unsigned i = 0; i < settings.in_flight; i++)
        clients[i].fd = -1;
    bench_raise_files();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    replay();
    return report() ? 0 : 1;
}
