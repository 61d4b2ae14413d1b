/* The lines before pools, by pool and class: labels are names of pools and the three classes, never tenants. All is read under the lines'
 * lock at once, and written without it.
 */
#include "admin/metrics/metrics.h"

#include "dispatch/queue/queue.h"

#include <stdlib.h>

#define POOLS_MAX 256

struct gathered {
    bt_queue_facts_t *facts;
    unsigned count;
};

static void gather(void *user, const bt_queue_facts_t *facts)
{
    struct gathered *g = user;

    if (g->count < POOLS_MAX)
        g->facts[g->count++] = *facts;
}

static void by_pool(bt_prom_t *p, const struct gathered *g, const char *name, const char *help,
                    uint64_t (*value)(const bt_queue_facts_t *f))
{
    bt_prom_family(p, name, "gauge", help);
    for (unsigned i = 0; i < g->count; i++) {
        const bt_label_t label = {"pool", bt_str(g->facts[i].pool)};
        bt_prom_count(p, &label, 1, value(&g->facts[i]));
    }
}

static uint64_t waiting(const bt_queue_facts_t *f)
{
    return f->waiting.count;
}

static uint64_t bytes(const bt_queue_facts_t *f)
{
    return f->waiting.bytes;
}

static uint64_t running(const bt_queue_facts_t *f)
{
    return f->running;
}

static uint64_t places(const bt_queue_facts_t *f)
{
    return f->places;
}

static uint64_t blocked(const bt_queue_facts_t *f)
{
    return f->blocked;
}

static uint64_t rate(const bt_queue_facts_t *f)
{
    return (uint64_t) f->tokens_per_second;
}

typedef uint64_t (*class_value_fn)(const struct bt_queue_class_facts *c);

static void by_class(bt_prom_t *p, const struct gathered *g, class_value_fn value, bool is_micro)
{
    for (unsigned i = 0; i < g->count; i++)
        for (unsigned k = 0; k < BT_FAIR_CLASSES; k++) {
            const bt_label_t labels[] = {
                {"pool", bt_str(g->facts[i].pool)},
                {"class", bt_str(bt_fair_class_name((enum bt_fair_class) k))}};
            const uint64_t v = value(&g->facts[i].classes[k]);
            if (is_micro)
                bt_prom_micro(p, labels, 2, v);
            else
                bt_prom_count(p, labels, 2, v);
        }
}

static uint64_t class_waiting(const struct bt_queue_class_facts *c)
{
    return c->waiting.count;
}

static uint64_t class_tokens(const struct bt_queue_class_facts *c)
{
    return c->waiting.cost;
}

static uint64_t class_tenants(const struct bt_queue_class_facts *c)
{
    return c->tenants;
}

static uint64_t class_called_tokens(const struct bt_queue_class_facts *c)
{
    return c->called_tokens;
}

static uint64_t class_waited(const struct bt_queue_class_facts *c)
{
    return c->waited_us;
}

static void write_classes(bt_prom_t *p, const struct gathered *g)
{
    static const struct {
        const char *name, *type, *help;
        class_value_fn value;
        bool is_micro;
    } rows[] = {
        {"baton_queue_waiting", "gauge", "Of the requests that wait, by class", class_waiting,
         false},
        {"baton_queue_waiting_tokens", "gauge", "What these cost, as they were estimated",
         class_tokens, false},
        {"baton_queue_waiting_tenants", "gauge", "Whose shares these are: so many", class_tenants,
         false},
        {"baton_queue_called_tokens_total", "counter",
         "What those cost that waited and got a place", class_called_tokens, false},
        {"baton_queue_waited_seconds_total", "counter", "And how long they had waited",
         class_waited, true},
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bt_prom_family(p, rows[i].name, rows[i].type, rows[i].help);
        by_class(p, g, rows[i].value, rows[i].is_micro);
    }
}

static void write_ends(bt_prom_t *p, const struct gathered *g)
{
    bt_prom_family(p, "baton_queue_ends_total", "counter",
                   "What became of those that came to wait");
    for (unsigned i = 0; i < g->count; i++)
        for (unsigned k = 0; k < BT_FAIR_CLASSES; k++)
            for (unsigned end = 0; end < BT_QUEUE_ENDS; end++) {
                const bt_label_t labels[] = {
                    {"pool", bt_str(g->facts[i].pool)},
                    {"class", bt_str(bt_fair_class_name((enum bt_fair_class) k))},
                    {"end", bt_str(bt_queue_end_name((enum bt_queue_end) end))}};
                bt_prom_count(p, labels, 3, g->facts[i].classes[k].ends[end]);
            }
}

void bt_metrics_queues(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    struct gathered g = {.count = 0};

    if (shared->queues == NULL)
        return;
    g.facts = calloc(POOLS_MAX, sizeof(*g.facts));
    if (g.facts == NULL)
        return;
    bt_queues_each(shared->queues, gather, &g);
    by_pool(p, &g, "baton_queued_requests",
            "Requests that wait for a place in their pool (--queue-size)", waiting);
    by_pool(p, &g, "baton_queue_bytes", "Bytes of their bodies (--queue-max-bytes)", bytes);
    by_pool(p, &g, "baton_queue_running", "Requests that have a place in the pool", running);
    by_pool(p, &g, "baton_queue_places", "Places that it has; 0 = no limit", places);
    by_pool(p, &g, "baton_queue_blocked",
            "Called, but no worker that they may use is below --engine-request-limit", blocked);
    by_pool(p, &g, "baton_queue_tokens_per_second",
            "Cost of those that got a place lately, while others waited; 0 = not known", rate);
    write_classes(p, &g);
    write_ends(p, &g);
    free(g.facts);
}
