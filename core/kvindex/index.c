/* How it works: a block stands in the table under our hash, with its owners behind it, and in the names of each part that holds it under the
 * engine's hash. Removal goes from the name to the block. Blocks are forgotten from the table alone; names that lead nowhere are swept out
 * when they are many.
 *
 * Age is a clock's: what was stored or asked for since the hand last came by has another round. */
#include "kvindex/index.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "kvindex/index_impl.h"

#include <limits.h>
#include <stdlib.h>

#define HELD_DEFAULT (UINT64_C(4) << 20)
#define PARTS_DEFAULT 16384u
#define TIERS_ALL 7u
#define AHEAD 32u /* blocks of an event that are fetched into the cache at once */

int bt_kv_index_new(bt_kv_index_t **index_p, const bt_kv_index_config_t *config)
{
    bt_kv_index_t *x = aligned_alloc(64, (sizeof(*x) + 63) / 64 * 64);

    if (x == NULL)
        return BT_E_NOMEM;
    memset((void *) x, 0, sizeof(*x));
    x->max_held = config->max_held > 0 ? config->max_held : HELD_DEFAULT;
    x->max_parts = config->max_parts > 0 ? config->max_parts : PARTS_DEFAULT;
    if (x->max_parts > BT_KV_PARTS_MAX)
        x->max_parts = BT_KV_PARTS_MAX;
    x->sweep_at = x->max_held / 4;
    bt_epoch_init(&x->epoch);
    x->owners.epoch = &x->epoch;
    x->parts = calloc(x->max_parts + 1, sizeof(x->parts[0]));
    x->block_tokens = calloc(x->max_parts + 1, sizeof(x->block_tokens[0]));
    x->is_live = calloc(x->max_parts + 1, sizeof(x->is_live[0]));
    if (bt_kv_table_init(&x->table, &x->epoch) < 0 || x->parts == NULL || x->block_tokens == NULL ||
        x->is_live == NULL) {
        bt_kv_index_free(x);
        return BT_E_NOMEM;
    }
    *index_p = x;
    return 0;
}

static void drop_all_owners(bt_kv_index_t *x)
{
    const bt_kv_cells_t *c = bt_kv_table_cells(&x->table);

    for (uint64_t i = 0; c != NULL && i <= c->mask; i++)
        (void) bt_kv_owners_drop(&x->owners, atomic_load(&c->cells[i].owners));
}

void bt_kv_index_free(bt_kv_index_t *x)
{
    if (x == NULL)
        return;
    for (unsigned i = 1; x->parts != NULL && i <= x->max_parts; i++) {
        bt_kv_names_clear(&x->parts[i].names);
        bt_kv_names_clear(&x->parts[i].copies);
    }
    drop_all_owners(x);
    bt_kv_table_fini(&x->table);
    bt_epoch_fini(&x->epoch);
    free(x->parts);
    free(x->block_tokens);
    free(x->is_live);
    free(x);
}

/* ---- owners of a block ---- */

static void set_owners(bt_kv_cell_t *cell, uint64_t old, uint64_t fresh)
{
    if (fresh != old)
        atomic_store(&cell->owners, fresh);
}

static uint64_t owners_at(const bt_kv_cell_t *cell)
{
    return atomic_load_explicit(&cell->owners, memory_order_relaxed);
}

static bool hold(bt_kv_index_t *x, uint32_t part, uint64_t own, enum bt_kv_tier tier)
{
    const uint64_t first = (uint64_t) bt_kv_owner(part, 1U << tier) << 1;
    bool is_new, added = false;
    bt_kv_cell_t *cell = bt_kv_table_put(&x->table, own, first, &is_new);

    if (cell == NULL)
        return false;
    if (!is_new) {
        const uint64_t old = owners_at(cell);
        set_owners(cell, old, bt_kv_owners_add(&x->owners, old, part, 1U << tier, &added));
        bt_kv_table_touch(&x->table, cell);
    }
    x->held += is_new || added;
    return true;
}

/* True: the part holds nothing of it any more, or never did. */
static bool let_go(bt_kv_index_t *x, uint32_t part, uint64_t own, unsigned tiers)
{
    bt_kv_cell_t *cell = bt_kv_table_find(&x->table, own);
    unsigned held;

    if (cell == NULL)
        return true;
    const uint64_t old = owners_at(cell);
    const uint64_t fresh = bt_kv_owners_remove(&x->owners, old, part, tiers, &held);
    if (fresh == 0)
        bt_kv_table_erase(&x->table, cell);
    else
        set_owners(cell, old, fresh);
    x->held -= held != 0 && (held & ~tiers) == 0;
    return (held & ~tiers) == 0;
}

/* ---- what is too much ---- */

static void forget(bt_kv_index_t *x, bt_kv_cell_t *cell)
{
    const uint64_t word = owners_at(cell);

    bt_kv_table_erase(&x->table, cell);
    const unsigned count = bt_kv_owners_drop(&x->owners, word);
    x->held -= count;
    x->stats.forgotten += count;
}

struct owner {
    bt_kv_index_t *index;
    uint32_t part;
};

static bool is_held(void *user, uint64_t own)
{
    const struct owner *o = user;
    const bt_kv_cell_t *cell = bt_kv_table_find(&o->index->table, own);

    return cell != NULL && bt_kv_owners_tiers(owners_at(cell), o->part) != 0;
}

/* Names that are too many even so are those of an engine that calls one block by several: it begins anew. Copies are not counted any more:
 * their names may be gone, and come again. */
static void sweep_names(bt_kv_index_t *x)
{
    uint32_t largest = 1;

    x->names = 0;
    for (uint32_t part = 1; part <= x->high; part++) {
        bt_kv_names_sweep(&x->parts[part].names, is_held, &(struct owner){x, part});
        bt_kv_names_clear(&x->parts[part].copies);
        x->names += x->parts[part].names.count;
        if (x->parts[part].names.count > x->parts[largest].names.count)
            largest = part;
    }
    if (x->names > 2 * x->max_held) {
        x->stats.forgotten += x->parts[largest].names.count;
        bt_kv_part_clear(x, largest);
    }
    x->sweep_at = x->names + x->max_held / 4;
}

static void keep_bounds(bt_kv_index_t *x)
{
    bt_kv_cell_t *cell;

    while (x->held > x->max_held && (cell = bt_kv_table_oldest(&x->table)) != NULL)
        forget(x, cell);
    if (x->names > x->held && x->names > x->sweep_at)
        sweep_names(x);
}

/* ---- events ---- */

void bt_kv_index_add_lora(bt_kv_index_t *x, uint64_t hash)
{
    for (unsigned i = 0; hash != 0 && i < BT_KV_LORAS_MAX; i++) {
        const uint64_t seen = atomic_load_explicit(&x->loras[i], memory_order_relaxed);
        if (seen == 0)
            atomic_store_explicit(&x->loras[i], hash, memory_order_relaxed);
        if (seen == 0 || seen == hash)
            return;
    }
}

/* Where it stands; 0: a free place. BT_KV_SIZES_MAX: nowhere. */
static unsigned place_of_size(const bt_kv_index_t *x, uint32_t size)
{
    unsigned i = 0;

    while (i < BT_KV_SIZES_MAX && atomic_load_explicit(&x->sizes[i], memory_order_relaxed) != size)
        i++;
    return i;
}

/* Is this the size of the part's blocks, and one that queries know? */
static bool learn_size(bt_kv_index_t *x, uint32_t part, uint32_t size)
{
    const uint32_t own = atomic_load_explicit(&x->block_tokens[part], memory_order_relaxed);
    unsigned at = place_of_size(x, size);

    if (own != 0)
        return own == size;
    if (at == BT_KV_SIZES_MAX)
        at = place_of_size(x, 0);
    if (at == BT_KV_SIZES_MAX)
        return false;
    x->size_parts[at]++;
    atomic_store_explicit(&x->sizes[at], size, memory_order_relaxed);
    atomic_store_explicit(&x->block_tokens[part], size, memory_order_relaxed);
    return true;
}

/* The last part with blocks of that size makes room for another size. */
static void give_size_back(bt_kv_index_t *x, uint32_t part)
{
    const uint32_t own = atomic_load_explicit(&x->block_tokens[part], memory_order_relaxed);

    if (own == 0)
        return;
    const unsigned at = place_of_size(x, own);
    if (--x->size_parts[at] == 0)
        atomic_store_explicit(&x->sizes[at], 0, memory_order_relaxed);
    atomic_store_explicit(&x->block_tokens[part], 0, memory_order_relaxed);
}

/* The hash that the first of the event's blocks goes on from. False: its parent is not known. */
static bool parent_of(const bt_kv_part_t *p, const bt_kv_event_t *e, uint64_t *parent_p)
{
    const uint64_t *own = bt_kv_names_find(&p->names, e->parent);

    *parent_p = !e->has_parent ? e->root : own != NULL ? *own : 0;
    return !e->has_parent || own != NULL;
}

/* vLLM computes a block that it has a second time where a prompt ends with it, or two prompts come at once. It tells each copy, and tells each one's
 * removal. */
static void add_copy(bt_kv_names_t *copies, uint64_t engine)
{
    const uint64_t *more = bt_kv_names_find(copies, engine);

    (void) bt_kv_names_put(copies, engine, more != NULL ? *more + 1 : 1);
}

/* False: there was one. */
static bool take_copy(bt_kv_names_t *copies, uint64_t engine)
{
    const uint64_t *more = bt_kv_names_find(copies, engine);

    if (more == NULL)
        return false;
    if (*more > 1)
        (void) bt_kv_names_put(copies, engine, *more - 1);
    else
        bt_kv_names_remove(copies, engine);
    return true;
}

static bool is_on_device(bt_kv_index_t *x, uint32_t part, uint64_t own)
{
    const bt_kv_cell_t *cell = bt_kv_table_find(&x->table, own);

    return cell != NULL && (bt_kv_owners_tiers(owners_at(cell), part) & 1U << BT_KV_DEVICE) != 0;
}

static void store_one(bt_kv_index_t *x, uint32_t part, uint64_t engine, uint64_t own,
                      enum bt_kv_tier tier)
{
    bt_kv_names_t *names = &x->parts[part].names, *copies = &x->parts[part].copies;
    const uint64_t before = names->count, *known = bt_kv_names_find(names, engine);

    if (known != NULL && *known != own) { /* the name has gone over to another block */
        (void) let_go(x, part, *known, TIERS_ALL);
        bt_kv_names_remove(copies, engine);
    } else if (known != NULL && tier == BT_KV_DEVICE && is_on_device(x, part, own)) {
        add_copy(copies, engine);
    }
    if (bt_kv_names_put(names, engine, own) < 0)
        return;
    x->names += names->count - before;
    if (hold(x, part, own, tier))
        x->stats.stored++;
}

/* Our hashes of the event's next blocks. What they will be looked up in comes into the cache meanwhile. */
static unsigned hash_ahead(const bt_kv_index_t *x, uint32_t part, const bt_kv_event_t *e,
                           unsigned done, uint64_t *parent, uint64_t own[AHEAD])
{
    const bt_kv_cells_t *cells = bt_kv_table_cells(&x->table);
    const unsigned left = e->hash_count - done, count = left < AHEAD ? left : AHEAD;

    for (unsigned i = 0; i < count; i++) {
        const unsigned at = done + i;
        bt_kv_names_prefetch(&x->parts[part].names, e->hashes[at]);
        *parent = bt_kv_chain(*parent, e->tokens + (size_t) at * e->block_tokens, e->block_tokens);
        if (e->extras != NULL && e->extras[at] != 0)
            *parent = bt_kv_mix(*parent, e->extras[at]);
        bt_kv_cells_prefetch(cells, *parent);
        bt_kv_cells_prefetch_used(cells, *parent);
        own[i] = *parent;
    }
    return count;
}

static void store(bt_kv_index_t *x, uint32_t part, const bt_kv_event_t *e)
{
    uint64_t parent, own[AHEAD];

    if (e->lora.n > 0)
        bt_kv_index_add_lora(x, bt_kv_hash(e->lora));
    if (!learn_size(x, part, e->block_tokens)) {
        x->stats.odd_sizes += e->hash_count;
        return;
    }
    if (!parent_of(&x->parts[part], e, &parent)) {
        x->stats.orphans += e->hash_count;
        return;
    }
    for (unsigned done = 0; done < e->hash_count;) {
        const unsigned count = hash_ahead(x, part, e, done, &parent, own);
        for (unsigned i = 0; i < count; i++, done++)
            store_one(x, part, e->hashes[done], own[i], e->tier);
    }
}

/* No tokens: blocks that are known by their names are in another tier as well. */
static void store_again(bt_kv_index_t *x, uint32_t part, const bt_kv_event_t *e)
{
    for (unsigned i = 0; i < e->hash_count; i++) {
        const uint64_t *own = bt_kv_names_find(&x->parts[part].names, e->hashes[i]);
        if (own == NULL)
            x->stats.orphans++;
        else if (hold(x, part, *own, e->tier))
            x->stats.stored++;
    }
}

static void remove_one(bt_kv_index_t *x, uint32_t part, uint64_t engine, enum bt_kv_tier tier)
{
    bt_kv_names_t *names = &x->parts[part].names;
    const uint64_t *own = bt_kv_names_find(names, engine);

    if (own == NULL)
        return;
    x->stats.removed++;
    if (tier == BT_KV_DEVICE && take_copy(&x->parts[part].copies, engine))
        return;
    if (!let_go(x, part, *own, 1U << tier))
        return;
    bt_kv_names_remove(names, engine);
    x->names--;
}

/* Names, then the blocks that they lead to, come into the cache for many at once. */
static void look_ahead(const bt_kv_index_t *x, uint32_t part, const uint64_t *engines,
                       unsigned count)
{
    const bt_kv_cells_t *cells = bt_kv_table_cells(&x->table);
    const bt_kv_names_t *names = &x->parts[part].names;

    for (unsigned i = 0; i < count; i++)
        bt_kv_names_prefetch(names, engines[i]);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t *own = bt_kv_names_find(names, engines[i]);
        if (own != NULL)
            bt_kv_cells_prefetch(cells, *own);
    }
}

static void remove_names(bt_kv_index_t *x, uint32_t part, const bt_kv_event_t *e)
{
    for (unsigned i = 0; i < e->hash_count; i++) {
        const unsigned left = e->hash_count - i;

        if (i % AHEAD == 0)
            look_ahead(x, part, e->hashes + i, left < AHEAD ? left : AHEAD);
        remove_one(x, part, e->hashes[i], e->tier);
    }
}

/* Of a hybrid model's groups of layers, the first with full attention speaks for all. */
static bool is_of_group(bt_kv_part_t *p, const bt_kv_event_t *e)
{
    if (p->group < 0 && e->kind == BT_KV_STORED && !e->is_partial)
        p->group = (int) e->group;
    return p->group == (int) e->group && !e->is_partial;
}

void bt_kv_part_apply(bt_kv_index_t *x, uint32_t part, const bt_kv_event_t *e)
{
    if (e->kind == BT_KV_CLEARED) {
        bt_kv_part_clear(x, part);
        return;
    }
    if (!is_of_group(&x->parts[part], e))
        return;
    if (e->kind == BT_KV_REMOVED)
        remove_names(x, part, e);
    else if (e->token_count == 0)
        store_again(x, part, e);
    else
        store(x, part, e);
    keep_bounds(x);
    bt_epoch_collect(&x->epoch);
}

/* ---- parts ---- */

static bool are_free(const bt_kv_index_t *x, uint32_t first, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (x->parts[first + i].is_open)
            return false;
    return true;
}

int bt_kv_part_open(bt_kv_index_t *x, unsigned count, uint32_t *first_p)
{
    uint32_t first = 1;

    while (first + count - 1 <= x->max_parts && !are_free(x, first, count))
        first++;
    if (count == 0 || first + count - 1 > x->max_parts)
        return BT_E_LIMIT;
    for (unsigned i = 0; i < count; i++)
        x->parts[first + i] = (bt_kv_part_t){.is_open = true, .group = -1};
    if (first + count - 1 > x->high)
        atomic_store(&x->high, first + count - 1);
    x->owners.parts = x->high;
    *first_p = first;
    return 0;
}

void bt_kv_part_clear(bt_kv_index_t *x, uint32_t part)
{
    bt_kv_part_t *p = &x->parts[part];

    for (uint64_t i = 0; p->names.slots != NULL && i <= p->names.mask; i++)
        if (p->names.slots[i].engine != 0)
            (void) let_go(x, part, p->names.slots[i].own, TIERS_ALL);
    x->names -= p->names.count;
    bt_kv_names_clear(&p->names);
    bt_kv_names_clear(&p->copies);
    p->group = -1;
    give_size_back(x, part);
    bt_epoch_collect(&x->epoch);
}

/* ---- out of a snapshot ---- */

int bt_kv_part_group(const bt_kv_index_t *x, uint32_t part)
{
    return x->parts[part].group;
}

void bt_kv_part_each(const bt_kv_index_t *x, uint32_t part, bt_kv_name_cb on_name, void *user)
{
    const bt_kv_part_t *p = &x->parts[part];

    for (uint64_t i = 0; p->names.slots != NULL && i <= p->names.mask; i++) {
        const bt_kv_name_t *name = &p->names.slots[i];
        if (name->engine == 0)
            continue;
        const bt_kv_cell_t *cell = bt_kv_table_find(&x->table, name->own);
        const uint64_t *more = bt_kv_names_find(&p->copies, name->engine);
        on_name(user, name->engine, name->own,
                cell != NULL ? bt_kv_owners_tiers(owners_at(cell), part) : 0,
                more != NULL ? *more : 0);
    }
}

bool bt_kv_part_begin_restore(bt_kv_index_t *x, uint32_t part, uint64_t block_tokens, int64_t group)
{
    if (block_tokens > BT_KV_BLOCK_TOKENS_MAX || group < -1 || group > INT_MAX ||
        (block_tokens > 0 && !learn_size(x, part, (uint32_t) block_tokens)))
        return false;
    x->parts[part].group = (int) group;
    return true;
}

void bt_kv_part_restore(bt_kv_index_t *x, uint32_t part, uint64_t engine, uint64_t own,
                        unsigned tiers, uint64_t more)
{
    bt_kv_names_t *names = &x->parts[part].names;
    const uint64_t before = names->count;

    if (bt_kv_part_block_tokens(x, part) == 0 || bt_kv_names_put(names, engine, own) < 0)
        return;
    x->names += names->count - before;
    for (unsigned tier = 0; tier < BT_KV_TIERS; tier++)
        if ((tiers & 1U << tier) != 0)
            (void) hold(x, part, own, (enum bt_kv_tier) tier);
    if (more > 0)
        (void) bt_kv_names_put(&x->parts[part].copies, engine, more);
    keep_bounds(x);
}

unsigned bt_kv_index_loras(const bt_kv_index_t *x, uint64_t hashes[BT_KV_LORAS_MAX])
{
    unsigned n = 0;

    while (n < BT_KV_LORAS_MAX &&
           (hashes[n] = atomic_load_explicit(&x->loras[n], memory_order_relaxed)) != 0)
        n++;
    return n;
}

void bt_kv_part_close(bt_kv_index_t *x, uint32_t first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        bt_kv_part_set_live(x, first + i, false);
        bt_kv_part_clear(x, first + i);
        x->parts[first + i].is_open = false;
    }
}

uint64_t bt_kv_part_held(const bt_kv_index_t *x, uint32_t part)
{
    return x->parts[part].names.count;
}

void bt_kv_part_set_live(bt_kv_index_t *x, uint32_t part, bool is_live)
{
    atomic_store_explicit(&x->is_live[part], is_live, memory_order_relaxed);
}

bool bt_kv_part_is_live(const bt_kv_index_t *x, uint32_t part)
{
    return part <= x->max_parts && atomic_load_explicit(&x->is_live[part], memory_order_relaxed);
}

unsigned bt_kv_part_block_tokens(const bt_kv_index_t *x, uint32_t part)
{
    return part <= x->max_parts ? atomic_load_explicit(&x->block_tokens[part], memory_order_relaxed)
                                : 0;
}

bool bt_kv_index_knows_lora(const bt_kv_index_t *x, bt_str_t name)
{
    const uint64_t hash = bt_kv_hash(name);
    uint64_t seen = 0;

    for (unsigned i = 0; i < BT_KV_LORAS_MAX; i++) {
        seen = atomic_load_explicit(&x->loras[i], memory_order_relaxed);
        if (seen == hash || seen == 0)
            break;
    }
    return seen == hash;
}

void bt_kv_index_stats(const bt_kv_index_t *x, bt_kv_index_stats_t *stats)
{
    *stats = x->stats;
    stats->blocks = x->table.live;
    stats->held = x->held;
    stats->names = x->names;
    stats->bytes = sizeof(*x) + x->table.bytes + x->owners.bytes + x->epoch.retired_bytes;
    for (uint32_t part = 1; part <= x->high; part++)
        stats->bytes +=
            bt_kv_names_bytes(&x->parts[part].names) + bt_kv_names_bytes(&x->parts[part].copies);
}
