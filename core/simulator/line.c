/* line.c - the line before the pool, as dispatch/queue/queue.c has it: who waits for one of --max-concurrent-requests places, and who may.
 *
 * Who is next, whom a newcomer puts out, what is predicted and who is refused for it is the gateway's own code (fair_queue, queue_join, queue_rate),
 * by this run's clock. Not here: places by --engine-request-limit, and those that have one and find no worker; they fail. */
#include "simulator/sim_impl.h"

#include "identity/identity.h"
#include "script/policy/policy_run.h"
#include "script/shared/now.h"

#include <math.h>

#define MAX_BYTES 268435456 /* a gateway's --queue-max-bytes */

void bt_sim_line_init(bt_sim_run_t *r)
{
    const bt_sim_queue_setup_t *s = &r->setup->queue;

    bt_fair_queue_init(&r->line.fair, s->size, MAX_BYTES, s->aging_ms);
    r->line.output_tokens = BT_QUEUE_OUTPUT_START;
}

void bt_sim_line_fini(bt_sim_run_t *r)
{
    bt_fair_queue_fini(&r->line.fair);
}

static bt_sim_flight_t *flight_of(bt_fair_item_t *item)
{
    return bt_container_of(item, bt_sim_flight_t, ticket.item);
}

static void count_end(bt_sim_run_t *r, const bt_sim_flight_t *f, enum bt_queue_end end)
{
    const bt_sim_ticket_t *t = &f->ticket;
    bt_sim_class_result_t *out = &r->out->classes[t->item.klass];
    const double waited_s = r->now_s - t->since_s;

    out->ends[end]++;
    if (end != BT_QUEUE_CALLED)
        return;
    out->waited_s += waited_s;
    out->most_s = fmax(out->most_s, waited_s);
    if (t->predicted_ms == 0)
        return;
    out->predicted++;
    out->error_s += fabs(waited_s - (double) t->predicted_ms / 1000);
}

/* ---- coming ---- */

static void make_ticket(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_sim_request_t *request = f->job.request;
    bt_sim_ticket_t *t = &f->ticket;

    t->timeout_ms = r->setup->queue.timeout_ms;
    t->item = (bt_fair_item_t){.klass = BT_FAIR_NORMAL,
                               .key = BT_STR(BT_TENANT_ANONYMOUS),
                               .weight = 1,
                               .bytes = 4 * (uint64_t) request->input};
    if (bt_policy_has_enqueue(r->policy)) {
        const bt_policy_request_t req = bt_sim_describe(r, f);
        if (bt_policy_enqueue(r->policy, &req, &t->word) == 0)
            bt_queue_take_word(&t->item, &t->timeout_ms, &t->word);
        else
            bt_sim_policy_error(r, bt_policy_error(r->policy));
    }
    if (t->item.cost == 0)
        t->item.cost = bt_queue_cost(request->input, 1, request->output, r->line.output_tokens);
}

/* Others have put these out. */
static void refuse_victims(bt_sim_run_t *r, bt_list_t *victims)
{
    bt_list_t *it, *tmp;

    bt_list_each (victims, it, tmp) {
        bt_sim_flight_t *f = flight_of(bt_container_of(it, bt_fair_item_t, link));
        bt_list_remove(it);
        count_end(r, f, BT_QUEUE_PUT_OUT);
        bt_sim_request_refused(r, f);
    }
}

static enum bt_sim_line_answer stand_in_line(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_line_t *line = &r->line;
    bt_sim_ticket_t *t = &f->ticket;
    const bool was_empty = line->fair.load.count == 0;
    bt_queue_join_t join;
    const enum bt_queue_end end =
        bt_queue_join(&line->fair, &line->rate, &t->item, t->timeout_ms, bt_sim_now_ms(r), &join);

    t->since_s = r->now_s;
    t->until_s = r->now_s + (double) t->timeout_ms / 1000;
    t->predicted_ms = join.predicted_ms;
    refuse_victims(r, &join.victims);
    if (end != BT_QUEUE_CALLED) {
        count_end(r, f, end);
        return BT_SIM_LINE_REFUSES;
    }
    if (was_empty)
        bt_queue_rate_begin(&line->rate, bt_now_us());
    bt_sim_events_push(&r->events, t->until_s, BT_SIM_LINE_TICK, 0, NULL);
    return BT_SIM_LINE_WAITS;
}

enum bt_sim_line_answer bt_sim_line_enter(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_policy_view_t *v = bt_sim_view(r);

    if (r->setup->queue.places == 0 ||
        (v->sets[BT_LIST_SINGLE]->count == 0 && v->sets[BT_LIST_PREFILL]->count == 0))
        return BT_SIM_LINE_PASSES; /* the plan says why */
    make_ticket(r, f);
    if (r->line.running >= r->setup->queue.places)
        return stand_in_line(r, f);
    r->line.running++; /* nobody waits while there are places */
    f->ticket.has_place = true;
    r->out->classes[f->ticket.item.klass].at_once++;
    return BT_SIM_LINE_PASSES;
}

/* ---- leaving ---- */

static void hand_on(bt_sim_run_t *r)
{
    bt_fair_item_t *item;

    while (r->line.running < r->setup->queue.places &&
           (item = bt_fair_queue_pop(&r->line.fair, bt_sim_now_ms(r))) != NULL) {
        bt_sim_flight_t *f = flight_of(item);
        r->line.running++;
        f->ticket.has_place = true;
        bt_queue_rate_note(&r->line.rate, item->cost, bt_now_us());
        count_end(r, f, BT_QUEUE_CALLED);
        bt_sim_events_push(&r->events, r->now_s, BT_SIM_CALLED, 0, f);
    }
}

void bt_sim_line_leave(bt_sim_run_t *r, const bt_sim_flight_t *f, bool is_served)
{
    const bt_sim_ticket_t *t = &f->ticket;
    const bt_sim_request_t *request = f->job.request;
    const uint64_t used = (uint64_t) request->input + (is_served ? request->output : 0);

    if (!t->has_place)
        return;
    if (is_served)
        bt_queue_learn_output(&r->line.output_tokens, request->output);
    if (t->word.cost == 0 && used > t->item.cost)
        bt_fair_queue_charge(&r->line.fair, &t->item, used - t->item.cost);
    r->line.running--;
    hand_on(r);
}

void bt_sim_line_tick(bt_sim_run_t *r)
{
    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
        bt_list_t *it, *tmp;
        bt_list_each (&r->line.fair.rows[i].by_age, it, tmp) {
            bt_sim_flight_t *f = flight_of(bt_container_of(it, bt_fair_item_t, by_age));
            if (f->ticket.until_s > r->now_s)
                continue;
            bt_fair_queue_remove(&r->line.fair, &f->ticket.item);
            count_end(r, f, BT_QUEUE_TIMEOUT);
            bt_sim_request_refused(r, f);
        }
    }
}
