/* queue.c - one line a pool, under one lock, so that loops keep one order. Who is next is fair_queue.c's to say; places are queue_line.c's,
 * how many there are queue_places.c's.
 *
 * While somebody waits all places are taken: a place that becomes free is handed on under the same lock, never put back. So nobody can be
 * left waiting beside a free place. Whoever gets it may live on another loop: it hears by mail, and its memory is held until that has come.
 * If it has ended meanwhile, it hands the place on. One that is put out hears in the same way.
 *
 *   enter -> RUNS ----------------------------------------------> leave: place to the next
 *         -> WAITS -> (another leaves) CALLED -> (mail) RUNS
 *                  -> (another needs its room) PUT_OUT -> (mail) 429
 *                  -> time-out, client gone: NOWHERE
 *   RUNS -> (its workers are full) BLOCKED -> (a leg ends) CALLED -> (mail) RUNS
 *
 * BLOCKED ones look before they wait: a leg that ends between the look and the wait has raised the line's count of ends, and they look again.
 * Where all workers are full they keep their place, and nobody passes them. Where others have room (it may only use some: a pin, a model, a
 * route that is not split) such a narrow one gives its place up, --queue-size of them at most, and others pass. As a leg ends they look again,
 * until one has taken its room, and nobody else is let in before they have.
 *
 * Workers come and go without a word to the line: while somebody waits it looks every LOOK_MS how many places there are now. One that is
 * called and finds that they have all gone is BLOCKED, too, with its place. Where a reload has taken its pool away it plans again at once, for
 * the pool that serves its model now, or for its error.
 *
 * Whether one may wait at all is queue_join.c's to say.
 */
#include "dispatch/queue/queue.h"

#include "base/flight.h"
#include "cluster/changes.h"
#include "dispatch/answer/answer.h"
#include "dispatch/answer/usage.h"
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/policy_call.h"
#include "dispatch/plan/request_pool.h"
#include "dispatch/queue/queue_impl.h"

#define RETRY_MAX_S 3600
#define LOOK_MS 250

/* ---- leaving ---- */

/* Out of the line, or of those who look for a worker; false: it did not wait there. The lock is held. */
static bool step_out(struct bt_queue_ticket *t)
{
    const enum bt_queue_where where = t->where;

    if (where != WAITS && where != BLOCKED)
        return false;
    t->where = NOWHERE;
    t->request->holds--;
    if (where == BLOCKED) {
        bt_queue_line_unblock(t);
        t->line->running -= !t->is_narrow;
    } else {
        bt_fair_queue_remove(&t->line->fair, &t->item);
    }
    bt_queue_line_hand_on(
        t->line); /* of WAITS too: there may be places since some workers came back */
    return true;
}

static void count_end(struct bt_queue_ticket *t, enum bt_queue_end end)
{
    struct bt_queue_class_facts *stats = &t->line->stats[t->item.klass];

    stats->ends[end]++;
    if (t->record != NULL)
        t->record->end = bt_queue_end_name(end);
    if (end == BT_QUEUE_CALLED) {
        stats->called_tokens += t->item.cost;
        stats->waited_us += bt_clock_us() - t->since_us;
    }
}

/* Without the lock, on its own loop. */
static void note_wait(struct bt_queue_ticket *t, bool is_called)
{
    bt_request_t *r = t->request;
    const uint64_t waited_us = bt_clock_us() - t->since_us;

    bt_timer_stop(&t->timer);
    r->record.queue_us += waited_us;
    bt_histogram_note(&r->d->stats.queue_wait, waited_us, 1);
    if (!is_called || !t->record->has_prediction)
        return;
    const uint64_t predicted_us = t->record->predicted_ms * 1000;
    bt_histogram_note(
        &r->d->stats.queue_error,
        waited_us > predicted_us ? waited_us - predicted_us : predicted_us - waited_us, 1);
}

/* What it has used, where that is known: prompts as they were counted, answers as workers say. */
static uint64_t made_of(const bt_request_t *r)
{
    uint64_t made = 0;

    for (unsigned i = 0; i < r->task_count; i++)
        if (r->tasks[i].attempt != NULL)
            made += bt_usage_tokens(bt_attempt_answer(r->tasks[i].attempt));
    return made;
}

static void learn(struct bt_queue_ticket *t)
{
    const bt_request_t *r = t->request;
    const uint64_t made = made_of(r);

    if (made != 0 && r->status == 200)
        bt_queue_learn_output(&t->line->output_tokens,
                              (double) made / (r->task_count + !r->task_count));
    if (!t->is_told_cost && made + r->prompt_tokens > t->item.cost)
        bt_fair_queue_charge(&t->line->fair, &t->item, made + r->prompt_tokens - t->item.cost);
    bt_request_trace_mark(r, BT_MARK_QUEUE, t->since_us, r->record.queue_us);
}

void bt_queue_leave(bt_request_t *r)
{
    struct bt_queue_ticket *t = r->ticket;
    struct bt_queues *q = r->d->shared->queues;

    if (t == NULL || t->line == NULL)
        return;
    pthread_mutex_lock(&q->lock);
    const enum bt_queue_where where = t->where;
    const bool has_waited = step_out(t) || where == CALLED || where == PUT_OUT;
    if (where == WAITS)
        count_end(t, BT_QUEUE_GONE);
    if (where == RUNS) {
        t->where = NOWHERE;
        learn(t);
        if (r->attempts == 0)
            bt_queue_line_pass_room(t);
        bt_queue_line_give_back(t->line);
    }
    pthread_mutex_unlock(&q->lock);
    if (has_waited)
        note_wait(t, false);
}

/* Who came while no worker was usable has none, and may have found a worker since. NULL: no memory. */
static struct bt_queue_line *line_of(struct bt_queues *q, const bt_request_t *r)
{
    struct bt_queue_line *line;

    if (r->ticket != NULL)
        return r->ticket->line;
    pthread_mutex_lock(&q->lock);
    line = bt_queue_line_find(q, r->pool->spec.name);
    pthread_mutex_unlock(&q->lock);
    return line;
}

void bt_queue_note_room(const bt_request_t *r, const bt_worker_t *worker)
{
    struct bt_queues *q = r->d->shared->queues;
    struct bt_queue_line *line = q != NULL ? line_of(q, r) : NULL;

    if (line == NULL)
        return;
    atomic_fetch_add(&line->leg_ends, 1);
    if (atomic_load(&line->blocked_count) == 0)
        return;
    pthread_mutex_lock(&q->lock);
    bt_queue_line_add_room(line, worker);
    bt_queue_line_hand_on(line);
    pthread_mutex_unlock(&q->lock);
}

/* ---- waiting ---- */

static unsigned retry_after_s(uint64_t predicted_ms)
{
    const uint64_t s = (predicted_ms + 999) / 1000;

    return s < 1 ? 1 : s > RETRY_MAX_S ? RETRY_MAX_S : (unsigned) s;
}

static void note_shed(const bt_request_t *r, const char *why)
{
    bt_flight_note(BT_FLIGHT_QUEUE, 0, "pool %s: %s", r->pool->spec.name, why);
}

static void answer_full(bt_request_t *r, const struct bt_queue_ticket *t, uint64_t predicted_ms)
{
    bt_stats_inc(&r->d->stats, queue_full);
    note_shed(r, t->where == PUT_OUT ? "another needed its place" : "the line is full");
    r->fail_name = "queue_full";
    bt_answer_error(r, 429,
                    t->where == PUT_OUT
                        ? "others with less in line needed the place of this request (--queue-size)"
                        : "too many requests wait already (--queue-size, --queue-max-bytes)",
                    retry_after_s(predicted_ms));
}

/* It has looked for a worker once more. */
static void end_retry(struct bt_queues *q, struct bt_queue_line *line)
{
    pthread_mutex_lock(&q->lock);
    line->retrying--;
    bt_queue_line_hand_on(line);
    pthread_mutex_unlock(&q->lock);
}

/* A place is this request's now, or another one needs its room. */
void bt_queue_on_called(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct bt_queue_ticket *t = bt_container_of(envelope, struct bt_queue_ticket, mail);
    bt_request_t *r = t->request;
    struct bt_queues *q = r->d->shared->queues;
    struct bt_queue_line *line = t->line;

    (void) loop;
    pthread_mutex_lock(&q->lock);
    const bool is_put_out = t->where == PUT_OUT, gives_back = r->finished && !is_put_out;
    const bool is_retrying = t->is_retrying;
    const bool is_first = !is_put_out && t->record != NULL && t->record->end == NULL;
    if (!r->finished && !is_put_out)
        t->where = RUNS;
    t->is_retrying = false;
    t->leg_ends = atomic_load(&line->leg_ends);
    if (is_first)
        count_end(t, r->finished ? BT_QUEUE_GONE : BT_QUEUE_CALLED);
    if (gives_back) {
        line->retrying -= is_retrying;
        bt_queue_line_pass_room(t);
        bt_queue_line_give_back(line);
    }
    pthread_mutex_unlock(&q->lock);
    if (r->finished) {
        bt_request_release(r);
        return;
    }
    note_wait(t, is_first);
    r->holds--;
    if (is_put_out)
        answer_full(r, t, t->record->predicted_ms);
    else
        r->ops->go_on(r, BT_PROGRESS_NEXT);
    if (is_retrying)
        end_retry(q, line);
}

static void start_tick(struct bt_queue_ticket *t, uint64_t now_ms)
{
    const uint64_t left_ms = t->until_ms - now_ms;

    bt_timer_start(&t->timer, t->looks && LOOK_MS < left_ms ? LOOK_MS : left_ms);
}

/* One of those that wait does it for all. */
static void look_at_workers(struct bt_queues *q, struct bt_queue_ticket *t, uint64_t now_ms)
{
    bt_request_t *r = t->request;
    struct bt_queue_line *line = t->line;
    const unsigned places = bt_queue_places(q, r);
    const uint64_t seen = r->d->workers->epoch + bt_workers_changes();
    const bool is_its_pools =
        bt_request_refresh_pool(r) && strcmp(r->pool->spec.name, line->pool) == 0;

    pthread_mutex_lock(&q->lock);
    if (!is_its_pools) { /* no leg's end will call it, if it is blocked */
        if (t->where == BLOCKED && !t->is_due)
            bt_queue_line_set_due(t);
        bt_queue_line_hand_on(line);
    } else if (places == BT_QUEUE_NO_WORKER) {
        line->workers_seen = UINT64_MAX; /* a breaker may let them serve again without a word */
    } else if (now_ms >= line->look_at_ms) {
        line->look_at_ms = now_ms + LOOK_MS;
        if (places != line->places || seen != line->workers_seen)
            bt_queue_line_set_all_due(line);
        line->places = places;
        line->workers_seen = seen;
        bt_queue_line_hand_on(line);
    }
    pthread_mutex_unlock(&q->lock);
}

static void on_tick(bt_timer_t *timer)
{
    struct bt_queue_ticket *t = bt_container_of(timer, struct bt_queue_ticket, timer);
    bt_request_t *r = t->request;
    struct bt_queues *q = r->d->shared->queues;
    const uint64_t now_ms = bt_clock_ms();

    if (now_ms < t->until_ms) {
        look_at_workers(q, t, now_ms);
        start_tick(t, now_ms);
        return;
    }
    pthread_mutex_lock(&q->lock);
    const bool is_first = t->where == WAITS, has_waited = step_out(t);
    if (is_first)
        count_end(t, BT_QUEUE_TIMEOUT);
    const uint64_t again_ms =
        bt_queue_rate_predict_ms(&t->line->rate, t->line->fair.rows[t->item.klass].load.cost);
    pthread_mutex_unlock(&q->lock);
    if (!has_waited)
        return; /* its turn has come, and the mail is on its way */
    note_wait(t, false);
    bt_stats_inc(&r->d->stats, queue_timeouts);
    note_shed(r, "it has waited too long");
    r->fail_name = "queue_timeout";
    bt_answer_error(r, 408, "no place came free in time (--queue-timeout-secs)",
                    retry_after_s(again_ms));
}

static void wait(bt_request_t *r, struct bt_queue_ticket *t, enum bt_queue_where where,
                 uint64_t timeout_ms)
{
    t->where = where;
    r->holds++;
    t->since_us = bt_clock_us();
    t->until_ms = t->since_us / 1000 + timeout_ms;
    /* Else its line's places do not change. */
    t->looks = where == BLOCKED || r->pool->spec.engine_request_limit != 0;
    bt_timer_init(r->d->loop, &t->timer, on_tick);
    start_tick(t, t->since_us / 1000);
}

/* ---- coming ---- */

static uint64_t cost_of(const bt_request_t *r, double output_tokens)
{
    const uint64_t prompts = r->intent.prompt_count + !r->intent.prompt_count;

    return bt_queue_cost(r->prompt_tokens,
                         bt_route_info(r->route)->generates ? prompts * r->intent.n : 0,
                         r->intent.max_tokens, output_tokens);
}

static void take_word(struct bt_queue_ticket *t, const bt_policy_queueing_t *word)
{
    bt_queue_take_word(&t->item, &t->timeout_ms, word);
    if (word->key[0] != '\0')
        t->item.key = bt_arena_str(&t->request->arena, t->item.key);
    t->is_told_cost = word->cost != 0;
}

static struct bt_queue_ticket *make_ticket(bt_request_t *r)
{
    struct bt_queue_ticket *t = bt_arena_zalloc(&r->arena, sizeof(*t));
    bt_policy_queueing_t word = {.weight = 0};

    t->request = r;
    bt_list_init(&t->blocked);
    t->timeout_ms = r->d->shared->config.queue_timeout_ms;
    t->item = (bt_fair_item_t){
        .klass = BT_FAIR_NORMAL,
        .key = r->tenant.n != 0 ? r->tenant : BT_STR(BT_TENANT_ANONYMOUS),
        .bytes = r->body_bytes,
    };
    t->item.weight = bt_tenant_weight(&r->d->shared->queues->weights, t->item.key);
    if (bt_policy_call_enqueue(r, &word) == 0)
        take_word(t, &word);
    return t;
}

static struct bt_record_queue *make_record(bt_request_t *r, const bt_fair_item_t *item)
{
    struct bt_record_queue *record = bt_arena_zalloc(&r->arena, sizeof(*record));

    record->klass = bt_fair_class_name(item->klass);
    record->key = item->key;
    record->weight = item->weight;
    record->cost = item->cost;
    r->record.queue = record;
    return record;
}

/* Others have put these out. */
static void call_victims(bt_list_t *victims)
{
    bt_list_t *it, *tmp;

    bt_list_each (victims, it, tmp) {
        bt_fair_item_t *item = bt_container_of(it, bt_fair_item_t, link);
        struct bt_queue_ticket *out = bt_container_of(item, struct bt_queue_ticket, item);
        bt_list_remove(it);
        count_end(out, BT_QUEUE_PUT_OUT);
        bt_queue_line_call(out, PUT_OUT);
    }
}

/* The lock is held. Where it does not wait t->where stays NOWHERE. */
static enum bt_queue_end stand_in_line(bt_request_t *r, struct bt_queue_ticket *t)
{
    struct bt_queue_line *line = t->line;
    const bool was_empty = line->fair.load.count == 0;
    bt_queue_join_t join;

    t->record = make_record(r, &t->item);
    const enum bt_queue_end end =
        bt_queue_join(&line->fair, &line->rate, &t->item, t->timeout_ms, bt_clock_ms(), &join);
    call_victims(&join.victims);
    t->record->ahead = join.ahead;
    t->record->predicted_ms = join.predicted_ms;
    t->record->has_prediction = end != BT_QUEUE_FULL && join.predicted_ms != 0;
    if (end != BT_QUEUE_CALLED)
        return end;
    if (was_empty)
        bt_queue_rate_begin(&line->rate, bt_clock_us());
    t->called = line->rate.called;
    wait(r, t, WAITS, t->timeout_ms);
    return BT_QUEUE_CALLED;
}

static enum bt_queue_end find_place(struct bt_queues *q, bt_request_t *r, struct bt_queue_ticket *t,
                                    unsigned places)
{
    enum bt_queue_end end = BT_QUEUE_CALLED;
    struct bt_queue_line *line = t->line = bt_queue_line_find(q, r->pool->spec.name);

    if (line == NULL)
        return BT_QUEUE_FULL;
    if (t->item.cost == 0)
        t->item.cost = cost_of(r, line->output_tokens);
    line->places = places;
    bt_queue_line_hand_on(line); /* there may be more places than before */
    if (bt_queue_line_has_place(line) && line->fair.load.count == 0) {
        line->running++;
        t->where = RUNS;
        t->leg_ends = atomic_load(&line->leg_ends);
        return BT_QUEUE_CALLED;
    }
    end = stand_in_line(r, t);
    if (end != BT_QUEUE_CALLED)
        count_end(t, end);
    return end;
}

static enum bt_progress refuse(bt_request_t *r, const struct bt_queue_ticket *t,
                               enum bt_queue_end end)
{
    const uint64_t predicted_ms = t->record != NULL ? t->record->predicted_ms : 0;

    if (end == BT_QUEUE_FULL) {
        answer_full(r, t, predicted_ms);
        return BT_PROGRESS_ENDED;
    }
    bt_stats_inc(&r->d->stats, queue_too_long);
    note_shed(r, "it would wait too long");
    r->fail_name = "queue_too_long";
    bt_answer_error(r, 429,
                    bt_arena_printf(&r->arena,
                                    "a place would come free in %u s, and the request may wait "
                                    "%llu ms (--queue-timeout-secs)",
                                    retry_after_s(predicted_ms), (unsigned long long) t->timeout_ms)
                        .p,
                    retry_after_s(predicted_ms));
    return BT_PROGRESS_ENDED;
}

enum bt_progress bt_queue_enter(bt_request_t *r)
{
    struct bt_queues *q = r->d->shared->queues;

    if (q == NULL)
        return BT_PROGRESS_NEXT;
    unsigned places = bt_queue_places(q, r);
    if (places == BT_QUEUE_NO_WORKER)
        places = bt_queue_places_after_probe(q, r);
    if (places == BT_QUEUE_NO_WORKER) /* the plan says why, and those that wait go on waiting */
        return BT_PROGRESS_NEXT;
    struct bt_queue_ticket *t = make_ticket(r);
    r->ticket = t;
    pthread_mutex_lock(&q->lock);
    const enum bt_queue_end end = find_place(q, r, t, places);
    const enum bt_queue_where where = t->where; /* others may call it as soon as the lock is free */
    pthread_mutex_unlock(&q->lock);
    if (end != BT_QUEUE_CALLED)
        return refuse(r, t, end);
    return where == RUNS ? BT_PROGRESS_NEXT : BT_PROGRESS_WAITS;
}

/* All that might serve it are full; or, of one that has waited, gone since it was called; or one of them is being probed. Not its pool: workers come back, and of a pool
 * that is none of today's nobody may look for candidates. */
static bool may_block(const struct bt_queues *q, bt_request_t *r, int rc)
{
    const struct bt_queue_ticket *t = r->ticket;

    if (t == NULL || q->size == 0)
        return false;
    if (rc == BT_E_AGAIN)
        return true;
    return rc == BT_E_NO_WORKER && bt_request_refresh_pool(r) &&
           bt_queue_places(q, r) == BT_QUEUE_NO_WORKER &&
           (t->since_us != 0 || bt_queue_places_after_probe(q, r) != BT_QUEUE_NO_WORKER);
}

bool bt_queue_block(bt_request_t *r, int rc)
{
    struct bt_queue_ticket *t = r->ticket;
    struct bt_queues *q = r->d->shared->queues;
    const uint64_t waited_ms = r->record.queue_us / 1000;

    if (!may_block(q, r, rc))
        return false;
    const uint64_t left_ms = waited_ms < t->timeout_ms ? t->timeout_ms - waited_ms : 1;
    const bool has_room = bt_queue_pool_has_room(r);
    pthread_mutex_lock(&q->lock);
    const bt_fair_load_t *narrow = &t->line->narrow;
    bt_queue_line_pass_room(t);
    wait(r, t, BLOCKED, left_ms);
    if (rc == BT_E_NO_WORKER)
        t->line->workers_seen = UINT64_MAX; /* whoever is there later is new to it */
    bt_queue_line_block(t,
                        has_room && narrow->count < q->size &&
                            (q->max_bytes == 0 || narrow->bytes + t->item.bytes <= q->max_bytes));
    if (atomic_load(&t->line->leg_ends) != t->leg_ends) /* since it looked */
        bt_queue_line_set_due(t);
    bt_queue_line_hand_on(t->line);
    pthread_mutex_unlock(&q->lock);
    return true;
}
