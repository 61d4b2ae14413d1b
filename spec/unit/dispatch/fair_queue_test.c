/* Who is next: each pop beside a model that goes round by round, and the shares that come of it. Time is a number here. */
#include "dispatch/queue/fair_queue.h"

#include "base/rand.h"
#include "unit.h"

#include <string.h>

#define QUANTUM 16

/* ---- a model: arrays, searched; every round is gone through ---- */

#define TENANTS 5
#define ITEMS 64

static const char *const tenants[TENANTS] = {"a", "b", "c", "", "a-tenant-of-a-long-name"};

typedef struct entry {
    bt_fair_item_t item;
    unsigned tenant;
    bool waits;
    unsigned order; /* of arrival */
} entry_t;

struct model_flow {
    bool is_there, is_visited;
    int64_t deficit;
    unsigned weight;
};

static struct model {
    struct model_flow flows[BT_FAIR_CLASSES][TENANTS];
    unsigned ring[BT_FAIR_CLASSES][TENANTS], ring_count[BT_FAIR_CLASSES];
    int64_t debt[BT_FAIR_CLASSES];
} model;

static entry_t entries[ITEMS];
static unsigned arrivals;

static entry_t *oldest(unsigned klass, int tenant)
{
    entry_t *found = NULL;

    for (unsigned i = 0; i < ITEMS; i++) {
        entry_t *e = &entries[i];
        if (e->waits && e->item.klass == klass && (tenant < 0 || e->tenant == (unsigned) tenant) &&
            (found == NULL || e->order < found->order))
            found = e;
    }
    return found;
}

static void model_push(entry_t *e)
{
    const unsigned k = e->item.klass;
    struct model_flow *flow = &model.flows[k][e->tenant];

    if (!flow->is_there) {
        *flow = (struct model_flow){.is_there = true};
        model.ring[k][model.ring_count[k]++] = e->tenant;
    }
    flow->weight = e->item.weight;
    e->waits = true;
    e->order = ++arrivals;
}

static void model_remove(entry_t *e)
{
    const unsigned k = e->item.klass;
    unsigned at = 0;

    e->waits = false;
    if (oldest(k, (int) e->tenant) != NULL)
        return;
    model.flows[k][e->tenant].is_there = false;
    while (model.ring[k][at] != e->tenant)
        at++;
    model.ring_count[k]--;
    memmove(&model.ring[k][at], &model.ring[k][at + 1],
            (model.ring_count[k] - at) * sizeof(model.ring[k][0]));
}

static entry_t *model_next_of(unsigned k)
{
    for (;;) {
        const unsigned tenant = model.ring[k][0];
        struct model_flow *flow = &model.flows[k][tenant];
        entry_t *e = oldest(k, (int) tenant);
        if (!flow->is_visited)
            flow->deficit += QUANTUM * (int64_t) flow->weight;
        flow->is_visited = true;
        if ((int64_t) e->item.cost <= flow->deficit)
            return e;
        flow->is_visited = false;
        memmove(&model.ring[k][0], &model.ring[k][1],
                (model.ring_count[k] - 1) * sizeof(model.ring[k][0]));
        model.ring[k][model.ring_count[k] - 1] = tenant;
    }
}

static entry_t *model_pop(uint64_t now_ms, uint64_t aging_ms)
{
    unsigned top = 0, chosen;

    while (top < BT_FAIR_CLASSES && oldest(top, -1) == NULL)
        top++;
    if (top == BT_FAIR_CLASSES)
        return NULL;
    chosen = top;
    for (unsigned k = BT_FAIR_CLASSES - 1; k > top; k--) {
        const entry_t *e = oldest(k, -1);
        if (aging_ms != 0 && e != NULL && model.debt[k] <= 0 &&
            now_ms - e->item.since_ms >= aging_ms)
            chosen = k;
    }
    entry_t *e = model_next_of(chosen);
    model.flows[chosen][e->tenant].deficit -= (int64_t) e->item.cost;
    model.debt[chosen] = chosen == top ? 0 : model.debt[chosen] + (int64_t) e->item.cost;
    for (unsigned k = chosen + 1; k < BT_FAIR_CLASSES; k++)
        if (model.debt[k] > 0)
            model.debt[k] -= (int64_t) e->item.cost / 4 + 1;
    model_remove(e);
    return e;
}

static void loads_are_those_of_the_model(const bt_fair_queue_t *q)
{
    bt_fair_load_t all = {0};

    for (unsigned k = 0; k < BT_FAIR_CLASSES; k++) {
        bt_fair_load_t load = {0};
        for (unsigned i = 0; i < ITEMS; i++)
            if (entries[i].waits && entries[i].item.klass == k) {
                load.count++;
                load.cost += entries[i].item.cost;
                load.bytes += entries[i].item.bytes;
            }
        assert_int_equal(q->rows[k].load.count, load.count);
        assert_int_equal(q->rows[k].load.cost, load.cost);
        assert_int_equal(q->rows[k].load.bytes, load.bytes);
        assert_int_equal(q->rows[k].flow_count, model.ring_count[k]);
        all.count += load.count;
        all.cost += load.cost;
        all.bytes += load.bytes;
    }
    assert_int_equal(q->load.count, all.count);
    assert_int_equal(q->load.cost, all.cost);
    assert_int_equal(q->load.bytes, all.bytes);
}

static uint64_t some_cost(void)
{
    return 1 + (bt_rand_below(4) == 0 ? bt_rand_below(10000) : bt_rand_below(500));
}

/* A newcomer that does not get in after all: as if nobody had been out. */
static void lift_some_and_put_them_back(bt_fair_queue_t *q)
{
    const bt_fair_item_t newcomer = {
        .klass = BT_FAIR_HIGH, .key = bt_str("newcomer"), .weight = BT_FAIR_WEIGHT_MAX, .cost = 1};
    bt_fair_item_t *out[4];
    unsigned count = 0;

    while (count < 4 && (out[count] = bt_fair_queue_victim(q, &newcomer)) != NULL)
        bt_fair_queue_lift(q, out[count++]);
    while (count > 0)
        bt_fair_queue_put_back(q, out[--count]);
}

static void any_order_is_the_models(void **state)
{
    for (uint64_t seed = 1; seed <= 24; seed++) {
        const uint64_t aging_ms = seed % 3 == 0 ? 0 : 200;
        bt_fair_queue_t q;
        uint64_t now_ms = 1000;

        bt_rand_seed(seed);
        bt_fair_queue_init(&q, ITEMS, 0, aging_ms);
        memset(entries, 0, sizeof(entries));
        memset(&model, 0, sizeof(model));
        arrivals = 0;
        for (unsigned n = 0; n < 3000; n++) {
            entry_t *e = &entries[bt_rand_below(ITEMS)];
            const unsigned what = (unsigned) bt_rand_below(10);
            now_ms += bt_rand_below(8);
            if (!e->waits && what < 6) {
                e->tenant = (unsigned) bt_rand_below(TENANTS);
                e->item =
                    (bt_fair_item_t){.klass = (enum bt_fair_class) bt_rand_below(BT_FAIR_CLASSES),
                                     .key = bt_str(tenants[e->tenant]),
                                     .weight = 1 + (unsigned) bt_rand_below(8),
                                     .cost = some_cost(),
                                     .bytes = bt_rand_below(5000)};
                assert_int_equal(bt_fair_queue_push(&q, &e->item, now_ms), 0);
                model_push(e);
            } else if (e->waits && what == 6) {
                bt_fair_queue_remove(&q, &e->item);
                bt_fair_queue_remove(&q, &e->item); /* once more does nothing */
                model_remove(e);
            } else if (what == 7 && e->item.key.p != NULL && !e->waits) { /* served once */
                const uint64_t more = some_cost();
                bt_fair_queue_charge(&q, &e->item, more);
                if (model.flows[e->item.klass][e->tenant].is_there)
                    model.flows[e->item.klass][e->tenant].deficit -= (int64_t) more;
            } else if (what > 7) {
                const entry_t *next = model_pop(now_ms, aging_ms);
                assert_ptr_equal(bt_fair_queue_pop(&q, now_ms), next != NULL ? &next->item : NULL);
            }
            lift_some_and_put_them_back(&q);
            loads_are_those_of_the_model(&q);
        }
        for (entry_t *e; (e = model_pop(now_ms, aging_ms)) != NULL;)
            assert_ptr_equal(bt_fair_queue_pop(&q, now_ms), &e->item);
        assert_null(bt_fair_queue_pop(&q, now_ms));
        bt_fair_queue_fini(&q);
    }
}

/* ---- shares ---- */

#define GREEDY 3

struct greedy {
    const char *name;
    unsigned weight;
    uint64_t mean, served[BT_FAIR_CLASSES];
    bt_fair_item_t items[BT_FAIR_CLASSES][8]; /* all wait at all times */
};

static uint64_t longest_ms, popped;

static void refill(bt_fair_queue_t *q, struct greedy *g, bt_fair_item_t *item,
                   enum bt_fair_class klass, uint64_t now_ms)
{
    *item = (bt_fair_item_t){.klass = klass,
                             .key = bt_str(g->name),
                             .weight = g->weight,
                             .cost = g->mean / 2 + bt_rand_below(g->mean),
                             .bytes = 1000};
    assert_true(bt_fair_queue_fits(q, item));
    assert_int_equal(bt_fair_queue_push(q, item, now_ms), 0);
}

static struct greedy *owner_of(struct greedy *all, const bt_fair_item_t *item)
{
    for (unsigned i = 0; i < GREEDY; i++)
        if (item >= &all[i].items[0][0] && item <= &all[i].items[BT_FAIR_CLASSES - 1][7])
            return &all[i];
    fail_msg("whose is it?");
    return NULL;
}

static void within_5_percent(double is, double should)
{
    if (is < should * 0.95 || is > should * 1.05)
        fail_msg("%.4f, and it should be %.4f", is, should);
}

/* The mark: weights 1:2:4, all greedy, two classes, requests of all sizes; a token takes a microsecond. */
static void shares_are_those_of_the_weights(void **state)
{
    struct greedy all[GREEDY] = {{"gold", 4, 3000, {0}, {{{0}}}},
                                 {"silver", 2, 200, {0}, {{{0}}}},
                                 {"bronze", 1, 9000, {0}, {{{0}}}}};
    static const enum bt_fair_class classes[] = {BT_FAIR_HIGH, BT_FAIR_NORMAL};
    const uint64_t aging_ms = 100; /* below what the lower class waits: it is aged all the time */
    uint64_t sums[BT_FAIR_CLASSES] = {0}, now_us = 0;
    bt_fair_queue_t q;

    bt_rand_seed(7);
    longest_ms = popped = 0;
    bt_fair_queue_init(&q, GREEDY * 2 * 8, GREEDY * 2 * 8 * 1000, aging_ms);
    for (unsigned i = 0; i < GREEDY; i++)
        for (unsigned k = 0; k < 2; k++)
            for (unsigned n = 0; n < 8; n++)
                refill(&q, &all[i], &all[i].items[classes[k]][n], classes[k], 0);
    for (; popped < 100000; popped++) {
        bt_fair_item_t *item = bt_fair_queue_pop(&q, now_us / 1000);
        struct greedy *g = owner_of(all, item);
        const uint64_t waited_ms = now_us / 1000 - item->since_ms;
        longest_ms = waited_ms > longest_ms ? waited_ms : longest_ms;
        g->served[item->klass] += item->cost;
        sums[item->klass] += item->cost;
        now_us += item->cost;
        assert_true(q.load.count < q.max_count && q.load.bytes < q.max_bytes);
        refill(&q, g, item, item->klass, now_us / 1000);
    }
    for (unsigned i = 0; i < GREEDY; i++)
        for (unsigned k = 0; k < 2; k++)
            within_5_percent((double) all[i].served[classes[k]] / (double) sums[classes[k]],
                             all[i].weight / 7.0);
    /* Nobody starves: the lower class has a token of five. Bronze has a seventh of that, so its eight there take 2.5 s. */
    within_5_percent((double) sums[BT_FAIR_NORMAL] / (double) (sums[0] + sums[1]), 0.2);
    assert_true(longest_ms < 4000);
    for (unsigned i = 0; i < GREEDY; i++)
        for (unsigned k = 0; k < 2; k++)
            for (unsigned n = 0; n < 8; n++)
                bt_fair_queue_remove(&q, &all[i].items[classes[k]][n]);
    bt_fair_queue_fini(&q);
}

/* ---- one at a time ---- */

static bt_fair_item_t item_of(const char *key, enum bt_fair_class klass, uint64_t cost)
{
    return (bt_fair_item_t){
        .klass = klass, .key = bt_str(key), .weight = 1, .cost = cost, .bytes = 100};
}

static void without_aging_priorities_are_strict(void **state)
{
    bt_fair_item_t low = item_of("a", BT_FAIR_LOW, 1), high[3];
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, 10, 0, 0);
    assert_int_equal(bt_fair_queue_push(&q, &low, 0), 0);
    for (unsigned i = 0; i < 3; i++) {
        high[i] = item_of("b", BT_FAIR_HIGH, 1);
        assert_int_equal(bt_fair_queue_push(&q, &high[i], 1), 0);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_ptr_equal(bt_fair_queue_pop(&q, UINT64_C(1) << 40), &high[i]);
    assert_ptr_equal(bt_fair_queue_pop(&q, UINT64_C(1) << 40), &low);
    bt_fair_queue_fini(&q);
}

static void what_does_not_fit(void **state)
{
    bt_fair_item_t a = item_of("a", BT_FAIR_NORMAL, 1), b = a, c = a;
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, 2, 250, 0);
    assert_true(bt_fair_queue_fits(&q, &a));
    bt_fair_queue_push(&q, &a, 0);
    b.bytes = 151;
    assert_false(bt_fair_queue_fits(&q, &b));
    b.bytes = UINT64_MAX;
    assert_false(bt_fair_queue_fits(&q, &b));
    b.bytes = 150;
    assert_true(bt_fair_queue_fits(&q, &b));
    bt_fair_queue_push(&q, &b, 0);
    c.bytes = 0;
    assert_false(bt_fair_queue_fits(&q, &c));
    bt_fair_queue_remove(&q, &a);
    assert_true(bt_fair_queue_fits(&q, &c));
    bt_fair_queue_remove(&q, &b);
    bt_fair_queue_fini(&q);
}

/* Whoever holds most makes room, its youngest first; nobody for its own, nobody for one who would then hold as much. */
static void a_flood_makes_room_for_others(void **state)
{
    bt_fair_item_t flood[4], light = item_of("light", BT_FAIR_NORMAL, 1), more = light, low, high;
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, 4, 0, 0);
    for (unsigned i = 0; i < 4; i++) {
        flood[i] = item_of("flood", BT_FAIR_NORMAL, 1);
        bt_fair_queue_push(&q, &flood[i], 0);
    }
    assert_null(bt_fair_queue_victim(&q, &flood[0]));
    assert_ptr_equal(bt_fair_queue_victim(&q, &light), &flood[3]);
    bt_fair_queue_remove(&q, &flood[3]);
    bt_fair_queue_push(&q, &light, 0);
    assert_ptr_equal(bt_fair_queue_victim(&q, &more), &flood[2]);
    bt_fair_queue_remove(&q, &flood[2]);
    bt_fair_queue_push(&q, &more, 0);
    low = item_of("third", BT_FAIR_LOW, 1);
    assert_null(bt_fair_queue_victim(&q, &low));
    low.weight = 3;
    assert_null(bt_fair_queue_victim(&q, &low)); /* those above are never put out */
    bt_fair_queue_remove(&q, &more);
    bt_fair_queue_push(&q, &low, 0);
    high = item_of("flood", BT_FAIR_HIGH, 1);
    assert_ptr_equal(bt_fair_queue_victim(&q, &high), &low);
    bt_fair_queue_remove(&q, &low);
    bt_fair_queue_remove(&q, &light);
    bt_fair_queue_remove(&q, &flood[0]);
    bt_fair_queue_remove(&q, &flood[1]);
    bt_fair_queue_fini(&q);
}

static void bytes_are_held_too(void **state)
{
    bt_fair_item_t big = item_of("big", BT_FAIR_NORMAL, 1), small[2], newcomer;
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, 100, 1000, 0);
    big.bytes = 900;
    bt_fair_queue_push(&q, &big, 0);
    for (unsigned i = 0; i < 2; i++) {
        small[i] = item_of("small", BT_FAIR_NORMAL, 1);
        small[i].bytes = 50;
        bt_fair_queue_push(&q, &small[i], 0);
    }
    newcomer = item_of("other", BT_FAIR_NORMAL, 1);
    assert_ptr_equal(bt_fair_queue_victim(&q, &newcomer), &big);
    newcomer.bytes = 950;
    assert_null(bt_fair_queue_victim(&q, &newcomer));
    newcomer.bytes = 1001;
    assert_null(bt_fair_queue_victim(&q, &newcomer));
    bt_fair_queue_remove(&q, &big);
    bt_fair_queue_remove(&q, &small[0]);
    bt_fair_queue_remove(&q, &small[1]);
    bt_fair_queue_fini(&q);
}

static void what_stands_before_one(void **state)
{
    bt_fair_item_t flood[50], other = item_of("other", BT_FAIR_NORMAL, 100),
                              high = item_of("vip", BT_FAIR_HIGH, 40),
                              mine = item_of("mine", BT_FAIR_NORMAL, 200), next = mine;
    bt_fair_ahead_t a;
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, 100, 0, 0);
    for (unsigned i = 0; i < 50; i++) {
        flood[i] = item_of("flood", BT_FAIR_NORMAL, 1000);
        bt_fair_queue_push(&q, &flood[i], 0);
    }
    bt_fair_queue_push(&q, &other, 0);
    bt_fair_queue_push(&q, &high, 0);
    bt_fair_queue_push(&q, &mine, 0);
    bt_fair_queue_ahead(&q, &mine, &a);
    /* 40 of the higher class, 200 of the flood, which has as much as it until then, and all of the other. */
    assert_int_equal(a.cost, 340);
    assert_int_equal(a.count, 52);
    assert_int_equal(a.before_count, 3);
    assert_string_equal(a.before[0].key, "flood");
    assert_int_equal(a.before[0].cost, 200);
    assert_string_equal(a.before[1].key, "other");
    assert_string_equal(a.before[2].key, "vip");
    next.weight = 2;
    bt_fair_queue_push(&q, &next, 0);
    bt_fair_queue_ahead(&q, &next, &a);
    assert_int_equal(a.cost, 40 + 200 + 200 + 100);
    while (bt_fair_queue_pop(&q, 0) != NULL)
        continue;
    bt_fair_queue_fini(&q);
}

static void classes_have_names(void **state)
{
    enum bt_fair_class klass = BT_FAIR_NORMAL;

    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
        assert_true(bt_fair_class_of(bt_str(bt_fair_class_name((enum bt_fair_class) i)), &klass));
        assert_int_equal(klass, i);
    }
    assert_false(bt_fair_class_of(BT_STR("urgent"), &klass));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_is_the_models),
        cmocka_unit_test(shares_are_those_of_the_weights),
        cmocka_unit_test(without_aging_priorities_are_strict),
        cmocka_unit_test(what_does_not_fit),
        cmocka_unit_test(a_flood_makes_room_for_others),
        cmocka_unit_test(bytes_are_held_too),
        cmocka_unit_test(what_stands_before_one),
        cmocka_unit_test(classes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
