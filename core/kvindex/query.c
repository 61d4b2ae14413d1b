/* How it works: each part has a score: how many leading blocks it holds. A block's owners whose score is the number of blocks before it go one
 * up; nobody else can. So for short lists of owners, those who drop out are never looked at.
 *
 * What a whole fleet holds (a system prompt) comes as bitmaps: then those who hold all so far are a bitmap too, and a block is an AND. Only who
 * drops out of it gets a score, once. Short lists are alike from block to block, too: where all who hold all so far are met again in the same
 * order, their scores wait.
 *
 * A prompt's hashes are known before anything is looked up: they are made some at a time, and what they lead to comes into the cache meanwhile. */
#include "kvindex/query.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "kvindex/index_impl.h"

#include <stdlib.h>

#define CHUNK 32u /* blocks that are hashed before they are looked up */

typedef struct score {
    uint32_t serial, blocks, host, disk;
} score_t;

struct bt_kv_query {
    bt_kv_index_t *index;
    unsigned place;
    uint32_t serial;
    uint32_t parts, words; /* that there is memory for */
    score_t *scores;       /* by part */
    uint64_t *active;      /* a bitmap, while is_wide */
    bool is_wide;
    uint32_t few[BT_KV_ARRAY_MAX]; /* those who hold all so far, otherwise, as owners */
    unsigned few_count;
    unsigned few_at;    /* so many blocks are counted in their scores */
    bool is_all_device; /* they have the last block in their engines' devices */
};

int bt_kv_query_new(bt_kv_query_t **query_p, bt_kv_index_t *index)
{
    bt_kv_query_t *q = calloc(1, sizeof(*q));
    int rc = BT_E_NOMEM;

    if (q != NULL && (rc = bt_epoch_join(&index->epoch, &q->place)) == 0) {
        q->index = index;
        *query_p = q;
        return 0;
    }
    free(q);
    return rc;
}

void bt_kv_query_free(bt_kv_query_t *q)
{
    if (q == NULL)
        return;
    free(q->scores);
    free(q->active);
    free(q);
}

static int make_room(bt_kv_query_t *q)
{
    const uint32_t high = atomic_load(&q->index->high), parts = (high / 64 + 1) * 64;

    if (parts <= q->parts)
        return 0;
    score_t *scores = realloc(q->scores, parts * sizeof(scores[0]));
    if (scores == NULL)
        return BT_E_NOMEM;
    q->scores = scores;
    uint64_t *active = realloc(q->active, parts / 64 * sizeof(active[0]));
    if (active == NULL)
        return BT_E_NOMEM;
    q->active = active;
    memset(&q->scores[q->parts], 0, (parts - q->parts) * sizeof(scores[0]));
    q->parts = parts;
    q->words = parts / 64;
    return 0;
}

/* ---- scores ---- */

/* A part that came while this walk is under way is not in it. */
static bool is_in(const bt_kv_query_t *q, uint32_t part)
{
    return part < q->parts;
}

/* Zero, but where this walk has given one: another block size's is no reason to begin anew, its parts are others. */
static score_t *score_of(bt_kv_query_t *q, uint32_t part)
{
    score_t *s = &q->scores[part];

    if (s->serial != q->serial)
        *s = (score_t){.serial = q->serial};
    return s;
}

static void count_tier(score_t *s, unsigned tiers)
{
    if ((tiers & 1U << BT_KV_DEVICE) != 0)
        return;
    if ((tiers & 1U << BT_KV_HOST) != 0)
        s->host++;
    else
        s->disk++;
}

static void advance(bt_kv_query_t *q, uint32_t owner, unsigned block)
{
    const uint32_t part = bt_kv_owner_part(owner);

    if (owner == 0 || !is_in(q, part))
        return;
    score_t *s = score_of(q, part);
    if (s->blocks != block || q->few_count == BT_KV_ARRAY_MAX)
        return;
    s->blocks++;
    count_tier(s, bt_kv_owner_tiers(owner));
    q->is_all_device &= (bt_kv_owner_tiers(owner) & 1U << BT_KV_DEVICE) != 0;
    q->few[q->few_count++] = owner;
}

/* What their scores did not say yet. */
static void catch_up(bt_kv_query_t *q, unsigned blocks)
{
    for (unsigned i = 0; i < q->few_count && q->few_at != blocks; i++)
        score_of(q, bt_kv_owner_part(q->few[i]))->blocks = blocks;
    q->few_at = blocks;
}

/* Those who hold all so far hold this block as well, in the same tiers, and nobody else can. */
static bool are_same(const bt_kv_query_t *q, const uint32_t *owners, unsigned count)
{
    unsigned met = 0;

    if (q->few_count == 0 || count < q->few_count || !q->is_all_device)
        return false;
    if (memcmp(owners, q->few, q->few_count * sizeof(owners[0])) == 0) /* nearly always */
        return true;
    for (unsigned i = 0; i < count && met < q->few_count; i++)
        met += owners[i] == q->few[met];
    return met == q->few_count;
}

/* ---- bitmaps ---- */

static uint64_t plane_word(bt_kv_set_t *set, unsigned tier, uint32_t word)
{
    return word < set->words
               ? atomic_load_explicit(&bt_kv_set_plane(set, tier)[word], memory_order_relaxed)
               : 0;
}

/* Those of a word who leave with so many blocks. */
static void settle_word(bt_kv_query_t *q, uint32_t word, uint64_t bits, unsigned blocks)
{
    for (; bits != 0; bits &= bits - 1)
        score_of(q, word * 64 + (uint32_t) __builtin_ctzll(bits))->blocks = blocks;
}

static void count_word(bt_kv_query_t *q, uint32_t word, uint64_t bits, unsigned tiers)
{
    for (; bits != 0; bits &= bits - 1)
        count_tier(score_of(q, word * 64 + (uint32_t) __builtin_ctzll(bits)), tiers);
}

static void settle_all(bt_kv_query_t *q, unsigned blocks)
{
    for (uint32_t w = 0; q->is_wide && w < q->words; w++)
        settle_word(q, w, q->active[w], blocks);
}

/* False: nobody is left. */
static bool and_bitmaps(bt_kv_query_t *q, bt_kv_set_t *set, unsigned block)
{
    uint64_t any = 0;

    for (uint32_t w = 0; w < q->words; w++) {
        const uint64_t before = block > 0 ? q->active[w] : UINT64_MAX;
        const uint64_t device = plane_word(set, BT_KV_DEVICE, w) & before;
        const uint64_t host = plane_word(set, BT_KV_HOST, w) & before & ~device;
        const uint64_t disk = plane_word(set, BT_KV_DISK, w) & before & ~device & ~host;
        const uint64_t now = device | host | disk;

        if (block > 0)
            settle_word(q, w, before & ~now, block);
        count_word(q, w, host, 1U << BT_KV_HOST);
        count_word(q, w, disk, 1U << BT_KV_DISK);
        q->active[w] = now;
        any |= now;
    }
    q->is_wide = any != 0;
    return q->is_wide;
}

/* The few are looked for in the bitmaps. */
static void advance_few(bt_kv_query_t *q, bt_kv_set_t *set, unsigned block)
{
    const unsigned count = q->few_count;

    catch_up(q, block);
    q->few_count = 0;
    q->is_all_device = true;
    for (unsigned i = 0; i < count; i++) {
        const uint32_t part = bt_kv_owner_part(q->few[i]);
        unsigned tiers = 0;

        for (unsigned t = 0; t < BT_KV_TIERS; t++)
            if ((plane_word(set, t, part / 64) >> part % 64 & 1) != 0)
                tiers |= 1U << t;
        if (tiers != 0)
            advance(q, bt_kv_owner(part, tiers), block);
    }
    q->few_at = block + 1;
}

/* ---- a block ---- */

/* Of the many, those who hold the block as well are few. */
static void narrow(bt_kv_query_t *q, unsigned block)
{
    settle_all(q, block);
    q->is_wide = false;
    q->few_count = 0;
}

/* Those who are listed, in the word or in an array. */
static unsigned list_owners(uint64_t word, uint32_t owners[BT_KV_ARRAY_MAX])
{
    bt_kv_set_t *set = bt_kv_word_is_set(word) ? bt_kv_word_set(word) : NULL;
    const unsigned places = set == NULL ? BT_KV_INLINE_MAX : set->cap;
    unsigned count = 0;

    for (unsigned i = 0; i < places; i++) {
        owners[count] = set == NULL
                            ? bt_kv_word_owner(word, i)
                            : atomic_load_explicit(&bt_kv_set_owners(set)[i], memory_order_relaxed);
        count += owners[count] != 0;
    }
    return count;
}

static void advance_listed(bt_kv_query_t *q, uint64_t word, unsigned block)
{
    uint32_t owners[BT_KV_ARRAY_MAX];
    const unsigned count = list_owners(word, owners);

    if (are_same(q, owners, count))
        return;
    catch_up(q, block);
    q->few_count = 0;
    q->is_all_device = true;
    for (unsigned i = 0; i < count; i++)
        advance(q, owners[i], block);
    q->few_at = block + 1;
}

static bool step(bt_kv_query_t *q, uint64_t word, unsigned block)
{
    bt_kv_set_t *set = bt_kv_word_is_set(word) ? bt_kv_word_set(word) : NULL;

    if (set != NULL && set->cap == 0 && (block == 0 || q->is_wide))
        return and_bitmaps(q, set, block);
    if (q->is_wide)
        narrow(q, block);
    if (set != NULL && set->cap == 0)
        advance_few(q, set, block);
    else
        advance_listed(q, word, block);
    return q->few_count > 0;
}

/* ---- a walk ---- */

static unsigned hash_chunk(const bt_kv_prompt_t *prompt, const bt_kv_cells_t *cells, unsigned done,
                           unsigned size, uint64_t *parent, uint64_t hashes[CHUNK])
{
    const uint32_t *tokens;
    const unsigned have = prompt->read(prompt->user, (done + CHUNK) * size, &tokens) / size;
    const unsigned count = have > done + CHUNK ? CHUNK : have > done ? have - done : 0;

    for (unsigned i = 0; i < count; i++) {
        *parent = bt_kv_chain(*parent, tokens + (size_t) (done + i) * size, size);
        hashes[i] = *parent;
        bt_kv_cells_prefetch(cells, *parent);
    }
    return count;
}

/* How many of them somebody holds, up to the first that nobody does; words: by whom. */
static unsigned look_up(const bt_kv_cells_t *cells, const uint64_t *hashes, unsigned count,
                        uint64_t words[CHUNK])
{
    for (unsigned i = 0; i < count; i++) {
        words[i] = bt_kv_cells_read(cells, hashes[i]);
        if (words[i] == 0)
            return i;
        if (bt_kv_word_is_set(words[i]))
            __builtin_prefetch(bt_kv_word_set(words[i]));
    }
    return count;
}

static unsigned walk(bt_kv_query_t *q, const bt_kv_prompt_t *prompt, unsigned size)
{
    const bt_kv_cells_t *cells = bt_kv_table_cells(&q->index->table);
    uint64_t hashes[CHUNK], words[CHUNK], parent = prompt->root;
    unsigned done = 0, count, found;
    bool is_over = false;

    q->is_wide = false;
    q->few_count = q->few_at = 0;
    while (!is_over && done < BT_KV_QUERY_BLOCKS_MAX &&
           (count = hash_chunk(prompt, cells, done, size, &parent, hashes)) > 0) {
        found = look_up(cells, hashes, count, words);
        is_over = found < count;
        for (unsigned i = 0; i < found; i++, done++)
            if (!step(q, words[i], done)) {
                is_over = true;
                break;
            }
    }
    settle_all(q, done);
    catch_up(q, done);
    return done;
}

/* The sizes that there are now, each once: one that is given back and comes again may be met in two places. */
static unsigned read_sizes(const bt_kv_index_t *x, uint32_t sizes[BT_KV_SIZES_MAX])
{
    unsigned count = 0;

    for (unsigned i = 0; i < BT_KV_SIZES_MAX; i++) {
        const uint32_t size = atomic_load_explicit(&x->sizes[i], memory_order_relaxed);
        bool is_new = size != 0;

        for (unsigned k = 0; k < count; k++)
            is_new &= sizes[k] != size;
        if (is_new)
            sizes[count++] = size;
    }
    return count;
}

unsigned bt_kv_query_find(bt_kv_query_t *q, const bt_kv_prompt_t *prompt)
{
    uint32_t sizes[BT_KV_SIZES_MAX];
    unsigned longest = 0, most = 0;

    if (make_room(q) < 0)
        return 0;
    if (++q->serial == 0) { /* very old scores would be taken for this walk's */
        memset(q->scores, 0, q->parts * sizeof(q->scores[0]));
        q->serial = 1;
    }
    bt_epoch_enter(&q->index->epoch, q->place);
    const unsigned count = read_sizes(q->index, sizes);
    for (unsigned i = 0; i < count; i++) {
        const unsigned blocks = walk(q, prompt, sizes[i]);

        if (blocks * sizes[i] > most) {
            most = blocks * sizes[i];
            longest = blocks;
        }
    }
    bt_epoch_exit(&q->index->epoch, q->place);
    return longest;
}

bt_kv_hit_t bt_kv_query_hit(const bt_kv_query_t *q, uint32_t part)
{
    const score_t *s = part < q->parts ? &q->scores[part] : NULL;

    if (s == NULL || s->serial != q->serial)
        return (bt_kv_hit_t){0};
    return (bt_kv_hit_t){s->blocks, s->host, s->disk,
                         s->blocks * bt_kv_part_block_tokens(q->index, part)};
}
