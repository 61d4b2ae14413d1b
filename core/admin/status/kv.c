/* A rank is a data-parallel rank of one worker: each has a cache and a sequence of events of its own. */
#include "admin/status/kv.h"

#include "cluster/kv_trust.h"

#include <stdlib.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))

static bt_kv_subscriber_t *subscriber_of(const bt_admin_config_t *config)
{
    return config->kv != NULL ? *config->kv : NULL;
}

/* One that has just gone is told a second longer. */
static bool is_trusted(const bt_admin_config_t *config, const char *name)
{
    const bt_worker_t *w = bt_workers_find(bt_registry_current(config->registry), bt_str(name));

    return w == NULL || bt_kv_trust_has(w);
}

/* ---- GET /kv ---- */

static void put_count(bt_text_t *out, const char *name, uint64_t value)
{
    bt_text_printf(out, ",\"%s\":%llu", name, (unsigned long long) value);
}

static void put_losses(bt_text_t *out, const bt_kv_follow_stats_t *s)
{
    bt_text_puts(out, ",\"dropped\":{");
    for (unsigned i = BT_KV_LOSS_NONE + 1; i < BT_KV_LOSSES; i++)
        bt_text_printf(out, "%s\"%s\":%llu", i > BT_KV_LOSS_NONE + 1 ? "," : "",
                       bt_kv_loss_name((enum bt_kv_loss) i), (unsigned long long) s->losses[i]);
    bt_text_puts(out, "}");
}

static void put_rank(bt_text_t *out, const bt_kv_rank_stats_t *r, bool trusted)
{
    bt_text_puts(out, "{\"worker\":");
    bt_text_json_str(out, bt_str(r->name));
    put_count(out, "rank", r->rank);
    bt_text_json_member(out, "endpoint", r->endpoint);
    bt_text_printf(out, ",\"followed\":%s,\"trusted\":%s", r->is_live ? "true" : "false",
                   trusted ? "true" : "false");
    if (r->has_last)
        put_count(out, "last", r->last);
    else
        bt_text_puts(out, ",\"last\":null");
    put_count(out, "blocks", r->blocks);
    put_count(out, "batches", r->follow.batches);
    put_count(out, "replayed", r->follow.replayed);
    put_count(out, "gaps", r->follow.gaps);
    put_losses(out, &r->follow);
    bt_text_puts(out, "}");
}

static void put_index(bt_text_t *out, const bt_kv_index_stats_t *s)
{
    bt_text_printf(out, "\"index\":{\"blocks\":%llu", (unsigned long long) s->blocks);
    put_count(out, "held", s->held);
    put_count(out, "bytes", s->bytes);
    put_count(out, "forgotten", s->forgotten);
    put_count(out, "orphans", s->orphans);
    put_count(out, "odd_sizes", s->odd_sizes);
    bt_text_puts(out, "}");
}

void bt_admin_kv(const bt_admin_call_t *c)
{
    bt_kv_subscriber_t *sub = subscriber_of(c->config);
    bt_text_t *out = &c->reply->body;
    bt_kv_subscriber_stats_t stats = {0};
    bt_kv_rank_stats_t *ranks = NULL;
    unsigned count = 0;

    if (sub != NULL) {
        bt_kv_subscriber_stats(sub, &stats);
        count = bt_kv_subscriber_ranks(sub, &ranks);
    }
    bt_text_puts(out, "{");
    put_index(out, &stats.index);
    bt_text_puts(out, ",\"ranks\":[");
    for (unsigned i = 0; i < count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        put_rank(out, &ranks[i], is_trusted(c->config, ranks[i].name));
    }
    bt_text_puts(out, "]}\n");
    free(ranks);
}

/* ---- metrics ---- */

static void write_totals(bt_prom_t *p, const bt_kv_subscriber_stats_t *s)
{
    const bt_prom_row_t rows[] = {
        {"baton_kv_workers", "gauge", "Workers of which it is said where they publish KV events",
         s->sources},
        {"baton_kv_ranks_followed", "gauge",
         "Ranks of theirs that are followed, and of which all is known", s->live},
        {"baton_kv_batches_total", "counter", "Batches of KV events", s->follow.batches},
        {"baton_kv_replayed_total", "counter", "Those of them that an engine has said again",
         s->follow.replayed},
        {"baton_kv_gaps_total", "counter", "Times that batches were missed", s->follow.gaps},
        {"baton_kv_events_total", "counter", "KV events", s->events.events},
        {"baton_kv_events_unknown_total", "counter",
         "Those of a type, medium or place that does not count", s->events.unknown},
        {"baton_kv_events_malformed_total", "counter", "Those that could not be read",
         s->events.malformed},
        {"baton_kv_blocks", "gauge", "Blocks that somebody holds", s->index.blocks},
        {"baton_kv_blocks_held", "gauge", "Blocks times who holds them: --kv-index-blocks",
         s->index.held},
        {"baton_kv_blocks_stored_total", "counter", "Blocks stored, by the events",
         s->index.stored},
        {"baton_kv_blocks_removed_total", "counter", "Blocks removed, by the events",
         s->index.removed},
        {"baton_kv_blocks_forgotten_total", "counter", "Blocks forgotten for want of room",
         s->index.forgotten},
        {"baton_kv_blocks_orphaned_total", "counter", "Blocks left out: their parent is not known",
         s->index.orphans},
        {"baton_kv_blocks_odd_total", "counter", "Blocks left out for their size",
         s->index.odd_sizes},
        {"baton_kv_index_bytes", "gauge", "Memory of the index", s->index.bytes},
    };

    bt_prom_rows(p, rows, N(rows));
    bt_prom_family(p, "baton_kv_dropped_total", "counter",
                   "Times that what was known of a rank's cache was dropped, by why");
    for (unsigned i = BT_KV_LOSS_NONE + 1; i < BT_KV_LOSSES; i++) {
        const bt_label_t label = {"why", bt_str(bt_kv_loss_name((enum bt_kv_loss) i))};
        bt_prom_count(p, &label, 1, s->follow.losses[i]);
    }
}

static void write_trust(bt_prom_t *p, const bt_workers_t *workers)
{
    bt_prom_family(p, "baton_kv_index_distrusted", "gauge",
                   "1 while a worker's KV events are not believed: its answers had no hits where "
                   "they said so");
    for (unsigned i = 0; i < workers->pool_count; i++)
        for (unsigned k = 0; k < workers->pools[i].all.count; k++) {
            const bt_worker_t *w = workers->pools[i].all.items[k];
            const bt_label_t label = {"worker", bt_str(w->name)};
            if (w->spec.kv_events != NULL)
                bt_prom_count(p, &label, 1, !bt_kv_trust_has(w));
        }
}

void bt_metrics_kv(bt_prom_t *p, const bt_admin_config_t *config)
{
    bt_kv_subscriber_t *sub = subscriber_of(config);
    bt_kv_subscriber_stats_t stats;

    if (sub == NULL)
        return;
    bt_kv_subscriber_stats(sub, &stats);
    write_totals(p, &stats);
    write_trust(p, bt_registry_current(config->registry));
}
