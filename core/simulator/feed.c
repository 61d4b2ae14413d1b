#include "simulator/feed.h"

#include "base/err.h"
#include "script/shared/kv_hits.h"

#include <stdlib.h>

struct bt_sim_source {
    bt_sim_feed_t *feed;
    unsigned engine;
};

struct bt_sim_change {
    double at_s;
    uint64_t id, before; /* before: of the same prompt; none where it is the first */
    uint32_t engine;
    bool is_stored, is_first, is_restart;
};

int bt_sim_feed_init(bt_sim_feed_t *feed, const bt_sim_trace_t *trace, unsigned engines,
                     uint32_t capacity, double delay_s, const double *now_s)
{
    const bt_kv_index_config_t sizes = {.max_held = (uint64_t) engines * capacity + 1,
                                        .max_parts = engines};

    *feed = (bt_sim_feed_t){.trace = trace, .delay_s = delay_s, .now_s = now_s};
    feed->sources = calloc(engines, sizeof *feed->sources);
    feed->tokens = calloc(trace->block_tokens, sizeof *feed->tokens);
    if (feed->sources == NULL || feed->tokens == NULL)
        return BT_E_NOMEM;
    int rc = bt_kv_index_new(&feed->index, &sizes);
    if (rc == 0)
        rc = bt_kv_part_open(feed->index, engines, &feed->first_part);
    if (rc == 0)
        bt_kv_hits_set_index(feed->index);
    return rc;
}

void bt_sim_feed_fini(bt_sim_feed_t *feed)
{
    if (feed->index != NULL) {
        bt_kv_hits_thread_fini();
        bt_kv_hits_set_index(NULL);
        bt_kv_index_free(feed->index);
    }
    free(feed->sources);
    free(feed->changes);
    free(feed->tokens);
}

/* ---- told ---- */

static bool make_room(bt_sim_feed_t *feed)
{
    if (feed->count < feed->cap)
        return true;
    const size_t cap = feed->cap > 0 ? 2 * feed->cap : 4096;
    struct bt_sim_change *changes = calloc(cap, sizeof *changes);
    if (changes == NULL) {
        feed->rc = BT_E_NOMEM;
        return false;
    }
    for (size_t i = 0; i < feed->count; i++)
        changes[i] = feed->changes[(feed->first + i) % feed->cap];
    free(feed->changes);
    feed->changes = changes;
    feed->first = 0;
    feed->cap = cap;
    return true;
}

static void add_change(bt_sim_feed_t *feed, struct bt_sim_change change)
{
    if (!make_room(feed))
        return;
    change.at_s = *feed->now_s + feed->delay_s;
    feed->changes[(feed->first + feed->count++) % feed->cap] = change;
}

static void on_change(void *user, uint64_t id, const uint64_t *before, bool is_stored)
{
    const struct bt_sim_source *source = user;

    add_change(source->feed, (struct bt_sim_change){.id = id,
                                                    .before = before != NULL ? *before : 0,
                                                    .engine = source->engine,
                                                    .is_stored = is_stored,
                                                    .is_first = before == NULL});
}

void bt_sim_feed_restart(bt_sim_feed_t *feed, unsigned engine)
{
    add_change(feed, (struct bt_sim_change){.engine = engine, .is_restart = true});
}

uint32_t bt_sim_feed_listen(bt_sim_feed_t *feed, unsigned engine, bt_sim_kv_cache_t *kv)
{
    feed->sources[engine] = (struct bt_sim_source){feed, engine};
    kv->on_change = on_change;
    kv->user = &feed->sources[engine];
    bt_kv_part_set_live(feed->index, feed->first_part + engine, true);
    return feed->first_part + engine;
}

/* ---- known ---- */

/* The engine's names are never 0, a trace's ids may be. */
static void apply_one(bt_sim_feed_t *feed, const struct bt_sim_change *c)
{
    const uint64_t name = c->id + 1;
    const unsigned tokens = feed->trace->block_tokens;

    if (c->is_restart) {
        bt_kv_part_clear(feed->index, feed->first_part + c->engine);
        return;
    }
    if (c->is_stored)
        bt_sim_block_tokens(c->id, tokens, feed->tokens);
    bt_kv_part_apply(feed->index, feed->first_part + c->engine,
                     &(bt_kv_event_t){.kind = c->is_stored ? BT_KV_STORED : BT_KV_REMOVED,
                                      .hashes = &name,
                                      .hash_count = 1,
                                      .has_parent = !c->is_first,
                                      .parent = c->before + 1,
                                      .tokens = feed->tokens,
                                      .token_count = tokens,
                                      .block_tokens = tokens});
}

void bt_sim_feed_apply(bt_sim_feed_t *feed)
{
    while (feed->count > 0 && feed->changes[feed->first].at_s <= *feed->now_s) {
        const struct bt_sim_change c = feed->changes[feed->first];
        feed->first = (feed->first + 1) % feed->cap;
        feed->count--;
        apply_one(feed, &c);
    }
}
