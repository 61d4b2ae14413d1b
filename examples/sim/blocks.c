/* blocks.c - see blocks.h.
 *
 * A block has a key and a content, and the two differ when wrong KV was received: the cache then keeps the wrong content
 * under the right key, which is what happens in a real engine too.
 */
#include "blocks.h"

#include "base/err.h"
#include "words.h"

#include <stdlib.h>

int sim_blocks_init(sim_blocks_t *b, unsigned count, unsigned block_tokens)
{
    unsigned buckets = 64;

    *b = (sim_blocks_t){
        .count = count, .fresh = 1, .block_bytes = (size_t) block_tokens * SIM_TOKEN_BYTES};
    bt_list_init(&b->free);
    while (buckets < count && buckets < 65536)
        buckets *= 2;
    b->bucket_mask = buckets - 1;
    b->table = calloc((size_t) count + 1, sizeof(*b->table));
    b->buckets = calloc(buckets, sizeof(*b->buckets));
    return b->table != NULL && b->buckets != NULL ? 0 : BT_E_NOMEM;
}

void sim_blocks_fini(sim_blocks_t *b)
{
    free(b->table);
    free(b->buckets);
    *b = (sim_blocks_t){0};
}

static uint32_t *bucket_of(const sim_blocks_t *b, uint64_t key)
{
    return &b->buckets[sim_mix(key) & b->bucket_mask];
}

static uint32_t find_cached(const sim_blocks_t *b, uint64_t key)
{
    uint32_t id = *bucket_of(b, key);

    while (id != 0 && b->table[id].key != key)
        id = b->table[id].next;
    return id;
}

static void drop_key(sim_blocks_t *b, uint32_t id)
{
    uint32_t *at = bucket_of(b, b->table[id].key);

    if (b->table[id].key == 0)
        return;
    while (*at != id)
        at = &b->table[*at].next;
    *at = b->table[id].next;
    if (b->on_removed != NULL)
        b->on_removed(b->user, b->table[id].key);
    b->table[id].key = 0;
}

/* False: another block has it. */
static bool set_key(sim_blocks_t *b, uint32_t id, uint64_t key)
{
    if (find_cached(b, key) != 0)
        return false;
    b->table[id].key = key;
    b->table[id].next = *bucket_of(b, key);
    *bucket_of(b, key) = id;
    return true;
}

static void hold(sim_blocks_t *b, uint32_t id)
{
    if (b->table[id].refs++ != 0)
        return;
    b->used++;
    if (b->table[id].link.next != NULL)
        bt_list_remove(&b->table[id].link);
}

static uint32_t next_victim(const sim_blocks_t *b)
{
    sim_block_t *victim = bt_container_of(b->free.next, sim_block_t, link);
    bt_list_t *it, *tmp;

    bt_list_each (&b->free, it, tmp) {
        sim_block_t *block = bt_container_of(it, sim_block_t, link);
        if (!b->by_priority)
            break;
        if (block->priority < victim->priority)
            victim = block;
    }
    return (uint32_t) (victim - b->table);
}

static uint32_t take_free(sim_blocks_t *b)
{
    uint32_t id;

    if (b->fresh <= b->count) {
        id = b->fresh++;
        bt_list_init(&b->table[id].link);
    } else {
        id = next_victim(b);
        drop_key(b, id);
    }
    b->table[id].priority = INT64_MIN;
    hold(b, id);
    return id;
}

bool sim_blocks_take(sim_blocks_t *b, const sim_prompt_t *prompt, uint32_t *ids, unsigned *hits_p)
{
    unsigned hits = 0;

    if (prompt->blocks > b->count - b->used)
        return false;
    while (hits + 1 < prompt->blocks) {
        uint32_t id = find_cached(b, prompt->states[hits]);
        if (id == 0)
            break;
        hold(b, id);
        ids[hits++] = id;
    }
    for (unsigned i = hits; i < prompt->blocks; i++) {
        bool full = (i + 1) * b->block_bytes <= prompt->bytes;
        ids[i] = take_free(b);
        b->table[ids[i]].bytes =
            (uint32_t) (full ? b->block_bytes : prompt->bytes - i * b->block_bytes);
    }
    for (unsigned i = 0; i < prompt->blocks; i++)
        if (b->table[ids[i]].priority < prompt->priority)
            b->table[ids[i]].priority = prompt->priority;
    *hits_p = hits;
    return true;
}

/* Findable only now that there is content. */
static void publish(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids, unsigned i)
{
    if ((i + 1) * b->block_bytes <= prompt->bytes && set_key(b, ids[i], prompt->states[i]) &&
        b->on_stored != NULL)
        b->on_stored(b->user, prompt, i);
}

void sim_blocks_compute(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids,
                        unsigned first)
{
    /* What is computed stands on what is there: behind a cached block with wrong content the rest is wrong too. */
    uint64_t right = first == 0 ? SIM_STATE_FIRST : prompt->states[first - 1];
    uint64_t from = first == 0 ? SIM_STATE_FIRST : b->table[ids[first - 1]].to;
    uint64_t error = from ^ right;

    for (unsigned i = first; i < prompt->blocks; i++) {
        b->table[ids[i]].from = from;
        b->table[ids[i]].to = prompt->states[i] ^ error;
        from = b->table[ids[i]].to;
        publish(b, prompt, ids, i);
    }
}

void sim_blocks_fill(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids, unsigned i,
                     const sim_block_t *content)
{
    sim_block_t *target = &b->table[ids[i]];

    target->from = content->from;
    target->to = content->to;
    target->bytes = content->bytes;
    publish(b, prompt, ids, i);
}

void sim_blocks_copy(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids,
                     unsigned first, const sim_blocks_t *from, const uint32_t *from_ids)
{
    for (unsigned i = first; i < prompt->blocks; i++)
        sim_blocks_fill(b, prompt, ids, i, &from->table[from_ids[i]]);
}

uint64_t sim_blocks_kv(const sim_blocks_t *b, const uint32_t *ids, unsigned n)
{
    uint64_t state = SIM_STATE_FIRST, wrong = 0;
    size_t bytes = 0;

    for (unsigned i = 0; i < n; i++) {
        const sim_block_t *block = &b->table[ids[i]];
        wrong |= block->from ^ state;
        state = block->to;
        bytes += block->bytes;
    }
    return sim_kv_of_state(state, bytes) ^ sim_mix(wrong); /* sim_mix(0) is 0 */
}

void sim_blocks_hold(sim_blocks_t *b, const uint32_t *ids, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        hold(b, ids[i]);
}

void sim_blocks_release(sim_blocks_t *b, const uint32_t *ids, unsigned n)
{
    /* Last block first, so that a prefix outlives what stands on it. */
    while (n-- > 0) {
        sim_block_t *block = &b->table[ids[n]];
        if (--block->refs == 0) {
            b->used--;
            bt_list_push(&b->free, &block->link);
        }
    }
}

void sim_blocks_scramble(sim_blocks_t *b, const uint32_t *ids, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (b->table[ids[i]].refs != 0)
            continue;
        drop_key(b, ids[i]);
        b->table[ids[i]].to = sim_mix(b->table[ids[i]].to + 1);
    }
}

bool sim_blocks_valid_id(const sim_blocks_t *b, uint64_t id)
{
    return id > 0 && id <= b->count;
}
