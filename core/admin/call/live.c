/* While mail travels its facts belong to the request loop. `answered` is written on return only, so the callback never
 * reads what a late loop is just writing; the gather outlives its callback until the last mail is back.
 */
#include "admin/call/live.h"

#include "base/err.h"

#include <stdlib.h>

struct mail {
    bt_mail_t envelope;
    bt_gather_t *gather;
    bt_dispatcher_t *d;
    uint64_t opened_us;
};

struct bt_gather {
    bt_loop_t *control;
    bt_timer_t deadline;
    bt_gather_cb cb; /* NULL once told or cancelled */
    void *user;
    uint64_t start_us;
    bt_gather_ask_t ask;
    char id[BT_GATHER_ID_MAX]; /* of ask */
    unsigned count, waiting;
    struct mail *mails;
    bt_loop_facts_t facts[];
};

static void free_if_returned(bt_gather_t *g)
{
    if (g->waiting > 0 || g->cb != NULL)
        return;
    for (unsigned i = 0; i < g->count; i++)
        bt_text_fini(&g->facts[i].rows);
    free(g->mails);
    free(g);
}

static void tell(bt_gather_t *g)
{
    bt_gather_cb cb = g->cb;

    bt_timer_stop(&g->deadline);
    cb(g->user, g->facts, g->count);
    g->cb = NULL;
    free_if_returned(g);
}

static void on_deadline(bt_timer_t *timer)
{
    tell(bt_container_of(timer, bt_gather_t, deadline));
}

/* On the control loop again. */
static void returned(bt_loop_t *control, bt_mail_t *envelope)
{
    struct mail *l = bt_container_of(envelope, struct mail, envelope);
    bt_gather_t *g = l->gather;
    bt_loop_facts_t *facts = &g->facts[l - g->mails];

    (void) control;
    facts->delay_us = l->opened_us - g->start_us;
    facts->answered = true;
    g->waiting--;
    if (g->cb == NULL)
        free_if_returned(g);
    else if (g->waiting == 0)
        tell(g);
}

static void count_connections(const bt_dispatcher_t *d, bt_loop_facts_t *facts)
{
    for (unsigned i = 0; i < d->upstream_count; i++) {
        const bt_upstream_t *up = d->upstreams[i].up;
        if (up == NULL)
            continue;
        facts->upstream_idle += bt_upstream_idle_count(up);
        facts->upstream_active += bt_upstream_active_count(up);
    }
}

/* What is asked of this loop beside its counts. */
static void look(bt_dispatcher_t *d, const bt_gather_ask_t *ask, bt_loop_facts_t *facts)
{
    switch (ask->what) {
    case BT_GATHER_COUNTS:
        break;
    case BT_GATHER_REQUESTS:
        bt_dispatcher_describe(d, ask->limit, &facts->rows);
        break;
    case BT_GATHER_RECORD:
        bt_record_ring_find(d->records, ask->id, &facts->rows);
        break;
    case BT_GATHER_RECENT:
        bt_record_ring_recent(d->records, ask->limit, &facts->rows);
        break;
    case BT_GATHER_ROOM:
        bt_dispatcher_describe_room(d, ask->room, &facts->rows, &facts->hub_room);
        break;
    }
}

/* On the request loop. */
static void fill(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct mail *l = bt_container_of(envelope, struct mail, envelope);
    bt_gather_t *g = l->gather;
    bt_loop_facts_t *facts = &g->facts[l - g->mails];

    (void) loop;
    l->opened_us = bt_clock_us();
    facts->requests = l->d->live_count;
    facts->rooms = l->d->rooms.live;
    facts->background = l->d->background_count;
    count_connections(l->d, facts);
    look(l->d, &g->ask, facts);
    bt_loop_post(g->control, &l->envelope, returned);
}

static bt_gather_t *new_gather(bt_loop_t *control, const bt_gather_ask_t *ask, unsigned count)
{
    bt_gather_t *g = calloc(1, sizeof(*g) + count * sizeof(g->facts[0]));

    if (g == NULL || (g->mails = calloc(count + 1, sizeof(*g->mails))) == NULL) {
        free(g);
        return NULL;
    }
    g->control = control;
    g->ask = *ask;
    if (ask->id.n > 0)
        memcpy(g->id, ask->id.p, ask->id.n);
    g->ask.id.p = g->id;
    g->count = g->waiting = count;
    g->start_us = bt_clock_us();
    return g;
}

unsigned bt_gather_share(const bt_dispatch_shared_t *shared, unsigned limit)
{
    const unsigned loops = shared->dispatcher_count;

    return loops == 0 ? 0 : loops < limit ? limit / loops : 1;
}

int bt_gather_start(bt_gather_t **gather_p, bt_loop_t *control, bt_dispatch_shared_t *shared,
                    const bt_gather_ask_t *ask, uint64_t deadline_ms, bt_gather_cb cb, void *user)
{
    const unsigned count = shared->dispatcher_count;
    bt_gather_t *g;

    if (ask->id.n > BT_GATHER_ID_MAX)
        return BT_E_LIMIT;
    if ((g = new_gather(control, ask, count)) == NULL)
        return BT_E_NOMEM;
    g->cb = cb;
    g->user = user;
    bt_timer_init(control, &g->deadline, on_deadline);
    bt_timer_start(&g->deadline, count > 0 ? deadline_ms : 0);
    *gather_p = g;
    for (unsigned i = 0; i < count; i++) {
        g->facts[i].loop = shared->dispatchers[i]->loop->index;
        bt_text_init(&g->facts[i].rows);
        g->mails[i] = (struct mail){.gather = g, .d = shared->dispatchers[i]};
    }
    for (unsigned i = 0; i < count; i++)
        bt_loop_post(g->mails[i].d->loop, &g->mails[i].envelope, fill);
    return 0;
}

void bt_gather_cancel(bt_gather_t *gather)
{
    bt_timer_stop(&gather->deadline);
    gather->cb = NULL;
    free_if_returned(gather);
}

void bt_live_requests(bt_text_t *out, const bt_loop_facts_t *facts, unsigned count)
{
    const char *comma = "";
    unsigned total = 0;

    bt_text_puts(out, "{\"requests\":[");
    for (unsigned i = 0; i < count; i++) {
        if (!facts[i].answered)
            continue;
        total += facts[i].requests;
        if (facts[i].rows.len == 0)
            continue;
        bt_text_puts(out, comma);
        bt_text_put(out, bt_text_str(&facts[i].rows));
        comma = ",";
    }
    bt_text_printf(out, "],\"total\":%u,\"late_loops\":[", total);
    comma = "";
    for (unsigned i = 0; i < count; i++) {
        if (facts[i].answered)
            continue;
        bt_text_printf(out, "%s%u", comma, facts[i].loop);
        comma = ",";
    }
    bt_text_puts(out, "]}\n");
}
