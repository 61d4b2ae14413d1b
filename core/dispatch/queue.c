/* queue.c - one line a pool, under one lock, so that loops keep one order.
 *
 * While somebody waits all places are taken: a place that becomes free is handed to the first in
 * line under the same lock, never put back. So nobody can be left waiting beside a free place. The
 * first may live on another loop: it hears by mail, and its memory is held until that has come. If
 * it has ended meanwhile, it hands the place on.
 *
 *   enter -> RUNS ----------------------------------------------> leave: place to the next
 *         -> WAITS -> (another leaves) CALLED -> (mail) RUNS
 *                  -> time-out, client gone: NOWHERE
 */
#include "dispatch/queue.h"

#include "dispatch/sink.h"

#include <stdlib.h>

enum where { NOWHERE, WAITS, CALLED, RUNS };

struct line {
    struct line *next;
    char *pool;
    bt_list_t waiting;               /* tickets, first come first */
    unsigned waiting_count, running; /* running: places taken, those handed on included */
};

struct bt_queues {
    pthread_mutex_t lock; /* of all below, and of where in tickets */
    struct line *lines;
    unsigned limit, size;
};

struct bt_queue_ticket {
    bt_list_t link;
    bt_mail_t mail;
    bt_timer_t timer;
    bt_request_t *request;
    struct line *line;
    enum where where;
    uint64_t since_us;
};

struct bt_queues *bt_queues_new(unsigned limit, unsigned size)
{
    struct bt_queues *q = calloc(1, sizeof(*q));

    if (q == NULL)
        return NULL;
    q->limit = limit;
    q->size = size;
    pthread_mutex_init(&q->lock, NULL);
    return q;
}

void bt_queues_free(struct bt_queues *q)
{
    if (q == NULL)
        return;
    while (q->lines != NULL) {
        struct line *line = q->lines;
        q->lines = line->next;
        free(line->pool);
        free(line);
    }
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static struct line *find_line(struct bt_queues *q, const char *pool)
{
    struct line *line = q->lines;

    while (line != NULL && strcmp(line->pool, pool) != 0)
        line = line->next;
    if (line != NULL)
        return line;
    line = calloc(1, sizeof(*line));
    if (line != NULL && (line->pool = bt_str_dup(bt_str(pool))) == NULL) {
        free(line);
        line = NULL;
    }
    if (line == NULL)
        return NULL;
    bt_list_init(&line->waiting);
    line->next = q->lines;
    q->lines = line;
    return line;
}

void bt_queues_each(struct bt_queues *q, bt_queues_cb cb, void *user)
{
    pthread_mutex_lock(&q->lock);
    for (const struct line *line = q->lines; line != NULL; line = line->next)
        cb(user, line->pool, line->running, line->waiting_count);
    pthread_mutex_unlock(&q->lock);
}

/* ---- leaving ---- */

static void on_called(bt_loop_t *loop, bt_mail_t *envelope);

/* The lock is held: until the mail is in its box the other loop cannot end. */
static void hand_on(struct line *line)
{
    if (bt_list_empty(&line->waiting)) {
        line->running--;
        return;
    }
    struct bt_queue_ticket *first =
        bt_container_of(line->waiting.next, struct bt_queue_ticket, link);
    bt_list_remove(&first->link);
    line->waiting_count--;
    first->where = CALLED;
    bt_loop_post(first->request->d->loop, &first->mail, on_called);
}

/* Out of the line; false: it did not wait there. */
static bool step_out(struct bt_queue_ticket *t)
{
    if (t->where != WAITS)
        return false;
    bt_list_remove(&t->link);
    t->line->waiting_count--;
    t->where = NOWHERE;
    t->request->holds--;
    return true;
}

static void note_wait(struct bt_queue_ticket *t)
{
    bt_request_t *r = t->request;

    bt_timer_stop(&t->timer);
    r->record.queue_us = bt_clock_us() - t->since_us;
    bt_histogram_note(&r->d->stats.queue_wait, r->record.queue_us, 1);
    bt_request_trace_mark(r, BT_MARK_QUEUE, t->since_us, r->record.queue_us);
}

void bt_queue_leave(bt_request_t *r)
{
    struct bt_queue_ticket *t = r->ticket;
    struct bt_queues *q = r->d->shared->queues;

    if (t == NULL)
        return;
    pthread_mutex_lock(&q->lock);
    const bool has_waited = step_out(t) || t->where == CALLED;
    if (t->where == RUNS) {
        t->where = NOWHERE;
        hand_on(t->line);
    }
    pthread_mutex_unlock(&q->lock);
    if (has_waited)
        note_wait(t);
}

/* ---- waiting ---- */

/* A place is this request's now. */
static void on_called(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct bt_queue_ticket *t = bt_container_of(envelope, struct bt_queue_ticket, mail);
    bt_request_t *r = t->request;
    struct bt_queues *q = r->d->shared->queues;

    (void) loop;
    pthread_mutex_lock(&q->lock);
    t->where = r->finished ? NOWHERE : RUNS;
    if (r->finished)
        hand_on(t->line);
    pthread_mutex_unlock(&q->lock);
    if (r->finished) {
        bt_request_release(r);
        return;
    }
    note_wait(t);
    r->holds--;
    r->ops->go_on(r, BT_PROGRESS_NEXT);
}

static void on_timeout(bt_timer_t *timer)
{
    struct bt_queue_ticket *t = bt_container_of(timer, struct bt_queue_ticket, timer);
    bt_request_t *r = t->request;
    struct bt_queues *q = r->d->shared->queues;

    pthread_mutex_lock(&q->lock);
    const bool has_waited = step_out(t);
    pthread_mutex_unlock(&q->lock);
    if (!has_waited)
        return; /* its turn has come, and the mail is on its way */
    note_wait(t);
    bt_stats_inc(&r->d->stats, queue_timeouts);
    r->fail_name = "queue_timeout";
    bt_answer_error(r, 408, "no place came free in time (--queue-timeout-secs)", 1);
}

static void wait(bt_request_t *r, struct bt_queue_ticket *t)
{
    bt_list_push(&t->line->waiting, &t->link);
    t->line->waiting_count++;
    t->where = WAITS;
    r->holds++;
    t->since_us = bt_clock_us();
    bt_timer_init(r->d->loop, &t->timer, on_timeout);
    bt_timer_start(&t->timer, r->d->shared->config.queue_timeout_ms);
}

static enum bt_progress refuse(bt_request_t *r)
{
    bt_stats_inc(&r->d->stats, queue_full);
    r->fail_name = "queue_full";
    bt_answer_error(r, 429, "too many requests wait already (--queue-size)", 1);
    return BT_PROGRESS_ENDED;
}

/* The lock is held. */
static void find_place(struct bt_queues *q, bt_request_t *r, struct bt_queue_ticket *t)
{
    t->line = find_line(q, r->pool->spec.name);
    if (t->line == NULL)
        return;
    if (t->line->running < q->limit) {
        t->line->running++;
        t->where = RUNS;
    } else if (t->line->waiting_count < q->size) {
        wait(r, t);
    }
}

enum bt_progress bt_queue_enter(bt_request_t *r)
{
    struct bt_queues *q = r->d->shared->queues;

    if (q == NULL)
        return BT_PROGRESS_NEXT;
    struct bt_queue_ticket *t = bt_arena_zalloc(&r->arena, sizeof(*t));
    t->request = r;
    r->ticket = t;
    pthread_mutex_lock(&q->lock);
    find_place(q, r, t);
    const enum where where = t->where; /* others may call it as soon as the lock is free */
    pthread_mutex_unlock(&q->lock);
    if (where == NOWHERE)
        return refuse(r);
    return where == RUNS ? BT_PROGRESS_NEXT : BT_PROGRESS_WAITS;
}
