/* fair_queue.c - how it works: each class has a ring of flows. A flow's deficit is what it may spend; a visit adds QUANTUM times its weight,
 * and it is served while its first item costs no more than that. A small quantum makes the order that of equal bits, but many rounds for a
 * costly item: when a whole round has served nobody, the rounds that nobody would be served in are given at once. So a pop visits no flow more
 * than three times, whatever costs are.
 *
 * A flow that is empty is gone, and its deficit with it: nobody saves up. Who owes keeps owing only while it waits.
 *
 * Classes are strict, but for those that have waited long: theirs is the turn when they owe nothing for the last one, and they pay that back
 * with a fourth of what is served above them.
 */
#include "dispatch/queue/fair_queue.h"

#include "base/err.h"
#include "script/shared/prefix_hash.h"

#include <math.h>
#include <stdlib.h>

#define QUANTUM 16
#define AGED_PAYS_BACK 4 /* one token for so many above */

struct bt_fair_flow {
    bt_list_t link; /* in its class, or spare */
    bt_list_t items;
    uint64_t key_hash;
    int64_t deficit;
    bool is_visited; /* this round's quantum is in its deficit */
    unsigned weight;
    unsigned lifted; /* of its items; it stays while they may come back */
    bt_fair_load_t load;
    char key[BT_FAIR_NAME_MAX + 1];
};

#define FLOW_OF(l) bt_container_of((l), struct bt_fair_flow, link)
#define ITEM_OF(l) bt_container_of((l), bt_fair_item_t, link)

static const char *const class_names[BT_FAIR_CLASSES] = {"high", "normal", "low"};

const char *bt_fair_class_name(enum bt_fair_class klass)
{
    return class_names[klass];
}

bool bt_fair_class_of(bt_str_t name, enum bt_fair_class *klass_p)
{
    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++)
        if (bt_str_eq(name, bt_str(class_names[i]))) {
            *klass_p = (enum bt_fair_class) i;
            return true;
        }
    return false;
}

void bt_fair_queue_init(bt_fair_queue_t *q, unsigned max_count, uint64_t max_bytes,
                        uint64_t aging_ms)
{
    *q = (bt_fair_queue_t){.max_count = max_count, .max_bytes = max_bytes, .aging_ms = aging_ms};
    bt_list_init(&q->spare);
    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
        bt_list_init(&q->rows[i].flows);
        bt_list_init(&q->rows[i].by_age);
    }
}

void bt_fair_queue_fini(bt_fair_queue_t *q)
{
    while (!bt_list_empty(&q->spare)) {
        struct bt_fair_flow *flow = FLOW_OF(q->spare.next);
        bt_list_remove(&flow->link);
        free(flow);
    }
}

/* ---- flows ---- */

static uint64_t hash_of(bt_str_t key)
{
    return bt_hash64(key, 0);
}

static struct bt_fair_flow *find_flow(const struct bt_fair_row *row, uint64_t key_hash)
{
    const bt_list_t *it = row->flows.next;

    while (it != &row->flows && FLOW_OF(it)->key_hash != key_hash)
        it = it->next;
    return it != &row->flows ? FLOW_OF(it) : NULL;
}

static struct bt_fair_flow *new_flow(bt_fair_queue_t *q, bt_str_t key, uint64_t key_hash)
{
    struct bt_fair_flow *flow;

    if (bt_list_empty(&q->spare)) {
        flow = malloc(sizeof(*flow));
    } else {
        flow = FLOW_OF(q->spare.next);
        bt_list_remove(&flow->link);
    }
    if (flow == NULL)
        return NULL;
    *flow = (struct bt_fair_flow){.key_hash = key_hash};
    bt_list_init(&flow->link);
    bt_list_init(&flow->items);
    memcpy(flow->key, key.p, key.n < BT_FAIR_NAME_MAX ? key.n : BT_FAIR_NAME_MAX);
    return flow;
}

static struct bt_fair_flow *take_flow(bt_fair_queue_t *q, const bt_fair_item_t *item)
{
    struct bt_fair_row *row = &q->rows[item->klass];
    const uint64_t key_hash = hash_of(item->key);
    struct bt_fair_flow *flow = find_flow(row, key_hash);

    if (flow == NULL && (flow = new_flow(q, item->key, key_hash)) != NULL) {
        bt_list_push(&row->flows, &flow->link);
        row->flow_count++;
    }
    if (flow != NULL)
        flow->weight = item->weight;
    return flow;
}

/* ---- in and out ---- */

static void add_load(bt_fair_load_t *load, const bt_fair_item_t *item)
{
    load->count++;
    load->cost += item->cost;
    load->bytes += item->bytes;
}

static void drop_load(bt_fair_load_t *load, const bt_fair_item_t *item)
{
    load->count--;
    load->cost -= item->cost;
    load->bytes -= item->bytes;
}

bool bt_fair_queue_fits(const bt_fair_queue_t *q, const bt_fair_item_t *item)
{
    return q->load.count < q->max_count &&
           (q->max_bytes == 0 ||
            (item->bytes <= q->max_bytes && q->load.bytes <= q->max_bytes - item->bytes));
}

static void enter(bt_fair_queue_t *q, bt_fair_item_t *item, struct bt_fair_flow *flow)
{
    item->flow = flow;
    add_load(&flow->load, item);
    add_load(&q->rows[item->klass].load, item);
    add_load(&q->load, item);
}

int bt_fair_queue_push(bt_fair_queue_t *q, bt_fair_item_t *item, uint64_t now_ms)
{
    struct bt_fair_flow *flow = take_flow(q, item);

    if (flow == NULL)
        return BT_E_NOMEM;
    item->since_ms = now_ms;
    bt_list_push(&flow->items, &item->link);
    bt_list_push(&q->rows[item->klass].by_age, &item->by_age);
    enter(q, item, flow);
    return 0;
}

/* Its flow stays, empty or not. */
static void leave(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    bt_list_remove(&item->link);
    bt_list_remove(&item->by_age);
    drop_load(&item->flow->load, item);
    drop_load(&q->rows[item->klass].load, item);
    drop_load(&q->load, item);
}

static void forget_flow(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    struct bt_fair_flow *flow = item->flow;

    item->flow = NULL;
    if (flow->load.count != 0 || flow->lifted != 0)
        return;
    bt_list_remove(&flow->link);
    bt_list_push(&q->spare, &flow->link);
    q->rows[item->klass].flow_count--;
}

void bt_fair_queue_remove(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    if (item->flow == NULL)
        return;
    leave(q, item);
    forget_flow(q, item);
}

void bt_fair_queue_lift(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    leave(q, item);
    item->flow->lifted++;
}

void bt_fair_queue_put_back(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    bt_list_t *by_age = &q->rows[item->klass].by_age, *younger = by_age;

    while (younger->prev != by_age &&
           bt_container_of(younger->prev, bt_fair_item_t, by_age)->since_ms > item->since_ms)
        younger = younger->prev;
    item->flow->lifted--;
    bt_list_push(&item->flow->items, &item->link);
    bt_list_push(younger, &item->by_age); /* before it */
    enter(q, item, item->flow);
}

void bt_fair_queue_let_go(bt_fair_queue_t *q, bt_fair_item_t *item)
{
    item->flow->lifted--;
    forget_flow(q, item);
}

/* ---- who is next ---- */

static int64_t share_of(const struct bt_fair_flow *flow)
{
    return (int64_t) QUANTUM * flow->weight;
}

static int64_t first_cost(const struct bt_fair_flow *flow)
{
    return (int64_t) ITEM_OF(flow->items.next)->cost;
}

/* The rounds in which nobody would be served. */
static void skip_rounds(struct bt_fair_row *row)
{
    int64_t fewest = INT64_MAX;

    for (bt_list_t *it = row->flows.next; it != &row->flows; it = it->next) {
        const struct bt_fair_flow *flow = FLOW_OF(it);
        const int64_t missing = first_cost(flow) - flow->deficit, share = share_of(flow);
        const int64_t rounds = (missing + share - 1) / share;
        if (rounds < fewest)
            fewest = rounds;
    }
    for (bt_list_t *it = row->flows.next; fewest > 1 && it != &row->flows; it = it->next)
        FLOW_OF(it)->deficit += (fewest - 1) * share_of(FLOW_OF(it));
}

static bt_fair_item_t *next_of(struct bt_fair_row *row)
{
    for (unsigned passed = 0;;) {
        struct bt_fair_flow *flow = FLOW_OF(row->flows.next);
        if (!flow->is_visited)
            flow->deficit += share_of(flow);
        flow->is_visited = true;
        if (first_cost(flow) <= flow->deficit)
            return ITEM_OF(flow->items.next);
        flow->is_visited = false;
        bt_list_remove(&flow->link);
        bt_list_push(&row->flows, &flow->link);
        if (++passed == row->flow_count) {
            skip_rounds(row);
            passed = 0;
        }
    }
}

static bool is_aged(const bt_fair_queue_t *q, const struct bt_fair_row *row, uint64_t now_ms)
{
    if (q->aging_ms == 0 || row->debt > 0 || bt_list_empty(&row->by_age))
        return false;
    const bt_fair_item_t *oldest = bt_container_of(row->by_age.next, bt_fair_item_t, by_age);
    return now_ms >= oldest->since_ms + q->aging_ms; /* another loop's clock may be ahead */
}

bt_fair_item_t *bt_fair_queue_pop(bt_fair_queue_t *q, uint64_t now_ms)
{
    unsigned top = 0, chosen;

    while (top < BT_FAIR_CLASSES && q->rows[top].load.count == 0)
        top++;
    if (top == BT_FAIR_CLASSES)
        return NULL;
    chosen = top;
    for (unsigned i = top + 1; i < BT_FAIR_CLASSES && chosen == top; i++)
        if (is_aged(q, &q->rows[i], now_ms))
            chosen = i;
    bt_fair_item_t *item = next_of(&q->rows[chosen]);
    item->flow->deficit -= (int64_t) item->cost;
    q->rows[chosen].debt = chosen == top ? 0 : q->rows[chosen].debt + (int64_t) item->cost;
    for (unsigned i = chosen + 1; i < BT_FAIR_CLASSES; i++)
        if (q->rows[i].debt > 0)
            q->rows[i].debt -= (int64_t) item->cost / AGED_PAYS_BACK + 1;
    bt_fair_queue_remove(q, item);
    return item;
}

void bt_fair_queue_charge(bt_fair_queue_t *q, const bt_fair_item_t *served, uint64_t more)
{
    struct bt_fair_flow *flow = find_flow(&q->rows[served->klass], hash_of(served->key));

    if (flow != NULL)
        flow->deficit -= (int64_t) (more < BT_FAIR_COST_MAX ? more : BT_FAIR_COST_MAX);
}

/* ---- who holds most ---- */

/* Of what is scarcer, for its weight. */
static double held(const bt_fair_queue_t *q, unsigned count, uint64_t bytes, unsigned weight)
{
    const double by_count = (double) count / q->max_count;
    const double by_bytes = q->max_bytes != 0 ? (double) bytes / (double) q->max_bytes : 0;

    return fmax(by_count, by_bytes) / weight;
}

static struct bt_fair_flow *heaviest(const bt_fair_queue_t *q, const struct bt_fair_row *row,
                                     double *held_p)
{
    struct bt_fair_flow *most = NULL;

    for (bt_list_t *it = row->flows.next; it != &row->flows; it = it->next) {
        struct bt_fair_flow *flow = FLOW_OF(it);
        const double its = held(q, flow->load.count, flow->load.bytes, flow->weight);
        if (flow->load.count != 0 && (most == NULL || its > *held_p)) {
            most = flow;
            *held_p = its;
        }
    }
    return most;
}

bt_fair_item_t *bt_fair_queue_victim(const bt_fair_queue_t *q, const bt_fair_item_t *newcomer)
{
    const struct bt_fair_row *row = &q->rows[newcomer->klass];
    bt_fair_load_t own = {0};
    double most_held = 0;

    if (q->max_count == 0 || (q->max_bytes != 0 && newcomer->bytes > q->max_bytes))
        return NULL;
    for (unsigned i = BT_FAIR_CLASSES - 1; i > newcomer->klass; i--) {
        const struct bt_fair_flow *flow = heaviest(q, &q->rows[i], &most_held);
        if (flow != NULL)
            return ITEM_OF(flow->items.prev);
    }
    const struct bt_fair_flow *most = heaviest(q, row, &most_held);
    const struct bt_fair_flow *its = find_flow(row, hash_of(newcomer->key));
    if (its != NULL)
        own = its->load;
    add_load(&own, newcomer);
    return most != NULL && most != its &&
                   held(q, own.count, own.bytes, newcomer->weight) < most_held
               ? ITEM_OF(most->items.prev)
               : NULL;
}

/* ---- what stands before one ---- */

static void note_before(bt_fair_ahead_t *a, const struct bt_fair_flow *flow, uint64_t cost)
{
    unsigned at = 0;

    a->cost += cost;
    while (at < a->before_count && a->before[at].cost >= cost)
        at++;
    if (cost == 0 || at == BT_FAIR_BEFORE_MAX)
        return;
    if (a->before_count < BT_FAIR_BEFORE_MAX)
        a->before_count++;
    memmove(&a->before[at + 1], &a->before[at], (a->before_count - at - 1) * sizeof(a->before[0]));
    memcpy(a->before[at].key, flow->key, sizeof(flow->key));
    a->before[at].cost = cost;
}

/* Of a flow of its own class goes before it what that one's weight gives it until then. */
void bt_fair_queue_ahead(const bt_fair_queue_t *q, const bt_fair_item_t *item,
                         bt_fair_ahead_t *ahead_p)
{
    const struct bt_fair_flow *own = item->flow;
    const uint64_t until = own->load.cost - item->cost;

    *ahead_p = (bt_fair_ahead_t){0};
    for (unsigned i = 0; i <= item->klass; i++) {
        const struct bt_fair_row *row = &q->rows[i];
        ahead_p->count += row->load.count;
        for (const bt_list_t *it = row->flows.next; it != &row->flows; it = it->next) {
            const struct bt_fair_flow *flow = FLOW_OF(it);
            const uint64_t turn = (until + item->cost) * flow->weight / own->weight;
            note_before(ahead_p, flow,
                        flow == own                                  ? until
                        : i == item->klass && turn < flow->load.cost ? turn
                                                                     : flow->load.cost);
        }
    }
    ahead_p->count--;
}
