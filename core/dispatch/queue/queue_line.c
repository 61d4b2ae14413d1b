/* queue_line.c - lines, their places, and to whom a free one goes. */
#include "dispatch/queue/queue_impl.h"

#include <stdlib.h>

/* ---- life ---- */

struct bt_queues *bt_queues_new(const bt_dispatch_config_t *config)
{
    struct bt_queues *q = calloc(1, sizeof(*q));

    if (q == NULL)
        return NULL;
    q->limit = config->max_concurrent;
    q->size = config->queue_size;
    q->max_bytes = config->queue_max_bytes;
    q->aging_ms = config->queue_aging_ms;
    pthread_mutex_init(&q->lock, NULL);
    if (bt_tenant_weights_read(
            &q->weights, bt_str(config->queue_weights != NULL ? config->queue_weights : "")) < 0) {
        bt_queues_free(q);
        return NULL;
    }
    return q;
}

void bt_queues_free(struct bt_queues *q)
{
    if (q == NULL)
        return;
    while (q->lines != NULL) {
        struct bt_queue_line *line = q->lines;
        q->lines = line->next;
        bt_fair_queue_fini(&line->fair);
        free(line->pool);
        free(line);
    }
    pthread_mutex_destroy(&q->lock);
    bt_tenant_weights_fini(&q->weights);
    free(q);
}

struct bt_queue_line *bt_queue_line_find(struct bt_queues *q, const char *pool)
{
    struct bt_queue_line *line = q->lines;

    while (line != NULL && strcmp(line->pool, pool) != 0)
        line = line->next;
    if (line != NULL)
        return line;
    if (posix_memalign((void **) &line, _Alignof(struct bt_queue_line), sizeof(*line)) != 0)
        return NULL;
    memset(line, 0, sizeof(*line));
    line->pool = bt_str_dup(bt_str(pool));
    if (line->pool == NULL) {
        free(line);
        return NULL;
    }
    bt_fair_queue_init(&line->fair, q->size, q->max_bytes, q->aging_ms);
    bt_list_init(&line->blocked);
    line->output_tokens = BT_QUEUE_OUTPUT_START;
    line->next = q->lines;
    q->lines = line;
    return line;
}

/* ---- for the metrics ---- */

void bt_queues_each(struct bt_queues *q, bt_queues_cb cb, void *user)
{
    pthread_mutex_lock(&q->lock);
    for (const struct bt_queue_line *line = q->lines; line != NULL; line = line->next) {
        bt_queue_facts_t facts = {.pool = line->pool,
                                  .running = line->running,
                                  .places = line->places,
                                  .blocked = atomic_load(&line->blocked_count),
                                  .tokens_per_second = bt_queue_rate_tokens(&line->rate),
                                  .waiting = line->fair.load};
        for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
            facts.classes[i] = line->stats[i];
            facts.classes[i].waiting = line->fair.rows[i].load;
            facts.classes[i].tenants = line->fair.rows[i].flow_count;
        }
        cb(user, &facts);
    }
    pthread_mutex_unlock(&q->lock);
}

/* ---- handing places on ---- */

void bt_queue_line_call(struct bt_queue_ticket *t, enum bt_queue_where how)
{
    t->where = how;
    bt_loop_post(t->request->d->loop, &t->mail, bt_queue_on_called);
}

static bool is_open(const struct bt_queue_line *line)
{
    return line->places == 0 || line->running < line->places;
}

bool bt_queue_line_has_place(const struct bt_queue_line *line)
{
    return is_open(line) && line->keepers == 0 && line->retrying == 0;
}

void bt_queue_line_block(struct bt_queue_ticket *t, bool is_narrow)
{
    struct bt_queue_line *line = t->line;

    t->is_narrow = is_narrow;
    bt_list_push(&line->blocked, &t->blocked);
    atomic_fetch_add(&line->blocked_count, 1);
    if (!is_narrow) {
        line->keepers++;
        return;
    }
    line->narrow.count++;
    line->narrow.bytes += t->item.bytes;
    line->running--;
}

static void set_due(struct bt_queue_ticket *t, bool is_due)
{
    t->line->due += (unsigned) is_due - (unsigned) t->is_due;
    t->is_due = is_due;
}

void bt_queue_line_unblock(struct bt_queue_ticket *t)
{
    struct bt_queue_line *line = t->line;

    bt_list_remove(&t->blocked);
    atomic_fetch_sub(&line->blocked_count, 1);
    set_due(t, false);
    if (!t->is_narrow) {
        line->keepers--;
        return;
    }
    line->narrow.count--;
    line->narrow.bytes -= t->item.bytes;
}

void bt_queue_line_set_due(struct bt_queue_ticket *t)
{
    set_due(t, true);
    t->line->rooms++;
}

void bt_queue_line_set_all_due(struct bt_queue_line *line)
{
    for (bt_list_t *it = line->blocked.next; it != &line->blocked; it = it->next)
        set_due(bt_container_of(it, struct bt_queue_ticket, blocked), true);
    line->rooms = atomic_load(&line->blocked_count);
}

/* By what of it does not change while it is blocked: another thread's request. */
static bool may_use(const struct bt_queue_ticket *t, const bt_worker_t *w)
{
    const bt_request_t *r = t->request;

    return (r->pinned == NULL || r->pinned == w) && bt_worker_serves_model(w, r->intent.model);
}

void bt_queue_line_add_room(struct bt_queue_line *line, const bt_worker_t *worker)
{
    bool is_for_any = false;

    for (bt_list_t *it = line->blocked.next; it != &line->blocked; it = it->next) {
        struct bt_queue_ticket *t = bt_container_of(it, struct bt_queue_ticket, blocked);
        if (!may_use(t, worker))
            continue;
        set_due(t, true);
        is_for_any = true;
    }
    line->rooms += is_for_any;
}

void bt_queue_line_pass_room(struct bt_queue_ticket *t)
{
    t->line->rooms += t->has_room;
    t->has_room = false;
}

/* A room is looked at by one after the other, until one of them takes it: as many looks as there are requests would cost each leg's end that
 * many plans. */
static void call_blocked(struct bt_queue_line *line)
{
    bt_list_t *it, *tmp;

    bt_list_each (&line->blocked, it, tmp) {
        struct bt_queue_ticket *t = bt_container_of(it, struct bt_queue_ticket, blocked);
        if (line->due == 0 || line->rooms == 0)
            break;
        if (!t->is_due || (t->is_narrow && !is_open(line)))
            continue;
        line->running += t->is_narrow;
        bt_queue_line_unblock(t);
        t->is_retrying = t->has_room = true;
        line->retrying++;
        line->rooms--;
        bt_queue_line_call(t, CALLED);
    }
    if (line->due == 0)
        line->rooms = 0; /* nobody can use them */
    if (line->rooms != 0 || line->retrying != 0)
        return;
    for (it = line->blocked.next; it != &line->blocked && line->due != 0; it = it->next)
        set_due(bt_container_of(it, struct bt_queue_ticket, blocked), false);
}

void bt_queue_line_hand_on(struct bt_queue_line *line)
{
    call_blocked(line);
    while (bt_queue_line_has_place(line)) {
        bt_fair_item_t *item = bt_fair_queue_pop(&line->fair, bt_clock_ms());
        if (item == NULL)
            return;
        struct bt_queue_ticket *t = bt_container_of(item, struct bt_queue_ticket, item);
        line->running++;
        t->record->passed = line->rate.called - t->called;
        bt_queue_rate_note(&line->rate, item->cost, bt_clock_us());
        bt_queue_line_call(t, CALLED);
    }
}

void bt_queue_line_give_back(struct bt_queue_line *line)
{
    line->running--;
    bt_queue_line_hand_on(line);
}
