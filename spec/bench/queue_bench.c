/* queue_bench - what a flood of one tenant does to the others behind a pool's line (core/dispatch/queue/fair_queue.h), and what the line costs.
 *
 * A pool of 64 places, each at 50 tokens a second, in a time of its own: the same seed gives the same figures on any machine. Two tenants keep to a
 * fifth of what the pool can do each, by themselves, then beside a third that sends ten times what it can do; and the same in one line, first come
 * first served. A response's time is that from its arrival to its last token. Then three that always have more than enough, with weights
 * 1:2:4, in two classes. At last nanoseconds of a push and a pop, on this machine.
 */
#include "dispatch/queue/fair_queue.h"

#include "base/clock.h"
#include "base/rand.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PLACES 64
#define TOKENS_PER_S 50.0
#define MEAN_TOKENS 300.0
#define SECONDS 20000.0
#define LINE 1000
#define TENANTS 3

typedef struct job {
    bt_fair_item_t item;
    unsigned tenant;
    double arrival, end;
} job_t;

static double exponential(double mean)
{
    return -mean * log(1 - bt_rand_unit());
}

/* Each tenant's requests are the same ones in every world. */
static double drawn(uint64_t *seed, double mean)
{
    bt_rand_state_t before;

    bt_rand_begin(&before, ++*seed);
    const double value = exponential(mean);
    bt_rand_end(&before);
    return value;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

struct outcome {
    double p50, p99;
    unsigned count, refused;
};

struct world {
    bt_fair_queue_t q;
    job_t *running[PLACES];
    double *times[TENANTS];
    struct outcome out[TENANTS];
};

static void begin(struct world *w, unsigned place, job_t *j, double now)
{
    w->running[place] = j;
    j->end = now + (double) j->item.cost / TOKENS_PER_S;
}

static void refuse(struct world *w, job_t *j)
{
    w->out[j->tenant].refused++;
    free(j);
}

static void arrive(struct world *w, job_t *j)
{
    for (unsigned i = 0; i < PLACES; i++)
        if (w->running[i] == NULL) {
            begin(w, i, j, j->arrival);
            return;
        }
    while (!bt_fair_queue_fits(&w->q, &j->item)) {
        bt_fair_item_t *victim = bt_fair_queue_victim(&w->q, &j->item);
        if (victim == NULL) {
            refuse(w, j);
            return;
        }
        bt_fair_queue_remove(&w->q, victim);
        refuse(w, bt_container_of(victim, job_t, item));
    }
    if (bt_fair_queue_push(&w->q, &j->item, (uint64_t) (j->arrival * 1000)) < 0)
        abort();
}

static void leave(struct world *w, unsigned place)
{
    job_t *j = w->running[place];
    struct outcome *out = &w->out[j->tenant];
    const double now = j->end;

    out->count++;
    w->times[j->tenant] = realloc(w->times[j->tenant], out->count * sizeof(double));
    w->times[j->tenant][out->count - 1] = now - j->arrival;
    free(j);
    w->running[place] = NULL;
    bt_fair_item_t *next = bt_fair_queue_pop(&w->q, (uint64_t) (now * 1000));
    if (next != NULL)
        begin(w, place, bt_container_of(next, job_t, item), now);
}

/* rates: requests a second. */
static void simulate(const double *rates, bool is_fair, struct outcome *out)
{
    static const char *const names[TENANTS] = {"a", "b", "flood"};
    struct world w = {.out = {{0}}};
    uint64_t seeds[TENANTS] = {UINT64_C(1) << 40, UINT64_C(2) << 40, UINT64_C(3) << 40};
    double next[TENANTS], now = 0;

    bt_fair_queue_init(&w.q, LINE, 0, 0);
    for (unsigned t = 0; t < TENANTS; t++)
        next[t] = rates[t] > 0 ? drawn(&seeds[t], 1 / rates[t]) : INFINITY;
    while (now < SECONDS) {
        unsigned first = 0, place = PLACES;
        for (unsigned t = 1; t < TENANTS; t++)
            first = next[t] < next[first] ? t : first;
        for (unsigned i = 0; i < PLACES; i++)
            if (w.running[i] != NULL &&
                (place == PLACES || w.running[i]->end < w.running[place]->end))
                place = i;
        if (place < PLACES && w.running[place]->end <= next[first]) {
            now = w.running[place]->end;
            leave(&w, place);
            continue;
        }
        now = next[first];
        job_t *j = calloc(1, sizeof(*j));
        j->tenant = first;
        j->arrival = now;
        j->item = (bt_fair_item_t){.klass = BT_FAIR_NORMAL,
                                   .key = bt_str(is_fair ? names[first] : "all"),
                                   .weight = 1,
                                   .cost = 1 + (uint64_t) drawn(&seeds[first], MEAN_TOKENS)};
        next[first] += drawn(&seeds[first], 1 / rates[first]);
        arrive(&w, j);
    }
    for (bt_fair_item_t *i; (i = bt_fair_queue_pop(&w.q, 0)) != NULL;)
        free(bt_container_of(i, job_t, item));
    for (unsigned i = 0; i < PLACES; i++)
        free(w.running[i]);
    bt_fair_queue_fini(&w.q);
    for (unsigned t = 0; t < TENANTS; t++) {
        struct outcome *o = &w.out[t];
        if (o->count > 0) {
            qsort(w.times[t], o->count, sizeof(double), by_value);
            o->p50 = w.times[t][o->count / 2];
            o->p99 = w.times[t][(size_t) o->count * 99 / 100];
        }
        free(w.times[t]);
        out[t] = *o;
    }
}

static void print_flood(void)
{
    const double capacity = PLACES * TOKENS_PER_S / MEAN_TOKENS;
    const double calm[TENANTS] = {capacity / 5, capacity / 5, 0},
                 flood[TENANTS] = {capacity / 5, capacity / 5, capacity * 10};
    static const char *const what[] = {"by themselves", "beside a flood",
                                       "first come first served"};
    struct outcome out[3][TENANTS];

    printf(
        "two tenants, each a fifth of what %u places do; a flood of ten times that\n\n"
        "| | a: p50 s | p99 s | refused | b: p50 s | p99 s | refused | flood: served | refused |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        PLACES);
    for (unsigned i = 0; i < 3; i++) {
        simulate(i == 0 ? calm : flood, i != 2, out[i]);
        printf("| %s | %.2f | %.2f | %u | %.2f | %.2f | %u | %u | %u |\n", what[i], out[i][0].p50,
               out[i][0].p99, out[i][0].refused, out[i][1].p50, out[i][1].p99, out[i][1].refused,
               out[i][2].count, out[i][2].refused);
    }
    printf("\np99 beside the flood, to that without: a %.3f, b %.3f (mark: 1.1)\n\n",
           out[1][0].p99 / out[0][0].p99, out[1][1].p99 / out[0][1].p99);
}

/* ---- shares ---- */

static void print_shares(void)
{
    static const char *const names[TENANTS] = {"1", "2", "4"};
    static const unsigned weights[TENANTS] = {1, 2, 4};
    static bt_fair_item_t items[TENANTS][2][8];
    double served[TENANTS][2] = {{0}}, sums[2] = {0};
    uint64_t now_ms = 0;
    bt_fair_queue_t q;

    bt_rand_seed(3);
    bt_fair_queue_init(&q, 1000, 0, 1000);
    for (unsigned n = 0; n < 200000; n++) {
        for (unsigned t = 0; t < TENANTS; t++)
            for (unsigned k = 0; k < 2; k++)
                for (unsigned i = 0; i < 8; i++) {
                    bt_fair_item_t *item = &items[t][k][i];
                    if (item->flow != NULL)
                        continue;
                    *item = (bt_fair_item_t){.klass = (enum bt_fair_class) k,
                                             .key = bt_str(names[t]),
                                             .weight = weights[t],
                                             .cost = 1 + (uint64_t) exponential(MEAN_TOKENS)};
                    if (bt_fair_queue_push(&q, item, now_ms) < 0)
                        abort();
                }
        const bt_fair_item_t *item = bt_fair_queue_pop(&q, now_ms);
        for (unsigned t = 0; t < TENANTS; t++)
            if (item->weight == weights[t])
                served[t][item->klass] += (double) item->cost;
        sums[item->klass] += (double) item->cost;
        now_ms += item->cost;
    }
    printf("three tenants of weights 1:2:4, all greedy\n\n"
           "| class | of all tokens | 1 (%.4f) | 2 (%.4f) | 4 (%.4f) |\n|---|---|---|---|---|\n",
           1 / 7.0, 2 / 7.0, 4 / 7.0);
    for (unsigned k = 0; k < 2; k++)
        printf("| %s | %.4f | %.4f | %.4f | %.4f |\n", bt_fair_class_name((enum bt_fair_class) k),
               sums[k] / (sums[0] + sums[1]), served[0][k] / sums[k], served[1][k] / sums[k],
               served[2][k] / sums[k]);
    while (bt_fair_queue_pop(&q, now_ms) != NULL)
        continue;
    bt_fair_queue_fini(&q);
}

/* ---- cost ---- */

static double ns_of(unsigned tenants)
{
    const unsigned rounds = 200000;
    char(*names)[24] = calloc(tenants, sizeof(*names));
    bt_fair_item_t *items = calloc(tenants, sizeof(*items));
    bt_fair_queue_t q;

    bt_fair_queue_init(&q, tenants + 1, 0, 0);
    for (unsigned i = 0; i < tenants; i++) {
        snprintf(names[i], sizeof(names[i]), "tenant-%u", i);
        items[i] = (bt_fair_item_t){.klass = BT_FAIR_NORMAL,
                                    .key = bt_str(names[i]),
                                    .weight = 1 + i % 4,
                                    .cost = 1 + (uint64_t) exponential(MEAN_TOKENS)};
        if (bt_fair_queue_push(&q, &items[i], 0) < 0)
            abort();
    }
    const uint64_t start_us = bt_clock_cpu_us();
    for (unsigned i = 0; i < rounds; i++) {
        bt_fair_item_t *item = bt_fair_queue_pop(&q, 0);
        if (bt_fair_queue_push(&q, item, 0) < 0)
            abort();
    }
    const double ns = (double) (bt_clock_cpu_us() - start_us) * 1000 / rounds;
    while (bt_fair_queue_pop(&q, 0) != NULL)
        continue;
    bt_fair_queue_fini(&q);
    free(items);
    free(names);
    return ns;
}

int main(void)
{
    print_flood();
    print_shares();
    printf("\n| tenants in a class | a pop and a push, ns |\n|---|---|\n");
    for (unsigned tenants = 1; tenants <= 1000; tenants *= 10)
        printf("| %u | %.0f |\n", tenants, ns_of(tenants));
    return 0;
}
