/* The sender's process of a cell. One loop for all shapes: rooms are opened ahead (in groups where operations come one after the other, a few more than are in
 * flight where they overlap), so the clock sees the transfer: from bt_kv_send to the moment when the receiver's code holds the completion. Clock: CLOCK_MONOTONIC,
 * one for both processes.
 *
 * CPU is counted from the first operation to the last one, opening rooms included, on both sides. */
#include "tools/kv_bench.h"

#include "base/err.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING 512u
#define GROUP_PAGES 16384u /* of one after the other: so many pages' rooms are opened at once */
#define AHEAD 8u
#define STUCK_NS UINT64_C(30000000000)

typedef struct sender {
    const bench_shape_t *shape;
    const bench_mode_t *mode;
    bench_shared_t *shared;
    bt_kv_agent_t *agent;
    bt_kv_layout_t layout;
    bt_kv_room_t rooms[RING];
    uint64_t t0[RING];
    uint32_t opened, posted, completed, base; /* base: the first that counts */
    uint64_t first_ns, last_ns, news_ns;
    uint64_t *total, *local, *prep, *post;
    uint64_t sum_ns, pages, descriptors;
} sender_t;

static int complain(const sender_t *s, uint32_t k, const char *what)
{
    char why[300] = "";

    bt_kv_room_error(s->agent, s->rooms[k % RING], why, sizeof why);
    fprintf(stderr, "baton: kv-bench: shape %s, room %u: %s %s\n", s->shape->name, k, what, why);
    return -1;
}

static uint64_t *sample(const sender_t *s, uint64_t *of, uint32_t k)
{
    uint32_t i = k - s->base;
    return k >= s->base && i < BENCH_SAMPLES ? &of[i] : &of[BENCH_SAMPLES];
}

static int open_to(sender_t *s, uint32_t bound)
{
    for (; s->opened < bound; s->opened++) {
        bt_kv_send_spec_t spec = {.room = s->opened + UINT64_C(1), .layout = s->layout};
        uint64_t before = bench_now_ns();
        if (bt_kv_send_open(s->agent, &spec, &s->rooms[s->opened % RING]) != 0)
            return complain(s, s->opened, "cannot be opened");
        *sample(s, s->prep, s->opened) = bench_now_ns() - before;
    }
    s->shared->may_open = bound;
    return 0;
}

/* 1: the next room has been given its chunk; 0: not yet. */
static int post_next(sender_t *s)
{
    uint32_t from[BENCH_PAGES], to[BENCH_PAGES], k = s->posted;
    bt_kv_chunk_t chunk = {.pages = from, .page_count = s->shape->pages, .last = true};
    enum bt_kv_state state = bt_kv_poll(s->agent, s->rooms[k % RING]);

    if (state == BT_KV_FAILED)
        return complain(s, k, "failed:");
    if (state != BT_KV_WAITING_FOR_INPUT)
        return 0;
    bench_pages(s->shape, k, from, to);
    if (s->mode->is_sleep && s->shape->pages == 1)
        bench_pause();
    uint64_t before = bench_now_ns();
    int rc = bt_kv_send(s->agent, s->rooms[k % RING], &chunk);
    if (rc == BT_E_AGAIN)
        return 0;
    if (rc != 0)
        return complain(s, k, bt_err_text(rc));
    *sample(s, s->post, k) = bench_now_ns() - before;
    s->t0[k % RING] = before;
    if (k == s->base)
        s->first_ns = before;
    s->posted++;
    return 1;
}

static int complete_next(sender_t *s)
{
    uint32_t k = s->completed;
    bt_kv_room_t room = s->rooms[k % RING];
    enum bt_kv_state state = bt_kv_poll(s->agent, room);
    bt_kv_room_stats_t stats;

    if (state == BT_KV_FAILED)
        return complain(s, k, "failed:");
    if (state != BT_KV_SUCCESS)
        return 0;
    uint64_t here = bench_now_ns();
    while (s->shared->ended <= k) /* it has told us: it is about to know itself */
        if (s->shared->has_failed != 0 || bench_now_ns() - here > STUCK_NS)
            return complain(s, k, "the receiver has not noticed it");
    uint64_t done = s->shared->done_ns[k % BENCH_SAMPLES] - s->t0[k % RING];
    *sample(s, s->local, k) = here - s->t0[k % RING];
    *sample(s, s->total, k) = done;
    if (k >= s->base) {
        s->sum_ns += done;
        s->last_ns = s->shared->done_ns[k % BENCH_SAMPLES];
    }
    if (bt_kv_room_stats(s->agent, room, &stats) == 0) {
        s->pages += stats.pages;
        s->descriptors += stats.descriptors;
    }
    (void) bt_kv_room_release(s->agent, room);
    s->completed++;
    return 1;
}

static void await_news(sender_t *s)
{
    uint64_t count;

    if (!s->mode->is_thread) {
        (void) bt_kv_progress(s->agent, s->mode->is_sleep ? 50 : 0);
    } else if (s->mode->is_sleep) {
        struct pollfd fd = {.fd = bt_kv_agent_fd(s->agent), .events = POLLIN};
        if (poll(&fd, 1, 50) > 0)
            (void) !read(fd.fd, &count, sizeof count);
    }
}

static uint32_t next_bound(const sender_t *s)
{
    uint32_t group = GROUP_PAGES / s->shape->pages;

    if (s->shape->is_flow)
        return s->completed + s->shape->in_flight + AHEAD;
    group = group < 4 ? 4 : group > 64 ? 64 : group;
    return s->completed == s->opened ? s->opened + group : s->opened;
}

/* Until the clock or the count says enough, and all that has been opened has ended. */
static int run(sender_t *s, uint64_t ns, uint32_t count)
{
    uint64_t until = bench_now_ns() + ns;
    uint32_t last = s->opened + count;

    s->news_ns = bench_now_ns();
    for (;;) {
        uint32_t bound = next_bound(s);
        int done = 0, rc = 0;
        if (count > 0 && bound > last)
            bound = last;
        if (bound > s->opened && (count > 0 || bench_now_ns() < until))
            rc = open_to(s, bound);
        while (rc >= 0 && s->posted < s->opened && s->posted - s->completed < s->shape->in_flight &&
               (rc = post_next(s)) > 0)
            done++;
        while (rc >= 0 && s->completed < s->posted && (rc = complete_next(s)) > 0)
            done++;
        if (rc < 0 || s->shared->has_failed != 0)
            return -1;
        if (s->completed == s->opened && (count > 0 ? s->opened == last : bench_now_ns() >= until))
            return 0;
        if (done > 0)
            s->news_ns = bench_now_ns();
        else if (bench_now_ns() - s->news_ns > STUCK_NS)
            return complain(s, s->completed, "nothing has moved for 30 s");
        else
            await_news(s);
    }
}

static bool wait_answer(const bench_shared_t *shared, uint32_t answer)
{
    for (uint64_t until = bench_now_ns() + STUCK_NS; bench_now_ns() < until; usleep(500))
        if (shared->answer == answer || shared->has_failed != 0)
            return shared->answer == answer;
    return false;
}

static int measure(const bench_options_t *o, sender_t *s, bench_row_t *row)
{
    bench_shared_t *shared = s->shared;
    uint32_t slots = BENCH_PAGES / s->shape->pages;

    if (run(s, o->cell_ns / 10, 0) != 0) /* warm */
        return -1;
    s->base = s->completed;
    s->sum_ns = s->pages = s->descriptors = 0;
    uint64_t tx = bench_cpu_ns(), rx = shared->rx_cpu_ns;
    if (run(s, o->cell_ns, 0) != 0)
        return -1;
    tx = bench_cpu_ns() - tx;
    rx = shared->rx_cpu_ns - rx;
    uint64_t n = s->completed - s->base, kept = n < BENCH_SAMPLES ? n : BENCH_SAMPLES;
    if (n == 0)
        return -1;
    row->merge = s->descriptors > 0 ? (double) s->pages / (double) s->descriptors : 0;
    bench_row_fill(row, s->shape, s->total, n,
                   s->shape->is_flow ? s->last_ns - s->first_ns : s->sum_ns, tx, rx);
    row->local_p50 = bench_percentile(s->local, kept, 0.5);
    row->prep_p50 = bench_percentile(s->prep, kept, 0.5);
    row->post_p50 = bench_percentile(s->post, kept, 0.5);
    shared->step = 1; /* the verified pass: distinct pages, as many rooms as fit */
    s->base = UINT32_MAX;
    if (!wait_answer(shared, 1) || run(s, 0, slots < 64 ? slots : 64) != 0)
        return -1;
    shared->is_over = 1;
    if (!wait_answer(shared, 2))
        return -1;
    row->bad = shared->bad;
    snprintf(row->copy, sizeof row->copy, "%s", shared->copy);
    return 0;
}

static int send_all(const bench_options_t *o, bench_shared_t *shared, const bench_mode_t *mode,
                    const bench_shape_t *shape, bench_row_t *row)
{
    sender_t *s = calloc(1, sizeof *s);
    uint64_t *samples = malloc(4 * (BENCH_SAMPLES + 1) * sizeof *samples);
    char *p;
    int rc = -1;

    if (s != NULL && samples != NULL) {
        *s = (sender_t){.shape = shape, .mode = mode, .shared = shared};
        s->total = samples;
        s->local = samples + (BENCH_SAMPLES + 1);
        s->prep = samples + (size_t) 2 * (BENCH_SAMPLES + 1);
        s->post = samples + (size_t) 3 * (BENCH_SAMPLES + 1);
        s->agent = bench_agent(o, mode, "prefill", &s->layout, &p);
        if (s->agent != NULL) {
            shared->port = bt_kv_agent_port(s->agent);
            rc = measure(o, s, row);
            bt_kv_agent_close(s->agent);
        }
    }
    free(samples);
    free(s);
    return rc;
}

/* The receiver: a process of its own, or for mem, which knows no other process, a thread (its CPU is then in the sender's figure). */
typedef struct receiver {
    const bench_options_t *o;
    bench_shared_t *shared;
    const bench_mode_t *mode;
    const bench_shape_t *shape;
    pthread_t thread;
    pid_t pid;
} receiver_t;

static void *receive(void *user)
{
    const receiver_t *r = user;
    return bench_receive(r->o, r->shared, r->mode, r->shape) == 0 ? NULL : user;
}

static bool receiver_start(receiver_t *r)
{
    fflush(NULL);
    if (r->o->backend == BT_KV_MEM)
        return pthread_create(&r->thread, NULL, receive, r) == 0;
    r->pid = fork(); /* no thread has been made: agents come after it */
    if (r->pid == 0)
        _exit(receive(r) != NULL);
    return r->pid > 0;
}

static bool receiver_stop(receiver_t *r, bool is_forced)
{
    void *result = NULL;
    int status = 0;

    r->shared->is_over = 2;
    if (r->pid == 0) {
        pthread_join(r->thread, &result);
        return result == NULL;
    }
    if (is_forced)
        kill(r->pid, SIGTERM);
    waitpid(r->pid, &status, 0);
    return status == 0;
}

int bench_cell(const bench_options_t *o, bench_shared_t *shared, const bench_mode_t *mode,
               const bench_shape_t *shape, bench_rows_t *rows, uint32_t rep)
{
    receiver_t receiver = {.o = o, .shared = shared, .mode = mode, .shape = shape};
    char engine[48];

    snprintf(engine, sizeof engine, "%s-%s-%s-%s", o->backend_name, o->memory,
             mode->is_thread ? "thread" : "caller", mode->is_sleep ? "sleep" : "poll");
    bench_row_t *row = bench_row(rows, engine, shape, rep);
    row->mode = *mode;
    memset(shared, 0, offsetof(bench_shared_t, done_ns));
    if (!receiver_start(&receiver))
        return -1;
    int rc = send_all(o, shared, mode, shape, row);
    return receiver_stop(&receiver, rc != 0) && rc == 0 ? 0 : -1;
}
